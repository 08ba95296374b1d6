//! Error numbers of the runtime. Where the driver has the same error it has the same number.

use atoll_cuda_api::types::CUresult;
use std::ffi::CStr;

/// An error of the runtime, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Code(pub(crate) CUresult);

impl Code {
    pub(crate) const INVALID_VALUE: Code = Code(1);
    pub(crate) const INVALID_CONFIGURATION: Code = Code(9);
    pub(crate) const INVALID_SYMBOL: Code = Code(13);
    pub(crate) const INVALID_MEMCPY_DIRECTION: Code = Code(21);
    pub(crate) const INSUFFICIENT_DRIVER: Code = Code(35);
    pub(crate) const CALL_REQUIRES_NEWER_DRIVER: Code = Code(36);
    pub(crate) const MISSING_CONFIGURATION: Code = Code(52);
    pub(crate) const INVALID_DEVICE_FUNCTION: Code = Code(98);
    pub(crate) const INVALID_DEVICE: Code = Code(101);
    pub(crate) const SYMBOL_NOT_FOUND: Code = Code(500);
    pub(crate) const NOT_SUPPORTED: Code = Code(801);
    pub(crate) const UNKNOWN: Code = Code(999);

    /// Whether every later call fails too: a kernel faulted, or the device is lost.
    pub(crate) fn is_sticky(self) -> bool {
        matches!(self.0, 700 | 702 | 709 | 710 | 714..=719)
    }
}

macro_rules! texts {
    ($($number:literal $name:ident $text:literal;)+) => {
        /// Name and text of an error.
        pub(crate) fn texts(code: CUresult) -> Option<(&'static CStr, &'static CStr)> {
            let (name, text) = match code {
                $($number => (concat!(stringify!($name), "\0"), concat!($text, "\0")),)+
                _ => return None,
            };
            Some((CStr::from_bytes_with_nul(name.as_bytes()).ok()?, CStr::from_bytes_with_nul(text.as_bytes()).ok()?))
        }
    };
}

texts! {
    0 cudaSuccess "no error";
    1 cudaErrorInvalidValue "invalid argument";
    2 cudaErrorMemoryAllocation "out of memory";
    3 cudaErrorInitializationError "initialization error";
    4 cudaErrorCudartUnloading "driver shutting down";
    9 cudaErrorInvalidConfiguration "invalid configuration argument";
    12 cudaErrorInvalidPitchValue "invalid pitch argument";
    13 cudaErrorInvalidSymbol "invalid device symbol";
    17 cudaErrorInvalidDevicePointer "invalid device pointer";
    21 cudaErrorInvalidMemcpyDirection "invalid copy direction for memcpy";
    35 cudaErrorInsufficientDriver "CUDA driver version is insufficient for CUDA runtime version";
    36 cudaErrorCallRequiresNewerDriver "API call is not supported in the installed CUDA driver";
    46 cudaErrorDevicesUnavailable "CUDA-capable device(s) is/are busy or unavailable";
    52 cudaErrorMissingConfiguration "__global__ function call is not configured";
    98 cudaErrorInvalidDeviceFunction "invalid device function";
    100 cudaErrorNoDevice "no CUDA-capable device is detected";
    101 cudaErrorInvalidDevice "invalid device ordinal";
    200 cudaErrorInvalidKernelImage "device kernel image is invalid";
    201 cudaErrorDeviceUninitialized "invalid device context";
    205 cudaErrorMapBufferObjectFailed "mapping of buffer object failed";
    208 cudaErrorAlreadyMapped "resource already mapped";
    209 cudaErrorNoKernelImageForDevice "no kernel image is available for execution on the device";
    215 cudaErrorUnsupportedLimit "limit is not supported on this architecture";
    218 cudaErrorInvalidPtx "a PTX JIT compilation failed";
    222 cudaErrorUnsupportedPtxVersion "the provided PTX was compiled with an unsupported toolchain.";
    301 cudaErrorFileNotFound "file not found";
    304 cudaErrorOperatingSystem "OS call failed or operation not supported on this OS";
    400 cudaErrorInvalidResourceHandle "invalid resource handle";
    401 cudaErrorIllegalState "the operation cannot be performed in the present state";
    500 cudaErrorSymbolNotFound "named symbol not found";
    600 cudaErrorNotReady "device not ready";
    700 cudaErrorIllegalAddress "an illegal memory access was encountered";
    701 cudaErrorLaunchOutOfResources "too many resources requested for launch";
    702 cudaErrorLaunchTimeout "the launch timed out and was terminated";
    709 cudaErrorContextIsDestroyed "context is destroyed";
    710 cudaErrorAssert "device-side assert triggered";
    712 cudaErrorHostMemoryAlreadyRegistered "part or all of the requested memory range is already mapped";
    713 cudaErrorHostMemoryNotRegistered "pointer does not correspond to a registered memory region";
    715 cudaErrorIllegalInstruction "an illegal instruction was encountered";
    716 cudaErrorMisalignedAddress "misaligned address";
    719 cudaErrorLaunchFailure "unspecified launch failure";
    720 cudaErrorCooperativeLaunchTooLarge "too many blocks in cooperative launch";
    800 cudaErrorNotPermitted "operation not permitted";
    801 cudaErrorNotSupported "operation not supported";
    803 cudaErrorSystemDriverMismatch "system has unsupported display driver / cuda driver combination";
    900 cudaErrorStreamCaptureUnsupported "operation not permitted when stream is capturing";
    999 cudaErrorUnknown "unknown error";
}
