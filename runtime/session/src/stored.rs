//! Stored functions: a message whose calls the client sends again and again is kept on the server.
//! The next time, the client sends its number and the fields that differ.
//!
//! The unit is a *run*: the records of one message, that is, the calls between two points at which
//! the program waits. The kinds and sizes of its records are its *shape*. Fields that differed
//! between runs of a shape are *inputs*; all other bytes are constants.
//!
//! | file | contents |
//! |---|---|
//! | `layout` | shapes of messages, and [`Places`]: the inputs of a function |
//! | `repeats` | [`Repeats`]: what a client has sent, and in which form it sends the next message |
//! | `shelf` | [`Shelf`]: the functions that a server has for a session |
//! | `offer` | [`Offer`]: what a server allows, and what it knows of earlier sessions |
//!
//! Invariants:
//! - The client compares each run with the function before it calls it: outside the inputs, all bytes
//!   must be equal. So the server carries out the very records that the program made, with the same
//!   checks, in the same order, on the same memory. Nothing has to be known about kernels.
//! - Server and client have the same functions: a number that the server does not have ends the
//!   session.

mod layout;
mod offer;
mod repeats;
mod shelf;
#[cfg(test)]
mod tests;

pub use layout::Places;
pub use offer::{KnownShape, Offer};
pub(crate) use repeats::Repeats;
pub(crate) use shelf::Shelf;
