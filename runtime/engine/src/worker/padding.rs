//! Launches that several tasks share.

use super::pad_modules::find;
use super::pads::{Pad, SharedLaunch};
use super::tasks::taken;
use super::{InFlight, Worker};
use crate::error::InvokeError;
use crate::padding::LoadedPadding;
use atoll_core::{Epoch, Event, LaunchId, Nanos, PadShape, QueueId, TaskId};
use atoll_device::{AddressSlots, Completion, Fault, FaultKind, LaunchRecord, LaunchReport, LaunchStatus};
use atoll_kgraph::dkp::{Range, lay_out};
use std::sync::Arc;

/// A task's part of a launch.
struct Part {
    range: Range,
    /// The launch that it would be alone.
    record: LaunchRecord,
    /// How long its blocks take together, by their profile.
    cost_ns: u64,
}

/// A share of everything.
const WHOLE: u64 = 1_000_000;

/// Where a linear number lies in an extent.
fn place(linear: u32, [x, y, _]: [u32; 3]) -> [u32; 3] {
    let (x, y) = (x.max(1), y.max(1));
    [linear % x, linear / x % y, linear / x / y]
}

impl Worker {
    /// Notes blocks that go along with the launch that is issued next.
    pub(super) fn pad(&mut self, task: TaskId, step: u32, first: u32, shape: PadShape, epoch: Epoch) {
        self.padding.pads.push(Pad { task, step, first, shape, epoch });
    }

    /// Whether the launch that is issued next is shared.
    pub(super) fn has_pads(&self) -> bool {
        !self.padding.pads.is_empty()
    }

    /// Issues a launch together with the blocks that go along.
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
        let module = self.padding_module(task, step);
        let own = self.part(&module, task, step, launch, epoch, None);
        let riders: Vec<Part> =
            pads.iter().map(|pad| self.part(&module, pad.task, pad.step, launch, pad.epoch, Some(pad))).collect();
        let parts: Vec<&Part> = std::iter::once(&own).chain(&riders).collect();
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
            // Its kernels look at their own epochs, and only the compute units' way between blocks is closed to them.
            preemptible: 0,
            may_run_again: 0,
            followed: 0,
            ..own.record
        };
        taken(self.device.submit(queue, &record, &laid_out.params), queue)?;
        self.launches.insert(launch, InFlight { task, step, queue, epoch });
        let whole = parts.iter().map(|part| part.cost_ns).sum::<u64>().max(1);
        let share = |part: &Part| (u128::from(part.cost_ns) * u128::from(WHOLE) / u128::from(whole)) as u64;
        let shares = riders.iter().map(share).collect();
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

    /// The module in which a step can share a launch.
    fn padding_module(&mut self, task: TaskId, step: u32) -> Arc<LoadedPadding> {
        let invocation = self.invocation(task);
        let function = invocation.submission.chain.stages[0].function.id;
        let kernel = invocation.instances[0].launch(step).expect("only launches have profiles").kernel;
        Arc::clone(find(&invocation.padding, (function, kernel)).expect("only steps with profiles are padded").0)
    }

    /// A task's part of a launch: all of a step, or some of its blocks.
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
        // What lies behind the kernel's own arguments is no address.
        record.address_slots = record.address_slots.before(facts.virtual_offset as usize / 8);
        let blocks = grid.iter().product();
        let (first, blocks) = pad.map_or((0, blocks), |pad| (pad.first, pad.shape.blocks));
        Part {
            range: Range { candidate, arguments, grid, first, blocks },
            record,
            cost_ns: wave_ns.saturating_mul(u64::from(blocks)),
        }
    }

    /// A launch that was shared is over: bills the tasks whose blocks ran beside it, and says what
    /// is left of the completion and its report for the task whose launch it was.
    pub(super) fn shared_launch_ended(
        &mut self,
        InFlight { task, step, .. }: InFlight,
        completion: &Completion,
        report: &mut LaunchReport,
        may_leave: bool,
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
        if completion.status == LaunchStatus::Complete && may_leave {
            let mut word = [0; 4];
            let answer = self.device.read(shared.evicted_word, &mut word);
            if self.check(answer).is_ok() && word != [0; 4] {
                own.status = LaunchStatus::Evicted;
            }
        }
        match completion.status {
            LaunchStatus::Failed | LaunchStatus::Aborted => self.share_out(task, step, &shared, report),
            LaunchStatus::Complete | LaunchStatus::Evicted => {}
        }
        own
    }

    /// A shared launch failed or was ended: who of those that share it did what, and what that
    /// means for the others. Leaves in the report what the task gets to hear whose launch it was.
    fn share_out(&mut self, task: TaskId, step: u32, shared: &SharedLaunch, report: &mut LaunchReport) {
        let Some(fault) = report.fault.take() else { return shared.pads.iter().for_each(|pad| self.doubt(pad)) };
        let may_have_run = !matches!(fault.kind, FaultKind::Lost { may_have_run: false, .. });
        if let FaultKind::Fatal { cause } | FaultKind::Lost { cause, .. } = fault.kind {
            // Whose blocks ended the device nobody knows. Tried again they run alone, and then it shows.
            let lost = Fault::of_kernel(FaultKind::Lost { cause, may_have_run }, "");
            shared.pads.iter().for_each(|pad| self.lose(pad, &lost));
            report.fault = Some(lost);
            return;
        }
        let culprit = fault.block.and_then(|[block, ..]| shared.owner(block));
        let (guilty, told) = match culprit {
            Some((Some(pad), block)) => {
                let fault = self.own_fault(pad.task, pad.step, block, &fault);
                self.blame(&pad, &fault);
                let cause = "a best-effort block that ran beside it faulted".to_owned();
                (Some(pad.task), Fault::of_kernel(FaultKind::Lost { cause, may_have_run: true }, ""))
            }
            Some((None, block)) => (None, self.own_fault(task, step, block, &fault)),
            None => (None, fault),
        };
        report.fault = Some(told);
        shared.pads.iter().filter(|pad| Some(pad.task) != guilty).for_each(|pad| self.doubt(pad));
    }

    /// A fault as it would be told if the block had been in a launch of its own.
    fn own_fault(&mut self, task: TaskId, step: u32, block: u32, fault: &Fault) -> Fault {
        let invocation = self.invocation(task);
        let function = &invocation.submission.chain.stages[0].function;
        let Some(launch) = invocation.instances.first().and_then(|instance| instance.launch(step)) else {
            return fault.clone();
        };
        let kernel = &function.image().kernels[launch.kernel as usize];
        let thread = fault.thread.map(|[thread, ..]| place(thread, kernel.block));
        // Lines are those of a text that nobody has.
        Fault {
            kernel: kernel.name.clone(),
            block: Some(place(block, launch.grid)),
            thread,
            line: None,
            ..fault.clone()
        }
    }

    /// A block of a task faulted beside another one's: the task is over.
    fn blame(&mut self, pad: &Pad, fault: &Fault) {
        if self.invocations.contains_key(&pad.task) {
            self.note_failed_launch(pad.task, pad.step, Some(fault));
            self.padding.doubted.push(pad.task);
        }
    }

    /// A task's blocks were lost with the device that ran them, and everything else that it had
    /// there.
    fn lose(&mut self, pad: &Pad, fault: &Fault) {
        if let Some(invocation) = self.invocations.get_mut(&pad.task) {
            invocation.note_loss(Some(fault));
            invocation.failure.get_or_insert_with(|| InvokeError::Device(fault.to_string()));
        }
    }

    /// Blocks of a task may have been stopped midway. Where they cannot be run again, the task is
    /// over.
    fn doubt(&mut self, pad: &Pad) {
        let Some(invocation) = self.invocations.get_mut(&pad.task) else { return };
        if invocation
            .instances
            .first()
            .and_then(|instance| instance.launch(pad.step))
            .is_none_or(|launch| launch.may_run_again)
        {
            return;
        }
        let reason = "blocks of it ran beside a launch that was cut off, and running them again is not harmless";
        invocation.failure.get_or_insert_with(|| InvokeError::Device(reason.into()));
        self.padding.doubted.push(pad.task);
    }

    /// Ends the tasks about which there is doubt, once the scheduler knows that nothing of them is
    /// on the device.
    pub(super) fn end_doubted(&mut self) {
        for task in std::mem::take(&mut self.padding.doubted) {
            self.tell(Event::CancelTask { task });
        }
    }
}
