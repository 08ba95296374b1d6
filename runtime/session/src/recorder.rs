//! The client's buffer of recorded calls.

use crate::frame::{FRAME_BYTES, Frame, Kind};
use crate::limits::BUFFER_BYTES;
use crate::record::Record;

/// Why a client waits: the ten kinds of calls whose result only the server knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Wait {
    /// A copy to the host.
    CopyBack,
    /// All work of the context.
    Context,
    /// The work of a stream.
    Stream,
    /// An event.
    Event,
    /// Whether a stream is idle.
    StreamQuery,
    /// Whether an event has passed.
    EventQuery,
    /// The time between events.
    ElapsedTime,
    /// Whether a module is valid; asked once for each image.
    Module,
    /// Facts about a kernel; asked once for each kernel of an image.
    Kernel,
    /// The address of a variable; asked once for each variable of a module.
    Variable,
}

/// How the records of the buffer are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form<'a> {
    /// As they are.
    Calls,
    /// Behind these records.
    Behind(&'a [u8]),
    /// These instead.
    Instead(&'a [u8]),
}

/// The recorded calls that have not been sent.
#[derive(Clone, Debug)]
pub struct Recorder {
    /// Space for the frame, then the records.
    bytes: Vec<u8>,
    sequence: u32,
}

impl Default for Recorder {
    fn default() -> Recorder {
        Recorder { bytes: vec![0; FRAME_BYTES], sequence: 0 }
    }
}

impl Recorder {
    /// Appends a call.
    pub fn push(&mut self, record: &Record<'_>) {
        record.write(&mut self.bytes);
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.bytes.len() == FRAME_BYTES
    }

    /// Whether the buffer is sent now although no call waits.
    pub fn is_full(&self) -> bool {
        self.bytes.len() >= BUFFER_BYTES
    }

    /// The records.
    pub(crate) fn records(&self) -> &[u8] {
        &self.bytes[FRAME_BYTES..]
    }

    /// Sends the records in another form.
    pub(crate) fn reform(&mut self, form: Form<'_>) {
        match form {
            Form::Calls => {}
            Form::Behind(records) => drop(self.bytes.splice(FRAME_BYTES..FRAME_BYTES, records.iter().copied())),
            Form::Instead(records) => {
                self.bytes.truncate(FRAME_BYTES);
                self.bytes.extend_from_slice(records);
            }
        }
    }

    /// The message with all records. [`Recorder::sent`] begins the next message.
    pub fn message(&mut self, kind: Kind) -> &[u8] {
        let bytes = (self.bytes.len() - FRAME_BYTES) as u64;
        self.bytes[..FRAME_BYTES].copy_from_slice(&Frame { kind, sequence: self.sequence, bytes }.write());
        &self.bytes
    }

    /// Begins the next message. Returns the sequence number of the message that was sent.
    pub fn sent(&mut self) -> u32 {
        self.bytes.truncate(FRAME_BYTES);
        // Frees a large buffer, which most messages do not need.
        self.bytes.shrink_to(2 * BUFFER_BYTES);
        let sequence = self.sequence;
        self.sequence = self.sequence.wrapping_add(1);
        sequence
    }
}
