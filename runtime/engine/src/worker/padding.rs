//! Launches shared by several tasks.

use super::Worker;
use super::in_flight::InFlight;
use super::pad_modules::find;
use super::pads::{Pad, SharedLaunch};
use super::tasks::submit;
use crate::error::InvokeError;
use crate::padding::{KernelOf, LoadedPadding};
use atoll_core::{Epoch, Event, LaunchId, Nanos, PadShape, QueueId, TaskId};
use atoll_device::{AddressSlots, Completion, Fault, FaultKind, LaunchRecord, LaunchReport, LaunchStatus};
use atoll_kgraph::dkp::{Range, lay_out};
use std::sync::Arc;

/// A task's part of a shared launch.
struct Part {
    range: Range,
    /// The record that the launch would have if it were not shared.
    record: LaunchRecord,
    /// The time of its blocks together, by their profile, in nanoseconds.
    cost_ns: u64,
}

/// The denominator of shares.
const WHOLE: u64 = 1_000_000;

/// The coordinates of a linear index in an extent.
fn place(linear: u32, [x, y, _]: [u32; 3]) -> [u32; 3] {
    let (x, y) = (x.max(1), y.max(1));
    [linear % x, linear / x % y, linear / x / y]
}

impl Worker {
    /// Records blocks to co-schedule in the launch that is issued next.
    pub(super) fn pad(&mut self, task: TaskId, step: u32, first: u32, shape: PadShape, epoch: Epoch) {
        self.padding.pads.push(Pad { task, step, first, shape, epoch });
    }

    /// Whether the launch that is issued next is shared.
    pub(super) fn has_pads(&self) -> bool {
        !self.padding.pads.is_empty()
    }

    /// Issues a launch together with its co-scheduled blocks.
    pub(super) fn issue_shared(&mut self, launch: LaunchId, task: TaskId, step: u32, queue: QueueId, epoch: Epoch) {
        let pads = std::mem::take(&mut self.padding.pads);
        if self.lost.is_some() {
            return;
        }
        if let Err(reason) = self.try_issue_shared(launch, task, step, queue, epoch, pads) {
            self.lose_device(reason);
        }
    }

    fn try_issue_shared(
        &mut self,
        launch: LaunchId,
        task: TaskId,
        step: u32,
        queue: QueueId,
        epoch: Epoch,
        pads: Vec<Pad>,
    ) -> Result<(), String> {
        self.clear_evicted_word(task, step)?;
        let module = self.padding_module(task, step, &pads);
        let own = self.part(&module, task, step, launch, epoch, None);
        let co_scheduled: Vec<Part> =
            pads.iter().map(|pad| self.part(&module, pad.task, pad.step, launch, pad.epoch, Some(pad))).collect();
        let parts: Vec<&Part> = std::iter::once(&own).chain(&co_scheduled).collect();
        let ranges: Vec<Range> = parts.iter().map(|part| part.range.clone()).collect();
        let laid_out =
            lay_out(&module.facts, &ranges).map_err(|error| format!("a padded launch cannot be laid out: {error}"))?;
        let mut address_slots = AddressSlots::NONE;
        let places = parts.iter().zip(&laid_out.arguments_at);
        places.for_each(|(part, at)| address_slots.extend_shifted(&part.record.address_slots, at / 8));
        let record = LaunchRecord {
            module: module.id,
            kernel: laid_out.size as u32,
            grid: [laid_out.blocks, 1, 1],
            shared_bytes: laid_out.shared_bytes,
            address_slots,
            // The candidates check their own epochs, so the compute units must not skip blocks of
            // the launch.
            preemptible: 0,
            may_run_again: 0,
            followed: 0,
            ..own.record
        };
        submit(&mut *self.device, queue, &record, &laid_out.params)?;
        self.launches.insert(launch, InFlight { task, step, queue, epoch });
        let whole = parts.iter().map(|part| part.cost_ns).sum::<u64>().max(1);
        let share = |part: &Part| (u128::from(part.cost_ns) * u128::from(WHOLE) / u128::from(whole)) as u64;
        let shares = co_scheduled.iter().map(share).collect();
        let shared = SharedLaunch {
            _module: module,
            evicted_word: own.record.evicted_word,
            blocks: own.range.blocks,
            pads,
            shares,
        };
        self.padding.shared.insert(launch, shared);
        Ok(())
    }

    /// The module in which a step and blocks of other steps can share a launch.
    fn padding_module(&mut self, task: TaskId, step: u32, pads: &[Pad]) -> Arc<LoadedPadding> {
        let steps = std::iter::once((task, step)).chain(pads.iter().map(|pad| (pad.task, pad.step)));
        let kernels: Vec<KernelOf> = steps.map(|(task, step)| self.kernel_of(task, step)).collect();
        let module = find(&self.invocation(task).padding, &kernels);
        Arc::clone(module.expect("the scheduler co-schedules only kernels that one module of the set contains"))
    }

    /// The kernel of a step.
    fn kernel_of(&mut self, task: TaskId, step: u32) -> KernelOf {
        let invocation = self.invocation(task);
        let launch = invocation.instances[0].launch(step).expect("only launches have profiles");
        (invocation.submission.chain.stages[0].function.id, launch.kernel)
    }

    /// A task's part of a launch: all blocks of a step, or some of them.
    fn part(
        &mut self,
        module: &LoadedPadding,
        task: TaskId,
        step: u32,
        launch: LaunchId,
        epoch: Epoch,
        pad: Option<&Pad>,
    ) -> Part {
        let invocation = self.invocation(task);
        let stage = &invocation.submission.chain.stages[0];
        let (function, symbols) = (stage.function.id, &stage.binding.symbols);
        let instance = &mut invocation.instances[0];
        let template = instance.launch(step).expect("only launches have profiles");
        let (kernel, node, grid) = (template.kernel, template.node, template.grid);
        let candidate = module.candidates[&(function, kernel)];
        let facts = &module.facts.candidates[candidate].facts;
        let wave_ns = module.profiles.get(&function).and_then(|profile| profile.shape(symbols));
        let wave_ns = wave_ns
            .and_then(|shape| shape.launches.iter().find(|launch| launch.node == node))
            .map_or(1, |launch| launch.wave_ns[0]);
        let (mut record, params) = instance.record(step, launch, epoch).expect("only launches have profiles");
        let mut arguments = params.to_vec();
        arguments.resize(facts.virtual_offset as usize, 0);
        arguments.resize(facts.params_bytes as usize, 0);
        // Bytes behind the kernel's own arguments are not addresses.
        record.address_slots = record.address_slots.before(facts.virtual_offset as usize / 8);
        let blocks = grid.iter().product();
        let (first, blocks) = pad.map_or((0, blocks), |pad| (pad.first, pad.shape.blocks));
        Part {
            range: Range { candidate, arguments, grid, first, blocks },
            record,
            cost_ns: wave_ns.saturating_mul(u64::from(blocks)),
        }
    }

    /// Handles the end of a shared launch: bills the tasks of co-scheduled blocks, and returns the
    /// rest of the completion. Leaves in `report` only the part for the task of the padded launch.
    pub(super) fn shared_launch_ended(
        &mut self,
        InFlight { task, step, .. }: InFlight,
        completion: &Completion,
        report: &mut LaunchReport,
        may_be_evicted: bool,
        now: Nanos,
    ) -> Completion {
        let mut own = *completion;
        let Some(shared) = self.padding.shared.remove(&completion.launch) else { return own };
        let compute_units = u64::from(self.shared.device.compute_units);
        for (pad, share) in shared.pads.iter().zip(&shared.shares) {
            let busy_ns = (u128::from(completion.busy_ns) * u128::from(*share) / u128::from(WHOLE)) as u64;
            own.busy_ns -= busy_ns;
            if let Some(invocation) = self.invocations.get_mut(&pad.task) {
                let busy_ns_max = compute_units.saturating_mul(now.0.saturating_sub(invocation.submission.submitted.0));
                invocation.note_pad(&Completion { busy_ns: busy_ns.min(busy_ns_max), ..*completion }, now);
            }
        }
        if completion.status == LaunchStatus::Complete && may_be_evicted {
            let mut word = [0; 4];
            let answer = self.device.read(shared.evicted_word, &mut word);
            if self.check(answer).is_ok() && word != [0; 4] {
                own.status = LaunchStatus::Evicted;
            }
        }
        match completion.status {
            LaunchStatus::Failed | LaunchStatus::Aborted => self.attribute_fault(task, step, &shared, report),
            LaunchStatus::Complete | LaunchStatus::Evicted => {}
        }
        own
    }

    /// Attributes the failure of a shared launch to one of its tasks, and handles the consequences
    /// for the others. Leaves in `report` the fault for the task of the padded launch.
    fn attribute_fault(&mut self, task: TaskId, step: u32, shared: &SharedLaunch, report: &mut LaunchReport) {
        let Some(fault) = report.fault.take() else {
            return shared.pads.iter().for_each(|pad| self.mark_uncertain(pad));
        };
        let may_have_run = !matches!(fault.kind, FaultKind::Lost { may_have_run: false, .. });
        if let FaultKind::Fatal { cause } | FaultKind::Lost { cause, .. } = fault.kind {
            // It is unknown which task's blocks caused the loss. All tasks are retried unpadded,
            // which will show it.
            let lost = Fault::of_kernel(FaultKind::Lost { cause, may_have_run }, "");
            shared.pads.iter().for_each(|pad| self.record_loss(pad, &lost));
            report.fault = Some(lost);
            return;
        }
        let culprit = fault.block.and_then(|[block, ..]| shared.owner(block));
        let (guilty, told) = match culprit {
            Some((Some(pad), block)) => {
                let fault = self.own_fault(pad.task, pad.step, block, &fault);
                self.record_own_fault(&pad, &fault);
                let cause = "a best-effort block that ran beside it faulted".to_owned();
                (Some(pad.task), Fault::of_kernel(FaultKind::Lost { cause, may_have_run: true }, ""))
            }
            Some((None, block)) => (None, self.own_fault(task, step, block, &fault)),
            None => (None, fault),
        };
        report.fault = Some(told);
        shared.pads.iter().filter(|pad| Some(pad.task) != guilty).for_each(|pad| self.mark_uncertain(pad));
    }

    /// A fault as it would have been reported for a launch of its own.
    fn own_fault(&mut self, task: TaskId, step: u32, block: u32, fault: &Fault) -> Fault {
        let invocation = self.invocation(task);
        let function = &invocation.submission.chain.stages[0].function;
        let Some(launch) = invocation.instances.first().and_then(|instance| instance.launch(step)) else {
            return fault.clone();
        };
        let kernel = &function.image().kernels[launch.kernel as usize];
        let thread = fault.thread.map(|[thread, ..]| place(thread, kernel.block));
        // The line refers to generated source, which users do not have.
        Fault {
            kernel: kernel.name.clone(),
            block: Some(place(block, launch.grid)),
            thread,
            line: None,
            ..fault.clone()
        }
    }

    /// A co-scheduled block of a task faulted: ends the task.
    fn record_own_fault(&mut self, pad: &Pad, fault: &Fault) {
        if self.invocations.contains_key(&pad.task) {
            self.note_failed_launch(pad.task, pad.step, Some(fault));
            self.padding.uncertain.push(pad.task);
        }
    }

    /// The co-scheduled blocks of a task were lost with the executor, like everything else the task
    /// had there.
    fn record_loss(&mut self, pad: &Pad, fault: &Fault) {
        if let Some(invocation) = self.invocations.get_mut(&pad.task) {
            invocation.note_loss(Some(fault));
            invocation.failure.get_or_insert_with(|| InvokeError::Device(fault.to_string()));
        }
    }

    /// Co-scheduled blocks of a task may have been stopped midway. Ends the task if they must not
    /// run again.
    fn mark_uncertain(&mut self, pad: &Pad) {
        let Some(invocation) = self.invocations.get_mut(&pad.task) else { return };
        if invocation
            .instances
            .first()
            .and_then(|instance| instance.launch(pad.step))
            .is_none_or(|launch| launch.may_run_again)
        {
            return;
        }
        let reason = "its blocks were co-scheduled in a launch that was stopped, and they must not run twice";
        invocation.failure.get_or_insert_with(|| InvokeError::Device(reason.into()));
        self.padding.uncertain.push(pad.task);
    }

    /// Ends the tasks in `uncertain`, once the scheduler knows that none of their launches is on
    /// the device.
    pub(super) fn cancel_uncertain(&mut self) {
        for task in std::mem::take(&mut self.padding.uncertain) {
            self.notify_scheduler(Event::CancelTask { task });
        }
    }
}
