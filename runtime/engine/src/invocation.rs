//! An invocation on the engine's thread, from admission to answer.

use crate::accounts::Usage;
use crate::binding::Work;
use crate::chain::StagePlace;
use crate::clock;
use crate::error::InvokeError;
use crate::event::Submission;
use crate::instance::Instance;
use crate::padding::LoadedPadding;
use crate::request::{InvocationTiming, LaunchTime, PendingReply};
use atoll_core::memory::SlotId;
use atoll_core::{Class, Epoch, Nanos};
use atoll_device::{Completion, Fault, FaultKind, LaunchStatus};
use std::sync::Arc;

pub(crate) struct Invocation {
    pub(crate) submission: Submission,
    pub(crate) reply: PendingReply,
    /// Its inputs are in place: it keeps what it has until it is over.
    pub(crate) prepared: bool,
    /// Its memory, one instance a stage, from preparation on; empty before.
    pub(crate) instances: Vec<Instance>,
    /// What names that memory to [`atoll_core::memory`].
    pub(crate) slots: Vec<SlotId>,
    /// Its executor was lost while it had launches there.
    pub(crate) lost_executor: bool,
    /// What its epoch word was told last.
    pub(crate) epoch: Epoch,
    /// What it ran there may be why.
    pub(crate) may_have_run: bool,
    /// Why it fails, noted where the reason is known.
    pub(crate) failure: Option<InvokeError>,
    /// Its arrival evicted launches of others.
    pub(crate) preempted_others: bool,
    /// The epoch that was raised when somebody else's arrival evicted it last, and when.
    pub(crate) evicted_for_others: Option<(Epoch, Nanos)>,
    pub(crate) times: Times,
    /// One record a stage.
    pub(crate) stages: Vec<StageRecord>,
    /// What it ran of a step in launches that were evicted.
    pub(crate) evicted: EvictedRuns,
    /// The modules in which its launches can be shared, from its arrival on.
    pub(crate) padding: Vec<Arc<LoadedPadding>>,
    /// What its launches took, if its client wants to know.
    pub(crate) launches: Vec<LaunchTime>,
}

/// How long launches of a step ran that were evicted, since one was seen to have finished blocks.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EvictedRuns {
    pub(crate) step: u32,
    pub(crate) ran_ns: u64,
    /// Blocks that were finished then.
    pub(crate) finished: usize,
}

/// What a stage took.
#[derive(Clone, Debug, Default)]
pub(crate) struct StageRecord {
    /// Start of the first block and end of the last.
    compute: Span,
    /// What is not in an account yet.
    pub(crate) usage: Usage,
}

/// From the start of the first launch to the end of the last, as far as launches have ended.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Span(Option<(Nanos, Nanos)>);

/// Moments of an invocation.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Times {
    /// It reached this thread.
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
            prepared: false,
            instances: Vec::new(),
            slots: Vec::new(),
            failure: None,
            lost_executor: false,
            epoch: Epoch(0),
            may_have_run: false,
            preempted_others: false,
            evicted_for_others: None,
            times: Times { entered: clock::now(), ..Times::default() },
            evicted: EvictedRuns::default(),
            padding: Vec::new(),
            launches: Vec::new(),
        }
    }

    pub(crate) fn is_real_time(&self) -> bool {
        self.submission.class == Class::RealTime
    }

    /// Notes that a launch failed, if that was because its executor was lost.
    pub(crate) fn note_loss(&mut self, fault: Option<&Fault>) {
        if let Some(FaultKind::Lost { may_have_run, .. }) = fault.map(|fault| &fault.kind) {
            self.lost_executor = true;
            self.may_have_run |= may_have_run;
        }
    }

    /// Adds the stamps and the cost of a launch. Returns when the first block started, if this is
    /// the first launch to say so.
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

    /// Notes how long a step took, if nothing was ever in its way.
    pub(crate) fn measure(&self, StagePlace { stage, step }: StagePlace, completion: &Completion) {
        if completion.status == LaunchStatus::Complete
            && self.epoch == Epoch::default()
            && let Some(step) = step
        {
            let ns = completion.ended_ns.saturating_sub(completion.started_ns);
            self.submission.chain.stages[stage].binding.branches.note_step(step, ns);
        }
    }

    /// Adds the cost of blocks that ran beside another one's launch.
    pub(crate) fn note_pad(&mut self, completion: &Completion, now: Nanos) {
        self.stages[0].compute.note(completion, now);
        self.stages[0].usage.compute_unit_ns += u128::from(completion.busy_ns);
        self.times.compute.note(completion, now);
    }

    fn time_launch(&mut self, StagePlace { stage, step }: StagePlace, completion: &Completion) {
        let Some(binding) = self.instances.get(stage).map(|instance| Arc::clone(&instance.binding)) else { return };
        let Some(Work::Launch(launch)) = step.and_then(|step| binding.work.get(step as usize)) else { return };
        let Completion { started_ns, ended_ns, busy_ns, .. } = *completion;
        let blocks = launch.grid.iter().map(|extent| u64::from(*extent)).product();
        self.launches.push(LaunchTime { stage, node: launch.node, blocks, started_ns, ended_ns, busy_ns });
    }

    /// The part of an invocation's time that belongs to a stage: waiting and inputs to the first,
    /// outputs to the last.
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
    /// Adds a launch. `busy_ns_max` bounds what a device that does not tell the truth can put on
    /// the bill.
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
    /// Where the time went between submission and now; what did not happen took none.
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
    fn a_device_without_stamps_is_timed_by_our_clock() {
        let mut times = Times::default();
        let silent = Completion::unrun(LaunchId(0), LaunchStatus::Complete);
        assert_eq!(times.compute.note(&silent, Nanos(500)), Some(Nanos(500)));
        assert_eq!(times.timing(Nanos(100), Nanos(600)).output_ns, 100);
    }
}
