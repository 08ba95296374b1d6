//! Sessions of CUDA programs.

use atoll_core::{Class, Tenant};
use serde::{Deserialize, Serialize};

/// An open session of a CUDA program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CudaSessionReport {
    /// Its number.
    pub session: u64,
    /// The tenant that the program acts for.
    pub tenant: Tenant,
    /// The class of its work.
    pub class: Class,
    /// The device that it is or was on.
    pub device: String,
    /// Bytes of device memory that the program can allocate.
    pub memory_bytes: u64,
    /// Where its memory is.
    pub state: CudaSessionState,
    /// For how long no work of it has run, in seconds. `None` if work is running, or if the memory is
    /// not on the device.
    pub idle_s: Option<f64>,
    /// Functions that it has stored: runs that it sends as one call.
    #[serde(default)]
    pub stored_functions: u64,
    /// Runs that were sent as a call of a stored function.
    #[serde(default)]
    pub stored_calls: u64,
    /// Runs that differed from a stored function and were sent as their calls.
    #[serde(default)]
    pub stored_differences: u64,
}

/// Where the memory of a session is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CudaSessionState {
    /// On the device, and work is running.
    Running,
    /// On the device.
    Idle,
    /// On its way to host memory.
    Suspending,
    /// In host memory. The program's next call brings it back.
    Suspended,
}
