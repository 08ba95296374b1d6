//! The trace of the pool: the device of each request with the reason, and the decisions of the
//! autoscaler. It is always on, like the traces of the engines.

use super::requests::POOLED;
use atoll_core::placement::{FunctionId, Grounds, PLACEMENTS, RequestId};
use atoll_core::scaling::Decision;
use atoll_core::{DeviceId, Nanos, TaskId};
use atoll_engine::{FunctionName, TraceBatch};
use atoll_trace::{Cursor, EventKind, Record, Ring};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// The name of this trace in the list of all traces.
pub(crate) const POOL: &str = "pool";

/// Records that are kept: 1 MiB, some seconds of a busy daemon.
const RECORDS_MAX: usize = 1 << 14;

/// Largest number of records that one read returns.
const BATCH_MAX: usize = 1 << 12;

/// Removed functions whose names are kept for older records.
const GONE_MAX: usize = 256;

/// The latest records.
#[derive(Debug)]
pub(super) struct Recorder {
    ring: Ring,
    /// Time 0 of the pool's clock, on the clock of records.
    started: Nanos,
    /// The index of the policy in [`PLACEMENTS`].
    policy: u8,
    functions: BTreeMap<u64, Arc<FunctionName>>,
    /// Removed functions, the oldest first.
    gone: VecDeque<u64>,
}

impl Recorder {
    pub(super) fn new(started: Nanos, policy: &str) -> Recorder {
        let policy = PLACEMENTS.iter().position(|entry| entry.name == policy).unwrap_or(usize::from(u8::MAX));
        Recorder {
            ring: Ring::new(RECORDS_MAX),
            started,
            policy: policy as u8,
            functions: BTreeMap::new(),
            gone: VecDeque::new(),
        }
    }

    pub(super) fn add_function(&mut self, function: FunctionId, name: FunctionName) {
        self.functions.insert(number(function), Arc::new(name));
    }

    pub(super) fn remove_function(&mut self, function: FunctionId) {
        self.gone.push_back(number(function));
        if self.gone.len() > GONE_MAX
            && let Some(oldest) = self.gone.pop_front()
        {
            self.functions.remove(&oldest);
        }
    }

    /// Records the device of a request and the reason.
    pub(super) fn note(
        &mut self,
        now: Nanos,
        request: Option<RequestId>,
        function: FunctionId,
        device: DeviceId,
        grounds: Grounds,
    ) {
        let on_clock = |time: Nanos| Nanos(self.started.0.saturating_add(time.0));
        let Grounds { why, reload, service, arrived, waiting } = grounds;
        let kind = EventKind::Placed {
            device: device.0.into(),
            policy: self.policy,
            why,
            arrived: on_clock(arrived),
            reload,
            service,
            waiting: waiting as u64,
        };
        let task = request.map_or(Record::NO_TASK, |request| TaskId(POOLED.first_id() + request.0));
        self.ring.push(Record { at: on_clock(now), task, function: number(function), kind });
    }

    /// Records a decision of the autoscaler about the instances of a function.
    pub(super) fn note_scaled(&mut self, now: Nanos, function: FunctionId, decision: &Decision) {
        let Decision { change, why, load, capacity, .. } = decision;
        let count = |instances: usize| u32::try_from(instances).unwrap_or(u32::MAX);
        let kind = EventKind::Scaled {
            why: *why,
            added: count(change.add.len()),
            resized: count(change.resize.len()),
            removed: count(change.remove.len()),
            load: *load,
            capacity: *capacity,
        };
        let at = Nanos(self.started.0.saturating_add(now.0));
        self.ring.push(Record { at, task: Record::NO_TASK, function: number(function), kind });
    }

    /// The records from position `from` on; from now on if it is `None`.
    pub(super) fn batch(&self, from: Option<u64>) -> TraceBatch {
        let (records, lost, next) = self.ring.since(from.map_or(self.ring.end(), Cursor), BATCH_MAX);
        let named: BTreeSet<u64> = records.iter().map(|record| record.function).collect();
        let functions = named.into_iter().filter_map(|id| Some((id, Arc::clone(self.functions.get(&id)?))));
        TraceBatch {
            functions: functions.collect(),
            next: next.0,
            more: next < self.ring.end(),
            lost,
            chunks_lost: 0,
            separate: false,
            device: POOL.into(),
            compute_units: 0,
            records,
        }
    }
}

/// The number of a function in records. It differs from the ids that engines assign.
fn number(function: FunctionId) -> u64 {
    POOLED.first_id() + u64::from(function.0)
}
