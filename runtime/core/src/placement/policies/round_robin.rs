//! Round robin (thesis §6.1).

use super::Policy;
use super::heads::Fifo;
use crate::ids::{DeviceId, Nanos};
use crate::placement::FunctionId;
use crate::placement::state::State;

/// Dispatches the oldest request to the device after that of the last dispatch. If that device has
/// no free slot, the request waits, and no other request overtakes it. Devices that are draining or
/// do not suit the request are skipped.
#[derive(Default)]
pub(super) struct RoundRobin {
    heads: Fifo,
}

impl Policy for RoundRobin {
    fn function_changed(&mut self, state: &State, function: FunctionId) {
        self.heads.update(state, function);
    }

    fn next(&mut self, _now: Nanos, state: &State) -> Option<(FunctionId, DeviceId)> {
        let active = self.heads.firsts().filter(|(class, ..)| !state.classes.get(*class).active.is_empty());
        let (class, _, function) = active.min_by_key(|(_, order, _)| *order)?;
        let class = state.classes.get(class);
        let device = class.active.first_from(state.cursor)?;
        class.free.contains(device).then_some((function, device))
    }
}
