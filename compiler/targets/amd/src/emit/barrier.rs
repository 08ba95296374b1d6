//! Barriers of a block, and their reductions.
//!
//! A reduction combines words of waves in shared memory that follows the kernel's static part. If
//! all threads of the block are known to reach a barrier exactly once, as at the entry of a
//! preemptible kernel, each wave writes its own word and one barrier suffices. Otherwise some waves
//! may have exited. The remaining waves then clear one word, add to it and read it, with a barrier
//! after each step.

use super::*;
use atoll_lower::graph::Graph;
use atoll_lower::program::{Participants, Reduce, ReduceOp};
use atoll_ptx::Immediate;

/// Bytes of the word of a reduction.
const WORD: u32 = 4;

/// The shared memory of reductions.
#[derive(Debug)]
pub(super) struct Plan {
    /// Waves of a block.
    waves: u32,
    /// The barriers that all threads reach exactly once, with the offsets of their words.
    once: Vec<(BlockId, u32)>,
    /// Offset of the word that all other reductions use.
    shared_word: u32,
    dynamic_start: u32,
}

impl Plan {
    pub(super) fn of(program: &Program, analysis: &Analysis, architecture: Architecture) -> Plan {
        let waves = analysis.block.threads().div_ceil(architecture.wave_lanes());
        let mut top = program.shared_bytes;
        let mut reserve = |words: u32| {
            let at = top.next_multiple_of(WORD);
            top = at + words * WORD;
            at
        };
        let reduces = |block: &BlockId| matches!(&program.blocks[*block].term, Term::Barrier { reduce: Some(_), .. });
        let all: Vec<BlockId> = (0..program.blocks.len()).filter(reduces).filter(|_| waves > 1).collect();
        let graph = Graph::new(program.successors());
        let is_once = |block: &BlockId| {
            !graph.reachable(&[ENTRY], Some(*block))[EXIT] && !graph.reachable(&graph.succs[*block], None)[*block]
        };
        let once: Vec<(BlockId, u32)> =
            all.iter().copied().filter(is_once).map(|block| (block, reserve(waves))).collect();
        let shared_word = if once.len() < all.len() { reserve(1) } else { 0 };
        Plan { waves, once, shared_word, dynamic_start: top.next_multiple_of(abi::DYNAMIC_SHARED_ALIGN) }
    }

    /// Offset of dynamic shared memory.
    pub(super) fn dynamic_start(&self) -> u32 {
        self.dynamic_start
    }
}

impl Emitter<'_> {
    /// Emits the barrier at the end of a block.
    pub(super) fn barrier(
        &mut self,
        block: BlockId,
        participants: &Participants,
        reduce: Option<&Reduce>,
    ) -> Result<(), LowerError> {
        self.refuse_partial(participants)?;
        let Some(reduce) = reduce else {
            self.block_barrier();
            return Ok(());
        };
        let word = self.wave_word(reduce);
        let total = match self.barriers.once.iter().find(|(at, _)| *at == block).map(|found| found.1) {
            _ if self.barriers.waves == 1 => {
                self.block_barrier();
                word
            }
            Some(words) => self.reduce_once(reduce.op, &word, words),
            None => self.reduce_again(reduce.op, &word),
        };
        let value = reduced(&mut self.w, reduce.op, &total);
        self.set(reduce.dst, &value, false);
        Ok(())
    }

    /// Refuses barriers for a part of the block: the hardware has one barrier per block, for all
    /// its waves.
    fn refuse_partial(&self, participants: &Participants) -> Result<(), LowerError> {
        // If all threads take part in every barrier, they need no numbers.
        let Participants { number: _, threads, only_arrives } = participants;
        let block = self.analysis.block;
        let all = |count: i128| count == i128::from(block.threads()) || count == i128::from(block.warps() * 32);
        let takes_all = match threads {
            None => true,
            Some(Opnd::Imm(Immediate::Int(count))) => all(*count),
            Some(_) => false,
        };
        if *only_arrives || !takes_all {
            return Err(self.refused(self.line, "barriers for a part of the threads of a block"));
        }
        if self.analysis.scheduled {
            // The line of a barrier in the kernel's text, not of one that a pass has added.
            let is_barrier = |block: &&atoll_lower::program::Block| matches!(block.term, Term::Barrier { .. });
            let lines = self.program.blocks.iter().filter(is_barrier).map(|block| block.line);
            let line = lines.filter(|line| *line > 0).min().unwrap_or(self.line);
            return Err(self.refused(line, "barriers that warps reach on different paths"));
        }
        Ok(())
    }

    /// Waits for all waves of the block that have not exited, and makes their accesses visible.
    fn block_barrier(&mut self) {
        self.w.effect(format_args!("fence syncscope(\"workgroup\") release"));
        self.w.effect(format_args!("call void @llvm.amdgcn.s.barrier()"));
        self.w.effect(format_args!("fence syncscope(\"workgroup\") acquire"));
    }

    /// The word of a wave: the number of lanes whose predicate holds (`popc`), whether any
    /// predicate holds (`or`), or whether any does not (`and`).
    fn wave_word(&mut self, reduce: &Reduce) -> Val {
        let source = self.read(reduce.source);
        let inverts = reduce.negated != (reduce.op == ReduceOp::And);
        let source = if inverts { self.w.bin_const("xor", &source, 1) } else { source };
        let lanes = self.wave_ballot(&source);
        self.wave_total(reduce.op, &lanes)
    }

    fn wave_total(&mut self, op: ReduceOp, lanes: &Val) -> Val {
        if op == ReduceOp::Popc {
            let count = self.w.call("llvm.ctpop", lanes.ty, &[lanes]);
            return self.w.resize(&count, Elem::I32, false);
        }
        let any = self.w.compare("icmp ne", lanes, &constant(lanes.ty, 0));
        self.w.resize(&any, Elem::I32, false)
    }

    /// A reduction at a barrier that all threads reach exactly once: every wave has a word.
    fn reduce_once(&mut self, op: ReduceOp, word: &Val, words: u32) -> Val {
        let thread = self.linear_thread();
        let wave = self.w.bin_const("lshr", &thread, self.architecture.wave_lanes().ilog2().into());
        let wave = self.w.call("llvm.amdgcn.readfirstlane", I32, &[&wave]);
        let distance = self.w.bin_const("shl", &wave, 2);
        let start = shared_address(words);
        let own = self.w.offset(&start, &distance);
        self.w.effect(format_args!("store {word}, {own}, align 4"));
        self.block_barrier();
        let mut total = constant(I32, 0);
        for wave in 0..self.barriers.waves {
            let at = shared_address(words + WORD * wave);
            let one = self.w.value(I32, format_args!("load i32, {at}, align 4"));
            total = self.w.bin(if op == ReduceOp::Popc { "add" } else { "or" }, &total, &one);
        }
        total
    }

    /// A reduction at a barrier that may be reached again, and that exited waves do not reach.
    fn reduce_again(&mut self, op: ReduceOp, word: &Val) -> Val {
        let at = shared_address(self.barriers.shared_word);
        self.w.effect(format_args!("store i32 0, {at}, align 4"));
        self.block_barrier();
        let is_first = self.is_first_lane();
        let (add, added) = (self.w.label("contribute"), self.w.label("contributed"));
        self.w.br_if(&is_first, &add, &added);
        self.w.place(&add);
        let name = if op == ReduceOp::Popc { "add" } else { "or" };
        self.w.value(I32, format_args!("atomicrmw {name} {at}, {word} syncscope(\"workgroup\") monotonic"));
        self.w.place(&added);
        self.block_barrier();
        let total = self.w.value(I32, format_args!("load i32, {at}, align 4"));
        self.block_barrier();
        total
    }

    /// Whether this lane is the lowest running lane of its wave.
    fn is_first_lane(&mut self) -> Val {
        let running = self.wave_ballot(&constant(I1, 1));
        let low = self.w.resize(&running, Elem::I32, false);
        let mut below = self.w.call_named("llvm.amdgcn.mbcnt.lo", I32, &[&low, &constant(I32, 0)]);
        if running.ty == I64 {
            let high = self.w.bin_const("lshr", &running, 32);
            let high = self.w.resize(&high, Elem::I32, false);
            below = self.w.call_named("llvm.amdgcn.mbcnt.hi", I32, &[&high, &below]);
        }
        self.w.compare("icmp eq", &below, &constant(I32, 0))
    }

    /// `bar.warp.sync`, and `bar.sync` in a block of one warp. The lanes run in lock step, so only
    /// the compiler must not move accesses across it.
    pub(super) fn warp_barrier(&mut self, inst: &Inst) -> Result<(), LowerError> {
        self.w.effect(format_args!("fence syncscope(\"wavefront\") acq_rel"));
        self.w.effect(format_args!("call void @llvm.amdgcn.wave.barrier()"));
        if !inst.has("red") {
            return Ok(());
        }
        let op = if inst.has("popc") {
            ReduceOp::Popc
        } else if inst.has("and") {
            ReduceOp::And
        } else {
            ReduceOp::Or
        };
        let (source, negated) = match inst.ops.last() {
            Some(Opnd::Reg(reg)) => (*reg, false),
            Some(Opnd::Not(reg)) => (*reg, true),
            _ => return Err(self.malformed(inst, "must read a predicate")),
        };
        let source = self.read(source);
        let inverts = negated != (op == ReduceOp::And);
        let source = if inverts { self.w.bin_const("xor", &source, 1) } else { source };
        let lanes = self.ballot(&source);
        let word = self.wave_total(op, &lanes);
        let value = reduced(&mut self.w, op, &word);
        self.set_operand(self.op(inst, 0)?, &value, false);
        Ok(())
    }
}

/// The result of a reduction, from the sum of the waves' words.
fn reduced(w: &mut Writer, op: ReduceOp, total: &Val) -> Val {
    match op {
        ReduceOp::Popc => total.clone(),
        ReduceOp::Or => w.compare("icmp ne", total, &constant(I32, 0)),
        ReduceOp::And => w.compare("icmp eq", total, &constant(I32, 0)),
    }
}

/// The pointer to an offset in shared memory.
fn shared_address(offset: u32) -> Val {
    Emitter::spelled(Ty::scalar(pointer(SHARED)), format!("inttoptr (i32 {offset} to ptr addrspace({SHARED}))"))
}
