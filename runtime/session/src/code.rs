//! The driver's error numbers.

use atoll_cuda_api::error::{self, ERRORS};
use atoll_cuda_api::types::CUresult;

/// An error of the CUDA driver, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} ({number})", self.name(), number = .0)]
pub struct Code(pub CUresult);

macro_rules! codes {
    ($($name:ident),+) => {
        $(
            #[doc = concat!("`CUDA_ERROR_", stringify!($name), "`")]
            pub const $name: Code = Code(error::$name);
        )+
    };
}

impl Code {
    codes! {
        INVALID_VALUE, OUT_OF_MEMORY, NOT_INITIALIZED, DEVICE_UNAVAILABLE, NO_DEVICE, INVALID_DEVICE, INVALID_IMAGE,
        INVALID_CONTEXT, OPERATING_SYSTEM, FILE_NOT_FOUND, INVALID_HANDLE, NOT_FOUND, NOT_READY, ILLEGAL_ADDRESS,
        LAUNCH_OUT_OF_RESOURCES, CONTEXT_IS_DESTROYED, NOT_PERMITTED, NOT_SUPPORTED, SYSTEM_DRIVER_MISMATCH,
        HOST_MEMORY_ALREADY_REGISTERED, HOST_MEMORY_NOT_REGISTERED, COOPERATIVE_LAUNCH_TOO_LARGE, UNSUPPORTED_LIMIT,
        LAUNCH_FAILED, ILLEGAL_STATE, STREAM_CAPTURE_UNSUPPORTED, STREAM_CAPTURE_INVALIDATED, STREAM_CAPTURE_MERGE,
        STREAM_CAPTURE_UNMATCHED, STREAM_CAPTURE_UNJOINED, STREAM_CAPTURE_ISOLATION, STREAM_CAPTURE_IMPLICIT,
        CAPTURED_EVENT, STREAM_CAPTURE_WRONG_THREAD, GRAPH_EXEC_UPDATE_FAILURE, UNKNOWN
    }

    /// The name of the error in the driver's header.
    pub fn name(self) -> &'static str {
        ERRORS.iter().find(|(_, number)| *number == self.0).map_or("an unknown CUDA error", |(name, _)| name)
    }

    /// Whether every later call in the context fails with this error too: a kernel faulted, or the
    /// device is lost.
    pub fn is_sticky(self) -> bool {
        matches!(self.0, 700 | 702 | 709 | 710 | 714..=719 | error::MPS_RPC_FAILURE | error::MPS_CLIENT_TERMINATED)
    }
}
