//! `prefetch`: a hint that memory will be read soon.

use super::access::Address;
use super::*;
use atoll_ptx::StateSpace;

/// Bytes of a cache line.
const CACHE_LINE_BYTES: usize = 64;

/// Largest distance of two lanes for a prefetch: with larger ones each lane has a line of its own.
const STRIDE_MAX: i64 = 16;

impl Emitter<'_> {
    /// Fetches the cache lines that the lanes address, if the lanes are close together. A prefetch
    /// has no effect but on time, and never faults: its address is not checked.
    pub(super) fn prefetch(&mut self, inst: &Inst) -> Result<(), HostError> {
        if !matches!(inst.form.space(), Some(StateSpace::Global) | None) {
            return Ok(());
        }
        let (address, _) = self.unguarded_address(inst, self.op(inst, 0)?, inst.form.space())?;
        let (pointer, bytes) = match address {
            Address::Uniform(pointer) => (pointer, 1),
            Address::Strided(pointer, stride @ 1..=STRIDE_MAX) => (pointer, stride.unsigned_abs() * u64::from(LANES)),
            Address::Strided(..) | Address::Each(_) => return Ok(()),
        };
        // The last byte is in a line of its own if the first one is not at the start of its line.
        let last = (bytes > 1).then_some(bytes - 1);
        for line in (0..bytes).step_by(CACHE_LINE_BYTES).chain(last) {
            let at = self.w.offset_const(&pointer, line);
            // For a read, into all caches, data.
            self.w.effect(format_args!("call void @llvm.prefetch.p0({at}, i32 0, i32 3, i32 1)"));
        }
        Ok(())
    }
}
