//! What goes wrong on a device.

use crate::shm;

/// What went wrong on a device.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The module cannot be loaded; the text says why.
    #[error("cannot load the module: {0}")]
    BadModule(String),
    /// There is no such device, or it cannot be used; the text says why and what helps.
    #[error("{0}")]
    Unavailable(String),
    /// The device's driver refused a call that should have worked; its own words.
    #[error("the device's driver refuses: {0}")]
    Driver(String),
    /// The device is gone: a sticky error, a dead executor.
    #[error("the device is lost: {0}")]
    Lost(String),
    /// The part of the device that had this memory or was to run this is gone; the rest goes on.
    #[error("{0}")]
    DomainLost(String),
    /// Lanes cannot be as they are asked for; the text says why.
    #[error("{0}")]
    Lanes(String),
    /// An access outside the device's memory: the caller's mistake.
    #[error("{bytes} bytes at {at} lie outside the device's {memory_bytes} bytes of memory")]
    OutOfRange {
        /// Offset of the access.
        at: u64,
        /// Its size.
        bytes: u64,
        /// Size of the memory.
        memory_bytes: u64,
    },
    /// The operating system refused something.
    #[error("{what}: {source}")]
    Os {
        /// What was tried.
        what: &'static str,
        /// Its answer.
        source: std::io::Error,
    },
}

impl From<shm::OutOfRange> for DeviceError {
    fn from(error: shm::OutOfRange) -> DeviceError {
        DeviceError::OutOfRange { at: error.at, bytes: error.bytes, memory_bytes: error.region_bytes }
    }
}

/// Why a command was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The device queue holds as many launches as it may.
    #[error("the device queue is full")]
    Full,
    /// The device is lost.
    #[error("the device is lost")]
    Lost,
}
