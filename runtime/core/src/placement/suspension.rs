//! Suspensions of devices that refuse a function.
//!
//! A device that refuses requests at once always has a free slot, so a policy would give it one
//! request after the other. Until the time that the refusal states, the function runs only on its
//! other devices. If it has no other device, it is not suspended, and its requests are refused.

use super::event::{FunctionId, Suits};
use super::pool::Pool;
use crate::ids::{DeviceId, Nanos};
use std::collections::BTreeSet;

/// Ends of suspensions, the next one first.
#[derive(Default)]
pub(super) struct Suspensions(BTreeSet<(Nanos, FunctionId, DeviceId)>);

impl Suspensions {
    /// The earliest end of a suspension.
    pub(super) fn next_end(&self) -> Option<Nanos> {
        self.0.first().map(|first| first.0)
    }
}

impl Pool {
    /// Keeps a function off a device until a time, if it has another active device.
    pub(super) fn suspend(&mut self, id: FunctionId, device: DeviceId, until: Nanos) {
        let Some(function) = self.state.functions.get_mut(id) else { return };
        let active = &self.state.classes.get(function.class).active;
        if until <= self.now || function.suspended.contains(&device) || active.iter().all(|other| other == device) {
            return;
        }
        function.suspended.push(device);
        self.suspensions.0.insert((until, id, device));
        self.class_function_again(id);
    }

    /// Ends the suspensions whose end fulfils `over`.
    pub(super) fn end_suspensions(&mut self, over: impl Fn(Nanos) -> bool) {
        while let Some((_, id, device)) = self.suspensions.0.first().copied().filter(|first| over(first.0)) {
            self.suspensions.0.pop_first();
            if let Some(function) = self.state.functions.get_mut(id) {
                function.suspended.retain(|other| *other != device);
                self.class_function_again(id);
            }
        }
    }

    /// Recomputes the class of a function after its suitable devices changed.
    pub(super) fn class_function_again(&mut self, id: FunctionId) {
        self.leave_class(id);
        self.enter_class(id);
        self.policy.function_changed(&self.state, id);
    }

    /// The devices that a function may run on now.
    pub(super) fn suits_now(&self, id: FunctionId) -> Suits {
        let function = self.state.function(id);
        if function.suspended.is_empty() {
            return function.suits.clone();
        }
        let in_pool = |index: usize| DeviceId(u16::try_from(index).expect("a device's index is its id"));
        let devices = (0..self.state.devices.len()).map(in_pool);
        let may = devices.filter(|device| function.suits.contains(*device) && !function.suspended.contains(device));
        Suits::Only(may.collect())
    }
}
