//! Executors: devices that run in processes of their own. [`ExecutorDevice`] is one executor;
//! [`ExecutorPool`] is one device with an executor per domain.
//!
//! This crate knows no device. The daemon's side gets a plan
//! ([`atoll_device::process::DevicePlan`]); the executor's program passes the kinds of device it
//! can run ([`serve`]). The description below is for devices whose memory belongs to the daemon. If
//! it belongs to the executor, as on a GPU, [`relay`](self) drives the device and [`port`](self)
//! carries transfers.
//!
//! Rings, control words, memory and completion eventfd are the same as for a device in the daemon;
//! an executor gets them over a socket when it starts. So launches, preemptions and completions
//! need no messages:
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
//! Neither side trusts the other: everything that comes through rings and socket is checked, and a
//! side that breaks the protocol is treated as lost. One thread of the daemon (`supervisor`) kills
//! and reaps executors that die, hang or break the protocol. All launches of a lost executor
//! complete as failed, with the cause in their reports. Memory and constants belong to the daemon
//! and remain. An executor can map only the constants of its tenant, one by one.
//!
//! Time limits: the death of an executor is detected at once. An executor that shows no sign of
//! life while it has work is killed after [`ExecutorConfig::hang_after`]. An executor that does not
//! answer a message is killed after [`ExecutorConfig::answer_within`], or after
//! [`ExecutorConfig::load_within`] if it loads code.
//!
//! Not here: the devices themselves (`atoll-device-host`, `atoll-device-cuda`), and scheduling,
//! which is the engine's.
//!
//! A device that stops running blocks by killing all of its process has two executors, one of them
//! for best-effort work ([`pair`](self)).
//!
//! Start reading at [`ExecutorPool`], then `device` (daemon) and `serve` (executor). `jail` drops
//! the rights of an executor, and `compile_jail` those of a process that compiles or runs CPU stages.
//!
//! # Invariants
//!
//! - An executor runs the code of one domain, and maps the constants of that domain only. A device
//!   with memory of its own has one executor, or a pair of them, for all domains; their memory is
//!   kept apart by fences in their kernels ([`regions`](self)).
//! - Messages arrive in the order in which they were sent. Constants are sent before the modules
//!   that read them.
//! - An executor inherits no descriptors but its socket, and sends none to the daemon. It enters
//!   its jail before it loads code.
//! - Messages that wait, partial reports and printed text are bounded. An executor that exceeds a
//!   bound is killed.
//! - Only the supervisor's thread starts, kills and reaps executors. It ends with the process,
//!   because the system kills an executor when the thread that started it ends.
//! - The first reason for killing an executor is kept and is the one that is reported.
//! - Memory of a lost domain is not used again: the domain gets new, zeroed memory under a new
//!   number, and offsets with the old number are refused.

mod cgroup;
mod channel;
mod compile_jail;
mod config;
mod device;
mod domain;
mod imports;
mod jail;
mod memory;
mod pair;
mod parts;
mod pool;
mod port;
mod regions;
mod relay;
mod remote;
mod sealed;
mod serve;
mod supervisor;
mod wire;

pub use cgroup::{ControlGroups, ExecutorQuota, ExecutorQuotas, NoControlGroups, PROCESS_BYTES, UNIT_BYTES};
pub use compile_jail::{enter_compile_jail, enter_stage_jail};
pub use config::{ExecutorConfig, TenantMemory};
pub use device::ExecutorDevice;
pub use pool::ExecutorPool;
pub use serve::{ServeError, serve};
