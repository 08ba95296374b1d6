//! Memory that belongs to an executor, as the daemon accesses it ([`super::port`]).

use super::port::{Port, Request, STAGING_BYTES, Status};
use super::supervisor::{Loss, Supervised};
use super::wire::Order;
use atoll_core::{DeviceOffset, Epoch};
use atoll_device::doorbell::FdBell;
use atoll_device::word_table::WordTable;
use atoll_device::{DeviceError, LossCause};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::{Duration, Instant};

/// How long to poll for an answer before sleeping: small transfers take a few microseconds.
const SPIN_TIME: Duration = Duration::from_micros(20);

/// Interval of checks whether the executor still lives.
const CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// The daemon's access to the memory.
#[derive(Debug)]
pub(super) struct RemoteMemory {
    port: Port,
    wake: FdBell,
    executor: Arc<Supervised>,
    words: WordTable,
    /// Known once the executor has reported it.
    pub(super) bytes: u64,
    answer_within: Duration,
}

impl RemoteMemory {
    pub(super) fn new(
        port: Port,
        wake: FdBell,
        executor: Arc<Supervised>,
        bytes: u64,
        answer_within: Duration,
    ) -> RemoteMemory {
        RemoteMemory { port, wake, executor, words: WordTable::default(), bytes, answer_within }
    }

    /// Wakes the executor for a launch.
    pub(super) fn wake(&self) {
        self.port.wake(&self.wake);
    }

    pub(super) fn write(&mut self, at: DeviceOffset, bytes: &[u8]) -> Result<(), DeviceError> {
        self.check(at, bytes.len() as u64)?;
        // Epoch words first: the executor copies them to device memory before the transfer, so a
        // later raise is never overwritten by an older value.
        self.note_written(at, bytes);
        for (index, chunk) in bytes.chunks(STAGING_BYTES as usize).enumerate() {
            self.port.stage(chunk)?;
            self.ask(Request::Write { at: at.0 + index as u64 * STAGING_BYTES, bytes: chunk.len() as u64 })?;
        }
        Ok(())
    }

    pub(super) fn read(&mut self, at: DeviceOffset, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.check(at, bytes.len() as u64)?;
        for (index, chunk) in bytes.chunks_mut(STAGING_BYTES as usize).enumerate() {
            self.ask(Request::Read { at: at.0 + index as u64 * STAGING_BYTES, bytes: chunk.len() as u64 })?;
            self.port.unstage(chunk)?;
        }
        Ok(())
    }

    pub(super) fn copy(&mut self, from: DeviceOffset, to: DeviceOffset, bytes: u64) -> Result<(), DeviceError> {
        self.check(from, bytes)?;
        self.check(to, bytes)?;
        self.note_copied(to, bytes);
        self.ask(Request::Copy { from: from.0, to: to.0, bytes })
    }

    pub(super) fn fill(&mut self, at: DeviceOffset, value: u8, bytes: u64) -> Result<(), DeviceError> {
        self.check(at, bytes)?;
        self.note_filled(at, value, bytes);
        self.ask(Request::Fill { at: at.0, bytes, value })
    }

    /// Never waits.
    pub(super) fn store_epoch(&self, word: DeviceOffset, epoch: Epoch) {
        match self.words.find(word) {
            Some(index) => {
                self.port.epoch(index).store(epoch.0, Release);
                self.wake();
            }
            None => self.executor.send(Order::Raise { word: word.0, epoch: epoch.0 }, Vec::new()),
        }
    }

    /// Binds an epoch word to a shared word that the daemon can raise by a store.
    pub(super) fn watch(&mut self, word: DeviceOffset) -> Result<(), DeviceError> {
        let is_word = word.0.is_multiple_of(4) && self.check(word, 4).is_ok();
        if !is_word || self.words.find(word).is_some() {
            return Ok(());
        }
        let Some(index) = self.words.bind(word) else { return Ok(()) };
        self.ask(Request::Bind { word: word.0, index: index as u64 }).inspect_err(|_| self.words.unbind(word))
    }

    /// Updates epoch words for bytes that are written now, by this executor or by the other one of
    /// a pair; likewise below.
    pub(super) fn note_written(&mut self, at: DeviceOffset, bytes: &[u8]) {
        let port = &self.port;
        self.words.written(at, bytes, |index, value| port.epoch(index).store(value, Release));
    }

    pub(super) fn note_filled(&mut self, at: DeviceOffset, value: u8, bytes: u64) {
        let port = &self.port;
        self.words.filled(at, value, bytes, |index, value| port.epoch(index).store(value, Release));
    }

    pub(super) fn note_copied(&mut self, to: DeviceOffset, bytes: u64) {
        self.words.forget(to, bytes);
    }

    /// The value of an epoch word that is bound to a shared word.
    pub(super) fn epoch(&self, word: DeviceOffset) -> Option<Epoch> {
        Some(Epoch(self.port.epoch(self.words.find(word)?).load(Acquire)))
    }

    /// Raises an epoch word if it is bound to a shared word. The other executor of the pair writes
    /// device memory.
    pub(super) fn store_bound_epoch(&self, word: DeviceOffset, epoch: Epoch) {
        if let Some(index) = self.words.find(word) {
            self.port.epoch(index).store(epoch.0, Release);
        }
    }

    fn check(&self, at: DeviceOffset, bytes: u64) -> Result<(), DeviceError> {
        let is_inside = at.0.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        if is_inside { Ok(()) } else { Err(DeviceError::OutOfRange { at: at.0, bytes, memory_bytes: self.bytes }) }
    }

    /// Sends a request to the executor, and waits for the answer.
    fn ask(&self, request: Request) -> Result<(), DeviceError> {
        let ticket = self.port.ask(request);
        self.wake();
        match self.wait(ticket)? {
            Some(Status::Done) => Ok(()),
            Some(Status::OutOfRange) => {
                self.executor.end(LossCause::ProtocolViolation("its memory is smaller than it reported".to_owned()));
                Err(self.gone())
            }
            // The executor ends now and reports the reason.
            Some(Status::Failed) => Err(self.gone()),
            None => {
                self.executor.end(LossCause::ProtocolViolation("it sent an invalid answer to a transfer".to_owned()));
                Err(self.gone())
            }
        }
    }

    fn wait(&self, ticket: u32) -> Result<Option<Status>, DeviceError> {
        let begun = Instant::now();
        loop {
            let rung = self.port.bell().ticket();
            if let Some(status) = self.port.answer(ticket) {
                return Ok(status);
            }
            if begun.elapsed() < SPIN_TIME {
                std::hint::spin_loop();
                continue;
            }
            if self.executor.loss().is_some() {
                return Err(self.gone());
            }
            if begun.elapsed() > self.answer_within {
                self.executor.end(LossCause::Hung(format!("did not answer within {:?}", self.answer_within)));
                return Err(self.gone());
            }
            self.port.bell().sleep_for(rung, CHECK_INTERVAL);
        }
    }

    fn gone(&self) -> DeviceError {
        DeviceError::DomainLost(
            self.executor.loss().map_or_else(|| "the executor of the device is ending".to_owned(), Loss::to_string),
        )
    }
}
