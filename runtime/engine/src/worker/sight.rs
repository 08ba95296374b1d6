//! Whose kernels may read which constants.
//!
//! A constant on the device is a piece of memory of its own, held once. It is shown to the tenants that have a function with it, and to nobody else; where tenants have processes of their own, those of the
//! others have no way to it. Functions are shown their constants as soon as these have places, while the bytes are still being written, so that a launch hardly ever has to wait until its
//! executor has mapped them: an invocation that would have to is cold for so long. What a tenant was shown it keeps until the constant leaves the device or the last function with it is unloaded.

use super::Worker;
use crate::constants::Membership;
use crate::function::Function;
use crate::memory::Allocation;
use atoll_core::residency::ItemId;
use atoll_core::{DeviceOffset, TaskId};
use atoll_device::DeviceError;
use std::collections::HashSet;
use std::sync::Arc;

impl Worker {
    /// Takes the device's memory for a constant; its place is free again where there is none.
    pub(super) fn reserve_constant(&mut self, place: Allocation) -> Result<Allocation, DeviceError> {
        let answer = self.device.reserve_constant(place.offset(), place.bytes());
        match self.check(answer) {
            Ok(()) => Ok(place),
            Err(error) => {
                self.memory.free(place);
                Err(error)
            }
        }
    }

    /// Gives back what constants had that nobody needs.
    pub(super) fn free_constants(&mut self, places: impl IntoIterator<Item = Allocation>) {
        for place in places {
            if self.lost.is_none() {
                self.device.release_constant(place.offset());
            }
            self.memory.free(place);
        }
    }

    /// Shows the constants of a set to all whose functions have it.
    pub(super) fn show_set(&mut self, set: ItemId) {
        let with_set = self.functions.values().filter(|loaded| loaded.membership.set == set);
        let functions: Vec<_> = with_set.map(|loaded| (Arc::clone(&loaded.function), loaded.membership.clone())).collect();
        functions.iter().for_each(|(function, membership)| self.show_constants(function, membership));
    }

    /// Shows a function its constants, as far as they have places.
    pub(super) fn show_constants(&mut self, function: &Function, membership: &Membership) {
        let tenant = function.key.tenant.as_str();
        self.device.show_constants(tenant, &self.constants.places(membership));
        if !self.device.sees_constants(tenant) {
            self.unseeing.insert(function.id);
        }
    }

    /// A function is about to leave: hides its constants from its tenant, if no other function of that has them.
    pub(super) fn hide_constants(&mut self, function: &Function, membership: &Membership) {
        self.unseeing.remove(&function.id);
        if self.lost.is_some() {
            return;
        }
        let others =
            self.functions.values().filter(|loaded| loaded.function.id != function.id && loaded.function.key.tenant == function.key.tenant);
        let kept: HashSet<DeviceOffset> = others.flat_map(|loaded| self.constants.places(&loaded.membership)).collect();
        let hidden: Vec<_> = self.constants.places(membership).into_iter().filter(|place| !kept.contains(place)).collect();
        self.device.hide_constants(function.key.tenant.as_str(), &hidden);
    }

    /// Whether an invocation has to wait until its functions can read what they were shown.
    pub(super) fn is_unseeing(&self, task: TaskId) -> bool {
        !self.unseeing.is_empty()
            && self.invocations[&task].submission.chain.stages.iter().any(|stage| self.unseeing.contains(&stage.function.id))
    }

    /// Lets those go on whose constants are mapped now. Returns whether there were any.
    pub(super) fn take_sights(&mut self) -> bool {
        if self.unseeing.is_empty() || self.lost.is_some() {
            return false;
        }
        let before = self.unseeing.len();
        let (functions, device) = (&self.functions, &self.device);
        // Those that are still being loaded have no invocations; when they are, they are looked at again.
        self.unseeing.retain(|id| functions.get(id).is_some_and(|loaded| !device.sees_constants(loaded.function.key.tenant.as_str())));
        let any = self.unseeing.len() < before;
        if any {
            self.serve_cold();
            self.act();
        }
        any
    }
}
