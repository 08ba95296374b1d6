//! What the scheduler is told and what it answers: two closed lists of plain values.

use crate::fork::Fork;
use crate::ids::{Class, ClientId, Epoch, LaneId, LaunchId, Nanos, QueueId, TaskId};
use crate::padding::{LaunchProfile, PadShape};
use std::sync::Arc;

/// One step of a task. The steps of a task are a straight line: each needs the one before it, but
/// where [`TaskSpec::forks`] says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// A launch whose kernel carries the preemption parameters: it may leave early and be issued
    /// again.
    Cuttable,
    /// A launch that may leave early and keeps neither an evicted word nor a progress map: of one
    /// that ended after its epoch was raised nobody knows what ran. It runs again as a whole, and
    /// so does every launch behind it that may have run.
    Restartable {
        /// The earliest step from which the task may run again after this one has begun: its own
        /// index or less, from the memory plan (design D5 g).
        from: u32,
    },
    /// A launch that always runs to its end. It is issued only once nothing before it can still
    /// leave (design D5 b).
    Solid,
    /// Something the host does between launches, such as a copy. It waits for everything before it,
    /// and everything behind it waits for it (design D5 b).
    Host,
}

/// A task as it arrives.
#[derive(Clone, Debug)]
pub struct TaskSpec {
    /// Its name; not used again for the life of the scheduler.
    pub task: TaskId,
    /// The lane it runs in. A task of a lane that is closed, or closing, runs in the default lane.
    pub lane: LaneId,
    /// Whose it is.
    pub client: ClientId,
    /// Its service class.
    pub class: Class,
    /// Of two tasks of a class the one with the lower number is more urgent, where the policy goes
    /// by that.
    pub priority: u32,
    /// What it consists of.
    pub steps: Arc<[Step]>,
    /// When it is no longer wanted.
    pub deadline: Option<Nanos>,
    /// What is known about each step, where a policy may pad; `None` for those that neither are
    /// padded nor pad others.
    pub profiles: Option<Arc<[Option<LaunchProfile>]>>,
    /// Parts that may run in two lines beside each other, in the order of their steps, which no two
    /// share and which are all [`Step::Cuttable`]. Whoever gives them knows that it is quicker so.
    pub forks: Option<Arc<[Fork]>>,
    /// Whether it may start. Otherwise what it needs is on its way ([`Event::TaskReady`]); it then
    /// stands in nobody's way, and nobody makes room for it.
    pub ready: bool,
}

/// What happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// An invocation passed admission.
    TaskArrived(TaskSpec),
    /// What the task needs is there: from now on it waits for its turn, in front of tasks that
    /// arrived after it.
    TaskReady {
        /// The task.
        task: TaskId,
    },
    /// What the task needs is gone again: it is as if it had arrived so. Said of a task that waits
    /// for its turn, or in answer to [`Action::Prepare`].
    TaskUnready {
        /// The task.
        task: TaskId,
    },
    /// [`Action::Prepare`] was carried out: memory is bound, inputs are in place.
    TaskPrepared {
        /// The task.
        task: TaskId,
    },
    /// Preparing the task, or a host step of it, failed.
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
    /// [`Action::RunHostStep`] was carried out.
    HostStepDone {
        /// The task.
        task: TaskId,
        /// All steps of the task, where the host step found out what stands behind it: up to and
        /// with the host step they are those that they were. So work whose extent depends on what
        /// kernels compute is a task that ends with a host step for as long as no more of
        /// it is known. What is new is in none of [`TaskSpec::forks`].
        steps: Option<Arc<[Step]>>,
    },
    /// Nobody wants the task any more. Ignored if it is gone already, since its end may be on its
    /// way to whoever cancels.
    CancelTask {
        /// The task.
        task: TaskId,
    },
    /// The device will not answer again.
    DeviceLost,
    /// Time passed; see [`crate::DeviceScheduler::next_wakeup`].
    Tick,
}

/// How a launch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LaunchEnd {
    /// Every block ran, now or earlier. Of a [`Step::Restartable`] only that the launch is over.
    Complete,
    /// At least one block left because of the epoch (design D5 a).
    Evicted,
    /// The kernel trapped or faulted.
    Failed,
    /// It was ended by [`Action::Abort`]; how far it came nobody knows.
    Aborted,
}

/// What is to be done, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Set the task's epoch word; its launches of older epochs leave the device queue.
    RaiseEpoch {
        /// The task.
        task: TaskId,
        /// The new value.
        epoch: Epoch,
    },
    /// Bind memory and write the inputs, then answer [`Event::TaskPrepared`],
    /// [`Event::TaskUnready`] or [`Event::TaskFailed`], now or later.
    Prepare {
        /// The task.
        task: TaskId,
    },
    /// Let blocks of a step run beside those of the launch that the next [`Action::Issue`] names,
    /// in the same launch. Of a task there is nothing else on the device.
    Pad {
        /// Whose blocks.
        task: TaskId,
        /// Index of the step.
        step: u32,
        /// The first of its blocks; those in front ran beside others before.
        first: u32,
        /// How many, on how many compute units, and how many of them at a time.
        shape: PadShape,
        /// The epoch they carry.
        epoch: Epoch,
    },
    /// Put a launch into a device queue. There is room.
    Issue {
        /// Echoed in [`Event::LaunchEnded`]; unique for the life of the scheduler.
        launch: LaunchId,
        /// The task.
        task: TaskId,
        /// Index of the step.
        step: u32,
        /// The queue, the same for a task as long as it stays in its lane; or that one's twin, for
        /// steps of a second line.
        queue: QueueId,
        /// The epoch the launch carries.
        epoch: Epoch,
    },
    /// End a launch wherever it is: its task is over and it did not leave by itself. It is the
    /// oldest of its device queue, and its end is told as that of any other.
    Abort {
        /// The launch.
        launch: LaunchId,
        /// Its queue.
        queue: QueueId,
    },
    /// A launch was aborted long ago and has not ended: the device does not do what it is told.
    /// Answer [`Event::DeviceLost`], unless the launch ends after all.
    DeclareHung {
        /// The launch.
        launch: LaunchId,
        /// Its queue.
        queue: QueueId,
    },
    /// Run a host step, then answer [`Event::HostStepDone`] or [`Event::TaskFailed`]. No launch of
    /// the task is in flight.
    RunHostStep {
        /// The task.
        task: TaskId,
        /// Index of the step.
        step: u32,
    },
    /// A lane holds no tasks any more: its device queues may be closed. Said once of each lane that
    /// [`crate::DeviceScheduler::close_lane`] was asked to close.
    CloseLane {
        /// The lane.
        lane: LaneId,
    },
    /// The task is over and nothing of it is in flight: answer and release. Said exactly once of
    /// each task that arrived.
    FinishTask {
        /// The task.
        task: TaskId,
        /// How it ended.
        outcome: Outcome,
        /// How often its launches were told to leave and were issued again.
        preemptions: u32,
    },
}

/// How a task ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Every step is complete.
    Complete,
    /// A launch, a host step or its preparation failed.
    Failed,
    /// It was cancelled.
    Cancelled,
    /// Its deadline passed.
    DeadlineExceeded,
    /// The host queue of its class was full when it arrived.
    QueueFull,
    /// The policy takes no tasks of its class.
    Refused,
    /// The device was lost.
    DeviceLost,
}
