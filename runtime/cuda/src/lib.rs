//! The CUDA driver, loaded at run time: the build needs no CUDA toolkit.
//!
//! - [`Driver`]: the loaded library. [`functions`](self) lists the entry points in use; their types
//!   come from the table of `runtime/cuda-api`.
//! - [`Gpu`]: a device by its ordinal or its [id](Gpu::id), not yet in use. [`Context`]: its primary
//!   context, retained, or a context of its own.
//! - [`GpuList`]: the GPUs of the machine and their MIG instances, by NVML if it is installed.
//! - [`Partition`]: some of its compute units. [`Module`], [`Kernel`], [`Stream`], [`Event`],
//!   [`Graph`], [`DeviceMemory`], [`Variable`], [`HostWords`], [`HostMemory`], [`BarWords`]: owning
//!   handles. Each keeps alive the objects that it depends on.
//!
//! What it is not: it has no scheduling, no policy and no retries. Every call returns the driver's
//! error, by number and name.
//!
//! Invariants: a handle is destroyed once, by its owner. Any thread may use any handle: each call
//! makes the context current on its thread if needed. The driver does not use borrowed host memory
//! beyond the call, except [`HostWords`], [`HostMemory`] and [`BarWords`], which are accessed
//! through atomics only. Kernels may write device memory and host words at any time.
//!
//! Start reading at [`Driver`], then [`Context`] and [`Stream`].

mod bar;
mod context;
mod driver;
mod error;
mod functions;
mod graph;
mod id;
mod list;
mod memory;
mod module;
mod nvml;
mod partition;
mod range;
mod stream;

pub use bar::{BarError, BarWords};
pub use context::Context;
pub use driver::{Attribute, ComputeMode, Driver, Gpu, OpenError};
pub use error::{CudaError, status};
pub use graph::{Graph, GraphLaunch};
pub use list::{GpuList, ListedGpu, Mig};
pub use memory::{DeviceMemory, DevicePtr, HostMemory, HostWords, OutOfBounds, TransferError};
pub use module::{Arg, Kernel, LaunchShape, LoadError, Module, Variable};
pub use nvml::NvmlError;
pub use partition::{Partition, PartitionError};
pub use range::{DeviceRange, Element};
pub use stream::{Event, Stream};

/// Kernels that measure how fast a flag reaches a kernel (`echo`), and the cost of reading it
/// (`read_chain`). Their parameters are declared in the PTX.
pub const FLAG_PTX: &str = include_str!("../kernels/flag.ptx");
