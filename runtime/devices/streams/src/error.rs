//! Converts errors of drivers to device errors.

use crate::driver::DriverError;
use atoll_device::DeviceError;

/// The device error for an error of a driver.
pub fn device_error<E: DriverError>(error: &E) -> DeviceError {
    match error.is_device_lost() {
        true => DeviceError::Lost(error.fault()),
        false => DeviceError::Driver(error.to_string()),
    }
}

/// Refuses an access outside the memory.
pub(crate) fn check_range(at: u64, bytes: u64, memory_bytes: u64) -> Result<(), DeviceError> {
    match at.checked_add(bytes) {
        Some(end) if end <= memory_bytes => Ok(()),
        _ => Err(DeviceError::OutOfRange { at, bytes, memory_bytes }),
    }
}
