//! State of lanes and of the clients in them.

use super::memory_gate::MemoryGate;
use crate::error::EngineError;
use crate::meter::Meter;
use crate::share::{ShareClient, divisible};
use atoll_core::packing::Layout;
use atoll_core::tokens::{Ppm, ShareSpec, Span};
use atoll_core::{ClientId, LaneId};
use atoll_device::DeviceInfo;
use crossbeam_channel::Sender;
use std::collections::{BTreeMap, BTreeSet};

/// The worker's state of lanes, besides the scheduler's.
#[derive(Debug)]
pub(super) struct Lanes {
    /// The compute units of open lanes.
    pub(super) units: BTreeMap<LaneId, Vec<u32>>,
    /// Closing lanes, with the callers that wait for them, if any.
    pub(super) closing: BTreeMap<LaneId, Option<Sender<Result<(), EngineError>>>>,
    /// Lanes that the scheduler has closed and the device failed to close.
    pub(super) unclosed: BTreeSet<LaneId>,
    /// The clients with shares.
    pub(super) shares: BTreeMap<ClientId, Sharer>,
    /// The memory of instances that have a limit.
    pub(super) memory: BTreeMap<ClientId, MemoryGate>,
    /// The compute units of clients whose lane the engine chooses.
    pub(super) layout: Layout,
    /// The open lanes of the layout.
    pub(super) spans: BTreeMap<Span, LaneId>,
    /// The scheduler's ids of the clients.
    clients: BTreeMap<ShareClient, ClientId>,
    /// The clients by id.
    names: BTreeMap<ClientId, ShareClient>,
    /// Instances that were removed and whose last invocations have not ended.
    leaving: BTreeSet<ClientId>,
    /// The next id. Ids are not used again, so that no share applies to invocations of another
    /// client.
    next: u32,
}

/// A client with a share.
#[derive(Debug)]
pub(super) struct Sharer {
    /// The lane in which it has the share.
    pub(super) lane: LaneId,
    /// The share as it was set.
    pub(super) share: ShareSpec,
    /// The part of the device's compute units that it has with a token.
    pub(super) granted: Ppm,
    /// Measures the device time that it receives.
    pub(super) meter: Meter,
    /// The sum of received time multiplied by `granted`, in nanoseconds of a millionth of the
    /// device.
    pub(super) received_part_ns: u128,
}

impl Lanes {
    pub(super) fn new(device: &DeviceInfo) -> Lanes {
        Lanes::over(Layout::new(divisible(device)))
    }

    fn over(layout: Layout) -> Lanes {
        Lanes {
            units: BTreeMap::new(),
            closing: BTreeMap::new(),
            unclosed: BTreeSet::new(),
            shares: BTreeMap::new(),
            memory: BTreeMap::new(),
            layout,
            spans: BTreeMap::new(),
            clients: BTreeMap::new(),
            names: BTreeMap::new(),
            leaving: BTreeSet::new(),
            next: 0,
        }
    }

    /// The scheduler's id of a client; assigns one to a new client.
    pub(super) fn client(&mut self, name: &ShareClient) -> ClientId {
        if let Some(client) = self.known_client(name) {
            return client;
        }
        let client = ClientId(self.next);
        self.next += 1;
        self.clients.insert(name.clone(), client);
        self.names.insert(client, name.clone());
        client
    }

    /// Notes that an instance has a share, or has none any more.
    pub(super) fn note_instance(&mut self, client: ClientId, has_share: bool) {
        if has_share {
            self.leaving.remove(&client)
        } else {
            self.leaving.insert(client)
        };
    }

    /// Whether instances without a share are still known.
    pub(super) fn has_leaving(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// Forgets the instances that have neither a share nor a memory limit, and for which `has_work`
    /// does not hold. Returns them.
    pub(super) fn forget_left(&mut self, has_work: impl Fn(&ShareClient) -> bool) -> Vec<ClientId> {
        let is_left = |client: &ClientId| !self.memory.contains_key(client) && !has_work(&self.names[client]);
        let left: Vec<ClientId> = self.leaving.iter().copied().filter(is_left).collect();
        for client in &left {
            self.leaving.remove(client);
            if let Some(name) = self.names.remove(client) {
                self.clients.remove(&name);
            }
        }
        left
    }

    /// The scheduler's id of a client; `None` if it has none yet.
    pub(super) fn known_client(&self, name: &ShareClient) -> Option<ClientId> {
        self.clients.get(name).copied()
    }

    /// The client with an id.
    pub(super) fn name_of(&self, client: ClientId) -> &ShareClient {
        &self.names[&client]
    }

    /// The compute units of a lane, if the lane belongs to the layout.
    pub(super) fn span_of(&self, lane: LaneId) -> Option<Span> {
        self.spans.iter().find(|(_, other)| **other == lane).map(|(span, _)| *span)
    }

    /// The lane of a client, if the client is bound to compute units.
    pub(super) fn bound_lane(&self, client: ClientId) -> Option<LaneId> {
        if self.spans.is_empty() {
            return None;
        }
        let lane = self.shares.get(&client)?.lane;
        self.span_of(lane).map(|_| lane)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_core::packing::Divisible;

    fn instance(name: &str) -> ShareClient {
        ShareClient { tenant: Default::default(), instance: Some(name.into()) }
    }

    #[test]
    fn removed_instances_are_forgotten_once_their_invocations_have_ended() {
        let mut lanes = Lanes::over(Layout::new(Divisible { units: 2, step: 1, lanes_max: 4 }));
        let old = lanes.client(&instance("a"));
        lanes.note_instance(old, false);
        assert_eq!(
            (lanes.has_leaving(), lanes.forget_left(|_| true)),
            (true, Vec::new()),
            "one of its invocations runs"
        );
        assert_eq!(lanes.client(&instance("a")), old);
        assert_eq!((lanes.forget_left(|_| false), lanes.has_leaving()), (vec![old], false));
        assert_eq!(lanes.known_client(&instance("a")), None);
        let new = lanes.client(&instance("a"));
        assert_ne!(new, old, "ids are not used again");
        lanes.note_instance(new, false);
        lanes.note_instance(new, true);
        assert_eq!(lanes.forget_left(|_| false), Vec::new(), "it was created again");
        for round in 0..1_000 {
            let client = lanes.client(&instance(&format!("b{round}")));
            lanes.note_instance(client, false);
            lanes.forget_left(|_| false);
        }
        assert_eq!((lanes.clients.len(), lanes.names.len()), (1, 1));
    }
}
