//! Balance (thesis §6.1).

use super::Policy;
use super::heads::Fifo;
use crate::ids::{DeviceId, Nanos};
use crate::placement::FunctionId;
use crate::placement::state::State;

/// Dispatches the oldest request that has a suitable free device, to the next such device after
/// that of the last dispatch.
#[derive(Default)]
pub(super) struct Balance {
    heads: Fifo,
}

impl Policy for Balance {
    fn function_changed(&mut self, state: &State, function: FunctionId) {
        self.heads.update(state, function);
    }

    fn next(&mut self, _now: Nanos, state: &State) -> Option<(FunctionId, DeviceId)> {
        let free = self.heads.firsts().filter(|(class, ..)| !state.classes.get(*class).free.is_empty());
        let (class, _, function) = free.min_by_key(|(_, order, _)| *order)?;
        let device = state.classes.get(class).free.first_from(state.cursor)?;
        Some((function, device))
    }
}
