//! The host device with its compute units in a process of their own (design D11).
//!
//! The rings, the control words, the memory and the completion eventfd are the same as in one process; an executor gets them over a socket when it starts. So a launch, a preemption
//! and a completion need no message:
//!
//! ```text
//! daemon                        shared memory                          executor
//! ExecutorDevice ── launches ─▶ rings, stop words, epoch words ──────▶ DeviceSide (threads), in a jail
//!                ◀─ ends ──────
//!                ── code ─────▶ socket: load, unload, show, hide ────▶ serve
//!                ◀─ reports ─── socket: loaded, shown, report ────────
//! Supervisor     ◀─ life ────── pidfd, beat word
//! ```
//!
//! Neither side trusts the other: what comes through rings and socket is checked, and whoever breaks the rules is taken for lost. An executor that dies, hangs or breaks the rules is killed and
//! reaped by one thread of the daemon (`supervisor`); every launch it had ends as failed, with the cause in its report. Its memory and its constants are the daemon's and stay. Constants are
//! shown to it one by one: it has a way to those of its tenant and to no others.
//!
//! Bounds: a dead executor is seen at once; one that shows no sign of life while it has something to do, after [`ExecutorConfig::hang_after`]; one that lives but does not answer a message, after
//! [`ExecutorConfig::answer_within`], or [`ExecutorConfig::load_within`] where it loads code.

mod channel;
mod config;
mod device;
mod domain;
#[cfg(feature = "cuda")]
mod gpu;
mod jail;
mod memory;
#[cfg(feature = "cuda")]
mod mps;
mod pool;
#[cfg(feature = "cuda")]
mod port;
#[cfg(feature = "cuda")]
mod remote;
mod serve;
mod supervisor;
mod wire;

pub use config::{DeviceConfig, ExecutorConfig};
pub use device::ExecutorDevice;
#[cfg(feature = "cuda")]
pub use mps::{MpsControl, MpsError, MpsShare};
pub use pool::ExecutorPool;
pub use serve::{ServeError, serve};
