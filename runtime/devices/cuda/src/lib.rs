//! The device for NVIDIA GPUs, on the CUDA driver API. The driver's library is loaded when a device
//! is started ([`atoll_cuda`]).
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
//! when the device starts. Constants have no separate range: the engine places them in the same
//! memory, and a kernel without a fence can overwrite them. Offsets in address slots become
//! addresses when a launch is submitted (`launch`).
//!
//! **Queues** are streams; queue 0 has the highest priority of the context, the last one the
//! lowest. Priorities order waiting blocks only. Running blocks are never stopped, so the
//! preemption level is `PreemptLevel::Deactivate`. If the device uses a part of the GPU, the
//! streams belong to a partition. A queue holds as many launches as it has slots; a slot is two
//! timed events and words in host memory, reserved when the device starts. Launches that announce
//! a next launch may go to the driver together, as a CUDA graph (`segment`).
//!
//! **Epochs.** Kernels read their task's epoch word in one of three places. The device measures at
//! start which of them is cheapest to read without being late (`flag`). The word in device memory
//! is always written, by an otherwise idle stream, so that transfers read the current value. If
//! kernels read mapped host memory, or device memory that the host reaches through the GPU's BAR
//! (on machines with GDRCopy), raising an epoch is one store. All kernels of a task read the same
//! place, and so do kernels that tasks share. Otherwise a launch could exit while a later one of
//! the same task runs.
//!
//! **Completions.** The evicted word of a launch is in its slot, in host memory: a block that exits
//! early writes it there, and the launch's second event tells when it can be read. A thread polls
//! the events. It pauses for a sixteenth of the time it has waited, so a completion is late by a
//! few percent of a kernel's time at most. `started_ns` and `ended_ns` are the times of the events,
//! converted to the host's clock ([`atoll_device::clock`]). `busy_ns` is an upper estimate: the
//! time between the events, times the number of compute units that the launch's blocks can occupy.
//! Time in which two queues ran is counted twice.
//!
//! **Memory of other processes** is opened in the device's context by handles of CUDA IPC. A thread
//! of the executor copies it in a stream of its own (`import`).
//!
//! **Faults.** A fault of a kernel ends the context: all later calls fail, all launches in flight
//! complete as failed, and the device is lost with its memory. So kernels that may fault belong in
//! an executor process, which runs this device and shares its epoch words with the daemon
//! (`shared`). Kernels that were compiled with a fence do not fault: a thread that would stores the
//! reason in the launch's fault word, beside the evicted word, and exits. That launch alone
//! completes as failed. Kernels of tenants have a fence unless the tenant is trusted.
//!
//! **A MIG instance** is a device by its UUID. A process sees one instance only, so each needs an
//! executor of its own, whose environment names it (`gpu_id`).
//!
//! Not here: the driver's handles ([`atoll_cuda`]), scheduling, which is the engine's, and executor
//! processes (`atoll-executor`).
//!
//! Start reading at [`CudaDevice`], then `submit` and `completion`.
//!
//! # Invariants
//!
//! - Every launch is checked before it reaches the driver: kernel, shape, parameters, and every
//!   offset against the reservation (`launch`). A launch that is refused, by these checks or by the
//!   driver, completes as failed after the launches before it in its queue.
//! - A slot is used again only after its launches have ended and their words were read.
//! - The memory is zeroed before its first use, and freed only when no launch runs.
//! - One thread makes all submissions and transfers (the engine's, or the one that drives the
//!   device in an executor). The completion thread only queries events and their times.
//! - The first cause of the loss of the device is kept. From then on no launch is accepted, and all
//!   launches in flight complete as failed.

mod bound;
mod completion;
mod config;
mod device;
mod error;
mod flag;
mod gpu_id;
mod import;
mod lanes;
mod launch;
mod module;
mod mps;
mod queue;
mod segment;
mod shared;
mod slot;
mod start;
mod submit;
mod words;

pub use atoll_cuda::{GpuList, ListedGpu, Mig};
pub use config::{CudaConfig, GpuPart};
pub use device::CudaDevice;
pub use flag::{FlagRoute, FlagRoutes, RouteCost};
pub use gpu_id::{GpuId, VISIBLE_DEVICES};
pub use mps::{MpsControl, MpsError, MpsShare};
pub use shared::KIND;
