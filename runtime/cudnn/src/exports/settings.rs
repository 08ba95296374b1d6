//! Handles and their settings.

use super::entry_points;
use crate::handle::{create, destroy, state};
use atoll_cuda_api::types::CUstream;
use atoll_cuda_library::{At, HandleId};

entry_points! {
    fn cudnnCreate(handle: At<HandleId>) {
        handle.is_wanted()?;
        handle.set(create()?)
    }

    fn cudnnDestroy(handle: HandleId) {
        destroy(handle)
    }

    fn cudnnSetStream(handle: HandleId, stream: CUstream) {
        state(handle, |state| state.stream = stream)
    }

    fn cudnnGetStream(handle: HandleId, stream: At<CUstream>) {
        let of_handle = state(handle, |state| state.stream)?;
        stream.set(of_handle)
    }
}
