//! The memory of a ring, with checked access to its parts.

use crate::layout::{CLIENT_BELL, CLOSED, DAEMON_BELL, Layout};
use crate::message::Span;
use atoll_device::doorbell::SleepBell;
use atoll_device::ring::Corrupt;
use atoll_device::shm::Region;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A place that is outside the arena, or not aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} bytes at offset {} are not in the arena of the ring, which has {arena_bytes} bytes, or do not begin at a \
    multiple of 8", .span.bytes, .span.at
)]
pub struct BadSpan {
    /// The place.
    pub span: Span,
    /// The size of the arena.
    pub arena_bytes: u64,
}

/// Why a ring cannot be used any more.
#[derive(Debug, thiserror::Error)]
pub enum RingError {
    /// The peer published an index that is impossible.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    /// The client has more requests without an answer, or more answers that it has not taken, than
    /// the ring has slots.
    #[error("the ring has {0} slots, and the client sent more requests than that without taking answers")]
    Overrun(u32),
    /// A message of the daemon is not valid.
    #[error("a message of the ring is not valid: {0}")]
    Message(#[from] crate::message::BadMessage),
}

/// A mapped ring.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) region: Arc<Region>,
    pub(crate) layout: Layout,
}

impl Memory {
    pub(crate) fn create(layout: Layout) -> io::Result<Memory> {
        Ok(Memory { region: Arc::new(Region::create("atoll-ring", layout.bytes())?), layout })
    }

    /// Maps memory that the daemon created.
    pub(crate) fn attach(memory: OwnedFd, layout: Layout) -> io::Result<Memory> {
        let region = Region::attach(memory)?;
        if region.bytes() < layout.bytes() {
            let text = format!("the memory of the ring has {} bytes instead of {}", region.bytes(), layout.bytes());
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        Ok(Memory { region: Arc::new(region), layout })
    }

    pub(crate) fn daemon_bell(&self) -> SleepBell<'_> {
        self.bell(DAEMON_BELL)
    }

    pub(crate) fn client_bell(&self) -> SleepBell<'_> {
        self.bell(CLIENT_BELL)
    }

    fn bell(&self, at: u64) -> SleepBell<'_> {
        SleepBell { ticket: self.word(at), sleepers: self.word(at + 4) }
    }

    pub(crate) fn close(&self) {
        self.word(CLOSED).store(1, Ordering::SeqCst);
        self.client_bell().ring(u32::MAX >> 1);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.word(CLOSED).load(Ordering::SeqCst) != 0
    }

    fn word(&self, at: u64) -> &AtomicU32 {
        self.region.word(at).expect("the header is a part of every ring's memory")
    }

    /// Copies bytes out of the arena. The peer may write to them meanwhile: each word is loaded
    /// once.
    pub(crate) fn read(&self, span: Span) -> Result<Vec<u8>, BadSpan> {
        let words = self.words(span)?;
        let mut bytes = vec![0; span.bytes as usize];
        let (whole, rest) = bytes.as_chunks_mut::<8>();
        for (bytes, word) in whole.iter_mut().zip(words) {
            *bytes = word.load(Ordering::Relaxed).to_le_bytes();
        }
        if let Some(word) = words.get(whole.len()) {
            let last = word.load(Ordering::Relaxed).to_le_bytes();
            rest.copy_from_slice(&last[..rest.len()]);
        }
        Ok(bytes)
    }

    /// Copies bytes into the arena. The rest of the last word is filled with zeros.
    pub(crate) fn write(&self, at: u64, bytes: &[u8]) -> Result<(), BadSpan> {
        let words = self.words(Span { at, bytes: bytes.len() as u64 })?;
        let (whole, rest) = bytes.as_chunks::<8>();
        for (bytes, word) in whole.iter().zip(words) {
            word.store(u64::from_le_bytes(*bytes), Ordering::Relaxed);
        }
        if let Some(word) = words.get(whole.len()) {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            word.store(u64::from_le_bytes(last), Ordering::Relaxed);
        }
        Ok(())
    }

    pub(crate) fn check(&self, span: Span) -> Result<(), BadSpan> {
        self.words(span).map(drop)
    }

    fn words(&self, span: Span) -> Result<&[AtomicU64], BadSpan> {
        let outside = BadSpan { span, arena_bytes: self.layout.arena_bytes() };
        let at = self.layout.locate(span).ok_or(outside)?;
        self.region.words(at, span.bytes.div_ceil(8) as usize).ok_or(outside)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::fd::AsFd;

    #[test]
    fn memory_must_be_sealed_and_large_enough() {
        let (small, large) = (Layout::new(1, 0).unwrap(), Layout::new(2, 8192).unwrap());
        let memory = Memory::create(small).unwrap();
        let copy = |memory: &Memory| memory.region.as_fd().try_clone_to_owned().unwrap();
        assert!(Memory::attach(copy(&memory), small).is_ok());
        let error = Memory::attach(copy(&memory), large).unwrap_err();
        assert!(error.to_string().contains("instead of"), "{error}");
        assert!(Memory::attach(std::fs::File::open("/dev/zero").unwrap().into(), small).is_err());
    }

    proptest! {
        #[test]
        fn bytes_are_read_as_written(at in 0_u64..600, bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let memory = Memory::create(Layout::new(1, 4096).unwrap()).unwrap();
            memory.write(0, &[0xff; 4096]).unwrap();
            let at = at * 8;
            let span = Span { at, bytes: bytes.len() as u64 };
            let fits = at + span.bytes <= 4096;
            prop_assert_eq!(memory.write(at, &bytes).is_ok(), fits);
            prop_assert_eq!(memory.read(span).ok(), fits.then(|| bytes.clone()));
            if fits {
                let around = memory.read(Span { at: 0, bytes: 4096 }).unwrap();
                prop_assert!(around[..at as usize].iter().all(|byte| *byte == 0xff));
                let end = (at + span.bytes).next_multiple_of(8) as usize;
                prop_assert!(around[end..].iter().all(|byte| *byte == 0xff));
            }
        }
    }
}
