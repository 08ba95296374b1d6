//! A launch as the compute units see it: checked, with its kernel found and its device offsets
//! translated to addresses.

use super::bounds::Bounds;
use super::draft::Draft;
use super::module::{Kernel, Module};
use super::space::KernelSpace;
use atoll_core::Epoch;
use atoll_device::refusal::{Refusal, checked_blocks, relocate};
use atoll_device::shm::Region;
use atoll_device::{Command, LaunchRecord, ParamBlock};
use atoll_kgraph::target::preempt_params;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// One launch, ready to run.
#[derive(Debug)]
pub(crate) struct Launch {
    pub(crate) record: LaunchRecord,
    pub(crate) blocks: u64,
    module: Arc<Module>,
    space: KernelSpace,
    params: ParamBlock,
    preempt: Option<Preempt>,
    /// The buffers that checked code may access.
    bounds: Arc<Bounds>,
    /// Its report so far.
    pub(crate) draft: Draft,
}

/// Where the preemption state of a launch is in device memory.
#[derive(Clone, Copy, Debug)]
struct Preempt {
    progress: u64,
}

impl Launch {
    /// Checks a command and resolves its kernel and addresses.
    pub(crate) fn bind(
        command: Command,
        modules: &HashMap<u32, Arc<Module>>,
        space: &KernelSpace,
        bounds: Arc<Bounds>,
        shared_bytes_max: u32,
    ) -> Result<Launch, Refusal> {
        let record = command.record;
        let module = modules.get(&record.module.0).ok_or(Refusal::Module)?.clone();
        let facts = &module.kernel(record.kernel).ok_or(Refusal::Kernel)?.facts;
        let params_bytes = command.params_bytes as usize;
        let blocks = checked_blocks(&record, params_bytes, facts, shared_bytes_max)?;
        let preempt = match facts.preempt_offset {
            Some(offset) if record.preemptible == 1 => Some(Preempt::find(&command, offset, blocks, space)?),
            _ => None,
        };
        let mut params = command.params;
        let are_absolute = record.address_slots.are_absolute();
        let offset = |value| if are_absolute { space.offset(value) } else { Some(value) };
        relocate(&mut params, params_bytes, &record.address_slots, |value| space.address(offset(value)?))?;
        Ok(Launch { record, blocks, module, space: space.clone(), params, preempt, bounds, draft: Draft::default() })
    }

    pub(crate) fn kernel(&self) -> &Kernel {
        self.module.kernel(self.record.kernel).expect("`bind` checked the kernel index")
    }

    pub(crate) fn module(&self) -> &Module {
        &self.module
    }

    /// Device memory that checked code may access: the buffers, and the module's variables.
    pub(crate) fn bounds(&self) -> [&Bounds; 2] {
        [&self.bounds, self.module.variables()]
    }

    /// Describes an address inside the constants; `None` for other addresses.
    pub(crate) fn place_in_constants(&self, address: u64) -> Option<String> {
        let bounds = self.space.bounds();
        bounds.ranges().iter().find(|range| range.read_only && (range.begin..range.end).contains(&address))?;
        bounds.describe(address, 1)
    }

    /// The index (x, y, z) of a block.
    pub(crate) fn block_index(&self, linear: u64) -> [u32; 3] {
        unflatten(linear, self.record.grid)
    }

    /// The index (x, y, z) of a thread in its block.
    pub(crate) fn thread_index(&self, linear: u32) -> [u32; 3] {
        unflatten(linear.into(), self.kernel().facts.block)
    }

    /// Address of the parameter block; valid while the launch lives.
    pub(crate) fn params(&self) -> u64 {
        self.params.address()
    }

    /// Whether the kernel records finished blocks in a progress map, so that it can be stopped
    /// between blocks without loss.
    pub(crate) fn is_preemptible(&self) -> bool {
        self.preempt.is_some()
    }

    /// Whether a block may be stopped midway: it may run again, and the progress map tells whether
    /// it has finished.
    pub(crate) fn is_interruptible(&self) -> bool {
        self.is_preemptible() && self.record.may_run_again == 1
    }

    /// Whether the task's epoch is newer than this launch's: blocks that have not started must
    /// exit.
    pub(crate) fn is_stale(&self) -> bool {
        self.preempt.is_some()
            && self
                .space
                .memory
                .word(self.record.epoch_word.0)
                .is_some_and(|word| self.record.epoch.is_raised_by(Epoch(word.load(Ordering::Acquire))))
    }

    /// Whether a block exited early.
    pub(crate) fn is_evicted(&self) -> bool {
        self.evicted_word().is_some_and(|word| word.load(Ordering::Acquire) == 1)
    }

    /// Records that a block exited early, as kernels do for blocks that find the epoch raised.
    pub(crate) fn set_evicted(&self) {
        if let Some(word) = self.evicted_word() {
            word.store(1, Ordering::Release);
        }
    }

    /// The first block of `begin..end` without a progress byte; `end` if there is none, or the
    /// launch has no progress map.
    pub(crate) fn first_missing(&self, begin: u64, end: u64) -> u64 {
        let Some(preempt) = self.preempt else { return end };
        let count = end - begin;
        begin + first_not_one(&self.space.memory, preempt.progress + begin, count)
    }

    fn evicted_word(&self) -> Option<&AtomicU32> {
        self.preempt.and_then(|_| self.space.memory.word(self.record.evicted_word.0))
    }
}

impl Preempt {
    fn find(command: &Command, offset: u32, blocks: u64, space: &KernelSpace) -> Result<Preempt, Refusal> {
        let at = u64::from(offset) + u64::from(preempt_params::PROGRESS);
        let slot = (at / 8) as usize;
        let (slots, memory) = (&command.record.address_slots, &space.memory);
        let progress = command.params.get(slot).ok_or(Refusal::PreemptWords)?;
        let progress =
            if slots.are_absolute() { space.offset(progress).ok_or(Refusal::PreemptWords)? } else { progress };
        let is_marked = at.is_multiple_of(8) && slots.contains(slot);
        let is_inside = is_marked
            && memory.atomic_bytes(progress, blocks).is_some()
            && memory.word(command.record.epoch_word.0).is_some()
            && memory.word(command.record.evicted_word.0).is_some();
        if is_inside { Ok(Preempt { progress }) } else { Err(Refusal::PreemptWords) }
    }
}

/// Splits a linear index, x fastest, in a grid of the given size.
fn unflatten(linear: u64, [x, y, _]: [u32; 3]) -> [u32; 3] {
    let (x, y) = (u64::from(x.max(1)), u64::from(y.max(1)));
    [(linear % x) as u32, (linear / x % y) as u32, (linear / x / y) as u32]
}

/// Index of the first of `count` bytes at `at` that is not 1; reads eight bytes at a time where
/// possible.
fn first_not_one(memory: &Region, at: u64, count: u64) -> u64 {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let head = (at.next_multiple_of(8) - at).min(count);
    let words = (count - head) / 8;
    let bytes = |from: u64, count: u64| memory.atomic_bytes(at + from, count).unwrap_or(&[]);
    let not_one = |bytes: &[AtomicU8]| bytes.iter().position(|b| b.load(Ordering::Acquire) != 1).map(|i| i as u64);
    if let Some(i) = not_one(bytes(0, head)) {
        return i;
    }
    let whole: &[AtomicU64] = memory.words(at + head, words as usize).unwrap_or(&[]);
    let done = whole.iter().position(|w| w.load(Ordering::Acquire) != ONES).unwrap_or(whole.len()) as u64;
    let from = head + done * 8;
    from + not_one(bytes(from, count - from)).unwrap_or(count - from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_missing_block_is_found_at_any_position() {
        let memory = Region::create("test", 4096).unwrap();
        for start in 0..9 {
            for count in 0..40 {
                for hole in 0..=count {
                    memory.fill(0, 1, 4096).unwrap();
                    if hole < count {
                        memory.write(start + hole, &[0]).unwrap();
                    }
                    assert_eq!(first_not_one(&memory, start, count), hole, "{count} bytes at {start}");
                }
            }
        }
    }
}
