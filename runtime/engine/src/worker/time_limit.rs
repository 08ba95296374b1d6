//! Time limit for launches that are evicted again and again without progress.
//!
//! A device ends a launch that exceeds the time limit. An evicted launch is issued again as another
//! launch, with the whole limit. So this module adds up the time of a step's evicted launches. If
//! the sum reaches the limit and no block of the step was finished meanwhile, the step fails. A
//! kernel that never ends is thus found, however often it is evicted.

use super::Worker;
use crate::chain::StagePlace;
use crate::clock::saturating_nanos;
use crate::invocation::EvictedRuns;
use atoll_core::TaskId;
use atoll_device::{Completion, Fault, FaultKind, LaunchStatus};

impl Worker {
    /// The fault of an evicted launch that has exceeded the time limit together with earlier
    /// launches of its step; `None` if it has not.
    pub(super) fn exceeds_time_limit(&mut self, task: TaskId, step: u32, completion: &Completion) -> Option<Fault> {
        let limit_ns = self.shared.device.time_limit.map(saturating_nanos)?;
        if completion.status != LaunchStatus::Evicted {
            return None;
        }
        let invocation = self.invocation(task);
        if invocation.evicted.step != step {
            invocation.evicted = EvictedRuns { step, ..EvictedRuns::default() };
        }
        let runs = &mut invocation.evicted;
        runs.ran_ns = runs.ran_ns.saturating_add(completion.ended_ns.saturating_sub(completion.started_ns));
        if runs.ran_ns < limit_ns {
            return None;
        }
        let finished = self.finished_blocks(task, step)?;
        let invocation = self.invocation(task);
        if finished > invocation.evicted.finished {
            invocation.evicted = EvictedRuns { step, ran_ns: 0, finished };
            return None;
        }
        let invocation = &self.invocations[&task];
        let StagePlace { stage, step } = invocation.submission.chain.locate(step);
        let function = &invocation.submission.chain.stages[stage].function;
        let instance = &invocation.instances[stage];
        let launch = instance.launch(step?)?;
        let code = launch.code.map(|code| instance.binding.code[code as usize]);
        let other = code.and_then(|code| self.functions.get(&code)).map(|loaded| &loaded.function);
        let kernel = &other.unwrap_or(function).image().kernels[launch.kernel as usize];
        Some(Fault::of_kernel(FaultKind::TimeLimit { limit_ns }, &kernel.name))
    }

    /// Finished blocks of a step, by its progress map; `None` if it has none.
    fn finished_blocks(&mut self, task: TaskId, step: u32) -> Option<usize> {
        let invocation = self.invocation(task);
        let StagePlace { stage, step } = invocation.submission.chain.locate(step);
        let instance = &invocation.instances[stage];
        let node = instance.launch(step?)?.node;
        let progress = instance.binding.layout.launches[node as usize].as_ref()?.progress;
        let at = instance.at(progress.offset);
        let mut map = vec![0; progress.bytes as usize];
        let answer = self.device.read(at, &mut map);
        self.check(answer).ok()?;
        Some(map.iter().filter(|byte| **byte != 0).count())
    }
}
