//! Shortest time remaining first (thesis §6.1). Requests are not preempted here, so the time
//! remaining is the service time.

use super::Policy;
use super::heads::Heads;
use crate::ids::{DeviceId, Nanos};
use crate::placement::FunctionId;
use crate::placement::classes::ClassId;
use crate::placement::config::{PoolOptions, Visibility};
use crate::placement::requests::Order;
use crate::placement::state::State;

/// Dispatches the request with the shortest expected service time to the next free device after
/// that of the last dispatch. Service times are learned; a function without a known time counts as
/// the shortest.
///
/// If the policy sees the future, it leaves devices idle and waits for a shorter request that has
/// not arrived yet, as the thesis's simulator does.
pub(super) struct Srtf {
    heads: Heads<ClassId, (u64, Order)>,
    visibility: Visibility,
}

impl Srtf {
    pub(super) fn new(options: &PoolOptions) -> Srtf {
        Srtf { heads: Heads::default(), visibility: options.visibility }
    }
}

impl Policy for Srtf {
    fn sees_future(&self) -> bool {
        self.visibility != Visibility::Online
    }

    fn function_changed(&mut self, state: &State, function: FunctionId) {
        let entry = state.head(function).map(|(head, order)| (head.class, (head.shortest_service(), order)));
        self.heads.set(function, entry);
    }

    fn next(&mut self, now: Nanos, state: &State) -> Option<(FunctionId, DeviceId)> {
        let free = self.heads.firsts().filter(|(class, ..)| !state.classes.get(*class).free.is_empty());
        let (class, (_, (arrival, _)), function) = free.min_by_key(|(_, key, _)| *key)?;
        if arrival > now {
            return None;
        }
        let device = state.classes.get(class).free.first_from(state.cursor)?;
        Some((function, device))
    }
}
