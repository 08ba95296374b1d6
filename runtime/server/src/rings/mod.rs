//! Rings: inference requests of programs on the daemon's machine through shared memory.
//!
//! A control connection opens a ring (`control/ring.rs`). Each ring has a thread, which takes its
//! requests, runs them like requests over HTTP, and answers them (`worker.rs`). `registry.rs` bounds
//! and counts the rings, `account.rs` bills their CPU time, `request.rs` checks one request.
//!
//! The client may overwrite the memory at any time. The thread copies each request and the elements
//! of its tensors once, and checks the copy.

pub(crate) mod account;
pub(crate) mod registry;
pub(crate) mod request;
pub(crate) mod worker;
