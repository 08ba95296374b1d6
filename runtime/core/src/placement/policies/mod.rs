//! Placement policies: which waiting request runs next, and on which device.
//!
//! To add a policy, write a file in this folder and a row in [`PLACEMENTS`]. Its name then works in
//! configuration and on the command line, and the tests and the cluster simulation cover it.

mod affinity;
mod balance;
mod cost;
mod deepest;
mod exclusive;
mod faster;
mod heads;
mod mlfqs;
mod round_robin;
mod srtf;
mod static_shares;

pub(super) use faster::alone_ns;

use super::config::PoolOptions;
use super::event::{FunctionId, GroupId, PoolAction};
use super::state::State;
use crate::ids::{DeviceId, Nanos};

/// A placement policy. The pool tells it what changed and asks for the next dispatch until there is
/// none. Real-time requests do not pass through it.
pub(super) trait Policy: Send {
    /// Whether it takes requests before their arrival into account.
    fn sees_future(&self) -> bool {
        false
    }

    /// The function's first waiting request, class or expected times may have changed. Also called
    /// when the function is removed.
    fn function_changed(&mut self, state: &State, function: FunctionId);

    /// The device's free slots or residents may have changed, or it was added or removed.
    fn device_changed(&mut self, _state: &State, _device: DeviceId) {}

    /// The number of best-effort requests of a group that wait or are in flight changed.
    fn group_changed(&mut self, _state: &State, _group: GroupId) {}

    /// Functions were added to groups or removed, or a group has another weight.
    fn weights_changed(&mut self, _state: &State) {}

    /// A best-effort request of a function arrived.
    fn arrived(&mut self, _state: &State, _function: FunctionId) {}

    /// Called once before the dispatches of a decision. May push moves.
    fn before(&mut self, _now: Nanos, _state: &State, _actions: &mut Vec<PoolAction>) {}

    /// The next request to dispatch, and a device of its class with a free slot.
    fn next(&mut self, now: Nanos, state: &State) -> Option<(FunctionId, DeviceId)>;

    /// Called when a choice of [`Policy::next`] is dispatched.
    fn dispatched(&mut self, _now: Nanos, _state: &State, _function: FunctionId, _device: DeviceId) {}

    /// The time after `now` at which the policy wants to decide again if no event comes first.
    fn wakeup(&self, _now: Nanos, _state: &State) -> Option<Nanos> {
        None
    }

    /// Called after the dispatches of a decision until it returns `None`. Returns a function to
    /// load onto a device that has room for it, or a function to unload. The pool carries out each
    /// before the next call.
    fn after(&mut self, _now: Nanos, _state: &State) -> Option<PoolAction> {
        None
    }
}

/// One row of the policy table.
#[derive(Clone, Copy, Debug)]
pub struct PlacementEntry {
    /// The name by which it is selected.
    pub name: &'static str,
    /// A description in one line, for help texts.
    pub about: &'static str,
    pub(super) make: fn(&PoolOptions) -> Box<dyn Policy>,
}

/// All policies.
pub const PLACEMENTS: &[PlacementEntry] = &[
    PlacementEntry {
        name: "cost",
        about: "the request with the lowest expected cost, by measured service and reload times, waits least; \
                functions stay where they are loaded unless waiting costs more than a reload",
        make: |options| Box::new(cost::Cost::new(options)),
    },
    PlacementEntry {
        name: "round-robin",
        about: "in the order of arrival to one device after the other, waiting for the next one",
        make: |_| Box::new(round_robin::RoundRobin::default()),
    },
    PlacementEntry {
        name: "balance",
        about: "in the order of arrival to any free device",
        make: |_| Box::new(balance::Balance::default()),
    },
    PlacementEntry {
        name: "srtf",
        about: "the shortest request first, to any free device",
        make: |options| Box::new(srtf::Srtf::new(options)),
    },
    PlacementEntry {
        name: "mlfqs",
        about: "a bucket of requests of similar duration is drawn at random, and its first request runs",
        make: |options| Box::new(mlfqs::Mlfqs::new(options)),
    },
    PlacementEntry {
        name: "exclusive",
        about: "every group has its own devices; a group in need takes an idle one from another",
        make: |options| Box::new(exclusive::Exclusive::new(options)),
    },
    PlacementEntry {
        name: "affinity",
        about: "fair queueing of groups by device time, counted tenfold on devices that do not hold the function",
        make: |_| Box::new(affinity::Affinity::default()),
    },
    PlacementEntry {
        name: "static",
        about: "every group has a fixed share of the slots",
        make: |_| Box::new(static_shares::StaticShares::default()),
    },
];

/// The default policy.
pub const PLACEMENT_DEFAULT: &str = "cost";

/// The policy with a name.
pub fn placement_by_name(name: &str) -> Option<&'static PlacementEntry> {
    PLACEMENTS.iter().find(|entry| entry.name == name)
}
