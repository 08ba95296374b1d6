//! Every limit of the protocol.

/// The version of the protocol; client and server must have the same.
pub const VERSION: u32 = 1;

/// Most bytes of the records of one message.
pub const MESSAGE_BYTES_MAX: u64 = 128 << 20;

/// Most bytes of one module's image.
pub const IMAGE_BYTES_MAX: u64 = 64 << 20;

/// Most bytes of images that a session keeps on the server.
pub const IMAGES_BYTES_MAX: u64 = 512 << 20;

/// From this size on a client sends its buffer without waiting for an answer.
pub const BUFFER_BYTES: usize = 4 << 20;

/// Most bytes of one copy to the device in one record; longer copies are several records.
pub const COPY_BYTES_MAX: usize = 4 << 20;

/// Bytes that the server copies back from the device at once.
pub const OUTPUT_BYTES: usize = 1 << 20;

/// Most bytes of the answer beside copies back: facts about a kernel, or a compiler's log.
pub const ANSWER_BYTES_MAX: u32 = 64 << 10;

/// Most bytes of facts about a device.
pub const FACTS_BYTES_MAX: u32 = 16 << 10;

/// Most bytes of a name of a kernel or variable.
pub const NAME_BYTES_MAX: usize = 16 << 10;

/// Most bytes of a kernel's parameters: the driver's own limit.
pub const PARAMS_BYTES_MAX: usize = 32_764;

/// Most parameters of a kernel.
pub const PARAMS_MAX: usize = 4096;

/// Most streams of a session.
pub const STREAMS_MAX: usize = 256;

/// Most events of a session.
pub const EVENTS_MAX: usize = 1 << 16;

/// Most modules of a session.
pub const MODULES_MAX: usize = 4096;

/// Most kernels of a session.
pub const KERNELS_MAX: usize = 1 << 16;

/// Most allocations and variables of a session.
pub const ALLOCATIONS_MAX: usize = 1 << 22;

/// Alignment of allocations in bytes, as the driver's.
pub const ALIGN_BYTES: u64 = 512;

/// Most rows of a fill whose rows are apart.
pub const ROWS_MAX: u64 = 1 << 20;
