//! The protocol of the control socket: deploy functions, call them, keep objects.
//!
//! A connection carries one request at a time, and each request gets one answer. A [`Frame`]
//! consists of a head of 16 bytes, a message in JSON, a body of raw bytes, and open files. Small
//! tensors and bundles go into the body. Large ones go into sealed memory files ([`atoll_sealed`]),
//! which are passed as file descriptors and never copied through the socket. Messages are JSON
//! because they are small (a few hundred bytes), readable while debugging, and supported by every
//! language.
//!
//! | bytes | field of the head |
//! |---|---|
//! | 4 | magic `ATLC` |
//! | 2 | version of the protocol (little-endian, like all numbers here) |
//! | 2 | number of files |
//! | 4 | size of the message |
//! | 4 | size of the body |
//!
//! Not here: access control (`atoll_server`), and waiting for sockets, which client and daemon do
//! in different ways.
//!
//! Start reading in `message.rs` (requests and answers), then `frame.rs`.
//!
//! # Invariants
//!
//! - Memory grows with the bytes that have arrived, never with announced lengths, and stays within
//!   [`limits`].
//! - Files that no message refers to are closed.
//! - Files that carry contents must be sealed, so that they cannot change. The only other file is
//!   the memory of a ring, which the daemon creates.

mod admission;
mod blob;
mod cuda_sessions;
mod deferred;
mod devices;
mod frame;
mod functions;
mod graph;
mod instances;
mod leases;
pub mod limits;
mod message;
mod objects;
mod refusal;
mod ring;
mod socket;
mod status;
mod trace;
mod usage;

pub use admission::*;
pub use blob::{Attachments, Blob, Content};
pub use cuda_sessions::*;
pub use deferred::*;
pub use devices::*;
pub use frame::{Frame, Incoming, Outgoing, Progress, VERSION, WireError};
pub use functions::*;
pub use graph::{GraphReport, GraphStage, VersionEntry};
pub use instances::*;
pub use leases::*;
pub use message::*;
pub use objects::*;
pub use refusal::*;
pub use ring::*;
pub use socket::default_socket;
pub use status::*;
pub use trace::*;
pub use usage::*;
