//! Shares of clients: the devices on which they are set.

use crate::member::Member;
use atoll_core::DeviceId;
use atoll_engine::{EngineError, FunctionKey, ShareClient, ShareSpec};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// A share that is not in effect, because a device of its function refused it. Requests that name
/// its instance are rejected on all devices of the function until the device has room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareRefusal {
    /// The client.
    pub client: ShareClient,
    /// The device that refused it.
    pub device: String,
    /// Why.
    pub reason: String,
}

/// All shares, including those of functions that are on no device.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    held: BTreeMap<ShareClient, Held>,
    /// Shares of `held` that a device refused when their function was loaded: the device's name and
    /// its reason.
    refused: BTreeMap<ShareClient, (String, String)>,
}

#[derive(Clone, Debug)]
struct Held {
    /// The function whose devices have the share; `None` for all devices.
    function: Option<FunctionKey>,
    share: ShareSpec,
}

/// Sets a share on those devices that are not lost. If one of them refuses it, the share `before`
/// is restored on all of them, and the error has the name of the device.
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
    /// Sets a share on those devices that are not lost. If one of them refuses it, nothing changes.
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

    /// Sets the shares of a function on the devices onto which it is about to be loaded. A share
    /// that one of them refuses is set on none of them. The largest shares come first, so that a
    /// share for which rounding leaves no room is a small one.
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

    /// Tries again to set refused shares, after others were removed or made smaller.
    pub(crate) fn retry<'a>(&mut self, devices_of: impl Fn(&FunctionKey) -> Vec<(DeviceId, &'a dyn Member)>) {
        let refused: Vec<ShareClient> = self.refused.keys().cloned().collect();
        for client in refused {
            let function = self.held.get(&client).and_then(|held| held.function.as_ref());
            let devices = function.map(&devices_of).unwrap_or_default();
            self.place_one(&client, &devices);
        }
    }

    /// Removes the shares of a function from devices that no longer have it. They are set again on
    /// the devices onto which it is loaded next.
    pub(crate) fn displace(&mut self, function: &FunctionKey, devices: &[(DeviceId, &dyn Member)]) {
        for (client, _) in self.of(function) {
            for (_, member) in devices {
                member.remove_share(client);
            }
        }
    }

    /// Forgets refusals of the shares of a function that is no longer on any device.
    pub(crate) fn forget_refusals(&mut self, function: &FunctionKey) {
        let Shares { held, refused } = self;
        refused.retain(|client, _| held.get(client).is_none_or(|held| held.function.as_ref() != Some(function)));
    }

    /// The shares that are refused.
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

/// The size of a share, by which shares are sorted: request times partition.
fn size_of(share: &ShareSpec) -> u64 {
    u64::from(share.request().millionths()) * u64::from(share.partition().millionths())
}
