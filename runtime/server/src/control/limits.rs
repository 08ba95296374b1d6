//! Limits of the control socket.

use std::time::Duration;

/// Most open connections to the control socket. If there are as many, one that waits for a request
/// makes room for a further one.
pub const CONTROL_CONNECTIONS_MAX: usize = 1024;

/// Places for connections of root and of the daemon's own user only: for a few commands and monitors
/// of an operator at a time.
pub const CONTROL_CONNECTIONS_FOR_OPERATORS: usize = 32;

/// Most open control connections of one user, so that a user cannot block the others.
pub const CONTROL_CONNECTIONS_PER_USER_MAX: usize = 256;

/// Most file descriptors in frames of one user that arrive or are being answered: eight full frames,
/// or four for each connection. The calls of a tenant's futures have at most as many. Without this
/// limit, frames that never end could take all descriptors of the daemon.
pub const CONTROL_FILES_PER_USER_MAX: usize = 1024;

/// Longest wait for the next part of a frame, and for a client to read more of an answer. A second
/// is already long for a local socket.
pub const FRAME_TIMEOUT: Duration = Duration::from_secs(30);

/// Largest object and largest bundle that the control socket accepts.
pub const CONTENT_BYTES_MAX: u64 = 16 << 30;

/// Default for the bytes of objects that are kept in memory.
pub const OBJECT_MEMORY_BYTES_DEFAULT: u64 = 1 << 30;

/// Most bytes of the memory files of earlier answers that the clients of a tenant hold: a batch of
/// large outputs for each of eight clients. An answer beyond it is refused, unless it is the only one.
pub const HELD_BYTES_PER_TENANT_MAX: u64 = 1 << 30;

/// Most memory files of earlier answers that the clients of a tenant hold. Each takes a descriptor of
/// the daemon.
pub const HELD_FILES_PER_TENANT_MAX: usize = 1024;

/// Bytes of such files beyond which the daemon asks the system which of them clients have closed,
/// before each further one. Their memory is freed then.
pub const HELD_CHECK_BYTES: u64 = 64 << 20;

/// Interval at which the daemon asks in any case.
pub const HELD_CHECK_INTERVAL: Duration = Duration::from_secs(1);
