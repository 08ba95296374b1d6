//! The connection to memory that belongs to an executor, such as a GPU's.
//!
//! The two processes share one region. It holds the epoch words, which kernels read and the daemon
//! raises by a store; a staging buffer for transfers; and one request at a time:
//!
//! ```text
//! daemon (RemoteMemory)                shared memory                executor (Port)
//! write, read, copy, fill, bind ─▶ request, ticket ── bell ───────▶ does it on the device's service stream
//!                               ◀── status, answered ──────────────
//! store_epoch ─────────────────▶ epoch word ────────────────────────────────▶ kernels
//!                                           ── bell ──────────────▶ follows in device memory
//! ```
//!
//! Neither side trusts the other: offsets are checked before use, and data read by an executor is
//! only passed on as bytes.

use atoll_device::doorbell::{FdBell, SleepBell};
use atoll_device::shm::{OutOfRange, Region};
use atoll_device::word_table::WORDS_MAX;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

/// Size of the staging buffer; larger transfers are split.
pub(super) const STAGING_BYTES: u64 = 4 << 20;

const LINE_BYTES: u64 = 64;
const ASKED_AT: u64 = 0;
const ANSWERED_AT: u64 = LINE_BYTES;
const BELL_TICKET_AT: u64 = 2 * LINE_BYTES;
const BELL_SLEEPERS_AT: u64 = 3 * LINE_BYTES;
const WAKE_FLAG_AT: u64 = 4 * LINE_BYTES;
const REQUEST_AT: u64 = 5 * LINE_BYTES;
const STATUS_AT: u64 = 6 * LINE_BYTES;
const WORDS_AT: u64 = 4096;
const STAGING_AT: u64 = WORDS_AT + (WORDS_MAX as u64 * 4).next_multiple_of(4096);
const REGION_BYTES: u64 = STAGING_AT + STAGING_BYTES;

const REQUEST_WORDS: usize = 4;

/// Requests of the daemon. The bytes are at the beginning of the staging buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    Write {
        at: u64,
        bytes: u64,
    },
    Read {
        at: u64,
        bytes: u64,
    },
    Copy {
        from: u64,
        to: u64,
        bytes: u64,
    },
    Fill {
        at: u64,
        bytes: u64,
        value: u8,
    },
    /// Binds an epoch word at an offset to a word of shared memory.
    Bind {
        word: u64,
        index: u64,
    },
}

impl Request {
    fn to_words(self) -> [u64; REQUEST_WORDS] {
        match self {
            Request::Write { at, bytes } => [0, at, bytes, 0],
            Request::Read { at, bytes } => [1, at, bytes, 0],
            Request::Copy { from, to, bytes } => [2, from, bytes, to],
            Request::Fill { at, bytes, value } => [3, at, bytes, value.into()],
            Request::Bind { word, index } => [4, word, index, 0],
        }
    }

    /// `None` for an invalid request.
    fn from_words([kind, at, bytes, more]: [u64; REQUEST_WORDS]) -> Option<Request> {
        Some(match kind {
            0 if bytes <= STAGING_BYTES => Request::Write { at, bytes },
            1 if bytes <= STAGING_BYTES => Request::Read { at, bytes },
            2 => Request::Copy { from: at, to: more, bytes },
            3 => Request::Fill { at, bytes, value: u8::try_from(more).ok()? },
            4 => Request::Bind { word: at, index: bytes },
            _ => return None,
        })
    }
}

/// The result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(super) enum Status {
    Done = 1,
    /// The range is outside device memory.
    OutOfRange = 2,
    /// The driver failed; the executor reports the reason when it ends.
    Failed = 3,
}

/// The shared region, as both sides use it. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Port {
    region: Arc<Region>,
}

impl Port {
    pub(super) fn create() -> std::io::Result<Port> {
        Ok(Port { region: Arc::new(Region::create("atoll-port", REGION_BYTES)?) })
    }

    /// Maps the region of another process.
    pub(super) fn attach(fd: OwnedFd) -> std::io::Result<Port> {
        let region = Arc::new(Region::attach(fd)?);
        if region.bytes() != REGION_BYTES {
            return Err(std::io::Error::new(
                std::io::ErrorKind::InvalidData,
                "the memory for transfers has another size",
            ));
        }
        Ok(Port { region })
    }

    /// The region, and the offsets of its epoch words and its staging buffer.
    pub(super) fn region(&self) -> (&Arc<Region>, u64, u64) {
        (&self.region, WORDS_AT, STAGING_AT)
    }

    /// An epoch word.
    pub(super) fn epoch(&self, index: usize) -> &AtomicU32 {
        self.word(WORDS_AT + index as u64 * 4)
    }

    /// Rings for the executor.
    pub(super) fn wake(&self, bell: &FdBell) {
        bell.ring(self.word(WAKE_FLAG_AT));
    }

    /// Silences the bell; the executor calls it before it looks for work.
    pub(super) fn silence(&self, bell: &FdBell) {
        bell.silence(self.word(WAKE_FLAG_AT));
    }

    /// Publishes a request and returns its ticket.
    pub(super) fn ask(&self, request: Request) -> u32 {
        self.words(REQUEST_AT).iter().zip(request.to_words()).for_each(|(word, value)| word.store(value, Relaxed));
        self.word(ASKED_AT).fetch_add(1, SeqCst).wrapping_add(1)
    }

    /// The result of a request, once there is one; `Some(None)` for an invalid result.
    pub(super) fn answer(&self, ticket: u32) -> Option<Option<Status>> {
        let status = || self.words(STATUS_AT)[0].load(Relaxed);
        let known = [Status::Done, Status::OutOfRange, Status::Failed];
        (self.word(ANSWERED_AT).load(SeqCst) == ticket)
            .then(|| known.into_iter().find(|known| *known as u64 == status()))
    }

    /// The next unanswered request, if there is one: its ticket and content.
    pub(super) fn next_request(&self) -> Option<(u32, Option<Request>)> {
        let asked = self.word(ASKED_AT).load(SeqCst);
        if asked == self.word(ANSWERED_AT).load(SeqCst) {
            return None;
        }
        let words = std::array::from_fn(|index| self.words(REQUEST_AT)[index].load(Relaxed));
        Some((asked, Request::from_words(words)))
    }

    /// Publishes the result of a request.
    pub(super) fn complete(&self, ticket: u32, status: Status) {
        self.words(STATUS_AT)[0].store(status as u64, Relaxed);
        self.word(ANSWERED_AT).store(ticket, SeqCst);
        self.bell().ring(1);
    }

    /// Rings when a request is answered.
    pub(super) fn bell(&self) -> SleepBell<'_> {
        SleepBell { ticket: self.word(BELL_TICKET_AT), sleepers: self.word(BELL_SLEEPERS_AT) }
    }

    /// Copies bytes into the staging buffer.
    pub(super) fn stage(&self, bytes: &[u8]) -> Result<(), OutOfRange> {
        self.region.write(STAGING_AT, bytes)
    }

    /// Copies bytes out of the staging buffer.
    pub(super) fn unstage(&self, bytes: &mut [u8]) -> Result<(), OutOfRange> {
        self.region.read(STAGING_AT, bytes)
    }

    fn word(&self, at: u64) -> &AtomicU32 {
        self.region.word(at).expect("words lie before the staging buffer")
    }

    fn words(&self, at: u64) -> &[AtomicU64] {
        self.region.words(at, REQUEST_WORDS).expect("words lie before the staging buffer")
    }
}

impl AsFd for Port {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.region.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_survive_the_region() {
        let port = Port::create().unwrap();
        let theirs = Port::attach(port.as_fd().try_clone_to_owned().unwrap()).unwrap();
        assert!(theirs.next_request().is_none());
        for request in [
            Request::Write { at: 1, bytes: 2 },
            Request::Read { at: 3, bytes: STAGING_BYTES },
            Request::Copy { from: 4, to: 5, bytes: u64::MAX },
            Request::Fill { at: 6, bytes: 7, value: 255 },
            Request::Bind { word: 8, index: 9 },
        ] {
            let ticket = port.ask(request);
            assert_eq!(theirs.next_request(), Some((ticket, Some(request))));
            assert_eq!(port.answer(ticket), None);
            theirs.complete(ticket, Status::OutOfRange);
            assert_eq!((port.answer(ticket), theirs.next_request()), (Some(Some(Status::OutOfRange)), None));
        }
    }

    #[test]
    fn invalid_requests_and_results_are_detected() {
        let port = Port::create().unwrap();
        for words in [[5, 0, 0, 0], [0, 0, STAGING_BYTES + 1, 0], [1, 0, u64::MAX, 0], [3, 0, 1, 256]] {
            assert_eq!(Request::from_words(words), None, "{words:?}");
        }
        let ticket = port.ask(Request::Read { at: 0, bytes: 1 });
        port.complete(ticket, Status::Done);
        port.words(STATUS_AT)[0].store(77, Relaxed);
        assert_eq!(port.answer(ticket), Some(None));
        let small = Region::create("port", 4096).unwrap();
        assert!(Port::attach(small.as_fd().try_clone_to_owned().unwrap()).is_err());
    }
}
