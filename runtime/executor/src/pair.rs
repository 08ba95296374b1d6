//! The executors of a domain: one, or two that share the memory of a device.
//!
//! A GPU may be able to stop running blocks, but only all blocks of a process. Such a device has
//! two executors. The first one owns the memory, makes all transfers, and runs the queues of
//! real-time tasks. The second one maps the memory and runs the other queues, so that a kill there
//! hits best-effort work only. Every module is loaded by both: a padded real-time launch also has
//! blocks of best-effort kernels.
//!
//! ```text
//! daemon ── queues of real-time tasks, transfers, epochs ──▶ first executor ── owns ──┐
//!        ── other queues, epochs, kills ──────────────────▶ second executor ─ maps ──┴─▶ memory
//! ```
//!
//! If one of them is lost, the other one is killed, and both are replaced. If the second one cannot
//! be started, or ends before it runs, the first one goes on alone.

use crate::device::ExecutorDevice;
use crate::sealed::SealedModule;
use crate::supervisor::Loss;
use atoll_core::{DeviceOffset, Epoch, LaunchId, QueueId, real_time_queues};
use atoll_device::extent::Extent;
use atoll_device::link::LinkShape;
use atoll_device::{
    ChunkRecord, Completion, ComputeUnitUse, Device, DeviceError, GroupUse, Lane, LaunchRecord, LaunchReport,
    Launching, Memory, ModuleId, Modules, SubmitError, Telemetry,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// The executors of a domain.
#[derive(Debug)]
pub(super) struct Pair {
    first: ExecutorDevice,
    second: Second,
    /// Why the first one of them that was lost is gone.
    loss: Option<Loss>,
    /// The queues that belong to the second executor.
    second_queues: BTreeSet<u32>,
    /// Answers of the first executor to loads that the second one has not answered yet.
    answers: BTreeMap<ModuleId, Result<(), DeviceError>>,
}

/// The second executor.
#[derive(Debug)]
enum Second {
    /// The device has one executor.
    None,
    /// It is started once the first one runs, whose memory it opens.
    Awaited,
    Started(Box<ExecutorDevice>),
}

impl Pair {
    /// One executor.
    pub(super) fn alone(first: ExecutorDevice) -> Pair {
        Pair { first, second: Second::None, loss: None, second_queues: BTreeSet::new(), answers: BTreeMap::new() }
    }

    /// An executor that gets a second one; see [`Pair::start_second`].
    pub(super) fn awaiting(first: ExecutorDevice, shape: LinkShape) -> Pair {
        let second_queues = second_queues(0..shape.own_queues(), shape.paired_queues).collect();
        Pair { second: Second::Awaited, second_queues, ..Pair::alone(first) }
    }

    /// Whether the second executor can be started now.
    pub(super) fn is_due(&self) -> bool {
        matches!(self.second, Second::Awaited) && self.first.jail_lacks().is_some() && self.first.lost().is_none()
    }

    /// The first executor.
    pub(super) fn first(&self) -> &ExecutorDevice {
        &self.first
    }

    /// The second executor, if it was started.
    pub(super) fn second(&self) -> Option<&ExecutorDevice> {
        if let Second::Started(device) = &self.second { Some(device) } else { None }
    }

    fn second_mut(&mut self) -> Option<&mut ExecutorDevice> {
        if let Second::Started(device) = &mut self.second { Some(device) } else { None }
    }

    /// The executors that were started.
    pub(super) fn started(&self) -> impl Iterator<Item = &ExecutorDevice> {
        std::iter::once(&self.first).chain(self.second())
    }

    fn started_mut(&mut self) -> impl Iterator<Item = &mut ExecutorDevice> {
        let second = if let Second::Started(device) = &mut self.second { Some(&mut **device) } else { None };
        std::iter::once(&mut self.first).chain(second)
    }

    /// Adds the second executor. Modules are loaded from now on.
    pub(super) fn start_second(&mut self, device: ExecutorDevice) {
        self.second = Second::Started(Box::new(device));
    }

    /// Goes on with one executor, since the second one cannot be started.
    pub(super) fn go_alone(&mut self) {
        self.second = Second::None;
        self.second_queues.clear();
    }

    /// Takes a second executor that ended before it ran. The first one goes on alone.
    pub(super) fn take_unready(&mut self) -> Option<Box<ExecutorDevice>> {
        if !self.has_unready() {
            return None;
        }
        self.second_queues.clear();
        match std::mem::replace(&mut self.second, Second::None) {
            Second::Started(device) => Some(device),
            Second::None | Second::Awaited => None,
        }
    }

    /// Whether the second executor ended before it ran, and the first one lives.
    fn has_unready(&self) -> bool {
        let is_unready = |device: &ExecutorDevice| device.loss().is_some() && device.jail_lacks().is_none();
        self.loss.is_none() && self.first.loss().is_none() && self.second().is_some_and(is_unready)
    }

    /// The executor that runs a queue.
    fn of_queue(&mut self, queue: QueueId) -> &mut ExecutorDevice {
        match &mut self.second {
            Second::Started(device) if self.second_queues.contains(&queue.0) => device,
            _ => &mut self.first,
        }
    }

    // Life.

    /// Why the executors are gone, once both are. If only one is gone, kills the other one, unless
    /// [`Pair::take_unready`] returns it.
    pub(super) fn take_loss(&mut self) -> Option<Loss> {
        if self.has_unready() {
            return None;
        }
        if self.loss.is_none() {
            let loss = self.started().find_map(ExecutorDevice::loss).cloned();
            self.loss = loss;
        }
        let loss = self.loss.clone()?;
        let mut is_over = true;
        for left in self.started().filter(|device| device.loss().is_none()) {
            left.kill("was killed, since the other executor of its device is gone");
            is_over = false;
        }
        is_over.then_some(loss)
    }

    /// Why one of the executors is gone.
    pub(super) fn lost(&self) -> Option<String> {
        self.loss.as_ref().map(Loss::to_string).or_else(|| self.started().find_map(Device::lost))
    }

    /// Kills both; the loss is reported as "executor 123 `why`".
    pub(super) fn kill(&self, why: &str) {
        self.started().for_each(|device| device.kill(why));
    }

    /// Whether one of them ran and then reported that it cannot continue.
    pub(super) fn gave_up(&self) -> bool {
        self.started().any(ExecutorDevice::gave_up)
    }

    /// The process id of the first executor.
    pub(super) fn pid(&self) -> u32 {
        self.first.pid()
    }

    /// What the jail of the first executor lacks; `None` before all executors run.
    pub(super) fn jail_lacks(&self) -> Option<Vec<String>> {
        match &self.second {
            Second::Awaited => None,
            Second::Started(device) if device.jail_lacks().is_none() => None,
            _ => self.first.jail_lacks(),
        }
    }

    // Modules. The executors give a module the same id: they get the same orders.

    /// Starts loading a module.
    pub(super) fn begin_load_sealed(&mut self, image: &SealedModule) -> Result<ModuleId, DeviceError> {
        if matches!(self.second, Second::Awaited) {
            return Err(DeviceError::Lost("the second executor is not started yet".to_owned()));
        }
        if let Some(why) = self.lost() {
            return Err(DeviceError::Lost(why));
        }
        let module = self.first.begin_load_sealed(image)?;
        let Some(second) = self.second_mut() else { return Ok(module) };
        match second.begin_load_sealed(image) {
            Ok(same) if same == module => Ok(module),
            other => {
                self.kill("was killed, since its modules are not those of the other executor");
                Err(other.err().unwrap_or_else(|| DeviceError::Lost("the executors differ".to_owned())))
            }
        }
    }

    /// The result of loading a module, once all executors have answered.
    pub(super) fn poll_load(&mut self, module: ModuleId) -> Option<Result<(), DeviceError>> {
        let first = match self.answers.remove(&module) {
            Some(answer) => answer,
            None => self.first.poll_load(module)?,
        };
        if matches!(first, Err(DeviceError::Lost(_))) {
            return Some(first);
        }
        match self.second_mut().map_or(Some(Ok(())), |second| second.poll_load(module)) {
            // The first one keeps the module: it goes on alone if the second one never ran.
            unloaded @ (None | Some(Err(DeviceError::Lost(_)))) => {
                self.answers.insert(module, first);
                unloaded
            }
            Some(second) => {
                if first.is_err() || second.is_err() {
                    // Ignored by the executor that refused it.
                    self.unload_module(module);
                }
                Some(first.and(second))
            }
        }
    }

    /// Unloads a module that no launch in flight uses.
    pub(super) fn unload_module(&mut self, module: ModuleId) {
        self.answers.remove(&module);
        self.started_mut().for_each(|device| device.unload_module(module));
    }

    // Launches.

    /// Announces an epoch word.
    pub(super) fn watch_epoch(&mut self, word: DeviceOffset) {
        let is_new = self.second().is_some_and(|device| device.epoch(word).is_none());
        self.first.watch_epoch(word);
        if !is_new {
            return;
        }
        // The first executor may not have written a raised epoch to device memory yet, where the
        // second one reads it.
        let value = self.first.epoch(word);
        if let (Some(second), Some(value)) = (self.second_mut(), value) {
            second.watch_epoch(word);
            second.store_bound_epoch(word, value);
        }
    }

    /// Sets an epoch word.
    pub(super) fn store_epoch(&self, word: DeviceOffset, epoch: Epoch) {
        if let Some(second) = self.second() {
            second.store_bound_epoch(word, epoch);
        }
        self.first.store_epoch(word, epoch);
    }

    /// Puts a launch into a queue.
    pub(super) fn submit(&mut self, queue: QueueId, record: &LaunchRecord, params: &[u8]) -> Result<(), SubmitError> {
        if self.lost().is_some() {
            return Err(SubmitError::Lost);
        }
        match &self.second {
            Second::Awaited => return Err(SubmitError::Lost),
            Second::Started(_) if record.preemptible == 1 => self.watch_epoch(record.epoch_word),
            _ => {}
        }
        self.of_queue(queue).submit(queue, record, params)
    }

    /// Stops running blocks of an evicted launch.
    pub(super) fn interrupt(&mut self, queue: QueueId, launch: LaunchId, blocks: u64) {
        self.of_queue(queue).interrupt(queue, launch, blocks);
    }

    /// Aborts a launch.
    pub(super) fn abort(&mut self, queue: QueueId, launch: LaunchId) {
        self.of_queue(queue).abort(queue, launch);
    }

    /// The next completion.
    pub(super) fn next_completion(&mut self) -> Option<Completion> {
        self.started_mut().find_map(Launching::next_completion)
    }

    /// Takes the report of a launch.
    pub(super) fn report(&mut self, launch: LaunchId) -> Option<LaunchReport> {
        self.started_mut().find_map(|device| device.report(launch))
    }

    // Memory. The first executor makes the transfers; the second one has epoch words of its own.

    pub(super) fn write(&mut self, at: DeviceOffset, bytes: &[u8]) -> Result<(), DeviceError> {
        if let Some(memory) = self.second_mut().and_then(ExecutorDevice::remote_memory) {
            memory.note_written(at, bytes);
        }
        self.first.write(at, bytes)
    }

    pub(super) fn read(&mut self, at: DeviceOffset, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.first.read(at, bytes)
    }

    pub(super) fn copy(&mut self, from: DeviceOffset, to: DeviceOffset, bytes: u64) -> Result<(), DeviceError> {
        if let Some(memory) = self.second_mut().and_then(ExecutorDevice::remote_memory) {
            memory.note_copied(to, bytes);
        }
        self.first.copy(from, to, bytes)
    }

    pub(super) fn fill(&mut self, at: DeviceOffset, value: u8, bytes: u64) -> Result<(), DeviceError> {
        if let Some(memory) = self.second_mut().and_then(ExecutorDevice::remote_memory) {
            memory.note_filled(at, value, bytes);
        }
        self.first.fill(at, value, bytes)
    }

    pub(super) fn give_back(&mut self, at: DeviceOffset, bytes: u64) -> Result<(), DeviceError> {
        if let Some(memory) = self.second_mut().and_then(ExecutorDevice::remote_memory) {
            memory.note_filled(at, 0, bytes);
        }
        self.first.give_back(at, bytes)
    }

    /// Sets how many bytes of its memory the domain may touch.
    pub(super) fn allow_memory(&self, bytes: u64) {
        self.started().for_each(|device| device.allow_memory(bytes));
    }

    // Constants. A device that has two executors keeps them in its memory.

    pub(super) fn begin_show<'a>(&self, constants: impl IntoIterator<Item = (DeviceOffset, &'a Extent)>) {
        self.first.begin_show(constants);
    }

    pub(super) fn begin_hide<'a>(&self, constants: impl IntoIterator<Item = (DeviceOffset, &'a Extent)>) {
        self.first.begin_hide(constants);
    }

    pub(super) fn has_shown_all(&self) -> bool {
        self.first.has_shown_all()
    }

    // Lanes.

    pub(super) fn attach_lane(&mut self, lane: &Lane, units: &[u32]) {
        if !matches!(self.second, Second::None) {
            self.second_queues.extend(second_queues(lane.queues.clone(), lane.paired_queues));
        }
        self.started_mut().for_each(|device| device.attach_lane(lane, units));
    }

    pub(super) fn detach_lane(&mut self, queues: Range<u32>) {
        self.second_queues.retain(|queue| !queues.contains(queue));
        self.started_mut().for_each(|device| device.detach_lane(queues.clone()));
    }

    pub(super) fn is_idle(&self, queues: Range<u32>) -> bool {
        self.started().all(|device| device.is_idle(queues.clone()))
    }

    // Use of resources.

    pub(super) fn cpu_ns(&self) -> u64 {
        self.started().map(ExecutorDevice::cpu_ns).fold(0, u64::saturating_add)
    }

    pub(super) fn group_use(&self) -> Option<GroupUse> {
        self.first.group_use()
    }

    pub(super) fn busy_ns(&self) -> Option<u64> {
        self.first.busy_ns()
    }

    pub(super) fn compute_units(&self) -> Vec<ComputeUnitUse> {
        self.first.compute_units()
    }

    pub(super) fn take_chunks(&mut self, max: u64, take: &mut dyn FnMut(Option<&str>, ChunkRecord)) -> u64 {
        self.first.take_chunks(max, take)
    }

    pub(super) fn chunks_left(&self) -> u64 {
        self.first.chunks_left()
    }
}

/// The queues of a lane that belong to the second executor: those that policies do not use for
/// real-time tasks, and their paired queues, which are the second half.
fn second_queues(queues: Range<u32>, paired_queues: bool) -> impl Iterator<Item = u32> {
    let begin = queues.start;
    let own = (queues.end - begin) / if paired_queues { 2 } else { 1 };
    queues.filter(move |queue| (queue - begin) % own.max(1) >= real_time_queues(own))
}

#[cfg(test)]
mod tests {
    use super::second_queues;

    #[test]
    fn a_queue_and_its_paired_queue_belong_to_the_same_executor() {
        for (queues, paired_queues, expected) in [
            (0..1, false, vec![]),
            (0..2, false, vec![1]),
            (0..4, true, vec![1, 3]),
            (8..10, true, vec![]),
            (4..10, true, vec![5, 6, 8, 9]),
            (4..8, false, vec![6, 7]),
            (10..18, true, vec![12, 13, 16, 17]),
        ] {
            let found: Vec<u32> = second_queues(queues.clone(), paired_queues).collect();
            assert_eq!(found, expected, "{queues:?}, {paired_queues}");
        }
    }
}
