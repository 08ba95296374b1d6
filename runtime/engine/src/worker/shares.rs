//! Shares of clients: sets and removes them, tells the scheduler how long launches kept the device
//! busy, and measures what each client received.

use super::{InFlight, Worker};
use crate::clock;
use crate::error::{EngineError, InvokeError};
use crate::meter::{Meter, Promise};
use crate::share::{ShareClient, ShareStatistics};
use atoll_core::tokens::{ShareSpec, ShareState};
use atoll_core::{ClientId, LaneId, LaunchId, Nanos, TaskId};
use atoll_device::{Completion, DeviceError, LaunchStatus};

impl Worker {
    /// Sets or changes the share of a client in a lane.
    pub(super) fn set_share(
        &mut self,
        client: &ShareClient,
        lane: LaneId,
        share: ShareSpec,
    ) -> Result<(), EngineError> {
        if let Some(reason) = &self.lost {
            return Err(EngineError::Device(DeviceError::Lost(reason.clone())));
        }
        let (id, now) = (self.lanes.client(client), clock::now());
        self.scheduler.set_share(now, lane, id, share, &mut self.pending_actions).map_err(EngineError::Share)?;
        self.actions.extend(self.pending_actions.drain(..));
        let is_here = |task: &TaskId| self.scheduler.lane_of(*task) == Some(lane);
        let ready = self.invocations.iter().filter(|(task, other)| other.ready_as == Some(id) && is_here(task));
        let (ready, window_ns) = (ready.count() as u32, self.scheduler.token_config().window_ns());
        let meters = &mut self.lanes.meters;
        let meter = meters.entry((lane, id)).or_insert_with(|| Meter::new(now.0, window_ns, ready));
        meter.change_share(now.0);
        Ok(())
    }

    /// Removes the shares of a client. Invocations of an instance end; those of a tenant go on.
    /// Returns whether there was a share.
    pub(super) fn remove_share(&mut self, client: &ShareClient) -> bool {
        let (id, now) = (self.lanes.client(client), clock::now());
        let lanes: Vec<LaneId> = self.lanes.meters.keys().filter(|key| key.1 == id).map(|key| key.0).collect();
        for lane in &lanes {
            self.scheduler.remove_share(now, *lane, id, &mut self.pending_actions);
            self.lanes.meters.remove(&(*lane, id));
        }
        self.actions.extend(self.pending_actions.drain(..));
        if let Some(instance) = &client.instance {
            let is_its = |submission: &crate::event::Submission| submission.client() == *client;
            let tasks = self.invocations.iter().filter(|(_, other)| is_its(&other.submission));
            let tasks: Vec<TaskId> = tasks.map(|(task, _)| *task).collect();
            tasks.into_iter().for_each(|task| self.cancel(task, InvokeError::UnknownInstance(instance.clone())));
        }
        !lanes.is_empty()
    }

    /// Refuses an invocation for an instance that does not exist.
    pub(super) fn check_instance(&self, client: &ShareClient) -> Result<(), InvokeError> {
        let Some(instance) = &client.instance else { return Ok(()) };
        let id = self.lanes.known_client(client);
        let has_share = id.is_some_and(|id| self.lanes.meters.keys().any(|key| key.1 == id));
        if has_share { Ok(()) } else { Err(InvokeError::UnknownInstance(instance.clone())) }
    }

    /// A lane closed: its shares hold in the default lane from now on.
    pub(super) fn move_meters(&mut self, lane: LaneId) {
        let keys: Vec<(LaneId, ClientId)> = self.lanes.meters.keys().filter(|key| key.0 == lane).copied().collect();
        for key in keys {
            if let Some(meter) = self.lanes.meters.remove(&key) {
                self.lanes.meters.entry((LaneId::DEFAULT, key.1)).or_insert(meter);
            }
        }
    }

    // Work.

    /// Notes whether an invocation is ready, that is, whether its client has work.
    pub(super) fn note_ready(&mut self, task: TaskId, client: Option<ClientId>) {
        let before = std::mem::replace(&mut self.invocation(task).ready_as, client);
        if !self.lanes.meters.is_empty() && before != client {
            self.count_ready(task, before, client);
        }
    }

    /// Counts a ready invocation of a client as begun or ended, in the meters of its client.
    fn count_ready(&mut self, task: TaskId, before: Option<ClientId>, after: Option<ClientId>) {
        let now = clock::now();
        if let Some(key) = before.and_then(|client| self.meter_of(task, client)) {
            self.lanes.meters.entry(key).and_modify(|meter| meter.end(now.0));
        }
        if let Some(key) = after.and_then(|client| self.meter_of(task, client)) {
            self.lanes.meters.entry(key).and_modify(|meter| meter.begin(now.0));
        }
    }

    /// The key of the meter for an invocation: in the lane of its function, or in the default lane
    /// once that lane has closed.
    fn meter_of(&self, task: TaskId, client: ClientId) -> Option<(LaneId, ClientId)> {
        let own = self.invocations.get(&task)?.submission.chain.stages[0].function.lane;
        let keys = [(own, client), (LaneId::DEFAULT, client)];
        keys.into_iter().find(|key| self.lanes.meters.contains_key(key))
    }

    /// Tells the scheduler how long a launch that ended kept the device busy, and measures it.
    pub(super) fn note_busy(&mut self, completion: &Completion, launch: InFlight, now: Nanos) {
        if self.lanes.meters.is_empty() {
            return;
        }
        let Some(busy_ns) = busy_ns(completion) else { return };
        self.scheduler.note_busy(completion.launch, busy_ns);
        let Some(client) = self.invocation(launch.task).ready_as else { return };
        let Some(key) = self.meter_of(launch.task, client) else { return };
        let Some(promise) = self.promise_of(key.0, client) else { return };
        if let Some(meter) = self.lanes.meters.get_mut(&key) {
            let ended = completion.ended_ns.min(now.0);
            let began = ended.saturating_sub(busy_ns);
            meter.received(began, ended);
            // The launches of a client follow one another.
            meter.close_until(began, promise);
        }
    }

    /// Stops running blocks of a task whose token is over: without this, a long block would keep
    /// the device beyond the limit.
    pub(super) fn interrupt_recalled(&mut self, task: TaskId) {
        if self.lanes.meters.is_empty() || self.lost.is_some() || !self.scheduler.is_recalled(task) {
            return;
        }
        // Those behind the first one leave at their entry.
        let its = self.launches.iter().filter(|(_, launch)| launch.task == task);
        let Some((id, launch)) = its.min_by_key(|(id, _)| **id).map(|(id, launch)| (*id, *launch)) else { return };
        // The device stops whatever runs in the queue.
        let is_before = |(other, of): (&LaunchId, &InFlight)| of.queue == launch.queue && *other < id;
        if self.launches.iter().any(is_before) {
            return;
        }
        // A block that is longer than a token would begin anew with each one, so of two tokens in a
        // row one lets it finish; the time beyond the limit is paid back.
        let invocation = self.invocation(task);
        if invocation.recalled.take() != Some(launch.step) {
            invocation.recalled = Some(launch.step);
            self.device.interrupt(launch.queue, id, u64::MAX);
        }
    }

    // Reports.

    /// The shares and what their clients received.
    pub(super) fn share_statistics(&mut self) -> Vec<ShareStatistics> {
        let now = clock::now();
        let keys: Vec<(LaneId, ClientId)> = self.lanes.meters.keys().copied().collect();
        let mut found = Vec::with_capacity(keys.len());
        for (lane, client) in keys {
            let Some(state) = self.share_state(lane, client, now) else { continue };
            let is_its = |launch: &InFlight| self.invocations[&launch.task].ready_as == Some(client);
            let is_idle = !self.launches.values().any(is_its);
            let window_ns = self.scheduler.token_config().window_ns();
            let promise = promise(state.share, window_ns);
            let name = self.lanes.name_of(client).clone();
            let Some(meter) = self.lanes.meters.get_mut(&(lane, client)) else { continue };
            if is_idle {
                meter.close_until(now.0, promise);
            }
            found.push(ShareStatistics {
                client: name,
                lane,
                share: state.share,
                window_ns,
                received_ns: state.received_ns,
                received_ratio: meter.received_ratio(),
                error_max: meter.error_max,
                windows: meter.windows,
                overshoot: meter.overshoot.clone(),
                tokens: state.tokens,
                recalls: state.recalls,
                has_token: state.has_token,
            });
        }
        found.sort_by(|a, b| (a.lane, &a.client).cmp(&(b.lane, &b.client)));
        found
    }

    fn share_state(&self, lane: LaneId, client: ClientId, now: Nanos) -> Option<ShareState> {
        self.scheduler.shares(now, lane).into_iter().find(|state| state.client == client)
    }

    fn promise_of(&self, lane: LaneId, client: ClientId) -> Option<Promise> {
        let share = self.scheduler.share_of(lane, client)?;
        Some(promise(share, self.scheduler.token_config().window_ns()))
    }
}

fn promise(share: ShareSpec, window_ns: u64) -> Promise {
    Promise { request_ns: share.request().of(window_ns), limit_ns: share.limit().of(window_ns) }
}

/// How long a launch kept the device busy: the time in which at least one compute unit ran its
/// blocks, or a little more; `None` if the device does not report it.
fn busy_ns(completion: &Completion) -> Option<u64> {
    let Completion { started_ns, ended_ns, busy_ns, status, .. } = *completion;
    if started_ns == 0 {
        // Evicted before its first block.
        return (status == LaunchStatus::Evicted && busy_ns == 0).then_some(0);
    }
    let spanned = ended_ns.saturating_sub(started_ns);
    Some(if busy_ns == 0 && status != LaunchStatus::Evicted { spanned } else { spanned.min(busy_ns) })
}
