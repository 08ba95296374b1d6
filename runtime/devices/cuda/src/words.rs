//! Epoch words in host memory that the device sees, beside those in device memory ([`WordTable`]).
//!
//! In the process of the engine, an epoch word gets one of host memory when it is first heard of,
//! and launches find that in their parameters. In an executor, the words are shared with the
//! daemon, which raises them itself and says which is whose; here is only seen that device memory
//! says the same.

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

/// Which epoch words lie in host memory too.
#[derive(Debug)]
pub(super) struct EpochWords {
    words: Words,
    route: FlagRoute,
    /// Where kernels look, if that is the route: a word each beside those of `words`.
    bar: Option<BarWords>,
    /// Whether streams can write values on this device.
    writes_values: Cell<bool>,
}

#[derive(Debug)]
enum Words {
    /// Of this process.
    Own { words: HostWords, table: WordTable },
    /// Of the daemon.
    Shared(SharedWords),
}

/// Words that another process raises.
#[derive(Debug)]
pub(super) struct SharedWords {
    /// Registered with the device from its beginning on.
    region: Arc<Region>,
    memory: Arc<HostMemory>,
    /// Where the first word is.
    at: u64,
    /// Offset in device memory to index of the word, and what device memory says.
    bound: BTreeMap<u64, (usize, u32)>,
}

impl SharedWords {
    pub(super) fn new(region: Arc<Region>, memory: Arc<HostMemory>, at: u64) -> SharedWords {
        SharedWords { region, memory, at, bound: BTreeMap::new() }
    }

    /// A word; `None` where the daemon names one that is not there.
    fn word(&self, index: usize) -> Option<&AtomicU32> {
        self.region.word(self.at + index as u64 * 4).filter(|_| index < WORDS_MAX)
    }
}

impl EpochWords {
    /// `bar` has [`WORDS_MAX`] words, where the route is through it.
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

    /// Sets a word of this process, where kernels see it.
    fn set(words: &HostWords, bar: Option<&BarWords>, index: usize, value: u32) {
        words.word(index).store(value, Release);
        if let Some(bar) = bar {
            bar.store(index, value);
        }
    }

    /// Sees that a word that lies in device memory has one that the host raises by a store, if that
    /// is where kernels are to look and there is one left.
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
                EpochWords::set(words, self.bar.as_ref(), index, value);
            }
        }
        Ok(())
    }

    /// Where kernels find a word, unless that is in device memory.
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

    /// Gives an offset a word that is shared, and sets that to what device memory says.
    pub(super) fn bind(
        &mut self,
        word: DeviceOffset,
        index: usize,
        service: &Stream,
        memory: &DeviceMemory,
    ) -> Result<(), TransferError> {
        let Words::Shared(shared) = &mut self.words else { return Ok(()) };
        let value = read_word(word, service, memory)?;
        // Whoever had it before has none now.
        shared.bound.retain(|_, (other, _)| *other != index);
        if let Some(in_host) = shared.word(index) {
            in_host.store(value, Release);
            if let Some(bar) = &self.bar {
                bar.store(index, value);
            }
            shared.bound.insert(word.0, (index, value));
        }
        Ok(())
    }

    /// Writes through what was raised by the other process. Does not wait.
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

    /// Raises a word for kernels that look where the host writes.
    pub(super) fn store(&self, word: DeviceOffset, epoch: Epoch) {
        if let Words::Own { words, table } = &self.words
            && let Some(index) = table.find(word)
        {
            EpochWords::set(words, self.bar.as_ref(), index, epoch.0);
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
                Err(TransferError::Driver(error)) if error.code == status::NOT_SUPPORTED => {
                    self.writes_values.set(false)
                }
                answer => return answer,
            }
        }
        service.fill_word(memory, word.0, epoch.0)
    }

    /// Device memory was changed: what words of this process follow. The daemon sees to those that
    /// it shares.
    pub(super) fn changed(&mut self, change: impl FnOnce(&mut WordTable, &dyn Fn(usize, u32))) {
        if let Words::Own { words, table } = &mut self.words {
            let bar = self.bar.as_ref();
            change(table, &|index, value| EpochWords::set(words, bar, index, value));
        }
    }

    /// Has every launch leave that can.
    pub(super) fn raise_all(&self) {
        let raise = |index: usize, word: &AtomicU32| {
            let epoch = Epoch(word.load(Acquire)).out_of_reach();
            word.store(epoch.0, Release);
            if let Some(bar) = &self.bar {
                bar.store(index, epoch.0);
            }
        };
        match &self.words {
            Words::Own { words, table } => table.indices().for_each(|index| raise(index, words.word(index))),
            Words::Shared(shared) => {
                shared
                    .bound
                    .values()
                    .filter_map(|(index, _)| Some((*index, shared.word(*index)?)))
                    .for_each(|(index, word)| raise(index, word));
            }
        }
    }
}

fn read_word(word: DeviceOffset, service: &Stream, memory: &DeviceMemory) -> Result<u32, TransferError> {
    let mut bytes = [0; 4];
    service.read(memory, word.0, &mut bytes)?;
    Ok(u32::from_ne_bytes(bytes))
}
