//! The common half of NVIDIA's libraries that Atoll provides with kernels of its own: `runtime/cublas`
//! and `runtime/cudnn`. The CUDA runtime (`runtime/cudart`), which has no kernels, uses `driver`,
//! `loaded` and `log`.
//!
//! Such a library has the C interface of NVIDIA's and calls only the public driver API. It fills in
//! templates of PTX and loads them into the program's context through the driver that it finds as
//! `libcuda.so.1`.
//!
//! | file | contents |
//! |---|---|
//! | `enter` | declares entry points, and keeps panics out of the program |
//! | `handle` | handles: context, stream, settings, loaded kernels |
//! | `template` | fills in templates of kernels |
//! | `number` | types of numbers in memory |
//! | `arguments` | pointer arguments of the program |
//! | `driver` | the driver's library, generated from the table of `runtime/cuda-api` |
//! | `loaded` | which libraries the process has loaded |
//! | `status` | results of calls, which each library numbers in its own way |
//! | `log` | lines on standard error |
//!
//! Invariants: nothing here unwinds into the program or ends it. No kernel is loaded before it is
//! first used with a handle.
//!
//! Start reading at `handle`.

#[cfg(not(target_os = "linux"))]
compile_error!("the libraries are for Linux: they are loaded under the names that NVIDIA's have there");

#[cfg(not(target_endian = "little"))]
compile_error!("parameters of kernels are stored as 64-bit numbers");

mod arguments;
mod driver;
mod enter;
mod handle;
mod loaded;
mod log;
mod number;
mod status;
mod template;

#[doc(hidden)]
pub use atoll_cuda_api::types::CUstream;

pub use arguments::{At, pointer};
pub use driver::{Driver, DriverError, driver};
pub use enter::enter;
pub use handle::{Call, HandleId, Handles, Kernels, State, current_context};
pub use loaded::{is_loaded, loaded};
pub use log::{log, log_once, missing, refused};
pub use number::{Number, half};
pub use status::Status;
pub use template::{TARGET, Variables, fill_in};
