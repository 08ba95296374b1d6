//! Shares of clients: on which devices they hold.

use crate::member::Member;
use atoll_core::DeviceId;
use atoll_engine::{EngineError, FunctionKey, ShareClient, ShareSpec};
use std::collections::BTreeMap;

/// All shares, also those of functions that are on no device.
#[derive(Debug, Default)]
pub(crate) struct Shares(BTreeMap<ShareClient, Held>);

#[derive(Clone, Debug)]
struct Held {
    /// Its devices are those of the share; all devices if `None`.
    function: Option<FunctionKey>,
    share: ShareSpec,
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
        let before = self.0.get(client).map(|held| held.share);
        let mut done: Vec<&dyn Member> = Vec::new();
        for (_, member) in devices.iter().filter(|(_, member)| !member.is_lost()) {
            if let Err(error) = member.set_share(client, share) {
                for member in done {
                    // What held before holds again.
                    if before.is_none_or(|share| member.set_share(client, share).is_err()) {
                        member.remove_share(client);
                    }
                }
                return Err(error);
            }
            done.push(*member);
        }
        self.0.insert(client.clone(), Held { function: function.cloned(), share });
        Ok(())
    }

    /// Removes a share from all devices; `false` if there is none.
    pub(crate) fn remove(&mut self, client: &ShareClient, members: &[Box<dyn Member>]) -> bool {
        let was_there = self.0.remove(client).is_some();
        for member in members {
            member.remove_share(client);
        }
        was_there
    }

    /// Brings the shares of a function to the devices that it was loaded onto. A device that cannot
    /// honour one refuses requests that name its instance.
    pub(crate) fn place(&self, function: &FunctionKey, devices: &[(DeviceId, &dyn Member)]) {
        for (client, held) in self.of(function) {
            for (_, member) in devices {
                if let Err(error) = member.set_share(client, held.share) {
                    let device = member.name();
                    tracing::error!(%client, device, %error, "a share does not hold on a device of its function");
                }
            }
        }
    }

    /// Removes the shares of a function from devices that it left; they hold again where it is
    /// loaded next.
    pub(crate) fn displace(&self, function: &FunctionKey, devices: &[(DeviceId, &dyn Member)]) {
        for (client, _) in self.of(function) {
            for (_, member) in devices {
                member.remove_share(client);
            }
        }
    }

    fn of(&self, function: &FunctionKey) -> impl Iterator<Item = (&ShareClient, &Held)> {
        self.0.iter().filter(move |(_, held)| held.function.as_ref() == Some(function))
    }
}
