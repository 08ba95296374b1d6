//! Sessions of CUDA programs in the daemon.
//!
//! A session is a client of a tenant, with a class, memory and, if it asks for one, a share of its
//! own. The calls of a message are collected into tasks, which the engine schedules and preempts
//! like all others. `runtime/session` checks the calls; kernels are compiled from their PTX with a
//! fence, whether or not the tenant is trusted.
//!
//! | file | contents |
//! |---|---|
//! | `addresses` | connections of each address to the port of sessions |
//! | `begin` | admission of a session: rights, memory, share, its function |
//! | `backend` | [`backend::EngineBackend`]: the calls of a session on the engine |
//! | `code` | modules, and the functions of their kernels |
//! | `counts` | counts of all sessions, for metrics and limits |
//! | `errors` | errors of the daemon as errors of CUDA |
//! | `facts` | what programs see of the device |
//! | `live` | the part of a session that is on a device, and its moves to other devices |
//! | `keep` | a session over the network and its connections, one after another |
//! | `network` | how a connection over the network gets its session: credentials, time limits |
//! | `registry` | the open sessions by number, for those who suspend or resume them |
//! | `relay` | relays bytes between one side of a session and a connection |
//! | `socket` | how a connection to the control socket becomes a session, and its thread |
//! | `tickets` | tickets, with which clients resume their sessions on other connections |
//! | `warm` | the cache of code that is kept between the sessions of a tenant |
//!
//! Invariants: a session has at most one task at a time. Over the network it has at most one
//! connection, and each byte of its client reaches it once. It keeps its addresses and its functions'
//! names when it is suspended and when it moves to another device. When it ends, for any reason, its tasks
//! are cancelled, and its memory, functions and share are gone before it counts as ended.

mod addresses;
mod backend;
mod begin;
mod code;
pub(crate) mod counts;
mod errors;
mod facts;
mod keep;
mod live;
mod network;
mod registry;
mod relay;
mod socket;
mod tickets;
mod warm;

pub(crate) use addresses::Addresses;
pub(crate) use live::LiveError;
pub(crate) use network::{Remote, serve_remote};
pub(crate) use registry::{Entry, Registry};
pub use relay::{Carried, Duplex, Steer, carry, keep_alive};
pub(crate) use socket::{is_session, serve};
pub(crate) use tickets::Tickets;
pub(crate) use warm::Warm;
