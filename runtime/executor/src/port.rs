//! How a daemon reaches memory that is an executor's, as that of a GPU.
//!
//! One region is shared between the two. It holds the epoch words, which kernels look at and the
//! daemon raises by a store; room for the bytes of transfers; and one transfer at a time:
//!
//! ```text
//! daemon (RemoteMemory)                shared memory                executor (Port)
//! write, read, copy, fill, bind ─▶ request, ticket ── bell ───────▶ does it on the device's service stream
//!                               ◀── status, answered ──────────────
//! store_epoch ─────────────────▶ epoch word ────────────────────────────────▶ kernels
//!                                           ── bell ──────────────▶ follows in device memory
//! ```
//!
//! Neither side believes the other: offsets are checked where they are used, and what an executor
//! says that it read is nothing but bytes.

use atoll_device::doorbell::{FdBell, SleepBell};
use atoll_device::shm::{OutOfRange, Region};
use atoll_device::word_table::WORDS_MAX;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

/// Bytes of a transfer that go at once.
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

/// What the daemon asks for. Bytes lie at the beginning of the staging room.
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
    /// An epoch word at an offset has a word of shared memory from now on.
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

    /// `None` for what cannot be asked.
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

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(super) enum Status {
    Done = 1,
    /// It does not lie in the device's memory.
    OutOfRange = 2,
    /// The driver refused; the executor says why when it ends.
    Failed = 3,
}

/// The region, from either side. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Port {
    region: Arc<Region>,
}

impl Port {
    pub(super) fn create() -> std::io::Result<Port> {
        Ok(Port { region: Arc::new(Region::create("atoll-port", REGION_BYTES)?) })
    }

    /// The same region in another process.
    pub(super) fn attach(fd: OwnedFd) -> std::io::Result<Port> {
        let region = Arc::new(Region::attach(fd)?);
        if region.bytes() != REGION_BYTES {
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, "memory for transfers of another size"));
        }
        Ok(Port { region })
    }

    /// The region, and where its epoch words and its staging room begin.
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

    /// The executor was woken and looks.
    pub(super) fn silence(&self, bell: &FdBell) {
        bell.silence(self.word(WAKE_FLAG_AT));
    }

    /// Puts a request there; the answer is its ticket.
    pub(super) fn ask(&self, request: Request) -> u32 {
        self.words(REQUEST_AT).iter().zip(request.to_words()).for_each(|(word, value)| word.store(value, Relaxed));
        self.word(ASKED_AT).fetch_add(1, SeqCst).wrapping_add(1)
    }

    /// How a request ended, once it did; `Some(None)` for an answer that cannot be.
    pub(super) fn answer(&self, ticket: u32) -> Option<Option<Status>> {
        let status = || self.words(STATUS_AT)[0].load(Relaxed);
        let known = [Status::Done, Status::OutOfRange, Status::Failed];
        (self.word(ANSWERED_AT).load(SeqCst) == ticket)
            .then(|| known.into_iter().find(|known| *known as u64 == status()))
    }

    /// The next request, if there is one that was not answered: its ticket and what it asks for.
    pub(super) fn next_request(&self) -> Option<(u32, Option<Request>)> {
        let asked = self.word(ASKED_AT).load(SeqCst);
        if asked == self.word(ANSWERED_AT).load(SeqCst) {
            return None;
        }
        let words = std::array::from_fn(|index| self.words(REQUEST_AT)[index].load(Relaxed));
        Some((asked, Request::from_words(words)))
    }

    /// Answers a request.
    pub(super) fn settle(&self, ticket: u32, status: Status) {
        self.words(STATUS_AT)[0].store(status as u64, Relaxed);
        self.word(ANSWERED_AT).store(ticket, SeqCst);
        self.bell().ring(1);
    }

    /// Rings when a request is answered.
    pub(super) fn bell(&self) -> SleepBell<'_> {
        SleepBell { ticket: self.word(BELL_TICKET_AT), sleepers: self.word(BELL_SLEEPERS_AT) }
    }

    /// Puts bytes into the staging room.
    pub(super) fn stage(&self, bytes: &[u8]) -> Result<(), OutOfRange> {
        self.region.write(STAGING_AT, bytes)
    }

    /// Takes bytes out of it.
    pub(super) fn unstage(&self, bytes: &mut [u8]) -> Result<(), OutOfRange> {
        self.region.read(STAGING_AT, bytes)
    }

    fn word(&self, at: u64) -> &AtomicU32 {
        self.region.word(at).expect("words lie in front of the staging room")
    }

    fn words(&self, at: u64) -> &[AtomicU64] {
        self.region.words(at, REQUEST_WORDS).expect("words lie in front of the staging room")
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
            theirs.settle(ticket, Status::OutOfRange);
            assert_eq!((port.answer(ticket), theirs.next_request()), (Some(Some(Status::OutOfRange)), None));
        }
    }

    #[test]
    fn what_cannot_be_asked_or_answered_is_seen() {
        let port = Port::create().unwrap();
        for words in [[5, 0, 0, 0], [0, 0, STAGING_BYTES + 1, 0], [1, 0, u64::MAX, 0], [3, 0, 1, 256]] {
            assert_eq!(Request::from_words(words), None, "{words:?}");
        }
        let ticket = port.ask(Request::Read { at: 0, bytes: 1 });
        port.settle(ticket, Status::Done);
        port.words(STATUS_AT)[0].store(77, Relaxed);
        assert_eq!(port.answer(ticket), Some(None));
        let small = Region::create("port", 4096).unwrap();
        assert!(Port::attach(small.as_fd().try_clone_to_owned().unwrap()).is_err());
    }
}
