//! Handles and their settings.

use super::entry_points;
use crate::handle::{create, destroy, settings};
use atoll_cuda_api::types::{CUstream, c_int};
use atoll_cuda_library::{At, HandleId, Status};

entry_points! {
    fn cublasCreate_v2(handle: At<HandleId>) {
        handle.is_wanted()?;
        handle.set(create()?)
    }

    fn cublasDestroy_v2(handle: HandleId) {
        destroy(handle)
    }

    fn cublasSetStream_v2(handle: HandleId, stream: CUstream) {
        settings(handle, |state| state.stream = stream)
    }

    fn cublasGetStream_v2(handle: HandleId, stream: At<CUstream>) {
        let of_handle = settings(handle, |state| state.stream)?;
        stream.set(of_handle)
    }

    fn cublasSetPointerMode_v2(handle: HandleId, mode: c_int) {
        settings(handle, |state| set(&mut state.settings.on_device, mode, [false, true]))?
    }

    fn cublasGetPointerMode_v2(handle: HandleId, mode: At<c_int>) {
        let on_device = settings(handle, |state| state.settings.on_device)?;
        mode.set(on_device.into())
    }

    /// The mode has no effect: sums have the precision of the type of computation.
    fn cublasSetMathMode(handle: HandleId, mode: c_int) {
        settings(handle, |state| state.settings.math_mode = mode)
    }

    fn cublasGetMathMode(handle: HandleId, mode: At<c_int>) {
        let of_handle = settings(handle, |state| state.settings.math_mode)?;
        mode.set(of_handle)
    }

    /// The mode has no effect: no kernel uses atomics.
    fn cublasSetAtomicsMode(handle: HandleId, mode: c_int) {
        settings(handle, |state| set(&mut state.settings.atomics_mode, mode, [0, 1]))?
    }

    fn cublasGetAtomicsMode(handle: HandleId, mode: At<c_int>) {
        let of_handle = settings(handle, |state| state.settings.atomics_mode)?;
        mode.set(of_handle)
    }

    /// The target has no effect.
    fn cublasSetSmCountTarget(handle: HandleId, count: c_int) {
        if count < 0 {
            return Err(Status::InvalidValue);
        }
        settings(handle, |state| state.settings.sm_count_target = count)
    }

    fn cublasGetSmCountTarget(handle: HandleId, count: At<c_int>) {
        let of_handle = settings(handle, |state| state.settings.sm_count_target)?;
        count.set(of_handle)
    }

    /// The workspace is not used. As in cuBLAS, the stream does not change.
    fn cublasSetWorkspace_v2(handle: HandleId, workspace: u64, bytes: usize) {
        if workspace == 0 && bytes != 0 {
            return Err(Status::InvalidValue);
        }
        settings(handle, |_| ())
    }

    /// cuBLASLt takes handles of cuBLAS too.
    fn cublasLtCreate(handle: At<HandleId>) {
        handle.is_wanted()?;
        handle.set(create()?)
    }

    fn cublasLtDestroy(handle: HandleId) {
        destroy(handle)
    }
}

/// Sets a setting to one of two values by its number.
fn set<T: Copy>(setting: &mut T, number: c_int, values: [T; 2]) -> Result<(), Status> {
    let index = usize::try_from(number).map_err(|_| Status::InvalidValue)?;
    *setting = *values.get(index).ok_or(Status::InvalidValue)?;
    Ok(())
}
