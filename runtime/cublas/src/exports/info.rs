//! Versions, names of results, and logging.

use super::entry_points;
use crate::handle::settings;
use crate::status;
use crate::version::{number, version};
use atoll_cuda_library::{At, HandleId, Status};
use std::ffi::{c_char, c_int};

entry_points! {
    /// The handle may be null.
    fn cublasGetVersion_v2(_handle: At<u8>, reported: At<c_int>) {
        reported.set(number())
    }

    fn cublasGetProperty(kind: c_int, value: At<c_int>) {
        property(kind, value)
    }

    fn cublasLtGetProperty(kind: c_int, value: At<c_int>) {
        property(kind, value)
    }

    /// Logging has no effect: the library prints only names of what is missing.
    fn cublasLoggerConfigure(_is_on: c_int, _to_output: c_int, _to_errors: c_int, _file: At<c_char>) {
        Ok(())
    }

    fn cublasSetLoggerCallback(_callback: u64) {
        Ok(())
    }

    fn cublasGetLoggerCallback(callback: At<u64>) {
        callback.set(0)
    }

    fn cublasLtLoggerSetCallback(_callback: u64) {
        Ok(())
    }

    fn cublasLtLoggerSetFile(_file: u64) {
        Ok(())
    }

    fn cublasLtLoggerOpenFile(_path: At<c_char>) {
        Ok(())
    }

    fn cublasLtLoggerSetLevel(_level: c_int) {
        Ok(())
    }

    fn cublasLtLoggerSetMask(_mask: c_int) {
        Ok(())
    }

    fn cublasLtLoggerForceDisable() {
        Ok(())
    }

    /// There is no cache of heuristics.
    fn cublasLtHeuristicsCacheGetCapacity(capacity: At<usize>) {
        capacity.set(0)
    }

    fn cublasLtHeuristicsCacheSetCapacity(_capacity: usize) {
        Ok(())
    }

    /// Emulation of f32 is never used.
    fn cublasGetEmulationStrategy(handle: HandleId, strategy: At<c_int>) {
        settings(handle, |_| ())?;
        strategy.set(0)
    }
}

fn property(kind: c_int, value: At<c_int>) -> Result<(), Status> {
    let index = usize::try_from(kind).map_err(|_| Status::InvalidValue)?;
    value.set(*version().get(index).ok_or(Status::InvalidValue)?)
}

/// The version as cuBLASLt reports it.
///
/// # Safety
/// None is needed.
#[allow(non_snake_case, reason = "the name is that of the symbol")]
#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtGetVersion() -> usize {
    number().unsigned_abs() as usize
}

/// The version of the CUDA runtime that belongs to this version: 12090 is 12.9.
fn runtime_version() -> usize {
    match version()[0] {
        11 => 11_080,
        12 => 12_090,
        _ => 13_000,
    }
}

/// The version of the CUDA runtime.
///
/// # Safety
/// None is needed.
#[allow(non_snake_case, reason = "the name is that of the symbol")]
#[unsafe(no_mangle)]
unsafe extern "C" fn cublasGetCudartVersion() -> usize {
    runtime_version()
}

/// The version of the CUDA runtime.
///
/// # Safety
/// None is needed.
#[allow(non_snake_case, reason = "the name is that of the symbol")]
#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtGetCudartVersion() -> usize {
    runtime_version()
}

/// Declares functions that return a text for a result.
macro_rules! texts {
    ($($symbol:ident = $function:path;)+) => {
        $(
            /// A text for a result.
            ///
            /// # Safety
            /// None is needed.
            #[allow(non_snake_case, reason = "the name is that of the symbol")]
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $symbol(result: c_int) -> *const c_char {
                $function(result).as_ptr()
            }
        )+
    };
}

texts! {
    cublasGetStatusName = status::name;
    cublasGetStatusString = status::text;
    cublasLtGetStatusName = status::name;
    cublasLtGetStatusString = status::text;
}
