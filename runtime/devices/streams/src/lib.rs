//! A device on a driver that has streams and events: the common part of the devices for GPUs of
//! different vendors. A vendor's crate implements [`Driver`] and starts a [`StreamDevice`].
//!
//! ```text
//! engine's thread                         driver                              completion thread
//! submit ── event, kernel, event ──▶ a stream per device queue
//!        ── the launch's slot ───────────────────────────────────────────────▶ asks for the oldest event of each queue
//! store_epoch ── one store ────────▶ epoch words in mapped host memory ──▶ kernels
//!             ── write value ──────▶ service stream ──▶ the word in device memory
//! write, read, copy, fill ─────────▶ service stream, waited for
//! next_completion ◀────────────────── channel, eventfd ◀───────────────────────
//! ```
//!
//! **The offset space** is one reservation of device memory, which begins at offset 0 and is zeroed
//! when the device starts. Constants have no separate range. Offsets in address slots become
//! addresses when a launch is submitted ([`launch`](self)).
//!
//! **Queues** are streams. A queue holds as many launches as it has slots; a slot is two timed
//! events and a few words in host memory, reserved when the queue opens. A lane's streams belong to
//! a set of compute units.
//!
//! **Epochs.** Kernels read their task's epoch word in mapped host memory, which is raised by one
//! store, or in device memory ([`EpochPlace`]). The word in device memory is always written, by an
//! otherwise idle stream, so that transfers read the current value. All kernels of a task read the
//! same place.
//!
//! **Completions.** The evicted word of a launch is in its slot, in host memory: a block that exits
//! early writes it there, and it is read after the launch's second event has passed. A thread polls
//! the events. `started_ns` and `ended_ns` are the times of the events, converted to the host's
//! clock ([`atoll_device::clock`]). `busy_ns` is an upper bound: the time between the events, times
//! the number of compute units that the launch's blocks can occupy.
//!
//! **Traps.** A kernel that traps may write a record into its slot ([`TrapRecord`]); its launch
//! then fails, and the device continues.
//!
//! **Output.** A slot gets a print buffer when it first has a launch of a kernel that prints
//! ([`Driver::print_buffer`]), and keeps it.
//!
//! **Faults.** Other faults end the driver's context: all later calls fail, all launches in flight
//! complete as failed, and the device is lost with its memory. So kernels that may fault belong in
//! an executor process, which runs this device and shares its epoch words with the daemon
//! ([`SharedDevice`]).
//!
//! **Interruption.** Some drivers can kill all running blocks of the process
//! ([`Driver::reset_blocks`]). [`Launching::interrupt`](atoll_device::Launching::interrupt) does so
//! only while every launch in flight may run its blocks again and reports its progress.
//!
//! Not here: the driver's handles and the code it loads, scheduling, and executor processes.
//!
//! Start reading at [`Driver`], then `submit` and `completion`.
//!
//! # Invariants
//!
//! - Every launch is checked before it reaches the driver: kernel, shape, parameters, and every
//!   offset against the reservation (`launch`). A launch that is refused, by these checks or by the
//!   driver, completes as failed after the launches before it in its queue.
//! - A slot is used again only after its launch has ended and its words were read.
//! - The memory is zeroed before its first use, and freed only when no launch runs.
//! - One thread makes all submissions and transfers. The completion thread only queries events and
//!   their times.
//! - The first cause of the loss of the device is kept. From then on no launch is accepted, and all
//!   launches in flight complete as failed.

mod completion;
mod device;
mod driver;
mod error;
mod interrupt;
mod lanes;
mod launch;
mod module;
mod queue;
mod shared;
mod slot;
mod start;
mod submit;
mod words;

pub use device::StreamDevice;
pub use driver::{Driver, DriverError, LaunchShape, RecordAddresses, TrapRecord};
pub use error::device_error;
pub use module::Module;
pub use shared::SharedDevice;
pub use slot::TRAP_WORDS;
pub use start::StartStreams;
pub use words::EpochPlace;
