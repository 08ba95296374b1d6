//! What both sides of a device need: the traits below which all vendor code lives, the records that
//! cross between an engine and a device, and the shared memory that they cross in (design D4, D11).
//!
//! A device is driven by plain values: ids, offsets and launch records go in, completions come
//! back. The traits do no defensive checking of graphs; the engine has done it. Errors cover what a
//! caller cannot foresee.
//!
//! - [`Device`] is all of [`Launching`], [`Memory`], [`Constants`], [`Modules`], [`Domains`],
//!   [`Lanes`] and [`Telemetry`], a file for each. What only some devices do has defaults.
//! - [`record`]: launches and completions, and how they are laid out in a ring. [`report`]: what a
//!   launch left behind for people: why it failed, what it printed.
//! - [`shm`], [`extent`], [`space`]: memory that two processes share, and the address space in it.
//!   [`ring`], [`doorbell`]: a command ring, and how one side of it wakes the other.
//! - [`link`]: the rings, control words and chunk records between an engine and compute units.
//! - [`process`]: what a device offers so that an executor, a process of its own, can run it.
//! - [`refusal`]: what every device checks of a launch. [`cpus`]: where threads run. [`priority`]:
//!   how soon they get a CPU. [`word_table`]: epoch words that two memories hold.
//!
//! Not here: any vendor. The host device is `atoll-device-host`, NVIDIA GPUs are
//! `atoll-device-cuda`, processes that run either are `atoll-executor`.
//!
//! Invariants: every launch that [`Launching::submit`] took gets exactly one completion, in
//! submission order within its queue, also when the device is lost. A launch holds its place in the
//! device queue until its completion was taken, so completions never pile up and nothing here grows
//! without bound.

pub mod cpus;
pub mod doorbell;
pub mod extent;
pub mod link;
pub mod priority;
pub mod process;
pub mod record;
pub mod refusal;
pub mod report;
pub mod ring;
pub mod shm;
pub mod space;
pub mod word_table;

mod constants;
mod domains;
mod error;
mod info;
mod lanes;
mod launching;
mod loss;
mod memory;
mod modules;
mod params;
mod reports;
mod stream;
mod telemetry;

pub use constants::Constants;
pub use domains::{DomainState, Domains};
pub use error::{DeviceError, SubmitError};
pub use info::{AddressRange, DeviceFacts, DeviceInfo};
pub use lanes::{Lane, LaneSpec, LaneTable, LaneUnits, Lanes};
pub use launching::Launching;
pub use loss::LossCause;
pub use memory::Memory;
pub use modules::{ModuleId, ModuleImage, Modules};
pub use params::{AddressSlots, PARAM_SLOTS_MAX, PARAMS_BYTES_MAX, ParamBlock, translate_offsets};
pub use record::*;
pub use report::{Fault, FaultKind, LaunchReport};
pub use reports::{KeepReports, PRINTED_BYTES_MAX, Reports};
pub use telemetry::{ExecutorProcess, ExecutorStatistics, Telemetry};

use std::os::fd::BorrowedFd;

/// A device. Whoever writes a new one implements the traits of which it is made; the defaults of
/// the smaller ones are a device that keeps nothing apart and counts nothing.
pub trait Device: Launching + Memory + Constants + Modules + Domains + Lanes + Telemetry + Send {
    /// What it is.
    fn info(&self) -> &DeviceInfo;

    /// Why the device is gone, once it is. Its memory can still be read then.
    fn lost(&self) -> Option<String> {
        None
    }

    /// Readable while completions wait, a load has ended or the device is gone (an eventfd; reading
    /// it is the device's business).
    fn completion_fd(&self) -> BorrowedFd<'_>;
}

/// Monotonic nanoseconds, on the clock of completions and chunks.
pub fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
