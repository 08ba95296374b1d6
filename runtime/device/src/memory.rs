//! Device memory, as the engine reaches it.

use crate::error::DeviceError;
use atoll_core::DeviceOffset;

/// Transfers between the engine and device memory. All of them wait until they are done.
///
/// # Errors
/// [`DeviceError::OutOfRange`] for an access outside the memory, [`DeviceError::DomainLost`] if the
/// process that had it is gone, [`DeviceError::Lost`] if the device is.
pub trait Memory {
    /// Writes memory that no launch in flight touches.
    fn write(&mut self, at: DeviceOffset, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Reads memory that no launch in flight writes.
    fn read(&mut self, at: DeviceOffset, bytes: &mut [u8]) -> Result<(), DeviceError>;

    /// Copies within the device's memory, where no launch in flight writes the source or touches
    /// the destination. The two do not overlap. Nothing of it passes through the host on a device
    /// whose memory is its own.
    fn copy(&mut self, from: DeviceOffset, to: DeviceOffset, bytes: u64) -> Result<(), DeviceError>;

    /// Sets `bytes` bytes to `value` in memory that no launch in flight touches.
    fn fill(&mut self, at: DeviceOffset, value: u8, bytes: u64) -> Result<(), DeviceError>;

    /// Gives pages back to the system, in memory that no launch in flight touches; all of the range
    /// reads as zero afterwards.
    fn give_back(&mut self, at: DeviceOffset, bytes: u64) -> Result<(), DeviceError> {
        self.fill(at, 0, bytes)
    }
}
