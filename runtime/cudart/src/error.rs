//! The runtime's error numbers. An error that the driver has too has the driver's number.

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
    pub(crate) const NO_DEVICE: Code = Code(100);
    pub(crate) const INVALID_DEVICE: Code = Code(101);
    pub(crate) const INVALID_CONTEXT: Code = Code(201);
    pub(crate) const SYMBOL_NOT_FOUND: Code = Code(500);
    pub(crate) const LAUNCH_OUT_OF_RESOURCES: Code = Code(701);
    pub(crate) const CONTEXT_IS_DESTROYED: Code = Code(709);
    pub(crate) const NOT_SUPPORTED: Code = Code(801);
    pub(crate) const UNKNOWN: Code = Code(999);

    /// Whether every later call fails with this error too: a kernel faulted, or the device is lost.
    pub(crate) fn is_sticky(self) -> bool {
        matches!(self.0, 700 | 702 | 709 | 710 | 714..=719)
    }

    /// Whether loading failed because of the fat binary itself, so that the next attempt would fail
    /// too: it is invalid, has no code for the device, or has PTX that is invalid or too new.
    pub(crate) fn is_of_code(self) -> bool {
        matches!(self.0, 200 | 209 | 218 | 222)
    }
}

macro_rules! names {
    ($($number:literal $name:ident $($text:literal)?;)+) => {
        /// Names of errors, and the texts of errors that the driver does not have.
        const NAMES: &[(CUresult, &str, Option<&str>)] =
            &[$(($number, concat!(stringify!($name), "\0"), names!(text $($text)?))),+];
    };
    (text) => { None };
    (text $text:literal) => { Some(concat!($text, "\0")) };
}

names! {
    0 cudaSuccess "no error";
    1 cudaErrorInvalidValue;
    2 cudaErrorMemoryAllocation;
    3 cudaErrorInitializationError;
    4 cudaErrorCudartUnloading;
    9 cudaErrorInvalidConfiguration "invalid configuration argument";
    12 cudaErrorInvalidPitchValue "invalid pitch argument";
    13 cudaErrorInvalidSymbol "invalid device symbol";
    17 cudaErrorInvalidDevicePointer "invalid device pointer";
    21 cudaErrorInvalidMemcpyDirection "invalid copy direction for memcpy";
    35 cudaErrorInsufficientDriver "CUDA driver version is insufficient for CUDA runtime version";
    36 cudaErrorCallRequiresNewerDriver "API call is not supported in the installed CUDA driver";
    46 cudaErrorDevicesUnavailable;
    52 cudaErrorMissingConfiguration "__global__ function call is not configured";
    98 cudaErrorInvalidDeviceFunction "invalid device function";
    100 cudaErrorNoDevice;
    101 cudaErrorInvalidDevice;
    200 cudaErrorInvalidKernelImage;
    201 cudaErrorDeviceUninitialized;
    205 cudaErrorMapBufferObjectFailed;
    208 cudaErrorAlreadyMapped;
    209 cudaErrorNoKernelImageForDevice;
    215 cudaErrorUnsupportedLimit;
    218 cudaErrorInvalidPtx;
    222 cudaErrorUnsupportedPtxVersion;
    224 cudaErrorUnsupportedExecAffinity;
    301 cudaErrorFileNotFound;
    304 cudaErrorOperatingSystem;
    400 cudaErrorInvalidResourceHandle;
    401 cudaErrorIllegalState;
    500 cudaErrorSymbolNotFound;
    600 cudaErrorNotReady;
    700 cudaErrorIllegalAddress;
    701 cudaErrorLaunchOutOfResources;
    702 cudaErrorLaunchTimeout;
    709 cudaErrorContextIsDestroyed;
    710 cudaErrorAssert;
    712 cudaErrorHostMemoryAlreadyRegistered;
    713 cudaErrorHostMemoryNotRegistered;
    715 cudaErrorIllegalInstruction;
    716 cudaErrorMisalignedAddress;
    719 cudaErrorLaunchFailure;
    720 cudaErrorCooperativeLaunchTooLarge;
    800 cudaErrorNotPermitted;
    801 cudaErrorNotSupported;
    803 cudaErrorSystemDriverMismatch;
    806 cudaErrorMpsRpcFailure;
    810 cudaErrorMpsClientTerminated;
    900 cudaErrorStreamCaptureUnsupported;
    901 cudaErrorStreamCaptureInvalidated;
    902 cudaErrorStreamCaptureMerge;
    903 cudaErrorStreamCaptureUnmatched;
    904 cudaErrorStreamCaptureUnjoined;
    905 cudaErrorStreamCaptureIsolation;
    906 cudaErrorStreamCaptureImplicit;
    907 cudaErrorCapturedEvent;
    908 cudaErrorStreamCaptureWrongThread;
    910 cudaErrorGraphExecUpdateFailure;
    914 cudaErrorInvalidResourceType "invalid resource type";
    915 cudaErrorInvalidResourceConfiguration "invalid resource configuration";
    999 cudaErrorUnknown;
}

macro_rules! driver_texts {
    ($($variant:ident $name:ident = $number:literal $text:literal;)+) => {
        /// Texts of the driver's errors.
        const DRIVER_TEXTS: &[(CUresult, &str)] = &[$(($number, concat!($text, "\0"))),+];
    };
}
atoll_cuda_api::for_each_error!(driver_texts);

// Every error that the driver may return has a name here; every name has a text here or there.
const _: () = {
    let mut index = 0;
    while index < DRIVER_TEXTS.len() {
        assert!(name_of(DRIVER_TEXTS[index].0).is_some(), "an error of the driver has no name of the runtime");
        index += 1;
    }
    let mut index = 0;
    while index < NAMES.len() {
        let (code, _, text) = NAMES[index];
        assert!(text.is_some() || driver_text(code).is_some(), "an error has no text");
        index += 1;
    }
};

/// The name of an error, and its text if the driver has none.
const fn name_of(code: CUresult) -> Option<(&'static str, Option<&'static str>)> {
    let mut index = 0;
    while index < NAMES.len() {
        if NAMES[index].0 == code {
            return Some((NAMES[index].1, NAMES[index].2));
        }
        index += 1;
    }
    None
}

const fn driver_text(code: CUresult) -> Option<&'static str> {
    let mut index = 0;
    while index < DRIVER_TEXTS.len() {
        if DRIVER_TEXTS[index].0 == code {
            return Some(DRIVER_TEXTS[index].1);
        }
        index += 1;
    }
    None
}

/// The name and text of an error.
pub(crate) fn texts(code: CUresult) -> Option<(&'static CStr, &'static CStr)> {
    let (name, text) = name_of(code)?;
    let text = driver_text(code).or(text)?;
    Some((CStr::from_bytes_with_nul(name.as_bytes()).ok()?, CStr::from_bytes_with_nul(text.as_bytes()).ok()?))
}
