//! Tracing of an engine and its device: records, the bounded ring buffer that keeps the latest of
//! them, and timelines built from them.
//!
//! - [`Record`]: one event, 64 bytes wide in a ring and on the wire.
//! - [`Ring`]: the latest records. It is written all the time, so it never waits and never grows;
//!   what is overwritten before it is read is counted.
//! - [`Timeline`]: tracks of slices, marks and counters, made of records.
//! - [`perfetto`]: a timeline as a file that Perfetto opens.
//!
//! Not here: clocks, files, and who may see what. Records come from an engine that may have them
//! from an untrusted process, so a timeline is valid for any records: its tracks are in order
//! and its slices nest.

pub mod perfetto;
mod record;
mod ring;
mod timeline;

pub use record::{ChunkOutcome, RECORD_WORDS, Raise, Record, What};
pub use ring::{Cursor, Ring};
pub use timeline::{FunctionName, Group, Mark, Slice, Timeline, Track, Value};
