//! Shares of clients: on which devices they hold.

use crate::member::Member;
use atoll_core::DeviceId;
use atoll_engine::{EngineError, FunctionKey, ShareClient, ShareSpec};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// A share that does not hold, because a device of its function refused it. Requests that name its
/// instance are refused on all devices of the function until there is room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareRefusal {
    /// The client.
    pub client: ShareClient,
    /// The device that refused it.
    pub device: String,
    /// Why.
    pub reason: String,
}

/// All shares, also those of functions that are on no device.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    held: BTreeMap<ShareClient, Held>,
    /// Shares of `held` that a device refused when their function was loaded: the device, and why.
    refused: BTreeMap<ShareClient, (String, String)>,
}

#[derive(Clone, Debug)]
struct Held {
    /// Its devices are those of the share; all devices if `None`.
    function: Option<FunctionKey>,
    share: ShareSpec,
}

/// Sets a share on devices that are not lost. If one of them refuses it, what held before holds
/// again on all; the error names the device.
fn set_on_all(
    client: &ShareClient,
    before: Option<ShareSpec>,
    share: ShareSpec,
    devices: &[(DeviceId, &dyn Member)],
) -> Result<(), (String, EngineError)> {
    let mut done: Vec<&dyn Member> = Vec::new();
    for (_, member) in devices.iter().filter(|(_, member)| !member.is_lost()) {
        if let Err(error) = member.set_share(client, share) {
            for member in done {
                if before.is_none_or(|share| member.set_share(client, share).is_err()) {
                    member.remove_share(client);
                }
            }
            return Err((member.name().to_owned(), error));
        }
        done.push(*member);
    }
    Ok(())
}

impl Shares {
    /// Sets a share on devices that are not lost. If one of them refuses it, all are as before.
    pub(crate) fn set(
        &mut self,
        client: &ShareClient,
        function: Option<&FunctionKey>,
        share: ShareSpec,
        devices: &[(DeviceId, &dyn Member)],
    ) -> Result<(), EngineError> {
        let before = self.held.get(client).filter(|_| !self.refused.contains_key(client)).map(|held| held.share);
        set_on_all(client, before, share, devices).map_err(|(_, error)| error)?;
        self.refused.remove(client);
        self.held.insert(client.clone(), Held { function: function.cloned(), share });
        Ok(())
    }

    /// Removes a share from all devices; `false` if there is none.
    pub(crate) fn remove(&mut self, client: &ShareClient, members: &[Box<dyn Member>]) -> bool {
        let was_there = self.held.remove(client).is_some();
        self.refused.remove(client);
        for member in members {
            member.remove_share(client);
        }
        was_there
    }

    /// Brings the shares of a function to the devices that it is about to be loaded onto. A share
    /// that one of them refuses holds on none of them. The largest come first, so that what rounding
    /// leaves no room for is small.
    pub(crate) fn place(&mut self, function: &FunctionKey, devices: &[(DeviceId, &dyn Member)]) {
        let mut own: Vec<(u64, ShareClient)> =
            self.of(function).map(|(client, held)| (size_of(&held.share), client.clone())).collect();
        own.sort_by_key(|(size, _)| Reverse(*size));
        own.iter().for_each(|(_, client)| self.place_one(client, devices));
    }

    fn place_one(&mut self, client: &ShareClient, devices: &[(DeviceId, &dyn Member)]) {
        let Some(held) = self.held.get(client) else { return };
        match set_on_all(client, None, held.share, devices) {
            Ok(()) => drop(self.refused.remove(client)),
            Err((device, error)) => {
                tracing::error!(%client, device, %error, "a share does not hold on the devices of its function");
                self.refused.insert(client.clone(), (device, error.to_string()));
            }
        }
    }

    /// Tries again to set the shares that were refused: others were removed or made smaller.
    pub(crate) fn retry<'a>(&mut self, devices_of: impl Fn(&FunctionKey) -> Vec<(DeviceId, &'a dyn Member)>) {
        let refused: Vec<ShareClient> = self.refused.keys().cloned().collect();
        for client in refused {
            let function = self.held.get(&client).and_then(|held| held.function.as_ref());
            let devices = function.map(&devices_of).unwrap_or_default();
            self.place_one(&client, &devices);
        }
    }

    /// Removes the shares of a function from devices that it left; they hold again where it is
    /// loaded next.
    pub(crate) fn displace(&mut self, function: &FunctionKey, devices: &[(DeviceId, &dyn Member)]) {
        for (client, _) in self.of(function) {
            for (_, member) in devices {
                member.remove_share(client);
            }
        }
    }

    /// Forgets refusals of the shares of a function that is on no device any more.
    pub(crate) fn forget_refusals(&mut self, function: &FunctionKey) {
        let Shares { held, refused } = self;
        refused.retain(|client, _| held.get(client).is_none_or(|held| held.function.as_ref() != Some(function)));
    }

    /// The shares that do not hold.
    pub(crate) fn refusals(&self) -> Vec<ShareRefusal> {
        let refused = self.refused.iter();
        refused
            .map(|(client, (device, reason))| ShareRefusal {
                client: client.clone(),
                device: device.clone(),
                reason: reason.clone(),
            })
            .collect()
    }

    fn of(&self, function: &FunctionKey) -> impl Iterator<Item = (&ShareClient, &Held)> {
        self.held.iter().filter(move |(_, held)| held.function.as_ref() == Some(function))
    }
}

/// Time times compute units, by which shares are sorted.
fn size_of(share: &ShareSpec) -> u64 {
    u64::from(share.request().millionths()) * u64::from(share.partition().millionths())
}
