//! What a test can make the fake device refuse.

use super::FakeDevice;

/// An operation that the device refuses on demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Starting to load code.
    Module,
    /// Finishing the load of code.
    LoadedModule,
    /// Loading code, because its executor process is gone.
    Domain,
    /// Reserving memory for a constant.
    Place,
    /// Writing bytes of a constant.
    Write,
    /// Writing bytes that are not of a constant.
    Input,
    /// Everything: the device is lost when such bytes are written.
    InputOfLostDevice,
    /// Giving a tenant a part of memory.
    Part,
    /// Filling memory.
    Fill,
    /// Writing to memory of a [`super::fallible::FallibleDevice`].
    Piece,
    /// Closing a lane.
    Lane,
    /// Everything: the device is lost at the first byte of a constant.
    Device,
}

impl FakeDevice {
    pub(super) fn refuses(&self, what: Refusal) -> bool {
        match &mut *self.shared.refusal.lock().expect("no panic") {
            Some((refused, after)) if *refused == what => {
                let refuses = *after == 0;
                *after = after.saturating_sub(1);
                refuses
            }
            _ => false,
        }
    }
}
