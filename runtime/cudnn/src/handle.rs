//! Handles of cuDNN.

use crate::kernels::Code;
use atoll_cuda_library::{HandleId, Handles, State, Status};

/// A call with a handle.
pub(crate) type Call<'a> = atoll_cuda_library::Call<'a, Code, ()>;

static HANDLES: Handles<Code, ()> = Handles::new();

/// Creates a handle in the current context.
pub(crate) fn create() -> Result<HandleId, Status> {
    HANDLES.create()
}

/// Destroys a handle after its work.
pub(crate) fn destroy(id: HandleId) -> Result<(), Status> {
    HANDLES.destroy(id)
}

/// Makes a call with a handle.
pub(crate) fn with<R>(id: HandleId, call: impl FnOnce(&mut Call<'_>) -> Result<R, Status>) -> Result<R, Status> {
    HANDLES.with(id, call)
}

/// Reads or changes the state of a handle.
pub(crate) fn state<R>(id: HandleId, change: impl FnOnce(&mut State<Code, ()>) -> R) -> Result<R, Status> {
    HANDLES.state(id, change)
}
