//! The records that cross the command ring: plain data of fixed size, without pointers.

use crate::modules::ModuleId;
use crate::params::{AddressSlots, PARAM_SLOTS_MAX, PARAMS_BYTES_MAX, ParamBlock, SLOT_WORDS, words_of};
use crate::ring::Slot;
use atoll_core::{DeviceOffset, Epoch, LaunchId, QueueId};

/// 64-bit words of a launch in its ring slot: the record, followed by as many parameters as fill
/// eight cache lines.
pub const COMMAND_WORDS: usize = 64;

/// 64-bit words of a launch in the arena beside the ring: the remaining parameters and address
/// slots.
pub const COMMAND_ARENA_WORDS: usize =
    (RECORD_WORDS + PARAM_SLOTS_MAX + SLOT_WORDS - 1 - COMMAND_WORDS).next_multiple_of(8);

/// 64-bit words of a [`Completion`] in a ring.
pub const COMPLETION_WORDS: usize = 7;

/// Words of a record, including the first word of its address slots. The parameters follow; the
/// other words of the address slots come after the space for the longest parameter block.
const RECORD_WORDS: usize = 9;
const MORE_SLOTS_AT: usize = RECORD_WORDS + PARAM_SLOTS_MAX;

/// Flag bits in the word of [`LaunchRecord::may_run_again`].
const FOLLOWED_BIT: u32 = 31;
const ABSOLUTE_BIT: u32 = 30;
/// Set if slots beyond those of the record's own word are marked.
const MORE_SLOTS_BIT: u32 = 29;

/// One launch.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchRecord {
    /// Identifies the launch in its completion.
    pub launch: LaunchId,
    /// The module that contains the kernel.
    pub module: ModuleId,
    /// Index of the kernel in the module.
    pub kernel: u32,
    /// Blocks in x, y, z; all at least 1.
    pub grid: [u32; 3],
    /// Dynamic shared memory in bytes.
    pub shared_bytes: u32,
    /// The slots of the parameter block that hold addresses in device memory; the device relocates
    /// them.
    pub address_slots: AddressSlots,
    /// Offset of the launch's evicted word, which is 0 when the launch is submitted.
    pub evicted_word: DeviceOffset,
    /// Offset of the task's epoch word. A device checks the word between blocks, or gives kernels
    /// the address of a copy that they read faster.
    pub epoch_word: DeviceOffset,
    /// The epoch under which the launch is issued.
    pub epoch: Epoch,
    /// 1 if the kernel has the preemption parameters.
    pub preemptible: u32,
    /// 1 if a block may be stopped midway and run again from its start. Only valid if the launch is
    /// preemptible.
    pub may_run_again: u32,
    /// 1 if the next launch of its queue follows at once, so that a device may hold this one back
    /// and start both together.
    pub followed: u32,
}

/// The end of a launch.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The launch.
    pub launch: LaunchId,
    /// How it ended.
    pub status: LaunchStatus,
    /// When its first block started, in monotonic nanoseconds; 0 if the device does not report it.
    pub started_ns: u64,
    /// When its last block ended, in monotonic nanoseconds.
    pub ended_ns: u64,
    /// Time that compute units ran its blocks, summed over compute units, in nanoseconds: the cost
    /// to the device, for any outcome.
    pub busy_ns: u64,
    /// How often a block was stopped midway for more urgent work and had to run again. At least 1
    /// if the device stopped the running blocks of the launch and does not know their number.
    pub reexecuted_blocks: u64,
    /// The part of the busy time that was lost with such blocks, as far as the device can tell.
    pub discarded_ns: u64,
}

/// How a launch ended.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaunchStatus {
    /// Every block ran, in this launch or an earlier one.
    Complete,
    /// At least one block exited early because of the epoch.
    Evicted,
    /// The kernel trapped or faulted.
    Failed,
    /// It was ended by [`crate::Launching::abort`].
    Aborted,
}

/// Blocks of one launch that a compute unit ran in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkRecord {
    /// Index of the compute unit.
    pub unit: u32,
    /// The launch.
    pub launch: LaunchId,
    /// The queue it came from.
    pub queue: QueueId,
    /// The first block, by its linear number.
    pub first_block: u64,
    /// Number of blocks that ran.
    pub blocks: u64,
    /// When the compute unit began, in monotonic nanoseconds.
    pub began_ns: u64,
    /// When it ended, in monotonic nanoseconds.
    pub ended_ns: u64,
    /// How it ended.
    pub end: ChunkEnd,
}

/// How a chunk ended.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkEnd {
    /// All its blocks ran, or exited because of the epoch.
    Finished,
    /// The compute unit stopped between two blocks, for a more urgent queue.
    Stopped,
    /// The kernel trapped or faulted.
    Failed,
    /// The launch was ended by [`crate::Launching::abort`].
    Aborted,
    /// The compute unit stopped in the middle of a block, for a more urgent queue; that block will
    /// run again from its start.
    Interrupted,
}

impl ChunkEnd {
    /// All variants, in the order of their codes.
    pub const ALL: [ChunkEnd; 5] =
        [ChunkEnd::Finished, ChunkEnd::Stopped, ChunkEnd::Failed, ChunkEnd::Aborted, ChunkEnd::Interrupted];

    /// The variant with a code, which is its index in [`ChunkEnd::ALL`].
    pub fn from_code(code: u64) -> Option<ChunkEnd> {
        ChunkEnd::ALL.into_iter().find(|end| *end as u64 == code)
    }
}

/// The work of a compute unit so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ComputeUnitUse {
    /// Chunks that it ran.
    pub chunks: u64,
    /// Time in which it ran them, in nanoseconds.
    pub busy_ns: u64,
}

impl ComputeUnitUse {
    /// The sum of both.
    #[must_use]
    pub fn plus(self, other: ComputeUnitUse) -> ComputeUnitUse {
        ComputeUnitUse {
            chunks: self.chunks.saturating_add(other.chunks),
            busy_ns: self.busy_ns.saturating_add(other.busy_ns),
        }
    }
}

/// A launch as read from a ring. Any bits form a command; the device validates it before running
/// it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// The launch.
    pub record: LaunchRecord,
    /// Bytes of the parameter block; more than [`PARAMS_BYTES_MAX`] makes the launch fail.
    pub params_bytes: u32,
    /// The parameter block.
    pub params: ParamBlock,
}

impl Command {
    /// Stores a launch in a ring slot. If the parameter block is too large, only its size is
    /// stored.
    pub fn put(slot: &Slot<'_>, record: &LaunchRecord, params: &[u8]) {
        let r = record;
        let [first_slots, more_slots @ ..] = r.address_slots.words();
        let has_more_slots = more_slots.iter().any(|word| *word != 0);
        let bits =
            u32::from(has_more_slots) << MORE_SLOTS_BIT | u32::from(r.address_slots.are_absolute()) << ABSOLUTE_BIT;
        let flags = r.may_run_again | r.followed << FOLLOWED_BIT | bits;
        let words: [u64; RECORD_WORDS] = [
            r.launch.0,
            join(r.module.0, r.kernel),
            join(r.grid[0], r.grid[1]),
            join(r.grid[2], r.shared_bytes),
            *first_slots,
            r.evicted_word.0,
            r.epoch_word.0,
            join(r.epoch.0, r.preemptible),
            join(u32::try_from(params.len()).unwrap_or(u32::MAX), flags),
        ];
        slot.store(0, words);
        if params.len() <= PARAMS_BYTES_MAX {
            slot.store(RECORD_WORDS, words_of(params));
        }
        if has_more_slots {
            slot.store(MORE_SLOTS_AT, more_slots.iter().copied());
        }
    }

    /// Reads a launch from a ring slot. A peer that breaks the protocol may change the slot
    /// meanwhile, so each word is read once.
    pub fn take(slot: &Slot<'_>) -> Command {
        let words: [u64; RECORD_WORDS] = std::array::from_fn(|index| slot.load(index));
        let (module, kernel) = split(words[1]);
        let (x, y) = split(words[2]);
        let (z, shared_bytes) = split(words[3]);
        let (epoch, preemptible) = split(words[7]);
        let (params_bytes, flags) = split(words[8]);
        let bytes = params_bytes as usize;
        let has_more_slots = flags >> MORE_SLOTS_BIT & 1 == 1;
        let more_slots = |index: usize| if has_more_slots { slot.load(MORE_SLOTS_AT + index - 1) } else { 0 };
        let slots = std::array::from_fn(|index| if index == 0 { words[4] } else { more_slots(index) });
        let taken_bytes = if bytes <= PARAMS_BYTES_MAX { bytes } else { 0 };
        let mut params = ParamBlock::zeroed(taken_bytes);
        (0..taken_bytes.div_ceil(8)).for_each(|index| params.set(index, slot.load(RECORD_WORDS + index)));
        let record = LaunchRecord {
            launch: LaunchId(words[0]),
            module: ModuleId(module),
            kernel,
            grid: [x, y, z],
            shared_bytes,
            address_slots: AddressSlots::from_words(slots, flags >> ABSOLUTE_BIT & 1 == 1),
            evicted_word: DeviceOffset(words[5]),
            epoch_word: DeviceOffset(words[6]),
            epoch: Epoch(epoch),
            preemptible,
            may_run_again: flags & ((1 << MORE_SLOTS_BIT) - 1),
            followed: flags >> FOLLOWED_BIT,
        };
        Command { record, params_bytes, params }
    }
}

impl Completion {
    /// The completion of a launch that ended without running.
    pub fn unrun(launch: LaunchId, status: LaunchStatus) -> Completion {
        Completion { launch, status, started_ns: 0, ended_ns: 0, busy_ns: 0, reexecuted_blocks: 0, discarded_ns: 0 }
    }

    /// As words for a ring.
    pub fn to_words(&self) -> [u64; COMPLETION_WORDS] {
        let Completion { started_ns, ended_ns, busy_ns, reexecuted_blocks, discarded_ns, .. } = *self;
        [self.launch.0, self.status as u64, started_ns, ended_ns, busy_ns, reexecuted_blocks, discarded_ns]
    }

    /// Parses the words of a ring; `None` if the status does not exist.
    pub fn from_words(words: &[u64; COMPLETION_WORDS]) -> Option<Completion> {
        let statuses = [LaunchStatus::Complete, LaunchStatus::Evicted, LaunchStatus::Failed, LaunchStatus::Aborted];
        let status = statuses.into_iter().find(|s| *s as u64 == words[1])?;
        let &[launch, _, started_ns, ended_ns, busy_ns, reexecuted_blocks, discarded_ns] = words;
        Some(Completion {
            launch: LaunchId(launch),
            status,
            started_ns,
            ended_ns,
            busy_ns,
            reexecuted_blocks,
            discarded_ns,
        })
    }
}

fn join(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

fn split(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::{Consumer, Producer, PushError, ring_bytes};
    use crate::shm::Region;
    use atoll_core::rng::Rng;
    use std::sync::Arc;

    fn record(address_slots: AddressSlots) -> LaunchRecord {
        LaunchRecord {
            launch: LaunchId(u64::MAX - 1),
            module: ModuleId(2),
            kernel: 3,
            grid: [4, 5, 6],
            shared_bytes: 7,
            address_slots,
            evicted_word: DeviceOffset(9),
            epoch_word: DeviceOffset(10),
            epoch: Epoch(u32::MAX),
            preemptible: 1,
            may_run_again: 1,
            followed: 1,
        }
    }

    fn ring(
        capacity: u32,
    ) -> (Producer<COMMAND_WORDS, COMMAND_ARENA_WORDS>, Consumer<COMMAND_WORDS, COMMAND_ARENA_WORDS>) {
        let region =
            Arc::new(Region::create("ring", ring_bytes::<COMMAND_WORDS, COMMAND_ARENA_WORDS>(capacity)).unwrap());
        (Producer::new(region.clone(), 0, capacity).unwrap(), Consumer::new(region, 0, capacity).unwrap())
    }

    #[test]
    fn launches_survive_the_ring() {
        let (mut producer, mut consumer) = ring(1);
        let inline_bytes = (COMMAND_WORDS - RECORD_WORDS) * 8;
        for bytes in [0, 10, inline_bytes - 1, inline_bytes, inline_bytes + 1, 512, 513, 4090, PARAMS_BYTES_MAX] {
            let params: Vec<u8> = (0..bytes).map(|i| (i % 255) as u8 + 1).collect();
            let last = bytes.saturating_sub(1) / 8;
            for slots in
                [AddressSlots::NONE, [0, last].into_iter().collect(), (0..=last).collect::<AddressSlots>().absolute()]
            {
                producer.push_with(|slot| Command::put(slot, &record(slots), &params)).unwrap();
                let command = consumer.pop_with(Command::take).unwrap().unwrap();
                assert_eq!((&command.record, command.params_bytes as usize), (&record(slots), bytes));
                assert_eq!(command.params, ParamBlock::from_bytes(&params));
            }
        }
    }

    #[test]
    fn only_the_size_of_an_oversized_block_is_stored() {
        let (mut producer, mut consumer) = ring(1);
        producer.push_with(|slot| Command::put(slot, &record(AddressSlots::NONE), &[1; PARAMS_BYTES_MAX + 1])).unwrap();
        let command = consumer.pop_with(Command::take).unwrap().unwrap();
        assert_eq!((command.params_bytes as usize, command.params), (PARAMS_BYTES_MAX + 1, ParamBlock::zeroed(0)));
    }

    /// Sends launches of all sizes through a ring that is full most of the time: no arena slot is
    /// reused before its launch was read.
    #[test]
    fn the_arena_keeps_up_with_a_full_ring() {
        for seed in 0..20 {
            let mut rng = Rng::new(seed);
            let capacity = 1 + rng.below(7) as u32;
            let (mut producer, mut consumer) = ring(capacity);
            let mut waiting = std::collections::VecDeque::new();
            let mut launches = 0;
            for _ in 0..2_000 {
                if rng.below(3) > 0 {
                    let bytes = match rng.below(3) {
                        0 => rng.below(64) as usize,
                        1 => rng.below(PARAMS_BYTES_MAX as u64 + 1) as usize,
                        _ => PARAMS_BYTES_MAX,
                    };
                    let params: Vec<u8> = (0..bytes).map(|_| rng.below(256) as u8).collect();
                    let slots = (0..rng.below(9))
                        .map(|_| rng.below(bytes as u64 / 8 + 1).min(PARAM_SLOTS_MAX as u64 - 1) as usize);
                    let record = LaunchRecord { launch: LaunchId(launches), ..record(slots.collect()) };
                    match producer.push_with(|slot| Command::put(slot, &record, &params)) {
                        Ok(()) => waiting.push_back((record, params)),
                        Err(full) => {
                            assert_eq!(
                                (full, waiting.len() as u32),
                                (PushError::Full, capacity.next_power_of_two()),
                                "seed {seed}"
                            );
                            continue;
                        }
                    }
                    launches += 1;
                } else {
                    let taken = consumer.pop_with(Command::take).unwrap();
                    let expected = waiting.pop_front();
                    assert_eq!(taken.is_some(), expected.is_some(), "seed {seed}");
                    if let (Some(taken), Some((record, params))) = (taken, expected) {
                        assert_eq!(taken.record, record, "seed {seed}");
                        assert_eq!(
                            taken.params.to_bytes(params.len()),
                            params,
                            "seed {seed}, launch {}",
                            record.launch.0
                        );
                    }
                }
            }
            assert!(launches > 100, "seed {seed}: {launches} launches");
        }
    }

    #[test]
    fn completions_survive_the_ring() {
        for status in [LaunchStatus::Complete, LaunchStatus::Evicted, LaunchStatus::Failed, LaunchStatus::Aborted] {
            let completion = Completion {
                launch: LaunchId(1),
                status,
                started_ns: 2,
                ended_ns: 3,
                busy_ns: 4,
                reexecuted_blocks: 5,
                discarded_ns: 6,
            };
            assert_eq!(Completion::from_words(&completion.to_words()), Some(completion));
        }
        assert_eq!(Completion::from_words(&[1, 4, 0, 0, 0, 0, 0]), None);
    }
}
