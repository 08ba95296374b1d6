//! Deeply nested and very large control flow, up to the limits of the reader. Each of these kernels
//! takes minutes or too much memory with algorithms that are quadratic in loops or blocks, and
//! overflows the stack with recursive algorithms.

mod steps;

use crate::graph::Graph;
use crate::joins::Joins;
use crate::limits::{Budget, MAX_STEPS, TooLarge};
use crate::live::Live;
use crate::loops::Loops;
use crate::program::*;
use crate::{analysis, read, webs};
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng};
use std::fmt::Write as _;

/// A kernel with this code. `%p` is the predicate of all branches; `%r` is read and written
/// everywhere.
fn module(code: &str) -> atoll_ptx::Module {
    let text = format!(
        ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u32 n, .param .u64 at) {{\n\
         .reg .b32 %r; .reg .b64 %d<4>; .reg .pred %p;\nld.param.u32 %r, [n];\n{code}ret;\n}}"
    );
    atoll_ptx::parse(&text).unwrap()
}

fn program(code: &str) -> Program {
    let module = module(code);
    read::read_kernel(&module, module.kernels().next().unwrap(), true, "test").unwrap()
}

const STEP: &str = "add.u32 %r, %r, 1; setp.lt.u32 %p, %r, 9;";

/// The loops of a graph.
fn loops(graph: &Graph) -> Loops {
    Loops::of(graph, &mut Budget::new(MAX_STEPS)).unwrap()
}

/// Splits registers and computes reconvergence; returns the number of joins.
fn analyse(mut program: Program) -> usize {
    let graph = Graph::new(program.successors());
    let phis = webs::split_into_webs(&mut program, &graph).unwrap();
    let meet = analysis::reconvergence(&graph, &vec![None; graph.len()]);
    assert_eq!(meet.len(), program.blocks.len());
    phis.len()
}

#[test]
fn thirty_thousand_nested_loops() {
    let mut code = String::new();
    (0..30_000).for_each(|n| writeln!(code, "L{n}: {STEP}").unwrap());
    (0..30_000).rev().for_each(|n| writeln!(code, "@%p bra L{n};").unwrap());
    // The counter joins at each loop head; the first block of the kernel is none.
    assert_eq!(analyse(program(&code)), 30_000);
}

#[test]
fn twenty_thousand_diamonds_in_a_row() {
    let mut code = String::new();
    (0..20_000)
        .for_each(|n| writeln!(code, "{STEP} @%p bra E{n}; add.u32 %r, %r, 2; E{n}: xor.b32 %r, %r, 3;").unwrap());
    assert_eq!(analyse(program(&code)), 20_000);
}

#[test]
fn sixty_thousand_blocks_in_a_chain_and_as_many_empty_ones() {
    let chain = |step: &str| {
        let mut code = String::new();
        (0..60_000).for_each(|n| writeln!(code, "bra C{n}; C{n}: {step}").unwrap());
        program(&code)
    };
    assert_eq!(analyse(chain(STEP)), 0);
    let empty = chain("");
    assert_eq!(empty.blocks[ENTRY].term, Term::Goto(EXIT));
    assert_eq!(analyse(empty), 0);
}

#[test]
fn a_ladder_of_twenty_thousand_rungs_that_is_entered_on_both_sides() {
    // Every rung can be entered from both sides, upwards and downwards: one irreducible component.
    let mut code = String::from("setp.lt.u32 %p, %r, 9; @%p bra B0;\n");
    for n in 0..10_000 {
        let (up, down) = (if n == 9_999 { 0 } else { n + 1 }, if n == 0 { 0 } else { n - 1 });
        writeln!(code, "A{n}: {STEP} @%p bra B{down}; bra A{up};\nB{n}: {STEP} @%p bra A{n}; bra B{up};").unwrap();
    }
    // All blocks but the last of the second side have two predecessors.
    assert_eq!(analyse(program(&code)), 19_999);
}

/// Deterministic pseudo-random numbers.
struct Numbers(SplitMix64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0.next_u64() as usize % limit
    }
}

/// A program of a few blocks with random terminators, whose code reads and writes three registers.
fn random_program(seed: u64) -> Program {
    let mut numbers = Numbers(SplitMix64::seed_from_u64(seed));
    let count = 4 + numbers.below(9);
    let mut program = program("mov.u32 %r, 1; @%p mov.u32 %r, 2; setp.lt.u32 %p, %r, 9;");
    let forms = std::mem::take(&mut program.blocks[ENTRY].insts);
    program.blocks.truncate(2);
    program.regs = vec![program.regs[0].clone(); 3];
    for block in ENTRY..count {
        let mut insts = Vec::new();
        for _ in 0..numbers.below(3) {
            // The last of the four forms is a comparison; it reads one register and writes another
            // here.
            let mut inst = forms[1 + numbers.below(3)].clone();
            let [to, from, guard] = [0; 3].map(|_| numbers.below(3));
            inst.guard = inst.guard.map(|(_, negated)| (guard, negated));
            inst.ops[0] = Opnd::Reg(to);
            inst.ops.iter_mut().skip(1).for_each(|operand| operand.rename(&mut |_| from));
            insts.push(inst);
        }
        let [taken, other] = [0; 2].map(|_| numbers.below(count));
        let term = if numbers.below(3) == 0 {
            Term::Goto(taken)
        } else {
            Term::Branch { pred: numbers.below(3), negated: false, taken, other }
        };
        let made = Block { insts, term, line: 0 };
        if block == ENTRY { program.blocks[ENTRY] = made } else { program.blocks.push(made) }
    }
    program
}

/// Whether a register may be read after the start of a block before it is written; tries every
/// path.
fn is_live(program: &Program, block: BlockId, reg: Reg) -> bool {
    let (mut seen, mut work) = (vec![false; program.blocks.len()], vec![block]);
    while let Some(at) = work.pop() {
        if std::mem::replace(&mut seen[at], true) {
            continue;
        }
        let block = &program.blocks[at];
        let mut written = false;
        for inst in &block.insts {
            if !written && inst.uses().contains(&reg) {
                return true;
            }
            written |= inst.guard.is_none() && inst.defs().contains(&reg);
        }
        if !written && block.term.uses().contains(&reg) {
            return true;
        }
        if !written {
            work.extend(block.term.successors());
        }
    }
    false
}

/// Where definitions of a register join, by the definition of dominance frontiers.
fn frontiers(program: &Program, graph: &Graph, reg: Reg) -> Vec<BlockId> {
    let reached = graph.reachable(&[ENTRY], None);
    let dominates = |above: BlockId, below: BlockId| {
        above == below || above == ENTRY || !graph.reachable(&[ENTRY], Some(above))[below]
    };
    let writes = |block: &BlockId| program.blocks[*block].insts.iter().any(|inst| inst.defs().contains(&reg));
    let mut work: Vec<BlockId> = (0..graph.len()).filter(|b| reached[*b]).filter(writes).collect();
    let mut found = Vec::new();
    while let Some(block) = work.pop() {
        for to in (0..graph.len()).filter(|&to| reached[to] && is_live(program, to, reg)) {
            let enters = graph.preds[to].iter().any(|&from| reached[from] && dominates(block, from));
            if enters && (block == to || !dominates(block, to)) && !found.contains(&to) {
                found.push(to);
                work.push(to);
            }
        }
    }
    found.sort_unstable();
    found
}

#[test]
fn joins_equal_the_dominance_frontiers() {
    for seed in 0..2_000 {
        let program = random_program(seed);
        let graph = Graph::new(program.successors());
        let live = Live::of(&program, &graph).unwrap();
        let order = graph.reverse_postorder(ENTRY);
        let mut joins = Joins::new(&graph, &graph.dominators(ENTRY), &order, &live);
        for reg in 0..3 {
            for block in 0..graph.len() {
                assert_eq!(
                    live.contains(block, reg),
                    is_live(&program, block, reg),
                    "seed {seed}, block {block}, register {reg}"
                );
            }
            let written: Vec<BlockId> = order
                .iter()
                .copied()
                .filter(|b| program.blocks[*b].insts.iter().any(|i| i.defs().contains(&reg)))
                .collect();
            let mut found = joins.of(reg, &written);
            found.sort_unstable();
            assert_eq!(found, frontiers(&program, &graph, reg), "seed {seed}, register {reg}");
        }
    }
}

/// Loops of a graph by their definition: strongly connected components, and those inside them after
/// their entries are cut.
fn loops_by_definition(
    flow: &Graph,
    nodes: &[BlockId],
    entries: &[BlockId],
    found: &mut Vec<(Vec<BlockId>, Vec<BlockId>)>,
) {
    for component in flow.components(nodes, |_, to| entries.contains(&to)) {
        let leads_back = component.len() > 1 || flow.succs[component[0]].contains(&component[0]);
        if !leads_back || component.iter().all(|block| entries.contains(block)) {
            continue;
        }
        let entered =
            |block: &BlockId| *block == ENTRY || flow.preds[*block].iter().any(|from| !component.contains(from));
        let mut own: Vec<BlockId> = component.iter().copied().filter(entered).collect();
        if own.is_empty() {
            own.push(component[0]);
        }
        loops_by_definition(flow, &component, &[entries, &own].concat(), found);
        found.push((component, own));
    }
}

#[test]
fn loops_of_random_programs_match_the_definition() {
    let sorted = |mut blocks: Vec<BlockId>| {
        blocks.sort_unstable();
        blocks
    };
    let mut count = 0;
    for seed in 0..3_000 {
        let graph = Graph::new(random_program(seed).successors());
        let all: Vec<BlockId> = (0..graph.len()).collect();
        let mut expected = Vec::new();
        loops_by_definition(&graph, &all, &[], &mut expected);
        let mut expected: Vec<_> =
            expected.into_iter().map(|(blocks, entries)| (sorted(blocks), sorted(entries))).collect();
        let loops = loops(&graph);
        for (id, own) in loops.iter() {
            assert!(all.iter().all(|b| loops.contains(id, *b) == loops.blocks(id).contains(b)), "seed {seed}");
            let is_inside = |around| own.entries.iter().all(|entry| loops.contains(around, *entry));
            assert!(own.parent.is_none_or(|around| around < id && is_inside(around)), "seed {seed}");
        }
        for &block in &all {
            let smallest = loops.iter().map(|(id, _)| id).filter(|&id| loops.contains(id, block)).max();
            assert_eq!(loops.innermost(block), smallest, "seed {seed}, block {block}");
        }
        let blocks_and_entries =
            |id, entries: &[BlockId]| (sorted(loops.blocks(id).to_vec()), sorted(entries.to_vec()));
        let mut found: Vec<_> = loops.iter().map(|(id, found)| blocks_and_entries(id, &found.entries)).collect();
        expected.sort();
        found.sort();
        assert_eq!(found, expected, "seed {seed}");
        count += found.len();
    }
    assert!(count > 3_000, "only {count} loops");
}

#[test]
fn loops_nested_too_deeply_are_refused() {
    let nested = |depth: usize| {
        let heads = (0..depth).map(|n| vec![n + 3]);
        let latches = (0..depth).rev().map(|n| vec![n + 2, 2 * depth + 2 - n]);
        let mut succs: Vec<Vec<BlockId>> = [vec![], vec![2]].into_iter().chain(heads).chain(latches).collect();
        succs.push(vec![EXIT]);
        Graph::new(succs)
    };
    let deep = nested(2_000);
    let found = loops(&deep);
    assert_eq!(found.len(), 2_000);
    assert_eq!(found.outwards(found.innermost(2_001)).count(), 2_000);
    assert_eq!(Loops::of(&deep, &mut Budget::new(1_000_000)).unwrap_err(), TooLarge::Steps);
}

#[test]
fn twenty_thousand_loops_in_a_row_and_one_around_them() {
    let mut code = format!("A: {STEP} bra B; B: bra L0;\n");
    (0..20_000).for_each(|n| writeln!(code, "L{n}: {STEP} @%p bra L{n};").unwrap());
    code += "@%p bra A;\n";
    let graph = Graph::new(program(&code).successors());
    assert_eq!(loops(&graph).len(), 20_001);
}
