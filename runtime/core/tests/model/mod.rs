//! A world for the scheduler: clients, a device with blocks and epoch words, and a judge.

use atoll_core::limits::ABORT_GRACE_NS;
use atoll_core::rng::Rng;
use atoll_core::{
    Action, Class, Epoch, Event, LaunchEnd, LaunchId, LaunchProfile, Nanos, Outcome, PolicyEntry, PreemptLevel, QueueId, Scheduler,
    SchedulerConfig, Step, TaskId, TaskSpec,
};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// What is special about a run.
pub(crate) struct Scenario {
    pub(crate) queues: u32,
    pub(crate) preempt_level: PreemptLevel,
    pub(crate) perturb: Option<u64>,
    /// Clients cancel, deadlines pass, kernels and preparations fail.
    pub(crate) mishaps: bool,
    /// Tasks arrive before what they need is there, and lose it again.
    pub(crate) cold: bool,
    /// Lose the device after so many steps.
    pub(crate) lost_after: Option<u64>,
    /// One in so many launches never ends by itself.
    pub(crate) endless: Option<u64>,
    /// What the device does about a launch that is to be aborted.
    pub(crate) aborts: Aborts,
}

/// How a device takes [`Action::Abort`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Aborts {
    /// It cannot, and is never asked to.
    Never,
    /// It ends the launch some time later.
    Late,
    /// It promises to and does not.
    Broken,
}

impl Default for Scenario {
    fn default() -> Scenario {
        Scenario {
            queues: 3,
            preempt_level: PreemptLevel::Deactivate,
            perturb: None,
            mishaps: false,
            cold: false,
            lost_after: None,
            endless: None,
            aborts: Aborts::Late,
        }
    }
}

/// What happened in a run, or in many.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    pub(crate) complete: u64,
    pub(crate) cancelled: u64,
    pub(crate) failed: u64,
    pub(crate) expired: u64,
    pub(crate) lost: u64,
    pub(crate) evicted_launches: u64,
    /// Times what a task needs was taken away.
    pub(crate) unready: u64,
    pub(crate) aborted_launches: u64,
    pub(crate) padded_launches: u64,
    /// Runs in which the device was found to hang.
    pub(crate) hung: u64,
}

impl std::ops::AddAssign for Totals {
    fn add_assign(&mut self, other: Totals) {
        self.complete += other.complete;
        self.cancelled += other.cancelled;
        self.failed += other.failed;
        self.expired += other.expired;
        self.lost += other.lost;
        self.evicted_launches += other.evicted_launches;
        self.unready += other.unready;
        self.aborted_launches += other.aborted_launches;
        self.padded_launches += other.padded_launches;
        self.hung += other.hung;
    }
}

/// What the device has, so that most launches leave some.
const COMPUTE_UNITS: u32 = 9;
/// Real-time tasks stop arriving after these, so that starvation beyond them shows.
const RT_TASKS: u64 = 12;
const BE_TASKS: u64 = 12;
/// A run that takes longer has stopped getting anywhere.
const STEPS_MAX: u64 = 200_000;

/// The truth about one task.
struct Truth {
    class: Class,
    steps: Arc<[Step]>,
    profiles: Arc<[Option<LaunchProfile>]>,
    /// Progress map: per step, which blocks ran.
    blocks: Vec<Vec<bool>>,
    /// What the device reads, and raised values it does not see yet.
    word: Epoch,
    stored: VecDeque<Epoch>,
    queue: Option<QueueId>,
    in_flight: u32,
    /// Launches of others that its blocks run beside.
    riding: u32,
    prepared: bool,
    /// What it needs is missing.
    away: bool,
    /// Blocks that ran beside another launch were cut short with it, and the scheduler has yet to hear of it.
    cut_short: bool,
    /// A kernel failed; what runs behind it computes nonsense until it is stopped.
    broken: bool,
    deadline: Option<Nanos>,
    /// Since when nobody wants it.
    over_since: Option<Nanos>,
    finished: Option<Outcome>,
}

impl Truth {
    fn step_done(&self, step: u32) -> bool {
        self.blocks[step as usize].iter().all(|&ran| ran)
    }
}

/// Blocks that run beside a launch of another task.
#[derive(Clone, Copy)]
struct Rider {
    task: TaskId,
    step: u32,
    first: u32,
    blocks: u32,
    epoch: Epoch,
}

#[derive(Clone)]
struct Launch {
    id: LaunchId,
    task: TaskId,
    step: u32,
    epoch: Epoch,
    next_block: usize,
    evicted: bool,
    failed: bool,
    endless: bool,
    abort: bool,
    riders: Vec<Rider>,
}

/// A launch that ended.
struct Ended {
    launch: LaunchId,
    task: TaskId,
    end: LaunchEnd,
    /// Whose blocks ran beside it.
    riders: Vec<TaskId>,
}

pub(crate) struct World {
    policy: &'static PolicyEntry,
    scheduler: Scheduler,
    scenario: Scenario,
    rng: Rng,
    now: Nanos,
    tasks: BTreeMap<TaskId, Truth>,
    /// Launches on the device, per queue.
    queues: Vec<VecDeque<Launch>>,
    /// Ends the scheduler has not been told of, per queue.
    ended: Vec<VecDeque<Ended>>,
    /// Preparations that take a while, as those waiting for memory do.
    preparing: Vec<TaskId>,
    /// Blocks that run beside the launch that comes next.
    riders: Vec<Rider>,
    capacity: u32,
    arrivals: Vec<Class>,
    /// One in how many chances to arrive is taken: from crowds to single tasks.
    sparsity: u64,
    lost: bool,
    totals: Totals,
}

impl World {
    pub(crate) fn new(policy: &'static PolicyEntry, seed: u64, scenario: Scenario) -> World {
        let mut rng = Rng::new(seed);
        let capacity = 1 + rng.below(5) as u32;
        let config = SchedulerConfig {
            policy,
            queues: scenario.queues,
            queue_capacity: capacity,
            preempt_level: scenario.preempt_level,
            can_abort: scenario.aborts != Aborts::Never,
            compute_units: COMPUTE_UNITS,
            perturb: scenario.perturb,
        };
        let mut arrivals: Vec<Class> =
            [(Class::RealTime, RT_TASKS), (Class::BestEffort, BE_TASKS)].into_iter().flat_map(|(c, n)| vec![c; n as usize]).collect();
        for i in (1..arrivals.len()).rev() {
            arrivals.swap(i, rng.below(i as u64 + 1) as usize);
        }
        let queues = scenario.queues as usize;
        let sparsity = 1 + rng.below(30);
        World {
            policy,
            scheduler: Scheduler::new(&config),
            scenario,
            rng,
            now: Nanos(0),
            tasks: BTreeMap::new(),
            queues: vec![VecDeque::new(); queues],
            ended: (0..queues).map(|_| VecDeque::new()).collect(),
            preparing: Vec::new(),
            riders: Vec::new(),
            capacity,
            arrivals,
            sparsity,
            lost: false,
            totals: Totals::default(),
        }
    }

    pub(crate) fn run(mut self) -> Totals {
        let mut steps = 0;
        while !self.arrivals.is_empty() || self.scheduler.task_count() > 0 {
            steps += 1;
            assert!(steps < STEPS_MAX, "{} tasks are starving", self.scheduler.task_count());
            if self.scenario.lost_after == Some(steps) {
                self.lose_device();
            }
            self.now.0 += self.rng.below(20_000);
            self.wait_for_hung();
            self.step();
            self.judge();
        }
        assert!(self.tasks.values().all(|truth| truth.finished.is_some()));
        assert!(self.queues.iter().all(VecDeque::is_empty), "launches are left on the device");
        let counters = self.scheduler.counters();
        (self.totals.evicted_launches, self.totals.aborted_launches) = (counters.evicted_launches, counters.aborted_launches);
        self.totals.padded_launches = counters.padded_launches;
        self.totals
    }

    /// Something happens.
    fn step(&mut self) {
        match self.rng.below(20) {
            0 if self.rng.one_in(self.sparsity) => self.arrive(),
            1 if self.scenario.mishaps => self.cancel(),
            1 => self.tell(Event::Tick),
            2..4 => self.see_epoch(),
            4 => self.finish_preparation(),
            5 if self.scenario.cold => self.change_readiness(),
            5..9 => self.deliver(),
            _ => self.run_block(),
        }
        if self.scheduler.next_wakeup().is_some_and(|at| at <= self.now) {
            self.tell(Event::Tick);
        }
        self.expect_aborts();
    }

    /// Where nothing else can happen any more, time passes quickly.
    fn wait_for_hung(&mut self) {
        if self.scenario.aborts == Aborts::Broken && self.ended.iter().all(VecDeque::is_empty) && self.rng.one_in(100) {
            self.now = self.scheduler.next_wakeup().map_or(self.now, |at| at.max(self.now));
        }
    }

    /// A launch at the head of its queue whose task has been over for the time of grace has been told to end.
    fn expect_aborts(&self) {
        let has_grace = |since: Nanos| self.now.0 <= since.0 + ABORT_GRACE_NS;
        for launch in self.queues.iter().zip(&self.ended).filter(|(_, ended)| ended.is_empty()).filter_map(|(queue, _)| queue.front()) {
            let is_told = launch.abort || self.scenario.aborts == Aborts::Never;
            let over_since = self.tasks[&launch.task].over_since;
            assert!(is_told || over_since.is_none_or(has_grace), "{:?} goes on although {:?} is over", launch.id, launch.task);
        }
    }

    /// Nobody wants the task any more.
    fn over(&mut self, task: TaskId) {
        let now = self.now;
        self.truth(task).over_since.get_or_insert(now);
    }

    fn arrive(&mut self) {
        let Some(class) = self.arrivals.pop() else { return };
        let task = TaskId(self.tasks.len() as u64);
        let steps_max = if class == Class::RealTime { 13 } else { 60 };
        let steps: Arc<[Step]> = (0..self.rng.below(steps_max))
            .map(|_| match self.rng.below(10) {
                0 => Step::Host,
                1 => Step::Solid,
                _ => Step::Cuttable,
            })
            .collect();
        let blocks: Vec<Vec<bool>> =
            steps.iter().map(|step| vec![false; if *step == Step::Host { 1 } else { 1 + self.rng.below(6) as usize }]).collect();
        let profiles: Arc<[_]> = blocks.iter().map(|blocks| self.profile(blocks.len() as u32)).collect();
        let deadline = (self.scenario.mishaps && self.rng.one_in(4)).then(|| Nanos(self.now.0 + self.rng.below(3_000_000)));
        let away = self.scenario.cold && self.rng.one_in(2);
        let truth = Truth {
            class,
            steps: steps.clone(),
            profiles: profiles.clone(),
            blocks,
            word: Epoch(0),
            stored: VecDeque::new(),
            queue: None,
            in_flight: 0,
            riding: 0,
            prepared: false,
            away,
            cut_short: false,
            broken: false,
            deadline,
            over_since: None,
            finished: None,
        };
        self.tasks.insert(task, truth);
        self.tell(Event::TaskArrived(TaskSpec { task, class, steps, deadline, profiles: Some(profiles), ready: !away }));
    }

    /// Of some kernels nobody knows anything.
    fn profile(&mut self, blocks: u32) -> Option<LaunchProfile> {
        let occupancy = 1 + self.rng.below(3);
        let wave_ns = (0..occupancy).map(|j| 1000 * (1 + j) + self.rng.below(2000)).collect();
        (!self.rng.one_in(6)).then_some(LaunchProfile { blocks, wave_ns })
    }

    /// What some task needs comes, or goes while the task waits.
    fn change_readiness(&mut self) {
        let unfinished = self.tasks.iter().filter(|(_, truth)| truth.finished.is_none() && !truth.prepared);
        let candidates: Vec<TaskId> = unfinished.map(|(&task, _)| task).filter(|task| !self.preparing.contains(task)).collect();
        if candidates.is_empty() {
            return;
        }
        let task = candidates[self.rng.below(candidates.len() as u64) as usize];
        if self.truth(task).away {
            self.truth(task).away = false;
            self.tell(Event::TaskReady { task });
        } else if self.rng.one_in(4) {
            self.truth(task).away = true;
            self.totals.unready += 1;
            self.tell(Event::TaskUnready { task });
        }
    }

    fn cancel(&mut self) {
        if self.rng.one_in(4) && !self.tasks.is_empty() {
            let task = TaskId(self.rng.below(self.tasks.len() as u64));
            self.over(task);
            self.tell(Event::CancelTask { task });
        }
    }

    fn lose_device(&mut self) {
        self.forget_launches();
        self.tell(Event::DeviceLost);
    }

    fn forget_launches(&mut self) {
        self.lost = true;
        self.queues.iter_mut().for_each(VecDeque::clear);
        self.ended.iter_mut().for_each(VecDeque::clear);
        self.tasks.values_mut().for_each(|truth| (truth.in_flight, truth.riding) = (0, 0));
    }

    fn abort(&mut self, launch: LaunchId, queue: QueueId) {
        assert_ne!(self.scenario.aborts, Aborts::Never, "the device cannot abort launches");
        let at = queue.0 as usize;
        if let Some(ended) = self.ended[at].front() {
            // Its end is on its way.
            return assert_eq!(ended.launch, launch, "a launch is aborted that is not the oldest");
        }
        let now = self.now;
        let oldest = self.queues[at].front_mut().expect("a launch that is aborted is in its queue");
        assert_eq!(oldest.id, launch, "a launch is aborted that is not the oldest");
        assert!(!std::mem::replace(&mut oldest.abort, true), "{launch:?} is aborted twice");
        let over_since = self.tasks[&oldest.task].over_since;
        assert!(over_since.is_some_and(|since| now.0 >= since.0 + ABORT_GRACE_NS), "{launch:?} is aborted too early");
    }

    /// The device sees a raised epoch some time after it was stored.
    fn see_epoch(&mut self) {
        for truth in self.tasks.values_mut() {
            if let Some(epoch) = truth.stored.pop_front() {
                truth.word = epoch;
            }
        }
    }

    fn finish_preparation(&mut self) {
        if self.preparing.is_empty() {
            return;
        }
        let task = self.preparing.swap_remove(self.rng.below(self.preparing.len() as u64) as usize);
        if self.scenario.mishaps && self.rng.one_in(10) {
            return self.tell(Event::TaskFailed { task });
        }
        self.tasks.get_mut(&task).expect("a task").prepared = true;
        self.tell(Event::TaskPrepared { task });
    }

    /// One block of the launch at the head of some queue starts and ends, or leaves.
    fn run_block(&mut self) {
        let at = self.rng.below(self.queues.len() as u64) as usize;
        let fails = self.scenario.mishaps && self.rng.one_in(200);
        let Some(launch) = self.queues[at].front_mut() else { return };
        let truth = self.tasks.get_mut(&launch.task).expect("a task");
        if launch.abort && self.scenario.aborts == Aborts::Late && self.rng.one_in(3) {
            truth.broken = true;
            let launch = self.queues[at].pop_front().expect("a launch");
            return self.end_launch(at, launch, LaunchEnd::Aborted);
        }
        let cuttable = truth.steps[launch.step as usize] == Step::Cuttable;
        assert!(truth.prepared, "a launch runs before its inputs are there");
        if launch.next_block < truth.blocks[launch.step as usize].len() {
            if cuttable && launch.epoch.is_raised_by(truth.word) {
                launch.evicted |= !truth.blocks[launch.step as usize][launch.next_block];
            } else if !truth.blocks[launch.step as usize][launch.next_block] && !launch.failed {
                let inputs_there = (0..launch.step).all(|step| truth.step_done(step));
                assert!(inputs_there || truth.broken, "a block of step {} runs before step {}", launch.step, launch.step - 1);
                truth.blocks[launch.step as usize][launch.next_block] = true;
                launch.failed |= fails;
                truth.broken |= fails;
            }
            launch.next_block += 1;
        }
        if launch.next_block == truth.blocks[launch.step as usize].len() && !launch.endless {
            let launch = self.queues[at].pop_front().expect("a launch");
            let end = match (launch.failed, launch.evicted) {
                (true, _) => LaunchEnd::Failed,
                (_, true) => LaunchEnd::Evicted,
                _ => LaunchEnd::Complete,
            };
            self.end_launch(at, launch, end);
        }
    }

    fn end_launch(&mut self, at: usize, launch: Launch, end: LaunchEnd) {
        for rider in &launch.riders {
            self.ride(rider, end);
        }
        let riders = launch.riders.iter().map(|rider| rider.task).collect();
        self.ended[at].push_back(Ended { launch: launch.id, task: launch.task, end, riders });
    }

    /// Blocks beside a launch run while it does; where that fails or is aborted, some of them.
    fn ride(&mut self, rider: &Rider, end: LaunchEnd) {
        let cut = matches!(end, LaunchEnd::Failed | LaunchEnd::Aborted);
        let ran = if cut { self.rng.below(u64::from(rider.blocks) + 1) as u32 } else { rider.blocks };
        let truth = self.truth(rider.task);
        assert!(truth.prepared && truth.in_flight == 0, "blocks beside launches of their own");
        if rider.epoch.is_raised_by(truth.word) {
            return;
        }
        let inputs_there = (0..rider.step).all(|step| truth.step_done(step));
        assert!(
            inputs_there || truth.broken || truth.cut_short,
            "blocks of step {} run beside others before step {}",
            rider.step,
            rider.step - 1
        );
        for block in rider.first..rider.first + ran {
            truth.blocks[rider.step as usize][block as usize] = true;
        }
        truth.cut_short |= cut;
    }

    fn deliver(&mut self) {
        let at = self.rng.below(self.ended.len() as u64) as usize;
        if let Some(Ended { launch, task, end, riders }) = self.ended[at].pop_front() {
            self.truth(task).in_flight -= 1;
            for rider in riders {
                let rider = self.truth(rider);
                rider.riding -= 1;
                // What rides behind blocks that were cut short computes nonsense.
                rider.broken |= std::mem::take(&mut rider.cut_short) && rider.riding > 0;
            }
            if end == LaunchEnd::Failed {
                self.over(task);
            }
            self.tell(Event::LaunchEnded { launch, end });
        }
    }

    /// Tells the scheduler, and does what it asks.
    fn tell(&mut self, event: Event) {
        for truth in self.tasks.values_mut().filter(|truth| truth.deadline.is_some_and(|at| at <= self.now)) {
            truth.over_since.get_or_insert(self.now);
        }
        let mut actions = Vec::new();
        self.scheduler.handle(self.now, event, &mut actions);
        let mut actions = VecDeque::from(actions);
        while let Some(action) = actions.pop_front() {
            let answer = self.carry_out(action);
            if let Some(event) = answer {
                let mut more = Vec::new();
                self.scheduler.handle(self.now, event, &mut more);
                actions.extend(more);
            }
        }
    }

    fn carry_out(&mut self, action: Action) -> Option<Event> {
        match action {
            Action::RaiseEpoch { task, epoch } => {
                assert!(self.scenario.preempt_level >= PreemptLevel::Deactivate);
                self.truth(task).stored.push_back(epoch);
            }
            Action::Prepare { task } if self.truth(task).away => panic!("{task:?} is prepared although something is missing"),
            Action::Prepare { task } if self.scenario.cold && self.rng.one_in(8) => {
                self.truth(task).away = true;
                self.totals.unready += 1;
                return Some(Event::TaskUnready { task });
            }
            Action::Prepare { task } if self.rng.one_in(3) => self.preparing.push(task),
            Action::Prepare { task } => {
                self.truth(task).prepared = true;
                return Some(Event::TaskPrepared { task });
            }
            Action::Pad { task, step, first, shape, epoch } => self.pad(Rider { task, step, first, blocks: shape.blocks, epoch }),
            Action::Issue { launch, task, step, queue, epoch } => self.issue(launch, task, step, queue, epoch),
            Action::Abort { launch, queue } => self.abort(launch, queue),
            // It ended after all.
            Action::DeclareHung { launch, queue } if self.ended[queue.0 as usize].iter().any(|ended| ended.launch == launch) => {}
            Action::DeclareHung { launch, queue } => {
                let told = self.queues[queue.0 as usize].front().is_some_and(|oldest| oldest.id == launch && oldest.abort);
                assert!(told && self.scenario.aborts == Aborts::Broken, "{launch:?} counts as hung although the device obeys");
                self.totals.hung += 1;
                self.forget_launches();
                return Some(Event::DeviceLost);
            }
            Action::RunHostStep { task, step } => {
                let fails = self.scenario.mishaps && self.rng.one_in(20);
                let truth = self.truth(task);
                assert_eq!(truth.in_flight, 0, "a host step beside launches");
                assert!((0..step).all(|step| truth.step_done(step)), "a host step before its inputs");
                truth.blocks[step as usize][0] = true;
                return Some(if fails { Event::TaskFailed { task } } else { Event::HostStepDone { task } });
            }
            Action::FinishTask { task, outcome, .. } => self.finish(task, outcome),
        }
        None
    }

    fn pad(&mut self, rider: Rider) {
        let is_first = !self.riders.iter().any(|other| other.task == rider.task);
        let truth = self.tasks.get_mut(&rider.task).expect("a task");
        assert!(self.policy.name == "reef" && truth.class == Class::BestEffort && is_first, "{:?} pads", rider.task);
        assert!(truth.prepared && truth.finished.is_none() && truth.in_flight == 0);
        assert!(truth.steps[rider.step as usize] == Step::Cuttable && truth.profiles[rider.step as usize].is_some());
        assert!(rider.blocks > 0 && (rider.first + rider.blocks) as usize <= truth.blocks[rider.step as usize].len());
        truth.riding += 1;
        self.riders.push(rider);
    }

    fn issue(&mut self, id: LaunchId, task: TaskId, step: u32, queue: QueueId, epoch: Epoch) {
        if self.lost {
            return;
        }
        let rt_pending = self.tasks.values().any(|truth| truth.class == Class::RealTime && truth.finished.is_none() && !truth.away);
        let be_in_flight: u32 = self.tasks.values().filter(|truth| truth.class == Class::BestEffort).map(|truth| truth.in_flight).sum();
        let truth = self.tasks.get_mut(&task).expect("a task");
        assert!(truth.prepared && truth.finished.is_none() && truth.riding == 0);
        let riders = std::mem::take(&mut self.riders);
        assert!(riders.is_empty() || truth.class == Class::RealTime && truth.profiles[step as usize].is_some());
        match (truth.class, self.policy.name) {
            (Class::BestEffort, "reset" | "reef" | "edf" | "block-wait") => {
                assert!(!rt_pending, "a best-effort launch is issued beside a real-time task")
            }
            (Class::BestEffort, "rt-only") => panic!("a best-effort launch is issued"),
            (Class::RealTime, "block-wait") => assert_eq!(be_in_flight, 0, "a real-time launch is issued beside best-effort ones"),
            _ => {}
        }
        assert_eq!(*truth.queue.get_or_insert(queue), queue, "the launches of a task in two queues");
        assert!(!self.queues[queue.0 as usize].iter().any(|other| other.task == task && other.step == step), "a step is twice in a queue");
        truth.in_flight += 1;
        let endless = self.scenario.endless.is_some_and(|sparsity| self.rng.one_in(sparsity));
        let queue = queue.0 as usize;
        let launch = Launch { id, task, step, epoch, next_block: 0, evicted: false, failed: false, endless, abort: false, riders };
        self.queues[queue].push_back(launch);
        assert!(self.queues[queue].len() + self.ended[queue].len() <= self.capacity as usize, "a device queue is overfilled");
    }

    fn finish(&mut self, task: TaskId, outcome: Outcome) {
        self.preparing.retain(|&other| other != task);
        let truth = self.truth(task);
        assert_eq!(truth.finished.replace(outcome), None, "{task:?} ends twice");
        assert_eq!((truth.in_flight, truth.riding), (0, 0), "{task:?} ends while launches are in flight");
        match outcome {
            Outcome::Complete => {
                assert!(!truth.broken, "{task:?} is complete although some of it was computed from nothing");
                assert!((0..truth.steps.len() as u32).all(|step| truth.step_done(step)), "{task:?} is complete without all of its blocks");
                self.totals.complete += 1;
            }
            Outcome::Cancelled => self.totals.cancelled += 1,
            Outcome::Failed => self.totals.failed += 1,
            Outcome::DeadlineExceeded => self.totals.expired += 1,
            Outcome::DeviceLost => self.totals.lost += 1,
            Outcome::Refused => {
                let is_refused = self.policy.name == "rt-only" && self.tasks[&task].class == Class::BestEffort;
                assert!(is_refused, "{task:?} is refused");
            }
            Outcome::QueueFull => panic!("the queues are large enough"),
        }
    }

    fn truth(&mut self, task: TaskId) -> &mut Truth {
        self.tasks.get_mut(&task).expect("the scheduler knows tasks that arrived only")
    }

    /// What must be true between any two events.
    fn judge(&self) {
        let unfinished = self.tasks.values().filter(|truth| truth.finished.is_none()).count();
        assert_eq!(unfinished, self.scheduler.task_count(), "tasks are lost or kept");
        for (at, queue) in self.queues.iter().enumerate() {
            assert_eq!(queue.len() + self.ended[at].len(), self.scheduler.device_queue_depth(QueueId(at as u32)));
            for (ahead, behind) in queue.iter().zip(queue.iter().skip(1)) {
                assert!(
                    behind.task != ahead.task || behind.step == ahead.step + 1,
                    "steps {} and {} in one queue",
                    ahead.step,
                    behind.step
                );
            }
        }
    }
}
