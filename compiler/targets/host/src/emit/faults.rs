//! Ends a kernel in the middle of a block: reports a trap and returns.

use super::*;
use atoll_kgraph::host_abi::{NO_THREAD, TrapCode, offsets};

impl Emitter<'_> {
    /// `trap`: reports and returns from the kernel at once, without running the other lanes to
    /// their end.
    pub(super) fn trap_instruction(&mut self) -> Result<(), HostError> {
        let thread = self.first_thread();
        self.trap(TrapCode::Trap, self.line, &thread, None);
        let unreachable = self.w.label("after_trap");
        self.w.place(&unreachable);
        Ok(())
    }

    /// Ends the open block: reports a trap of `thread`, with the encoded access and its address,
    /// and returns from the kernel.
    pub(super) fn trap(&mut self, code: TrapCode, line: u32, thread: &Val, access: Option<(u32, &Val)>) {
        self.trap_at(code, &constant(I32, line.into()), thread, access);
    }

    /// Like [`Emitter::trap`], with a line that is known only at run time.
    pub(super) fn trap_at(&mut self, code: TrapCode, line: &Val, thread: &Val, access: Option<(u32, &Val)>) {
        let function = self.helper(offsets::HELPER_TRAP);
        let code = code as u32;
        let (bits, address) = access.map_or((0, constant(I64, 0)), |(bits, address)| (bits, address.clone()));
        self.w.effect(format_args!(
            "call void {}(ptr %context, i32 {code}, {line}, {thread}, i32 {bits}, {address}) cold",
            function.text
        ));
        self.return_trapped();
    }

    /// In a loop that waits for other threads: ends the launch if the device requests it.
    pub(super) fn poll_halt(&mut self, line: u32) {
        let halt_word = self.fixed.halt_word.clone();
        let halt = self.w.value(I32, format_args!("load atomic volatile i32, {halt_word} monotonic, align 4"));
        let goes_on = self.w.compare("icmp eq", &halt, &constant(I32, 0));
        let (on, halted) = (self.w.label("on"), self.w.label("halted"));
        self.w.br_if(&goes_on, &on, &halted);
        self.w.place(&halted);
        self.trap(TrapCode::TimeLimit, line, &constant(I32, NO_THREAD.into()), None);
        self.w.place(&on);
    }

    /// The address of a helper function, by its offset in the table.
    pub(super) fn helper(&mut self, offset: usize) -> Val {
        let table = self.fixed.helpers.clone();
        let at = self.w.offset_const(&table, offset as u64);
        self.w.load(PTR, &at)
    }

    /// Linear thread index, within the block, of the first active lane.
    pub(super) fn first_thread(&mut self) -> Val {
        let lane = match self.mask.clone() {
            None => constant(I32, 0),
            Some(mask) => {
                let bits = self.mask_bits(&mask);
                self.w.call("llvm.cttz", I32, &[&bits, &constant(I1, 0)])
            }
        };
        self.thread_of_lane(&lane)
    }

    /// Linear thread index, within the block, of a lane.
    pub(super) fn thread_of_lane(&mut self, lane: &Val) -> Val {
        let slot = self.warp.clone();
        let warp = self.w.load(I32, &slot);
        let first = self.w.bin_const("mul", &warp, LANES.into());
        self.w.bin("add", &first, lane)
    }
}
