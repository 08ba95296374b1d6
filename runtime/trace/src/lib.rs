//! Tracing of an engine and its device: records, a bounded ring buffer of the latest records, and
//! timelines built from records.
//!
//! - [`Record`]: one event, encoded in 64 bytes.
//! - [`Ring`]: the latest records. Writing never waits. A reader learns how many records were
//!   overwritten before it read them.
//! - [`Timeline`]: tracks of slices, marks and counters, built from records.
//! - [`perfetto`]: writes a timeline as a file that Perfetto opens.
//!
//! Not here: reading clocks, opening files, and access control.
//!
//! # Invariants
//!
//! - A [`Ring`] never holds more records than its capacity.
//! - A [`Timeline`] is valid for any records, since they may come from an untrusted process: its
//!   tracks are sorted by time, and its slices nest.
//!
//! Start with `record.rs`, then `timeline/build.rs`.

pub mod perfetto;
mod record;
mod ring;
mod timeline;

pub use record::{ChunkOutcome, EventKind, RECORD_WORDS, Raise, Record};
pub use ring::{Cursor, Ring};
pub use timeline::{FunctionName, Group, Mark, Slice, Timeline, Track, Value};
