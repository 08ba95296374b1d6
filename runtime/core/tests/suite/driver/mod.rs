//! A small engine and device around the scheduler: draws events from a seed and carries actions
//! out.
//!
//! The events depend only on the seed and the actions, so two schedulers that take the same actions
//! see the same events.

use atoll_core::rng::Rng;
use atoll_core::{
    Action, Class, ClientId, Epoch, Event, LaneId, LaunchEnd, LaunchId, LaunchProfile, Nanos, QueueId, Step, TaskId,
    TaskSpec,
};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// A launch on the device.
#[derive(Clone, Copy)]
pub(crate) struct Launch {
    pub(crate) id: LaunchId,
    pub(crate) task: TaskId,
    pub(crate) step: u32,
    pub(crate) epoch: Epoch,
    aborted: bool,
}

/// The state of a task that is not finished.
pub(crate) struct Running {
    pub(crate) steps: Arc<[Step]>,
    word: Epoch,
    /// A launch of the current epoch was evicted, so later ones are too.
    is_evicting: bool,
    pub(crate) in_flight: u32,
    prepared: bool,
    unready: bool,
    host_step: bool,
}

/// The rates of events in a run.
#[derive(Clone, Copy)]
pub(crate) struct Mix {
    /// Number of tasks that arrive.
    pub(crate) tasks: u64,
    /// One in this many launches fails; 0 for none. Also the rate of cancellations, deadlines and
    /// failed preparations.
    pub(crate) faults: u64,
    /// Whether tasks may be unready.
    pub(crate) cold: bool,
}

pub(crate) struct Driver {
    pub(crate) rng: Rng,
    pub(crate) now: Nanos,
    pub(crate) mix: Mix,
    arrived: u64,
    pub(crate) tasks: BTreeMap<TaskId, Running>,
    pub(crate) queues: BTreeMap<QueueId, VecDeque<Launch>>,
    /// The lanes that tasks arrive in, the default one first.
    pub(crate) lanes: Vec<LaneId>,
    /// Lanes that the scheduler has closed.
    pub(crate) closed: Vec<LaneId>,
    hung: bool,
}

impl Driver {
    pub(crate) fn new(seed: u64, mix: Mix) -> Driver {
        let (tasks, queues, lanes) = (BTreeMap::new(), BTreeMap::new(), vec![LaneId::DEFAULT]);
        Driver {
            rng: Rng::new(seed),
            now: Nanos(0),
            mix,
            arrived: 0,
            tasks,
            queues,
            lanes,
            closed: Vec::new(),
            hung: false,
        }
    }

    /// Whether every task has arrived and is finished.
    pub(crate) fn is_done(&self) -> bool {
        self.arrived == self.mix.tasks && self.tasks.is_empty()
    }

    /// The next event.
    pub(crate) fn next(&mut self, wakeup: Option<Nanos>) -> Event {
        self.now.0 += self.rng.below(20_000);
        if std::mem::take(&mut self.hung) {
            self.queues.clear();
            return Event::DeviceLost;
        }
        let event = match self.rng.below(16) {
            0..3 if self.arrived < self.mix.tasks => Some(self.arrive()),
            3 if self.mix.faults > 0 && self.rng.one_in(self.mix.faults) => {
                self.any_task(|_| true).map(|task| Event::CancelTask { task })
            }
            4 if self.mix.cold => self.change_readiness(),
            5..8 => self.finish_on_host(),
            8..15 => self.end_launch(),
            _ => None,
        };
        // If nothing else can happen, time passes until the next wakeup.
        if event.is_none()
            && let Some(at) = wakeup
            && self.rng.one_in(4)
        {
            self.now = self.now.max(at);
        }
        event.unwrap_or(Event::Tick)
    }

    fn arrive(&mut self) -> Event {
        let task = TaskId(self.arrived);
        self.arrived += 1;
        let class = if self.rng.one_in(3) { Class::RealTime } else { Class::BestEffort };
        let reports_evictions = !self.rng.one_in(4);
        let steps: Arc<[Step]> =
            (0..self.rng.below(12) as u32).map(|index| self.step(index, reports_evictions)).collect();
        let profiles = (0..steps.len()).map(|_| self.profile()).collect();
        let deadline = (self.mix.faults > 0 && self.rng.one_in(self.mix.faults))
            .then(|| Nanos(self.now.0 + self.rng.below(3_000_000)));
        let unready = self.mix.cold && self.rng.one_in(2);
        let (word, priority) = (Epoch::default(), self.rng.below(3) as u32);
        let running = Running {
            steps: Arc::clone(&steps),
            word,
            is_evicting: false,
            in_flight: 0,
            prepared: false,
            unready,
            host_step: false,
        };
        self.tasks.insert(task, running);
        let lane = if self.lanes.len() > 1 {
            self.lanes[self.rng.below(self.lanes.len() as u64) as usize]
        } else {
            LaneId::DEFAULT
        };
        Event::TaskArrived(TaskSpec {
            task,
            lane,
            client: ClientId(0),
            class,
            priority,
            steps,
            deadline,
            due: None,
            profiles: Some(profiles),
            forks: None,
            ready: !unready,
        })
    }

    fn step(&mut self, index: u32, reports_evictions: bool) -> Step {
        match self.rng.below(10) {
            0 => Step::Host,
            1 => Step::NotPreemptible,
            2..9 if !reports_evictions => {
                Step::Restartable { restore_point: self.rng.below(u64::from(index) + 1) as u32 }
            }
            _ => Step::Preemptible,
        }
    }

    fn profile(&mut self) -> Option<LaunchProfile> {
        let blocks = 1 + self.rng.below(20) as u32;
        let waves: Vec<u64> =
            (0..1 + self.rng.below(3)).map(|on_each| 1_000 * (1 + on_each) + self.rng.below(2_000)).collect();
        (!self.rng.one_in(6)).then(|| LaunchProfile::new(blocks, waves))
    }

    fn any_task(&mut self, is_one: impl Fn(&Running) -> bool) -> Option<TaskId> {
        let all: Vec<TaskId> =
            self.tasks.iter().filter(|(_, running)| is_one(running)).map(|(task, _)| *task).collect();
        (!all.is_empty()).then(|| all[self.rng.below(all.len() as u64) as usize])
    }

    fn change_readiness(&mut self) -> Option<Event> {
        let task = self.any_task(|running| running.unready)?;
        self.tasks.get_mut(&task).expect("picked").unready = false;
        Some(Event::TaskReady { task })
    }

    /// A preparation or a host step ends; a preparation may find its task unready.
    fn finish_on_host(&mut self) -> Option<Event> {
        let task = self.any_task(|running| running.prepared || running.host_step)?;
        let fails = self.mix.faults > 0 && self.rng.one_in(self.mix.faults);
        let goes_missing = self.mix.cold && self.rng.one_in(8);
        let running = self.tasks.get_mut(&task).expect("picked");
        let was_host_step = std::mem::take(&mut running.host_step);
        if fails {
            running.prepared = false;
            return Some(Event::TaskFailed { task });
        }
        if was_host_step {
            return Some(Event::HostStepDone { task, steps: None, next: None });
        }
        (running.prepared, running.unready) = (false, goes_missing);
        Some(if goes_missing { Event::TaskUnready { task } } else { Event::TaskPrepared { task } })
    }

    fn end_launch(&mut self) -> Option<Event> {
        let busy: Vec<QueueId> = self.queues.iter().filter(|(_, queue)| !queue.is_empty()).map(|(id, _)| *id).collect();
        let queue = *busy.get(self.rng.below(busy.len().max(1) as u64) as usize)?;
        let launch = self.queues.get_mut(&queue).expect("picked").pop_front().expect("not empty");
        let draws = (self.rng.one_in(2), self.mix.faults > 0 && self.rng.one_in(self.mix.faults));
        let running = self.tasks.get_mut(&launch.task).expect("a task outlives its launches");
        running.in_flight -= 1;
        let reports_evictions =
            running.steps[launch.step as usize] == Step::Preemptible && launch.epoch.is_raised_by(running.word);
        let end = match draws {
            _ if launch.aborted => LaunchEnd::Aborted,
            (_, true) => LaunchEnd::Failed,
            (left, _) if reports_evictions && (left || running.is_evicting) => LaunchEnd::Evicted,
            _ => LaunchEnd::Complete,
        };
        running.is_evicting = running.in_flight > 0 && (running.is_evicting || end == LaunchEnd::Evicted);
        Some(Event::LaunchEnded { launch: launch.id, end })
    }

    /// Carries out an action of the scheduler.
    pub(crate) fn carry_out(&mut self, action: &Action) {
        match *action {
            Action::Prepare { task } => self.task(task).prepared = true,
            Action::RunHostStep { task, .. } => self.task(task).host_step = true,
            Action::RaiseEpoch { task, epoch } => self.task(task).word = epoch,
            Action::Issue { launch: id, task, step, queue, epoch } => {
                self.task(task).in_flight += 1;
                self.queues.entry(queue).or_default().push_back(Launch { id, task, step, epoch, aborted: false });
            }
            Action::Abort { launch, queue } => {
                let queue = self.queues.get_mut(&queue).expect("a launch is in its queue");
                queue.iter_mut().find(|other| other.id == launch).expect("a launch is in its queue").aborted = true;
            }
            Action::DeclareHung { .. } => self.hung = true,
            Action::FinishTask { task, .. } => drop(self.tasks.remove(&task).expect("a task finishes once")),
            Action::CloseLane { lane } => self.closed.push(lane),
            Action::Pad { .. } => {}
        }
    }

    fn task(&mut self, task: TaskId) -> &mut Running {
        self.tasks.get_mut(&task).expect("actions name tasks that are not finished")
    }
}
