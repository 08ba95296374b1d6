//! What is noted of lanes and of the clients in them.

use crate::error::EngineError;
use atoll_core::{ClientId, LaneId, Tenant};
use crossbeam_channel::Sender;
use std::collections::BTreeMap;

/// What the worker knows of lanes beside the scheduler.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    /// The compute units of lanes that were opened.
    pub(super) units: BTreeMap<LaneId, Vec<u32>>,
    /// Who waits for a lane to be closed.
    pub(super) closing: BTreeMap<LaneId, Sender<Result<(), EngineError>>>,
    /// The numbers under which the scheduler knows tenants, as many as have accounts.
    clients: BTreeMap<Tenant, ClientId>,
}

impl Lanes {
    /// The number under which the scheduler knows a tenant.
    pub(super) fn client(&mut self, tenant: &Tenant) -> ClientId {
        if let Some(&client) = self.clients.get(tenant) {
            return client;
        }
        let client = ClientId(self.clients.len() as u32);
        self.clients.insert(tenant.clone(), client);
        client
    }
}
