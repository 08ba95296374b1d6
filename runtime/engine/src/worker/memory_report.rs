//! Loads and reclaims constants for a fleet, and reports where they are.

use super::Worker;
use crate::config::FunctionKey;
use crate::function::FunctionId;
use atoll_core::memory::{Event, SetState};
use atoll_core::residency::ItemId;

impl Worker {
    /// Loads the constants of a function before a request needs them, if there is free memory. The
    /// fleet is told in any case whether they are on the device, because it counts on them.
    pub(super) fn preload(&mut self, key: &FunctionKey) {
        let Some((id, set)) = self.loaded_as(key) else { return };
        self.notify_memory(Event::Preload { function: id });
        self.shared.residency.note(key, self.memory.state(set) != SetState::Absent);
        self.holdings.residency_changed = true;
    }

    /// Reclaims the constants of a function if no invocation needs them.
    pub(super) fn reclaim(&mut self, key: &FunctionKey) {
        if let Some((id, _)) = self.loaded_as(key) {
            self.notify_memory(Event::Reclaim { function: id });
        }
    }

    fn loaded_as(&self, key: &FunctionKey) -> Option<(FunctionId, ItemId)> {
        let mut functions = self.functions.values();
        let loaded = functions.find(|loaded| loaded.key() == key && !loaded.is_unloading())?;
        Some((loaded.function_id(), loaded.set))
    }

    /// Reports the functions whose constants came to the device or left it.
    pub(super) fn report_residency(&mut self) {
        if !std::mem::take(&mut self.holdings.residency_changed) {
            return;
        }
        for loaded in self.functions.values().filter(|loaded| !loaded.is_unloading()) {
            let is_resident = self.memory.state(loaded.set) != SetState::Absent;
            if loaded.function.set_resident(is_resident) != is_resident {
                self.shared.residency.note(loaded.key(), is_resident);
            }
        }
    }
}
