//! One kernel of a PTX text, run on a device: how a user tries a kernel on a laptop, and how the
//! tests run kernels nobody here wrote.
//!
//! A [`KernelDevice`] loads a kernel for a block shape and launches it on buffers. Buffers live
//! with the caller: a launch takes their content to the device and brings back what the kernel
//! wrote, so any two devices can be asked the same thing and compared.
//!
//! - `HostBench`: the host device, native code (`compiler/targets/host` below `runtime/device`),
//!   where the program was built with LLVM;
//! - `CudaBench`: an NVIDIA GPU, where the program was built with the feature `cuda`;
//! - [`InterpBench`]: the interpreter (`compiler/interp`), the oracle of everything else.
//!
//! What they are compared on is here too, because a program carries it to machines where nothing is
//! built: kernels of other compilers ([`corpus`]) and random ones ([`random_kernel`]), and the
//! comparison itself ([`compare`]).
//!
//! What it is not: a runtime. One launch at a time, nothing is shared, nothing is scheduled;
//! functions and models go through the engine.

mod appended;
mod block;
mod compare;
pub mod corpus;
#[cfg(feature = "cuda")]
mod cuda;
mod device;
mod error;
mod fence;
#[cfg(feature = "host")]
mod host;
mod interp;
mod launch;
mod random;
pub mod random_kernel;

pub use block::{ParameterBlock, parameter_count};
pub use compare::{Agreement, Difference, NotRun, Runner, Verdict, compare};
#[cfg(feature = "cuda")]
pub use cuda::{CudaBench, CudaMachine};
pub use device::{Compiled, DeviceBench, Evictions, LoadedKernel, Machine};
pub use error::BenchError;
pub use fence::Fence;
#[cfg(feature = "host")]
pub use host::{HostBench, HostMachine, HostOptions};
pub use interp::{InterpBench, InterpKernel, InterpLaunch};
pub use launch::{Arg, Buffer, Inputs, Kernel, KernelDevice, Launch, Outcome, REPEAT_MAX, without_others};
