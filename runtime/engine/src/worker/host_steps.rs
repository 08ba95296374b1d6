//! Host steps: copies, fills, read-backs and control flow between launches.

use super::Worker;
use crate::binding::Work;
use crate::chain::{Source, StagePlace};
use crate::invocation::Invocation;
use atoll_core::{DeviceOffset, Event, TaskId};
use atoll_device::{Device, DeviceError};

/// Bytes that a fill writes at a time.
const FILL_CHUNK_BYTES: u64 = 1 << 20;

impl Worker {
    /// Runs a host step: a copy or fill of a function, a copy of outputs to inputs of a later
    /// stage, a read-back, or a border of a segment.
    pub(super) fn run_host_step(&mut self, task: TaskId, step: u32) {
        if self.lost.is_some() {
            return;
        }
        if let Some(read_back) = self.read_back_of(task, step) {
            return self.read_size_back(task, step, read_back);
        }
        if let Some(item) = self.border_of(task, step) {
            return self.cross_border(task, step, item);
        }
        let transfers = self.transfers(task, step);
        let answer = transfers.into_iter().try_for_each(|transfer| match transfer {
            Transfer::Copy { from, to, bytes } => self.device.copy(from, to, bytes),
            Transfer::Fill { to, pattern, bytes } => fill(&mut *self.device, to, pattern, bytes),
        });
        match self.check(answer) {
            Ok(()) => self.host_steps_done.push_back(Event::HostStepDone { task, steps: None, next: None }),
            Err(error) => self.fail_on(task, "a copy or fill failed", &error),
        }
    }

    /// Reports finished host steps to the scheduler. The steps behind them wait for the next turn
    /// of the engine's thread, so that a task with many copies and fills does not delay other
    /// tasks.
    pub(super) fn take_host_steps_done(&mut self) -> bool {
        let any = !self.host_steps_done.is_empty();
        for done in std::mem::take(&mut self.host_steps_done) {
            self.notify_scheduler(done);
        }
        if any {
            self.act();
        }
        any
    }

    /// The transfers of a host step.
    fn transfers(&mut self, task: TaskId, step: u32) -> Vec<Transfer> {
        let Invocation { submission, instances, .. } = self.invocation(task);
        let StagePlace { stage, step } = submission.chain.locate(step);
        let instance = &instances[stage];
        if let Some(step) = step {
            return vec![match instance.binding.work[step as usize] {
                Work::Copy { from, to, bytes } => {
                    Transfer::Copy { from: instance.resolve(from), to: instance.resolve(to), bytes }
                }
                Work::Fill { to, pattern, bytes } => Transfer::Fill { to: instance.resolve(to), pattern, bytes },
                Work::Launch(_) | Work::ReadBack(_) | Work::Border(_) => unreachable!("the step is a copy or a fill"),
            }];
        }
        let inputs = submission.chain.stages[stage].inputs.iter().zip(&instance.binding.inputs);
        let fed = inputs.filter_map(|(source, input)| match source {
            Source::Bytes(_) | Source::Retained(_) | Source::Rows => None,
            Source::Output { stage, output } => {
                let from = &instances[*stage];
                let from = from.at(from.binding.outputs[*output].place.offset);
                Some(Transfer::Copy { from, to: instance.at(input.offset), bytes: input.bytes })
            }
        });
        fed.collect()
    }
}

/// A transfer of a host step.
enum Transfer {
    Copy { from: DeviceOffset, to: DeviceOffset, bytes: u64 },
    Fill { to: DeviceOffset, pattern: [u8; 8], bytes: u64 },
}

/// Fills memory with an eight-byte pattern.
fn fill(device: &mut dyn Device, to: DeviceOffset, pattern: [u8; 8], bytes: u64) -> Result<(), DeviceError> {
    if pattern.iter().all(|byte| *byte == pattern[0]) {
        return device.fill(to, pattern[0], bytes);
    }
    // Devices only fill with single bytes.
    let chunk: Vec<u8> = pattern.into_iter().cycle().take(FILL_CHUNK_BYTES.min(bytes) as usize).collect();
    (0..bytes).step_by(FILL_CHUNK_BYTES as usize).try_for_each(|at| {
        let bytes = FILL_CHUNK_BYTES.min(bytes - at) as usize;
        device.write(DeviceOffset(to.0 + at), &chunk[..bytes])
    })
}
