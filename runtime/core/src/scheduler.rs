//! The scheduler of one lane: host queues, device queues, and the tasks between them. `dispatch.rs`
//! has the decisions it takes after each event; `device_scheduler.rs` opens and closes lanes.

use crate::counters::Counters;
use crate::device_queue::{Abort, CoScheduled, DeviceQueue, InFlight};
use crate::device_scheduler::DeviceWide;
use crate::event::{Action, Event, LaunchEnd, Outcome, Step, TaskSpec};
use crate::host_queue::HostQueue;
use crate::ids::{CLASSES, Class, ClientId, LaneId, LaunchId, Nanos, PreemptLevel, QueueId, TaskId};
use crate::limits;
use crate::perturb::Perturbation;
use crate::policy::{Policy, PolicyEntry};
use crate::starvation::{Slice, Starvation};
use crate::task::{Phase, Progress, Task};
use crate::tokens::{BusyTime, Span, TokenLedger};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Configuration of a device's scheduler.
#[derive(Clone, Debug)]
pub struct SchedulerConfig {
    /// The policy, a row of [`crate::POLICIES`].
    pub policy: &'static PolicyEntry,
    /// Device queues of the default lane that policies see, at least 1; queue 0 has the highest
    /// priority.
    pub queues: u32,
    /// Whether each of those queues has a paired queue of the same priority, for second branches of
    /// forks. With them a lane has at most [`limits::DEVICE_QUEUES_MAX`] queues.
    pub paired_queues: bool,
    /// Launches that each queue holds, at least 1.
    pub queue_capacity: u32,
    /// How the device can preempt launches it was given.
    pub preempt_level: PreemptLevel,
    /// Whether the device can end a launch by force. If not, launches of tasks that are over exit
    /// by their epoch or run to their end.
    pub can_abort: bool,
    /// Compute units of the device; padding divides them.
    pub compute_units: u32,
    /// How long best-effort work may go without progress while real-time tasks are present, in
    /// nanoseconds. After that its oldest task gets the device for a short slice (see
    /// [`crate::BEST_EFFORT_SLICE_DIVISOR`]). If `None`, real-time tasks never wait for best-effort
    /// ones, and a full real-time load starves best-effort tasks.
    pub best_effort_wait_ns_max: Option<u64>,
    /// Seed for evicting running tasks at random points, for tests (see [`crate::perturb`]).
    pub perturb: Option<u64>,
}

/// The state of scheduling one lane.
pub(crate) struct Scheduler {
    /// Its lane.
    pub(crate) lane: LaneId,
    /// The device's index of the lane's first queue.
    pub(crate) first_queue: u32,
    /// Whether the lane is closing: it binds and issues no more, and evicts its launches.
    pub(crate) is_closing: bool,
    pub(crate) policy: Box<dyn Policy>,
    pub(crate) preempt_level: PreemptLevel,
    pub(crate) can_abort: bool,
    pub(crate) compute_units: u32,
    pub(crate) tasks: BTreeMap<TaskId, Task>,
    /// By [`Class`].
    pub(crate) host_queues: [HostQueue; 2],
    /// The queues that the policy sees, followed by their paired queues, if any.
    pub(crate) device_queues: Vec<DeviceQueue>,
    /// How many queues the policy sees.
    pub(crate) policy_queues: u32,
    /// Tasks that are bound to a paired queue.
    pub(crate) forked: u32,
    /// Launches in the device queues, by [`Class`].
    pub(crate) in_flight: [usize; 2],
    /// Blocks co-scheduled in launches of other tasks.
    pub(crate) co_scheduled_blocks: Vec<CoScheduled>,
    /// Real-time tasks that are ready and not finished, the most urgent first.
    pub(crate) rt_tasks: BTreeSet<(u64, TaskId)>,
    pub(crate) deadlines: BTreeSet<(Nanos, TaskId)>,
    /// Tasks that are ending and have launches in flight, by the time at which these are aborted.
    pub(crate) aborts: BTreeSet<(Nanos, TaskId)>,
    pub(crate) starvation: Option<Starvation>,
    pub(crate) perturbation: Option<Perturbation>,
    /// The compute units of the lane if it joined the ledger of the default lane. Such a lane has
    /// no ledger of its own.
    pub(crate) span: Option<Span>,
    /// Clients whose share moved to another lane of the ledger. Their tasks follow once idle.
    pub(crate) away: Vec<ClientId>,
    /// The shares of clients; `None` while no client has one. The ledger of the default lane is
    /// lent to a lane that joined it while that lane handles an event.
    pub(crate) tokens: Option<Box<TokenLedger>>,
    pub(crate) counters: Counters,
    pub(crate) now: Nanos,
    pub(crate) lost: bool,
}

impl Scheduler {
    /// The scheduler of a lane without tasks; its queues start at `first_queue` of the device.
    ///
    /// # Panics
    /// If the configuration has no queues, too many queues, or queues without room.
    pub(crate) fn new(config: &SchedulerConfig, lane: LaneId, first_queue: u32) -> Scheduler {
        assert!(config.compute_units > 0, "a device without compute units");
        let queues = config.queues.saturating_mul(if config.paired_queues { 2 } else { 1 });
        assert!((1..=limits::DEVICE_QUEUES_MAX).contains(&queues), "{queues} device queues");
        Scheduler {
            lane,
            first_queue,
            is_closing: false,
            policy: (config.policy.make)(),
            preempt_level: config.preempt_level,
            can_abort: config.can_abort,
            compute_units: config.compute_units,
            tasks: BTreeMap::new(),
            host_queues: CLASSES.map(|_| HostQueue::new(limits::HOST_QUEUE_TASKS_MAX)),
            device_queues: (0..queues).map(|_| DeviceQueue::new(config.queue_capacity)).collect(),
            policy_queues: config.queues,
            forked: 0,
            in_flight: [0; 2],
            co_scheduled_blocks: Vec::new(),
            rt_tasks: BTreeSet::new(),
            deadlines: BTreeSet::new(),
            aborts: BTreeSet::new(),
            starvation: config.best_effort_wait_ns_max.map(Starvation::new),
            perturbation: config.perturb.map(Perturbation::new),
            span: None,
            away: Vec::new(),
            tokens: None,
            counters: Counters::default(),
            now: Nanos(0),
            lost: false,
        }
    }

    /// Handles an event and appends the resulting actions.
    #[inline(never)]
    pub(crate) fn handle(&mut self, now: Nanos, event: Event, device: &mut DeviceWide, actions: &mut Vec<Action>) {
        assert!(now >= self.now, "time went back from {:?} to {now:?}", self.now);
        self.now = now;
        match event {
            Event::TaskArrived(spec) => self.arrive(spec, actions),
            Event::TaskReady { task } => self.ready(task),
            Event::TaskUnready { task } => self.unready(task),
            Event::TaskPrepared { task } => self.prepared(task, actions),
            Event::TaskFailed { task } => self.failed(task, actions),
            Event::LaunchEnded { launch, end } => {
                let busy = device.measured.take().filter(|(measured, _)| *measured == launch).map(|(_, busy)| busy);
                self.launch_ended(launch, end, busy, actions);
            }
            Event::HostStepDone { task, steps, next } => self.host_step_done(task, steps, next, actions),
            Event::CancelTask { task } => self.end(task, Outcome::Cancelled, actions),
            Event::DeviceLost => self.lose_device(actions),
            Event::Tick => {}
        }
        self.expire(actions);
        self.abort(actions);
        self.decide(device, actions);
    }

    /// When [`Event::Tick`] is due if no other event comes first.
    pub(crate) fn next_wakeup(&self) -> Option<Nanos> {
        let deadline = self.deadlines.first().map(|&(at, _)| at);
        let in_flight = self.device_queues.iter().any(|queue| queue.depth() > 0);
        let perturbation = self.perturbation.as_ref().filter(|_| in_flight && !self.is_closing).map(Perturbation::due);
        let abort = self.aborts.iter().map(|&(at, _)| at).find(|&at| at > self.now);
        let hung = self.device_queues.iter().filter_map(DeviceQueue::hung_at).min();
        let starvation = self.starvation.as_ref().filter(|_| !self.is_closing);
        let starvation = starvation.and_then(|starvation| starvation.wakeup(self.best_effort_starves()));
        let tokens = self.tokens.as_ref().filter(|_| !self.is_closing).and_then(|tokens| tokens.next_grant());
        [deadline, perturbation, abort, hung, starvation, tokens].into_iter().flatten().min()
    }

    /// Tasks that arrived and are not finished.
    pub(crate) fn task_count(&self) -> usize {
        self.tasks.len()
    }

    /// Tasks of a class that wait in its host queue, including those that are not ready.
    pub(crate) fn waiting(&self, class: Class) -> usize {
        let queue = &self.host_queues[class as usize];
        queue.len() + queue.unready()
    }

    /// Whether a real-time task is ready or running.
    pub(crate) fn is_in_real_time_mode(&self) -> bool {
        !self.rt_tasks.is_empty()
    }

    /// Whether a task is over except for launches in flight.
    pub(crate) fn is_ending(&self, task: TaskId) -> bool {
        self.tasks.get(&task).is_some_and(|task| matches!(task.phase, Phase::Ending(_)))
    }

    /// The slice of best-effort work that is running or promised.
    pub(crate) fn slice(&self) -> Option<Slice> {
        self.starvation.as_ref().and_then(Starvation::slice)
    }

    /// Launches in a device queue, by the device's index; `None` if the queue belongs to another
    /// lane.
    pub(crate) fn device_queue_depth(&self, queue: QueueId) -> Option<usize> {
        let index = queue.0.checked_sub(self.first_queue)?;
        self.device_queues.get(index as usize).map(DeviceQueue::depth)
    }

    /// The device's indices of the lane's queues.
    pub(crate) fn queues(&self) -> std::ops::Range<u32> {
        self.first_queue..self.first_queue + self.device_queues.len() as u32
    }

    /// Whether its queues have paired queues.
    pub(crate) fn has_paired_queues(&self) -> bool {
        self.device_queues.len() > self.policy_queues as usize
    }

    /// The device's index of a queue of the lane.
    pub(crate) fn device_name(&self, queue: QueueId) -> QueueId {
        QueueId(self.first_queue + queue.0)
    }

    /// Whether a task belongs to the lane.
    pub(crate) fn has(&self, task: TaskId) -> bool {
        self.tasks.contains_key(&task)
    }

    // Events.

    fn arrive(&mut self, mut spec: TaskSpec, actions: &mut Vec<Action>) {
        spec.lane = self.lane;
        assert!(spec.steps.len() <= limits::TASK_STEPS_MAX, "{:?} has {} steps", spec.task, spec.steps.len());
        let is_behind = |(index, step): (usize, &Step)| match *step {
            Step::Restartable { restore_point } => restore_point as usize > index,
            _ => false,
        };
        assert!(
            !spec.steps.iter().enumerate().any(is_behind),
            "{:?} has a step whose restore point is behind it",
            spec.task
        );
        let forks = spec.forks.as_deref().unwrap_or_default();
        let is_in_order = forks.windows(2).all(|pair| pair[0].steps().end <= pair[1].steps().start);
        assert!(
            is_in_order && forks.iter().all(|fork| fork.fits(&spec.steps)),
            "{:?} has forks that overlap or have steps that are not preemptible: {forks:?}",
            spec.task
        );
        self.counters.arrived[spec.class as usize] += 1;
        let rank = self.policy.rank(&spec);
        let place = if self.lost {
            Err(Outcome::DeviceLost)
        } else if !self.policy.admits(spec.class) {
            Err(Outcome::Refused)
        } else if !self.has_host_room(&spec) {
            Err(Outcome::QueueFull)
        } else {
            let queue = &mut self.host_queues[spec.class as usize];
            let place = if spec.ready { queue.push(spec.task, spec.client, rank) } else { queue.reserve(rank) };
            place.ok_or(Outcome::QueueFull)
        };
        match place {
            Ok(place) => {
                self.deadlines.extend(spec.deadline.map(|at| (at, spec.task)));
                if spec.class == Class::RealTime && spec.ready {
                    self.rt_tasks.insert((rank, spec.task));
                }
                let old = self.tasks.insert(spec.task, Task::new(spec, place));
                assert!(old.is_none(), "two tasks with one id: {old:?}");
            }
            Err(outcome) => {
                self.counters.finished[spec.class as usize] += 1;
                actions.push(Action::FinishTask { task: spec.task, outcome, preemptions: 0 });
            }
        }
    }

    /// Ignored if the task has already finished: the two may race.
    fn ready(&mut self, id: TaskId) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        assert_eq!(task.phase, Phase::Unready, "{id:?} was ready before");
        task.phase = Phase::Waiting;
        self.host_queues[task.class() as usize].enter(id, task.spec.client, task.place);
        if task.class() == Class::RealTime {
            self.rt_tasks.insert((task.place.rank(), id));
        }
    }

    fn unready(&mut self, id: TaskId) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        let queue = &mut self.host_queues[task.class() as usize];
        match task.phase {
            Phase::Waiting => assert_eq!(queue.remove(task.place), id),
            Phase::Preparing => {
                let bound = task.queue.take().expect("a task that is prepared is bound to a device queue");
                self.device_queues[bound.0 as usize].unbind(id);
            }
            phase => panic!("{id:?} is {phase:?} and became unready"),
        }
        task.phase = Phase::Unready;
        queue.mark_unready();
        self.rt_tasks.remove(&(task.place.rank(), id));
    }

    /// Ignored if the task has already finished: the two may race.
    fn prepared(&mut self, id: TaskId, actions: &mut Vec<Action>) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        assert_eq!(task.phase, Phase::Preparing, "{id:?} was prepared without a request");
        task.phase = Phase::Running;
        if task.is_complete() {
            self.finish(id, Outcome::Complete, actions);
        }
    }

    fn failed(&mut self, id: TaskId, actions: &mut Vec<Action>) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        if task.is_busy() {
            task.host_step_done(None);
            if let Phase::Ending(outcome) = task.phase {
                return self.finish(id, outcome, actions);
            }
        }
        self.end(id, Outcome::Failed, actions);
    }

    fn host_step_done(&mut self, id: TaskId, steps: Option<Arc<[Step]>>, next: Option<u32>, actions: &mut Vec<Action>) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        if let Some(steps) = steps {
            task.replace_steps(steps);
        }
        task.host_step_done(next);
        match task.phase {
            Phase::Ending(outcome) => self.finish(id, outcome, actions),
            _ if task.is_complete() => self.finish(id, Outcome::Complete, actions),
            _ => {}
        }
    }

    fn launch_ended(&mut self, launch: LaunchId, end: LaunchEnd, busy: Option<BusyTime>, actions: &mut Vec<Action>) {
        if self.lost {
            return;
        }
        let ended = self.device_queues.iter_mut().find_map(|queue| queue.take(launch));
        let InFlight { task: id, step, epoch, abort, .. } =
            ended.unwrap_or_else(|| panic!("{launch:?} ended and is not the oldest of its task in any device queue"));
        assert!(end != LaunchEnd::Aborted || abort != Abort::No, "{launch:?} was aborted without a request");
        self.counters.evicted_launches += u64::from(end == LaunchEnd::Evicted);
        self.counters.aborted_launches += u64::from(end == LaunchEnd::Aborted);
        self.co_scheduled_blocks_ended(launch, end, actions);
        let task = self.tasks.get_mut(&id).expect("a task outlives its launches");
        self.in_flight[task.class() as usize] -= 1;
        if let Some(tokens) = &mut self.tokens {
            tokens.ended(self.now, task.spec.client, busy);
        }
        let may_be_evicted = end == LaunchEnd::Complete && task.may_be_evicted(step, epoch);
        let is_progress = end == LaunchEnd::Complete && !may_be_evicted && task.class() == Class::BestEffort;
        let progress = task.launch_ended(step, epoch, end);
        if let Some(paired_queue) = task.take_paired_queue() {
            self.unbind_paired_queue(id, paired_queue);
        }
        self.counters.repeated_launches += u64::from(may_be_evicted);
        if is_progress {
            self.note_best_effort_progress();
        }
        self.proceed(id, progress, actions);
    }

    fn unbind_paired_queue(&mut self, id: TaskId, paired_queue: QueueId) {
        self.device_queues[paired_queue.0 as usize].unbind(id);
        self.forked -= 1;
    }

    /// Continues after progress of a task: finishes it if it is complete, failed or ending.
    fn proceed(&mut self, id: TaskId, progress: Progress, actions: &mut Vec<Action>) {
        let task = &self.tasks[&id];
        match (task.phase, progress) {
            (Phase::Ending(outcome), _) if !task.is_busy() => self.finish(id, outcome, actions),
            (Phase::Ending(_), _) => {}
            (_, Progress::Complete) => self.finish(id, Outcome::Complete, actions),
            (_, Progress::Failed) => self.end(id, Outcome::Failed, actions),
            (_, Progress::Continues) => {}
        }
    }

    /// Records the end of blocks that were co-scheduled in a launch. They ran, unless the launch
    /// was aborted or failed: co-scheduled blocks are never evicted.
    fn co_scheduled_blocks_ended(&mut self, launch: LaunchId, end: LaunchEnd, actions: &mut Vec<Action>) {
        while let Some(at) = self.co_scheduled_blocks.iter().position(|other| other.beside == launch) {
            let CoScheduled { task: id, blocks, charge_ns, .. } = self.co_scheduled_blocks.remove(at);
            let task = self.tasks.get_mut(&id).expect("a task outlives its blocks");
            let ran = matches!(end, LaunchEnd::Complete | LaunchEnd::Evicted).then_some(blocks);
            let progress = task.co_scheduled_ended(ran);
            if ran.is_some() {
                if let Some(tokens) = &mut self.tokens {
                    tokens.charge(self.now, task.spec.client, charge_ns);
                }
                self.note_best_effort_progress();
            }
            self.proceed(id, progress, actions);
        }
    }

    fn lose_device(&mut self, actions: &mut Vec<Action>) {
        self.lost = true;
        self.device_queues.iter_mut().for_each(DeviceQueue::clear);
        self.host_queues.iter_mut().for_each(HostQueue::clear);
        self.rt_tasks.clear();
        self.deadlines.clear();
        self.aborts.clear();
        self.in_flight = [0; 2];
        self.forked = 0;
        self.co_scheduled_blocks.clear();
        if let Some(tokens) = &mut self.tokens {
            tokens.lose_device();
        }
        for (id, task) in std::mem::take(&mut self.tasks) {
            self.counters.finished[task.class() as usize] += 1;
            actions.push(Action::FinishTask { task: id, outcome: Outcome::DeviceLost, preemptions: task.preemptions });
        }
    }

    // Ends.

    /// Ends a task before its last step, as soon as none of its launches is in flight.
    fn end(&mut self, id: TaskId, outcome: Outcome, actions: &mut Vec<Action>) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        if matches!(task.phase, Phase::Ending(_)) {
            return;
        }
        if !task.is_busy() {
            return self.finish(id, outcome, actions);
        }
        task.phase = Phase::Ending(outcome);
        if task.is_in_flight() && self.can_abort {
            let at = Nanos(self.now.0.saturating_add(limits::ABORT_GRACE_NS));
            task.abort_at = Some(at);
            self.aborts.insert((at, id));
        }
        if let Some(epoch) = self.raise(id) {
            actions.push(Action::RaiseEpoch { task: id, epoch });
        }
    }

    fn finish(&mut self, id: TaskId, outcome: Outcome, actions: &mut Vec<Action>) {
        let task = self.unlink(id);
        assert!(outcome != Outcome::Complete || task.is_complete(), "{id:?} is complete without its last steps");
        self.counters.finished[task.class() as usize] += 1;
        actions.push(Action::FinishTask { task: id, outcome, preemptions: task.preemptions });
    }

    /// Removes a task without launches in flight from all queues.
    pub(crate) fn unlink(&mut self, id: TaskId) -> Task {
        let task = self.tasks.remove(&id).expect("a task finishes once");
        assert!(!task.is_busy(), "{id:?} is removed while something of it is in flight");
        let host_queue = &mut self.host_queues[task.class() as usize];
        match task.phase {
            Phase::Unready => host_queue.cancel_reservation(),
            Phase::Waiting => assert_eq!(host_queue.remove(task.place), id),
            _ => {}
        }
        if let Some(queue) = task.queue {
            self.device_queues[queue.0 as usize].unbind(id);
        }
        if let Some(paired_queue) = task.paired_queue {
            self.unbind_paired_queue(id, paired_queue);
        }
        self.rt_tasks.remove(&(task.place.rank(), id));
        if let Some(at) = task.spec.deadline {
            self.deadlines.remove(&(at, id));
        }
        if let Some(at) = task.abort_at {
            self.aborts.remove(&(at, id));
        }
        task
    }

    fn expire(&mut self, actions: &mut Vec<Action>) {
        while let Some(&(at, id)) = self.deadlines.first()
            && at <= self.now
        {
            self.deadlines.pop_first();
            self.end(id, Outcome::DeadlineExceeded, actions);
        }
    }

    /// Aborts launches of tasks that ended longer ago than the grace time. One at a time per device
    /// queue, since the launches behind it either exit by their epoch or become the oldest
    /// themselves.
    fn abort(&mut self, actions: &mut Vec<Action>) {
        if self.aborts.first().is_none_or(|&(at, _)| at > self.now) {
            return;
        }
        for (index, device_queue) in self.device_queues.iter_mut().enumerate() {
            let Some(&InFlight { launch, task, .. }) = device_queue.oldest() else { continue };
            if self.tasks[&task].abort_at.is_none_or(|at| at > self.now) {
                continue;
            }
            let queue = QueueId(self.first_queue + index as u32);
            actions.extend(device_queue.abort_oldest(self.now).map(|abort| match abort {
                Abort::Hung => Action::DeclareHung { launch, queue },
                _ => Action::Abort { launch, queue },
            }));
        }
    }
}
