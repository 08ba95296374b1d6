//! Limits of CPU stages, with the reason for each number.

use std::time::Duration;

/// Largest file of a program in bytes: a WASM module, or a `tokenizer.json`. It travels with the
/// manifest of its graph in one message of the control protocol.
pub const PROGRAM_FILE_BYTES_MAX: usize = 5 << 19;

/// Largest input or output of a call in bytes, all tensors together: an image of
/// [`IMAGE_PIXELS_MAX`] pixels, and some more.
pub const CALL_BYTES_MAX: usize = 64 << 20;

/// Largest image in pixels that is decoded or resized. Its RGB bytes take 48 MiB.
pub const IMAGE_PIXELS_MAX: u64 = 16 << 20;

/// Largest output of a resize in pixels. Its three planes of 32-bit numbers take 48 MiB.
pub const RESIZED_PIXELS_MAX: u64 = 4 << 20;

/// Longest text that is tokenised, in bytes.
pub const TEXT_BYTES_MAX: usize = 1 << 20;

/// Instructions that a WASM module may execute in a call if its manifest states no number: about a
/// second.
pub const FUEL_DEFAULT: u64 = 200_000_000;

/// Most instructions that a manifest may allow a WASM module in a call.
pub const FUEL_MAX: u64 = 10_000_000_000;

/// Linear memory of a WASM module in bytes if its manifest states no number.
pub const WASM_BYTES_DEFAULT: u64 = 64 << 20;

/// Most linear memory that a manifest may allow a WASM module, in bytes.
pub const WASM_BYTES_MAX: u64 = 256 << 20;

/// Most elements in each table of a WASM module.
pub const WASM_TABLE_ELEMENTS_MAX: usize = 64 << 10;

/// Most nested calls in a WASM module.
pub const WASM_CALLS_MAX: usize = 1024;

/// Limit on the private memory of a stage process, in bytes. A WASM memory that grows exists twice
/// while it is copied, in addition to the tensors of the call.
pub const PROCESS_BYTES: u64 = 1 << 30;

/// Memory of the control group of a stage process in bytes: its private memory, and what only the
/// kernel counts, such as page tables, pipes and the program's own pages.
pub const GROUP_BYTES: u64 = PROCESS_BYTES + (32 << 20);

/// Longest time of a call, and of preparing a program. The process is killed then.
pub const CALL_TIME_MAX: Duration = Duration::from_secs(10);

/// Most programs that a process keeps. The one that was used least recently is dropped for another.
pub const PROGRAMS_KEPT_MAX: usize = 32;
