//! Recorded events of a daemon.

use atoll_control::{TraceFunction, TracePiece};
use atoll_trace::{FunctionName, RECORD_WORDS, Record};

/// A batch of recorded events.
#[derive(Clone, Debug)]
pub struct Trace {
    /// The records, in the order in which the daemon wrote them.
    pub records: Vec<Record>,
    /// Position of the next batch.
    pub next: u64,
    /// Whether more records are already available.
    pub more: bool,
    /// Records (of all tenants) that were overwritten before they were read.
    pub lost: u64,
    /// Chunks of blocks (of all tenants) that compute units ran without recording them, since the
    /// daemon started.
    pub chunks_lost: u64,
    /// Functions that the records refer to, except those of earlier batches.
    pub functions: Vec<(u64, FunctionName)>,
    /// Whether each tenant has its own compute units and device queues.
    pub separate: bool,
    /// Name of the device.
    pub device: String,
    /// Number of its compute units.
    pub compute_units: u32,
    /// Names of all devices of the daemon, indexed by device number.
    pub devices: Vec<String>,
}

impl Trace {
    /// Decodes a batch; `None` if the bytes are not valid records.
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
        // Older daemons do not send the list of devices.
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
