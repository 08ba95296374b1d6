//! Constants: memory that the engine writes and kernels only read, mapped into some domains and not
//! into others.

use crate::error::DeviceError;
use atoll_core::DeviceOffset;

/// Constants on devices that keep them apart from other memory. Devices that store constants in
/// ordinary device memory use the defaults.
pub trait Constants {
    /// Reserves zeroed memory for a constant. The engine may write it right away; kernels of a
    /// domain may read it once [`Constants::show_constants`] mapped it for them.
    fn reserve_constant(&mut self, _at: DeviceOffset, _bytes: u64) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Frees the memory of a constant that no launch in flight reads. It is unmapped from all
    /// domains, and its bytes never appear in another constant.
    fn release_constant(&mut self, _at: DeviceOffset) {}

    /// Whether all constants were lost since the last call. A device that keeps constants in an
    /// executor's memory loses them with the executor. No domain gets new memory until this is
    /// called; the caller then writes the constants again. The completion descriptor becomes
    /// readable when constants are lost.
    fn take_constants_lost(&mut self) -> bool {
        false
    }

    /// Maps constants into a domain so that its kernels can read them; those already mapped are
    /// skipped. [`Constants::sees_constants`] tells when the mapping is complete. For devices with
    /// domains.
    fn show_constants(&mut self, _domain: &str, _constants: &[DeviceOffset]) {}

    /// Unmaps constants from a domain. No launch in flight may read them.
    fn hide_constants(&mut self, _domain: &str, _constants: &[DeviceOffset]) {}

    /// Whether all constants shown to a domain are mapped there. The completion descriptor becomes
    /// readable when this changes.
    fn sees_constants(&self, _domain: &str) -> bool {
        true
    }
}
