//! The CUDA driver, loaded when a program runs: nothing of CUDA is needed to build.
//!
//! - [`Driver`]: the library and its entry points, of which [`functions`](self) names those that
//!   are used; their types come from the table of `runtime/cuda-api`.
//! - [`Gpu`]: a device as the driver counts them, before anything is done with it; [`Context`]: its
//!   primary context, retained.
//! - [`Partition`]: some of its compute units. [`Module`], [`Kernel`], [`Stream`], [`Event`],
//!   [`Graph`], [`DeviceMemory`], [`HostWords`], [`HostMemory`], [`BarWords`]: owning handles, each
//!   of which keeps alive what it needs.
//!
//! What it is not: it schedules nothing, chooses nothing and retries nothing. Every call says what
//! the driver answered, by number and name.
//!
//! Invariants: a handle is destroyed once, by its owner. Any thread may use any handle: the context
//! is made current where it is not. No call of the host's memory by the driver outlives the
//! borrow it was given, except [`HostWords`], [`HostMemory`] and [`BarWords`], to which there are
//! no references but to atomics. What a kernel does to device memory and to host words is the
//! kernel's business, as it is on any device.

mod bar;
mod context;
mod driver;
mod error;
mod functions;
mod graph;
mod memory;
mod module;
mod partition;
mod stream;

pub use bar::{BarError, BarWords};
pub use context::Context;
pub use driver::{Attribute, ComputeMode, Driver, Gpu, OpenError};
pub use error::{CudaError, status};
pub use graph::{Graph, GraphLaunch};
pub use memory::{DeviceMemory, DevicePtr, HostMemory, HostWords, OutOfBounds, TransferError};
pub use module::{Arg, Kernel, LaunchShape, LoadError, Module};
pub use partition::{Partition, PartitionError};
pub use stream::{Event, Stream};

/// Kernels that measure how fast a flag reaches a kernel (`echo`), and what it costs to read it
/// (`read_chain`); their parameters stand in the text.
pub const FLAG_PTX: &str = include_str!("../kernels/flag.ptx");
