//! Epoch words in host memory that the device can read, in addition to those in device memory
//! ([`WordTable`]).
//!
//! If the device is in the engine's process, an epoch word is bound to a host word when it is first
//! watched, and launches get its address as a parameter. In an executor, the host words are shared
//! with the daemon, which raises them and decides the bindings; here they are only copied to device
//! memory.

use super::flag::FlagRoute;
use atoll_core::{DeviceOffset, Epoch};
use atoll_cuda::{BarWords, Context, CudaError, DeviceMemory, HostMemory, HostWords, Stream, TransferError, status};
use atoll_device::shm::Region;
use atoll_device::word_table::{WORDS_MAX, WordTable};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Release};

/// The epoch words that also exist in host memory.
#[derive(Debug)]
pub(super) struct EpochWords {
    words: Words,
    route: FlagRoute,
    /// The words that kernels read if the route is the BAR: one for each of `words`.
    bar: Option<BarWords>,
    /// Whether streams can write values on this device.
    writes_values: Cell<bool>,
}

#[derive(Debug)]
enum Words {
    /// Words of this process.
    Own { words: HostWords, table: WordTable },
    /// Words shared with the daemon.
    Shared(SharedWords),
}

/// Words that another process raises.
#[derive(Debug)]
pub(super) struct SharedWords {
    /// Registered with the device from its beginning.
    region: Arc<Region>,
    memory: Arc<HostMemory>,
    /// Offset of the first word in the region.
    at: u64,
    /// By offset in device memory: the index of the shared word, and the value last written to
    /// device memory.
    bound: BTreeMap<u64, (usize, u32)>,
}

impl SharedWords {
    pub(super) fn new(region: Arc<Region>, memory: Arc<HostMemory>, at: u64) -> SharedWords {
        SharedWords { region, memory, at, bound: BTreeMap::new() }
    }

    /// The word with an index; `None` if the daemon passes an invalid one.
    fn word(&self, index: usize) -> Option<&AtomicU32> {
        self.region.word(self.at + index as u64 * 4).filter(|_| index < WORDS_MAX)
    }
}

impl EpochWords {
    /// `bar` must have [`WORDS_MAX`] words if the route is the BAR.
    pub(super) fn new(
        context: &Arc<Context>,
        route: FlagRoute,
        bar: Option<BarWords>,
    ) -> Result<EpochWords, CudaError> {
        let words = HostWords::new(context, WORDS_MAX)?;
        Ok(EpochWords {
            words: Words::Own { words, table: WordTable::default() },
            route,
            bar,
            writes_values: Cell::new(true),
        })
    }

    /// From now on another process raises the words.
    pub(super) fn share(&mut self, words: SharedWords) {
        self.words = Words::Shared(words);
    }

    /// Binds an epoch word to a host word, if kernels read host memory or the BAR on this device
    /// and a host word is free.
    pub(super) fn watch(
        &mut self,
        word: DeviceOffset,
        service: &Stream,
        memory: &DeviceMemory,
    ) -> Result<(), TransferError> {
        if self.route != FlagRoute::StreamWrite
            && let Words::Own { words, table } = &mut self.words
            && table.find(word).is_none()
        {
            let value = read_word(word, service, memory)?;
            if let Some(index) = table.bind(word) {
                set(words.word(index), self.bar.as_ref(), index, value);
            }
        }
        Ok(())
    }

    /// The address where kernels read an epoch word; `None` if they read it in device memory.
    pub(super) fn find(&self, word: DeviceOffset) -> Option<u64> {
        if self.route == FlagRoute::StreamWrite {
            return None;
        }
        let (index, in_host) = match &self.words {
            Words::Own { words, table } => (table.find(word)?, words.address()),
            Words::Shared(shared) => (shared.bound.get(&word.0)?.0, shared.memory.address() + shared.at),
        };
        Some(self.bar.as_ref().map_or(in_host, BarWords::address) + index as u64 * 4)
    }

    /// Binds an offset to a shared word, and sets that word to the value in device memory.
    pub(super) fn bind(
        &mut self,
        word: DeviceOffset,
        index: usize,
        service: &Stream,
        memory: &DeviceMemory,
    ) -> Result<(), TransferError> {
        let Words::Shared(shared) = &mut self.words else { return Ok(()) };
        let value = read_word(word, service, memory)?;
        // The index may have been bound to another offset before.
        shared.bound.retain(|_, (other, _)| *other != index);
        if let Some(in_host) = shared.word(index) {
            set(in_host, self.bar.as_ref(), index, value);
            shared.bound.insert(word.0, (index, value));
        }
        Ok(())
    }

    /// Copies words that the other process raised to device memory. Does not wait.
    pub(super) fn follow(&mut self, service: &Stream, memory: &DeviceMemory) -> Result<(), TransferError> {
        let Words::Shared(shared) = &self.words else { return Ok(()) };
        let now = |(offset, (index, said)): (&u64, &(usize, u32))| {
            let value = shared.word(*index)?.load(Acquire);
            (value != *said).then_some((*offset, *index, value))
        };
        let raised: Vec<(u64, usize, u32)> = shared.bound.iter().filter_map(now).collect();
        for (offset, index, value) in raised {
            if let Some(bar) = &self.bar {
                bar.store(index, value);
            }
            self.write_through(DeviceOffset(offset), Epoch(value), service, memory)?;
            let Words::Shared(shared) = &mut self.words else { return Ok(()) };
            shared.bound.entry(offset).and_modify(|(_, said)| *said = value);
        }
        Ok(())
    }

    /// Raises a word of this process for kernels that read host memory or the BAR.
    pub(super) fn store(&self, word: DeviceOffset, epoch: Epoch) {
        if let Words::Own { words, table } = &self.words
            && let Some(index) = table.find(word)
        {
            set(words.word(index), self.bar.as_ref(), index, epoch.0);
        }
    }

    /// Raises a word in device memory. Does not wait.
    pub(super) fn write_through(
        &self,
        word: DeviceOffset,
        epoch: Epoch,
        service: &Stream,
        memory: &DeviceMemory,
    ) -> Result<(), TransferError> {
        if self.writes_values.get() {
            match service.write_word(memory, word.0, epoch.0) {
                Err(TransferError::Driver(error)) if error.code == status::NOT_SUPPORTED => {
                    self.writes_values.set(false)
                }
                answer => return answer,
            }
        }
        service.fill_word(memory, word.0, epoch.0)
    }

    /// Updates words of this process after a change of device memory. The daemon updates the shared
    /// ones.
    pub(super) fn changed(&mut self, change: impl FnOnce(&mut WordTable, &dyn Fn(usize, u32))) {
        if let Words::Own { words, table } = &mut self.words {
            let bar = self.bar.as_ref();
            change(table, &|index, value| set(words.word(index), bar, index, value));
        }
    }

    /// Raises all bound words, so that every launch that reads one exits.
    pub(super) fn raise_all(&self) {
        let raise = |index: usize, word: &AtomicU32| {
            let epoch = Epoch(word.load(Acquire)).out_of_reach();
            set(word, self.bar.as_ref(), index, epoch.0);
        };
        match &self.words {
            Words::Own { words, table } => table.indices().for_each(|index| raise(index, words.word(index))),
            Words::Shared(shared) => {
                let words = shared.bound.values().filter_map(|(index, _)| Some((*index, shared.word(*index)?)));
                words.for_each(|(index, word)| raise(index, word));
            }
        }
    }
}

/// Sets a word in host memory, and the one behind the BAR if kernels read that one.
fn set(in_host: &AtomicU32, bar: Option<&BarWords>, index: usize, value: u32) {
    in_host.store(value, Release);
    if let Some(bar) = bar {
        bar.store(index, value);
    }
}

fn read_word(word: DeviceOffset, service: &Stream, memory: &DeviceMemory) -> Result<u32, TransferError> {
    let mut bytes = [0; 4];
    service.read(memory, word.0, &mut bytes)?;
    Ok(u32::from_ne_bytes(bytes))
}
