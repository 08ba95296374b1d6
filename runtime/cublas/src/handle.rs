//! Handles of cuBLAS and their settings.

use crate::kernels::Code;
use atoll_cuda_api::types::c_int;
use atoll_cuda_library::{HandleId, Handles, State, Status};

/// Settings of a handle.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    /// `cublasPointerMode_t`: whether factors and results are in device memory.
    pub(crate) on_device: bool,
    /// Settings that have no effect but are kept.
    pub(crate) math_mode: c_int,
    pub(crate) atomics_mode: c_int,
    pub(crate) sm_count_target: c_int,
}

/// A call with a handle.
pub(crate) type Call<'a> = atoll_cuda_library::Call<'a, Code, Settings>;

/// The handles, which cuBLASLt takes too.
pub(crate) static HANDLES: Handles<Code, Settings> = Handles::new();

/// Makes a call with a handle.
pub(crate) fn with<R>(id: HandleId, call: impl FnOnce(&mut Call<'_>) -> Result<R, Status>) -> Result<R, Status> {
    HANDLES.with(id, call)
}

/// Reads or changes settings of a handle.
pub(crate) fn settings<R>(id: HandleId, change: impl FnOnce(&mut State<Code, Settings>) -> R) -> Result<R, Status> {
    HANDLES.state(id, change)
}
