//! Shares of clients in the scheduler: which tasks have tokens, and what happens when a token ends.
//! [`crate::tokens`] decides which client gets a token.

use crate::device_scheduler::DeviceScheduler;
use crate::dispatch::preempt;
use crate::event::{Action, Event, TaskSpec};
use crate::ids::{Class, ClientId, LaneId, LaunchId, Nanos, PreemptLevel, TaskId};
use crate::limits::HOST_QUEUE_TASKS_MAX;
use crate::padding::PadShape;
use crate::scheduler::Scheduler;
use crate::task::{Phase, Task};
use crate::tokens::{BusyTime, Ppm, ShareError, ShareSpec, ShareState, Span, TokenConfig, TokenLedger};
use std::ops::Range;

/// How often, for one event, the lanes of a ledger react to each other's tokens. If changes are
/// left after that, they continue with a tick that is due at once.
const SETTLE_ROUNDS_MAX: usize = 4;

impl DeviceScheduler {
    /// Sets the rule, window and shortest token. Lanes that have shares already keep theirs.
    pub fn configure_tokens(&mut self, config: TokenConfig) {
        self.token_config = config;
    }

    /// Makes a lane join the ledger of the default lane. Its clients are bound to these compute
    /// units, and their partitions are parts of the device. Clients whose compute units overlap
    /// never have tokens at the same time. The lane must have no shares yet. The caller ensures
    /// that all shares can be kept together ([`crate::packing::Layout`]).
    ///
    /// # Errors
    /// [`ShareError::Lane`] if the lane is unknown or closing, or is the default lane.
    pub fn join_lane(&mut self, lane: LaneId, span: Span) -> Result<(), ShareError> {
        let at = self.place_of(lane).filter(|&at| at > 0 && !self.lanes[at].is_closing);
        self.lanes[at.ok_or(ShareError::Lane(lane))?].span = Some(span);
        Ok(())
    }

    /// Sets or changes the share of a client in a lane. From now on its tasks in this lane issue
    /// launches only while the client has a token. A new partition takes effect with its next
    /// token. A client has at most one share among the default lane and the lanes that joined its
    /// ledger: if it has one in another of these lanes, the share and its account move here. The
    /// client's launches in the other lanes are evicted, and its tasks follow once none of their
    /// launches is on the device.
    ///
    /// # Errors
    /// If the lane is unknown or closing, cannot honour its shares together, or has too many of
    /// them. On error nothing has changed.
    pub fn set_share(
        &mut self,
        now: Nanos,
        lane: LaneId,
        client: ClientId,
        share: ShareSpec,
        actions: &mut Vec<Action>,
    ) -> Result<(), ShareError> {
        let at = self.place_of(lane).filter(|&at| !self.lanes[at].is_closing).ok_or(ShareError::Lane(lane))?;
        let is_shared = |other: usize| other != at && self.has_ledger_of(at, other);
        let elsewhere = (0..self.lanes.len()).filter(|other| is_shared(*other));
        let elsewhere = elsewhere.map(|other| self.lanes[other].launches_of(client)).sum();
        let before = self.ledger_of(at).and_then(|tokens| tokens.lane_of(client));
        self.lend_ledger(at);
        let set = self.lanes[at].set_share(now, client, share, self.token_config, elsewhere);
        self.return_ledger(at);
        set?;
        if before != Some(lane) {
            self.send_away(at, client, actions);
        }
        self.tell(at, now, Event::Tick, actions);
        self.settle(now, actions);
        self.move_tasks(now, actions);
        Ok(())
    }

    /// Removes the share of a client in a lane; `false` if it has none. Its launches on the device
    /// are evicted. Once they have ended, its tasks may issue at any time: the caller cancels tasks
    /// that must not continue.
    pub fn remove_share(&mut self, now: Nanos, lane: LaneId, client: ClientId, actions: &mut Vec<Action>) -> bool {
        let Some(at) = self.place_of(lane) else { return false };
        self.lend_ledger(at);
        let was_there = self.lanes[at].remove_share(now, client, actions);
        self.return_ledger(at);
        if was_there {
            self.tell(at, now, Event::Tick, actions);
            self.settle(now, actions);
            self.move_tasks(now, actions);
        }
        was_there
    }

    /// The share of a client in a lane.
    pub fn share_of(&self, lane: LaneId, client: ClientId) -> Option<ShareSpec> {
        let tokens = self.ledger_of(self.place_of(lane)?)?;
        tokens.share_of(client).filter(|_| tokens.lane_of(client) == Some(lane))
    }

    /// Whether the token of a task's client has ended and launches of the client have not.
    pub fn is_recalled(&self, task: TaskId) -> bool {
        let at = self.lane_of(task).and_then(|lane| self.place_of(lane));
        at.is_some_and(|at| {
            let client = self.lanes[at].tasks[&task].spec.client;
            self.ledger_of(at).is_some_and(|tokens| tokens.is_draining(client))
        })
    }

    // The ledger that lanes have in common.

    /// The ledger of the lane at an index: its own, or that of the default lane if it joined it.
    pub(crate) fn ledger_of(&self, at: usize) -> Option<&TokenLedger> {
        let at = if self.lanes[at].span.is_some() { 0 } else { at };
        self.lanes[at].tokens.as_deref()
    }

    /// Whether two lanes use the same ledger.
    pub(crate) fn has_ledger_of(&self, at: usize, other: usize) -> bool {
        let has_first = |at: usize| at == 0 || self.lanes[at].span.is_some();
        at == other || (has_first(at) && has_first(other))
    }

    /// Lends the ledger of the default lane to a lane that joined it.
    pub(crate) fn lend_ledger(&mut self, at: usize) {
        if self.lanes[at].span.is_some() {
            self.lanes[at].tokens = self.lanes[0].tokens.take();
        }
    }

    pub(crate) fn return_ledger(&mut self, at: usize) {
        if self.lanes[at].span.is_some() {
            self.lanes[0].tokens = self.lanes[at].tokens.take();
        }
    }

    /// Lets the lanes of the shared ledger react to tokens that were given or ended while one of
    /// them handled an event.
    pub(crate) fn settle(&mut self, now: Nanos, actions: &mut Vec<Action>) {
        if self.lanes.len() == 1 || self.lanes.iter().all(|lane| lane.span.is_none()) {
            return;
        }
        for _ in 0..SETTLE_ROUNDS_MAX {
            if !self.lanes[0].tokens.as_mut().is_some_and(|tokens| tokens.take_changed()) {
                return;
            }
            for at in 0..self.lanes.len() {
                if at == 0 || self.lanes[at].span.is_some() {
                    self.tell(at, now, Event::Tick, actions);
                }
            }
        }
    }

    /// Whether changes are left after [`DeviceScheduler::settle`].
    pub(crate) fn is_unsettled(&self) -> bool {
        let tokens = self.lanes[0].tokens.as_ref();
        tokens.is_some_and(|tokens| tokens.is_changed()) && self.lanes.iter().any(|lane| lane.span.is_some())
    }

    /// The settings of tokens.
    pub fn token_config(&self) -> TokenConfig {
        self.token_config
    }

    /// The shares in a lane and the state of their clients.
    pub fn shares(&self, now: Nanos, lane: LaneId) -> Vec<ShareState> {
        let tokens = self.place_of(lane).and_then(|at| self.ledger_of(at));
        tokens.map_or_else(Vec::new, |tokens| tokens.shares_in(now, lane).collect())
    }

    /// Notes when a launch kept the device busy. Must be called directly before the launch's
    /// [`Event::LaunchEnded`]. Without it, a client with a share is charged the time since its
    /// previous launch ended.
    pub fn note_busy(&mut self, launch: LaunchId, busy: BusyTime) {
        self.device.measured = Some((launch, busy));
    }

    /// The device time that blocks of a client were charged, in nanoseconds, because they were
    /// co-scheduled in launches of other clients that have ended since the last call. `lane` is the
    /// lane of its share.
    pub fn take_padded(&mut self, lane: LaneId, client: ClientId) -> u64 {
        let Some(at) = self.place_of(lane) else { return 0 };
        let at = if self.lanes[at].span.is_some() { 0 } else { at };
        self.lanes[at].tokens.as_mut().map_or(0, |tokens| tokens.take_padded(client))
    }

    /// Moves the shares of a closing lane to the default lane, where its tasks continue. Clients
    /// that have a share in the default lane keep that one. The default lane may then be
    /// overcommitted; still no client gets more than its limit.
    pub(crate) fn hand_shares_over(&mut self, now: Nanos, at: usize) {
        let [default, others @ ..] = &mut self.lanes[..] else { return };
        let closing = &others[at - 1];
        if closing.span.is_some() {
            if let Some(tokens) = &mut default.tokens {
                tokens.unbind_lane(closing.lane);
            }
        } else if let Some(tokens) = &closing.tokens {
            let to = default.tokens.get_or_insert_with(|| Box::new(TokenLedger::new(self.token_config)));
            tokens.hand_over(to, now);
        }
    }
}

impl Scheduler {
    fn set_share(
        &mut self,
        now: Nanos,
        client: ClientId,
        share: ShareSpec,
        config: TokenConfig,
        launches_elsewhere: u32,
    ) -> Result<(), ShareError> {
        let tokens = self.tokens.get_or_insert_with(|| Box::new(TokenLedger::new(config)));
        let is_new = !tokens.has(client);
        let set = tokens.set(now, client, share);
        if set.is_ok() {
            tokens.bind(client, self.lane, self.span);
        }
        if set.is_ok() && is_new {
            let of_client = |task: &TaskId| self.tasks[task].spec.client == client;
            let launches = self.device_queues.iter().flat_map(|queue| queue.tasks()).filter(of_client).count();
            tokens.count_in_flight(now, client, launches as u32 + launches_elsewhere);
        }
        self.tokens.take_if(|tokens| tokens.is_empty());
        set
    }

    /// Number of launches of a client on the device.
    fn launches_of(&self, client: ClientId) -> u32 {
        let of_client = |task: &TaskId| self.tasks[task].spec.client == client;
        self.device_queues.iter().flat_map(|queue| queue.tasks()).filter(of_client).count() as u32
    }

    fn remove_share(&mut self, now: Nanos, client: ClientId, actions: &mut Vec<Action>) -> bool {
        let lane = self.lane;
        let Some(tokens) = self.tokens.as_mut().filter(|tokens| tokens.lane_of(client) == Some(lane)) else {
            return false;
        };
        let mut recalled = Vec::new();
        let was_there = tokens.remove(now, client, &mut recalled);
        self.recall(&recalled, actions);
        self.tokens.take_if(|tokens| tokens.is_empty());
        was_there
    }

    /// Gives tokens to clients whose tasks could issue, and evicts the launches of clients whose
    /// tokens have ended. Returns whether a token was given.
    pub(crate) fn grant_tokens(&mut self, actions: &mut Vec<Action>) -> bool {
        let Some(tokens) = &mut self.tokens else { return false };
        tokens.begin_wants_in(self.lane);
        for id in self.device_queues.iter().flat_map(|queue| &queue.bound) {
            let task = &self.tasks[id];
            if task.wants_device() && !self.away.contains(&task.spec.client) {
                tokens.want_in(self.lane, task.spec.client, task.class());
            }
        }
        let mut recalled = Vec::new();
        let is_given = tokens.grant(self.now, &mut recalled);
        if tokens.has_bound_clients() {
            // Another lane may have ended their tokens.
            recalled = tokens.draining().collect();
        }
        self.recall(&recalled, actions);
        self.tokens.take_if(|tokens| tokens.is_empty());
        is_given
    }

    /// Evicts the launches of clients from the device.
    pub(crate) fn recall(&mut self, clients: &[ClientId], actions: &mut Vec<Action>) {
        if clients.is_empty() || self.preempt_level < PreemptLevel::Deactivate {
            return;
        }
        for id in self.device_queues.iter().flat_map(|queue| &queue.bound) {
            let task = self.tasks.get_mut(id).expect("bound tasks exist");
            if task.phase == Phase::Running && clients.contains(&task.spec.client) {
                actions.extend(preempt(task, &mut self.counters));
            }
        }
    }

    /// Whether tokens allow a task to issue. The token of a client that moved to another lane does
    /// not count here, since it is for other compute units.
    pub(crate) fn has_token(&self, task: &Task) -> bool {
        let Some(tokens) = self.tokens.as_ref() else { return true };
        tokens.may_issue(self.now, task.spec.client, task.class()) && !self.away.contains(&task.spec.client)
    }

    /// Whether a client has a token or may get one in this window.
    pub(crate) fn may_get_token(&self, client: ClientId, class: Class) -> bool {
        self.tokens.as_ref().is_none_or(|tokens| tokens.may_begin(self.now, client, class))
    }

    /// The first task of a host queue whose client has a token or may get one in this window.
    pub(crate) fn first_that_may_start(&self, class: Class) -> Option<TaskId> {
        let queue = &self.host_queues[class as usize];
        if self.tokens.is_none() {
            return queue.first();
        }
        queue.waiting().find(|&(_, client)| self.may_get_token(client, class)).map(|(id, _)| id)
    }

    /// Whether the host queue has room for a task. A client with a share may fill an equal part of
    /// the queue, so that it does not keep others out. Tasks that are not ready count, too.
    pub(crate) fn has_host_room(&self, spec: &TaskSpec) -> bool {
        let Some(tokens) = self.tokens.as_ref().filter(|tokens| tokens.has(spec.client)) else { return true };
        let part = HOST_QUEUE_TASKS_MAX / tokens.len().max(1);
        let holds_place = |task: &&Task| {
            let is_here = matches!(task.phase, Phase::Waiting | Phase::Unready);
            is_here && task.spec.client == spec.client && task.class() == spec.class
        };
        self.waiting(spec.class) < part || self.tasks.values().filter(holds_place).count() < part
    }

    /// The rank of the most urgent real-time task that is ready. A task whose client has used up
    /// its limit does not count: evicting other tasks would not let it run.
    pub(crate) fn rt_first(&self) -> Option<u64> {
        if self.tokens.is_none() {
            return self.rt_tasks.first().map(|&(rank, _)| rank);
        }
        let may_run = |id: &TaskId| self.may_get_token(self.tasks[id].spec.client, Class::RealTime);
        self.rt_tasks.iter().find(|(_, id)| may_run(id)).map(|&(rank, _)| rank)
    }

    /// The waiting task of a class that starts next. A client with a share has one started task
    /// with steps to issue at a time, with or without a token: the ledger only knows of the work of
    /// started tasks.
    pub(crate) fn first_waiting(&self, class: Class) -> Option<TaskId> {
        let Some(tokens) = &self.tokens else { return self.host_queues[class as usize].first() };
        let mut last = None;
        let mut may_start = |client: ClientId| {
            let is_other = last.replace(client) != Some(client);
            is_other && (!tokens.has(client) || !self.has_started(client, class))
        };
        self.host_queues[class as usize].waiting().find(|&(_, client)| may_start(client)).map(|(id, _)| id)
    }

    /// Whether a task of a client and class is bound to a device queue and has steps to issue, or
    /// has launches in a queue that is full.
    fn has_started(&self, client: ClientId, class: Class) -> bool {
        self.bound_of(client, class)
            .any(|(queue, task)| !task.has_issued_all() || !self.device_queues[queue as usize].has_room())
    }

    /// The tasks of a client and class that are bound to device queues, with their queues.
    fn bound_of(&self, client: ClientId, class: Class) -> impl Iterator<Item = (u32, &Task)> {
        let queues = self.device_queues.iter().zip(0..);
        let bound = queues.flat_map(move |(queue, number)| queue.bound.iter().map(move |id| (number, &self.tasks[id])));
        bound.filter(move |(_, task)| task.spec.client == client && task.class() == class)
    }

    /// The queue for a best-effort task of a client with a share: the queue that the client uses
    /// already, so that its launches run in order, or else the queue with the fewest tasks.
    pub(crate) fn queue_of_share(&self, task: &Task, queues: Range<u32>) -> Option<u32> {
        let mut own = self.bound_of(task.spec.client, Class::BestEffort).map(|(queue, _)| queue);
        own.find(|queue| queues.contains(queue)).or_else(|| {
            let has_room = |queue: &u32| self.device_queues[*queue as usize].has_room();
            queues.filter(has_room).min_by_key(|&queue| self.device_queues[queue as usize].bound.len())
        })
    }

    /// Whether a task belongs to a client with a share.
    pub(crate) fn has_share(&self, task: &Task) -> bool {
        self.tokens.as_ref().is_some_and(|tokens| tokens.has(task.spec.client))
    }

    /// Whether blocks of a task may be co-scheduled: its client has not used up its limit.
    pub(crate) fn may_pad(&self, id: TaskId) -> bool {
        let client = self.tasks[&id].spec.client;
        self.may_get_token(client, Class::BestEffort) && !self.away.contains(&client)
    }

    /// The time in nanoseconds that co-scheduled blocks are charged to their client: the time that
    /// they would have taken on the client's whole partition.
    pub(crate) fn padding_charge(&self, id: TaskId, shape: PadShape, ns: u64) -> u64 {
        let Some(tokens) = &self.tokens else { return 0 };
        // A client of a lane that joined a ledger has all compute units of the lane.
        let is_bound = self.span.is_some();
        let partition = if is_bound { Ppm::WHOLE } else { tokens.partition_of(self.tasks[&id].spec.client) };
        let own = u64::from(self.compute_units) * u64::from(partition.millionths());
        (ns.saturating_mul(u64::from(shape.compute_units)).saturating_mul(1_000_000) / own.max(1)).min(ns)
    }
}
