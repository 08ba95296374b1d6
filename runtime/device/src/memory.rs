//! Device memory, as the engine accesses it.

use crate::error::DeviceError;
use atoll_core::DeviceOffset;

/// Transfers between the engine and device memory. All methods return when the transfer is done.
///
/// # Errors
/// [`DeviceError::OutOfRange`] for an access outside the memory, [`DeviceError::DomainLost`] if the
/// process that had the memory is gone, [`DeviceError::Lost`] if the device is lost.
pub trait Memory {
    /// Writes memory that no launch in flight touches.
    fn write(&mut self, at: DeviceOffset, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Reads memory that no launch in flight writes.
    fn read(&mut self, at: DeviceOffset, bytes: &mut [u8]) -> Result<(), DeviceError>;

    /// Copies within device memory. No launch in flight may write the source or touch the
    /// destination, and the two do not overlap. On a device with memory of its own, the data does
    /// not pass through the host.
    fn copy(&mut self, from: DeviceOffset, to: DeviceOffset, bytes: u64) -> Result<(), DeviceError>;

    /// Sets `bytes` bytes to `value` in memory that no launch in flight touches.
    fn fill(&mut self, at: DeviceOffset, value: u8, bytes: u64) -> Result<(), DeviceError>;

    /// Returns pages to the system, in memory that no launch in flight touches. The whole range
    /// reads as zero afterwards.
    fn give_back(&mut self, at: DeviceOffset, bytes: u64) -> Result<(), DeviceError> {
        self.fill(at, 0, bytes)
    }
}
