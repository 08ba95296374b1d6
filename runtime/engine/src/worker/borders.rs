//! Control flow: at the borders of `if` and `loop` segments, the engine reads scalars back from the
//! device and chooses the next step. The choice itself is a pure function, in
//! [`atoll_kgraph::flow`].
//!
//! All iterations of a loop have the same steps. A host step ends each iteration: the engine clears
//! the progress maps of the body, so that its launches run all blocks again, and the scheduler
//! continues at the first step of the body. As at every host step, cancellation, the deadline and
//! other tasks are considered before the next launch.

use super::Worker;
use crate::binding::{Binding, Work};
use crate::chain::StagePlace;
use crate::error::InvokeError;
use crate::instance::Instance;
use crate::invocation::EvictedRuns;
use crate::limits::LOOP_ITERATIONS_MAX;
use atoll_core::{Event, TaskId};
use atoll_device::DeviceError;
use atoll_kgraph::{Border, FlowItem, FlowLoop, Scalar};
use std::fmt::Display;
use std::sync::Arc;

/// Why a border was not crossed.
enum Stop {
    /// A scalar cannot be read, or progress maps cannot be cleared.
    Device(DeviceError),
    /// The loop must not continue, or its number of iterations cannot be computed.
    Loop(String),
}

impl Stop {
    fn of_loop(binding: &Binding, own: &FlowLoop, reason: &dyn Display) -> Stop {
        Stop::Loop(format!("the loop at node {}: {reason}", binding.name_of(own)))
    }
}

impl Worker {
    /// The index of the flow's item for a host step, if the step is a border.
    pub(super) fn border_of(&mut self, task: TaskId, step: u32) -> Option<usize> {
        let invocation = self.invocation(task);
        let StagePlace { stage, step } = invocation.submission.chain.locate(step);
        match invocation.instances[stage].binding.work[step? as usize] {
            Work::Border(item) => Some(item),
            _ => None,
        }
    }

    /// Crosses a border: reports to the scheduler at which step the task continues.
    pub(super) fn cross_border(&mut self, task: TaskId, step: u32, item: usize) {
        let invocation = self.invocation(task);
        let StagePlace { stage, step: within } = invocation.submission.chain.locate(step);
        // The following steps may have run before; their earlier evictions no longer count.
        invocation.evicted = EvictedRuns::default();
        // Taken, because reading needs the device.
        let mut instances = std::mem::take(&mut invocation.instances);
        let chosen = self.choose(&mut instances[stage], item);
        let base = step - within.unwrap_or_default();
        let next = chosen.map(|item| base + instances[stage].binding.item_steps[item]);
        self.invocation(task).instances = instances;
        match next {
            Ok(next) => {
                self.host_steps_done.push_back(Event::HostStepDone { task, steps: None, next: Some(next) });
            }
            Err(Stop::Device(error)) => {
                if let Err(error) = self.check::<()>(Err(error)) {
                    self.fail_on(task, "its control flow cannot go on", &error);
                }
            }
            Err(Stop::Loop(reason)) => self.fail(task, InvokeError::BadInput(reason)),
        }
    }

    /// The item of the flow that follows a border.
    fn choose(&mut self, instance: &mut Instance, item: usize) -> Result<usize, Stop> {
        let binding = Arc::clone(&instance.binding);
        let (index, begins) = match binding.flow.items[item] {
            FlowItem::Border(Border::Branch { condition, otherwise }) => {
                return Ok(if self.scalar(instance, condition)? != 0 { item + 1 } else { otherwise });
            }
            FlowItem::Border(Border::Leave { to }) => return Ok(to),
            FlowItem::Border(Border::Enter(index)) => (index, true),
            FlowItem::Border(Border::Repeat(index)) => (index, false),
            FlowItem::Node(_) => return Ok(item + 1),
        };
        let own = &binding.flow.loops[index];
        if begins {
            let count = own.count.map(|count| self.scalar(instance, count)).transpose()?;
            let progress = own.enter(count, &binding.symbols);
            instance.loops[index] = progress.map_err(|error| Stop::of_loop(&binding, own, &error))?;
        } else {
            instance.loops[index].repeat();
        }
        let progress = instance.loops[index];
        let condition = own.condition.filter(|_| !progress.is_over());
        let condition = condition.map(|condition| self.scalar(instance, condition)).transpose()?;
        let goes_on = own.goes_on(progress, condition.map(|condition| condition != 0));
        let goes_on = goes_on.map_err(|error| Stop::of_loop(&binding, own, &error))?;
        if goes_on {
            self.begin_iteration(instance, own, begins)?;
        }
        Ok(own.next(goes_on))
    }

    /// Counts an iteration, and prepares the launches of the body to run again.
    fn begin_iteration(&mut self, instance: &mut Instance, own: &FlowLoop, is_first: bool) -> Result<(), Stop> {
        instance.iterations += 1;
        if instance.iterations > LOOP_ITERATIONS_MAX {
            let reason = format!(
                "the loops of one function may run {LOOP_ITERATIONS_MAX} iterations together in one invocation, and \
                 it would run more"
            );
            return Err(Stop::of_loop(&instance.binding, own, &reason));
        }
        // Before the first iteration the maps are clear, or the enclosing loop has cleared them.
        let maps = if is_first { None } else { instance.binding.layout.progress_of(own.nodes.clone()) };
        let Some(maps) = maps else { return Ok(()) };
        self.device.fill(instance.at(maps.offset), 0, maps.bytes).map_err(Stop::Device)
    }

    /// Reads a scalar of an invocation.
    fn scalar(&mut self, instance: &Instance, scalar: Scalar) -> Result<i64, Stop> {
        self.read_scalar(instance, scalar).map_err(Stop::Device)
    }
}
