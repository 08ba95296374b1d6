//! Errors of calls.

/// A call that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {name} ({code})")]
pub struct HipError {
    /// The function of the library.
    pub call: &'static str,
    /// The library's error number.
    pub code: i32,
    /// The name of the error; `unknown error` if neither the table nor the library has this number.
    pub name: String,
}

/// Error numbers of the library.
pub use atoll_hip_api::error as status;

impl HipError {
    /// An error of the table for a call that this crate did not make.
    pub(crate) fn of(call: &'static str, code: i32) -> HipError {
        HipError { call, code, name: status::name(code).unwrap_or("unknown error").to_owned() }
    }

    /// Whether the device is lost for this process, since a kernel faulted: all later calls fail,
    /// and only a new process can use the device. Many releases of ROCm end the process instead.
    pub fn is_device_lost(&self) -> bool {
        matches!(
            self.code,
            status::ILLEGAL_ADDRESS
                | status::LAUNCH_TIME_OUT
                | status::CONTEXT_IS_DESTROYED
                | status::ASSERT
                | status::LAUNCH_FAILURE
        )
    }

    /// Whether memory ran out.
    pub fn is_out_of_memory(&self) -> bool {
        self.code == status::OUT_OF_MEMORY
    }
}
