//! How the threads of a block execute a kernel: where they wait for each other, and which code all
//! of them execute equally often.
//!
//! A register is *uniform* if it holds the same value in every thread of the block whenever it is
//! read; otherwise it is *divergent*. A basic block is divergent if a branch on a divergent value
//! decides whether, or how often, a thread executes it. The analysis does not follow paths: a
//! register with one divergent definition is divergent everywhere. "Uniform" is proven; "divergent"
//! is conservative.

use atoll_ptx::analysis::{BlockId, Cfg, Code, DominatorTree, Loops, StatementId};
use atoll_ptx::{FunctionKind, Instruction, StateSpace};

/// Whether the instruction makes its thread wait for, or exchange data with, other threads that
/// have not exited: block barriers and the warp-wide `.sync` operations.
pub(crate) fn waits_for_threads(instruction: &Instruction) -> bool {
    matches!(instruction.opcode.as_str(), "bar" | "barrier") || instruction.has("sync") || instruction.has("aligned")
}

/// Whether the instruction is a barrier of the block, not of a warp or a cluster.
pub(crate) fn is_block_barrier(instruction: &Instruction) -> bool {
    matches!(instruction.opcode.as_str(), "bar" | "barrier") && !instruction.has("warp") && !instruction.has("cluster")
}

/// Which code of one kernel is divergent.
#[derive(Debug)]
pub(crate) struct Divergence {
    blocks: Vec<bool>,
    registers: Vec<bool>,
}

impl Divergence {
    /// Analyses a kernel, or a device function with unknown parameters.
    pub(crate) fn of(code: &Code<'_>, cfg: &Cfg) -> Divergence {
        Divergence::analyse(code, cfg, &|_, _| false)
    }

    /// Like [`Divergence::of`], for the threads that have not exited: a branch outside of all loops
    /// that leads directly to an exit does not count as divergent.
    pub(crate) fn of_remaining_threads(code: &Code<'_>, cfg: &Cfg, loops: &Loops) -> Divergence {
        let leaves_at_once = |to: BlockId| {
            to == cfg.exit() || {
                let mut instructions = cfg.block(to).statements().filter_map(|id| code.instruction(id));
                instructions.next().is_some_and(|i| matches!(i.opcode.as_str(), "ret" | "exit") && i.guard.is_none())
            }
        };
        Divergence::analyse(code, cfg, &|from, to| loops.innermost(from).is_none() && leaves_at_once(to))
    }

    fn analyse(code: &Code<'_>, cfg: &Cfg, is_exit: &dyn Fn(BlockId, BlockId) -> bool) -> Divergence {
        let postdominators = DominatorTree::postdominators(cfg);
        let mut divergence =
            Divergence { blocks: vec![false; cfg.len()], registers: vec![false; code.registers().len()] };
        // The arguments of a function are unknown here.
        let arguments = code.function().params.iter().filter(|p| p.space == StateSpace::Reg);
        let first = code.statements().next().map(|(id, _)| id);
        for register in arguments.filter_map(|p| code.register_at(first?, &p.name)) {
            divergence.registers[register.index()] = true;
        }
        // Both sets only grow, so this ends after at most one round per register and block.
        while divergence.spread(code, cfg, &postdominators, is_exit) {}
        divergence
    }

    /// Whether all threads of a thread block execute a statement equally often.
    pub(crate) fn all_run(&self, cfg: &Cfg, statement: StatementId, instruction: &Instruction) -> bool {
        instruction.guard.is_none() && !self.in_block(cfg.block_of(statement))
    }

    /// Whether threads of one thread block may execute a basic block a different number of times.
    pub(crate) fn in_block(&self, block: BlockId) -> bool {
        self.blocks[block.index()]
    }

    /// One round over the kernel; returns whether anything changed.
    fn spread(
        &mut self,
        code: &Code<'_>,
        cfg: &Cfg,
        postdominators: &DominatorTree,
        is_exit: &dyn Fn(BlockId, BlockId) -> bool,
    ) -> bool {
        let mut learnt = false;
        for (id, block) in cfg.blocks() {
            for statement in block.statements() {
                if self.in_block(id) || self.differs(code, statement) {
                    for access in code.accesses(statement).iter().filter(|access| access.role.writes()) {
                        learnt |= !std::mem::replace(&mut self.registers[access.register.index()], true);
                    }
                }
            }
            // Threads that diverge here reconverge at the immediate post-dominator.
            let ways = block.successors.iter().filter(|edge| !is_exit(id, edge.to)).count();
            if ways > 1 && block.last().is_some_and(|last| self.differs(code, last)) {
                let reconvergence = postdominators.immediate(id);
                for divergent in reachable_before(cfg, id, reconvergence) {
                    learnt |= !std::mem::replace(&mut self.blocks[divergent.index()], true);
                }
            }
        }
        learnt
    }

    /// Whether the inputs of a statement, and so a branch it takes, may differ between the threads
    /// that execute it.
    pub(crate) fn is_divergent_at(&self, code: &Code<'_>, statement: StatementId) -> bool {
        self.differs(code, statement)
    }

    /// Whether the values a statement writes, or its outcome, may differ between the threads that
    /// execute it.
    fn differs(&self, code: &Code<'_>, statement: StatementId) -> bool {
        let Some(instruction) = code.instruction(statement) else { return false };
        // Threads contribute individual values to the barrier, and all get the same result.
        if is_block_barrier(instruction) && instruction.has("red") {
            return instruction
                .guard
                .as_ref()
                .is_some_and(|guard| self.is_divergent(code, statement, &guard.predicate));
        }
        let reads_divergent =
            code.accesses(statement).iter().any(|a| a.role.reads() && self.registers[a.register.index()]);
        reads_divergent
            || instruction.reads().into_iter().any(|name| is_divergent_special_register(name))
            || !follows_from_operands(code, instruction)
    }

    fn is_divergent(&self, code: &Code<'_>, statement: StatementId, register: &str) -> bool {
        code.register_at(statement, register).is_none_or(|register| self.registers[register.index()])
    }
}

/// The blocks that can run between the end of `from` and `until`, which is not included.
pub(crate) fn reachable_before(cfg: &Cfg, from: BlockId, until: Option<BlockId>) -> Vec<BlockId> {
    let mut seen = vec![false; cfg.len()];
    let mut waiting: Vec<BlockId> = cfg.block(from).successors.iter().map(|edge| edge.to).collect();
    let mut found = Vec::new();
    while let Some(block) = waiting.pop() {
        if Some(block) != until && !std::mem::replace(&mut seen[block.index()], true) {
            found.push(block);
            waiting.extend(cfg.block(block).successors.iter().map(|edge| edge.to));
        }
    }
    found
}

/// Whether the result of an instruction is the same in all threads for which its operands are.
fn follows_from_operands(code: &Code<'_>, instruction: &Instruction) -> bool {
    match instruction.opcode.as_str() {
        "ld" => match instruction.space() {
            Some(StateSpace::Const) => true,
            // The parameters of the launch. Parameters of calls have declarations of their own and
            // hold what a function returned.
            Some(StateSpace::Param) if code.function().kind == FunctionKind::Entry => {
                instruction.reads().into_iter().any(|name| code.function().params.iter().any(|p| p.name == *name))
            }
            _ => false,
        },
        opcode => is_pure(opcode),
    }
}

/// Special registers that differ between the threads of a block, clocks and counters included.
fn is_divergent_special_register(name: &str) -> bool {
    let stem = name.split('.').next().unwrap_or(name);
    matches!(stem, "%tid" | "%laneid" | "%warpid")
        || ["%lanemask", "%clock", "%globaltimer", "%pm"].iter().any(|prefix| stem.starts_with(prefix))
}

/// Opcodes whose result, or outcome, depends on their register operands alone.
pub(crate) fn is_pure(opcode: &str) -> bool {
    const PURE: [&str; 57] = [
        "mov", "cvt", "cvta", "add", "sub", "mul", "mad", "mul24", "mad24", "sad", "div", "rem", "abs", "neg", "min",
        "max", "popc", "clz", "bfind", "fns", "brev", "bfe", "bfi", "szext", "bmsk", "dp4a", "dp2a", "fma", "rcp",
        "sqrt", "rsqrt", "sin", "cos", "lg2", "ex2", "tanh", "testp", "copysign", "set", "setp", "selp", "slct", "and",
        "or", "xor", "not", "cnot", "lop3", "shf", "shl", "shr", "prmt", "bra", "brx", "ret", "exit", "isspacep",
    ];
    PURE.contains(&opcode)
}
