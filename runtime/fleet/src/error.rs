//! Why a fleet cannot start.

use atoll_core::limits::DEVICES_MAX;
use atoll_engine::EngineError;

/// Why a fleet cannot start.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    /// There is no device.
    #[error("a daemon needs at least one device")]
    NoDevice,
    /// There are too many devices.
    #[error("{0} devices are too many; a daemon drives at most {DEVICES_MAX}")]
    TooMany(usize),
    /// Two devices have the same name.
    #[error("device {0} is listed twice; list each device once")]
    Twice(String),
    /// A thread of the fleet cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] std::io::Error),
    /// The engine of a device cannot start.
    #[error("cannot start the engine of {device}: {source}")]
    Engine {
        /// The device.
        device: String,
        /// Why.
        source: EngineError,
    },
}
