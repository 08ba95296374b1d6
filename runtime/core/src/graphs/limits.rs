//! Limits of graphs, each with the reason for its value.

/// Stages of a graph. Published pipelines have two to ten. Planning a request visits each stage.
pub const STAGES_MAX: usize = 32;

/// Inputs or outputs of a graph or a stage. The largest models have a few dozen.
pub const TENSORS_MAX: usize = 256;

/// Bytes of the name of a graph, a stage or a tensor, so that it fits on a line of a report.
pub const NAME_BYTES_MAX: usize = 256;

/// Kinds of devices of one cost table. Machines have two or three.
pub const KINDS_MAX: usize = 16;

/// Assignments of n stages to r kinds of devices, r^n: enough for 3 kinds and 15 stages. Only the
/// optimal ones are stored. A graph that needs more should be split in two.
pub const ASSIGNMENTS_MAX: u64 = 1 << 24;

/// Partial assignments that are kept while a graph is planned. Each is compared with all others;
/// this limit keeps a deployment within seconds.
pub const PARTIALS_MAX: usize = 1 << 12;

/// The longest deadline of a graph, relative to the arrival: a day.
pub const DEADLINE_NS_MAX: u64 = 24 * 3600 * 1_000_000_000;

/// Requests of one batch.
pub const BATCH_MAX: u32 = 1024;

/// Reservations of one node that have not ended. A decision may search all of them, and a request
/// behind this many others would wait longer than clients accept.
pub const RESERVATIONS_MAX: usize = 512;

/// Placements of earlier requests that are kept per graph for reuse. A decision tries each of them.
pub const PLACEMENTS_MAX: usize = 8;

/// Assignments that a decision tries at most.
pub const SAMPLE_MAX: usize = 64;

/// Reservations that are examined to find work for an idle node.
pub const START_SCAN_MAX: usize = 32;
