//! A CUDA driver without a device: `libcuda.so.1` for programs whose device is elsewhere.
//!
//! A program that is started with this library in place of the driver's calls the driver API as it
//! always does. The calls are recorded, and carried out by the server whose address is in the
//! environment variable `ATOLL_SESSION` (`unix:PATH` or `HOST:PORT`), which is read once.
//! `runtime/session` says what is recorded and when the program waits.
//!
//! | file | contents |
//! |---|---|
//! | `exports` | the entry points, one file per family, generated from the table of `runtime/cuda-api` |
//! | `arguments` | pointer arguments of the program: nearly all `unsafe` code |
//! | `shim` | the state of the process: the session, contexts, host memory; forks |
//! | `contexts` | contexts, which only this side knows, and the current one of each thread |
//! | `handles` | handles for the program |
//! | `host` | pinned and registered memory of the program |
//! | `image` | how long an image of a module is |
//! | `link` | the socket |
//! | `log` | lines on standard error |
//!
//! Known differences from a driver on this machine:
//! - host memory is never mapped into the device, and there is no managed memory, no peer access,
//!   no graphs and no captures;
//! - all contexts of a process share one context on the server, so a fault in one breaks all;
//! - while a thread waits, calls of the other threads wait too;
//! - functions that a stream calls run on the thread that added them, after the stream's work;
//! - an error of a recorded call is returned by the next call that waits, and named on standard
//!   error.
//!
//! Invariants: a panic becomes `CUDA_ERROR_UNKNOWN` and does not unwind into the program; nothing
//! here ends the program. An entry point that is missing says its name once and returns
//! `CUDA_ERROR_NOT_SUPPORTED`. In a child of a fork every call returns
//! `CUDA_ERROR_NOT_INITIALIZED`, and the child's copy of the socket is closed.
//!
//! Start reading at `exports`, then `shim`.

#[cfg(not(target_os = "linux"))]
compile_error!("the library is for Linux: it is loaded under the name that the driver has there");

mod arguments;
mod contexts;
mod exports;
mod handles;
mod host;
mod image;
mod link;
mod log;
mod reserved;
mod shim;
