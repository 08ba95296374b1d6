//! Constants: memory that the engine writes and kernels only read, shown to some domains and not to
//! others.

use crate::error::DeviceError;
use atoll_core::DeviceOffset;

/// Constants on devices that have a place of their own for them. A device that keeps them in its
/// memory like anything else implements nothing of it.
pub trait Constants {
    /// Takes memory for a constant, all zero. The engine may write it from now on; kernels of a
    /// domain may read it once it was shown to them.
    fn reserve_constant(&mut self, _at: DeviceOffset, _bytes: u64) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Gives the memory of a constant back, which no launch in flight reads. Nobody sees it any
    /// more, and its bytes are never found in another constant.
    fn release_constant(&mut self, _at: DeviceOffset) {}

    /// Whether all constants were lost since this was asked last, on a device where they lie in the
    /// memory of an executor and go with it. Until it was asked, no domain gets memory anew;
    /// afterwards they are to be written again. The completion descriptor becomes readable when
    /// that happens.
    fn take_constants_lost(&mut self) -> bool {
        false
    }

    /// Lets kernels of a domain read constants, as far as they could not before;
    /// [`Constants::sees_constants`] says when they can. On devices that keep domains apart.
    fn show_constants(&mut self, _domain: &str, _constants: &[DeviceOffset]) {}

    /// Keeps constants from kernels of a domain that were shown to it, and that no launch in flight
    /// reads.
    fn hide_constants(&mut self, _domain: &str, _constants: &[DeviceOffset]) {}

    /// Whether kernels of a domain can read all that was shown to it. The completion descriptor
    /// becomes readable when that changes.
    fn sees_constants(&self, _domain: &str) -> bool {
        true
    }
}
