//! The device of a chain: a request that calls several functions one after the other on one device.
//! It takes no slot, and does not wait in the pool.

use super::event::FunctionId;
use super::policies::alone_ns;
use super::pool::Pool;
use crate::ids::DeviceId;

impl Pool {
    /// The device on which a chain of functions is expected to end first; `None` if no device that
    /// takes requests can run all of them. `chains` is the number of chains in flight on a device,
    /// which are assumed to take as long as this one. Of equal devices, the one with the fewest
    /// requests.
    pub fn device_of_chain(&self, functions: &[FunctionId], chains: impl Fn(DeviceId) -> u64) -> Option<DeviceId> {
        let functions = functions.iter().map(|id| self.state.functions.get(*id)).collect::<Option<Vec<_>>>()?;
        let (first, rest) = functions.split_first()?;
        let active = |class| &self.state.classes.get(class).active;
        let runs_all = |device: &DeviceId| rest.iter().all(|function| active(function.class).contains(*device));
        active(first.class).iter().filter(runs_all).min_by_key(|&device| {
            let (member, chains) = (self.state.member(device), chains(device));
            let own: u64 = functions.iter().map(|function| alone_ns(&self.state, function, device)).sum();
            let before = member.best_effort.left_ns(self.now).saturating_add(member.urgent.left_ns(self.now));
            let end = before.saturating_add(own.saturating_mul(chains.saturating_add(1)));
            (end, member.in_flight.len() as u64 + chains, device)
        })
    }
}
