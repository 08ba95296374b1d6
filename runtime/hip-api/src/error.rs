//! Error numbers of the library.

use crate::types::hipError_t;

/// The result of a successful call.
pub const SUCCESS: hipError_t = 0;

/// Calls a macro with every error in use: the name of a Rust variant, the header's name without
/// `hipError`, the constant's name, the number, and the library's text.
#[macro_export]
macro_rules! for_each_error {
    ($consumer:ident) => {
        $consumer! {
            InvalidValue INVALID_VALUE = 1 "invalid argument";
            OutOfMemory OUT_OF_MEMORY = 2 "out of memory";
            NotInitialized NOT_INITIALIZED = 3 "initialization error";
            Deinitialized DEINITIALIZED = 4 "driver shutting down";
            InvalidConfiguration INVALID_CONFIGURATION = 9 "invalid configuration argument";
            InvalidDevicePointer INVALID_DEVICE_POINTER = 17 "invalid device pointer";
            InsufficientDriver INSUFFICIENT_DRIVER = 35 "driver version is insufficient for runtime version";
            InvalidDeviceFunction INVALID_DEVICE_FUNCTION = 98 "invalid device function";
            NoDevice NO_DEVICE = 100 "no ROCm-capable device is detected";
            InvalidDevice INVALID_DEVICE = 101 "invalid device ordinal";
            InvalidImage INVALID_IMAGE = 200 "device kernel image is invalid";
            InvalidContext INVALID_CONTEXT = 201 "invalid device context";
            MapFailed MAP_FAILED = 205 "mapping of buffer object failed";
            NoBinaryForGpu NO_BINARY_FOR_GPU = 209 "no kernel image is available for execution on the device";
            FileNotFound FILE_NOT_FOUND = 301 "file not found";
            SharedObjectInitFailed SHARED_OBJECT_INIT_FAILED = 303 "shared object initialization failed";
            OperatingSystem OPERATING_SYSTEM = 304 "OS call failed or operation not supported on this OS";
            InvalidHandle INVALID_HANDLE = 400 "invalid resource handle";
            IllegalState ILLEGAL_STATE = 401 "the operation cannot be performed in the present state";
            NotFound NOT_FOUND = 500 "named symbol not found";
            NotReady NOT_READY = 600 "device not ready";
            IllegalAddress ILLEGAL_ADDRESS = 700 "an illegal memory access was encountered";
            LaunchOutOfResources LAUNCH_OUT_OF_RESOURCES = 701 "too many resources requested for launch";
            LaunchTimeOut LAUNCH_TIME_OUT = 702 "the launch timed out and was terminated";
            ContextIsDestroyed CONTEXT_IS_DESTROYED = 709 "context is destroyed";
            Assert ASSERT = 710 "device-side assert triggered";
            HostMemoryAlreadyRegistered HOST_MEMORY_ALREADY_REGISTERED = 712
                "part or all of the requested memory range is already mapped";
            HostMemoryNotRegistered HOST_MEMORY_NOT_REGISTERED = 713
                "pointer does not correspond to a registered memory region";
            LaunchFailure LAUNCH_FAILURE = 719 "unspecified launch failure";
            NotSupported NOT_SUPPORTED = 801 "operation not supported";
            Unknown UNKNOWN = 999 "unknown error";
            RuntimeMemory RUNTIME_MEMORY = 1052 "runtime memory call returned error";
            RuntimeOther RUNTIME_OTHER = 1053 "runtime call other than memory returned error";
        }
    };
}

macro_rules! declare {
    ($($variant:ident $name:ident = $number:literal $text:literal;)+) => {
        $(
            #[doc = concat!("`hipError", stringify!($variant), "`: ", $text)]
            pub const $name: hipError_t = $number;
        )+

        /// All errors: their names in the header, and their numbers.
        pub const ERRORS: &[(&str, hipError_t)] = &[$((concat!("hipError", stringify!($variant)), $number)),+];
    };
}
for_each_error!(declare);

/// The header's name of an error; `None` for a number that is not in the table.
pub fn name(error: hipError_t) -> Option<&'static str> {
    ERRORS.iter().find(|(_, number)| *number == error).map(|(name, _)| *name)
}
