//! Shares of clients: sets and removes them, tells the scheduler how long launches kept the device
//! busy, and measures the device time that each client receives.

use super::Worker;
use super::in_flight::InFlight;
use super::lane_state::Sharer;
use crate::clock;
use crate::error::{EngineError, InvokeError};
use crate::invocation::Invocation;
use crate::meter::{Meter, Promise};
use crate::share::{ShareClient, ShareStatistics};
use atoll_core::tokens::{BusyTime, Ppm, ShareSpec, ShareState};
use atoll_core::{ClientId, LaneId, LaunchId, Nanos, TaskId};
use atoll_device::{Completion, DeviceError, LaunchStatus};

impl Worker {
    /// Sets or changes the share of a client: in the given lane, or on compute units that the
    /// layout chooses.
    pub(super) fn set_share(
        &mut self,
        client: &ShareClient,
        lane: Option<LaneId>,
        share: ShareSpec,
    ) -> Result<(), EngineError> {
        if let Some(reason) = &self.lost {
            return Err(EngineError::Device(DeviceError::Lost(reason.clone())));
        }
        let id = self.lanes.client(client);
        let set = match lane {
            None => self.place_share(id, share),
            Some(lane) => self.put_share(id, lane, share, share.partition()).map(|()| self.leave_layout(id)),
        };
        self.note_instance(client, id);
        set
    }

    /// Notes whether an instance has a share, and forgets instances that were removed.
    pub(super) fn note_instance(&mut self, client: &ShareClient, id: ClientId) {
        if client.instance.is_some() {
            self.lanes.note_instance(id, self.lanes.shares.contains_key(&id));
            self.forget_instances();
        }
    }

    /// Forgets the removed instances whose invocations have all ended.
    pub(super) fn forget_instances(&mut self) {
        if !self.lanes.has_leaving() {
            return;
        }
        let Worker { lanes, invocations, .. } = self;
        let is_its = |invocation: &Invocation, client: &ShareClient| invocation.submission.client() == *client;
        let left = lanes.forget_left(|client| invocations.values().any(|invocation| is_its(invocation, client)));
        left.into_iter().for_each(|client| self.gather_no_more_of(client));
    }

    /// Records a share that was set, and begins to measure the device time of its client.
    pub(super) fn note_share(&mut self, id: ClientId, lane: LaneId, share: ShareSpec, granted: Ppm, now: Nanos) {
        let window_ns = self.scheduler.token_config().window_ns();
        let ready = self.invocations.values().filter(|invocation| invocation.ready_as == Some(id)).count() as u32;
        let new = || Sharer { lane, share, granted, meter: Meter::new(now.0, window_ns, ready), received_part_ns: 0 };
        let sharer = self.lanes.shares.entry(id).or_insert_with(new);
        if sharer.share.quotas() != share.quotas() {
            sharer.meter.change_share(now.0);
        }
        (sharer.lane, sharer.share, sharer.granted) = (lane, share, granted);
    }

    /// Removes the share of a client. Cancels the invocations of an instance; those of a tenant
    /// continue. Returns whether there was a share.
    pub(super) fn remove_share(&mut self, client: &ShareClient) -> bool {
        let Some(id) = self.lanes.known_client(client) else { return false };
        let now = clock::now();
        let removed = self.lanes.shares.remove(&id);
        if let Some(sharer) = &removed {
            self.scheduler.remove_share(now, sharer.lane, id, &mut self.pending_actions);
            self.actions.extend(self.pending_actions.drain(..));
        }
        if let Some(instance) = &client.instance {
            let reason = InvokeError::InstanceRemoved(instance.clone());
            // Before invocations are cancelled, so that a batch that closes now is cancelled as well.
            self.answer_waiting_of(id, &reason);
            self.act_on_batches();
            let is_its = |submission: &crate::event::Submission| submission.client() == *client;
            let tasks = self.invocations.iter().filter(|(_, other)| is_its(&other.submission));
            let tasks: Vec<TaskId> = tasks.map(|(task, _)| *task).collect();
            tasks.into_iter().for_each(|task| self.cancel(task, reason.clone()));
        }
        self.leave_layout(id);
        self.note_instance(client, id);
        removed.is_some()
    }

    /// Rejects an invocation for an instance that does not exist.
    pub(super) fn check_instance(&self, client: &ShareClient) -> Result<(), InvokeError> {
        let Some(instance) = &client.instance else { return Ok(()) };
        let has_share = self.lanes.known_client(client).is_some_and(|id| self.lanes.shares.contains_key(&id));
        if has_share { Ok(()) } else { Err(InvokeError::UnknownInstance(instance.clone())) }
    }

    // Work.

    /// Notes the client of an invocation that is ready; `None` if the invocation is not ready. A
    /// client with ready invocations has work.
    pub(super) fn note_ready(&mut self, task: TaskId, client: Option<ClientId>) {
        let before = std::mem::replace(&mut self.invocation(task).ready_as, client);
        if self.lanes.shares.is_empty() || before == client {
            return;
        }
        let now = clock::now();
        if let Some(sharer) = before.and_then(|client| self.lanes.shares.get_mut(&client)) {
            sharer.meter.end(now.0);
        }
        if let Some(sharer) = client.and_then(|client| self.lanes.shares.get_mut(&client)) {
            sharer.meter.begin(now.0);
        }
    }

    /// Tells the scheduler how long an ended launch kept the device busy, and adds it to the
    /// measurement of its client.
    pub(super) fn note_busy(&mut self, completion: &Completion, launch: InFlight, now: Nanos) {
        if self.lanes.shares.is_empty() {
            return;
        }
        let Some(busy_ns) = busy_ns(completion) else { return };
        // A launch that was evicted before its first block has no times.
        let ended = if completion.ended_ns == 0 { now } else { now.min(Nanos(completion.ended_ns)) };
        let busy = BusyTime { ended, ns: busy_ns };
        self.scheduler.note_busy(completion.launch, busy);
        let Some(client) = self.invocation(launch.task).ready_as else { return };
        self.charge_units(client, busy_ns);
        let window_ns = self.scheduler.token_config().window_ns();
        let Some(sharer) = self.lanes.shares.get_mut(&client) else { return };
        sharer.meter.received(busy.began().0, ended.0);
        // The launches of a client run one after the other, so earlier windows are complete.
        sharer.meter.close_until(busy.began().0, promise(sharer.share, window_ns));
    }

    /// Adds the time of co-scheduled blocks that have ended to the measurement of their clients.
    pub(super) fn note_padded(&mut self, now: Nanos) {
        let lanes: Vec<_> = self.lanes.shares.iter().map(|(client, sharer)| (*client, sharer.lane)).collect();
        for (client, lane) in lanes {
            let ns = self.scheduler.take_padded(lane, client);
            if ns == 0 {
                continue;
            }
            self.charge_units(client, ns);
            if let Some(sharer) = self.lanes.shares.get_mut(&client) {
                sharer.meter.received(now.0.saturating_sub(ns), now.0);
            }
        }
    }

    /// Interrupts the running blocks of a task whose token has ended. Otherwise a long block would
    /// occupy the device beyond the limit.
    pub(super) fn interrupt_recalled(&mut self, task: TaskId) {
        if self.lanes.shares.is_empty() || self.lost.is_some() || !self.scheduler.is_recalled(task) {
            return;
        }
        // Only the first launch has running blocks; the blocks of the others exit at entry.
        let its = self.launches.iter().filter(|(_, launch)| launch.task == task);
        let Some((id, launch)) = its.min_by_key(|(id, _)| **id).map(|(id, launch)| (*id, *launch)) else { return };
        // An interrupt stops the launch that runs in the queue, which must be this task's.
        let is_before = |(other, of): (&LaunchId, &InFlight)| of.queue == launch.queue && *other < id;
        if self.launches.iter().any(is_before) {
            return;
        }
        // A block that takes longer than a token would restart with each token and never finish. So
        // at the end of every second token it runs to its end; the overuse becomes debt.
        let invocation = self.invocation(task);
        if invocation.recalled.take() != Some(launch.step) {
            invocation.recalled = Some(launch.step);
            self.device.interrupt(launch.queue, id, u64::MAX);
        }
    }

    // Reports.

    /// The shares and the device time that their clients received.
    pub(super) fn share_statistics(&mut self) -> Vec<ShareStatistics> {
        let now = clock::now();
        let clients: Vec<ClientId> = self.lanes.shares.keys().copied().collect();
        let mut found = Vec::with_capacity(clients.len());
        for client in clients {
            found.extend(self.statistics_of(client, now));
        }
        found.sort_by(|a, b| (a.lane, &a.client).cmp(&(b.lane, &b.client)));
        found
    }

    fn statistics_of(&mut self, client: ClientId, now: Nanos) -> Option<ShareStatistics> {
        let (bound, unbound) = self.binding_of(client);
        let lane = self.lanes.shares.get(&client)?.lane;
        let state = self.share_state(lane, client, now)?;
        let is_its = |launch: &InFlight| self.invocations[&launch.task].ready_as == Some(client);
        let is_idle = !self.launches.values().any(is_its);
        let window_ns = self.scheduler.token_config().window_ns();
        let units = u128::from(self.shared.device.compute_units);
        let name = self.lanes.name_of(client).clone();
        let sharer = self.lanes.shares.get_mut(&client)?;
        let meter = &mut sharer.meter;
        if is_idle {
            meter.close_until(now.0, promise(sharer.share, window_ns));
        }
        Some(ShareStatistics {
            client: name,
            lane,
            share: sharer.share,
            granted: sharer.granted,
            bound,
            area: self.lanes.layout.rect(client),
            unbound,
            window_ns,
            min_token_ns: self.scheduler.token_config().min_token_ns(),
            received_ns: state.received_ns,
            received_unit_ns: sharer.received_part_ns * units / 1_000_000,
            received_ratio: meter.received_ratio(),
            error_max: meter.error_max,
            windows: meter.windows,
            overshoot: meter.overshoot.clone(),
            tokens: state.tokens,
            recalls: state.recalls,
            has_token: state.has_token,
        })
    }

    fn share_state(&self, lane: LaneId, client: ClientId, now: Nanos) -> Option<ShareState> {
        self.scheduler.shares(now, lane).into_iter().find(|state| state.client == client)
    }
}

fn promise(share: ShareSpec, window_ns: u64) -> Promise {
    Promise { request_ns: share.request().of(window_ns), limit_ns: share.limit().of(window_ns) }
}

/// How long a launch kept the device busy, in nanoseconds: an upper bound of the time in which at
/// least one compute unit ran its blocks. `None` if the device does not report it.
fn busy_ns(completion: &Completion) -> Option<u64> {
    let Completion { started_ns, ended_ns, busy_ns, status, .. } = *completion;
    if started_ns == 0 {
        // Evicted before its first block.
        return (status == LaunchStatus::Evicted && busy_ns == 0).then_some(0);
    }
    let spanned = ended_ns.saturating_sub(started_ns);
    Some(if busy_ns == 0 && status != LaunchStatus::Evicted { spanned } else { spanned.min(busy_ns) })
}
