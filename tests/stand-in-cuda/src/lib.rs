//! A stand-in for NVIDIA's `libcuda`, for tests: a shared library that exports the driver's entry
//! points under their real names and executes kernels on the host device.
//!
//! It is not a mock: PTX passed to `cuModuleLoadData` is parsed, lowered by
//! `compiler/targets/host`, and run by the compute units of the host device. Each stream is a
//! thread that performs its operations in order; streams run concurrently. Memory, copies, events,
//! captured graphs and errors behave as the driver's reference specifies. Code that uses the driver
//! can therefore be tested without a GPU, including its error paths. Only tests use the stand-in;
//! its device is called `stand-in`.
//!
//! | file | contents |
//! |---|---|
//! | `options` | the environment variable `ATOLL_STAND_IN_CUDA`: sizes, and failures on demand |
//! | `status` | the driver's error codes |
//! | `visible` | the GPUs, or the MIG instance, that the process sees |
//! | `driver` | state of the process: options, devices, tables of handles |
//! | `context`, `fault_state` | contexts, and the effect of faults on them |
//! | `memory`, `ipc` | the table of allocations, and memory that processes share by handles |
//! | `module`, `code` | PTX, its variables, and its kernels as native code per block shape |
//! | `device`, `green` | the host device, launches on it, and parts of it |
//! | `stream`, `work` | streams, and the operations in them |
//! | `event`, `marker`, `graph` | events, the points in streams that they mark, and captured work |
//! | `mps` | the process as a client of MPS, and its share of the compute units |
//! | `exports` | the entry points, one file per family; they check every pointer and handle once |
//! | `raw`, `host_call` | memory by address, functions of the program (nearly all `unsafe` code) |
//!
//! Known differences from a GPU:
//! - A compute unit runs one block at a time, and the occupancy functions report that.
//! - Kernels see all memory of the process, as on a GPU that shares page tables with the host.
//!   Accesses to unmapped and to freed memory fault.
//! - A kernel is compiled when it is first launched with a block shape, during the launch.
//! - A captured graph runs its nodes one after the other, in the order of the capture.
//! - A handle of memory works for the device with the same number, in processes of the same user.
//! - There are no textures, no peer access, no managed memory that migrates, and no machine code. A
//!   cubin is refused as code for another GPU; of a fat binary only the PTX is used.
//! - A parameter block has at most 4,096 bytes.
//!
//! Invariants: a call with an unknown handle fails; handles are never reused; a panic does not
//! unwind into the program.
//!
//! Start reading at `exports`, then `driver`.

#[cfg(not(target_os = "linux"))]
compile_error!("the stand-in driver is for Linux: it is loaded under the name that the driver has there");

mod code;
mod context;
mod device;
mod driver;
mod event;
mod exports;
mod fault_state;
mod graph;
mod green;
mod host_call;
mod ipc;
mod log;
mod marker;
mod memory;
mod module;
mod mps;
mod options;
mod raw;
mod status;
mod stream;
mod table;
mod visible;
mod work;
