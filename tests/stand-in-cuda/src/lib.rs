//! A stand-in for NVIDIA's `libcuda`, for the tests: a shared library with the driver's entry
//! points under their real names, which executes kernels for real, on the host device.
//!
//! It is no mock. PTX given to `cuModuleLoadData` is parsed, lowered by `compiler/targets/host` and
//! run by the compute units of `runtime/device`'s host device; streams are threads that
//! work in order, and beside each other; memory, copies, events, captured graphs and errors behave
//! as the driver's reference says. So whatever drives a GPU through the driver can be tested
//! without one, its error paths included. It is a test part: its device is called `stand-in`, and
//! nothing ships it.
//!
//! | file | what |
//! |---|---|
//! | `options` | what the environment variable `ATOLL_STAND_IN_CUDA` asks for: sizes, and failures on demand |
//! | `status` | the driver's error codes |
//! | `driver` | everything there is one of: options, devices, tables of handles |
//! | `context`, `life` | contexts, and what a fault does to them |
//! | `memory` | who has which addresses |
//! | `module`, `code` | PTX text, its variables, and its kernels as native code per block shape |
//! | `device`, `green` | the host device, launches on it, and parts of it |
//! | `stream`, `work` | queues of work, and what one piece of it does |
//! | `event`, `moment`, `graph` | moments in streams; work that was captured |
//! | `mps` | whose client the process is, and with which share of the compute units |
//! | `exports` | the entry points, one file per family: the border, which checks every pointer and handle once |
//! | `raw`, `host_call` | memory by its address, and functions of the program: with `exports::arguments` the only `unsafe` code |
//!
//! How it differs from a GPU, knowingly:
//! - a compute unit runs one block at a time, and that is what the occupancy calculator says;
//! - kernels see all memory of the process, as on a GPU that shares page tables with the host;
//!   addresses that nobody has mapped fault, and so do those of memory that was freed;
//! - a kernel is compiled when it is first launched with a block shape, within the launch;
//! - a captured graph runs in the order in which it was captured, one node after the other;
//! - there are no textures, no peers, no managed memory that migrates, no machine code: a cubin is
//!   refused as code for another GPU;
//! - a parameter block has 4,096 bytes at most.

#[cfg(not(target_os = "linux"))]
compile_error!("the stand-in driver is for Linux: it is loaded under the name that the driver has there");

mod code;
mod context;
mod device;
mod driver;
mod event;
mod exports;
mod graph;
mod green;
mod host_call;
mod life;
mod memory;
mod module;
mod moment;
mod mps;
mod options;
mod raw;
mod say;
mod status;
mod stream;
mod table;
mod work;
