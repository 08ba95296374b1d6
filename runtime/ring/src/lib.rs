//! The ring: inference requests of a program on the daemon's machine through shared memory.
//!
//! A client asks for a ring over the control socket (`atoll_control::Request::OpenRing`). The
//! daemon creates the memory, seals its size, and passes it to the client. The memory holds two
//! rings of records, requests and answers, and an arena for the tensors:
//!
//! | part | bytes |
//! |---|---|
//! | the daemon's bell, the client's bell, and the word that says that the ring is closed | 4096 |
//! | requests, [`limits::SLOT_BYTES`] each | see [`Layout`] |
//! | answers, the same | see [`Layout`] |
//! | arena | as requested |
//!
//! A record has the number of the request, which the client chooses, and a message of names, types,
//! shapes and places in the arena ([`Call`], [`Reply`]). Each side spins for a while for the next
//! record and then sleeps on a futex ([`Spin`]); no system call is made while both are awake.
//!
//! Not here: the checks of tensors and the execution (`atoll_server`), and the connection that a
//! ring belongs to (`atoll_client`). The types of the rings, the shared memory and the bells are
//! those that an engine and its compute units use ([`atoll_device`]).
//!
//! Start reading in `layout.rs`, then `message.rs`.
//!
//! # Invariants
//!
//! - The daemon copies a record and the elements of a tensor once, and checks and uses the copy.
//!   What the client writes later has no effect.
//! - All places and sizes that the peer states are checked before they are used. A wrong index ends
//!   the ring; a wrong message is answered with an error.
//! - A client has at most as many requests without an answer as the ring has slots. If there is no
//!   slot for an answer, because the client takes none, the ring ends.

mod client;
mod daemon;
mod layout;
pub mod limits;
mod memory;
mod message;
mod spin;

pub use client::{ClientEnd, SendError};
pub use daemon::{DaemonBell, DaemonEnd, Taken};
pub use layout::{BadLayout, Layout};
pub use memory::{BadSpan, RingError};
pub use message::{BadMessage, Call, Done, Failure, Place, Reply, Request, Span};
pub use spin::Spin;
