//! The scheduler's inputs ([`Event`]) and outputs ([`Action`]): two closed lists of plain values.

use crate::fork::Fork;
use crate::ids::{Class, ClientId, Epoch, LaneId, LaunchId, Nanos, QueueId, TaskId};
use crate::padding::{LaunchProfile, PadShape};
use std::sync::Arc;

/// One step of a task. Each step needs the one before it, except inside [`TaskSpec::forks`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// A launch whose kernel has the preemption parameters: it may exit early, and continues by its
    /// progress map when issued again.
    Preemptible,
    /// A launch that may exit early but has neither an evicted word nor a progress map. If it ended
    /// after its epoch was raised, it is unknown which blocks ran. It runs again as a whole, and so
    /// does every later launch that may have run.
    Restartable {
        /// The restore point: the earliest step from which the task may run again after this one
        /// has begun. At most its own index; taken from the memory plan.
        restore_point: u32,
    },
    /// A launch that always runs to its end. It is issued only once no launch before it can exit
    /// early.
    NotPreemptible,
    /// Work of the host between launches, such as a copy. It waits for all steps before it, and all
    /// steps after it wait for it.
    Host,
}

/// A task as it arrives.
#[derive(Clone, Debug)]
pub struct TaskSpec {
    /// Its id; unique for the life of the scheduler.
    pub task: TaskId,
    /// The lane it runs in. If that lane is closed or closing, the task runs in the default lane.
    pub lane: LaneId,
    /// The client it belongs to.
    pub client: ClientId,
    /// Its service class.
    pub class: Class,
    /// Under policies with priorities, the task with the lower number is more urgent than others of
    /// its class.
    pub priority: u32,
    /// Its steps, in order.
    pub steps: Arc<[Step]>,
    /// When it is cancelled if it has not finished.
    pub deadline: Option<Nanos>,
    /// When it should finish, for policies that order tasks by deadline; `None` for the value of
    /// `deadline`. A batch has the earliest deadline of its requests here: it orders the task, but
    /// the batch is not cancelled when it passes.
    pub due: Option<Nanos>,
    /// A profile for each step, for policies that pad; `None` for steps that can neither be padded
    /// nor pad others.
    pub profiles: Option<Arc<[Option<LaunchProfile>]>>,
    /// Sections that may run in two concurrent branches, in the order of their steps. They do not
    /// overlap, and all their steps are [`Step::Preemptible`]. The caller has determined that
    /// forking them pays off.
    pub forks: Option<Arc<[Fork]>>,
    /// Whether it may start. If not, its constants or session are not on the device yet:
    /// [`Event::TaskReady`] follows. Until then it neither blocks nor evicts other tasks.
    pub ready: bool,
}

/// An input of the scheduler.
#[derive(Clone, Debug)]
pub enum Event {
    /// An invocation passed admission.
    TaskArrived(TaskSpec),
    /// The task's constants and session are resident. From now on it waits in the host queue, ahead
    /// of tasks of its rank that arrived after it.
    TaskReady {
        /// The task.
        task: TaskId,
    },
    /// The task's constants or session were reclaimed: the task is treated as if it had arrived
    /// with `ready: false`. Sent for a task that waits in the host queue, or in answer to
    /// [`Action::Prepare`].
    TaskUnready {
        /// The task.
        task: TaskId,
    },
    /// [`Action::Prepare`] is done: memory is bound, inputs are in place.
    TaskPrepared {
        /// The task.
        task: TaskId,
    },
    /// Preparing the task, or one of its host steps, failed.
    TaskFailed {
        /// The task.
        task: TaskId,
    },
    /// A launch ended. Within one device queue launches end in the order in which they were issued.
    LaunchEnded {
        /// The launch.
        launch: LaunchId,
        /// How it ended.
        end: LaunchEnd,
    },
    /// [`Action::RunHostStep`] is done.
    HostStepDone {
        /// The task.
        task: TaskId,
        /// All steps of the task, if the host step determined the steps that follow it. The steps
        /// up to and including the host step are unchanged. With this, the amount of work may
        /// depend on computed values: until the next steps are known, a host step is the task's
        /// last step. New steps are in none of [`TaskSpec::forks`].
        steps: Option<Arc<[Step]>>,
        /// Index of the step at which the task continues; `None` for the next one. An earlier step
        /// repeats steps (a loop), a later one skips steps, and the number of steps completes the
        /// task. There must be no fork between the host step and this step.
        next: Option<u32>,
    },
    /// Cancels a task. Ignored if the task has already finished: the completion may race with the
    /// cancellation.
    CancelTask {
        /// The task.
        task: TaskId,
    },
    /// The device was lost. It sends no further reports.
    DeviceLost,
    /// Time has passed; see [`crate::DeviceScheduler::next_wakeup`].
    Tick,
}

/// How a launch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LaunchEnd {
    /// Every block ran, now or in an earlier launch. For a [`Step::Restartable`]: the launch is
    /// over.
    Complete,
    /// At least one block exited early because of the epoch.
    Evicted,
    /// The kernel trapped or faulted.
    Failed,
    /// It was ended by [`Action::Abort`]; its progress is unknown.
    Aborted,
}

/// An output of the scheduler. Actions are carried out in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Set the task's epoch word; its launches of older epochs exit early.
    RaiseEpoch {
        /// The task.
        task: TaskId,
        /// The new value.
        epoch: Epoch,
    },
    /// Bind memory and write the inputs, then answer with [`Event::TaskPrepared`],
    /// [`Event::TaskUnready`] or [`Event::TaskFailed`], now or later.
    Prepare {
        /// The task.
        task: TaskId,
    },
    /// Co-schedule blocks of a step in the launch of the next [`Action::Issue`]. The task has no
    /// launch of its own on the device.
    Pad {
        /// The task of the co-scheduled blocks.
        task: TaskId,
        /// Index of the step.
        step: u32,
        /// The first block; earlier blocks were co-scheduled before.
        first: u32,
        /// How many blocks, on how many compute units, and how many at a time.
        shape: PadShape,
        /// The epoch they carry.
        epoch: Epoch,
    },
    /// Put a launch into a device queue, which has room.
    Issue {
        /// Echoed in [`Event::LaunchEnded`]; unique for the life of the scheduler.
        launch: LaunchId,
        /// The task.
        task: TaskId,
        /// Index of the step.
        step: u32,
        /// The queue: the same for a task as long as it stays in its lane, or its paired queue for
        /// steps of a second branch.
        queue: QueueId,
        /// The epoch the launch carries.
        epoch: Epoch,
    },
    /// End a launch by force: its task is over and the launch did not exit by itself. It is the
    /// oldest of its device queue; its end is reported as [`Event::LaunchEnded`].
    Abort {
        /// The launch.
        launch: LaunchId,
        /// Its queue.
        queue: QueueId,
    },
    /// An aborted launch has not ended within the time limit: the device does not respond. Answer
    /// with [`Event::DeviceLost`], unless the launch ends after all.
    DeclareHung {
        /// The launch.
        launch: LaunchId,
        /// Its queue.
        queue: QueueId,
    },
    /// Run a host step, then answer with [`Event::HostStepDone`] or [`Event::TaskFailed`]. No
    /// launch of the task is in flight.
    RunHostStep {
        /// The task.
        task: TaskId,
        /// Index of the step.
        step: u32,
    },
    /// A closing lane has no tasks left: its device queues may be destroyed. Sent once for
    /// each lane that [`crate::DeviceScheduler::close_lane`] closes.
    CloseLane {
        /// The lane.
        lane: LaneId,
    },
    /// The task is over and none of its launches is in flight: reply and release. Sent exactly once
    /// for each task that arrived.
    FinishTask {
        /// The task.
        task: TaskId,
        /// How it ended.
        outcome: Outcome,
        /// How often its launches were evicted and issued again.
        preemptions: u32,
    },
}

/// How a task ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Every step is complete.
    Complete,
    /// A launch, a host step or the preparation failed.
    Failed,
    /// It was cancelled.
    Cancelled,
    /// Its deadline passed.
    DeadlineExceeded,
    /// The host queue of its class was full when it arrived.
    QueueFull,
    /// The policy does not accept tasks of its class.
    Refused,
    /// The device was lost.
    DeviceLost,
}
