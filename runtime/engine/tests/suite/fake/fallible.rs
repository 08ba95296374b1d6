//! A fake device that can lose its memory, with all constants and all launches in flight, like a
//! GPU whose executor process ends.
//!
//! Memory has a number in the upper bits of its offsets (except for constants). A loss changes the
//! number, and offsets with an old number are refused.

use super::{FakeDevice, MEMORY_BYTES, Refusal};
use atoll_core::{DeviceOffset, Epoch, LaunchId, QueueId};
use atoll_device::*;
use std::collections::{HashMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering::SeqCst;

const NUMBER_SHIFT: u32 = 32;

pub(crate) struct FallibleDevice {
    inner: Box<FakeDevice>,
    number: u64,
    /// Launches that still run on the inner device.
    in_flight: Vec<LaunchId>,
    is_losing: bool,
    constants_lost: bool,
    failed: VecDeque<Completion>,
    reports: HashMap<LaunchId, LaunchReport>,
}

impl FallibleDevice {
    pub(crate) fn new(inner: Box<FakeDevice>) -> Box<FallibleDevice> {
        Box::new(FallibleDevice {
            inner,
            number: 1,
            in_flight: Vec::new(),
            is_losing: false,
            constants_lost: false,
            failed: VecDeque::new(),
            reports: HashMap::new(),
        })
    }

    fn is_gone(&self) -> bool {
        self.is_losing || self.constants_lost
    }

    /// The offset in the inner device of an offset of a constant or of the current memory; an error
    /// for an older memory.
    fn within(&self, at: DeviceOffset) -> Result<DeviceOffset, DeviceError> {
        let (number, within) = (at.0 >> NUMBER_SHIFT, at.0 & ((1 << NUMBER_SHIFT) - 1));
        let is_there = !self.is_gone() && (number == 0 || number == self.number);
        if is_there { Ok(DeviceOffset(within)) } else { Err(gone()) }
    }

    fn fail(&mut self, launch: LaunchId) {
        let fault = FaultKind::Lost { cause: "the device lost its memory".into(), may_have_run: true };
        self.reports
            .insert(launch, LaunchReport { fault: Some(Fault::of_kernel(fault, "")), ..LaunchReport::default() });
        self.failed.push_back(Completion::unrun(launch, LaunchStatus::Failed));
    }

    /// Starts or continues a loss: all launches in flight fail, and when none of them is running
    /// any more, the memory is replaced.
    fn advance(&mut self) {
        self.is_losing |= self.inner.shared.loses_memory.swap(false, SeqCst);
        if !self.is_losing {
            return;
        }
        while let Some(completion) = self.inner.next_completion() {
            self.in_flight.retain(|launch| *launch != completion.launch);
            self.fail(completion.launch);
        }
        if self.in_flight.is_empty() {
            self.inner.fill(DeviceOffset(0), 0xEE, MEMORY_BYTES).expect("the test does not lose it");
            self.number += 1;
            (self.is_losing, self.constants_lost) = (false, true);
        }
    }
}

fn gone() -> DeviceError {
    DeviceError::DomainLost("the device lost its memory".into())
}

impl Device for FallibleDevice {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    fn completion_fd(&self) -> BorrowedFd<'_> {
        self.inner.completion_fd()
    }
}

impl Launching for FallibleDevice {
    fn store_epoch(&self, word: DeviceOffset, epoch: Epoch) {
        if let Ok(word) = self.within(word) {
            self.inner.store_epoch(word, epoch);
        }
    }

    fn submit(&mut self, queue: QueueId, record: &LaunchRecord, params: &[u8]) -> Result<(), SubmitError> {
        let mut params = params.to_vec();
        let mut is_there = true;
        let mut here = |at: DeviceOffset| {
            self.within(at).unwrap_or_else(|_| {
                is_there = false;
                at
            })
        };
        for slot in record.address_slots.iter() {
            let bytes = &mut params[slot * 8..slot * 8 + 8];
            let at = u64::from_le_bytes((&*bytes).try_into().expect("eight bytes"));
            bytes.copy_from_slice(&here(DeviceOffset(at)).0.to_le_bytes());
        }
        let record =
            LaunchRecord { evicted_word: here(record.evicted_word), epoch_word: here(record.epoch_word), ..*record };
        if !is_there {
            self.fail(record.launch);
            return Ok(());
        }
        self.inner.submit(queue, &record, &params)?;
        self.in_flight.push(record.launch);
        Ok(())
    }

    fn abort(&mut self, queue: QueueId, launch: LaunchId) {
        if self.in_flight.contains(&launch) && !self.is_losing {
            self.inner.abort(queue, launch);
        }
    }

    fn next_completion(&mut self) -> Option<Completion> {
        self.advance();
        // Launches of a queue end in order, including refused ones.
        let first = (0..self.failed.len()).min_by_key(|at| self.failed[*at].launch.0);
        if let Some(first) = first.filter(|at| self.in_flight.iter().all(|launch| *launch > self.failed[*at].launch)) {
            return self.failed.remove(first);
        }
        // Launches that end during a loss fail, and must not overtake earlier failed ones that wait
        // for their turn.
        if self.is_losing {
            return None;
        }
        let completion = self.inner.next_completion()?;
        self.in_flight.retain(|launch| *launch != completion.launch);
        Some(completion)
    }

    fn report(&mut self, launch: LaunchId) -> Option<LaunchReport> {
        self.reports.remove(&launch).or_else(|| self.inner.report(launch))
    }
}

impl Memory for FallibleDevice {
    fn write(&mut self, at: DeviceOffset, bytes: &[u8]) -> Result<(), DeviceError> {
        if self.inner.refuses(Refusal::Piece) {
            return Err(DeviceError::Driver("it refuses the bytes".into()));
        }
        self.inner.write(self.within(at)?, bytes)
    }

    fn read(&mut self, at: DeviceOffset, bytes: &mut [u8]) -> Result<(), DeviceError> {
        if self.inner.shared.loses_memory_at_read.swap(false, SeqCst) {
            self.is_losing = true;
            rustix::io::write(&self.inner.shared.completed, &1_u64.to_ne_bytes()).expect("an eventfd takes ones");
        }
        self.inner.read(self.within(at)?, bytes)
    }

    fn copy(&mut self, from: DeviceOffset, to: DeviceOffset, bytes: u64) -> Result<(), DeviceError> {
        self.inner.copy(self.within(from)?, self.within(to)?, bytes)
    }

    fn fill(&mut self, at: DeviceOffset, value: u8, bytes: u64) -> Result<(), DeviceError> {
        self.inner.fill(self.within(at)?, value, bytes)
    }

    fn give_back(&mut self, at: DeviceOffset, bytes: u64) -> Result<(), DeviceError> {
        self.within(at).map_or(Ok(()), |at| self.inner.give_back(at, bytes))
    }
}

impl Constants for FallibleDevice {
    fn reserve_constant(&mut self, at: DeviceOffset, bytes: u64) -> Result<(), DeviceError> {
        self.inner.reserve_constant(at, bytes)
    }

    fn release_constant(&mut self, at: DeviceOffset) {
        self.inner.release_constant(at);
    }

    fn show_constants(&mut self, domain: &str, constants: &[DeviceOffset]) {
        self.inner.show_constants(domain, constants);
    }

    fn hide_constants(&mut self, domain: &str, constants: &[DeviceOffset]) {
        self.inner.hide_constants(domain, constants);
    }

    fn sees_constants(&self, domain: &str) -> bool {
        self.inner.sees_constants(domain)
    }

    fn take_constants_lost(&mut self) -> bool {
        std::mem::take(&mut self.constants_lost)
    }
}

impl Modules for FallibleDevice {
    fn load_module(&mut self, image: ModuleImage<'_>) -> Result<ModuleId, DeviceError> {
        self.inner.load_module(image)
    }

    fn unload_module(&mut self, module: ModuleId) {
        self.inner.unload_module(module);
    }
}

impl Domains for FallibleDevice {
    fn domain(&mut self, _name: &str) -> Result<DeviceOffset, DeviceError> {
        if self.is_gone() { Err(gone()) } else { Ok(DeviceOffset(self.number << NUMBER_SHIFT)) }
    }

    fn domain_state(&self, _name: &str) -> DomainState {
        if self.is_gone() { DomainState::Restarting } else { DomainState::Ready }
    }

    fn is_unready(&self) -> bool {
        self.is_gone()
    }
}

impl Lanes for FallibleDevice {}

impl Telemetry for FallibleDevice {
    fn busy_ns(&self) -> Option<u64> {
        self.inner.busy_ns()
    }
}
