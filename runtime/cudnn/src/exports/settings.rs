//! Handles and their settings.

use crate::handle::HANDLES;
use crate::status::number;

atoll_cuda_library::handle_entry_points! {
    number; HANDLES; cudnnCreate cudnnDestroy cudnnSetStream cudnnGetStream
}
