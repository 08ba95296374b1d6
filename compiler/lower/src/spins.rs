//! Spinning loops: loops that wait for another thread's write.
//!
//! Vocabulary. A *racy read* is a load or atomic whose result another thread can change. A loop
//! *spins* if an exit depends on a racy read with operands that do not change in the loop. A loop
//! is *counted* if an exit depends on a register that the loop only steps; it ends by itself and
//! does not spin.
//!
//! The lanes of a warp run in lock step. If a lane takes a lock and leaves the spinning loop, it
//! would wait forever for the lanes that still spin for that lock. The path of this lane to its
//! *release*, the next write that other threads may wait for, therefore becomes part of the loop:
//! the lane runs to its release before the others try again. An [`Extension`] expresses this by
//! control-flow edges that no lane takes.

use crate::graph::Graph;
use crate::limits::{Budget, TooLarge};
use crate::loops::{LoopId, Loops};
use crate::program::*;
use atoll_ptx::flow::Dominators;
use atoll_ptx::{Immediate, StateSpace};
use std::collections::HashMap;

/// Convergent instructions: the lanes of a warp exchange data or synchronise.
const CONVERGENT: [&str; 8] = ["shfl", "vote", "match", "redux", "elect", "activemask", "bar", "barrier"];
/// Limit on the registers followed backwards from one exit; beyond it the loop counts as not
/// spinning.
const MAX_SLICE: usize = 64;

/// Edges that add the path to the release to a spinning loop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Extension {
    pub(crate) edges: Vec<(BlockId, BlockId)>,
}

/// Splits blocks so that each convergent instruction starts a block and each release ends one.
/// Registers and the first block of each split stay the same.
pub(crate) fn isolate_convergent(program: &mut Program) {
    for at in 0..program.blocks.len() {
        let mut parts = split(std::mem::take(&mut program.blocks[at].insts));
        let ends_in_barrier = matches!(program.blocks[at].term, Term::Barrier { .. });
        if ends_in_barrier && parts.last().is_some_and(|last| !last.is_empty()) {
            parts.push(Vec::new());
        }
        let (line, term) = (program.blocks[at].line, program.blocks[at].term.clone());
        let first_new = program.blocks.len();
        let last = parts.len() - 1;
        for (index, insts) in parts.into_iter().enumerate() {
            let term = if index == last { term.clone() } else { Term::Goto(first_new + index) };
            let part = Block { insts, term, line };
            if index == 0 { program.blocks[at] = part } else { program.blocks.push(part) }
        }
    }
}

/// Splits instructions before each convergent instruction and after each release. Returns at least
/// one part, and none but the first is empty.
fn split(insts: Vec<Inst>) -> Vec<Vec<Inst>> {
    let mut parts = vec![Vec::new()];
    let mut is_released = false;
    for inst in insts {
        let starts = is_released || is_convergent(&inst);
        if starts && parts.last().is_some_and(|part| !part.is_empty()) {
            parts.push(Vec::new());
        }
        is_released = is_release(&inst);
        parts.last_mut().expect("there is at least one part").push(inst);
    }
    parts
}

fn is_convergent(inst: &Inst) -> bool {
    CONVERGENT.contains(&inst.form.opcode.as_str())
}

fn is_ordered(inst: &Inst) -> bool {
    ["volatile", "relaxed", "acquire", "release", "mmio"].iter().any(|m| inst.has(m))
}

/// Whether another thread may change the value that an instruction reads, judging by its form.
fn is_racy_read(inst: &Inst) -> bool {
    match inst.form.opcode.as_str() {
        "ld" => is_ordered(inst) && inst.form.space() != Some(StateSpace::Local),
        // An increment makes progress whatever it reads; an increment by 0 is a read.
        "atom" if ["add", "inc", "dec"].iter().any(|m| inst.has(m)) => {
            matches!(inst.ops.last(), Some(Opnd::Imm(Immediate::Int(0))))
        }
        "atom" => true,
        _ => false,
    }
}

/// Whether other threads may wait for the value written.
fn is_release(inst: &Inst) -> bool {
    match inst.form.opcode.as_str() {
        "st" => is_ordered(inst),
        "atom" | "red" => true,
        _ => false,
    }
}

fn is_plain_store(inst: &Inst) -> bool {
    inst.form.opcode == "st" && inst.form.space() != Some(StateSpace::Local)
}

/// The loops of a program that spin.
pub(crate) struct Spinning {
    /// All loops of the program.
    pub(crate) loops: Loops,
    /// Those that spin.
    ids: Vec<LoopId>,
    graph: Graph,
    dominators: Dominators,
}

impl Spinning {
    /// Finds the loops that spin.
    ///
    /// # Errors
    /// Returns [`TooLarge`] if this takes more than the budget.
    pub(crate) fn of(program: &Program, budget: &mut Budget) -> Result<Spinning, TooLarge> {
        let graph = Graph::new(program.successors());
        let dominators = graph.dominators(ENTRY);
        let loops = Loops::of(&graph, budget)?;
        let mut ids = Vec::new();
        if program.blocks.iter().any(has_racy_read) {
            for (id, _) in loops.iter() {
                let blocks = loops.blocks(id);
                budget.spend(blocks.len())?;
                if blocks.iter().any(|&b| has_racy_read(&program.blocks[b])) {
                    budget.spend(blocks.iter().map(|&b| program.blocks[b].insts.len()).sum())?;
                    ids.extend(spins(program, &loops, id).then_some(id));
                }
            }
        }
        Ok(Spinning { loops, ids, graph, dominators })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// The loops that spin, each with its first entry.
    pub(crate) fn heads(&self) -> impl Iterator<Item = (LoopId, BlockId)> + '_ {
        self.ids.iter().map(|&id| (id, self.loops.get(id).entries[0]))
    }

    /// The entries of all loops that spin.
    pub(crate) fn entries(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.ids.iter().flat_map(|&id| self.loops.get(id).entries.iter().copied())
    }
}

fn has_racy_read(block: &Block) -> bool {
    block.insts.iter().any(is_racy_read)
}

/// Whether a loop spins.
fn spins(program: &Program, loops: &Loops, id: LoopId) -> bool {
    let defs = Definitions::of(program, loops.blocks(id));
    let leaves = |to: &BlockId| !loops.contains(id, *to);
    let exits = loops.blocks(id).iter().filter_map(|&b| match program.blocks[b].term {
        Term::Branch { pred, taken, other, .. } if [taken, other].iter().any(leaves) => Some(pred),
        _ => None,
    });
    let slices: Vec<Vec<&Inst>> = exits.map(|pred| defs.slice(pred)).collect();
    let any = |test: &dyn Fn(&Inst) -> bool| slices.iter().flatten().any(|inst| test(inst));
    let asks_again = |inst: &Inst| is_racy_read(inst) && inst.sources().iter().all(|o| defs.is_fixed(o));
    any(&asks_again) && !any(&|inst| defs.is_step(inst))
}

/// Definitions of registers inside a loop.
struct Definitions<'p> {
    by_reg: HashMap<Reg, Vec<&'p Inst>>,
}

impl<'p> Definitions<'p> {
    fn of(program: &'p Program, inside: &[BlockId]) -> Definitions<'p> {
        let mut by_reg: HashMap<Reg, Vec<&'p Inst>> = HashMap::new();
        for inst in inside.iter().flat_map(|&b| &program.blocks[b].insts) {
            inst.defs().into_iter().for_each(|reg| by_reg.entry(reg).or_default().push(inst));
        }
        Definitions { by_reg }
    }

    fn get(&self, reg: Reg) -> &[&'p Inst] {
        self.by_reg.get(&reg).map_or(&[], Vec::as_slice)
    }

    /// The instructions of the loop that a register depends on.
    fn slice(&self, reg: Reg) -> Vec<&'p Inst> {
        let (mut seen, mut work, mut slice) = (vec![reg], vec![reg], Vec::new());
        while let Some(reg) = work.pop() {
            for inst in self.get(reg) {
                slice.push(*inst);
                for used in inst.uses() {
                    if !seen.contains(&used) && seen.len() < MAX_SLICE {
                        seen.push(used);
                        work.push(used);
                    }
                }
            }
        }
        slice
    }

    /// `add r, r, step`, the only definition of `r`, where `step` does not change in the loop.
    fn is_step(&self, inst: &Inst) -> bool {
        let (Some(Opnd::Reg(reg)), [a, b]) = (inst.ops.first(), inst.sources()) else { return false };
        let steps = match inst.form.opcode.as_str() {
            "add" => (*a == Opnd::Reg(*reg) && self.is_fixed(b)) || (*b == Opnd::Reg(*reg) && self.is_fixed(a)),
            "sub" | "shl" | "shr" => *a == Opnd::Reg(*reg) && self.is_fixed(b),
            _ => false,
        };
        steps && inst.guard.is_none() && self.get(*reg).len() == 1
    }

    /// Whether an operand has the same value in every iteration.
    fn is_fixed(&self, operand: &Opnd) -> bool {
        self.all_fixed(operand, &mut HashMap::new())
    }

    fn all_fixed(&self, operand: &Opnd, known: &mut HashMap<Reg, bool>) -> bool {
        let mut regs = Vec::new();
        operand.collect(&mut regs);
        regs.iter().all(|&reg| self.is_fixed_reg(reg, known))
    }

    fn is_fixed_reg(&self, reg: Reg, known: &mut HashMap<Reg, bool>) -> bool {
        if let Some(&is_fixed) = known.get(&reg) {
            return is_fixed;
        }
        if known.len() >= MAX_SLICE {
            return false;
        }
        // A register that is met again on the way is part of a cycle, and not fixed.
        known.insert(reg, false);
        let is_fixed = match self.get(reg) {
            [] => true,
            [only] => {
                let opcode = only.form.opcode.as_str();
                let computes = !matches!(opcode, "ld" | "ldu" | "atom" | "vprintf") && !CONVERGENT.contains(&opcode);
                computes
                    && only.guard.is_none_or(|(guard, _)| self.is_fixed_reg(guard, known))
                    && only.sources().iter().all(|o| self.all_fixed(o, known))
            }
            _ => false,
        };
        known.insert(reg, is_fixed);
        is_fixed
    }
}

impl Spinning {
    /// The edges that let lanes which have left a spinning loop proceed to their release; `None` if
    /// there is no release on the way.
    pub(crate) fn extend(&self, program: &Program, id: LoopId) -> Option<Extension> {
        let graph = &self.graph;
        let [head] = self.loops.get(id).entries[..] else { return None };
        let is_in_loop = |b: BlockId| self.loops.contains(id, b);
        let may_join = |b: BlockId| {
            let block = &program.blocks[b];
            b != EXIT
                && !is_in_loop(b)
                && !matches!(block.term, Term::Barrier { .. })
                && !block.insts.first().is_some_and(is_convergent)
                && self.dominators.dominates(head, b)
        };
        let mut way = vec![false; program.blocks.len()];
        let after = self.loops.blocks(id).iter().flat_map(|&b| graph.succs[b].iter().copied());
        let mut work: Vec<BlockId> = after.filter(|&b| may_join(b)).collect();
        while let Some(block) = work.pop() {
            if !std::mem::replace(&mut way[block], true) {
                work.extend(graph.succs[block].iter().copied().filter(|&b| may_join(b)));
            }
        }
        let joins = leading_to_release(program, graph, &way);
        let is_inside = |b: BlockId| joins[b] || is_in_loop(b);
        let mut edges = Vec::new();
        for block in (0..joins.len()).filter(|&b| joins[b]) {
            for &next in graph.succs[block].iter().filter(|&&n| !is_inside(n)) {
                edges.push((block, head));
                // Lanes that still spin reconverge with lanes that have released only after the
                // release.
                edges.push((head, next));
            }
        }
        edges.sort_unstable();
        edges.dedup();
        (!edges.is_empty()).then_some(Extension { edges })
    }
}

/// The blocks of a way that lead to a release, within the way.
fn leading_to_release(program: &Program, graph: &Graph, way: &[bool]) -> Vec<bool> {
    let releases = |test: fn(&Inst) -> bool| -> Vec<BlockId> {
        (0..way.len()).filter(|&b| way[b] && program.blocks[b].insts.iter().any(test)).collect()
    };
    let mut ends = releases(is_release);
    if ends.is_empty() {
        ends = releases(is_plain_store);
    }
    let mut leads = vec![false; way.len()];
    while let Some(block) = ends.pop() {
        if way[block] && !std::mem::replace(&mut leads[block], true) {
            ends.extend(graph.preds[block].iter().copied());
        }
    }
    leads
}
