//! The native module `atoll._native` of the Python package: connections and rings of
//! [`atoll_client`] as classes.
//!
//! The package in `python/` is what users see; it converts arrays, and names and documents
//! everything. Not here: the compiler and the daemon, which run as the program `atoll` in processes
//! of their own, so that a Python program links no LLVM.
//!
//! Start reading in `connection.rs`, then `ring.rs`.
//!
//! # Invariants
//!
//! - Only the stable ABI of Python 3.11 is used, so that one build serves all later versions. Its
//!   buffer protocol is the reason for 3.11.
//! - Other threads of the program run while a request waits. The elements of an input are only read
//!   while this thread holds the interpreter.
//! - A signal handler runs in the thread whose request waits. It can close or interrupt that connection;
//!   other methods of the connection raise an exception instead of waiting for the request.
//! - Failures are exceptions of `atoll._errors`.

mod calls;
mod connection;
mod elements;
mod errors;
mod exclusive;
mod inputs;
mod ring;

use pyo3::prelude::*;

/// Connections to a daemon.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<connection::Connection>()?;
    module.add_class::<elements::Elements>()?;
    module.add_class::<ring::Ring>()
}
