//! Keeps the pool's view of constants equal to that of the engines.
//!
//! The pool assumes that a device holds the constants of each request that it dispatches there, and
//! of each function that it loads ahead. Engines report what came and what left; an engine that
//! could not load ahead, or that failed a request before it loaded anything, is asked.

use super::requests::Attempt;
use super::steps::Step;
use super::{Inner, State, ids};
use atoll_core::placement::{FunctionId, PoolEvent};
use atoll_core::{DeviceId, Nanos};
use atoll_engine::FunctionKey;

impl Inner {
    /// Tells the pool which constants came to devices or left them since the last call.
    pub(super) fn note_residency(&self, state: &mut State, now: Nanos, steps: &mut Vec<Step>) {
        for (device, member) in ids().zip(&*self.members) {
            for (function, is_resident) in member.take_residency() {
                state.set_resident(now, device, &function, is_resident, steps);
            }
        }
    }

    /// The function of an attempt that failed, if the device does not hold its constants.
    pub(super) fn never_loaded(&self, state: &State, attempt: &Attempt) -> Option<FunctionKey> {
        let function = &state.functions.get(&state.requests.function(attempt.request)?)?.key;
        (!self.member(attempt.device).holds_constants(function)).then(|| function.clone())
    }
}

impl State {
    /// Tells the pool whether the constants of a function are on a device.
    pub(super) fn set_resident(
        &mut self,
        now: Nanos,
        device: DeviceId,
        function: &FunctionKey,
        is_resident: bool,
        steps: &mut Vec<Step>,
    ) {
        // A function that is being loaded joins the pool later, with what its engines answered.
        let Some(&function) = self.ids.get(function) else { return };
        let event = match is_resident {
            true => PoolEvent::Resident { device, function },
            false => PoolEvent::Evicted { device, function },
        };
        self.handle(now, event, steps);
    }

    /// The step that loads or reclaims the constants of a function.
    pub(super) fn constants(&self, device: DeviceId, function: FunctionId, is_load: bool) -> Option<Step> {
        let function = self.functions.get(&function)?.key.clone();
        Some(Step::Constants { device, function, is_load })
    }
}
