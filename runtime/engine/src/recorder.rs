//! What the engine remembers of what it did: every event and every action, and what compute units
//! ran, in one ring.
//!
//! It is always on: a record costs some nanoseconds beside the microseconds of what it tells of,
//! and whoever asks why something was slow a moment ago finds it still there. Nobody
//! who reads holds anything up; a reader that is too slow is told how many records it missed.
//!
//! Chunks come from compute units, maybe in a process that nobody trusts. One is taken only if it
//! names a launch that was issued before it began, of a function that belongs to that process, and
//! ended before now: so nobody writes into another tenant's picture.

use crate::clock;
use crate::function::{Function, FunctionId};
use crate::limits::{
    TRACE_BATCH_MAX, TRACE_CHUNKS_MAX, TRACE_FUNCTIONS_GONE_MAX, TRACE_LAUNCHES_MAX, TRACE_RECORDS_MAX,
};
use atoll_core::{LaunchId, Nanos, TaskId};
use atoll_device::{ChunkEnd, ChunkRecord, Device};
use atoll_trace::{ChunkFate, Cursor, FunctionName, Record, Ring, What};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// Records that an engine gives out at a time.
#[derive(Clone, Debug)]
pub struct TraceBatch {
    /// The records, in the order in which they were written.
    pub records: Vec<Record>,
    /// Where to read on.
    pub next: u64,
    /// Whether there are more already.
    pub more: bool,
    /// Records that were overwritten before this was asked for.
    pub lost: u64,
    /// Chunks of compute units that were never recorded, since the engine started.
    pub chunks_lost: u64,
    /// The functions that the records name.
    pub functions: Vec<(u64, Arc<FunctionName>)>,
    /// Whether each tenant has compute units and device queues of its own.
    pub separate: bool,
    /// The device.
    pub device: String,
    /// Its compute units.
    pub compute_units: u32,
}

#[derive(Debug)]
pub(crate) struct Recorder {
    ring: Ring,
    /// Where in the ring the launches of late were issued, by the lower bits of their ids.
    issued: Box<[Cursor]>,
    /// Functions that records may name, by their ids.
    functions: BTreeMap<u64, Arc<FunctionName>>,
    /// Those that are no longer loaded, the longest gone first.
    gone: VecDeque<u64>,
    chunks_lost: u64,
}

impl Recorder {
    pub(crate) fn new() -> Recorder {
        Recorder {
            ring: Ring::new(TRACE_RECORDS_MAX),
            issued: vec![Cursor(u64::MAX); TRACE_LAUNCHES_MAX].into(),
            functions: BTreeMap::new(),
            gone: VecDeque::new(),
            chunks_lost: 0,
        }
    }

    /// A function may be named from now on.
    pub(crate) fn add_function(&mut self, function: &Function) {
        let nodes = function.graph().nodes.iter().map(|node| node.name.clone()).collect();
        let (tenant, name) = (function.key.tenant.to_string(), function.key.name.clone());
        self.functions.insert(function.id.0, Arc::new(FunctionName { tenant, name, class: function.class, nodes }));
    }

    /// A function is gone; its name stays for a while.
    pub(crate) fn remove_function(&mut self, function: FunctionId) {
        self.gone.push_back(function.0);
        if self.gone.len() > TRACE_FUNCTIONS_GONE_MAX
            && let Some(oldest) = self.gone.pop_front()
        {
            self.functions.remove(&oldest);
        }
    }

    /// Something happened.
    pub(crate) fn note(&mut self, at: Nanos, task: TaskId, function: Option<FunctionId>, what: What) {
        if let What::Issued { launch, .. } = what {
            let slot = self.slot(launch);
            self.issued[slot] = self.ring.end();
        }
        self.ring.push(Record { at, task, function: function.map_or(Record::NO_FUNCTION, |id| id.0), what });
    }

    /// Something happened just now.
    pub(crate) fn note_now(&mut self, task: TaskId, function: Option<FunctionId>, what: What) {
        self.note(clock::now(), task, function, what);
    }

    /// The records from a place on, or from now on.
    pub(crate) fn batch(&mut self, from: Option<u64>, device: &mut dyn Device) -> TraceBatch {
        let mut now = clock::now();
        let lost = device.take_chunks(TRACE_CHUNKS_MAX, &mut |domain, chunk| {
            // It may have ended since we began to take them.
            now = if chunk.ended_ns <= now.0 { now } else { clock::now() };
            self.note_chunk(domain, &chunk, now);
        });
        self.chunks_lost = self.chunks_lost.saturating_add(lost);
        let from = from.map_or(self.ring.end(), Cursor);
        let (records, lost, next) = self.ring.since(from, TRACE_BATCH_MAX);
        let named: BTreeSet<u64> = records.iter().map(|record| record.function).collect();
        let functions = named.into_iter().filter_map(|id| Some((id, Arc::clone(self.functions.get(&id)?)))).collect();
        let (info, separate) = (device.info(), device.executors().started > 0);
        let (device, compute_units) = (info.name.clone(), info.compute_units);
        TraceBatch {
            records,
            next: next.0,
            more: next < self.ring.end(),
            lost,
            chunks_lost: self.chunks_lost,
            functions,
            separate,
            device,
            compute_units,
        }
    }

    fn note_chunk(&mut self, domain: Option<&str>, chunk: &ChunkRecord, now: Nanos) {
        let issued = self.issued(chunk.launch).filter(|issued| {
            let is_of_domain = domain
                .is_none_or(|domain| self.functions.get(&issued.function).is_some_and(|name| name.tenant == domain));
            is_of_domain && issued.at.0 <= chunk.began_ns && chunk.began_ns <= chunk.ended_ns && chunk.ended_ns <= now.0
        });
        let Some(&Record { task, function, .. }) = issued else {
            self.chunks_lost = self.chunks_lost.saturating_add(1);
            return;
        };
        let what = What::Chunk {
            unit: chunk.unit,
            launch: chunk.launch,
            first_block: chunk.first_block,
            blocks: u32::try_from(chunk.blocks).unwrap_or(u32::MAX),
            ended: Nanos(chunk.ended_ns),
            end: match chunk.end {
                ChunkEnd::Finished => ChunkFate::Finished,
                ChunkEnd::Stopped => ChunkFate::Stopped,
                ChunkEnd::Failed => ChunkFate::Failed,
                ChunkEnd::Aborted => ChunkFate::Aborted,
                ChunkEnd::Interrupted => ChunkFate::Interrupted,
            },
        };
        self.ring.push(Record { at: Nanos(chunk.began_ns), task, function, what });
    }

    /// The record of a launch that was issued not long ago.
    fn issued(&self, launch: LaunchId) -> Option<&Record> {
        let record = self.ring.get(self.issued[self.slot(launch)])?;
        matches!(record.what, What::Issued { launch: found, .. } if found == launch).then_some(record)
    }

    fn slot(&self, launch: LaunchId) -> usize {
        launch.0 as usize % self.issued.len()
    }
}

#[cfg(test)]
mod tests;
