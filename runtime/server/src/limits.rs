//! Every bound of the server, with the reason for the number.

use std::time::Duration;

/// Largest body of a request unless configured: a batch of 128 images of 3 × 299 × 299 floats.
pub const BODY_BYTES_MAX_DEFAULT: usize = 128 << 20;

/// Bytes of bodies that are being read or worked on, together. Beyond it requests are refused: the alternative is to be ended by the kernel.
pub const BODIES_IN_FLIGHT_BYTES_MAX: usize = 1 << 30;

/// Connections at one time, per port. Later ones wait in the kernel's backlog until one closes.
pub const CONNECTIONS_MAX: usize = 1024;

/// How long a connection may take to send a request's head, idle time before it included. Longer than the idle time of client pools, so that it is they who close.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(120);

/// How long a body may take to arrive: [`BODY_BYTES_MAX_DEFAULT`] over a line of 100 Mbit/s takes a tenth.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(120);

/// Largest body of a request that carries no tensors.
pub const SMALL_BODY_BYTES_MAX: usize = 1 << 20;

/// Bodies up to this size are decoded on the thread that serves the connection; larger ones would keep it from others for more than about a millisecond.
pub const DECODE_INLINE_BYTES_MAX: usize = 1 << 20;

/// Models in a repository. An index of more is not read by anybody.
pub const MODELS_MAX: usize = 4096;

/// Functions that have metrics of their own, by tenant and class: about forty series each, ten thousand in all, which a scrape takes and a dashboard still shows.
pub const USAGE_FUNCTIONS_MAX: usize = 256;

/// Largest settings file of a model.
pub const SETTINGS_BYTES_MAX: u64 = 1 << 20;

/// Nesting of messages in a `config.pbtxt`: Triton's schema has five.
pub const SETTINGS_DEPTH_MAX: usize = 16;

/// Bytes of compiled models that are kept. The ones not used for longest go first.
pub const CACHE_BYTES_MAX: u64 = 32 << 30;
