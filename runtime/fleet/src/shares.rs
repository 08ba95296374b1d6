//! Shares of clients: the devices on which they are set.

use crate::member::Member;
use atoll_core::DeviceId;
use atoll_core::packing::Divisible;
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

/// The room that a device has for shares.
#[derive(Clone, Debug)]
pub struct ShareRoom {
    /// How its compute units can be divided.
    pub divisible: Divisible,
    /// Device memory in bytes.
    pub memory_bytes: u64,
    /// Whether it takes requests: it is neither lost nor drained.
    pub is_open: bool,
    /// The shares that are set on it, by client.
    pub held: Vec<(ShareClient, ShareSpec)>,
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
    /// The only one of them that has the share, if it is bound to one.
    device: Option<DeviceId>,
    share: ShareSpec,
}

/// A device of a function.
type Device<'a> = (DeviceId, &'a dyn Member);

/// Sets a share on those devices that are not lost. If one of them refuses it, the share `before`
/// is restored on all of them, and the error has the name of the device.
fn set_on_all(
    client: &ShareClient,
    before: Option<ShareSpec>,
    share: ShareSpec,
    devices: &[Device<'_>],
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

impl Held {
    /// Those of the devices of its function that have the share, or why none has it: its device has
    /// no function of this name, or is lost.
    fn among<'a>(&self, devices: &[Device<'a>]) -> Result<Vec<Device<'a>>, (String, EngineError)> {
        // A function that is on no device brings its shares along when it is loaded.
        let Some(bound) = self.device.filter(|_| !devices.is_empty()) else { return Ok(devices.to_vec()) };
        let function = self.function.clone().unwrap_or_else(|| FunctionKey::local(""));
        let unservable = |device: String, reason: String| (device, EngineError::Unservable { name: function, reason });
        match devices.iter().find(|(device, _)| *device == bound) {
            Some((_, member)) if member.is_lost() => {
                let name = member.name().to_owned();
                let reason = format!("its instance is bound to {name}, which is lost");
                Err(unservable(name, reason))
            }
            Some(device) => Ok(vec![*device]),
            None => {
                let others: Vec<&str> = devices.iter().map(|(_, member)| member.name()).collect();
                let others = others.join(", ");
                let reason = format!("its instance is bound to device {}, and it is on {others} only", bound.0);
                Err(unservable(format!("device {}", bound.0), reason))
            }
        }
    }

    /// Whether a device has the share, given the devices of its function.
    fn is_on(&self, device: DeviceId, of_function: impl FnOnce(&FunctionKey) -> Vec<DeviceId>) -> bool {
        self.device.is_none_or(|bound| bound == device)
            && self.function.as_ref().is_none_or(|function| of_function(function).contains(&device))
    }
}

impl Shares {
    /// Sets a share on those of the devices of its function that are not lost, or on one of them.
    /// If one of them refuses it, nothing changes.
    pub(crate) fn set(
        &mut self,
        client: &ShareClient,
        function: Option<&FunctionKey>,
        share: ShareSpec,
        device: Option<DeviceId>,
        devices: &[Device<'_>],
    ) -> Result<(), EngineError> {
        let before = self.held.get(client).filter(|_| !self.refused.contains_key(client)).cloned();
        let held = Held { function: function.cloned(), device, share };
        let chosen = held.among(devices).map_err(|(_, error)| error)?;
        // Where the share was not before, a refusal leaves none.
        let share_before = before.as_ref().filter(|before| before.device == device).map(|before| before.share);
        set_on_all(client, share_before, share, &chosen).map_err(|(_, error)| error)?;
        if before.is_some_and(|before| before.device != device) {
            let left = devices.iter().filter(|(device, _)| !chosen.iter().any(|(chosen, _)| chosen == device));
            for (_, member) in left {
                member.remove_share(client);
            }
        }
        self.refused.remove(client);
        self.held.insert(client.clone(), held);
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
    pub(crate) fn place(&mut self, function: &FunctionKey, devices: &[Device<'_>]) {
        let mut own: Vec<(u64, ShareClient)> =
            self.of(function).map(|(client, held)| (size_of(&held.share), client.clone())).collect();
        own.sort_by_key(|(size, _)| Reverse(*size));
        own.iter().for_each(|(_, client)| self.place_one(client, devices));
    }

    fn place_one(&mut self, client: &ShareClient, devices: &[Device<'_>]) {
        let Some(held) = self.held.get(client) else { return };
        let placed = held.among(devices).and_then(|devices| set_on_all(client, None, held.share, &devices));
        match placed {
            Ok(()) => drop(self.refused.remove(client)),
            Err((device, error)) => {
                tracing::error!(%client, device, %error, "a share does not hold on the devices of its function");
                self.refused.insert(client.clone(), (device, error.to_string()));
            }
        }
    }

    /// Tries again to set refused shares, after others were removed or made smaller.
    pub(crate) fn retry<'a>(&mut self, devices_of: impl Fn(&FunctionKey) -> Vec<Device<'a>>) {
        let refused: Vec<ShareClient> = self.refused.keys().cloned().collect();
        for client in refused {
            let function = self.held.get(&client).and_then(|held| held.function.as_ref());
            let devices = function.map(&devices_of).unwrap_or_default();
            self.place_one(&client, &devices);
        }
    }

    /// Removes the shares of a function from devices that no longer have it. They are set again on
    /// the devices onto which it is loaded next.
    pub(crate) fn displace(&mut self, function: &FunctionKey, devices: &[Device<'_>]) {
        let mut lost = Vec::new();
        for (client, held) in self.of(function) {
            for (device, member) in devices {
                member.remove_share(client);
                if held.device == Some(*device) {
                    lost.push((client.clone(), member.name().to_owned()));
                }
            }
        }
        for (client, device) in lost {
            let reason = format!("function `{function}` is not on the device");
            self.refused.insert(client, (device, reason));
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

    /// The clients that are bound to a device.
    pub(crate) fn bound(&self) -> BTreeMap<ShareClient, DeviceId> {
        self.held.iter().filter_map(|(client, held)| Some((client.clone(), held.device?))).collect()
    }

    /// The shares that a device has, given the devices of functions.
    pub(crate) fn on(
        &self,
        device: DeviceId,
        devices_of: impl Fn(&FunctionKey) -> Vec<DeviceId>,
    ) -> Vec<(ShareClient, ShareSpec)> {
        let held = self.held.iter().filter(|(client, _)| !self.refused.contains_key(client));
        let held = held.filter(|(_, held)| held.is_on(device, &devices_of));
        held.map(|(client, held)| (client.clone(), held.share)).collect()
    }

    fn of(&self, function: &FunctionKey) -> impl Iterator<Item = (&ShareClient, &Held)> {
        self.held.iter().filter(move |(_, held)| held.function.as_ref() == Some(function))
    }
}

/// The size of a share, by which shares are sorted: request times partition.
fn size_of(share: &ShareSpec) -> u64 {
    u64::from(share.request().millionths()) * u64::from(share.partition().millionths())
}
