//! A CUDA driver without a device: `libcuda.so.1` for programs whose device is on a server.
//!
//! A program that is started with this library in place of the driver's calls the driver API as
//! usual. The calls are recorded, and carried out by the server whose address is in the environment
//! variable `ATOLL_SESSION` (`unix:PATH`), which is read once. The library knows neither TLS nor
//! tokens: `atoll run` connects to servers on the network. `runtime/session`
//! describes which calls are recorded and which make the program wait.
//!
//! | file | contents |
//! |---|---|
//! | `exports` | the entry points, one file per family, generated from the table of `runtime/cuda-api` |
//! | `arguments` | pointer arguments of the program: nearly all `unsafe` code |
//! | `shim` | the state of the process: the session, contexts, host memory; forks |
//! | `work`, `boxes` | calls that are captured or are nodes of graphs; copies of rows and planes |
//! | `captures` | whether a stream is captured, and calls that a capture forbids |
//! | `pools`, `graph_memory` | pools of device memory; memory that graphs allocate |
//! | `virtual_memory` | reservations of addresses, physical memory, and mappings |
//! | `managed` | managed memory, which the program and the device use in turn |
//! | `mapped` | pinned memory that kernels and fills use by its address |
//! | `contexts` | contexts, which exist only in this library, and the current one of each thread |
//! | `private` | the driver's private tables, which NVIDIA's runtime needs |
//! | `handles` | handles for the program |
//! | `host` | pinned and registered memory of the program |
//! | `image` | the size of a module's image |
//! | `link` | the socket |
//! | `log` | lines on standard error |
//! | `audit` | directs the program's searches for CUDA libraries to this one and its neighbours |
//!
//! Known differences from a driver on this machine:
//! - Host memory is never mapped into the device: kernels get copies of pinned memory, see `mapped`.
//!   There is no peer access. Managed memory follows the rules of devices without
//!   `concurrentManagedAccess`.
//! - A launch of a graph is expanded here: the server gets the calls of its nodes one after the other
//!   in one stream. Memory that a graph allocates stays with the graph.
//! - All contexts of a process share one context on the server, so a fault in one breaks all.
//! - While a thread waits, calls of the other threads wait too.
//! - Host functions and callbacks of a stream run on the thread that adds them, after the stream's
//!   work.
//! - An error of a recorded call is returned by the next call that waits, and the recorded call is
//!   printed on standard error.
//!
//! Invariants: a panic becomes `CUDA_ERROR_UNKNOWN` and does not unwind into the program. No error
//! here ends the program. An entry point that is missing prints its name once and returns
//! `CUDA_ERROR_NOT_SUPPORTED`. In a child of a fork every call returns
//! `CUDA_ERROR_NOT_INITIALIZED`, and the child's copy of the socket is closed.
//!
//! Start reading at `exports`, then `shim`.

#[cfg(not(target_os = "linux"))]
compile_error!("the library is for Linux: it is loaded under the name that the driver has there");

mod arguments;
mod audit;
mod boxes;
mod captures;
mod contexts;
mod exports;
mod graph_memory;
mod handles;
mod host;
mod image;
mod link;
mod log;
mod managed;
mod mapped;
mod pools;
mod private;
mod reserved;
mod shim;
mod storage;
mod virtual_memory;
mod work;
