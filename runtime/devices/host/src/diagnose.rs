//! Turns the remains of a kernel that did not return into a [`Fault`].

use super::fault::Interruption;
use super::helpers::{TrapNote, UnitContext};
use atoll_device::link::HALT_SIGNAL;
use atoll_device::report::{Access, AccessKind, AccessSpace, Fault, FaultKind};
use atoll_kgraph::host_abi::{NO_THREAD, TrapCode};
use std::sync::atomic::Ordering::Relaxed;

/// The reasons for ending a launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Its time limit in nanoseconds.
    pub(crate) time_ns: u64,
    /// Whether the device, and with it every launch, is ending.
    pub(crate) is_ending: bool,
}

impl Limits {
    fn kind(self) -> FaultKind {
        if self.is_ending { FaultKind::Ended } else { FaultKind::TimeLimit { limit_ns: self.time_ns } }
    }
}

/// The fault behind a trap.
pub(crate) fn of_trap(unit: &UnitContext<'_>, note: &TrapNote, limits: Limits) -> Fault {
    let kind = match note.code {
        TrapCode::Trap => FaultKind::Trap,
        TrapCode::Unreachable => FaultKind::Unreachable,
        TrapCode::Misaligned => FaultKind::Misaligned,
        TrapCode::OutOfBounds => FaultKind::OutOfBounds,
        TrapCode::Deadlock => FaultKind::Deadlock,
        TrapCode::Assert => FaultKind::Assert,
        TrapCode::TimeLimit => limits.kind(),
    };
    let place = if note.code == TrapCode::OutOfBounds { unit.describe(note) } else { None };
    Fault {
        thread: (note.thread != NO_THREAD).then(|| unit.launch.thread_index(note.thread)),
        line: (note.line > 0).then_some(note.line),
        access: note.access,
        address: note.access.map(|_| note.address),
        place,
        ..in_block(unit, kind)
    }
}

/// The fault behind a signal.
pub(crate) fn of_interruption(unit: &UnitContext<'_>, interruption: &Interruption, limits: Limits) -> Fault {
    let signal = interruption.signal;
    let is_access = matches!(signal, libc::SIGSEGV | libc::SIGBUS);
    let kind = match signal {
        HALT_SIGNAL => limits.kind(),
        _ if is_access => FaultKind::BadAddress { signal },
        _ => FaultKind::BadInstruction { signal },
    };
    let lines = unit.launch.module().lines_of(interruption.instruction);
    // Without an address there is no error code, so the kind of access is unknown.
    let access = (is_access && interruption.address.is_some()).then_some(Access {
        kind: if interruption.is_write { AccessKind::Write } else { AccessKind::Read },
        space: AccessSpace::Generic,
        bytes: 0,
    });
    Fault {
        line: lines.map(|lines| if is_access && !interruption.is_write { lines.load } else { lines.line }),
        access,
        address: interruption.address,
        place: interruption.address.and_then(|address| unit.launch.place_in_constants(address)),
        ..in_block(unit, kind)
    }
}

fn in_block(unit: &UnitContext<'_>, kind: FaultKind) -> Fault {
    let block = unit.launch.block_index(unit.block.load(Relaxed));
    Fault { block: Some(block), ..Fault::of_kernel(kind, &unit.launch.kernel().facts.name) }
}
