//! An invocation on the engine's thread, from admission to answer.

use crate::accounts::Usage;
use crate::batch::Batch;
use crate::binding::Work;
use crate::chain::StagePlace;
use crate::clock;
use crate::error::InvokeError;
use crate::event::Submission;
use crate::instance::Instance;
use crate::limits::LAUNCH_TIMES_MAX;
use crate::padding::LoadedPadding;
use crate::request::{InvocationTiming, LaunchTime, PendingReply};
use atoll_core::memory::SlotId;
use atoll_core::{Class, ClientId, Epoch, Nanos};
use atoll_device::{Completion, Fault, FaultKind, LaunchStatus};
use std::sync::Arc;

pub(crate) struct Invocation {
    pub(crate) submission: Submission,
    pub(crate) reply: PendingReply,
    /// If it is a batch, the requests whose rows it computes, each with its own reply.
    pub(crate) batch: Option<Batch>,
    /// Its inputs are in place: it keeps its memory until it ends.
    pub(crate) prepared: bool,
    /// Its memory, one instance per stage, from preparation on; empty before.
    pub(crate) instances: Vec<Instance>,
    /// The ids of that memory in [`atoll_core::memory`].
    pub(crate) slots: Vec<SlotId>,
    /// Its executor was lost while it had launches there.
    pub(crate) lost_executor: bool,
    /// The last value of its epoch word.
    pub(crate) epoch: Epoch,
    /// It may have been running on the executor that was lost, so it may have caused the loss.
    pub(crate) may_have_run: bool,
    /// The step whose blocks were interrupted when a token of its client last ended.
    pub(crate) recalled: Option<u32>,
    /// Why it fails; set as soon as the reason is known.
    pub(crate) failure: Option<InvokeError>,
    /// Its client, while it is ready or running.
    pub(crate) ready_as: Option<ClientId>,
    /// Whether it waited for constants to be loaded.
    pub(crate) cold_start: bool,
    /// Time from its arrival until its constants were loaded; 0 if they were there.
    pub(crate) load_ns: u64,
    /// Whether its arrival evicted launches of other invocations.
    pub(crate) preempted_others: bool,
    /// The epoch raised when another invocation's arrival last evicted it, and when.
    pub(crate) evicted_for_others: Option<(Epoch, Nanos)>,
    pub(crate) times: Times,
    /// One record per stage.
    pub(crate) stages: Vec<StageRecord>,
    /// Time of its evicted launches of one step.
    pub(crate) evicted: EvictedRuns,
    /// The padding modules for its launches, set on arrival.
    pub(crate) padding: Vec<Arc<LoadedPadding>>,
    /// The time of its launches, if its client asked for them.
    pub(crate) launches: Vec<LaunchTime>,
    /// Bytes of its inputs that were copied from memory of earlier invocations.
    pub(crate) handed_over_bytes: u64,
}

/// Total time of a step's evicted launches since its progress map was last found to have grown.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EvictedRuns {
    pub(crate) step: u32,
    pub(crate) ran_ns: u64,
    /// Finished blocks at that time.
    pub(crate) finished: usize,
}

/// Time and usage of a stage.
#[derive(Clone, Debug, Default)]
pub(crate) struct StageRecord {
    /// Start of the first block and end of the last.
    compute: Span,
    /// Usage that is not in an account yet.
    pub(crate) usage: Usage,
}

/// From the start of the first launch to the end of the last launch that has ended.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Span(Option<(Nanos, Nanos)>);

/// Points in time of an invocation.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Times {
    /// When it reached the engine's thread.
    pub(crate) entered: Nanos,
    pub(crate) prepare_begin: Option<Nanos>,
    pub(crate) prepare_end: Option<Nanos>,
    /// Start of the first block and end of the last.
    pub(crate) compute: Span,
}

impl Invocation {
    pub(crate) fn new(submission: Submission, reply: PendingReply) -> Invocation {
        let stages = vec![StageRecord::default(); submission.chain.stages.len()];
        Invocation {
            stages,
            submission,
            reply,
            batch: None,
            prepared: false,
            instances: Vec::new(),
            slots: Vec::new(),
            failure: None,
            lost_executor: false,
            epoch: Epoch(0),
            may_have_run: false,
            recalled: None,
            ready_as: None,
            cold_start: false,
            load_ns: 0,
            preempted_others: false,
            evicted_for_others: None,
            times: Times { entered: clock::now(), ..Times::default() },
            evicted: EvictedRuns::default(),
            padding: Vec::new(),
            launches: Vec::new(),
            handed_over_bytes: 0,
        }
    }

    pub(crate) fn is_real_time(&self) -> bool {
        self.submission.class == Class::RealTime
    }

    /// Whether it, or a request of its batch, still has queue slots.
    pub(crate) fn is_waiting(&self) -> bool {
        self.submission.chain.is_waiting() || self.batch.as_ref().is_some_and(Batch::is_waiting)
    }

    /// Releases its queue slots.
    pub(crate) fn release_slots(&mut self) {
        self.submission.chain.release_slots();
        self.batch.iter_mut().for_each(Batch::release_slots);
    }

    /// Records whether a launch failed because its executor was lost.
    pub(crate) fn note_loss(&mut self, fault: Option<&Fault>) {
        if let Some(FaultKind::Lost { may_have_run, .. }) = fault.map(|fault| &fault.kind) {
            self.lost_executor = true;
            self.may_have_run |= may_have_run;
        }
    }

    /// Adds the times and the cost of a launch. Returns the start of the first block, if this is
    /// the first launch of the invocation.
    pub(crate) fn note_launch(
        &mut self,
        place: StagePlace,
        completion: &Completion,
        busy_ns_max: u64,
        now: Nanos,
    ) -> Option<Nanos> {
        self.stages[place.stage].note(completion, busy_ns_max, now);
        if self.submission.times_launches {
            self.time_launch(place, completion);
        }
        self.times.compute.note(completion, now)
    }

    /// Records the duration of a step of an invocation that was never preempted.
    pub(crate) fn measure(&self, StagePlace { stage, step }: StagePlace, completion: &Completion) {
        if completion.status == LaunchStatus::Complete
            && self.epoch == Epoch::default()
            && let Some(step) = step
        {
            let ns = completion.ended_ns.saturating_sub(completion.started_ns);
            self.submission.chain.stages[stage].binding.branches.note_step(step, ns);
        }
    }

    /// Adds the cost of blocks that were co-scheduled in another invocation's launch.
    pub(crate) fn note_pad(&mut self, completion: &Completion, now: Nanos) {
        self.stages[0].compute.note(completion, now);
        self.stages[0].usage.compute_unit_ns += u128::from(completion.busy_ns);
        self.times.compute.note(completion, now);
    }

    fn time_launch(&mut self, StagePlace { stage, step }: StagePlace, completion: &Completion) {
        if self.launches.len() >= LAUNCH_TIMES_MAX {
            return;
        }
        let Some(binding) = self.instances.get(stage).map(|instance| Arc::clone(&instance.binding)) else { return };
        let Some(Work::Launch(launch)) = step.and_then(|step| binding.work.get(step as usize)) else { return };
        let Completion { started_ns, ended_ns, busy_ns, .. } = *completion;
        let blocks = launch.grid.iter().map(|extent| u64::from(*extent)).product();
        self.launches.push(LaunchTime { stage, node: launch.node, blocks, started_ns, ended_ns, busy_ns });
    }

    /// The part of an invocation's time that belongs to a stage: waiting and inputs to the first
    /// stage, outputs to the last.
    pub(crate) fn stage_timing(&self, stage: usize, whole: InvocationTiming) -> InvocationTiming {
        let if_at = |at: usize, ns: u64| if stage == at { ns } else { 0 };
        InvocationTiming {
            queue_ns: if_at(0, whole.queue_ns),
            input_ns: if_at(0, whole.input_ns),
            compute_ns: self.stages[stage].compute.0.map_or(0, |(started, ended)| ended.0.saturating_sub(started.0)),
            output_ns: if_at(self.stages.len() - 1, whole.output_ns),
        }
    }
}

impl StageRecord {
    /// Adds a launch. `busy_ns_max` limits what a device that reports wrong times can bill.
    fn note(&mut self, completion: &Completion, busy_ns_max: u64, now: Nanos) {
        self.compute.note(completion, now);
        self.usage.add_launch(completion, busy_ns_max);
    }
}

impl Span {
    fn note(&mut self, completion: &Completion, now: Nanos) -> Option<Nanos> {
        let ended = if completion.ended_ns == 0 { now } else { Nanos(completion.ended_ns) };
        let started = if completion.started_ns == 0 { ended } else { Nanos(completion.started_ns) };
        match &mut self.0 {
            Some((_, last)) => {
                *last = ended.max(*last);
                None
            }
            None => {
                self.0 = Some((started, ended));
                Some(started)
            }
        }
    }
}

impl Times {
    /// The time for writing inputs and computing.
    pub(crate) fn ran_ns(&self) -> u64 {
        let timing = self.timing(Nanos(0), clock::now());
        timing.input_ns + timing.compute_ns
    }

    /// The timing from submission to `now`; phases that did not happen take no time.
    pub(crate) fn timing(&self, submitted: Nanos, now: Nanos) -> InvocationTiming {
        let between = |from: Nanos, to: Nanos| to.0.saturating_sub(from.0);
        let prepare_begin = self.prepare_begin.unwrap_or(now);
        let prepare_end = self.prepare_end.unwrap_or(prepare_begin);
        let (started, ended) = self.compute.0.unwrap_or((prepare_end, prepare_end));
        InvocationTiming {
            queue_ns: between(submitted, prepare_begin) + between(prepare_end, started),
            input_ns: between(prepare_begin, prepare_end),
            compute_ns: between(started, ended),
            output_ns: between(ended, now),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_core::LaunchId;
    use atoll_device::LaunchStatus;

    #[test]
    fn the_parts_add_up() {
        let mut times = Times { prepare_begin: Some(Nanos(30)), prepare_end: Some(Nanos(50)), ..Times::default() };
        let status = LaunchStatus::Complete;
        let launch =
            |started_ns, ended_ns| Completion { started_ns, ended_ns, ..Completion::unrun(LaunchId(0), status) };
        assert_eq!(times.compute.note(&launch(70, 80), Nanos(81)), Some(Nanos(70)));
        assert_eq!(times.compute.note(&launch(90, 200), Nanos(201)), None);
        let timing = times.timing(Nanos(10), Nanos(260));
        assert_eq!(timing, InvocationTiming { queue_ns: 40, input_ns: 20, compute_ns: 130, output_ns: 60 });
        assert_eq!(timing.queue_ns + timing.input_ns + timing.compute_ns + timing.output_ns, 250);
    }

    #[test]
    fn a_device_without_timestamps_is_timed_by_the_engine() {
        let mut times = Times::default();
        let silent = Completion::unrun(LaunchId(0), LaunchStatus::Complete);
        assert_eq!(times.compute.note(&silent, Nanos(500)), Some(Nanos(500)));
        assert_eq!(times.timing(Nanos(100), Nanos(600)).output_ns, 100);
    }
}
