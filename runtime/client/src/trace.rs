//! What happened in a daemon.

use atoll_control::{TraceFunction, TracePiece};
use atoll_trace::{FunctionName, RECORD_WORDS, Record};

/// A piece of what happened.
#[derive(Clone, Debug)]
pub struct Trace {
    /// In the order in which the daemon wrote it.
    pub records: Vec<Record>,
    /// Where to read on.
    pub next: u64,
    /// Whether there is more already.
    pub more: bool,
    /// Records of anybody that were overwritten before this was asked for.
    pub lost: u64,
    /// Blocks that compute units ran for anybody and that were never recorded, in chunks, since the
    /// daemon started.
    pub chunks_lost: u64,
    /// Functions that the records name, those left out that an earlier piece named.
    pub functions: Vec<(u64, FunctionName)>,
    /// Whether each tenant has compute units and device queues of its own.
    pub separate: bool,
    /// The device.
    pub device: String,
    /// Its compute units.
    pub compute_units: u32,
    /// The names of all devices of the daemon.
    pub devices: Vec<String>,
}

impl Trace {
    /// `None` where the bytes are no records.
    pub(crate) fn new(piece: TracePiece, bytes: &[u8]) -> Option<Trace> {
        let (records, rest) = bytes.as_chunks::<{ RECORD_WORDS * 8 }>();
        let records = records.iter().map(record).collect::<Option<Vec<Record>>>().filter(|_| rest.is_empty())?;
        let TracePiece {
            next,
            more,
            lost,
            chunks_lost,
            functions,
            separate,
            device,
            compute_units,
            devices,
            records: _,
        } = piece;
        // A daemon of before there were several says nothing of them.
        let devices = if devices.is_empty() { vec![device.clone()] } else { devices };
        let named = |TraceFunction { number, tenant, name, class, nodes }| {
            (number, FunctionName { tenant: tenant.to_string(), name, class, nodes })
        };
        let functions = functions.into_iter().map(named).collect();
        Some(Trace { records, next, more, lost, chunks_lost, functions, separate, device, compute_units, devices })
    }
}

fn record(bytes: &[u8; RECORD_WORDS * 8]) -> Option<Record> {
    let words = bytes.as_chunks::<8>().0;
    Record::from_words(&std::array::from_fn(|at| u64::from_le_bytes(words[at])))
}
