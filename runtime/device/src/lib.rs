//! The interface between an engine and a device: the traits that vendor code implements, the
//! records that cross between the two, and the shared memory that carries them.
//!
//! A device takes ids, offsets and launch records, and returns completions. Devices do not check
//! kernel graphs again: the engine has done so. Errors cover only what a caller cannot foresee.
//!
//! - [`Device`] combines [`Launching`], [`Memory`], [`Constants`], [`Modules`], [`Domains`],
//!   [`Lanes`] and [`Telemetry`], one file each. Optional features have default implementations.
//! - [`record`]: launches and completions, and their layout in a ring. [`report`]: why a launch
//!   failed and what it printed, for people.
//! - [`shm`], [`extent`], [`space`]: memory shared between processes, and its address space.
//!   [`ring`], [`doorbell`]: a command ring, and how one side wakes the other.
//! - [`link`]: the rings, control words and chunk records between an engine and compute units.
//! - [`process`]: the interface of a device that runs in an executor process.
//! - [`printf`], [`print_buffer`]: what kernels print, as text.
//! - [`Imports`], [`Importer`]: device memory that clients have exported.
//! - [`refusal`]: the checks of a launch that all devices share. [`bind`], [`clock`]: shared
//!   by GPU devices: addresses in launches, and times of events. [`cpus`]: CPU affinity of threads.
//!   [`priority`]: their scheduling priority. [`cpu_time`]: CPU time of processes. [`word_table`]:
//!   epoch words that exist in device memory and in host memory.
//!
//! Not here: vendor code. The host device is `atoll-device-host`, NVIDIA GPUs are
//! `atoll-device-cuda`, and `atoll-executor` runs either in a process of its own.
//!
//! Invariants: every launch that [`Launching::submit`] accepts gets exactly one completion, in
//! submission order within its queue, even if the device is lost. A launch occupies its slot of the
//! device queue until its completion is taken, so completions are bounded by the queue capacities
//! and nothing here grows without bound.
//!
//! Start reading at [`Launching`], then [`record`] and [`link`].

pub mod bind;
pub mod clock;
pub mod cpu_time;
pub mod cpus;
pub mod doorbell;
pub mod extent;
pub mod link;
pub mod print_buffer;
pub mod printf;
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
mod division;
mod domains;
mod error;
mod groups;
mod imports;
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
pub use division::{Division, Guarantees};
pub use domains::{DomainState, Domains, PAGE_BYTES_MAX};
pub use error::{DeviceError, SubmitError};
pub use groups::{ProcessGroup, ProcessGroups};
pub use imports::{HANDLE_BYTES, ImportError, ImportId, Importer, Imports, MemoryHandle};
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
pub use telemetry::{DomainUse, ExecutorProcess, ExecutorStatistics, GroupLimit, GroupUse, Telemetry};

use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// A device. Implement the traits it is made of; the defaults of the optional ones describe a
/// device without domains, lanes and counters.
pub trait Device: Launching + Memory + Constants + Modules + Domains + Lanes + Telemetry + Send {
    /// Describes the device.
    fn info(&self) -> &DeviceInfo;

    /// Why the device is lost, or `None` while it works. The memory of a lost device can still be
    /// read.
    fn lost(&self) -> Option<String> {
        None
    }

    /// Access to device memory that other processes have exported; `None` if the device cannot open
    /// it.
    fn imports(&self) -> Option<Arc<dyn Imports>> {
        None
    }

    /// An eventfd that is readable while completions wait, when a load has finished, and when the
    /// device is lost. Only the device reads it.
    fn completion_fd(&self) -> BorrowedFd<'_>;
}

/// The current time in nanoseconds, on the monotonic clock of completions and chunks.
pub fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
