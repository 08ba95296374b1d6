//! Epoch words in host memory that the device can read, in addition to those in device memory
//! ([`WordTable`]).
//!
//! If the device is in the engine's process, an epoch word is bound to a host word when it is first
//! watched, and launches get its address as a parameter. In an executor, the host words are shared
//! with the daemon, which raises them and decides the bindings; here they are only copied to device
//! memory.

use crate::driver::{Driver, DriverError};
use atoll_core::{DeviceOffset, Epoch};
use atoll_device::shm::Region;
use atoll_device::word_table::{WORDS_MAX, WordTable};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Release};

/// Where kernels read epochs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EpochPlace {
    /// In mapped host memory; raising is one store.
    Mapped,
    /// In device memory, written through a stream.
    Device,
}

/// The epoch words that also exist in host memory.
#[derive(Debug)]
pub(crate) struct EpochWords<D: Driver> {
    words: Words<D>,
    place: EpochPlace,
    /// Whether streams can write values on this device.
    writes_values: Cell<bool>,
}

#[derive(Debug)]
enum Words<D: Driver> {
    /// Words of this process.
    Own { words: D::Words, table: WordTable },
    /// Words shared with the daemon.
    Shared(SharedWords<D>),
}

/// Words that another process raises.
#[derive(Debug)]
pub(crate) struct SharedWords<D: Driver> {
    /// Registered with the device from its beginning.
    region: Arc<Region>,
    memory: Arc<D::Registered>,
    /// Offset of the first word in the region.
    at: u64,
    /// By offset in device memory: the index of the shared word, and the value last written to
    /// device memory.
    bound: BTreeMap<u64, (usize, u32)>,
}

impl<D: Driver> SharedWords<D> {
    pub(crate) fn new(region: Arc<Region>, memory: Arc<D::Registered>, at: u64) -> SharedWords<D> {
        SharedWords { region, memory, at, bound: BTreeMap::new() }
    }

    /// The word with an index; `None` if the daemon passes an invalid one.
    fn word(&self, index: usize) -> Option<&AtomicU32> {
        self.region.word(self.at + index as u64 * 4).filter(|_| index < WORDS_MAX)
    }
}

impl<D: Driver> EpochWords<D> {
    pub(crate) fn new(context: &Arc<D::Context>, place: EpochPlace) -> Result<EpochWords<D>, D::Error> {
        let words = D::words(context, WORDS_MAX)?;
        Ok(EpochWords {
            words: Words::Own { words, table: WordTable::default() },
            place,
            writes_values: Cell::new(true),
        })
    }

    /// Uses words that another process raises from now on.
    pub(crate) fn share(&mut self, words: SharedWords<D>) {
        self.words = Words::Shared(words);
    }

    /// Binds an epoch word to a host word, if kernels read host memory and a host word is free.
    pub(crate) fn watch(
        &mut self,
        word: DeviceOffset,
        service: &D::Stream,
        memory: &D::Memory,
    ) -> Result<(), D::Error> {
        if self.place == EpochPlace::Mapped
            && let Words::Own { words, table } = &mut self.words
            && table.find(word).is_none()
        {
            let value = read_word::<D>(word, service, memory)?;
            if let Some(index) = table.bind(word) {
                D::word(words, index).store(value, Release);
            }
        }
        Ok(())
    }

    /// The address where kernels read an epoch word; `None` if they read it in device memory.
    pub(crate) fn find(&self, word: DeviceOffset) -> Option<u64> {
        if self.place == EpochPlace::Device {
            return None;
        }
        let (index, begin) = match &self.words {
            Words::Own { words, table } => (table.find(word)?, D::words_address(words)),
            Words::Shared(shared) => (shared.bound.get(&word.0)?.0, D::registered_address(&shared.memory) + shared.at),
        };
        Some(begin + index as u64 * 4)
    }

    /// Binds an offset to a shared word, and sets that word to the value in device memory.
    pub(crate) fn bind(
        &mut self,
        word: DeviceOffset,
        index: usize,
        service: &D::Stream,
        memory: &D::Memory,
    ) -> Result<(), D::Error> {
        let Words::Shared(shared) = &mut self.words else { return Ok(()) };
        let value = read_word::<D>(word, service, memory)?;
        // The index may have been bound to another offset before.
        shared.bound.retain(|_, (other, _)| *other != index);
        if let Some(in_host) = shared.word(index) {
            in_host.store(value, Release);
            shared.bound.insert(word.0, (index, value));
        }
        Ok(())
    }

    /// Copies words that the other process raised to device memory. Does not wait.
    pub(crate) fn follow(&mut self, service: &D::Stream, memory: &D::Memory) -> Result<(), D::Error> {
        let Words::Shared(shared) = &self.words else { return Ok(()) };
        let now = |(offset, (index, said)): (&u64, &(usize, u32))| {
            let value = shared.word(*index)?.load(Acquire);
            (value != *said).then_some((*offset, value))
        };
        let raised: Vec<(u64, u32)> = shared.bound.iter().filter_map(now).collect();
        for (offset, value) in raised {
            self.write_through(DeviceOffset(offset), Epoch(value), service, memory)?;
            let Words::Shared(shared) = &mut self.words else { return Ok(()) };
            shared.bound.entry(offset).and_modify(|(_, said)| *said = value);
        }
        Ok(())
    }

    /// The value of an epoch word in host memory; `None` if the word is not there.
    pub(crate) fn value(&self, word: DeviceOffset) -> Option<Epoch> {
        let in_host = match &self.words {
            Words::Own { words, table } => D::word(words, table.find(word)?),
            Words::Shared(shared) => shared.word(shared.bound.get(&word.0)?.0)?,
        };
        Some(Epoch(in_host.load(Acquire)))
    }

    /// Raises a word of this process for kernels that read host memory.
    pub(crate) fn store(&self, word: DeviceOffset, epoch: Epoch) {
        if let Words::Own { words, table } = &self.words
            && let Some(index) = table.find(word)
        {
            D::word(words, index).store(epoch.0, Release);
        }
    }

    /// Raises a word in device memory. The range must be inside the memory. Does not wait.
    pub(crate) fn write_through(
        &self,
        word: DeviceOffset,
        epoch: Epoch,
        service: &D::Stream,
        memory: &D::Memory,
    ) -> Result<(), D::Error> {
        if self.writes_values.get() {
            match D::write_word(service, memory, word.0, epoch.0) {
                Err(error) if error.is_not_supported() => self.writes_values.set(false),
                answer => return answer,
            }
        }
        D::fill_word(service, memory, word.0, epoch.0)
    }

    /// Updates words of this process after a change of device memory. The daemon updates the shared
    /// ones.
    pub(crate) fn changed(&mut self, change: impl FnOnce(&mut WordTable, &dyn Fn(usize, u32))) {
        if let Words::Own { words, table } = &mut self.words {
            change(table, &|index, value| D::word(words, index).store(value, Release));
        }
    }

    /// Raises all bound words, so that every launch that reads one exits.
    pub(crate) fn raise_all(&self) {
        let raise = |word: &AtomicU32| word.store(Epoch(word.load(Acquire)).out_of_reach().0, Release);
        match &self.words {
            Words::Own { words, table } => table.indices().for_each(|index| raise(D::word(words, index))),
            Words::Shared(shared) => {
                shared.bound.values().filter_map(|(index, _)| shared.word(*index)).for_each(raise);
            }
        }
    }
}

fn read_word<D: Driver>(word: DeviceOffset, service: &D::Stream, memory: &D::Memory) -> Result<u32, D::Error> {
    let mut bytes = [0; 4];
    D::read(service, memory, word.0, &mut bytes)?;
    Ok(u32::from_ne_bytes(bytes))
}
