//! Devices in processes of their own (design D11): one executor, and a pool of them that is one
//! device with a process per domain.
//!
//! No device is known here. The daemon's side is told of one by a plan
//! ([`atoll_device::process::DevicePlan`]); the program that is started as an executor hands in the
//! kinds that it can run ([`serve`]). In what follows the device's memory is the daemon's; where it
//! is the executor's, as that of a GPU, [`relay`](self) drives the device and [`port`](self)
//! carries transfers.
//!
//! The rings, the control words, the memory and the completion eventfd are the same as in one
//! process; an executor gets them over a socket when it starts. So a launch, a preemption
//! and a completion need no message:
//!
//! ```text
//! daemon                        shared memory                          executor
//! ExecutorDevice ── launches ─▶ rings, stop words, epoch words ──────▶ compute units (threads), in a jail
//!                ◀─ ends ──────
//!                ── code ─────▶ socket: load, unload, show, hide ────▶ serve
//!                ◀─ reports ─── socket: loaded, shown, report ────────
//! Supervisor     ◀─ life ────── pidfd, beat word
//! ```
//!
//! Neither side trusts the other: what comes through rings and socket is checked, and whoever
//! breaks the rules is taken for lost. An executor that dies, hangs or breaks the rules is killed
//! and reaped by one thread of the daemon (`supervisor`); every launch it had ends as failed, with
//! the cause in its report. Its memory and its constants are the daemon's and stay. Constants are
//! shown to it one by one: it has a way to those of its tenant and to no others.
//!
//! Bounds: a dead executor is seen at once; one that shows no sign of life while it has something
//! to do, after [`ExecutorConfig::hang_after`]; one that lives but does not answer a message, after
//! [`ExecutorConfig::answer_within`], or [`ExecutorConfig::load_within`] where it loads code.

mod channel;
mod config;
mod device;
mod domain;
mod jail;
mod memory;
mod pool;
mod port;
mod relay;
mod remote;
mod serve;
mod supervisor;
mod wire;

pub use config::ExecutorConfig;
pub use device::ExecutorDevice;
pub use pool::ExecutorPool;
pub use serve::{ServeError, serve};
