//! Warps that wait for each other in ways that regions cannot express: each runs on its own stack.
//!
//! A kernel is emitted in this form if warps wait at different barriers or spin
//! ([`atoll_lower::analysis::Analysis::scheduled`]). The code of a warp is a function; the kernel's
//! function starts one *fiber* per warp and switches to a runnable one until all have ended. At a
//! barrier a warp records its arrival and switches back, unless it is the last warp to arrive. A
//! warp that spins switches back in every iteration. If no warp is runnable and some have not
//! ended, the warps wait for each other forever (a deadlock), and the launch fails.
//!
//! A barrier counts warps, as the hardware does: if some lanes of a warp arrive, the whole warp
//! counts as arrived.
//!
//! The block's *frame* and the fibers' stacks are placed in scratch memory after local memory. The
//! size of a stack is known once LLVM has laid out the warp's function.

use super::*;
use atoll_kgraph::host_abi::{NO_THREAD, TrapCode};
use atoll_lower::program::{Participants, Reduce, ReduceOp};

/// Stack space beyond the warp's own frame: for the helpers that the warp calls, and for the
/// registers that a signal saves on a thread without an alternate signal stack.
pub(crate) const FIBER_RESERVE_BYTES: u32 = 64 << 10;
/// Alignment of the stacks, and of the frame before them.
pub(crate) const FIBER_ALIGN: u32 = 64;

/// Offsets in a block's frame.
mod at {
    /// Stack pointer of the kernel's function, while a fiber runs.
    pub(super) const MAIN: u64 = 0;
    /// One bit per warp: it is runnable.
    pub(super) const RUNNABLE: u64 = 8;
    /// One bit per warp: it has not ended.
    pub(super) const ALIVE: u64 = 12;
    /// The warp that runs, or ran last.
    pub(super) const CURRENT: u64 = 16;
    /// Nonzero once a warp has reported a trap.
    pub(super) const TRAPPED: u64 = 20;
    /// Line of the barrier at which a warp waited last.
    pub(super) const LINE: u64 = 24;
    /// Index of the block along x, y, z.
    pub(super) const BLOCK: u64 = 32;
    /// Per barrier: bits of the warps that wait at it.
    pub(super) const WAITING: u64 = 64;
    /// Per barrier: the number of warps that have arrived.
    pub(super) const ARRIVED: u64 = 128;
    /// Per barrier: the number of warps expected; 0 means all that have not ended.
    pub(super) const EXPECTED: u64 = 192;
    /// Per barrier: the accumulated reduction.
    pub(super) const SUMS: u64 = 256;
    /// Per warp: the result of its last reduction.
    pub(super) const REDUCED: u64 = 320;
    /// Per warp: its stack pointer while it does not run.
    pub(super) const STACKS: u64 = 448;
    /// Start of the stacks.
    pub(super) const END: u64 = 704;
}

/// Bytes of a block's frame.
pub(super) const FRAME_BYTES: u32 = at::END as u32;

/// Registers that a switch pushes, and the return address.
const SAVED_WORDS: i64 = 7;

/// Stack switching, fiber start, and barriers; once per module. `#2` is `naked noinline nounwind`,
/// `#3` is `noinline nounwind`.
const ROUTINES: &str = concat!(
    r#"
define internal void @atoll_switch(ptr %save, ptr %to) #2 {
  call void asm sideeffect "pushq %rbp\0Apushq %rbx\0Apushq %r12\0Apushq %r13\0Apushq %r14\0A"#,
    r#"pushq %r15\0Amovq %rsp, (%rdi)\0Amovq %rsi, %rsp\0Apopq %r15\0Apopq %r14\0Apopq %r13\0A"#,
    r#"popq %r12\0Apopq %rbx\0Apopq %rbp\0Aretq", ""()
  unreachable
}
define internal void @atoll_fiber() #2 {
  call void asm sideeffect "movq %r12, %rdi\0Amovq %r13, %rsi\0Amovl %r14d, %edx\0A"#,
    r#"callq *%rbx\0Amovq (%r13), %rsp\0Apopq %r15\0Apopq %r14\0Apopq %r13\0Apopq %r12\0Apopq %rbx\0A"#,
    r#"popq %rbp\0Aretq", ""()
  unreachable
}
define internal void @atoll_release(ptr %frame, i64 %number) #3 {
  %waiting.0 = getelementptr i8, ptr %frame, i64 64
  %waiting = getelementptr i32, ptr %waiting.0, i64 %number
  %mask = load i32, ptr %waiting
  store i32 0, ptr %waiting
  %arrived.0 = getelementptr i8, ptr %frame, i64 128
  %arrived = getelementptr i32, ptr %arrived.0, i64 %number
  store i32 0, ptr %arrived
  %sums.0 = getelementptr i8, ptr %frame, i64 256
  %sums = getelementptr i32, ptr %sums.0, i64 %number
  %sum = load i32, ptr %sums
  store i32 0, ptr %sums
  %runnable = getelementptr i8, ptr %frame, i64 8
  %ran = load i32, ptr %runnable
  %runs = or i32 %ran, %mask
  store i32 %runs, ptr %runnable
  %lanes = bitcast i32 %mask to <32 x i1>
  %one = insertelement <32 x i32> poison, i32 %sum, i64 0
  %all = shufflevector <32 x i32> %one, <32 x i32> poison, <32 x i32> zeroinitializer
  %reduced = getelementptr i8, ptr %frame, i64 320
  %old = load <32 x i32>, ptr %reduced, align 64
  %new = select <32 x i1> %lanes, <32 x i32> %all, <32 x i32> %old
  store <32 x i32> %new, ptr %reduced, align 64
  ret void
}
define internal void @atoll_arrive(ptr %frame, i32 %bit, i32 %number, i32 %count, i32 %value, i1 %adds) #3 {
  %low = and i32 %number, 15
  %n = zext i32 %low to i64
  %sums.0 = getelementptr i8, ptr %frame, i64 256
  %sums = getelementptr i32, ptr %sums.0, i64 %n
  %sum = load i32, ptr %sums
  %added = add i32 %sum, %value
  %united = or i32 %sum, %value
  %total = select i1 %adds, i32 %added, i32 %united
  store i32 %total, ptr %sums
  %expected.0 = getelementptr i8, ptr %frame, i64 192
  %expected = getelementptr i32, ptr %expected.0, i64 %n
  store i32 %count, ptr %expected
  %waiting.0 = getelementptr i8, ptr %frame, i64 64
  %waiting = getelementptr i32, ptr %waiting.0, i64 %n
  %waits = load i32, ptr %waiting
  %wait = or i32 %waits, %bit
  store i32 %wait, ptr %waiting
  %runnable = getelementptr i8, ptr %frame, i64 8
  %ran = load i32, ptr %runnable
  %others = xor i32 %bit, -1
  %runs = and i32 %ran, %others
  store i32 %runs, ptr %runnable
  %arrived.0 = getelementptr i8, ptr %frame, i64 128
  %arrived = getelementptr i32, ptr %arrived.0, i64 %n
  %came = load i32, ptr %arrived
  %come = add i32 %came, 1
  store i32 %come, ptr %arrived
  %alive.0 = getelementptr i8, ptr %frame, i64 12
  %alive = load i32, ptr %alive.0
  %living = call i32 @llvm.ctpop.i32(i32 %alive)
  %everybody = icmp eq i32 %count, 0
  %need = select i1 %everybody, i32 %living, i32 %count
  %complete = icmp uge i32 %come, %need
  br i1 %complete, label %release, label %out
release:
  call void @atoll_release(ptr %frame, i64 %n)
  br label %out
out:
  ret void
}
define internal void @atoll_end(ptr %frame, i32 %bit) #3 {
  %others = xor i32 %bit, -1
  %runnable = getelementptr i8, ptr %frame, i64 8
  %ran = load i32, ptr %runnable
  %runs = and i32 %ran, %others
  store i32 %runs, ptr %runnable
  %alive.0 = getelementptr i8, ptr %frame, i64 12
  %lived = load i32, ptr %alive.0
  %alive = and i32 %lived, %others
  store i32 %alive, ptr %alive.0
  %living = call i32 @llvm.ctpop.i32(i32 %alive)
  br label %barrier
barrier:
  %n = phi i64 [ 0, %0 ], [ %next, %on ]
  %waiting.0 = getelementptr i8, ptr %frame, i64 64
  %waiting = getelementptr i32, ptr %waiting.0, i64 %n
  %waits = load i32, ptr %waiting
  %some = icmp ne i32 %waits, 0
  %expected.0 = getelementptr i8, ptr %frame, i64 192
  %expected = getelementptr i32, ptr %expected.0, i64 %n
  %count = load i32, ptr %expected
  %everybody = icmp eq i32 %count, 0
  %arrived.0 = getelementptr i8, ptr %frame, i64 128
  %arrived = getelementptr i32, ptr %arrived.0, i64 %n
  %come = load i32, ptr %arrived
  %enough = icmp uge i32 %come, %living
  %for.all = and i1 %some, %everybody
  %complete = and i1 %for.all, %enough
  br i1 %complete, label %release, label %on
release:
  call void @atoll_release(ptr %frame, i64 %n)
  br label %on
on:
  %next = add i64 %n, 1
  %more = icmp ult i64 %next, 16
  br i1 %more, label %barrier, label %out
out:
  ret void
}
attributes #2 = { naked noinline nounwind }
attributes #3 = { noinline nounwind }
"#,
);

impl Emitter<'_> {
    /// Emits the warp's function, the routines, and the kernel's function.
    pub(super) fn scheduled_kernel(&mut self) -> Result<String, HostError> {
        let warp = quoted(&format!("{}.warp", self.program.name));
        self.warp_body()?;
        let lines = std::mem::take(&mut self.w.lines);
        let body = std::mem::take(&mut self.w).finish();
        let asks = "noinline \"warn-stack-size\"=\"0\"";
        let mut text = format!(
            "define internal void @{warp}(ptr noundef %context, ptr noundef %frame, i32 %warp) \
             #0 {asks} !dbg !103 {{\n{body}}}\n"
        );
        text.push_str(ROUTINES);
        self.frame = None;
        self.ctaid = [0; 3].map(|_| self.w.register(I32));
        self.w.place(&Label("start".into()));
        self.fixed = load_context(&mut self.w);
        self.block_loop()?;
        let body = std::mem::take(&mut self.w).finish();
        text.push_str(&format!("define void @{}(ptr noundef %context) #0 {{\n{body}}}\n", quoted(&self.program.name)));
        self.w.lines = lines;
        Ok(text)
    }

    /// Emits the code of one warp for a block.
    fn warp_body(&mut self) -> Result<(), HostError> {
        let frame = Val { ty: PTR, text: "%frame".into() };
        for (axis, slot) in (0..).zip(self.ctaid.clone()) {
            let from = self.w.offset_const(&frame, at::BLOCK + 4 * axis);
            let value = self.w.load(I32, &from);
            self.w.store(&value, &slot);
        }
        let warp = self.warp.clone();
        self.w.store(&Val { ty: I32, text: "%warp".into() }, &warp);
        self.frame = Some(frame);
        let latch = self.only_region()?;
        self.w.place(&latch);
        let bit = self.warp_bit();
        self.w.effect(format_args!("call void @atoll_end(ptr %frame, {bit})"));
        self.w.terminate(format_args!("ret void"));
        Ok(())
    }

    fn warp_bit(&mut self) -> Val {
        let slot = self.warp.clone();
        let warp = self.w.load(I32, &slot);
        self.w.bin("shl", &constant(I32, 1), &warp)
    }

    /// A field of the frame, as a pointer.
    fn frame_field(&mut self, frame: &Val, offset: u64) -> Val {
        self.w.offset_const(frame, offset)
    }

    /// The running warp's element in an array of the frame.
    fn warp_field(&mut self, frame: &Val, offset: u64, elem: Elem) -> Val {
        let (array, slot) = (self.frame_field(frame, offset), self.warp.clone());
        let warp = self.w.load(I32, &slot);
        self.lane_slot(&array, elem, &warp)
    }

    /// The running warp arrives at a barrier and continues once the others have arrived.
    pub(super) fn barrier(&mut self, participants: &Participants, reduce: Option<&Reduce>, line: u32) {
        let Some(frame) = self.frame.clone() else { return };
        let number = self.of_first_lane(&participants.number);
        let count = match &participants.threads {
            Some(threads) => {
                let threads = self.of_first_lane(threads);
                let up = self.w.bin_const("add", &threads, i128::from(LANES) - 1);
                self.w.bin_const("lshr", &up, LANES.trailing_zeros().into())
            }
            None => constant(I32, 0),
        };
        // All predicates hold if none fails, so `and` is computed as a negated `or`.
        let value = reduce.map_or(constant(I32, 0), |r| match r.op {
            ReduceOp::And => self.reduce_lanes(ReduceOp::Or, r.source, !r.negated),
            op => self.reduce_lanes(op, r.source, r.negated),
        });
        let adds = constant(I1, reduce.is_some_and(|r| r.op == ReduceOp::Popc).into());
        let bit = if participants.only_arrives { constant(I32, 0) } else { self.warp_bit() };
        self.w.effect(format_args!("call void @atoll_arrive({frame}, {bit}, {number}, {count}, {value}, {adds})"));
        if participants.only_arrives {
            return;
        }
        let at = self.frame_field(&frame, at::LINE);
        self.w.store(&constant(I32, line.into()), &at);
        let runnable = self.frame_field(&frame, at::RUNNABLE);
        let runnable = self.w.load(I32, &runnable);
        let released = self.w.bin("and", &runnable, &bit);
        let released = self.w.compare("icmp ne", &released, &constant(I32, 0));
        self.switch_unless(&released, &frame);
        if let Some(reduce) = reduce {
            let at = self.warp_field(&frame, at::REDUCED, Elem::I32);
            let value = self.w.load(I32, &at);
            let value = match reduce.op {
                ReduceOp::And => {
                    let none_fails = self.w.compare("icmp eq", &value, &constant(I32, 0));
                    self.w.resize(&none_fails, Elem::I32, false)
                }
                _ => value,
            };
            self.set(reduce.dst, &value, false);
        }
    }

    /// Switches to the kernel's function, which runs another warp, unless `stays` is true.
    fn switch_unless(&mut self, stays: &Val, frame: &Val) {
        let (switch, on) = (self.w.label("switch"), self.w.label("on"));
        self.w.br_if(stays, &on, &switch);
        self.w.place(&switch);
        let save = self.warp_field(frame, at::STACKS, Elem::I64);
        let main = self.frame_field(frame, at::MAIN);
        let main = self.w.load(PTR, &main);
        self.w.effect(format_args!("call void @atoll_switch({save}, {main})"));
        self.w.place(&on);
    }

    /// In an iteration of a spinning loop: lets other warps run, and ends the launch if the device
    /// requests it.
    pub(super) fn yield_while_spinning(&mut self, line: u32) {
        if let Some(frame) = self.frame.clone() {
            let bit = self.warp_bit();
            let runnable = self.frame_field(&frame, at::RUNNABLE);
            let runnable = self.w.load(I32, &runnable);
            let is_alone = self.w.compare("icmp eq", &runnable, &bit);
            self.switch_unless(&is_alone, &frame);
        }
        self.poll_halt(line);
    }

    /// An operand that has one value per warp, read from an active lane.
    fn of_first_lane(&mut self, operand: &Opnd) -> Val {
        if self.is_uniform(operand) {
            return self.get(operand, Elem::I32, 1);
        }
        let value = self.get(operand, Elem::I32, LANES);
        let bits = self.mask.clone().map_or(constant(I32, -1), |mask| self.mask_bits(&mask));
        let lane = self.w.call("llvm.cttz", I32, &[&bits, &constant(I1, 0)]);
        self.w.extract(&value, &lane)
    }

    /// Runs a block in the kernel's function: starts the warps and switches to runnable ones;
    /// branches to `done` at the end.
    pub(super) fn schedule(&mut self, done: &Label) {
        let scratch = self.fixed.scratch.clone();
        let frame = self.w.offset_const(&scratch, self.regions.local_bytes().into());
        self.prepare_frame(&frame);
        self.start_fibers(&frame);
        let (pick, some, none) = (self.w.label("pick"), self.w.label("runnable"), self.w.label("none_runnable"));
        self.w.place(&pick);
        let runnable = self.frame_field(&frame, at::RUNNABLE);
        let runnable = self.w.load(I32, &runnable);
        let any = self.w.compare("icmp ne", &runnable, &constant(I32, 0));
        self.w.br_if(&any, &some, &none);
        self.w.place(&none);
        self.end_or_deadlock(&frame, done);
        self.w.place(&some);
        self.run_next(&frame, &runnable);
        let trapped = self.frame_field(&frame, at::TRAPPED);
        let trapped = self.w.load(I32, &trapped);
        let goes_on = self.w.compare("icmp eq", &trapped, &constant(I32, 0));
        let out = self.w.label("trapped");
        self.w.br_if(&goes_on, &pick, &out);
        self.w.place(&out);
        self.w.terminate(format_args!("ret void"));
    }

    fn prepare_frame(&mut self, frame: &Val) {
        let warps = self.analysis.block.warps();
        let all = constant(I32, (1i128 << warps) - 1);
        let fields = [
            (at::RUNNABLE, all.clone()),
            (at::ALIVE, all),
            (at::CURRENT, constant(I32, i128::from(warps) - 1)),
            (at::TRAPPED, constant(I32, 0)),
            (at::LINE, constant(I32, 0)),
        ];
        for (offset, value) in fields {
            let to = self.frame_field(frame, offset);
            self.w.store(&value, &to);
        }
        for (axis, slot) in (0..).zip(self.ctaid.clone()) {
            let (value, to) = (self.w.load(I32, &slot), self.frame_field(frame, at::BLOCK + 4 * axis));
            self.w.store(&value, &to);
        }
        for offset in [at::WAITING, at::ARRIVED, at::EXPECTED, at::SUMS] {
            let to = self.frame_field(frame, offset);
            let none = constant(Ty { elem: Elem::I32, lanes: 16 }, 0);
            self.w.effect(format_args!("store {none}, {to}, align 64"));
        }
    }

    /// Prepares every warp's stack as if the warp had switched away at its start.
    fn start_fibers(&mut self, frame: &Val) {
        let warps = self.analysis.block.warps();
        let scratch_bytes = self.context_u32(offsets::SCRATCH_BYTES);
        let used = self.regions.local_bytes() + FRAME_BYTES;
        let room = self.w.bin_const("sub", &scratch_bytes, used.into());
        let stack = self.w.bin_const("udiv", &room, warps.into());
        let stack = self.w.bin_const("and", &stack, -i128::from(FIBER_ALIGN));
        let stack = self.w.resize(&stack, Elem::I64, false);
        let stacks = self.frame_field(frame, at::END);
        let slot = self.w.alloca(I32);
        self.w.store(&constant(I32, 0), &slot);
        let (head, out) = (self.w.label("fiber"), self.w.label("started"));
        self.w.place(&head);
        let warp = self.w.load(I32, &slot);
        let next = self.w.bin_const("add", &warp, 1);
        let wide = self.w.resize(&next, Elem::I64, false);
        let end = self.w.bin("mul", &wide, &stack);
        // Below the stack's end: the words that a switch pops, and two more that align the stack of
        // the warp's function.
        let start = self.w.bin_const("sub", &end, i128::from(8 * (SAVED_WORDS + 2)));
        let start = self.w.offset(&stacks, &start);
        let function = Val { ty: PTR, text: format!("@{}", quoted(&format!("{}.warp", self.program.name))).into() };
        let index = self.w.resize(&warp, Elem::I64, false);
        let context = self.context();
        // In the order in which a switch pops them, r15 first.
        let words = [
            constant(I64, 0),
            index,
            frame.clone(),
            context,
            function,
            constant(I64, 0),
            Val { ty: PTR, text: "@atoll_fiber".into() },
        ];
        for (position, word) in (0u64..).zip(&words) {
            let to = self.w.offset_const(&start, 8 * position);
            self.w.store(word, &to);
        }
        let pointers = self.frame_field(frame, at::STACKS);
        let to = self.lane_slot(&pointers, Elem::Ptr, &warp);
        self.w.store(&start, &to);
        self.w.store(&next, &slot);
        let more = self.w.compare("icmp ult", &next, &constant(I32, warps.into()));
        self.w.br_if(&more, &head, &out);
        self.w.place(&out);
    }

    /// Switches to the next runnable warp, round-robin.
    fn run_next(&mut self, frame: &Val, runnable: &Val) {
        let current = self.frame_field(frame, at::CURRENT);
        let last = self.w.load(I32, &current);
        let above = self.w.bin("shl", &constant(I32, -2), &last);
        let later = self.w.bin("and", runnable, &above);
        let wraps = self.w.compare("icmp eq", &later, &constant(I32, 0));
        let candidates = self.w.select(&wraps, runnable, &later);
        let warp = self.w.call("llvm.cttz", I32, &[&candidates, &constant(I1, 0)]);
        self.w.store(&warp, &current);
        let pointers = self.frame_field(frame, at::STACKS);
        let stack = self.lane_slot(&pointers, Elem::Ptr, &warp);
        let stack = self.w.load(PTR, &stack);
        let main = self.frame_field(frame, at::MAIN);
        self.w.effect(format_args!("call void @atoll_switch({main}, {stack})"));
    }

    fn end_or_deadlock(&mut self, frame: &Val, done: &Label) {
        let alive = self.frame_field(frame, at::ALIVE);
        let alive = self.w.load(I32, &alive);
        let ended = self.w.compare("icmp eq", &alive, &constant(I32, 0));
        let stuck = self.w.label("stuck");
        self.w.br_if(&ended, done, &stuck);
        self.w.place(&stuck);
        let line = self.frame_field(frame, at::LINE);
        let line = self.w.load(I32, &line);
        self.trap_at(TrapCode::Deadlock, &line, &constant(I32, NO_THREAD.into()), None);
    }

    /// Returns from the kernel after a trap was reported; in a warp's function, through the
    /// kernel's function.
    pub(super) fn return_trapped(&mut self) {
        if let Some(frame) = self.frame.clone() {
            let trapped = self.frame_field(&frame, at::TRAPPED);
            self.w.store(&constant(I32, 1), &trapped);
        }
        self.w.terminate(format_args!("ret void"));
    }
}
