//! Every limit of the protocol.

/// The version of the protocol; client and server must have the same.
pub const VERSION: u32 = 5;

/// Maximum size of a token in bytes.
pub const TOKEN_BYTES_MAX: u32 = 1024;

/// Maximum size of the terms of a greeting in bytes.
pub const TERMS_BYTES_MAX: u32 = 1024;

/// Maximum size of the records of one message in bytes.
pub const MESSAGE_BYTES_MAX: u64 = 128 << 20;

/// Maximum size of one module's image in bytes.
pub const IMAGE_BYTES_MAX: u64 = 64 << 20;

/// Smallest image, in bytes, for which a client asks whether the server has it before sending it.
/// Sending a smaller image takes less time than asking.
pub const IMAGE_ASK_BYTES: usize = 64 << 10;

/// Maximum size in bytes of the images that a session keeps on the server.
pub const IMAGES_BYTES_MAX: u64 = 512 << 20;

/// Maximum number of unacknowledged bytes of each side of a session over the network. The sender
/// keeps them, to send them again on another connection; the receiver queues at most as many. With a
/// round-trip time of 20 ms, this allows 50 MB/s.
pub const WINDOW_BYTES: usize = 1 << 20;

/// A side of a session over the network acknowledges after it has passed on this many bytes.
pub const ACKNOWLEDGE_BYTES: u64 = 256 << 10;

/// Maximum size in bytes of a segment of a session over the network.
pub const SEGMENT_BYTES_MAX: u32 = 64 << 10;

/// Buffer size in bytes from which a client sends without waiting for an answer.
pub const BUFFER_BYTES: usize = 4 << 20;

/// Maximum size of the copy to the device in one record, in bytes. A longer copy is several
/// records.
pub const COPY_BYTES_MAX: usize = 4 << 20;

/// Size in bytes of the parts in which the server copies from the device.
pub const OUTPUT_BYTES: usize = 1 << 20;

/// Maximum size in bytes of an answer without copies to the host: facts about a kernel, or a
/// compiler's log.
pub const ANSWER_BYTES_MAX: u32 = 64 << 10;

/// Maximum size of the facts about a device in bytes.
pub const FACTS_BYTES_MAX: u32 = 16 << 10;

/// Maximum size of the name of a kernel or variable in bytes.
pub const NAME_BYTES_MAX: usize = 16 << 10;

/// Maximum size of a kernel's parameters in bytes: the driver's own limit.
pub const PARAMS_BYTES_MAX: usize = 32_764;

/// Maximum number of parameters of a kernel.
pub const PARAMS_MAX: usize = 4096;

/// Maximum number of streams of a session.
pub const STREAMS_MAX: usize = 256;

/// Maximum number of events of a session.
pub const EVENTS_MAX: usize = 1 << 16;

/// Maximum number of modules of a session.
pub const MODULES_MAX: usize = 4096;

/// Maximum number of kernels of a session.
pub const KERNELS_MAX: usize = 1 << 16;

/// Maximum number of allocations and variables of a session.
pub const ALLOCATIONS_MAX: usize = 1 << 22;

/// Alignment of allocations in bytes, the same as the driver's.
pub const ALIGN_BYTES: u64 = 512;

/// Maximum number of rows of a fill with a pitch.
pub const ROWS_MAX: u64 = 1 << 20;

/// Maximum number of graphs of a program and of their nodes, with those of executable graphs. They
/// are in the memory of the program.
pub const GRAPH_NODES_MAX: usize = 1 << 18;

/// Maximum number of levels of child graphs.
pub const GRAPH_DEPTH_MAX: usize = 32;

/// Maximum size in bytes of a file with a recorded session. It is read into memory.
pub const RECORDING_BYTES_MAX: u64 = 4 << 30;

/// Smallest number of calls of a stored function: a copy to the device, a launch and a copy back.
pub const STORED_CALLS_MIN: usize = 3;

/// Maximum number of stored functions of a session.
pub const STORED_FUNCTIONS_MAX: u32 = 64;

/// Maximum size in bytes of a session's stored functions, their records and the places of their
/// inputs: eight of the largest that a client sends. The client has them, too, with those of calls
/// that may become one.
pub const STORED_BYTES_MAX: u64 = 32 << 20;

/// Maximum number of inputs of a stored function.
pub const STORED_INPUTS_MAX: usize = 1 << 16;

/// Maximum number of messages with different kinds or sizes of calls that a client remembers.
pub const STORED_SHAPES_MAX: usize = 256;

/// Maximum size in bytes of what a server tells a client about stored functions.
pub const OFFER_BYTES_MAX: u32 = 64 << 10;

/// Maximum size in bytes of the places of the inputs of a function that a server keeps for later
/// sessions.
pub const SHAPE_BYTES_MAX: usize = 16 << 10;

/// Smallest and largest number of equal runs after which a client may be told to store a function.
pub const STORED_AFTER: (u32, u32) = (2, 1000);

/// Maximum number of lines about stored functions that a client prints.
pub const STORED_NOTES_MAX: usize = 16;
