//! The C interface of rings: `libatoll_ring_c.so`, declared in `include/atoll_ring.h`.
//!
//! It converts C types to those of [`atoll_client`], which does the work.
//!
//! Start reading in `include/atoll_ring.h`, then `exports.rs`.
//!
//! # Invariants
//!
//! - A panic becomes `ATOLL_INTERNAL` and does not unwind into the program.
//! - Null pointers are refused where the header does not allow them. Other pointers are trusted, as
//!   in every C interface.

mod exports;
mod status;
mod types;
