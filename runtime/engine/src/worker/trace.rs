//! Records the engine's work in the trace.

use super::{InFlight, Worker};
use crate::chain::StagePlace;
use crate::function::FunctionId;
use atoll_core::{Action, Event, LaunchEnd, LaunchId, Nanos, TaskId};
use atoll_device::Completion;
use atoll_trace::{EventKind, Raise, Record};

impl Worker {
    /// Records an event for the scheduler. Ends of launches are recorded in [`Worker::record_end`],
    /// with the device's times; ticks are not recorded.
    pub(super) fn record_event(&mut self, now: Nanos, event: &Event) {
        let (task, kind) = match event {
            Event::TaskArrived(spec) => (spec.task, EventKind::Arrived { class: spec.class, ready: spec.ready }),
            Event::TaskReady { task } => (*task, EventKind::Ready),
            Event::TaskUnready { task } => (*task, EventKind::Unready),
            Event::TaskPrepared { task } => (*task, EventKind::Prepared),
            Event::TaskFailed { task } => (*task, EventKind::Failed),
            Event::HostStepDone { task, .. } => (*task, EventKind::HostStepDone),
            Event::CancelTask { task } => (*task, EventKind::Cancelled),
            Event::DeviceLost => (Record::NO_TASK, EventKind::DeviceLost),
            Event::LaunchEnded { .. } | Event::Tick => return,
        };
        let function = self.function_of(task);
        self.recorder.note(now, task, function, kind);
    }

    /// Records an action before it is carried out, so that a launch is recorded before any of its
    /// blocks can start.
    pub(super) fn record_action(&mut self, action: &Action) {
        let (task, kind) = match *action {
            Action::RaiseEpoch { task, epoch } => {
                let why = if self.scheduler.is_ending(task) { Raise::Over } else { Raise::Preempted };
                (task, EventKind::Raised { epoch, why })
            }
            Action::Prepare { task } => (task, EventKind::Preparing),
            Action::Pad { task, step, first, shape, .. } => {
                (task, EventKind::Padded { step, first, blocks: shape.blocks })
            }
            Action::Abort { launch, queue } => (self.task_of(launch), EventKind::Aborting { launch, queue }),
            Action::DeclareHung { launch, .. } => (self.task_of(launch), EventKind::Hung { launch }),
            Action::CloseLane { .. } => return,
            Action::RunHostStep { task, step } => (task, EventKind::HostStep { step }),
            Action::FinishTask { task, outcome, preemptions } => (task, EventKind::Finished { outcome, preemptions }),
            Action::Issue { launch, task, step, queue, epoch } => {
                let (function, node) = self.node_of(task, step);
                return self.recorder.note_now(task, function, EventKind::Issued { launch, node, queue, epoch });
            }
        };
        let function = self.function_of(task);
        self.recorder.note_now(task, function, kind);
    }

    /// Records the end of a launch.
    pub(super) fn record_end(&mut self, completion: &Completion, launch: InFlight, end: LaunchEnd, now: Nanos) {
        let InFlight { task, step, queue, .. } = launch;
        let (function, node) = self.node_of(task, step);
        let (started, ended) = (Nanos(completion.started_ns), Nanos(completion.ended_ns));
        self.recorder.note(
            now,
            task,
            function,
            EventKind::Ended { launch: completion.launch, node, queue, started, ended, end },
        );
    }

    /// The function that a step belongs to, and the step's node in the function's graph.
    fn node_of(&self, task: TaskId, step: u32) -> (Option<FunctionId>, u32) {
        let Some(invocation) = self.invocations.get(&task) else { return (None, u32::MAX) };
        let StagePlace { stage, step } = invocation.submission.chain.locate(step);
        let template = step.and_then(|step| invocation.instances.get(stage)?.launch(step));
        (
            Some(invocation.submission.chain.stages[stage].function.id),
            template.map_or(u32::MAX, |template| template.node),
        )
    }

    /// The function of a task's first stage.
    fn function_of(&self, task: TaskId) -> Option<FunctionId> {
        self.invocations.get(&task).map(|invocation| invocation.submission.chain.stages[0].function.id)
    }

    fn task_of(&self, launch: LaunchId) -> TaskId {
        self.launches.get(&launch).map_or(Record::NO_TASK, |launch| launch.task)
    }
}
