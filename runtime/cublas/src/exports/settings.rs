//! Handles and their settings.

use super::entry_points;
use crate::handle::{HANDLES, settings};
use crate::status::number;
use atoll_cuda_api::types::c_int;
use atoll_cuda_library::{At, HandleId, Status};

atoll_cuda_library::handle_entry_points! {
    number; HANDLES; cublasCreate_v2 cublasDestroy_v2 cublasSetStream_v2 cublasGetStream_v2
}

// cuBLASLt takes handles of cuBLAS too.
atoll_cuda_library::handle_entry_points! { number; HANDLES; cublasLtCreate cublasLtDestroy }

entry_points! {
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
}

/// Sets a setting to one of two values by its number.
fn set<T: Copy>(setting: &mut T, number: c_int, values: [T; 2]) -> Result<(), Status> {
    let index = usize::try_from(number).map_err(|_| Status::InvalidValue)?;
    *setting = *values.get(index).ok_or(Status::InvalidValue)?;
    Ok(())
}
