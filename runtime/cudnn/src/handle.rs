//! Handles of cuDNN.

use crate::kernels::Code;
use atoll_cuda_library::{HandleId, Handles, State, Status};

/// A call with a handle.
pub(crate) type Call<'a> = atoll_cuda_library::Call<'a, Code, ()>;

/// The handles.
pub(crate) static HANDLES: Handles<Code, ()> = Handles::new();

/// Makes a call with a handle.
pub(crate) fn with<R>(id: HandleId, call: impl FnOnce(&mut Call<'_>) -> Result<R, Status>) -> Result<R, Status> {
    HANDLES.with(id, call)
}

/// Reads or changes the state of a handle.
pub(crate) fn state<R>(id: HandleId, change: impl FnOnce(&mut State<Code, ()>) -> R) -> Result<R, Status> {
    HANDLES.state(id, change)
}
