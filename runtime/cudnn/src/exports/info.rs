//! Versions, names of results, and logging.

use super::entry_points;
use crate::handle::state;
use crate::status;
use crate::version::{number, runtime, version};
use atoll_cuda_library::{At, HandleId, Status};
use std::ffi::{c_char, c_int, c_uint};

/// Declares functions without arguments that return a number.
macro_rules! numbers {
    ($($symbol:ident = $function:path;)+) => {
        $(
            /// A version.
            ///
            /// # Safety
            /// None is needed.
            #[allow(non_snake_case, reason = "the name is that of the symbol")]
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $symbol() -> usize {
                $function()
            }
        )+
    };
}

numbers! {
    cudnnGetVersion = number;
    cudnnGetCudartVersion = runtime;
    cudnnGetMaxDeviceVersion = device;
}

/// The newest devices for which the library has kernels, as cuDNN reports them: 1200 is compute
/// capability 12.0. The driver compiles the kernels, also for newer ones.
fn device() -> usize {
    1_200
}

/// A text for a result.
///
/// # Safety
/// None is needed.
#[allow(non_snake_case, reason = "the name is that of the symbol")]
#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnGetErrorString(result: c_int) -> *const c_char {
    status::name(result).as_ptr()
}

/// The last error's text, which is always empty: a line on standard error says what is missing.
///
/// # Safety
/// `message` must be null or the address of `bytes` bytes.
#[allow(non_snake_case, reason = "the name is that of the symbol")]
#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnGetLastErrorString(message: At<c_char>, bytes: usize) {
    if bytes > 0 {
        // The function has no result by which null could be refused.
        let _ = message.set(0);
    }
}

entry_points! {
    fn cudnnGetProperty(kind: c_int, value: At<c_int>) {
        let index = usize::try_from(kind).map_err(|_| Status::InvalidValue)?;
        value.set(*version().get(index).ok_or(Status::InvalidValue)?)
    }

    /// Errors of kernels are those of the driver; none is kept here.
    fn cudnnQueryRuntimeError(handle: HandleId, result: At<c_int>, _mode: c_int, _tag: u64) {
        state(handle, |_| ())?;
        result.set(0)
    }

    /// Logging has no effect: the library prints only names of what is missing.
    fn cudnnSetCallback(_mask: c_uint, _data: u64, _callback: u64) {
        Ok(())
    }

    fn cudnnGetCallback(mask: At<c_uint>, data: At<u64>, callback: At<u64>) {
        mask.set(0)?;
        data.set(0)?;
        callback.set(0)
    }

    /// All parts of the library are one file.
    fn cudnnOpsVersionCheck() {
        Ok(())
    }

    fn cudnnCnnVersionCheck() {
        Ok(())
    }

    fn cudnnAdvVersionCheck() {
        Ok(())
    }

    fn cudnnGraphVersionCheck() {
        Ok(())
    }

    fn cudnnOpsInferVersionCheck() {
        Ok(())
    }

    fn cudnnOpsTrainVersionCheck() {
        Ok(())
    }

    fn cudnnCnnInferVersionCheck() {
        Ok(())
    }

    fn cudnnCnnTrainVersionCheck() {
        Ok(())
    }

    fn cudnnAdvInferVersionCheck() {
        Ok(())
    }

    fn cudnnAdvTrainVersionCheck() {
        Ok(())
    }
}
