//! What crosses the control socket: deploying functions, calling them, keeping objects.
//!
//! A connection carries one request at a time, each answered once. A [`Frame`] is a head of 16
//! bytes, a message in JSON, a body of raw bytes, and open files. Messages are small; tensors and
//! bundles go into the body while they are small too, and otherwise into sealed memory files
//! ([`atoll_sealed`]) that are passed along, so that nothing large is ever copied through a socket.
//! JSON because whoever debugs a socket can read it, because every language has it, and because a
//! message is a few hundred bytes.
//!
//! | bytes | of the head |
//! |---|---|
//! | 4 | `ATLC` |
//! | 2 | version of the protocol, little-endian like all that follows |
//! | 2 | how many files come with the frame |
//! | 4 | size of the message |
//! | 4 | size of the body |
//!
//! Not here: who may do what, and sockets that are waited for; both sides bring their own way of
//! waiting.
//!
//! # Invariants
//!
//! - Whatever a peer sends, memory grows by what has arrived, never by what was announced, and to
//!   no more than [`limits`] say.
//! - A file that a message does not name is closed.

mod blob;
mod frame;
pub mod limits;
mod message;
mod socket;
mod status;
mod trace;
mod usage;

pub use blob::{Attachments, Blob, Content};
pub use frame::{Frame, Incoming, Outgoing, Progress, VERSION, WireError};
pub use message::*;
pub use socket::default_socket;
pub use status::*;
pub use trace::*;
pub use usage::*;
