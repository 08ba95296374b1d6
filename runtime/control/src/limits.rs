//! All limits of the protocol, with the reason for each number.

/// Largest message: a list of a few thousand functions or objects.
pub const MESSAGE_BYTES_MAX: usize = 4 << 20;

/// Largest body: a few hundred small tensors.
pub const BODY_BYTES_MAX: usize = 4 << 20;

/// Contents up to this size go into the body. For larger ones, creating and passing a memory file
/// is cheaper than copying through the socket.
pub const INLINE_BYTES_MAX: usize = 64 << 10;

/// Most files of a frame. The kernel passes at most 253.
pub const FILES_MAX: usize = 128;

/// Most functions of a call: the engine's limit.
pub const STAGES_MAX: usize = 64;

/// Most calls that a connection can remember. Each takes at most the memory of one message.
pub const PLANS_MAX: usize = 64;
