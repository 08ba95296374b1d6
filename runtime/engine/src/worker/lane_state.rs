//! State of lanes and of the clients in them.

use crate::error::EngineError;
use atoll_core::{ClientId, LaneId, Tenant};
use crossbeam_channel::Sender;
use std::collections::BTreeMap;

/// The worker's state of lanes, besides the scheduler's.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    /// The compute units of open lanes.
    pub(super) units: BTreeMap<LaneId, Vec<u32>>,
    /// The callers that wait for a lane to be closed.
    pub(super) closing: BTreeMap<LaneId, Sender<Result<(), EngineError>>>,
    /// The scheduler's ids of tenants, as many as there are tenants with accounts.
    clients: BTreeMap<Tenant, ClientId>,
}

impl Lanes {
    /// The scheduler's id of a tenant.
    pub(super) fn client(&mut self, tenant: &Tenant) -> ClientId {
        if let Some(&client) = self.clients.get(tenant) {
            return client;
        }
        let client = ClientId(self.clients.len() as u32);
        self.clients.insert(tenant.clone(), client);
        client
    }
}
