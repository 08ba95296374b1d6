//! The fleet's methods for shares of clients, for requests and the autoscaler.

use super::FleetHandle;
use crate::member::Member;
use crate::shares::{ShareRoom, Shares};
use atoll_core::DeviceId;
use atoll_engine::{ChainRequest, EngineError, FunctionKey, ShareClient, ShareSpec};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{MutexGuard, PoisonError};

/// What requests have to know about the shares.
#[derive(Debug, Default)]
pub(super) struct Standings {
    /// The clients whose shares are not set.
    refused: BTreeSet<ShareClient>,
    /// The clients that are bound to one device.
    bound: BTreeMap<ShareClient, DeviceId>,
}

impl FleetHandle {
    pub(super) fn shares(&self) -> MutexGuard<'_, Shares> {
        self.0.shares.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets a share on all devices of a function, on one of them, or, without a function, on all
    /// devices.
    pub(super) fn put_share(
        &self,
        client: &ShareClient,
        function: Option<&FunctionKey>,
        share: ShareSpec,
        device: Option<DeviceId>,
    ) -> Result<(), EngineError> {
        let mut shares = self.shares();
        let devices = match function {
            None => self.ids().collect(),
            Some(function) => self.devices_of(function),
        };
        shares.set(client, function, share, device, &self.with_members(&devices))?;
        shares.retry(|function| self.members_of(function));
        self.note_shares(&shares);
        Ok(())
    }

    /// Removes the shares of a function from devices that do not have it, and retries refused
    /// shares on the freed units. `is_last` says that no device has the function any more.
    pub(super) fn displace_shares(&self, function: &FunctionKey, devices: &[DeviceId], is_last: bool) {
        let mut shares = self.shares();
        shares.displace(function, &self.with_members(devices));
        if is_last {
            shares.forget_refusals(function);
        }
        if !devices.is_empty() {
            shares.retry(|function| self.members_of(function));
        }
        self.note_shares(&shares);
    }

    pub(super) fn note_shares(&self, shares: &Shares) {
        let refused = shares.refusals().into_iter().map(|refusal| refusal.client).collect();
        let standings = Standings { refused, bound: shares.bound() };
        *self.0.standings.write().unwrap_or_else(PoisonError::into_inner) = standings;
    }

    /// Whether the share of a client is in force: no device refused it, and the device that the
    /// client is bound to takes requests.
    pub(super) fn share_holds(&self, client: &ShareClient) -> bool {
        let standings = self.0.standings.read().unwrap_or_else(PoisonError::into_inner);
        let is_open = |device: &DeviceId| self.is_open(*device);
        !standings.refused.contains(client) && standings.bound.get(client).is_none_or(is_open)
    }

    /// The device that a client is bound to.
    pub(super) fn bound_device(&self, client: &ShareClient) -> Option<DeviceId> {
        self.0.standings.read().unwrap_or_else(PoisonError::into_inner).bound.get(client).copied()
    }

    /// The device that the instance of a request is bound to.
    pub(super) fn bound_of(&self, request: &ChainRequest) -> Option<DeviceId> {
        let instance = request.instance.as_ref()?;
        let tenant = request.stages.first()?.function.tenant.clone();
        self.bound_device(&ShareClient { tenant, instance: Some(instance.clone()) })
    }

    /// Why a request cannot run where its instance is.
    pub(super) fn bound_elsewhere(&self, request: &ChainRequest, device: DeviceId) -> String {
        let instance = request.instance.as_deref().unwrap_or_default();
        let device = self.0.names.get(usize::from(device.0)).map_or("?", String::as_str);
        let functions: Vec<String> = request.stages.iter().map(|stage| format!("`{}`", stage.function)).collect();
        let functions = functions.join(", ");
        format!("instance `{instance}` is on {device}, which does not have all of {functions}; name another instance")
    }

    /// Whether a device takes requests.
    pub(super) fn is_open(&self, device: DeviceId) -> bool {
        !self.is_drained(device) && self.member(device).is_some_and(|member| !member.is_lost())
    }

    /// The devices of a function; none if it is not placed.
    fn devices_of(&self, function: &FunctionKey) -> Vec<DeviceId> {
        self.placements().get(function).map_or_else(Vec::new, |place| place.devices.clone())
    }

    /// The room for shares of all devices, in their order.
    pub(super) fn rooms(&self) -> Vec<ShareRoom> {
        let shares = self.shares();
        let room = |(device, member): (DeviceId, &dyn Member)| ShareRoom {
            divisible: member.divisible(),
            memory_bytes: member.memory_bytes(),
            is_open: self.is_open(device),
            held: shares.on(device, |function| self.devices_of(function)),
        };
        self.with_members(&self.ids().collect::<Vec<_>>()).into_iter().map(room).collect()
    }
}
