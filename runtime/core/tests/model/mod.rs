//! A world for the scheduler: clients, a device with blocks and epoch words, and a judge.

mod device;
mod judge;
mod lanes;
mod memory;
mod scenario;
mod truth;

pub(crate) use scenario::{Aborts, Faults, Rate, Scenario, Totals};

use atoll_core::limits::{DEVICE_QUEUES_MAX, HANG_NS};
use atoll_core::rng::Rng;
use atoll_core::{
    Action, Class, ClientId, DeviceScheduler, Epoch, Event, Fork, LaneId, LaunchEnd, LaunchProfile, Nanos, Outcome,
    PolicyEntry, SchedulerConfig, Step, StepCost, TaskId, TaskSpec, plan_forks,
};
use device::{Device, Ended, Rider};
use judge::Slices;
use lanes::LaneTruth;
use memory::Memory;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use truth::Truth;

/// What the device has, so that most launches leave some.
const COMPUTE_UNITS: u32 = 9;
/// Real-time tasks stop arriving after these, so that starvation beyond them shows.
const RT_TASKS: u64 = 12;
const BE_TASKS: u64 = 12;
/// A run that takes longer has stopped getting anywhere.
const STEPS_MAX: u64 = 200_000;
/// How long a scheduler that was not woken sleeps on.
const SLEEP_NS_MAX: u64 = 3_000_000;

pub(crate) struct World {
    policy: &'static PolicyEntry,
    scheduler: DeviceScheduler,
    lanes: BTreeMap<LaneId, LaneTruth>,
    /// The name of the lane that was opened last.
    opened: LaneId,
    scenario: Scenario,
    rng: Rng,
    now: Nanos,
    tasks: BTreeMap<TaskId, Truth>,
    device: Device,
    /// Preparations that take a while, as those waiting for memory do.
    preparing: Vec<TaskId>,
    arrivals: Vec<Class>,
    /// One in how many chances to arrive is taken: from crowds to single tasks.
    sparsity: u64,
    /// Until when the scheduler is not woken.
    sleeps_until: Nanos,
    slices: Slices,
    /// The lane of the launch whose end is being told.
    heard_end: Option<LaneId>,
    /// The lane that the last event was for; `None` for all of them. Others hear nothing, not even
    /// that time passes.
    heard: Option<LaneId>,
    totals: Totals,
}

impl World {
    pub(crate) fn new(policy: &'static PolicyEntry, seed: u64, scenario: Scenario) -> World {
        let mut rng = Rng::new(seed);
        let capacity = 1 + rng.below(scenario.capacity_max) as u32;
        let config = SchedulerConfig {
            policy,
            queues: scenario.queues,
            paired_queues: scenario.paired_queues,
            queue_capacity: capacity,
            preempt_level: scenario.preempt_level,
            can_abort: scenario.aborts != Aborts::Never,
            compute_units: COMPUTE_UNITS,
            best_effort_wait_ns_max: scenario.best_effort_wait_ns_max,
            perturb: scenario.perturb,
        };
        let mut arrivals: Vec<Class> = [(Class::RealTime, RT_TASKS), (Class::BestEffort, BE_TASKS)]
            .into_iter()
            .flat_map(|(c, n)| vec![c; n as usize])
            .collect();
        for i in (1..arrivals.len()).rev() {
            arrivals.swap(i, rng.below(i as u64 + 1) as usize);
        }
        let sparsity = 1 + rng.below(30);
        World {
            policy,
            scheduler: DeviceScheduler::new(&config),
            opened: LaneId::DEFAULT,
            lanes: BTreeMap::from([(LaneId::DEFAULT, LaneTruth::of_all(scenario.queues, scenario.paired_queues))]),
            device: Device::new(
                if scenario.lanes { DEVICE_QUEUES_MAX } else { scenario.queues << u32::from(scenario.paired_queues) },
                capacity,
            ),
            scenario,
            rng,
            now: Nanos(0),
            tasks: BTreeMap::new(),
            preparing: Vec::new(),
            arrivals,
            sparsity,
            sleeps_until: Nanos(0),
            slices: Slices::default(),
            heard_end: None,
            heard: None,
            totals: Totals::default(),
        }
    }

    pub(crate) fn run(mut self) -> Totals {
        while !self.arrivals.is_empty() || self.scheduler.task_count() > 0 {
            self.totals.steps += 1;
            assert!(self.totals.steps < STEPS_MAX, "{} tasks are starving", self.scheduler.task_count());
            if self.scenario.lost_after == Some(self.totals.steps)
                || self.scenario.faults.lost_device.strikes(&mut self.rng)
            {
                self.lose_device();
            }
            self.now.0 += self.rng.below(20_000);
            self.wait_for_hung();
            self.step();
            self.judge();
        }
        assert!(self.tasks.values().all(|truth| truth.finished.is_some()));
        assert!(self.device.queues.iter().all(VecDeque::is_empty), "launches are left on the device");
        self.judge_counters();
        self.close_all_lanes();
        self.totals.slices = self.scheduler.counters().best_effort_slices;
        self.totals.forks = self.scheduler.counters().forks;
        self.totals
    }

    /// Something happens.
    fn step(&mut self) {
        match self.rng.below(20) {
            0 if self.rng.one_in(self.sparsity) => self.arrive(),
            1 if self.scenario.faults.dead_clients.strikes(&mut self.rng) => self.cancel(),
            1 if self.rng.one_in(2) => self.tell(Event::Tick),
            2..4 => self.see_epochs(),
            4 => self.finish_on_host(),
            5 if self.scenario.cold => self.change_readiness(),
            6 if self.scenario.lanes && self.rng.one_in(3) => self.change_lanes(),
            5..9 => self.deliver(),
            _ => self.run_block(),
        }
        if self.scheduler.next_wakeup().is_some_and(|at| at <= self.now) && self.sleeps_until <= self.now {
            if self.scenario.faults.lost_wakeups.strikes(&mut self.rng) {
                self.sleeps_until = Nanos(self.now.0 + 1 + self.rng.below(SLEEP_NS_MAX));
            } else {
                self.tell(Event::Tick);
            }
        }
    }

    /// Where nothing may be left to happen but that a device is found to hang, time passes in
    /// leaps.
    fn wait_for_hung(&mut self) {
        if self.scenario.aborts == Aborts::Broken
            && self.device.ended.iter().all(VecDeque::is_empty)
            && self.rng.one_in(100)
        {
            self.now.0 += self.rng.below(HANG_NS / 20);
        }
    }

    /// Nobody wants the task any more.
    fn over(&mut self, task: TaskId) {
        let now = self.now;
        self.truth(task).over_since.get_or_insert(now);
    }

    // Clients.

    fn arrive(&mut self) {
        let Some(class) = self.arrivals.pop() else { return };
        let task = TaskId(self.tasks.len() as u64);
        let steps_max = if class == Class::RealTime { 13 } else { 60 };
        // Kernels of one task come from one compiler.
        let tell = !self.rng.one_in(4);
        let mut steps: Vec<Step> = (0..self.rng.below(steps_max)).map(|_| self.kind(tell)).collect();
        let memory = Memory::of(&steps, &mut self.rng);
        for (index, (step, point)) in steps.iter_mut().zip(memory.restore_points()).enumerate() {
            if let Step::Restartable { from } = step {
                *from = if self.scenario.wrong_restore_points { 0 } else { point };
                // It overwrites what it reads.
                *step = if *from > index as u32 { Step::Solid } else { *step };
            }
        }
        let steps: Arc<[Step]> = steps.into();
        let blocks: Vec<Vec<bool>> = (0..steps.len() as u32).map(|step| vec![false; memory.blocks(step)]).collect();
        let profiles: Arc<[_]> = blocks.iter().map(|blocks| self.profile(blocks.len() as u32)).collect();
        let deadline = self
            .scenario
            .faults
            .deadlines
            .strikes(&mut self.rng)
            .then(|| Nanos(self.now.0 + self.rng.below(3_000_000)));
        let away = self.scenario.cold && self.rng.one_in(2);
        let priority = self.rng.below(3) as u32;
        let rank = if self.policy.name == "edf" { deadline.map_or(u64::MAX, |at| at.0) } else { priority.into() };
        let cost = |step: &Step| StepCost { step: *step, ns: 1, busy_permille: 0 };
        let needs = if self.scenario.wrong_forks { vec![Vec::new(); steps.len()] } else { memory.needs() };
        let mut forks: Arc<[Fork]> = plan_forks(&needs, &steps.iter().map(cost).collect::<Vec<_>>(), 1).into();
        let mut known = steps.len();
        if self.scenario.unfolding && self.rng.one_in(2) {
            (known, forks) = (next_known(&steps, 0), Arc::from([]));
        }
        let lane = self.some_lane();
        let truth = Truth {
            class,
            // What arrives for a lane that is being closed goes where its tasks go.
            lane: if self.lanes[&lane].is_closing { LaneId::DEFAULT } else { lane },
            rank,
            steps: steps.clone(),
            known,
            profiles: profiles.clone(),
            memory,
            complete: vec![false; blocks.len()],
            blocks,
            word: Epoch(0),
            stored: VecDeque::new(),
            raised: Epoch(0),
            forks: Arc::clone(&forks),
            in_flight: 0,
            riding: 0,
            host_step: None,
            prepared: false,
            away,
            cut_short: 0,
            broken: false,
            deadline,
            over_since: None,
            finished: None,
        };
        self.tasks.insert(task, truth);
        self.tell(Event::TaskArrived(TaskSpec {
            task,
            lane,
            client: ClientId::default(),
            class,
            priority,
            steps: steps[..known].into(),
            deadline,
            profiles: Some(profiles),
            forks: Some(forks),
            ready: !away,
        }));
    }

    fn kind(&mut self, tells: bool) -> Step {
        match self.rng.below(10) {
            0 => Step::Host,
            1 => Step::Solid,
            2..9 if !tells => Step::Restartable { from: 0 },
            _ => Step::Cuttable,
        }
    }

    /// Of some kernels nobody knows anything.
    fn profile(&mut self, blocks: u32) -> Option<LaunchProfile> {
        let occupancy = 1 + self.rng.below(3);
        let wave_ns: Vec<u64> = (0..occupancy).map(|j| 1000 * (1 + j) + self.rng.below(2000)).collect();
        (!self.rng.one_in(6)).then_some(LaunchProfile::new(blocks, wave_ns))
    }

    /// What some task needs comes, or goes while the task waits.
    fn change_readiness(&mut self) {
        let unfinished = self.tasks.iter().filter(|(_, truth)| truth.finished.is_none() && !truth.prepared);
        let candidates: Vec<TaskId> =
            unfinished.map(|(&task, _)| task).filter(|task| !self.preparing.contains(task)).collect();
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
        if !self.tasks.is_empty() {
            let task = TaskId(self.rng.below(self.tasks.len() as u64));
            self.over(task);
            self.tell(Event::CancelTask { task });
        }
    }

    // The engine.

    fn lose_device(&mut self) {
        self.forget_launches();
        self.tell(Event::DeviceLost);
    }

    fn forget_launches(&mut self) {
        self.device.forget_launches();
        self.tasks.values_mut().for_each(|truth| (truth.in_flight, truth.riding, truth.host_step) = (0, 0, None));
    }

    /// A preparation or a host step that took a while is done.
    fn finish_on_host(&mut self) {
        let fails = self.scenario.faults.failing_steps.strikes(&mut self.rng);
        if !self.preparing.is_empty() && self.rng.one_in(2) {
            let task = self.preparing.swap_remove(self.rng.below(self.preparing.len() as u64) as usize);
            self.truth(task).prepared = !fails;
            self.tell(if fails { Event::TaskFailed { task } } else { Event::TaskPrepared { task } });
        } else if let Some(task) = self.tasks.iter().find(|(_, truth)| truth.host_step.is_some()).map(|(&task, _)| task)
        {
            let event = self.run_host_step(task, fails);
            self.tell(event);
        }
    }

    fn run_host_step(&mut self, task: TaskId, fails: bool) -> Event {
        let truth = self.truth(task);
        let step = truth.host_step.take().expect("a host step was asked for");
        truth.run(step, 0);
        truth.complete[step as usize] = true;
        let mut steps = None;
        if !fails && step as usize + 1 == truth.known && truth.known < truth.steps.len() {
            truth.known = next_known(&truth.steps, truth.known);
            steps = Some(truth.steps[..truth.known].into());
            self.totals.unfolded += 1;
        }
        if fails { Event::TaskFailed { task } } else { Event::HostStepDone { task, steps } }
    }

    /// The scheduler hears of a launch that ended.
    fn deliver(&mut self) {
        let can_be_told = |queue: &usize| self.device.ended[*queue].front().is_some_and(|ended| ended.at <= self.now);
        let Some(at) = pick(&mut self.rng, (0..self.device.ended.len()).filter(can_be_told)) else { return };
        let Ended { launch, task, step, epoch, end, riders, .. } =
            self.device.ended[at].pop_front().expect("looked at");
        let truth = self.tasks.get_mut(&task).expect("a task");
        truth.in_flight -= 1;
        let is_unsure = end == LaunchEnd::Complete && truth.tells_nothing(step) && epoch.is_raised_by(truth.raised);
        truth.complete[step as usize] |= end == LaunchEnd::Complete && !is_unsure;
        self.totals.evicted_launches += u64::from(end == LaunchEnd::Evicted);
        self.totals.evicted_seconds += u64::from(end == LaunchEnd::Evicted && self.is_paired_queue(at as u32));
        self.totals.aborted_launches += u64::from(end == LaunchEnd::Aborted);
        self.totals.repeated_launches += u64::from(is_unsure);
        let truth = &self.tasks[&task];
        self.slices.is_fed |= truth.class == Class::BestEffort && truth.complete[step as usize];
        self.slices.is_fed |= !riders.is_empty() && !device::is_cut(end);
        for rider in riders {
            let rider = self.truth(rider);
            rider.riding -= 1;
            if device::is_cut(end) {
                rider.cut_short -= 1;
                // What rides behind blocks that were cut short computes nonsense.
                rider.broken |= rider.riding > 0;
            }
        }
        if end == LaunchEnd::Failed {
            self.over(task);
        }
        self.heard_end = Some(self.tasks[&task].lane);
        self.tell(Event::LaunchEnded { launch, end });
    }

    /// Tells the scheduler, and does what it asks.
    fn tell(&mut self, event: Event) {
        self.heard = self.hears(&event);
        let is_late = |truth: &&mut Truth| truth.deadline.is_some_and(|at| at <= self.now);
        let hears = |lane: LaneId| self.heard.is_none_or(|heard| heard == lane);
        for truth in self.tasks.values_mut().filter(is_late).filter(|truth| hears(truth.lane)) {
            truth.over_since.get_or_insert(self.now);
        }
        let mut actions = Vec::new();
        self.scheduler.handle(self.now, event, &mut actions);
        self.carry_all_out(actions);
    }

    /// Does what the scheduler asks, and what it asks because of that.
    fn carry_all_out(&mut self, mut actions: Vec<Action>) {
        let mut decided = VecDeque::new();
        loop {
            if !actions.is_empty() {
                let slices = self.running_slices();
                decided.extend(actions.drain(..).map(|action| (action, slices.clone())));
            }
            self.judge_moves();
            let Some((action, slices)) = decided.pop_front() else { break };
            self.slices.at_decision = slices;
            if let Some(event) = self.carry_out(action) {
                self.scheduler.handle(self.now, event, &mut actions);
            }
        }
        self.judge_slices();
        self.judge_answer();
    }

    fn carry_out(&mut self, action: Action) -> Option<Event> {
        match action {
            Action::RaiseEpoch { task, epoch } => self.raise_epoch(task, epoch),
            Action::Prepare { task } if self.truth(task).away => {
                panic!("{task:?} is prepared although something is missing")
            }
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
            Action::Pad { task, step, first, shape, epoch } => {
                self.pad(Rider { task, step, first, blocks: shape.blocks, epoch })
            }
            Action::Issue { launch, task, step, queue, epoch } => self.issue(launch, task, step, queue, epoch),
            Action::Abort { launch, queue } => self.abort(launch, queue),
            // Another one was found to hang at the same time.
            Action::DeclareHung { .. } if self.device.is_lost => {}
            // It ended after all.
            Action::DeclareHung { launch, queue }
                if self.device.ended[queue.0 as usize].iter().any(|ended| ended.launch == launch) => {}
            Action::DeclareHung { launch, queue } => {
                let told = self.device.queues[queue.0 as usize]
                    .front()
                    .is_some_and(|oldest| oldest.id == launch && oldest.abort);
                assert!(
                    told && self.scenario.aborts == Aborts::Broken,
                    "{launch:?} counts as hung although the device obeys"
                );
                self.totals.hung += 1;
                self.forget_launches();
                return Some(Event::DeviceLost);
            }
            Action::RunHostStep { .. } if self.device.is_lost => {}
            Action::RunHostStep { task, step } => {
                let (is_slow, fails) = (self.rng.one_in(3), self.scenario.faults.failing_steps.strikes(&mut self.rng));
                let truth = self.truth(task);
                assert!(truth.in_flight == 0 && truth.riding == 0, "a host step beside launches");
                assert!(!truth.complete[step as usize], "a host step runs twice");
                truth.host_step = Some(step);
                return (!is_slow).then(|| self.run_host_step(task, fails));
            }
            Action::CloseLane { lane } => self.lane_closed(lane),
            Action::FinishTask { task, outcome, preemptions } => {
                self.totals.preemptions += u64::from(preemptions);
                self.finish(task, outcome);
            }
        }
        None
    }

    fn finish(&mut self, task: TaskId, outcome: Outcome) {
        self.judge_finish(task, outcome);
        self.preparing.retain(|&other| other != task);
        self.truth(task).finished = Some(outcome);
        match outcome {
            Outcome::Complete => self.totals.complete += 1,
            Outcome::Cancelled => self.totals.cancelled += 1,
            Outcome::Failed => self.totals.failed += 1,
            Outcome::DeadlineExceeded => self.totals.expired += 1,
            Outcome::DeviceLost => self.totals.lost += 1,
            Outcome::Refused | Outcome::QueueFull => {}
        }
    }

    fn truth(&mut self, task: TaskId) -> &mut Truth {
        self.tasks.get_mut(&task).expect("the scheduler knows tasks that arrived only")
    }
}

/// One of these, if there are any.
fn pick<T>(rng: &mut Rng, from: impl Iterator<Item = T> + Clone) -> Option<T> {
    let count = from.clone().count() as u64;
    (count > 0).then(|| from.clone().nth(rng.below(count) as usize)).flatten()
}

/// How many steps are known once `known` of them are: as far as to the next host step, which finds
/// out more.
fn next_known(steps: &[Step], known: usize) -> usize {
    steps[known..].iter().position(|step| *step == Step::Host).map_or(steps.len(), |host| known + host + 1)
}
