//! An NVIDIA GPU, driven through the CUDA driver's API, which is loaded when the device is started
//! ([`atoll_cuda`]).
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
//! **The offset space** is one reservation of device memory, which begins at offset 0 and is zero
//! when the device starts. There is no other part for constants: the engine places them in the same
//! memory, and nothing keeps a kernel from writing to one of its own process. Offsets in address
//! slots become addresses when a launch is submitted ([`launch`](self)).
//!
//! **Queues** are streams; queue 0 has the highest priority of the context, the last one the
//! lowest. Blocks that wait go in that order; blocks that run are never stopped, so the level is
//! `PreemptLevel::Deactivate`. Where the device is to run on a part of the GPU, they are streams of
//! a partition. A queue holds as many launches as it has slots; a slot is two timed events
//! and a word in host memory, reserved when the device starts. Launches of which each says that the
//! next one follows at once may take one together, as a CUDA graph ([`segment`](self)).
//!
//! **Epochs.** A kernel finds its task's epoch word where reading it costs the device least without
//! being late: which of three places that is, is measured when the device starts (`flag`). The word
//! in device memory is written in any case, by a stream that has nothing else to do, so that it
//! says the truth to copies. Where kernels look at mapped host memory, or at device memory that the
//! host sees through the GPU's BAR (on machines with GDRCopy), raising an epoch is one store. All
//! kernels of a task look at the same place, also those that it shares with others: one
//! that left and a later one that did not would otherwise be seen.
//!
//! **Completions.** The evicted word of a launch lies in its slot, in host memory: a block that
//! leaves writes there, nobody has to copy it, and the launch's second event says that it can be
//! read (design D5 a). One thread asks for the events; it waits a sixteenth of what it has waited,
//! so an end is seen late by a few hundredths of a kernel's time at most. `started_ns` and
//! `ended_ns` come from the events, moved to the host's clock (`clock`). `busy_ns` is an estimate
//! from above: the time between the events, on as many compute units as the launch has blocks. It
//! counts what two queues did at once twice.
//!
//! **Faults.** What a kernel does wrong ends the context: every later call fails, every launch in
//! flight ends as failed, and the device is lost with its memory. So kernels that may fault belong
//! into an executor process (design D11), which has this device and shares its epoch words with the
//! daemon (`shared`).

mod bound;
mod clock;
mod completion;
mod config;
mod device;
mod error;
mod flag;
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

pub use config::{CudaConfig, GpuPart};
pub use device::CudaDevice;
pub use flag::{FlagRoute, FlagRoutes, RouteCost};
pub use mps::{MpsControl, MpsError, MpsShare};
pub use shared::KIND;
