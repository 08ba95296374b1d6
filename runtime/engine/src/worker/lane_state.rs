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
use std::collections::BTreeMap;

/// The worker's state of lanes, besides the scheduler's.
#[derive(Debug)]
pub(super) struct Lanes {
    /// The compute units of open lanes.
    pub(super) units: BTreeMap<LaneId, Vec<u32>>,
    /// Closing lanes, with the callers that wait for them, if any.
    pub(super) closing: BTreeMap<LaneId, Option<Sender<Result<(), EngineError>>>>,
    /// The clients with shares.
    pub(super) shares: BTreeMap<ClientId, Sharer>,
    /// The memory of instances that have a limit.
    pub(super) memory: BTreeMap<ClientId, MemoryGate>,
    /// The compute units of clients whose lane the engine chooses.
    pub(super) layout: Layout,
    /// The open lanes of the layout.
    pub(super) spans: BTreeMap<Span, LaneId>,
    /// The scheduler's ids of all clients that were ever named.
    clients: BTreeMap<ShareClient, ClientId>,
    /// The clients by id.
    names: Vec<ShareClient>,
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
        Lanes {
            units: BTreeMap::new(),
            closing: BTreeMap::new(),
            shares: BTreeMap::new(),
            memory: BTreeMap::new(),
            layout: Layout::new(divisible(device)),
            spans: BTreeMap::new(),
            clients: BTreeMap::new(),
            names: Vec::new(),
        }
    }

    /// The scheduler's id of a client; assigns one to a new client.
    pub(super) fn client(&mut self, name: &ShareClient) -> ClientId {
        if let Some(client) = self.known_client(name) {
            return client;
        }
        let client = ClientId(self.names.len() as u32);
        self.clients.insert(name.clone(), client);
        self.names.push(name.clone());
        client
    }

    /// The scheduler's id of a client; `None` if it has none yet.
    pub(super) fn known_client(&self, name: &ShareClient) -> Option<ClientId> {
        self.clients.get(name).copied()
    }

    /// The client with an id.
    pub(super) fn name_of(&self, client: ClientId) -> &ShareClient {
        &self.names[client.0 as usize]
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
