//! Epoch words in host memory that the device sees, beside those in device memory.
//!
//! The engine names an epoch word by its offset in device memory. The first launch that carries one gets it a word of host memory too, and finds that in its parameters. From then on both change together:
//! whatever the engine writes to the one is written to the other.

use super::flag::FlagRoute;
use atoll_core::{DeviceOffset, Epoch};
use atoll_cuda::{Context, CudaError, DeviceMemory, HostWords, Stream, TransferError, status};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};

/// Words in host memory. Instances of functions keep theirs, so this is far above what is used; beyond it kernels look at device memory.
const WORDS_MAX: usize = 1 << 14;

/// Which epoch words lie in host memory too.
#[derive(Debug)]
pub(super) struct EpochWords {
    words: HostWords,
    /// Offset in device memory to index of the word.
    by_offset: BTreeMap<u64, usize>,
    free: Vec<usize>,
    route: FlagRoute,
    /// Whether streams can write values on this device.
    writes_values: Cell<bool>,
}

impl EpochWords {
    pub(super) fn new(context: &Arc<Context>, route: FlagRoute) -> Result<EpochWords, CudaError> {
        let free = (0..WORDS_MAX).rev().collect();
        let words = HostWords::new(context, WORDS_MAX)?;
        Ok(EpochWords { words, by_offset: BTreeMap::new(), free, route, writes_values: Cell::new(true) })
    }

    /// Where a kernel is to look, for a word that lies in device memory.
    pub(super) fn address(&mut self, word: DeviceOffset, service: &Stream, memory: &DeviceMemory) -> Result<u64, TransferError> {
        if let Some(&index) = self.by_offset.get(&word.0) {
            return Ok(self.address_of(index));
        }
        let in_memory = memory.address() + word.0;
        let index = match self.route {
            FlagRoute::StreamWrite => return Ok(in_memory),
            FlagRoute::Mapped => self.free.pop(),
        };
        let Some(index) = index else { return Ok(in_memory) };
        let mut bytes = [0; 4];
        service.read(memory, word.0, &mut bytes)?;
        self.words.word(index).store(u32::from_ne_bytes(bytes), Release);
        self.by_offset.insert(word.0, index);
        Ok(self.address_of(index))
    }

    /// Raises a word for kernels that look at host memory.
    pub(super) fn store(&self, word: DeviceOffset, epoch: Epoch) {
        if let Some(&index) = self.by_offset.get(&word.0) {
            self.words.word(index).store(epoch.0, Release);
        }
    }

    /// Raises it in device memory. Does not wait.
    pub(super) fn write_through(
        &self,
        word: DeviceOffset,
        epoch: Epoch,
        service: &Stream,
        memory: &DeviceMemory,
    ) -> Result<(), TransferError> {
        if self.writes_values.get() {
            match service.write_word(memory, word.0, epoch.0) {
                Err(TransferError::Driver(error)) if error.code == status::NOT_SUPPORTED => self.writes_values.set(false),
                answer => return answer,
            }
        }
        service.fill_word(memory, word.0, epoch.0)
    }

    /// Device memory was written.
    pub(super) fn written(&mut self, at: DeviceOffset, bytes: &[u8]) {
        for (offset, index) in self.touched(at.0, bytes.len() as u64) {
            let within = (offset - at.0) as usize;
            let word = bytes.get(within..within + 4).and_then(|word| word.try_into().ok());
            self.set(offset, index, word.map(u32::from_ne_bytes));
        }
    }

    /// Device memory was filled.
    pub(super) fn filled(&mut self, at: DeviceOffset, value: u8, bytes: u64) {
        for (offset, index) in self.touched(at.0, bytes) {
            let is_whole = offset >= at.0 && at.0 + bytes - offset >= 4;
            self.set(offset, index, is_whole.then_some(u32::from_ne_bytes([value; 4])));
        }
    }

    /// Device memory was changed in a way nobody followed.
    pub(super) fn forget(&mut self, at: DeviceOffset, bytes: u64) {
        self.touched(at.0, bytes).into_iter().for_each(|(offset, index)| self.set(offset, index, None));
    }

    /// Has every launch leave that can.
    pub(super) fn raise_all(&self) {
        for &index in self.by_offset.values() {
            let word = self.words.word(index);
            let raised = Epoch(word.load(Acquire)).out_of_reach();
            word.store(raised.0, Release);
        }
    }

    fn address_of(&self, index: usize) -> u64 {
        self.words.address() + index as u64 * 4
    }

    /// Words of which a byte lies in a range.
    fn touched(&self, at: u64, bytes: u64) -> Vec<(u64, usize)> {
        let range = at.saturating_sub(3)..at.saturating_add(bytes);
        if range.is_empty() || bytes == 0 {
            Vec::new()
        } else {
            self.by_offset.range(range).map(|(offset, index)| (*offset, *index)).collect()
        }
    }

    /// Gives a word a new value, or takes it out of host memory: no launch in flight uses it, and the next one finds it again.
    fn set(&mut self, offset: u64, index: usize, value: Option<u32>) {
        match value {
            Some(value) => self.words.word(index).store(value, Release),
            None => {
                self.by_offset.remove(&offset);
                self.free.push(index);
            }
        }
    }
}
