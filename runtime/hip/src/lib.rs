//! AMD's HIP runtime, loaded at run time: the build needs no ROCm.
//!
//! - [`Driver`]: the loaded library, of ROCm 5, 6 or 7. [`functions`](self) lists the entry points
//!   in use; their types come from the table of `runtime/hip-api`.
//! - [`Gpu`]: a device by its ordinal, not yet in use. [`Context`]: a device in use by this
//!   process.
//! - [`CodeObject`]: what the header of a code object says.
//! - [`Module`], [`Kernel`], [`Stream`], [`UnitMask`], [`Event`], [`DeviceMemory`],
//!   [`HostWords`], [`HostMemory`]: owning handles. Each keeps alive the objects that it depends
//!   on.
//!
//! What it is not: it has no scheduling, no policy and no retries. Every call returns the library's
//! error, by number and name.
//!
//! Invariants: a handle is destroyed once, by its owner. Any thread may use any handle: each call
//! makes the device current on its thread if needed. The library does not use borrowed host memory
//! beyond the call, except [`HostWords`] and [`HostMemory`], which are accessed through atomics
//! only. Kernels may write device memory and host words at any time.
//!
//! Start reading at [`Driver`], then [`Context`] and [`Stream`].

mod code_object;
mod context;
mod driver;
mod error;
mod functions;
mod gpu;
mod kfd;
mod memory;
mod module;
mod stream;
mod units;

pub use code_object::{CodeObject, Damage, Feature, Mismatch};
pub use context::Context;
pub use driver::{Driver, OpenError};
pub use error::{HipError, status};
pub use gpu::Gpu;
pub use kfd::{KfdError, kernel_patch};
pub use memory::{DeviceMemory, DevicePtr, HostMemory, HostWords, MemoryHandle};
pub use module::{Kernel, LaunchShape, Module};
pub use stream::{Event, Stream};
pub use units::UnitMask;
