//! The interface to a vendor's driver.

use crate::slot::TRAP_WORDS;
use atoll_device::{DeviceError, DeviceInfo, Fault, LaunchReport, ModuleImage};
use atoll_kgraph::KernelFacts;
use std::ffi::c_void;
use std::fmt::{Debug, Display};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

/// An error of a driver.
pub trait DriverError: Debug + Display + Clone + Send + 'static {
    /// Whether the device is lost for this process: all later calls fail.
    fn is_device_lost(&self) -> bool;

    /// Whether the driver does not support the call.
    fn is_not_supported(&self) -> bool;

    /// Describes what happened to a device that is lost.
    fn fault(&self) -> String;
}

/// Grid, block and dynamic shared memory of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchShape {
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y, z.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block in bytes.
    pub shared_bytes: u32,
}

/// Addresses of what a kernel may write for the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordAddresses {
    /// The [`TrapRecord`].
    pub trap: u64,
    /// The buffer for what it prints ([`Driver::print_buffer`]); 0 for none.
    pub print: u64,
}

/// The record that a kernel writes about its first trap.
pub type TrapRecord = [u32; TRAP_WORDS];

/// A driver. Its handles keep alive the objects that they depend on, and any thread may use them.
///
/// # Errors
/// Methods return the driver's error as it is.
pub trait Driver: Debug + Sized + Send + Sync + 'static {
    /// Its errors.
    type Error: DriverError;
    /// A device in use by this process.
    type Context: Debug + Send + Sync;
    /// A set of compute units that streams can be bound to.
    type Units: Debug + Send;
    /// A stream.
    type Stream: Debug + Send;
    /// A timed event.
    type Event: Debug + Send;
    /// Memory on the device.
    type Memory: Debug + Send;
    /// Words in host memory that host and kernels access at the same time.
    type Words: Debug + Send + Sync;
    /// Memory of this process that is registered with the device.
    type Registered: Debug + Send + Sync;
    /// A kernel that is loaded.
    type Kernel: Debug + Clone + Send;

    /// Loads code, and returns its kernels in the order of the image. The caller has checked target
    /// and shared memory. Any thread may call it.
    ///
    /// # Errors
    /// [`DeviceError::BadModule`] with the reason and the remedy.
    fn load(
        context: &Arc<Self::Context>,
        info: &DeviceInfo,
        image: ModuleImage<'_>,
    ) -> Result<Vec<Self::Kernel>, DeviceError>;

    /// Prepares a kernel for launches with this much dynamic shared memory.
    fn allow_shared(_kernel: &Self::Kernel, _bytes: u32) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Blocks of a kernel that fit on a compute unit at the same time; `None` if the driver does
    /// not report it.
    fn occupancy(kernel: &Self::Kernel, threads: u32, shared_bytes: u32) -> Option<u32>;

    /// Puts a launch into a stream. `params` is the parameter block that the kernel declares.
    fn launch(
        kernel: &Self::Kernel,
        stream: &Self::Stream,
        shape: LaunchShape,
        params: &[u8],
        records: RecordAddresses,
    ) -> Result<(), Self::Error>;

    /// The fault that a trap record describes; `None` if the kernel did not trap.
    fn trap(_record: TrapRecord, _facts: &KernelFacts) -> Option<Fault> {
        None
    }

    /// Allocates a buffer for what a launch of a kernel prints; `None` if the kernel prints nothing,
    /// or prints by the driver.
    fn print_buffer(_context: &Arc<Self::Context>, _kernel: &Self::Kernel) -> Result<Option<Self::Words>, Self::Error> {
        Ok(None)
    }

    /// Moves what a launch has printed from its buffer to its report. The buffer can then be used
    /// again.
    fn take_printed(_buffer: &Self::Words, _facts: &KernelFacts, _report: &mut LaunchReport) {}

    /// A set of compute units, by their indices.
    ///
    /// # Errors
    /// [`DeviceError::Lanes`] with the reason.
    fn units(context: &Arc<Self::Context>, units: &[u32]) -> Result<Self::Units, DeviceError>;

    /// A stream on a set of compute units, or on all; a lower number is a higher priority.
    fn stream(
        context: &Arc<Self::Context>,
        units: Option<&Self::Units>,
        priority: i32,
    ) -> Result<Self::Stream, Self::Error>;

    /// Waits for all work in a stream.
    fn synchronize(stream: &Self::Stream) -> Result<(), Self::Error>;

    /// Copies bytes into device memory, and waits. The range is inside the memory, here and in the
    /// following methods.
    fn write(stream: &Self::Stream, to: &Self::Memory, at: u64, bytes: &[u8]) -> Result<(), Self::Error>;

    /// Copies bytes out of device memory, and waits.
    fn read(stream: &Self::Stream, from: &Self::Memory, at: u64, bytes: &mut [u8]) -> Result<(), Self::Error>;

    /// Copies registered memory into device memory, and waits.
    fn write_from(
        stream: &Self::Stream,
        to: &Self::Memory,
        at: u64,
        from: &Self::Registered,
        from_at: u64,
        bytes: u64,
    ) -> Result<(), Self::Error>;

    /// Copies device memory into registered memory, and waits.
    fn read_into(
        stream: &Self::Stream,
        from: &Self::Memory,
        at: u64,
        to: &Self::Registered,
        to_at: u64,
        bytes: u64,
    ) -> Result<(), Self::Error>;

    /// Copies within device memory, and waits.
    fn copy(stream: &Self::Stream, memory: &Self::Memory, from: u64, to: u64, bytes: u64) -> Result<(), Self::Error>;

    /// Sets bytes of device memory, and waits.
    fn fill(stream: &Self::Stream, memory: &Self::Memory, at: u64, value: u8, bytes: u64) -> Result<(), Self::Error>;

    /// Writes a word by an operation that needs no compute unit. Does not wait.
    fn write_word(stream: &Self::Stream, memory: &Self::Memory, at: u64, value: u32) -> Result<(), Self::Error>;

    /// Sets a word by a fill. Does not wait.
    fn fill_word(stream: &Self::Stream, memory: &Self::Memory, at: u64, value: u32) -> Result<(), Self::Error>;

    /// An event that has not been recorded.
    fn event(context: &Arc<Self::Context>) -> Result<Self::Event, Self::Error>;

    /// Records an event in a stream.
    fn record(event: &Self::Event, stream: &Self::Stream) -> Result<(), Self::Error>;

    /// Whether all work before an event has completed.
    fn is_passed(event: &Self::Event) -> Result<bool, Self::Error>;

    /// Nanoseconds from an earlier event to this one. Both have passed.
    fn nanos_since(event: &Self::Event, earlier: &Self::Event) -> Result<u64, Self::Error>;

    /// The address of device memory for kernels.
    fn address(memory: &Self::Memory) -> u64;

    /// Size of device memory in bytes.
    fn bytes(memory: &Self::Memory) -> u64;

    /// A handle by which another process opens device memory, if the driver can.
    fn share(_memory: &Self::Memory) -> Option<Vec<u8>> {
        None
    }

    /// Allocates zeroed words.
    fn words(context: &Arc<Self::Context>, count: usize) -> Result<Self::Words, Self::Error>;

    /// One of the words, for the host.
    ///
    /// # Panics
    /// If there is no such word.
    fn word(words: &Self::Words, index: usize) -> &AtomicU32;

    /// The address of the first word for kernels.
    fn words_address(words: &Self::Words) -> u64;

    /// Registers memory of this process.
    ///
    /// # Safety
    /// The `bytes` bytes at `memory` stay mapped for reading and writing until the result is
    /// dropped, and references into them are only made to atomics.
    unsafe fn register(
        context: &Arc<Self::Context>,
        memory: *mut c_void,
        bytes: u64,
    ) -> Result<Self::Registered, Self::Error>;

    /// The address of registered memory for kernels.
    fn registered_address(memory: &Self::Registered) -> u64;

    /// Kills all running blocks of this process; see [`StreamDevice`](crate::StreamDevice). Only
    /// called if the device was started with `can_reset`.
    fn reset_blocks(context: &Self::Context) -> Result<(), Self::Error>;
}
