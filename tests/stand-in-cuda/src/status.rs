//! The driver's error codes.

/// Declares the codes: variant, number, the driver's name, its words.
macro_rules! statuses {
    ($($variant:ident = $number:literal $name:literal $text:literal;)+) => {
        /// Why a call failed, by the numbers of `cuda.h`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
        #[repr(u32)]
        pub(crate) enum Status {
            $(#[error($text)] $variant = $number,)+
        }

        impl Status {
            /// The status of a number.
            pub(crate) fn of_number(number: u32) -> Option<Status> {
                [$(Status::$variant),+].into_iter().find(|status| *status as u32 == number)
            }

            /// Its name and its words, zero-terminated.
            pub(crate) fn texts(number: u32) -> Option<(&'static str, &'static str)> {
                match number {
                    0 => Some(("CUDA_SUCCESS\0", "no error\0")),
                    $($number => Some((concat!($name, "\0"), concat!($text, "\0"))),)+
                    _ => None,
                }
            }
        }
    };
}

statuses! {
    InvalidValue = 1 "CUDA_ERROR_INVALID_VALUE" "invalid argument";
    OutOfMemory = 2 "CUDA_ERROR_OUT_OF_MEMORY" "out of memory";
    NotInitialized = 3 "CUDA_ERROR_NOT_INITIALIZED" "initialization error";
    Deinitialized = 4 "CUDA_ERROR_DEINITIALIZED" "driver shutting down";
    DeviceUnavailable = 46 "CUDA_ERROR_DEVICE_UNAVAILABLE" "CUDA-capable device(s) is/are busy or unavailable";
    NoDevice = 100 "CUDA_ERROR_NO_DEVICE" "no CUDA-capable device is detected";
    InvalidDevice = 101 "CUDA_ERROR_INVALID_DEVICE" "invalid device ordinal";
    InvalidImage = 200 "CUDA_ERROR_INVALID_IMAGE" "device kernel image is invalid";
    InvalidContext = 201 "CUDA_ERROR_INVALID_CONTEXT" "invalid device context";
    MapFailed = 205 "CUDA_ERROR_MAP_FAILED" "mapping of buffer object failed";
    AlreadyMapped = 208 "CUDA_ERROR_ALREADY_MAPPED" "resource already mapped";
    NoBinaryForGpu = 209 "CUDA_ERROR_NO_BINARY_FOR_GPU" "no kernel image is available for execution on the device";
    UnsupportedLimit = 215 "CUDA_ERROR_UNSUPPORTED_LIMIT" "limit is not supported on this architecture";
    InvalidPtx = 218 "CUDA_ERROR_INVALID_PTX" "a PTX JIT compilation failed";
    UnsupportedPtxVersion = 222 "CUDA_ERROR_UNSUPPORTED_PTX_VERSION" "the provided PTX was compiled with an unsupported toolchain.";
    UnsupportedExecAffinity = 224 "CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY" "the provided execution affinity is not supported";
    FileNotFound = 301 "CUDA_ERROR_FILE_NOT_FOUND" "file not found";
    OperatingSystem = 304 "CUDA_ERROR_OPERATING_SYSTEM" "OS call failed or operation not supported on this OS";
    InvalidHandle = 400 "CUDA_ERROR_INVALID_HANDLE" "invalid resource handle";
    IllegalState = 401 "CUDA_ERROR_ILLEGAL_STATE" "the operation cannot be performed in the present state";
    NotFound = 500 "CUDA_ERROR_NOT_FOUND" "named symbol not found";
    NotReady = 600 "CUDA_ERROR_NOT_READY" "device not ready";
    IllegalAddress = 700 "CUDA_ERROR_ILLEGAL_ADDRESS" "an illegal memory access was encountered";
    LaunchOutOfResources = 701 "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES" "too many resources requested for launch";
    LaunchTimeout = 702 "CUDA_ERROR_LAUNCH_TIMEOUT" "the launch timed out and was terminated";
    ContextIsDestroyed = 709 "CUDA_ERROR_CONTEXT_IS_DESTROYED" "context is destroyed";
    Assert = 710 "CUDA_ERROR_ASSERT" "device-side assert triggered";
    HostMemoryAlreadyRegistered = 712 "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED" "part or all of the requested memory range is already mapped";
    HostMemoryNotRegistered = 713 "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED" "pointer does not correspond to a registered memory region";
    IllegalInstruction = 715 "CUDA_ERROR_ILLEGAL_INSTRUCTION" "an illegal instruction was encountered";
    MisalignedAddress = 716 "CUDA_ERROR_MISALIGNED_ADDRESS" "misaligned address";
    LaunchFailed = 719 "CUDA_ERROR_LAUNCH_FAILED" "unspecified launch failure";
    CooperativeLaunchTooLarge = 720 "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE" "too many blocks in cooperative launch";
    NotPermitted = 800 "CUDA_ERROR_NOT_PERMITTED" "operation not permitted";
    NotSupported = 801 "CUDA_ERROR_NOT_SUPPORTED" "operation not supported";
    MpsClientTerminated = 810 "CUDA_ERROR_MPS_CLIENT_TERMINATED" "the MPS client has been terminated";
    CaptureUnsupported = 900 "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED" "operation not permitted when stream is capturing";
    CaptureInvalidated = 901 "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED" "operation failed due to a previous error during capture";
    CaptureMerge = 902 "CUDA_ERROR_STREAM_CAPTURE_MERGE" "operation would result in a merge of separate capture sequences";
    CaptureUnmatched = 903 "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED" "capture was not ended in the same stream as it began";
    CaptureUnjoined = 904 "CUDA_ERROR_STREAM_CAPTURE_UNJOINED" "capturing stream has unjoined work";
    CaptureImplicit = 906 "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT" "operation would make the legacy stream depend on a capturing blocking stream";
    CapturedEvent = 907 "CUDA_ERROR_CAPTURED_EVENT" "operation not permitted on an event last recorded in a capturing stream";
    Unknown = 999 "CUDA_ERROR_UNKNOWN" "unknown error";
}
