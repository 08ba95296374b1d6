//! A trace record: one event, encoded in 64 bytes.

use atoll_core::placement::Why;
use atoll_core::scaling;
use atoll_core::{Class, Epoch, LaunchEnd, LaunchId, Nanos, Outcome, QueueId, TaskId};

/// The number of 64-bit words of an encoded record, in a ring of words or on the wire.
pub const RECORD_WORDS: usize = 8;

/// One event of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The time of the event, in nanoseconds of the monotonic clock.
    pub at: Nanos,
    /// The task, or [`Record::NO_TASK`] for events of the whole device.
    pub task: TaskId,
    /// The engine's number of the function, or [`Record::NO_FUNCTION`].
    pub function: u64,
    /// The kind of event and its details.
    pub kind: EventKind,
}

/// The kind of an event and its details.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A task arrived.
    Arrived {
        /// Its class.
        class: Class,
        /// Whether its constants and state are resident on the device.
        ready: bool,
    },
    /// The task's constants and state became resident.
    Ready,
    /// The task's constants or state were evicted.
    Unready,
    /// Preparation starts: memory is bound and inputs are copied.
    Preparing,
    /// Preparation is done.
    Prepared,
    /// A launch was submitted to the device.
    Issued {
        /// The launch.
        launch: LaunchId,
        /// Index of its node in the function's graph.
        node: u32,
        /// The device queue.
        queue: QueueId,
        /// The epoch under which it was issued.
        epoch: Epoch,
    },
    /// The engine was notified of the end of a launch.
    Ended {
        /// The launch.
        launch: LaunchId,
        /// Index of its node in the function's graph.
        node: u32,
        /// The device queue.
        queue: QueueId,
        /// When its first block started, by the device's timestamp.
        started: Nanos,
        /// When its last block ended, by the device's timestamp.
        ended: Nanos,
        /// How it ended.
        end: LaunchEnd,
    },
    /// The task's epoch was raised, which evicts its launches.
    Raised {
        /// The new epoch.
        epoch: Epoch,
        /// Why.
        why: Raise,
    },
    /// Blocks of the task were added to a launch of another task as padding.
    Padded {
        /// Index of the step.
        step: u32,
        /// The first block.
        first: u32,
        /// The number of blocks.
        blocks: u32,
    },
    /// A launch that could not be evicted is aborted.
    Aborting {
        /// The launch.
        launch: LaunchId,
        /// Its queue.
        queue: QueueId,
    },
    /// A launch did not end although it was aborted.
    Hung {
        /// The launch.
        launch: LaunchId,
    },
    /// A host step between two launches starts.
    HostStep {
        /// Index of the step.
        step: u32,
    },
    /// The host step is done.
    HostStepDone,
    /// The client cancelled the task.
    Cancelled,
    /// The task's preparation or a host step failed.
    Failed,
    /// The task ended.
    Finished {
        /// How it ended.
        outcome: Outcome,
        /// The number of times that it was preempted.
        preemptions: u32,
    },
    /// The device was lost.
    DeviceLost,
    /// A compute unit ran a chunk of blocks, which began at [`Record::at`].
    Chunk {
        /// Index of the compute unit.
        unit: u32,
        /// The launch.
        launch: LaunchId,
        /// The first block.
        first_block: u64,
        /// The number of blocks, saturated to 32 bits.
        blocks: u32,
        /// When the chunk ended.
        ended: Nanos,
        /// How it ended.
        end: ChunkOutcome,
    },
    /// A request became part of a batch, which runs as one task.
    Batched {
        /// The task of the batch: that of its first request.
        batch: TaskId,
        /// The number of requests in the batch.
        requests: u32,
        /// Their rows.
        rows: u64,
    },
    /// A request was placed on a device. Recorded by the pool in front of the devices.
    Placed {
        /// The device.
        device: u32,
        /// The policy: its index in [`atoll_core::placement::PLACEMENTS`].
        policy: u8,
        /// Why this device.
        why: Why,
        /// When the request arrived.
        arrived: Nanos,
        /// Expected time to load its constants there.
        reload: Nanos,
        /// Expected time on the device without loading.
        service: Nanos,
        /// The number of requests that were still waiting.
        waiting: u64,
    },
    /// The autoscaler decided to change the instances of a function. Recorded by the pool. Rates
    /// are in thousandths of a request per second.
    Scaled {
        /// Why.
        why: scaling::Why,
        /// The number of instances to add.
        added: u32,
        /// The number of instances to resize.
        resized: u32,
        /// The number of instances to remove.
        removed: u32,
        /// The load to serve.
        load: u64,
        /// The capacity of the instances before the change.
        capacity: u64,
    },
}

/// Why an epoch was raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Raise {
    /// The task was preempted; its launches are issued again.
    Preempted,
    /// The task is ending: its launches are evicted and not issued again.
    Over,
}

/// How a chunk of blocks ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkOutcome {
    /// All its blocks ran or were evicted.
    Finished,
    /// The compute unit switched to a more urgent queue.
    Stopped,
    /// The kernel faulted.
    Failed,
    /// The launch was aborted.
    Aborted,
    /// The compute unit was preempted within a block for a more urgent queue. The block runs again.
    Interrupted,
}

const OUTCOMES: [Outcome; 7] = [
    Outcome::Complete,
    Outcome::Failed,
    Outcome::Cancelled,
    Outcome::DeadlineExceeded,
    Outcome::QueueFull,
    Outcome::Refused,
    Outcome::DeviceLost,
];
const ENDS: [LaunchEnd; 4] = [LaunchEnd::Complete, LaunchEnd::Evicted, LaunchEnd::Failed, LaunchEnd::Aborted];
const CHUNK_OUTCOMES: [ChunkOutcome; 5] = [
    ChunkOutcome::Finished,
    ChunkOutcome::Stopped,
    ChunkOutcome::Failed,
    ChunkOutcome::Aborted,
    ChunkOutcome::Interrupted,
];

/// The encoded form of [`EventKind`]: a record without its time, task and function.
struct Words {
    kind: u8,
    small: u8,
    queue: u8,
    number: u32,
    rest: [u64; 4],
}

impl Words {
    fn of(kind: u8) -> Words {
        Words { kind, small: 0, queue: 0, number: 0, rest: [0; 4] }
    }

    fn small(self, small: u8) -> Words {
        Words { small, ..self }
    }

    /// The queue fits 8 bits: see [`atoll_core::limits::DEVICE_QUEUES_MAX`].
    fn queue(self, queue: QueueId) -> Words {
        Words { queue: queue.0 as u8, ..self }
    }

    fn number(self, number: u32) -> Words {
        Words { number, ..self }
    }

    fn rest<const N: usize>(self, words: [u64; N]) -> Words {
        let mut rest = [0; 4];
        rest[..N].copy_from_slice(&words);
        Words { rest, ..self }
    }
}

fn code<T: PartialEq>(all: &[T], one: &T) -> u8 {
    all.iter().position(|other| other == one).map_or(u8::MAX, |at| at as u8)
}

impl Record {
    /// The task of an event that concerns no task.
    pub const NO_TASK: TaskId = TaskId(u64::MAX);

    /// The function of an event that concerns no function.
    pub const NO_FUNCTION: u64 = u64::MAX;

    /// Encodes the record as words.
    pub fn to_words(&self) -> [u64; RECORD_WORDS] {
        let Words { kind, small, queue, number, rest } = self.kind.words();
        let head = u64::from(kind) | u64::from(small) << 8 | u64::from(queue) << 16 | u64::from(number) << 32;
        [self.at.0, self.task.0, self.function, head, rest[0], rest[1], rest[2], rest[3]]
    }

    /// Decodes a record. `None` if the words are not a valid record.
    pub fn from_words(words: &[u64; RECORD_WORDS]) -> Option<Record> {
        let [at, task, function, head, rest @ ..] = *words;
        let words = Words {
            kind: head as u8,
            small: (head >> 8) as u8,
            queue: (head >> 16) as u8,
            number: (head >> 32) as u32,
            rest,
        };
        Some(Record { at: Nanos(at), task: TaskId(task), function, kind: EventKind::from_words(&words)? })
    }
}

impl EventKind {
    fn words(&self) -> Words {
        match *self {
            EventKind::Arrived { class, ready } => {
                Words::of(0).small(u8::from(class == Class::BestEffort) | u8::from(ready) << 1)
            }
            EventKind::Ready => Words::of(1),
            EventKind::Unready => Words::of(2),
            EventKind::Preparing => Words::of(3),
            EventKind::Prepared => Words::of(4),
            EventKind::Issued { launch, node, queue, epoch } => {
                Words::of(5).queue(queue).number(node).rest([launch.0, epoch.0.into()])
            }
            EventKind::Ended { launch, node, queue, started, ended, end } => {
                Words::of(6).small(code(&ENDS, &end)).queue(queue).number(node).rest([launch.0, started.0, ended.0])
            }
            EventKind::Raised { epoch, why } => Words::of(7).small(u8::from(why == Raise::Over)).number(epoch.0),
            EventKind::Padded { step, first, blocks } => Words::of(8).number(step).rest([first.into(), blocks.into()]),
            EventKind::Aborting { launch, queue } => Words::of(9).queue(queue).rest([launch.0]),
            EventKind::Hung { launch } => Words::of(10).rest([launch.0]),
            EventKind::HostStep { step } => Words::of(11).number(step),
            EventKind::HostStepDone => Words::of(12),
            EventKind::Cancelled => Words::of(13),
            EventKind::Failed => Words::of(14),
            EventKind::Finished { outcome, preemptions } => {
                Words::of(15).small(code(&OUTCOMES, &outcome)).number(preemptions)
            }
            EventKind::DeviceLost => Words::of(16),
            EventKind::Chunk { unit, launch, first_block, blocks, ended, end } => Words::of(17)
                .small(code(&CHUNK_OUTCOMES, &end))
                .number(unit)
                .rest([launch.0, first_block, blocks.into(), ended.0]),
            EventKind::Batched { batch, requests, rows } => Words::of(18).number(requests).rest([batch.0, rows]),
            EventKind::Placed { device, policy, why, arrived, reload, service, waiting } => {
                let words = Words { queue: policy, ..Words::of(19) };
                words.small(code(&Why::ALL, &why)).number(device).rest([arrived.0, reload.0, service.0, waiting])
            }
            EventKind::Scaled { why, added, resized, removed, load, capacity } => {
                let less = u64::from(resized) << 32 | u64::from(removed);
                Words::of(20).small(code(&scaling::Why::ALL, &why)).number(added).rest([less, load, capacity])
            }
        }
    }

    fn from_words(words: &Words) -> Option<EventKind> {
        let &Words { kind, small, queue, number, rest } = words;
        let (launch, policy, queue) = (LaunchId(rest[0]), queue, QueueId(queue.into()));
        Some(match kind {
            0 => EventKind::Arrived {
                class: if small & 1 == 0 { Class::RealTime } else { Class::BestEffort },
                ready: small & 2 != 0,
            },
            1 => EventKind::Ready,
            2 => EventKind::Unready,
            3 => EventKind::Preparing,
            4 => EventKind::Prepared,
            5 => EventKind::Issued { launch, node: number, queue, epoch: Epoch(rest[1] as u32) },
            6 => {
                let end = *ENDS.get(usize::from(small))?;
                EventKind::Ended { launch, node: number, queue, started: Nanos(rest[1]), ended: Nanos(rest[2]), end }
            }
            7 => {
                EventKind::Raised { epoch: Epoch(number), why: if small == 0 { Raise::Preempted } else { Raise::Over } }
            }
            8 => EventKind::Padded { step: number, first: rest[0] as u32, blocks: rest[1] as u32 },
            9 => EventKind::Aborting { launch, queue },
            10 => EventKind::Hung { launch },
            11 => EventKind::HostStep { step: number },
            12 => EventKind::HostStepDone,
            13 => EventKind::Cancelled,
            14 => EventKind::Failed,
            15 => EventKind::Finished { outcome: *OUTCOMES.get(usize::from(small))?, preemptions: number },
            16 => EventKind::DeviceLost,
            17 => {
                let end = *CHUNK_OUTCOMES.get(usize::from(small))?;
                EventKind::Chunk {
                    unit: number,
                    launch,
                    first_block: rest[1],
                    blocks: rest[2] as u32,
                    ended: Nanos(rest[3]),
                    end,
                }
            }
            18 => EventKind::Batched { batch: TaskId(rest[0]), requests: number, rows: rest[1] },
            19 => EventKind::Placed {
                device: number,
                policy,
                why: *Why::ALL.get(usize::from(small))?,
                arrived: Nanos(rest[0]),
                reload: Nanos(rest[1]),
                service: Nanos(rest[2]),
                waiting: rest[3],
            },
            20 => EventKind::Scaled {
                why: *scaling::Why::ALL.get(usize::from(small))?,
                added: number,
                resized: (rest[0] >> 32) as u32,
                removed: rest[0] as u32,
                load: rest[1],
                capacity: rest[2],
            },
            _ => return None,
        })
    }
}

const _: () = assert!(size_of::<Record>() <= RECORD_WORDS * 8, "a record is a cache line");

#[cfg(test)]
mod tests {
    use super::*;

    /// One event of each kind, with large values, so that a truncated field is noticed.
    pub(crate) fn every_kind() -> Vec<EventKind> {
        let (launch, queue, epoch) = (LaunchId(u64::MAX - 7), QueueId(31), Epoch(u32::MAX));
        let (node, started, ended) = (u32::MAX - 1, Nanos(u64::MAX - 2), Nanos(u64::MAX - 3));
        let mut kinds = vec![
            EventKind::Ready,
            EventKind::Unready,
            EventKind::Preparing,
            EventKind::Prepared,
            EventKind::Issued { launch, node, queue, epoch },
            EventKind::Padded { step: 9, first: u32::MAX, blocks: 8 },
            EventKind::Aborting { launch, queue },
            EventKind::Hung { launch },
            EventKind::HostStep { step: 1 << 20 },
            EventKind::HostStepDone,
            EventKind::Cancelled,
            EventKind::Failed,
            EventKind::DeviceLost,
            EventKind::Batched { batch: TaskId(u64::MAX - 9), requests: u32::MAX - 4, rows: u64::MAX - 5 },
        ];
        kinds.extend(
            [Class::RealTime, Class::BestEffort]
                .map(|class| EventKind::Arrived { class, ready: class == Class::RealTime }),
        );
        kinds.extend(ENDS.map(|end| EventKind::Ended { launch, node, queue, started, ended, end }));
        kinds.extend(Why::ALL.map(|why| EventKind::Placed {
            device: u32::MAX - 6,
            policy: 255,
            why,
            arrived: Nanos(u64::MAX - 7),
            reload: Nanos(u64::MAX - 8),
            service: Nanos(u64::MAX - 9),
            waiting: u64::MAX - 10,
        }));
        kinds.extend(scaling::Why::ALL.map(|why| EventKind::Scaled {
            why,
            added: u32::MAX - 11,
            resized: u32::MAX - 12,
            removed: u32::MAX - 13,
            load: u64::MAX - 14,
            capacity: u64::MAX - 15,
        }));
        kinds.extend([Raise::Preempted, Raise::Over].map(|why| EventKind::Raised { epoch, why }));
        kinds.extend(OUTCOMES.map(|outcome| EventKind::Finished { outcome, preemptions: 3 }));
        kinds.extend(CHUNK_OUTCOMES.map(|end| EventKind::Chunk {
            unit: 511,
            launch,
            first_block: 1 << 40,
            blocks: u32::MAX,
            ended,
            end,
        }));
        kinds
    }

    #[test]
    fn records_survive_as_words() {
        for kind in every_kind() {
            let record = Record { at: Nanos(1), task: TaskId(2), function: 3, kind };
            assert_eq!(Record::from_words(&record.to_words()), Some(record));
        }
    }

    #[test]
    fn words_that_are_no_record_are_refused() {
        let no_reason = 19 | (Why::ALL.len() as u64) << 8;
        for head in [21, 255, no_reason, 20 | 8 << 8, 6 | 4 << 8, 15 | 7 << 8, 17 | 255 << 8] {
            assert_eq!(Record::from_words(&[0, 0, 0, head, 0, 0, 0, 0]), None, "{head:#x}");
        }
    }
}
