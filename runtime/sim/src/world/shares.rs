//! Shares of clients in a simulation, and the device time that they received.

use super::{Simulation, World};
use crate::device::Ended;
use crate::error::SimError;
use crate::report::Report;
use atoll_core::tokens::{BusyTime, ShareSpec, ShareState, TokenConfig};
use atoll_core::{ClientId, Nanos, TaskId};
use std::ops::Range;

/// The share of a client in the lane of its calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareSetup {
    /// The id of the client.
    pub client: String,
    /// Its share.
    pub share: ShareSpec,
    /// When the share is removed. From then on the client may issue at any time.
    pub removed_at: Option<Nanos>,
}

/// The device time that a client received.
#[derive(Clone, Debug)]
pub struct Received {
    /// The id of the client.
    pub client: String,
    /// The times in nanoseconds during which its launches kept the device busy, in the order in
    /// which the launches ended.
    pub busy: Vec<Range<u64>>,
    /// Its share at the end of the run; `None` if it has none.
    pub share: Option<ShareState>,
}

impl Received {
    /// The fraction of a period in which launches of the client ran.
    pub fn part_of(&self, period: Range<u64>) -> f64 {
        let within = |busy: &Range<u64>| busy.end.min(period.end).saturating_sub(busy.start.max(period.start));
        let busy: u64 = self.busy.iter().map(within).sum();
        busy as f64 / (period.end - period.start).max(1) as f64
    }
}

/// Runs a simulation in which clients have shares. Also returns the device time that each client
/// received, in the order of the workload.
///
/// # Errors
/// As [`crate::simulate`], and if a share is for an unknown client or its lane rejects it.
pub fn simulate_shares(
    simulation: &Simulation<'_>,
    shares: &[ShareSetup],
    tokens: TokenConfig,
) -> Result<(Report, Vec<Received>), SimError> {
    let mut world = World::new(simulation)?;
    world.set_shares(shares, tokens)?;
    world.run(Nanos(simulation.workload.duration_ns), |_| false);
    let received = world.received();
    Ok((world.report(), received))
}

/// The shares in a run.
#[derive(Default)]
pub(super) struct Shares {
    /// The busy times of each client's launches; empty if no client has a share.
    busy: Vec<Vec<Range<u64>>>,
    /// The times at which shares are removed, with their clients, in descending order.
    removals: Vec<(Nanos, usize)>,
}

impl World<'_> {
    fn set_shares(&mut self, shares: &[ShareSetup], tokens: TokenConfig) -> Result<(), SimError> {
        self.node.scheduler.configure_tokens(tokens);
        self.shares.busy = vec![Vec::new(); self.callers.len()];
        for setup in shares {
            let clients = &self.simulation.workload.clients;
            let client = clients.iter().position(|client| client.id == setup.client);
            let client = client.ok_or_else(|| SimError::UnknownClient(setup.client.clone()))?;
            let lane = self.lane_of(client);
            let mut actions = Vec::new();
            self.node
                .scheduler
                .set_share(self.now, lane, ClientId(client as u32), setup.share, &mut actions)
                .map_err(|error| SimError::Share { client: setup.client.clone(), error })?;
            assert!(actions.is_empty(), "a share is set before the first call");
            self.shares.removals.extend(setup.removed_at.map(|at| (at, client)));
        }
        self.shares.removals.sort_unstable_by(|a, b| b.cmp(a));
        Ok(())
    }

    /// When the next share is removed.
    pub(super) fn next_removal(&self) -> Option<Nanos> {
        self.shares.removals.last().map(|&(at, _)| at)
    }

    pub(super) fn remove_shares(&mut self) {
        while let Some((_, client)) = self.shares.removals.pop_if(|(at, _)| *at <= self.now) {
            let (lane, mut actions) = (self.lane_of(client), Vec::new());
            self.node.scheduler.remove_share(self.now, lane, ClientId(client as u32), &mut actions);
            self.carry_out_all(None, actions);
        }
    }

    /// Tells the scheduler how long an ended launch kept the device busy.
    pub(super) fn note_busy(&mut self, task: TaskId, ended: &Ended) {
        if self.shares.busy.is_empty() {
            return;
        }
        let busy = ended.began.map_or(ended.at.0..ended.at.0, |began| began.0..ended.at.0);
        let time = BusyTime { ended: Nanos(busy.end), ns: busy.end - busy.start };
        self.node.scheduler.note_busy(ended.launch, time);
        self.shares.busy[self.owners[task.0 as usize]].push(busy);
    }

    fn received(&mut self) -> Vec<Received> {
        let busy = std::mem::take(&mut self.shares.busy);
        let clients = self.simulation.workload.clients.iter().zip(busy).enumerate();
        let received = clients.map(|(number, (client, busy))| Received {
            client: client.id.clone(),
            busy,
            share: self
                .node
                .scheduler
                .shares(self.now, self.lane_of(number))
                .into_iter()
                .find(|state| state.client == ClientId(number as u32)),
        });
        received.collect()
    }
}
