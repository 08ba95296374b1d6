//! Streams and events. The client assigns their numbers, and records their work.

use crate::client::Client;
use crate::code::Code;
use crate::field::{Field, Reader};
use crate::limits::{EVENTS_MAX, STREAMS_MAX};
use crate::record::Record;
use crate::transport::Transport;

/// A stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stream {
    pub(super) context: u32,
    flags: u32,
    priority: i32,
}

/// An event.
#[derive(Clone, Copy, Debug)]
pub(super) struct Event {
    pub(super) context: u32,
    /// Whether it measures time.
    is_timed: bool,
    is_recorded: bool,
}

/// `CU_EVENT_DISABLE_TIMING`.
const DISABLE_TIMING: u32 = 2;
/// Allowed flags of events: blocking wait, and no timing.
const EVENT_FLAGS: u32 = 3;
/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: u32 = 1;

impl<T: Transport> Client<T> {
    /// Creates a stream. The priority is clamped to the device's range.
    pub fn create_stream(&mut self, context: u32, flags: u32, priority: i32) -> Result<u32, Code> {
        self.check()?;
        if flags & !NON_BLOCKING != 0 {
            return Err(Code::INVALID_VALUE);
        }
        if self.streams.len() >= STREAMS_MAX {
            return Err(Code::OUT_OF_MEMORY);
        }
        let priority = priority.clamp(self.facts.priority.min(0), 0);
        let stream = self.number()?;
        self.push(&Record::CreateStream { stream, flags, priority })?;
        self.streams.insert(stream, Stream { context, flags, priority });
        Ok(stream)
    }

    /// Destroys a stream. Its work is still done.
    pub fn destroy_stream(&mut self, stream: u32) -> Result<(), Code> {
        if stream == 0 {
            return Err(Code::INVALID_HANDLE);
        }
        self.check_stream(stream)?;
        self.push(&Record::DestroyStream { stream })?;
        self.streams.remove(&stream);
        Ok(())
    }

    /// Returns an error if the stream does not exist. 0 is the default stream.
    pub fn check_stream(&self, stream: u32) -> Result<(), Code> {
        if stream == 0 || self.streams.contains_key(&stream) { Ok(()) } else { Err(Code::INVALID_HANDLE) }
    }

    /// Context, flags and priority of a stream; `None` for the default stream.
    pub fn stream_facts(&self, stream: u32) -> Result<Option<(u32, u32, i32)>, Code> {
        self.check_stream(stream)?;
        Ok(self.streams.get(&stream).map(|stream| (stream.context, stream.flags, stream.priority)))
    }

    /// Waits for a stream.
    pub fn synchronize_stream(&mut self, stream: u32) -> Result<(), Code> {
        self.check_stream(stream)?;
        self.check()?;
        if self.is_idle(stream) {
            return Ok(());
        }
        self.ask(&Record::SynchronizeStream { stream })?;
        self.busy.remove(&stream);
        Ok(())
    }

    /// Returns [`Code::NOT_READY`] if the stream has work left.
    pub fn query_stream(&mut self, stream: u32) -> Result<(), Code> {
        self.check_stream(stream)?;
        self.check()?;
        if self.is_idle(stream) { Ok(()) } else { self.ask(&Record::QueryStream { stream }).map(drop) }
    }

    /// Creates an event.
    pub fn create_event(&mut self, context: u32, flags: u32) -> Result<u32, Code> {
        self.check()?;
        if flags & !EVENT_FLAGS != 0 {
            return Err(if flags & 4 != 0 { Code::NOT_SUPPORTED } else { Code::INVALID_VALUE });
        }
        if self.events.len() >= EVENTS_MAX {
            return Err(Code::OUT_OF_MEMORY);
        }
        let event = self.number()?;
        self.push(&Record::CreateEvent { event, flags })?;
        self.events.insert(event, Event { context, is_timed: flags & DISABLE_TIMING == 0, is_recorded: false });
        Ok(event)
    }

    /// Destroys an event.
    pub fn destroy_event(&mut self, event: u32) -> Result<(), Code> {
        self.event(event)?;
        self.push(&Record::DestroyEvent { event })?;
        self.events.remove(&event);
        Ok(())
    }

    /// Records an event in a stream.
    pub fn record_event(&mut self, event: u32, stream: u32) -> Result<(), Code> {
        self.check_stream(stream)?;
        self.event(event)?;
        self.push(&Record::RecordEvent { event, stream })?;
        self.events.entry(event).and_modify(|event| event.is_recorded = true);
        Ok(())
    }

    /// Makes a stream wait for an event. An event that was never recorded counts as complete.
    pub fn wait_event(&mut self, stream: u32, event: u32) -> Result<(), Code> {
        self.check_stream(stream)?;
        if self.event(event)?.is_recorded { self.push(&Record::WaitEvent { stream, event }) } else { self.check() }
    }

    /// Whether an event was ever recorded. An error if it does not exist.
    pub fn is_recorded(&self, event: u32) -> Result<bool, Code> {
        self.event(event).map(|event| event.is_recorded)
    }

    /// Waits for an event.
    pub fn synchronize_event(&mut self, event: u32) -> Result<(), Code> {
        let is_open = self.is_open(event)?;
        if is_open { self.ask(&Record::SynchronizeEvent { event }).map(drop) } else { Ok(()) }
    }

    /// Returns [`Code::NOT_READY`] if the event is not complete.
    pub fn query_event(&mut self, event: u32) -> Result<(), Code> {
        let is_open = self.is_open(event)?;
        if is_open { self.ask(&Record::QueryEvent { event }).map(drop) } else { Ok(()) }
    }

    /// Milliseconds between two events.
    pub fn elapsed(&mut self, start: u32, end: u32) -> Result<f32, Code> {
        for event in [self.event(start)?, self.event(end)?] {
            if !event.is_timed || !event.is_recorded {
                return Err(Code::INVALID_HANDLE);
            }
        }
        let bytes = self.ask(&Record::Elapsed { start, end })?;
        let bits = u32::read(&mut Reader::new(&bytes)).map_err(|_| Code::UNKNOWN)?;
        Ok(f32::from_bits(bits))
    }

    /// Whether an event may be incomplete.
    fn is_open(&self, event: u32) -> Result<bool, Code> {
        let event = self.event(event)?;
        self.check()?;
        Ok(event.is_recorded && !self.busy.is_empty())
    }

    /// Whether a stream is known to have no work. The default stream waits for the others, so it is
    /// idle if all are.
    fn is_idle(&self, stream: u32) -> bool {
        self.busy.is_empty() || (stream != 0 && !self.busy.contains_key(&stream))
    }

    fn event(&self, event: u32) -> Result<Event, Code> {
        self.events.get(&event).copied().ok_or(Code::INVALID_HANDLE)
    }
}
