//! The records that cross the command ring: plain, fixed-size, no pointers.

use crate::ModuleId;
use atoll_core::{DeviceOffset, Epoch, LaunchId, QueueId};

/// 64-bit words of a [`Command`] in a ring.
pub const COMMAND_WORDS: usize = 9 + PARAMS_BYTES_MAX / 8;

/// 64-bit words of a [`Completion`] in a ring.
pub const COMPLETION_WORDS: usize = 7;

/// Where [`LaunchRecord::followed`] stands beside [`LaunchRecord::may_run_again`].
const FOLLOWED_BIT: u32 = 31;

/// Largest parameter block of a launch in bytes: 64 slots, what `address_slots` can mark.
pub const PARAMS_BYTES_MAX: usize = 512;

/// One launch.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchRecord {
    /// Echoed in the completion.
    pub launch: LaunchId,
    /// The module.
    pub module: ModuleId,
    /// Index of the kernel in the module.
    pub kernel: u32,
    /// Blocks in x, y, z; all at least 1.
    pub grid: [u32; 3],
    /// Dynamic shared memory in bytes.
    pub shared_bytes: u32,
    /// Bit `i`: the eight bytes at `8 * i` of the parameter block are a device offset, which the device turns into an address.
    pub address_slots: u64,
    /// The launch's evicted word, 0 when submitted.
    pub evicted_word: DeviceOffset,
    /// The task's epoch word, for devices that look at it between blocks.
    pub epoch_word: DeviceOffset,
    /// The epoch it is issued under.
    pub epoch: Epoch,
    /// 1 where the kernel carries the preemption parameters.
    pub preemptible: u32,
    /// 1 where a block may be stopped midway and run again from its start (design D5 f); counts only where it is preemptible.
    pub may_run_again: u32,
    /// 1 where the next launch of its queue is submitted at once, so that a device may wait for it and start both together.
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
    /// When its first block started, monotonic nanoseconds (0 where the device does not say).
    pub started_ns: u64,
    /// When its last block ended, monotonic nanoseconds.
    pub ended_ns: u64,
    /// How long compute units ran blocks of it, summed over the compute units: what it cost the device, however it ended.
    pub busy_ns: u64,
    /// Times a block of it was stopped midway for more urgent work, and had to begin again.
    pub reexecuted_blocks: u64,
    /// Of the busy time, what such blocks had run when they were stopped, as far as the device can tell.
    pub discarded_ns: u64,
}

/// How a launch ended.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaunchStatus {
    /// Every block ran, now or earlier.
    Complete,
    /// At least one block left because of the epoch (design D5 a).
    Evicted,
    /// The kernel trapped or faulted.
    Failed,
    /// It was ended by [`crate::Launching::abort`].
    Aborted,
}

/// Blocks of a launch that a compute unit ran in a row.
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
    /// How many were run.
    pub blocks: u64,
    /// When the compute unit began, monotonic nanoseconds.
    pub began_ns: u64,
    /// When it was done.
    pub ended_ns: u64,
    /// How it ended.
    pub end: ChunkEnd,
}

/// How a chunk ended.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkEnd {
    /// All its blocks ran, or left because of the epoch.
    Finished,
    /// The compute unit stopped between two blocks, for a more urgent queue.
    Stopped,
    /// The kernel trapped or faulted.
    Failed,
    /// The launch was ended by [`crate::Launching::abort`].
    Aborted,
    /// The compute unit stopped in the middle of a block, for a more urgent queue; that block will begin again.
    Interrupted,
}

impl ChunkEnd {
    /// All of them, in the order of their codes.
    pub const ALL: [ChunkEnd; 5] = [ChunkEnd::Finished, ChunkEnd::Stopped, ChunkEnd::Failed, ChunkEnd::Aborted, ChunkEnd::Interrupted];

    /// The one with a code, its number in [`ChunkEnd::ALL`].
    pub fn from_code(code: u64) -> Option<ChunkEnd> {
        ChunkEnd::ALL.into_iter().find(|end| *end as u64 == code)
    }
}

/// What a compute unit did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ComputeUnitUse {
    /// Chunks of blocks that it ran.
    pub chunks: u64,
    /// How long it ran them.
    pub busy_ns: u64,
}

impl ComputeUnitUse {
    /// With that of another one.
    #[must_use]
    pub fn plus(self, other: ComputeUnitUse) -> ComputeUnitUse {
        ComputeUnitUse { chunks: self.chunks.saturating_add(other.chunks), busy_ns: self.busy_ns.saturating_add(other.busy_ns) }
    }
}

/// A launch with its parameter block, as it crosses the command ring. The block travels in the record, so it needs no arena and no life of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// The launch.
    pub record: LaunchRecord,
    /// Bytes of the parameter block; more than [`PARAMS_BYTES_MAX`] makes the launch fail.
    pub params_bytes: u32,
    /// The parameter block in 64-bit words, zero behind its end.
    pub params: [u64; PARAMS_BYTES_MAX / 8],
}

impl Command {
    /// The command of a launch.
    pub fn new(record: &LaunchRecord, params: &[u8]) -> Command {
        let mut words = [0; PARAMS_BYTES_MAX / 8];
        for (word, bytes) in words.iter_mut().zip(params.chunks(8)) {
            let mut whole = [0; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_ne_bytes(whole);
        }
        Command { record: *record, params_bytes: u32::try_from(params.len()).unwrap_or(u32::MAX), params: words }
    }

    /// As words for a ring.
    pub fn to_words(&self) -> [u64; COMMAND_WORDS] {
        let r = &self.record;
        let mut words = [0; COMMAND_WORDS];
        words[..9].copy_from_slice(&[
            r.launch.0,
            join(r.module.0, r.kernel),
            join(r.grid[0], r.grid[1]),
            join(r.grid[2], r.shared_bytes),
            r.address_slots,
            r.evicted_word.0,
            r.epoch_word.0,
            join(r.epoch.0, r.preemptible),
            join(self.params_bytes, r.may_run_again | r.followed << FOLLOWED_BIT),
        ]);
        words[9..].copy_from_slice(&self.params);
        words
    }

    /// From a ring. Any bits are a command; whether it makes sense is checked where it is run.
    pub fn from_words(words: &[u64; COMMAND_WORDS]) -> Command {
        let (module, kernel) = split(words[1]);
        let (x, y) = split(words[2]);
        let (z, shared_bytes) = split(words[3]);
        let (epoch, preemptible) = split(words[7]);
        let (params_bytes, flags) = split(words[8]);
        let mut params = [0; PARAMS_BYTES_MAX / 8];
        params.copy_from_slice(&words[9..]);
        let record = LaunchRecord {
            launch: LaunchId(words[0]),
            module: ModuleId(module),
            kernel,
            grid: [x, y, z],
            shared_bytes,
            address_slots: words[4],
            evicted_word: DeviceOffset(words[5]),
            epoch_word: DeviceOffset(words[6]),
            epoch: Epoch(epoch),
            preemptible,
            may_run_again: flags & !(1 << FOLLOWED_BIT),
            followed: flags >> FOLLOWED_BIT,
        };
        Command { record, params_bytes, params }
    }
}

impl Completion {
    /// Of a launch that ended without running.
    pub fn unrun(launch: LaunchId, status: LaunchStatus) -> Completion {
        Completion { launch, status, started_ns: 0, ended_ns: 0, busy_ns: 0, reexecuted_blocks: 0, discarded_ns: 0 }
    }

    /// As words for a ring.
    pub fn to_words(&self) -> [u64; COMPLETION_WORDS] {
        let Completion { started_ns, ended_ns, busy_ns, reexecuted_blocks, discarded_ns, .. } = *self;
        [self.launch.0, self.status as u64, started_ns, ended_ns, busy_ns, reexecuted_blocks, discarded_ns]
    }

    /// From a ring; `None` for a status that does not exist.
    pub fn from_words(words: &[u64; COMPLETION_WORDS]) -> Option<Completion> {
        let statuses = [LaunchStatus::Complete, LaunchStatus::Evicted, LaunchStatus::Failed, LaunchStatus::Aborted];
        let status = statuses.into_iter().find(|s| *s as u64 == words[1])?;
        let &[launch, _, started_ns, ended_ns, busy_ns, reexecuted_blocks, discarded_ns] = words;
        Some(Completion { launch: LaunchId(launch), status, started_ns, ended_ns, busy_ns, reexecuted_blocks, discarded_ns })
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

    #[test]
    fn records_survive_the_ring() {
        let record = LaunchRecord {
            launch: LaunchId(u64::MAX - 1),
            module: ModuleId(2),
            kernel: 3,
            grid: [4, 5, 6],
            shared_bytes: 7,
            address_slots: 1 << 63 | 8,
            evicted_word: DeviceOffset(9),
            epoch_word: DeviceOffset(10),
            epoch: Epoch(u32::MAX),
            preemptible: 1,
            may_run_again: 1,
            followed: 1,
        };
        let command = Command::new(&record, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
        assert_eq!(command.params[..3], [0x0807_0605_0403_0201, 0x0a09, 0]);
        assert_eq!(Command::from_words(&command.to_words()), command);
        assert_eq!(Command::new(&record, &[0; PARAMS_BYTES_MAX + 1]).params_bytes, PARAMS_BYTES_MAX as u32 + 1);

        for status in [LaunchStatus::Complete, LaunchStatus::Evicted, LaunchStatus::Failed, LaunchStatus::Aborted] {
            let completion =
                Completion { launch: LaunchId(1), status, started_ns: 2, ended_ns: 3, busy_ns: 4, reexecuted_blocks: 5, discarded_ns: 6 };
            assert_eq!(Completion::from_words(&completion.to_words()), Some(completion));
        }
        assert_eq!(Completion::from_words(&[1, 4, 0, 0, 0, 0, 0]), None);
    }
}
