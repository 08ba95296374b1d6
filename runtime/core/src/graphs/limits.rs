//! Limits of graphs, each with the reason for its value.

/// Stages of a graph. Published pipelines have two to ten; a plan of a request visits each stage.
pub const STAGES_MAX: usize = 32;

/// Inputs or outputs of a graph or a stage. The largest models have a few dozen.
pub const TENSORS_MAX: usize = 256;

/// Bytes of the name of a graph, a stage or a tensor: what fits a line of a report.
pub const NAME_BYTES_MAX: usize = 256;

/// Kinds of devices of one cost table. Machines have two or three.
pub const KINDS_MAX: usize = 16;

/// Assignments of stages to kinds of devices, r^n: 3 kinds and 15 stages. What is kept of them is
/// far less, but a graph that needs more should be two graphs.
pub const ASSIGNMENTS_MAX: u64 = 1 << 24;

/// Partial assignments that are kept while a graph is planned. Each is compared with the others, so
/// this bounds the time of a deployment to seconds.
pub const PARTIALS_MAX: usize = 1 << 12;

/// The longest deadline, relative to the arrival: a day. Beyond it, it is no deadline.
pub const DEADLINE_NS_MAX: u64 = 24 * 3600 * 1_000_000_000;

/// Items of one batch.
pub const BATCH_MAX: u32 = 1024;

/// Reservations of one node that have not ended. A decision may search all of them; a request
/// behind so many others would wait longer than clients do.
pub const RESERVATIONS_MAX: usize = 512;

/// Placements of a graph that are remembered for reuse. A decision tries each of them.
pub const PLACEMENTS_MAX: usize = 8;

/// Largest sample of assignments that a decision tries.
pub const SAMPLE_MAX: usize = 64;

/// Reservations that are looked at to find work for an idle node.
pub const START_SCAN_MAX: usize = 32;
