//! Errors of devices.

use crate::shm;

/// An error of a device.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The module cannot be loaded; the text gives the reason.
    #[error("cannot load the module: {0}")]
    BadModule(String),
    /// The device does not exist or cannot be used; the text gives the reason and the remedy.
    #[error("{0}")]
    Unavailable(String),
    /// A driver call failed unexpectedly; the text is the driver's.
    #[error("the device's driver refuses: {0}")]
    Driver(String),
    /// The device is lost: after a sticky error, or because its executor died.
    #[error("the device is lost: {0}")]
    Lost(String),
    /// The domain whose memory or modules were used has lost its process; the rest of the device
    /// works.
    #[error("{0}")]
    DomainLost(String),
    /// The lane cannot be opened or closed; the text gives the reason.
    #[error("{0}")]
    Lanes(String),
    /// An access outside device memory: a mistake of the caller.
    #[error("{bytes} bytes at {at} lie outside the device's {memory_bytes} bytes of memory")]
    OutOfRange {
        /// Offset of the access.
        at: u64,
        /// Its size.
        bytes: u64,
        /// Size of the memory.
        memory_bytes: u64,
    },
    /// A system call failed.
    #[error("cannot {what}: {source}")]
    Os {
        /// What was attempted, such as `reserve device memory`.
        what: &'static str,
        /// The system's error.
        source: std::io::Error,
    },
}

impl From<shm::OutOfRange> for DeviceError {
    fn from(error: shm::OutOfRange) -> DeviceError {
        DeviceError::OutOfRange { at: error.at, bytes: error.bytes, memory_bytes: error.region_bytes }
    }
}

/// Why a launch was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The device queue holds its maximum number of launches.
    #[error("the device queue is full")]
    Full,
    /// The device is lost.
    #[error("the device is lost")]
    Lost,
}
