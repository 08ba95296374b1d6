//! Error numbers of the driver.

use crate::types::CUresult;

/// The result of a successful call.
pub const SUCCESS: CUresult = 0;

/// Calls a macro with every error in use: the name of a Rust variant, the header's name without
/// `CUDA_ERROR_`, the number, and the driver's text.
#[macro_export]
macro_rules! for_each_error {
    ($consumer:ident) => {
        $consumer! {
            InvalidValue INVALID_VALUE = 1 "invalid argument";
            OutOfMemory OUT_OF_MEMORY = 2 "out of memory";
            NotInitialized NOT_INITIALIZED = 3 "initialization error";
            Deinitialized DEINITIALIZED = 4 "driver shutting down";
            DeviceUnavailable DEVICE_UNAVAILABLE = 46 "CUDA-capable device(s) is/are busy or unavailable";
            NoDevice NO_DEVICE = 100 "no CUDA-capable device is detected";
            InvalidDevice INVALID_DEVICE = 101 "invalid device ordinal";
            InvalidImage INVALID_IMAGE = 200 "device kernel image is invalid";
            InvalidContext INVALID_CONTEXT = 201 "invalid device context";
            MapFailed MAP_FAILED = 205 "mapping of buffer object failed";
            AlreadyMapped ALREADY_MAPPED = 208 "resource already mapped";
            NoBinaryForGpu NO_BINARY_FOR_GPU = 209 "no kernel image is available for execution on the device";
            UnsupportedLimit UNSUPPORTED_LIMIT = 215 "limit is not supported on this architecture";
            InvalidPtx INVALID_PTX = 218 "a PTX JIT compilation failed";
            UnsupportedPtxVersion UNSUPPORTED_PTX_VERSION = 222
                "the provided PTX was compiled with an unsupported toolchain.";
            UnsupportedExecAffinity UNSUPPORTED_EXEC_AFFINITY = 224 "the provided execution affinity is not supported";
            FileNotFound FILE_NOT_FOUND = 301 "file not found";
            OperatingSystem OPERATING_SYSTEM = 304 "OS call failed or operation not supported on this OS";
            InvalidHandle INVALID_HANDLE = 400 "invalid resource handle";
            IllegalState ILLEGAL_STATE = 401 "the operation cannot be performed in the present state";
            NotFound NOT_FOUND = 500 "named symbol not found";
            NotReady NOT_READY = 600 "device not ready";
            IllegalAddress ILLEGAL_ADDRESS = 700 "an illegal memory access was encountered";
            LaunchOutOfResources LAUNCH_OUT_OF_RESOURCES = 701 "too many resources requested for launch";
            LaunchTimeout LAUNCH_TIMEOUT = 702 "the launch timed out and was terminated";
            ContextIsDestroyed CONTEXT_IS_DESTROYED = 709 "context is destroyed";
            Assert ASSERT = 710 "device-side assert triggered";
            HostMemoryAlreadyRegistered HOST_MEMORY_ALREADY_REGISTERED = 712
                "part or all of the requested memory range is already mapped";
            HostMemoryNotRegistered HOST_MEMORY_NOT_REGISTERED = 713
                "pointer does not correspond to a registered memory region";
            IllegalInstruction ILLEGAL_INSTRUCTION = 715 "an illegal instruction was encountered";
            MisalignedAddress MISALIGNED_ADDRESS = 716 "misaligned address";
            LaunchFailed LAUNCH_FAILED = 719 "unspecified launch failure";
            CooperativeLaunchTooLarge COOPERATIVE_LAUNCH_TOO_LARGE = 720 "too many blocks in cooperative launch";
            NotPermitted NOT_PERMITTED = 800 "operation not permitted";
            NotSupported NOT_SUPPORTED = 801 "operation not supported";
            SystemDriverMismatch SYSTEM_DRIVER_MISMATCH = 803
                "system has unsupported display driver / cuda driver combination";
            MpsRpcFailure MPS_RPC_FAILURE = 806
                "the remote procedural call between the MPS server and the MPS client failed";
            MpsClientTerminated MPS_CLIENT_TERMINATED = 810 "the MPS client has been terminated";
            CaptureUnsupported STREAM_CAPTURE_UNSUPPORTED = 900 "operation not permitted when stream is capturing";
            CaptureInvalidated STREAM_CAPTURE_INVALIDATED = 901
                "operation failed due to a previous error during capture";
            CaptureMerge STREAM_CAPTURE_MERGE = 902 "operation would result in a merge of separate capture sequences";
            CaptureUnmatched STREAM_CAPTURE_UNMATCHED = 903 "capture was not ended in the same stream as it began";
            CaptureUnjoined STREAM_CAPTURE_UNJOINED = 904 "capturing stream has unjoined work";
            CaptureIsolation STREAM_CAPTURE_ISOLATION = 905
                "dependency created on uncaptured work in another stream";
            CaptureImplicit STREAM_CAPTURE_IMPLICIT = 906
                "operation would make the legacy stream depend on a capturing blocking stream";
            CapturedEvent CAPTURED_EVENT = 907
                "operation not permitted on an event last recorded in a capturing stream";
            CaptureWrongThread STREAM_CAPTURE_WRONG_THREAD = 908
                "operation not permitted from this thread when its stream is capturing";
            GraphExecUpdateFailure GRAPH_EXEC_UPDATE_FAILURE = 910
                "the graph update was not performed because it included changes which violated constraints specific \
to instantiated graph update";
            InvalidResourceType INVALID_RESOURCE_TYPE = 914 "invalid resource type";
            InvalidResourceConfiguration INVALID_RESOURCE_CONFIGURATION = 915 "invalid resource configuration";
            Unknown UNKNOWN = 999 "unknown error";
        }
    };
}

macro_rules! declare {
    ($($variant:ident $name:ident = $number:literal $text:literal;)+) => {
        $(
            #[doc = concat!("`CUDA_ERROR_", stringify!($name), "`: ", $text)]
            pub const $name: CUresult = $number;
        )+

        /// All errors: their names in the header, and their numbers.
        pub const ERRORS: &[(&str, CUresult)] = &[$((concat!("CUDA_ERROR_", stringify!($name)), $number)),+];
    };
}
for_each_error!(declare);
