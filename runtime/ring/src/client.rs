//! The client's end of a ring.

use crate::daemon::{read, write};
use crate::layout::{Layout, MESSAGE_WORDS, RECORD_WORDS};
use crate::limits::SLEEP_MAX;
use crate::memory::{BadSpan, Memory, RingError};
use crate::message::{BadMessage, Reply, Request, Span};
use crate::spin::Spin;
use atoll_device::ring::{Consumer, Producer, PushError};
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// The client's end.
#[derive(Debug)]
pub struct ClientEnd {
    memory: Memory,
    requests: Producer<RECORD_WORDS, MESSAGE_WORDS>,
    answers: Consumer<RECORD_WORDS, MESSAGE_WORDS>,
}

impl ClientEnd {
    /// Maps the memory of a ring that the daemon created.
    ///
    /// # Errors
    /// If its size is not sealed, or it is too small.
    pub fn attach(memory: OwnedFd, layout: Layout) -> io::Result<ClientEnd> {
        let memory = Memory::attach(memory, layout)?;
        let missing = || io::Error::other("the rings are not inside their memory");
        let slots = layout.slots();
        let requests = Producer::new(memory.region.clone(), layout.requests_at(), slots).ok_or_else(missing)?;
        let answers = Consumer::new(memory.region.clone(), layout.answers_at(), slots).ok_or_else(missing)?;
        Ok(ClientEnd { memory, requests, answers })
    }

    /// The sizes of its parts.
    pub fn layout(&self) -> Layout {
        self.memory.layout
    }

    /// Sends a request, and wakes the daemon. The answer has the same `tag`.
    ///
    /// # Errors
    /// If its message is too long (then nothing is sent), or the ring cannot be used any more.
    pub fn send(&mut self, tag: u64, request: &Request) -> Result<(), SendError> {
        let (kind, message) = request.encode()?;
        let pushed = self.requests.push_with(|slot| write(slot, kind, tag, &message));
        pushed.map_err(|error| match error {
            PushError::Full => RingError::Overrun(self.memory.layout.slots()),
            PushError::Corrupt(corrupt) => corrupt.into(),
        })?;
        self.memory.daemon_bell().ring(1);
        Ok(())
    }

    /// Takes an answer; `None` if there is none yet.
    ///
    /// # Errors
    /// If the ring cannot be used any more.
    pub fn poll(&mut self) -> Result<Option<(u64, Reply)>, RingError> {
        let Some((kind, tag, message)) = self.answers.pop_with(read)? else { return Ok(None) };
        Ok(Some((tag, Reply::decode(kind, &message?)?)))
    }

    /// Waits for an answer: spins for `spin`, then sleeps, for at most `time` in total. `None` if
    /// there is none in time, or if the daemon has closed the ring.
    ///
    /// # Errors
    /// If the ring cannot be used any more.
    pub fn wait(&mut self, spin: Duration, time: Duration) -> Result<Option<(u64, Reply)>, RingError> {
        let (spinning, begun) = (Spin::new(spin), Instant::now());
        loop {
            let ticket = self.memory.client_bell().ticket();
            if let Some(answer) = self.poll()? {
                return Ok(Some(answer));
            }
            let left = time.saturating_sub(begun.elapsed());
            if self.is_closed() || left.is_zero() {
                return Ok(None);
            }
            if !spinning.turn() {
                self.memory.client_bell().sleep_for(ticket, left.min(SLEEP_MAX));
            }
        }
    }

    /// Whether the daemon has closed the ring. Answers that it sent before can still be taken.
    pub fn is_closed(&self) -> bool {
        self.memory.is_closed()
    }

    /// Copies bytes into the arena.
    ///
    /// # Errors
    /// If the place is not in the arena.
    pub fn write(&self, at: u64, bytes: &[u8]) -> Result<(), BadSpan> {
        self.memory.write(at, bytes)
    }

    /// Copies bytes out of the arena.
    ///
    /// # Errors
    /// If the place is not in the arena.
    pub fn read(&self, span: Span) -> Result<Vec<u8>, BadSpan> {
        self.memory.read(span)
    }
}

/// Why a request was not sent.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// Its message does not fit a slot.
    #[error(transparent)]
    Message(#[from] BadMessage),
    /// The ring cannot be used any more.
    #[error(transparent)]
    Ring(#[from] RingError),
}
