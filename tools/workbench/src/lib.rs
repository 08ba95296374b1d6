//! Runs single PTX kernels on a device: for `atoll kernel`, and for tests with kernels of other
//! compilers.
//!
//! A [`KernelDevice`] loads a kernel for a block shape and launches it on buffers. The caller owns
//! the buffers: a launch copies their contents to the device and copies back what the kernel wrote.
//! So the same launch can run on any two devices and be compared.
//!
//! - `HostBench`: the host device with native code (`compiler/targets/host`,
//!   `runtime/devices/host`), if the program was built with LLVM;
//! - `CudaBench`: an NVIDIA GPU, if the program was built with the feature `cuda`;
//! - `AmdBench`: code objects for AMD GPUs in their interpreter (`tests/amd-interp`), if the
//!   program was built with the feature `amd`;
//! - [`InterpBench`]: the interpreter of PTX (`compiler/interp`), the oracle of all others.
//!
//! Kernels to compare devices on are included, because the program is also used on machines without
//! build tools: kernels of other compilers ([`corpus`]), random kernels ([`random_kernel`]), and
//! the comparison itself ([`compare`]).
//!
//! Not here: a runtime. There is one launch at a time, without sharing or scheduling. Functions and
//! models go through the engine.
//!
//! Start reading in `launch.rs`, then `device.rs`.

#[cfg(feature = "amd")]
mod amd;
mod appended;
mod bind;
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

#[cfg(feature = "amd")]
pub use amd::{AmdBench, AmdKernel, Architecture as AmdArchitecture};
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
