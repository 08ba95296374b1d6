//! The daemon's end of a ring. The client may write anything to the memory at any time.

use crate::layout::{Layout, MESSAGE_WORDS, RECORD_WORDS};
use crate::limits::MESSAGE_BYTES_MAX;
use crate::memory::{BadSpan, Memory, RingError};
use crate::message::{BadMessage, Reply, Request, Span};
use atoll_device::ring::{Consumer, Producer, PushError, Slot};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

/// The daemon's end.
#[derive(Debug)]
pub struct DaemonEnd {
    memory: Arc<Memory>,
    requests: Consumer<RECORD_WORDS, MESSAGE_WORDS>,
    answers: Producer<RECORD_WORDS, MESSAGE_WORDS>,
    /// Requests that were taken and not answered yet.
    open: u32,
}

/// A request that was taken out of the ring.
#[derive(Debug)]
pub struct Taken {
    /// Its number. The answer carries the same number.
    pub tag: u64,
    /// The request, or why its message is not valid.
    pub request: Result<Request, BadMessage>,
}

/// Wakes the thread that serves a ring.
#[derive(Clone, Debug)]
pub struct DaemonBell(Arc<Memory>);

impl DaemonBell {
    /// Wakes the thread, or keeps it from sleeping. If the client has overwritten the bell, a
    /// sleeping thread wakes only when its sleep times out.
    pub fn ring(&self) {
        self.0.daemon_bell().ring(u32::MAX >> 1);
    }
}

impl DaemonEnd {
    /// Creates the memory of a ring.
    pub fn create(layout: Layout) -> io::Result<DaemonEnd> {
        let memory = Arc::new(Memory::create(layout)?);
        let missing = || io::Error::other("the rings are not inside their memory");
        let slots = layout.slots();
        let requests = Consumer::new(memory.region.clone(), layout.requests_at(), slots).ok_or_else(missing)?;
        let answers = Producer::new(memory.region.clone(), layout.answers_at(), slots).ok_or_else(missing)?;
        Ok(DaemonEnd { memory, requests, answers, open: 0 })
    }

    /// The sizes of its parts.
    pub fn layout(&self) -> Layout {
        self.memory.layout
    }

    /// The bell that wakes this end.
    pub fn bell(&self) -> DaemonBell {
        DaemonBell(self.memory.clone())
    }

    /// Takes the next request, copied; `None` if there is none.
    ///
    /// # Errors
    /// If the client broke the protocol, so that the ring cannot be used any more.
    pub fn take(&mut self) -> Result<Option<Taken>, RingError> {
        let Some((kind, tag, message)) = self.requests.pop_with(read)? else { return Ok(None) };
        if self.open >= self.memory.layout.slots() {
            return Err(RingError::Overrun(self.memory.layout.slots()));
        }
        self.open += 1;
        let request = message.and_then(|message| Request::decode(kind, &message));
        Ok(Some(Taken { tag, request }))
    }

    /// Answers a request that was taken, and wakes the client.
    ///
    /// # Errors
    /// If the client broke the protocol, so that the ring cannot be used any more.
    pub fn answer(&mut self, tag: u64, reply: &Reply) -> Result<(), RingError> {
        let (kind, message) = reply.encode();
        let pushed = self.answers.push_with(|slot| write(slot, kind, tag, &message));
        pushed.map_err(|error| match error {
            PushError::Full => RingError::Overrun(self.memory.layout.slots()),
            PushError::Corrupt(corrupt) => corrupt.into(),
        })?;
        self.open = self.open.saturating_sub(1);
        self.memory.client_bell().ring(1);
        Ok(())
    }

    /// Checks that a place is in the arena.
    ///
    /// # Errors
    /// If it is not, or does not begin at a multiple of 8.
    pub fn check(&self, span: Span) -> Result<(), BadSpan> {
        self.memory.check(span)
    }

    /// Copies the elements of a tensor.
    ///
    /// # Errors
    /// If the place is not in the arena.
    pub fn read(&self, span: Span) -> Result<Vec<u8>, BadSpan> {
        self.memory.read(span)
    }

    /// Copies bytes into the arena.
    ///
    /// # Errors
    /// If the place is not in the arena.
    pub fn write(&self, at: u64, bytes: &[u8]) -> Result<(), BadSpan> {
        self.memory.write(at, bytes)
    }

    /// The ticket of the bell. Take it before looking for work.
    pub fn ticket(&self) -> u32 {
        self.memory.daemon_bell().ticket()
    }

    /// Sleeps until the bell rings, for at most `time`. Returns at once if it rang since the ticket
    /// was taken.
    pub fn sleep(&self, ticket: u32, time: Duration) {
        self.memory.daemon_bell().sleep_for(ticket, time);
    }

    /// Tells the client that the ring is closed, so it gets no more answers.
    pub fn close(&self) {
        self.memory.close();
    }
}

impl AsFd for DaemonEnd {
    /// The memory, to be passed to the client.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.memory.region.as_fd()
    }
}

/// Copies a record out of its slot: kind, number of the request, message.
pub(crate) fn read(slot: &Slot<'_>) -> (u64, u64, Result<Vec<u8>, BadMessage>) {
    let (kind, tag, bytes) = (slot.load(0), slot.load(1), slot.load(2));
    if bytes > MESSAGE_BYTES_MAX as u64 {
        return (kind, tag, Err(BadMessage::TooLong(bytes)));
    }
    let mut message = Vec::with_capacity(bytes.next_multiple_of(8) as usize);
    for word in 0..bytes.div_ceil(8) as usize {
        message.extend(slot.load(RECORD_WORDS + word).to_le_bytes());
    }
    message.truncate(bytes as usize);
    (kind, tag, Ok(message))
}

/// Writes a record into its slot. The message has at most [`MESSAGE_BYTES_MAX`] bytes.
pub(crate) fn write(slot: &Slot<'_>, kind: u64, tag: u64, message: &[u8]) {
    let (whole, rest) = message.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    slot.store(0, [kind, tag, message.len() as u64, 0]);
    let words = whole.iter().chain((!rest.is_empty()).then_some(&last));
    slot.store(RECORD_WORDS, words.map(|bytes| u64::from_le_bytes(*bytes)));
}
