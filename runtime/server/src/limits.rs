//! Every bound of the server, with the reason for the number.

use std::time::Duration;

/// Largest body of a request unless configured: a batch of 128 images of 3 × 299 × 299 floats.
pub const BODY_BYTES_MAX_DEFAULT: usize = 128 << 20;

/// Bytes of bodies that are being read or worked on, together. Beyond it requests are refused: the
/// alternative is to be ended by the kernel.
pub const BODIES_IN_FLIGHT_BYTES_MAX: usize = 1 << 30;

/// Connections at one time, per port, where the limit of open files allows it
/// ([`crate::ConnectionLimits`]). Each costs a descriptor and about 20 KiB.
pub const CONNECTIONS_MAX: usize = 8192;

/// How long the head of a request may take from its first byte.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a connection stays open on which nothing moves. Longer than the idle time of client
/// pools, so that it is they who close.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(120);

/// How long a body may pause.
pub const BODY_PAUSE_MAX: Duration = Duration::from_secs(10);

/// How long a body may take to arrive: [`BODY_BYTES_MAX_DEFAULT`] over a line of 100 Mbit/s takes a
/// tenth.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(120);

/// Part of [`BODIES_IN_FLIGHT_BYTES_MAX`] that only bodies up to [`SMALL_BODY_BYTES_MAX`] may take,
/// so that large ones never keep small ones out.
pub const SMALL_BODIES_IN_FLIGHT_BYTES: usize = 64 << 20;

/// Largest body of a request that carries no tensors, and of one that counts as small.
pub const SMALL_BODY_BYTES_MAX: usize = 1 << 20;

/// Bodies up to this size are decoded on the thread that serves the connection; larger ones would
/// keep it from others for more than about a millisecond.
pub const DECODE_INLINE_BYTES_MAX: usize = 1 << 20;

/// Models in a repository. An index of more is not read by anybody.
pub const MODELS_MAX: usize = 4096;

/// Functions that have metrics of their own, by tenant and class: about forty series each, ten
/// thousand in all, which a scrape takes and a dashboard still shows.
pub const USAGE_FUNCTIONS_MAX: usize = 256;

/// Largest settings file of a model.
pub const SETTINGS_BYTES_MAX: u64 = 1 << 20;

/// Nesting of messages in a `config.pbtxt`: Triton's schema has five.
pub const SETTINGS_DEPTH_MAX: usize = 16;

/// Bytes of compiled models that are kept. The ones not used for longest go first.
pub const CACHE_BYTES_MAX: u64 = 32 << 30;

/// Largest configuration of the control socket.
pub const CONFIGURATION_BYTES_MAX: u64 = 1 << 20;

/// Longest name of a deployed function in bytes: what still fits a label of a metric and a column
/// of a table.
pub const FUNCTION_NAME_BYTES_MAX: usize = 128;

/// Connections to the control socket at one time. Later ones wait until one closes.
pub const CONTROL_CONNECTIONS_MAX: usize = 1024;

/// Connections of one user among them, so that nobody keeps the others out.
pub const CONTROL_CONNECTIONS_PER_USER_MAX: usize = 256;

/// How long the rest of a frame may take whose first bytes have arrived, and an answer that is
/// being read: over a socket of this machine a second is long.
pub const FRAME_TIMEOUT: Duration = Duration::from_secs(30);

/// Largest object and largest bundle that are taken over the control socket.
pub const CONTENT_BYTES_MAX: u64 = 16 << 30;

/// Bytes of objects that are kept in memory.
pub const OBJECT_MEMORY_BYTES_DEFAULT: u64 = 1 << 30;

/// Bytes of names of nodes in one answer of a trace; functions beyond come without. Those of a
/// hundred large models, and a quarter of what a message may have.
pub(crate) const TRACE_NODES_BYTES_MAX: usize = 1 << 20;
