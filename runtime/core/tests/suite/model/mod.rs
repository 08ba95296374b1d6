//! A world for the scheduler: clients, a device with blocks and epoch words, and invariant checks.

mod checks;
mod device;
mod lanes;
mod memory;
mod oracle;
mod scenario;

pub(crate) use scenario::{Aborts, Faults, Rate, Scenario, Totals};

use atoll_core::limits::{DEVICE_QUEUES_MAX, HANG_NS};
use atoll_core::rng::Rng;
use atoll_core::{
    Action, Class, ClientId, DeviceScheduler, Epoch, Event, Fork, LaneId, LaunchEnd, LaunchProfile, Nanos, Outcome,
    PolicyEntry, SchedulerConfig, Step, StepCost, TaskId, TaskSpec, plan_forks,
};
use checks::Slices;
use device::{CoScheduled, Device, Ended};
use lanes::LaneOracle;
use memory::Memory;
use oracle::Oracle;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Compute units of the device: enough that most launches leave some idle.
const COMPUTE_UNITS: u32 = 9;
/// Number of real-time tasks. They stop arriving after these, so that a best-effort task that still
/// starves is found.
const RT_TASKS: u64 = 12;
const BE_TASKS: u64 = 12;
/// A run with more steps than this makes no progress.
const STEPS_MAX: u64 = 200_000;
/// Longest sleep of a scheduler that was not woken.
const SLEEP_NS_MAX: u64 = 3_000_000;

pub(crate) struct World {
    policy: &'static PolicyEntry,
    scheduler: DeviceScheduler,
    lanes: BTreeMap<LaneId, LaneOracle>,
    /// The id of the lane that was opened last.
    opened: LaneId,
    scenario: Scenario,
    rng: Rng,
    now: Nanos,
    tasks: BTreeMap<TaskId, Oracle>,
    device: Device,
    /// Tasks whose preparation takes a while, as when waiting for memory.
    preparing: Vec<TaskId>,
    arrivals: Vec<Class>,
    /// A task arrives at one in this many opportunities. Small values give many tasks at a time.
    sparsity: u64,
    /// Until when the scheduler is not woken.
    sleeps_until: Nanos,
    slices: Slices,
    /// The lane of the launch whose end is being reported.
    lane_of_end: Option<LaneId>,
    /// The lane that got the last event; `None` for all of them. Other lanes get nothing, not even
    /// the time.
    notified: Option<LaneId>,
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
            lanes: BTreeMap::from([(LaneId::DEFAULT, LaneOracle::of_all(scenario.queues, scenario.paired_queues))]),
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
            lane_of_end: None,
            notified: None,
            totals: Totals::default(),
        }
    }

    pub(crate) fn run(mut self) -> Totals {
        while !self.arrivals.is_empty() || self.scheduler.task_count() > 0 {
            self.totals.steps += 1;
            assert!(self.totals.steps < STEPS_MAX, "{} tasks starve", self.scheduler.task_count());
            if self.scenario.lost_after == Some(self.totals.steps)
                || self.scenario.faults.lost_device.happens(&mut self.rng)
            {
                self.lose_device();
            }
            self.now.0 += self.rng.below(20_000);
            self.wait_for_hung();
            self.step();
            self.check();
        }
        assert!(self.tasks.values().all(|oracle| oracle.finished.is_some()));
        assert!(self.device.queues.iter().all(VecDeque::is_empty), "launches are left on the device");
        self.check_counters();
        self.close_all_lanes();
        self.totals.slices = self.scheduler.counters().best_effort_slices;
        self.totals.forks = self.scheduler.counters().forks;
        self.totals
    }

    /// One step of the simulation.
    fn step(&mut self) {
        match self.rng.below(20) {
            0 if self.rng.one_in(self.sparsity) => self.arrive(),
            1 if self.scenario.faults.dead_clients.happens(&mut self.rng) => self.cancel(),
            1 if self.rng.one_in(2) => self.send(Event::Tick),
            2..4 => self.see_epochs(),
            4 => self.finish_on_host(),
            5 if self.scenario.cold => self.change_readiness(),
            6 if self.scenario.lanes && self.rng.one_in(3) => self.change_lanes(),
            5..9 => self.deliver(),
            _ => self.run_block(),
        }
        if self.scheduler.next_wakeup().is_some_and(|at| at <= self.now) && self.sleeps_until <= self.now {
            if self.scenario.faults.lost_wakeups.happens(&mut self.rng) {
                self.sleeps_until = Nanos(self.now.0 + 1 + self.rng.below(SLEEP_NS_MAX));
            } else {
                self.send(Event::Tick);
            }
        }
    }

    /// Advances time in leaps if the only thing left may be a device that counts as hung.
    fn wait_for_hung(&mut self) {
        if self.scenario.aborts == Aborts::Broken
            && self.device.ended.iter().all(VecDeque::is_empty)
            && self.rng.one_in(100)
        {
            self.now.0 += self.rng.below(HANG_NS / 20);
        }
    }

    /// The task is over: cancelled, failed or past its deadline.
    fn over(&mut self, task: TaskId) {
        let now = self.now;
        self.oracle(task).over_since.get_or_insert(now);
    }

    // Clients.

    fn arrive(&mut self) {
        let Some(class) = self.arrivals.pop() else { return };
        let task = TaskId(self.tasks.len() as u64);
        let steps_max = if class == Class::RealTime { 13 } else { 60 };
        // Kernels of one task come from one compiler: all report evictions, or none does.
        let reports_evictions = !self.rng.one_in(4);
        let mut steps: Vec<Step> = (0..self.rng.below(steps_max)).map(|_| self.kind(reports_evictions)).collect();
        let memory = Memory::of(&steps, &mut self.rng);
        for (index, (step, point)) in steps.iter_mut().zip(memory.restore_points()).enumerate() {
            if let Step::Restartable { restore_point } = step {
                *restore_point = if self.scenario.wrong_restore_points { 0 } else { point };
                // The step overwrites its input, so it cannot run twice.
                *step = if *restore_point > index as u32 { Step::NotPreemptible } else { *step };
            }
        }
        let steps: Arc<[Step]> = steps.into();
        let blocks: Vec<Vec<bool>> = (0..steps.len() as u32).map(|step| vec![false; memory.blocks(step)]).collect();
        let profiles: Arc<[_]> = blocks.iter().map(|blocks| self.profile(blocks.len() as u32)).collect();
        let deadline = self
            .scenario
            .faults
            .deadlines
            .happens(&mut self.rng)
            .then(|| Nanos(self.now.0 + self.rng.below(3_000_000)));
        let unready = self.scenario.cold && self.rng.one_in(2);
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
        let oracle = Oracle {
            class,
            // A task that arrives for a closing lane goes to the default lane.
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
            co_scheduled: 0,
            host_step: None,
            prepared: false,
            unready,
            uncertain_launches: 0,
            broken: false,
            deadline,
            over_since: None,
            finished: None,
        };
        self.tasks.insert(task, oracle);
        self.send(Event::TaskArrived(TaskSpec {
            task,
            lane,
            client: ClientId::default(),
            class,
            priority,
            steps: steps[..known].into(),
            deadline,
            due: None,
            profiles: Some(profiles),
            forks: Some(forks),
            ready: !unready,
        }));
    }

    fn kind(&mut self, reports_evictions: bool) -> Step {
        match self.rng.below(10) {
            0 => Step::Host,
            1 => Step::NotPreemptible,
            2..9 if !reports_evictions => Step::Restartable { restore_point: 0 },
            _ => Step::Preemptible,
        }
    }

    /// A random profile; some kernels have none.
    fn profile(&mut self, blocks: u32) -> Option<LaunchProfile> {
        let occupancy = 1 + self.rng.below(3);
        let wave_ns: Vec<u64> = (0..occupancy).map(|j| 1000 * (1 + j) + self.rng.below(2000)).collect();
        (!self.rng.one_in(6)).then_some(LaunchProfile::new(blocks, wave_ns))
    }

    /// An unready task becomes ready, or a waiting task becomes unready.
    fn change_readiness(&mut self) {
        let unfinished = self.tasks.iter().filter(|(_, oracle)| oracle.finished.is_none() && !oracle.prepared);
        let candidates: Vec<TaskId> =
            unfinished.map(|(&task, _)| task).filter(|task| !self.preparing.contains(task)).collect();
        if candidates.is_empty() {
            return;
        }
        let task = candidates[self.rng.below(candidates.len() as u64) as usize];
        if self.oracle(task).unready {
            self.oracle(task).unready = false;
            self.send(Event::TaskReady { task });
        } else if self.rng.one_in(4) {
            self.oracle(task).unready = true;
            self.totals.unready += 1;
            self.send(Event::TaskUnready { task });
        }
    }

    fn cancel(&mut self) {
        if !self.tasks.is_empty() {
            let task = TaskId(self.rng.below(self.tasks.len() as u64));
            self.over(task);
            self.send(Event::CancelTask { task });
        }
    }

    // The engine.

    fn lose_device(&mut self) {
        self.forget_launches();
        self.send(Event::DeviceLost);
    }

    fn forget_launches(&mut self) {
        self.device.forget_launches();
        self.tasks
            .values_mut()
            .for_each(|oracle| (oracle.in_flight, oracle.co_scheduled, oracle.host_step) = (0, 0, None));
    }

    /// A preparation or a host step that took a while ends.
    fn finish_on_host(&mut self) {
        let fails = self.scenario.faults.failing_steps.happens(&mut self.rng);
        if !self.preparing.is_empty() && self.rng.one_in(2) {
            let task = self.preparing.swap_remove(self.rng.below(self.preparing.len() as u64) as usize);
            self.oracle(task).prepared = !fails;
            self.send(if fails { Event::TaskFailed { task } } else { Event::TaskPrepared { task } });
        } else if let Some(task) =
            self.tasks.iter().find(|(_, oracle)| oracle.host_step.is_some()).map(|(&task, _)| task)
        {
            let event = self.run_host_step(task, fails);
            self.send(event);
        }
    }

    fn run_host_step(&mut self, task: TaskId, fails: bool) -> Event {
        let oracle = self.oracle(task);
        let step = oracle.host_step.take().expect("a host step was asked for");
        oracle.run(step, 0);
        oracle.complete[step as usize] = true;
        let mut steps = None;
        if !fails && step as usize + 1 == oracle.known && oracle.known < oracle.steps.len() {
            oracle.known = next_known(&oracle.steps, oracle.known);
            steps = Some(oracle.steps[..oracle.known].into());
            self.totals.unfolded += 1;
        }
        if fails { Event::TaskFailed { task } } else { Event::HostStepDone { task, steps, next: None } }
    }

    /// Reports the end of a launch to the scheduler.
    fn deliver(&mut self) {
        let is_due = |queue: &usize| self.device.ended[*queue].front().is_some_and(|ended| ended.at <= self.now);
        let Some(at) = pick(&mut self.rng, (0..self.device.ended.len()).filter(is_due)) else { return };
        let Ended { launch, task, step, epoch, end, co_scheduled, .. } =
            self.device.ended[at].pop_front().expect("looked at");
        let oracle = self.tasks.get_mut(&task).expect("a task");
        oracle.in_flight -= 1;
        let may_be_evicted =
            end == LaunchEnd::Complete && oracle.is_restartable(step) && epoch.is_raised_by(oracle.raised);
        oracle.complete[step as usize] |= end == LaunchEnd::Complete && !may_be_evicted;
        self.totals.evicted_launches += u64::from(end == LaunchEnd::Evicted);
        self.totals.evicted_in_second_branches +=
            u64::from(end == LaunchEnd::Evicted && self.is_paired_queue(at as u32));
        self.totals.aborted_launches += u64::from(end == LaunchEnd::Aborted);
        self.totals.repeated_launches += u64::from(may_be_evicted);
        let oracle = &self.tasks[&task];
        self.slices.made_progress |= oracle.class == Class::BestEffort && oracle.complete[step as usize];
        self.slices.made_progress |= !co_scheduled.is_empty() && !device::may_have_missed_blocks(end);
        for padding_task in co_scheduled {
            let oracle = self.oracle(padding_task);
            oracle.co_scheduled -= 1;
            if device::may_have_missed_blocks(end) {
                oracle.uncertain_launches -= 1;
                // Blocks behind blocks that may not have run compute from incomplete inputs.
                oracle.broken |= oracle.co_scheduled > 0;
            }
        }
        if end == LaunchEnd::Failed {
            self.over(task);
        }
        self.lane_of_end = Some(self.tasks[&task].lane);
        self.send(Event::LaunchEnded { launch, end });
    }

    /// Sends an event to the scheduler and carries out its actions.
    fn send(&mut self, event: Event) {
        self.notified = self.lane_of_event(&event);
        let is_late = |oracle: &&mut Oracle| oracle.deadline.is_some_and(|at| at <= self.now);
        let was_notified = |lane: LaneId| self.notified.is_none_or(|notified| notified == lane);
        for oracle in self.tasks.values_mut().filter(is_late).filter(|oracle| was_notified(oracle.lane)) {
            oracle.over_since.get_or_insert(self.now);
        }
        let mut actions = Vec::new();
        self.scheduler.handle(self.now, event, &mut actions);
        self.carry_all_out(actions);
    }

    /// Carries out actions, and those that follow from their outcomes.
    fn carry_all_out(&mut self, mut actions: Vec<Action>) {
        let mut decided = VecDeque::new();
        loop {
            if !actions.is_empty() {
                let slices = self.running_slices();
                decided.extend(actions.drain(..).map(|action| (action, slices.clone())));
            }
            self.check_moves();
            let Some((action, slices)) = decided.pop_front() else { break };
            self.slices.at_decision = slices;
            if let Some(event) = self.carry_out(action) {
                self.scheduler.handle(self.now, event, &mut actions);
            }
        }
        self.check_slices();
        self.check_answer();
    }

    fn carry_out(&mut self, action: Action) -> Option<Event> {
        match action {
            Action::RaiseEpoch { task, epoch } => self.raise_epoch(task, epoch),
            Action::Prepare { task } if self.oracle(task).unready => {
                panic!("{task:?} is prepared although it is not ready")
            }
            Action::Prepare { task } if self.scenario.cold && self.rng.one_in(8) => {
                self.oracle(task).unready = true;
                self.totals.unready += 1;
                return Some(Event::TaskUnready { task });
            }
            Action::Prepare { task } if self.rng.one_in(3) => self.preparing.push(task),
            Action::Prepare { task } => {
                self.oracle(task).prepared = true;
                return Some(Event::TaskPrepared { task });
            }
            Action::Pad { task, step, first, shape, epoch } => {
                self.pad(CoScheduled { task, step, first, blocks: shape.blocks, epoch })
            }
            Action::Issue { launch, task, step, queue, epoch } => self.issue(launch, task, step, queue, epoch),
            Action::Abort { launch, queue } => self.abort(launch, queue),
            // Another launch counted as hung at the same time.
            Action::DeclareHung { .. } if self.device.is_lost => {}
            // The launch has ended after all.
            Action::DeclareHung { launch, queue }
                if self.device.ended[queue.0 as usize].iter().any(|ended| ended.launch == launch) => {}
            Action::DeclareHung { launch, queue } => {
                let was_aborted = self.device.queues[queue.0 as usize]
                    .front()
                    .is_some_and(|oldest| oldest.id == launch && oldest.abort);
                assert!(
                    was_aborted && self.scenario.aborts == Aborts::Broken,
                    "{launch:?} counts as hung although the device aborts launches"
                );
                self.totals.hung += 1;
                self.forget_launches();
                return Some(Event::DeviceLost);
            }
            Action::RunHostStep { .. } if self.device.is_lost => {}
            Action::RunHostStep { task, step } => {
                let (is_slow, fails) = (self.rng.one_in(3), self.scenario.faults.failing_steps.happens(&mut self.rng));
                let oracle = self.oracle(task);
                assert!(oracle.in_flight == 0 && oracle.co_scheduled == 0, "a host step beside launches");
                assert!(!oracle.complete[step as usize], "a host step runs twice");
                oracle.host_step = Some(step);
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
        self.check_finish(task, outcome);
        self.preparing.retain(|&other| other != task);
        self.oracle(task).finished = Some(outcome);
        match outcome {
            Outcome::Complete => self.totals.complete += 1,
            Outcome::Cancelled => self.totals.cancelled += 1,
            Outcome::Failed => self.totals.failed += 1,
            Outcome::DeadlineExceeded => self.totals.expired += 1,
            Outcome::DeviceLost => self.totals.lost += 1,
            Outcome::Refused | Outcome::QueueFull => {}
        }
    }

    fn oracle(&mut self, task: TaskId) -> &mut Oracle {
        self.tasks.get_mut(&task).expect("the scheduler knows tasks that arrived only")
    }
}

/// A random item, if there are any.
fn pick<T>(rng: &mut Rng, from: impl Iterator<Item = T> + Clone) -> Option<T> {
    let count = from.clone().count() as u64;
    (count > 0).then(|| from.clone().nth(rng.below(count) as usize)).flatten()
}

/// How many steps are known after `known` of them ran: up to the next host step, which determines
/// more.
fn next_known(steps: &[Step], known: usize) -> usize {
    steps[known..].iter().position(|step| *step == Step::Host).map_or(steps.len(), |host| known + host + 1)
}
