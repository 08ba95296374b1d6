//! A simulated device with the daemon's scheduler in front of it.

use crate::device::{Ended, SimDevice, SimLaunch, SimPad};
use crate::model::Kernel;
use crate::parameters::DeviceParameters;
use atoll_core::{Action, DeviceScheduler, LaunchEnd, LaunchId, Nanos, PolicyEntry, SchedulerConfig, TaskId, TaskSpec};
use std::collections::HashMap;
use std::sync::Arc;

/// The kernels of a task, one for each step.
pub(crate) type Kernels = Arc<[Arc<Kernel>]>;

/// A device and its scheduler. The owner passes events to the scheduler, and each resulting action
/// to [`Node::carry_out`].
pub(crate) struct Node {
    pub(crate) scheduler: DeviceScheduler,
    pub(crate) device: SimDevice,
    /// The kernels of tasks that have not finished.
    kernels: HashMap<TaskId, Kernels>,
    /// The launches on the device with their tasks.
    launches: HashMap<LaunchId, TaskId>,
    /// Padding for the next launch.
    pads: Vec<SimPad>,
    /// The launches on the device that have padding, with their time alone in nanoseconds.
    padded: HashMap<LaunchId, u64>,
    /// How much longer padded launches took than alone, in nanoseconds.
    pub(crate) padding_delays: Vec<u64>,
}

impl Node {
    /// An idle device at time 0.
    pub(crate) fn new(policy: &'static PolicyEntry, device: SimDevice, queue_capacity: u32) -> Node {
        let DeviceParameters { queues, preempt_level, compute_units, .. } = *device.parameters();
        let config = SchedulerConfig {
            policy,
            queues,
            paired_queues: false,
            queue_capacity,
            preempt_level,
            can_abort: false,
            compute_units,
            best_effort_wait_ns_max: None,
            perturb: None,
        };
        Node {
            scheduler: DeviceScheduler::new(&config),
            device,
            kernels: HashMap::new(),
            launches: HashMap::new(),
            pads: Vec::new(),
            padded: HashMap::new(),
            padding_delays: Vec::new(),
        }
    }

    /// Stores the kernels of a task. Must be called before the task arrives.
    pub(crate) fn add(&mut self, task: &TaskSpec, kernels: Kernels) {
        self.kernels.insert(task.task, kernels);
    }

    /// Removes a launch that ended, and returns its task.
    pub(crate) fn ended(&mut self, ended: &Ended) -> TaskId {
        if let Some(alone_ns) = self.padded.remove(&ended.launch)
            && let (Some(began), LaunchEnd::Complete) = (ended.began, ended.end)
        {
            self.padding_delays.push((ended.at.0 - began.0).saturating_sub(alone_ns));
        }
        self.launches.remove(&ended.launch).expect("every launch that ends was submitted")
    }

    /// The launches of a task that are on the device, in any order.
    pub(crate) fn launches_of(&self, task: TaskId) -> impl Iterator<Item = LaunchId> {
        self.launches.iter().filter(move |(_, owner)| **owner == task).map(|(launch, _)| *launch)
    }

    /// Whether no launch is on the device.
    pub(crate) fn is_idle(&self) -> bool {
        self.launches.is_empty()
    }

    /// The time of the next event of the device or the scheduler.
    pub(crate) fn next(&self) -> Option<Nanos> {
        [self.device.next(), self.scheduler.next_wakeup()].into_iter().flatten().min()
    }

    /// Carries out the part of an action that concerns the device. The owner handles
    /// [`Action::Prepare`] and the outcome in [`Action::FinishTask`].
    pub(crate) fn carry_out(&mut self, now: Nanos, action: &Action) {
        match *action {
            Action::CloseLane { lane } => self.device.close_lane(lane),
            Action::Issue { launch, task, step, queue, epoch } => {
                let kernel = self.kernel(task, step);
                self.launches.insert(launch, task);
                let pads = std::mem::take(&mut self.pads);
                if !pads.is_empty() {
                    self.padded.insert(launch, kernel.profile.alone_ns(self.device.parameters().compute_units));
                }
                self.device.submit(now, queue, SimLaunch { launch, task, step, epoch, kernel, pads });
            }
            Action::Pad { task, step, shape, .. } => {
                let kernel = self.kernel(task, step);
                self.pads.push(SimPad { task, step, shape, kernel });
            }
            Action::RaiseEpoch { task, epoch } => self.device.raise_epoch(now, task, epoch),
            Action::FinishTask { task, .. } => {
                self.kernels.remove(&task);
                self.device.forget(task);
            }
            Action::Prepare { .. } => {}
            Action::RunHostStep { .. } | Action::Abort { .. } | Action::DeclareHung { .. } => {
                unreachable!("simulated models have no host steps, and the scheduler may not abort launches")
            }
        }
    }

    fn kernel(&self, task: TaskId, step: u32) -> Arc<Kernel> {
        Arc::clone(&self.kernels[&task][step as usize])
    }
}
