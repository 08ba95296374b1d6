//! The trace recorder: every scheduler event and action, and the chunks that compute units ran, in
//! one ring.
//!
//! It is always on: a record costs some nanoseconds, compared with microseconds for the event, and
//! a problem can be examined after it happened. Readers never block the engine; a reader that is
//! too slow learns how many records it missed.
//!
//! Chunk records come from compute units, possibly in an untrusted process. A chunk record is
//! accepted only if it names a launch that was issued before the chunk began, the launch belongs to
//! a function of that process, and the chunk ended before now. So no process can write into another
//! tenant's trace.

use crate::clock;
use crate::function::{Function, FunctionId};
use crate::limits::{
    TRACE_BATCH_MAX, TRACE_CHUNKS_MAX, TRACE_FUNCTIONS_GONE_MAX, TRACE_LAUNCHES_MAX, TRACE_RECORDS_MAX,
};
use atoll_core::{LaunchId, Nanos, TaskId};
use atoll_device::{ChunkEnd, ChunkRecord, Device};
use atoll_trace::{ChunkOutcome, Cursor, EventKind, FunctionName, Record, Ring};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// Records returned by one read of the trace.
#[derive(Clone, Debug)]
pub struct TraceBatch {
    /// The records, in the order in which they were written.
    pub records: Vec<Record>,
    /// The position to continue reading from.
    pub next: u64,
    /// Whether more records are available now.
    pub more: bool,
    /// Records that were overwritten before this read.
    pub lost: u64,
    /// Chunk records that were dropped or rejected since the engine started.
    pub chunks_lost: u64,
    /// Names of the functions in the records.
    pub functions: Vec<(u64, Arc<FunctionName>)>,
    /// Whether each tenant has its own compute units and device queues.
    pub separate: bool,
    /// Name of the device.
    pub device: String,
    /// Number of its compute units.
    pub compute_units: u32,
}

#[derive(Debug)]
pub(crate) struct Recorder {
    ring: Ring,
    /// Where in the ring recent launches were issued, by the lower bits of their ids.
    issued: Box<[Cursor]>,
    /// Names of functions that records may refer to, by id.
    functions: BTreeMap<u64, Arc<FunctionName>>,
    /// Unloaded functions, oldest first.
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

    /// Adds the name of a function.
    pub(crate) fn add_function(&mut self, function: &Function) {
        let nodes = function.graph().nodes.iter().map(|node| node.name.clone()).collect();
        let (tenant, name) = (function.key.tenant.to_string(), function.key.name.clone());
        self.functions.insert(function.id.0, Arc::new(FunctionName { tenant, name, class: function.class, nodes }));
    }

    /// Marks a function as unloaded; its name is kept for a while.
    pub(crate) fn remove_function(&mut self, function: FunctionId) {
        self.gone.push_back(function.0);
        if self.gone.len() > TRACE_FUNCTIONS_GONE_MAX
            && let Some(oldest) = self.gone.pop_front()
        {
            self.functions.remove(&oldest);
        }
    }

    /// Adds a record.
    pub(crate) fn note(&mut self, at: Nanos, task: TaskId, function: Option<FunctionId>, kind: EventKind) {
        if let EventKind::Issued { launch, .. } = kind {
            let slot = self.slot(launch);
            self.issued[slot] = self.ring.end();
        }
        self.ring.push(Record { at, task, function: function.map_or(Record::NO_FUNCTION, |id| id.0), kind });
    }

    /// Adds a record with the current time.
    pub(crate) fn note_now(&mut self, task: TaskId, function: Option<FunctionId>, kind: EventKind) {
        self.note(clock::now(), task, function, kind);
    }

    /// The records from a position on, or from now on.
    pub(crate) fn batch(&mut self, from: Option<u64>, device: &mut dyn Device) -> TraceBatch {
        let mut now = clock::now();
        let lost = device.take_chunks(TRACE_CHUNKS_MAX, &mut |domain, chunk| {
            // The chunk may have ended after `now` was taken.
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
        let kind = EventKind::Chunk {
            unit: chunk.unit,
            launch: chunk.launch,
            first_block: chunk.first_block,
            blocks: u32::try_from(chunk.blocks).unwrap_or(u32::MAX),
            ended: Nanos(chunk.ended_ns),
            end: match chunk.end {
                ChunkEnd::Finished => ChunkOutcome::Finished,
                ChunkEnd::Stopped => ChunkOutcome::Stopped,
                ChunkEnd::Failed => ChunkOutcome::Failed,
                ChunkEnd::Aborted => ChunkOutcome::Aborted,
                ChunkEnd::Interrupted => ChunkOutcome::Interrupted,
            },
        };
        self.ring.push(Record { at: Nanos(chunk.began_ns), task, function, kind });
    }

    /// The record of a recently issued launch.
    fn issued(&self, launch: LaunchId) -> Option<&Record> {
        let record = self.ring.get(self.issued[self.slot(launch)])?;
        matches!(record.kind, EventKind::Issued { launch: found, .. } if found == launch).then_some(record)
    }

    fn slot(&self, launch: LaunchId) -> usize {
        launch.0 as usize % self.issued.len()
    }
}

#[cfg(test)]
mod tests;
