//! Which basic blocks do all threads of a thread block run equally often?
//!
//! *Uniform* is a register that holds the same value in every thread of the block whenever it is read, *divergent* everything else. A block of code is
//! divergent where a branch on a divergent value decides whether, or how often, a thread runs it. The analysis does not follow paths and calls a
//! register divergent when any of its definitions is; what it says is uniform is uniform, what it calls divergent may not be.

use crate::flow::Flow;
use crate::operands::{read, written};
use atoll_ptx::{Function, Instruction, Name, StateSpace};
use std::collections::HashSet;

/// The result for one kernel.
#[derive(Debug)]
pub(crate) struct Uniformity {
    divergent_blocks: Vec<bool>,
}

impl Uniformity {
    /// Analyses a kernel; `flow` is the control flow of its body.
    pub(crate) fn new(kernel: &Function, flow: &Flow<'_>) -> Uniformity {
        let params: HashSet<&str> = kernel.params.iter().map(|p| p.name.as_str()).collect();
        let postdominators = flow.immediate_postdominators();
        let mut divergent: HashSet<&Name> = HashSet::new();
        let mut divergent_blocks = vec![false; flow.blocks.len()];
        // Both sets only grow, so this ends after at most one round per register and block.
        loop {
            let before = (divergent.len(), divergent_blocks.iter().filter(|&&d| d).count());
            for (block, &in_divergent_block) in divergent_blocks.iter().enumerate() {
                for site in flow.instructions_of(block) {
                    if in_divergent_block || makes_divergent(site.instruction, &params, &divergent) {
                        divergent.extend(written(site.instruction));
                    }
                }
            }
            for block in 0..flow.blocks.len() {
                if splits(flow, block, &divergent) {
                    flow.reachable_before(block, postdominators[block]).into_iter().for_each(|b| divergent_blocks[b] = true);
                }
            }
            if before == (divergent.len(), divergent_blocks.iter().filter(|&&d| d).count()) {
                return Uniformity { divergent_blocks };
            }
        }
    }

    /// Whether threads of one thread block may run this block of code a different number of times.
    pub(crate) fn is_divergent(&self, block: usize) -> bool {
        self.divergent_blocks[block]
    }
}

/// Whether the end of a block sends threads different ways.
fn splits(flow: &Flow<'_>, block: usize, divergent: &HashSet<&Name>) -> bool {
    let decided_by = |instruction| read(instruction).into_iter().chain(written(instruction)).any(|name| divergent.contains(name));
    flow.blocks[block].successors.len() > 1 && flow.instructions_of(block).last().is_some_and(|site| decided_by(site.instruction))
}

/// Whether what an instruction writes may differ between threads, its place aside.
fn makes_divergent(instruction: &Instruction, params: &HashSet<&str>, divergent: &HashSet<&Name>) -> bool {
    let sources = read(instruction);
    if sources.iter().any(|name| divergent.contains(name) || is_divergent_special_register(name)) {
        return true;
    }
    match instruction.opcode.as_str() {
        "ld" => match instruction.space() {
            Some(StateSpace::Const) => false,
            Some(StateSpace::Param) => !sources.iter().any(|name| params.contains(name.as_str())),
            _ => true,
        },
        "bar" | "barrier" => !instruction.has("red"),
        opcode => !is_pure(opcode),
    }
}

/// Special registers that differ between the threads of a block, clocks and counters included.
fn is_divergent_special_register(name: &str) -> bool {
    let stem = name.split('.').next().unwrap_or(name);
    matches!(stem, "%tid" | "%laneid" | "%warpid")
        || ["%lanemask", "%clock", "%globaltimer", "%pm"].iter().any(|prefix| stem.starts_with(prefix))
}

/// Opcodes whose result depends on their register operands alone.
fn is_pure(opcode: &str) -> bool {
    const PURE: [&str; 57] = [
        "mov", "cvt", "cvta", "add", "sub", "mul", "mad", "mul24", "mad24", "sad", "div", "rem", "abs", "neg", "min", "max", "popc", "clz",
        "bfind", "fns", "brev", "bfe", "bfi", "szext", "bmsk", "dp4a", "dp2a", "fma", "rcp", "sqrt", "rsqrt", "sin", "cos", "lg2", "ex2",
        "tanh", "testp", "copysign", "set", "setp", "selp", "slct", "and", "or", "xor", "not", "cnot", "lop3", "shf", "shl", "shr", "prmt",
        "bra", "brx", "ret", "exit", "isspacep",
    ];
    PURE.contains(&opcode)
}
