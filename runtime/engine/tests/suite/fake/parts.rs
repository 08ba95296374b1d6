//! Counts of what tenants have on the device, and the parts of their memory.

use super::{Controls, FakeDevice, Refusal};
use atoll_core::DeviceOffset;
use atoll_device::{DeviceError, Domains};

impl Controls {
    /// Number of constants with memory, and of mappings of constants into tenants.
    pub(crate) fn constants(&self) -> (usize, usize) {
        self.0.state.lock().expect("no panic").mapped.counts()
    }

    /// Number of parts of memory that tenants have.
    pub(crate) fn parts(&self) -> usize {
        self.0.state.lock().expect("no panic").parts.len()
    }
}

/// Panics if the engine gives a byte to two parts, or takes away what is no part.
impl Domains for FakeDevice {
    fn place_part(&mut self, name: &str, at: DeviceOffset, bytes: u64) -> Result<(), DeviceError> {
        if self.refuses(Refusal::Part) {
            return Err(DeviceError::Unavailable("there is no room in one piece".into()));
        }
        let mut state = self.shared.state.lock().expect("no panic");
        let before = state.parts.range(..at.0 + bytes).next_back().map(|(begin, bytes)| begin + bytes);
        assert!(before.is_none_or(|end| end <= at.0), "a part of `{name}` at {at:?} overlaps another one");
        state.parts.insert(at.0, bytes);
        Ok(())
    }

    fn remove_part(&mut self, name: &str, at: DeviceOffset) {
        let removed = self.shared.state.lock().expect("no panic").parts.remove(&at.0);
        assert!(removed.is_some(), "`{name}` has no part at {at:?}");
    }
}
