//! Every bound of the protocol, with the reason for the number.

/// Largest message: a list of some thousand functions or objects.
pub const MESSAGE_BYTES_MAX: usize = 4 << 20;

/// Largest body. A few hundred small tensors.
pub const BODY_BYTES_MAX: usize = 4 << 20;

/// Content up to this size goes into the body. Above, making and passing a memory file costs less
/// than copying through the socket.
pub const INLINE_BYTES_MAX: usize = 64 << 10;

/// Files of a frame. The kernel passes 253 at most.
pub const FILES_MAX: usize = 128;

/// Functions in one chain, as the engine has it.
pub const STAGES_MAX: usize = 64;

/// Chains that a connection may have remembered. Each is a message of its client's.
pub const PLANS_MAX: usize = 64;
