//! State of lanes and of the clients in them.

use crate::error::EngineError;
use crate::meter::Meter;
use crate::share::ShareClient;
use atoll_core::{ClientId, LaneId};
use crossbeam_channel::Sender;
use std::collections::BTreeMap;

/// The worker's state of lanes, besides the scheduler's.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    /// The compute units of open lanes.
    pub(super) units: BTreeMap<LaneId, Vec<u32>>,
    /// The callers that wait for a lane to be closed.
    pub(super) closing: BTreeMap<LaneId, Sender<Result<(), EngineError>>>,
    /// What clients with shares received.
    pub(super) meters: BTreeMap<(LaneId, ClientId), Meter>,
    /// The scheduler's ids of clients: of tenants with accounts, and of instances that exist or
    /// existed.
    clients: BTreeMap<ShareClient, ClientId>,
    /// By id.
    names: Vec<ShareClient>,
}

impl Lanes {
    /// The scheduler's id of a client.
    pub(super) fn client(&mut self, name: &ShareClient) -> ClientId {
        if let Some(client) = self.known_client(name) {
            return client;
        }
        let client = ClientId(self.names.len() as u32);
        self.clients.insert(name.clone(), client);
        self.names.push(name.clone());
        client
    }

    /// The scheduler's id of a client that it knows.
    pub(super) fn known_client(&self, name: &ShareClient) -> Option<ClientId> {
        self.clients.get(name).copied()
    }

    /// The client with an id.
    pub(super) fn name_of(&self, client: ClientId) -> &ShareClient {
        &self.names[client.0 as usize]
    }
}
