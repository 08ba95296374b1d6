//! Binds a launch to a GPU: checks its parameters, and replaces device offsets in them by
//! addresses.

use crate::params::ParamBlock;
use crate::record::LaunchRecord;
use crate::refusal::{Refusal, checked_blocks, relocate};
use atoll_core::DeviceOffset;
use atoll_kgraph::{KernelFacts, preempt_params};

/// A parameter block with addresses.
#[derive(Clone, Debug)]
pub struct LaunchParams {
    block: ParamBlock,
    bytes: usize,
}

impl LaunchParams {
    /// Stores an address in a slot of 8 bytes.
    pub fn put_address(&mut self, slot: usize, address: u64) {
        self.block.set(slot, address);
    }

    /// Its 64-bit words, padded with zeros.
    pub fn words(&self) -> impl Iterator<Item = u64> {
        (0..self.bytes.div_ceil(8)).filter_map(|slot| self.block.get(slot))
    }

    /// Its bytes, for the driver.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.block.to_bytes(self.bytes)
    }
}

/// A launch that has passed all checks.
#[derive(Clone, Debug)]
pub struct BoundLaunch {
    /// Its parameters, cut to the size that the kernel declares.
    pub params: LaunchParams,
    /// Blocks of its grid.
    pub blocks: u64,
    /// The slot of the evicted word, for launches that report early exits.
    pub evicted_slot: Option<usize>,
    /// The slot of the fault word, for kernels that report faults there. The device sets it.
    pub fault_slot: Option<usize>,
}

/// Checks a launch and resolves its addresses. `range` returns the address of a range of device
/// memory, given by its offset and size in bytes. `find` returns the address of an epoch word that
/// lies outside device memory. It is asked only for the word of the launch's own task, because the
/// offset of another word may belong to a buffer now. The other tasks of a padded launch read their
/// words in device memory, where they are raised as well.
///
/// # Errors
/// The launch does not fit its kernel, or names memory outside the device.
pub fn bind_launch(
    record: &LaunchRecord,
    params: &[u8],
    facts: &KernelFacts,
    shared_bytes_max: u32,
    range: impl Fn(u64, u64) -> Option<u64>,
    find: impl Fn(DeviceOffset) -> Option<u64>,
) -> Result<BoundLaunch, Refusal> {
    let blocks = checked_blocks(record, params.len(), facts, shared_bytes_max)?;
    // The driver accepts only the declared parameters.
    let bytes = facts.params_bytes as usize;
    let mut block = ParamBlock::from_bytes(&params[..bytes]);
    let base = range(0, 0).unwrap_or_default();
    let offset_of =
        |value: u64| if record.address_slots.are_absolute() { value.checked_sub(base) } else { Some(value) };
    let offset_in = |slot| block.get(slot).and_then(offset_of);
    let evicted_slot = check_words(record, facts, blocks, offset_in, |at, bytes| range(at, bytes).is_some())?;
    let own_word = |offset: u64| find(record.epoch_word).filter(|_| offset == record.epoch_word.0);
    let address = |offset: u64| own_word(offset).or_else(|| range(offset, 0));
    relocate(&mut block, bytes, &record.address_slots, |value| address(offset_of(value)?))?;
    let fault_slot =
        facts.fence.and_then(|fence| fence.fault_word_offset()).map(|at| fault_slot(at, bytes)).transpose()?;
    Ok(BoundLaunch { params: LaunchParams { block, bytes }, blocks, evicted_slot, fault_slot })
}

/// Checks the words and the progress map of a launch whose kernel was made preemptible. `offset_in`
/// returns the device offset in a parameter slot. Returns the slot of the evicted word if the
/// launch reports early exits.
fn check_words(
    record: &LaunchRecord,
    facts: &KernelFacts,
    blocks: u64,
    offset_in: impl Fn(usize) -> Option<u64>,
    is_inside: impl Fn(u64, u64) -> bool,
) -> Result<Option<usize>, Refusal> {
    let Some(appended) = facts.preempt_offset else { return Ok(None) };
    slot_of(record, appended + preempt_params::EPOCH_WORD)?;
    if record.preemptible != 1 {
        return Ok(None);
    }
    let progress = slot_of(record, appended + preempt_params::PROGRESS)?;
    let progress = offset_in(progress).ok_or(Refusal::PreemptWords)?;
    let is_word = |word: u64| word.is_multiple_of(4) && is_inside(word, 4);
    if !is_word(record.epoch_word.0) || !is_word(record.evicted_word.0) || !is_inside(progress, blocks) {
        return Err(Refusal::PreemptWords);
    }
    slot_of(record, appended + preempt_params::EVICTED_WORD).map(Some)
}

/// The slot of the address of the fault word.
fn fault_slot(at: u32, params_bytes: usize) -> Result<usize, Refusal> {
    let fits = at.is_multiple_of(8) && at as usize + 8 <= params_bytes;
    if fits { Ok((at / 8) as usize) } else { Err(Refusal::FaultWord) }
}

/// The slot of a parameter that the passes appended. It must be marked as an address.
fn slot_of(record: &LaunchRecord, at: u32) -> Result<usize, Refusal> {
    let slot = (at / 8) as usize;
    let is_address = at.is_multiple_of(8) && record.address_slots.contains(slot);
    if is_address { Ok(slot) } else { Err(Refusal::PreemptWords) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AddressSlots, ModuleId};
    use atoll_core::{Epoch, LaunchId};
    use atoll_kgraph::FenceFacts;

    /// The address of device memory, of which there are 4096 bytes.
    const BASE: u64 = 0x7000_0000;

    /// A launch of 4 blocks with a buffer at offset 64 and its words behind; its parameters.
    fn launch(progress: u64) -> (LaunchRecord, Vec<u8>) {
        let mut address_slots = AddressSlots::NONE;
        (0..4).for_each(|slot| address_slots.insert(slot));
        let record = LaunchRecord {
            launch: LaunchId(1),
            module: ModuleId(0),
            kernel: 0,
            grid: [4, 1, 1],
            shared_bytes: 0,
            address_slots,
            evicted_word: DeviceOffset(132),
            epoch_word: DeviceOffset(128),
            epoch: Epoch(0),
            preemptible: 1,
            may_run_again: 0,
            followed: 0,
        };
        let mut params: Vec<u8> =
            [64, 128, 132, progress].iter().flat_map(|offset: &u64| offset.to_le_bytes()).collect();
        params.extend([0; 8]);
        (record, params)
    }

    fn bound(record: &LaunchRecord, params: &[u8]) -> Result<BoundLaunch, Refusal> {
        let facts = KernelFacts { params_bytes: 40, preempt_offset: Some(8), ..KernelFacts::default() };
        let range = |at: u64, bytes: u64| at.checked_add(bytes).filter(|end| *end <= 4096).map(|_| BASE + at);
        // The epoch word is elsewhere.
        bind_launch(record, params, &facts, 0, range, |word| (word.0 == 128).then_some(0x42))
    }

    #[test]
    fn offsets_become_addresses() {
        let (record, params) = launch(256);
        let found = bound(&record, &params).unwrap();
        let words: Vec<u64> = found.params.words().collect();
        assert_eq!(words, [BASE + 64, 0x42, BASE + 132, BASE + 256, 0]);
        assert_eq!((found.blocks, found.evicted_slot), (4, Some(2)));
        let mut moved = found.params.clone();
        moved.put_address(2, 7);
        assert_eq!(moved.to_bytes()[16..24], 7_u64.to_le_bytes());
    }

    #[test]
    fn buffers_are_in_device_memory_where_an_epoch_word_was_before() {
        let (record, params) = launch(256);
        let facts = KernelFacts { params_bytes: 40, preempt_offset: Some(8), ..KernelFacts::default() };
        let range = |at, _| Some(BASE + at);
        // The word at 64 was that of a task before.
        let find = |word: DeviceOffset| (word.0 == 128 || word.0 == 64).then_some(0x42);
        let found = bind_launch(&record, &params, &facts, 0, range, find).unwrap();
        assert_eq!(found.params.words().collect::<Vec<_>>(), [BASE + 64, 0x42, BASE + 132, BASE + 256, 0]);
    }

    #[test]
    fn the_slot_of_the_fault_word_is_told() {
        let (record, params) = launch(256);
        let fence = |offset| Some(FenceFacts { offset, dynamic_shared_bytes: 0, fault_word: true });
        let facts = KernelFacts { params_bytes: 40, ..KernelFacts::default() };
        let record = LaunchRecord { preemptible: 0, ..record };
        let range = |at: u64, _: u64| Some(BASE + at);
        let bound = |fence| bind_launch(&record, &params, &KernelFacts { fence, ..facts.clone() }, 0, range, |_| None);
        assert_eq!(bound(None).unwrap().fault_slot, None);
        assert_eq!(bound(fence(0)).unwrap_err(), Refusal::FaultWord, "behind the parameters");
        let facts = KernelFacts { params_bytes: 48, fence: fence(0), ..facts.clone() };
        let params: Vec<u8> = params.iter().copied().chain([0; 8]).collect();
        assert_eq!(bind_launch(&record, &params, &facts, 0, range, |_| None).unwrap().fault_slot, Some(5));
    }

    #[test]
    fn words_outside_of_memory_are_refused() {
        let refused = |(record, params): (LaunchRecord, Vec<u8>)| bound(&record, &params).unwrap_err();
        assert_eq!(refused(launch(4093)), Refusal::PreemptWords, "four blocks need four bytes");
        let (mut record, params) = launch(256);
        record.evicted_word = DeviceOffset(133);
        assert_eq!(refused((record, params)), Refusal::PreemptWords);
        let (mut record, params) = launch(256);
        record.address_slots = AddressSlots::NONE;
        assert_eq!(refused((record, params)), Refusal::PreemptWords, "the epoch word is no address");
    }
}
