//! The device for AMD GPUs, on the HIP runtime. The library is loaded when a device is started
//! ([`atoll_hip`]). Queues, memory, epochs, completions and executors are those of every device on
//! streams ([`atoll_device_streams`]); this crate has the AMD-specific parts.
//!
//! **Code** is a code object of `compiler/targets/amd` for the GPU's own architecture. A launch's
//! kernarg segment is the parameter block with the hidden arguments of [`atoll_kgraph::amd_abi`]
//! behind it.
//!
//! **Lanes** are streams with a mask of compute units. On RDNA the two compute units of a workgroup
//! processor belong together.
//!
//! **Traps** end the wave that trapped. The launch fails with block, thread and line, and the
//! device continues.
//!
//! **Output.** `printf` records its format, arguments and strings in a buffer of the launch, in host
//! memory. The host formats them when the launch has ended. A launch that prints more than the
//! buffer holds loses the rest, and its report tells how many lines.
//!
//! **Faults**, such as an access to unmapped memory, end the process with most releases of ROCm.
//! With other releases all later calls return an error. So kernels that may fault belong in an
//! executor process.
//!
//! **Interruption.** REEF's runtime and kernel driver, or Atoll's patch of the kernel driver
//! (`driver-patch`), kill the waves of the process ([`HipConfig::resets_waves`]). The device tries
//! the call when it starts: if it works, the preemption level is `Interrupt`, otherwise
//! `Deactivate`. In executors, best-effort work then has a second process, whose device uses the
//! memory of the first one ([`HipConfig::memory_of`]).
//!
//! Start reading at [`HipDevice`] and [`start`].

mod config;
mod driver;
mod print;
mod shared;
mod start;

pub use atoll_hip::{KfdError, kernel_patch};
pub use config::HipConfig;
pub use driver::{Failure, Hip, Kernel};
pub use shared::KIND;
pub use start::{start, target};

/// An AMD GPU in this process.
pub type HipDevice = atoll_device_streams::StreamDevice<Hip>;
