//! Sessions of CUDA programs in the daemon.
//!
//! A session is a client of a tenant, with a class, memory and, if it asks for one, a share of its
//! own. The calls of a message are collected into tasks, which the engine schedules and preempts
//! like all others. `runtime/session` checks the calls; kernels are compiled from their PTX with a
//! fence, whether or not the tenant is trusted.
//!
//! | file | contents |
//! |---|---|
//! | `begin` | admission of a session: rights, memory, share, its function |
//! | `backend` | [`backend::EngineBackend`]: the calls of a session on the engine |
//! | `code` | modules, and the functions of their kernels |
//! | `counts` | counts of all sessions, for metrics and limits |
//! | `errors` | errors of the daemon as errors of CUDA |
//! | `facts` | what programs see of the device |
//! | `network` | how a connection over the network becomes a session: credentials, time limits |
//! | `relay` | passes bytes between two streams |
//! | `socket` | how a connection to the control socket becomes a session, and its thread |
//!
//! Invariants: a session has at most one task at a time. When it ends, for any reason, its tasks are
//! cancelled, and its memory, functions and share are gone before it counts as ended.

mod backend;
mod begin;
mod code;
pub(crate) mod counts;
mod errors;
mod facts;
mod network;
mod relay;
mod socket;

pub(crate) use network::{Remote, serve_remote, watch};
pub use relay::{keep_alive, relay};
pub(crate) use socket::{is_session, serve};
