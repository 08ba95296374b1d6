//! Splits registers into webs.
//!
//! A PTX register is a variable: one name may hold unrelated values at different places. A web is a
//! set of SSA values that are connected by φs: the definitions and uses that must share storage.
//! After this pass every [`Reg`] of the program is a web. A register that is uniform in one part of
//! a kernel therefore stays uniform, even if its name is reused for divergent values elsewhere.

use crate::graph::Graph;
use crate::joins::Joins;
use crate::limits::TooLarge;
use crate::live::Live;
use crate::program::*;
use std::collections::HashMap;

/// A join of values of a web.
#[derive(Clone, Debug)]
pub(crate) struct Phi {
    pub(crate) block: BlockId,
    pub(crate) web: Reg,
}

/// Renames the program's registers to webs and returns the places where values join.
///
/// # Errors
/// Returns [`TooLarge`] if the kernel is too large for the liveness analysis.
pub(crate) fn split_into_webs(program: &mut Program, graph: &Graph) -> Result<Vec<Phi>, TooLarge> {
    let live = Live::of(program, graph)?;
    let order = graph.reverse_postorder(ENTRY);
    let mut joins = Joins::new(graph, &graph.dominators(ENTRY), &order, &live);
    let phis = place_phis(program, &order, &mut joins);
    let mut renamer = Renamer::new(program, &phis);
    renamer.run(program, graph, &joins.into_children());
    Ok(renamer.apply(program))
}

/// The registers that need a φ in each block: definitions join and the register is live.
fn place_phis(program: &Program, order: &[BlockId], joins: &mut Joins<'_>) -> Vec<Vec<Reg>> {
    let mut defined_in: Vec<Vec<BlockId>> = vec![Vec::new(); program.regs.len()];
    for &block in order {
        let mut defs: Vec<Reg> = program.blocks[block].insts.iter().flat_map(Inst::defs).collect();
        defs.extend(program.blocks[block].term.def());
        defs.sort_unstable();
        defs.dedup();
        defs.iter().for_each(|&d| defined_in[d].push(block));
    }
    let mut phis: Vec<Vec<Reg>> = vec![Vec::new(); program.blocks.len()];
    for (reg, blocks) in defined_in.iter().enumerate() {
        joins.of(reg, blocks).into_iter().for_each(|join| phis[join].push(reg));
    }
    phis
}

/// Value numbers and the sets they are merged into.
struct Renamer {
    /// Union-find parents over values.
    parent: Vec<usize>,
    /// Original register of each value.
    reg_of: Vec<Reg>,
    /// Values below this number stand for a register that was not written yet; the value is the
    /// number of the register.
    registers: usize,
    /// φ values by block, parallel to the φ registers.
    phis: Vec<Vec<(Reg, usize)>>,
}

/// The current value of each register; the walk restores it when it leaves a block.
#[derive(Default)]
struct Scope {
    current: HashMap<Reg, usize>,
}

impl Renamer {
    fn new(program: &Program, phis: &[Vec<Reg>]) -> Renamer {
        let registers = program.regs.len();
        let mut renamer =
            Renamer { parent: (0..registers).collect(), reg_of: (0..registers).collect(), registers, phis: Vec::new() };
        renamer.phis = phis.iter().map(|regs| regs.iter().map(|&r| (r, renamer.value(r))).collect()).collect();
        renamer
    }

    fn value(&mut self, reg: Reg) -> usize {
        self.parent.push(self.parent.len());
        self.reg_of.push(reg);
        self.parent.len() - 1
    }

    fn find(&mut self, mut value: usize) -> usize {
        while self.parent[value] != value {
            self.parent[value] = self.parent[self.parent[value]];
            value = self.parent[value];
        }
        value
    }

    fn union(&mut self, a: usize, b: usize) {
        let (a, b) = (self.find(a), self.find(b));
        self.parent[a] = b;
    }

    /// Walks the dominator tree and writes value numbers in place of registers.
    fn run(&mut self, program: &mut Program, graph: &Graph, children: &[Vec<BlockId>]) {
        let mut scope = Scope::default();
        let mut stack = vec![(ENTRY, None::<Vec<(Reg, Option<usize>)>>)];
        while let Some((block, undo)) = stack.pop() {
            if let Some(undo) = undo {
                for (reg, old) in undo.into_iter().rev() {
                    match old {
                        Some(value) => scope.current.insert(reg, value),
                        None => scope.current.remove(&reg),
                    };
                }
                continue;
            }
            let undo = self.rename_block(block, program, graph, &mut scope);
            stack.push((block, Some(undo)));
            stack.extend(children[block].iter().map(|&c| (c, None)));
        }
    }

    fn rename_block(
        &mut self,
        block: BlockId,
        program: &mut Program,
        graph: &Graph,
        scope: &mut Scope,
    ) -> Vec<(Reg, Option<usize>)> {
        let mut undo = Vec::new();
        let mut define = |scope: &mut Scope, reg: Reg, value: usize| undo.push((reg, scope.current.insert(reg, value)));
        for &(reg, value) in &self.phis[block] {
            define(scope, reg, value);
        }
        for inst in &mut program.blocks[block].insts {
            let use_of = |reg: Reg| scope.current.get(&reg).copied().unwrap_or(reg);
            if let Some((reg, _)) = &mut inst.guard {
                *reg = use_of(*reg);
            }
            let first_source = usize::from(inst.has_destination());
            inst.ops.iter_mut().skip(first_source).for_each(|o| o.rename(&mut |r| use_of(r)));
            let is_guarded = inst.guard.is_some();
            let mut tied = false;
            if first_source == 1
                && let Some(destination) = inst.ops.first_mut()
            {
                destination.rename(&mut |reg| {
                    let value = self.value(reg);
                    if is_guarded && let Some(&old) = scope.current.get(&reg) {
                        self.union(value, old);
                        tied = true;
                    }
                    define(scope, reg, value);
                    value
                });
            }
            inst.tied = tied;
        }
        let use_of = |scope: &Scope, reg: Reg| scope.current.get(&reg).copied().unwrap_or(reg);
        let term = &mut program.blocks[block].term;
        term.rename_uses(&mut |reg| use_of(scope, reg));
        term.rename_def(&mut |reg| {
            let value = self.value(reg);
            define(scope, reg, value);
            value
        });
        for &next in &graph.succs[block] {
            for index in 0..self.phis[next].len() {
                let (reg, phi) = self.phis[next][index];
                let incoming = use_of(scope, reg);
                // A path on which the register was never written imposes no constraint.
                if incoming >= self.registers {
                    self.union(phi, incoming);
                }
            }
        }
        undo
    }

    /// Numbers the sets densely and renames values to them.
    fn apply(mut self, program: &mut Program) -> Vec<Phi> {
        let mut webs: HashMap<usize, Reg> = HashMap::new();
        let mut regs = Vec::new();
        let old = std::mem::take(&mut program.regs);
        let mut web_of = |renamer: &mut Renamer, value: usize| {
            let root = renamer.find(value);
            *webs.entry(root).or_insert_with(|| {
                regs.push(old[renamer.reg_of[root]].clone());
                regs.len() - 1
            })
        };
        for block in &mut program.blocks {
            for inst in &mut block.insts {
                if let Some((reg, _)) = &mut inst.guard {
                    *reg = web_of(&mut self, *reg);
                }
                inst.ops.iter_mut().for_each(|o| o.rename(&mut |v| web_of(&mut self, v)));
            }
            block.term.rename_uses(&mut |v| web_of(&mut self, v));
            block.term.rename_def(&mut |v| web_of(&mut self, v));
        }
        let phis = std::mem::take(&mut self.phis);
        let mut out = Vec::new();
        for (block, values) in phis.into_iter().enumerate() {
            out.extend(values.into_iter().map(|(_, value)| Phi { block, web: web_of(&mut self, value) }));
        }
        program.regs = regs;
        out
    }
}
