//! Clocks: `%clock`, `%clock64` and `%globaltimer`.
//!
//! Processors have a counter of cycles and a counter of constant frequency. LLVM reads the former
//! for `llvm.readcyclecounter` and the latter for `llvm.readsteadycounter`.

use super::*;
use atoll_lower::program::Special;

/// Cycles of gfx1100 in a tick of its constant counter, at 2.5 GHz.
const CYCLES_PER_TICK: i128 = 25;

/// Nanoseconds of a tick of the constant counter, as the ISA documents specify it. `None` if boards
/// of the architecture have different ones: 25 MHz in the documents, up to 100 MHz in practice.
fn tick_ns(architecture: Architecture) -> Option<i128> {
    match architecture {
        Architecture::Gfx906 | Architecture::Gfx908 | Architecture::Gfx90a => None,
        Architecture::Gfx942 | Architecture::Gfx1030 | Architecture::Gfx1100 | Architecture::Gfx1201 => Some(10),
    }
}

impl Emitter<'_> {
    /// `%clock64`. The cycle counter of gfx1100 has 20 bits and wraps in less than a millisecond,
    /// so cycles are computed from the constant counter there.
    pub(super) fn clock(&mut self) -> Val {
        if self.architecture == Architecture::Gfx1100 {
            return self.constant_counter(CYCLES_PER_TICK);
        }
        self.w.value(I64, format_args!("call i64 @llvm.readcyclecounter()"))
    }

    /// `%globaltimer`; see [`Emitter::refuse_timer`].
    pub(super) fn global_timer(&mut self) -> Val {
        self.constant_counter(tick_ns(self.architecture).unwrap_or(1))
    }

    /// The constant counter times a factor.
    fn constant_counter(&mut self, factor: i128) -> Val {
        let ticks = self.w.value(I64, format_args!("call i64 @llvm.readsteadycounter()"));
        self.w.bin_const("mul", &ticks, factor)
    }

    /// Refuses `%globaltimer` on architectures that cannot tell nanoseconds.
    pub(super) fn refuse_timer(&self, inst: &Inst) -> Result<(), LowerError> {
        fn is_timer(operand: &Opnd) -> bool {
            match operand {
                Opnd::Special(special) => *special == Special::GlobalTimer,
                Opnd::Vec(parts) => parts.iter().any(is_timer),
                _ => false,
            }
        }
        if tick_ns(self.architecture).is_some() || !inst.sources().iter().any(is_timer) {
            return Ok(());
        }
        let why = format!("`%globaltimer`: the frequency of its counter on {} depends on the board", self.architecture);
        Err(self.refused(inst.line, why))
    }
}
