//! A stand-in for AMD's `libamdhip64`, for tests: a shared library that exports the entry points of
//! `runtime/hip-api` under their real names and executes code objects by interpretation.
//!
//! It is not a mock: an ELF file passed to `hipModuleLoadData` is the code object that a GPU would
//! load, and `atoll-amd-interp` executes its instructions. Streams, memory, copies, events, masks
//! of compute units, memory shared between processes, and faults behave as AMD's reference
//! specifies. Only tests use the stand-in; its device is called `stand-in`.
//!
//! | file | contents |
//! |---|---|
//! | `options` | the environment variable `ATOLL_STAND_IN_HIP`: architecture, sizes, faults |
//! | `status` | the library's error numbers |
//! | `space` | memory: of devices, pinned, registered, of other processes; nearly all `unsafe` code |
//! | `device` | a device: its streams and the thread that runs their work |
//! | `machine` | launches on compute units, workgroup by workgroup |
//! | `work` | the operations of streams, and events |
//! | `runtime` | state of the process: devices and tables of handles |
//! | `ipc` | passes device memory to other processes |
//! | `kfd` | the ioctls of Atoll's patch of the kernel driver, as a function |
//! | `exports` | the entry points; they check every pointer and handle once |
//!
//! Known differences from a GPU:
//! - One thread runs all work of a device. It interleaves the resident workgroups, a few
//!   instructions at a time. Results are those of a GPU, times are not.
//! - Every compute unit holds `machine::RESIDENT` workgroups, whatever resources they need.
//! - All memory of the process that the library knows has the same address for host and device. An
//!   access to other memory faults.
//! - There are no textures, graphs, peer access, managed memory or variables by name.
//!
//! Invariants: a call with an unknown handle fails; handles are never reused; a panic does not
//! unwind into the program.
//!
//! Start reading at `exports`, then `device`.

#[cfg(not(target_os = "linux"))]
compile_error!("the stand-in is for Linux: it is loaded under the name that the library has there");

mod device;
mod exports;
mod ipc;
mod kfd;
mod machine;
mod options;
mod runtime;
mod space;
mod status;
mod work;
