//! Compares kernels, compiled and assembled by LLVM's tools, with the same operations in Rust.

#![expect(clippy::print_stderr, reason = "a skipped check and the seed must be seen")]

mod assembly;
mod control;
mod floats;
mod integers;
mod matrix;
mod memory;
mod numeric;
mod tools;
