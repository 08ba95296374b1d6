//! Outputs that stay on the device for later invocations.

use super::{Event, World};
use atoll_core::memory::SlotId;
use std::collections::BTreeSet;

/// The slots whose outputs later invocations need.
#[derive(Default)]
pub(super) struct Outputs {
    /// Whether invocations of this world leave outputs on the device.
    pub(super) stay: bool,
    retained: BTreeSet<SlotId>,
}

impl World {
    /// An invocation that is about to end leaves outputs in some of its slots.
    pub(super) fn retain_some(&mut self, slots: &[SlotId]) {
        for &slot in slots {
            if self.outputs.stay && self.rng.below(3) == 0 {
                self.outputs.retained.insert(slot);
                self.note(Event::RetainOutputs { slot });
            }
        }
    }

    /// The last invocation that needed the outputs in a slot has ended.
    pub(super) fn release_one(&mut self) {
        if let Some(slot) = self.any_of(self.outputs.retained.iter().copied().collect()) {
            self.totals.released += 1;
            self.outputs.retained.remove(&slot);
            self.send(Event::ReleaseOutputs { slot });
        }
    }

    /// The outputs go to host memory. Later events about them are ignored.
    pub(super) fn save_outputs(&mut self, slot: SlotId) {
        self.totals.saved += 1;
        assert!(self.kept.contains_key(&slot), "outputs are saved while their memory is there");
        assert!(self.outputs.retained.remove(&slot), "only needed outputs are saved");
        self.note(Event::ReleaseOutputs { slot });
    }

    /// The memory of a slot is freed, or given to another invocation.
    pub(super) fn check_unneeded(&self, slot: SlotId) {
        assert!(!self.outputs.retained.contains(&slot), "needed outputs are overwritten");
    }
}
