//! Kernels on a device of the runtime, whatever it is: a launch is bound, submitted, evicted and
//! resumed as the engine would.

use crate::appended::Appended;
use crate::block::{ParameterBlock, parameter_count};
use crate::error::BenchError;
use crate::fence::Fence;
use crate::fence::{BUFFER_ALIGN, FenceLayout};
use crate::launch::{Buffer, Kernel, KernelDevice, Launch, Outcome};
use atoll_core::{DeviceOffset, Epoch, LaunchId, QueueId};
use atoll_device::{
    AddressSlots, Completion, Device, DeviceInfo, LaunchRecord, LaunchStatus, Launching, Memory, ModuleId, ModuleImage,
    Modules, PARAMS_BYTES_MAX,
};
use atoll_device_host::CheckedBuffer;
use atoll_kgraph::KernelFacts;
use atoll_kgraph::target::preempt_params;
use atoll_ptx::Function;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::time::{Duration, Instant};

/// The one queue that is used.
const QUEUE: QueueId = QueueId(0);

/// Where buffers begin; below lie a launch's control words, and an address of null plus a little is
/// nobody's.
const BUFFERS_BEGIN: u64 = 1 << 16;

/// Evictions of a launch, for those who want to see it resumed: a wait before each, after which the
/// epoch is raised.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evictions {
    /// How long the launch runs before each eviction.
    pub after: Vec<Duration>,
}

/// What a kernel became on a device.
pub struct Compiled {
    /// The bundle target it is for.
    pub target: String,
    /// Its code.
    pub code: Vec<u8>,
    /// Size of its parameter block.
    pub params_bytes: u32,
    /// Shared memory that it declares, where a launch has to give it.
    pub shared_bytes: u32,
    /// Scratch memory of a compute unit.
    pub scratch_bytes: u32,
}

/// What differs between the devices that kernels are tried on.
pub trait Machine {
    /// The device.
    type Device: Device;

    /// See [`KernelDevice::hears`].
    const HEARS: bool = true;

    /// The device.
    fn device(&mut self) -> &mut Self::Device;

    /// The device, to ask it.
    fn info(&self) -> &DeviceInfo;

    /// Makes code of a kernel, for its block shape.
    fn compile(&self, kernel: &Kernel<'_>, block: [u32; 3]) -> Result<Compiled, BenchError>;

    /// From the next launch on, kernels may access these buffers alone, on devices that can hold
    /// them to that.
    fn check_buffers(&mut self, _buffers: &dyn Fn() -> Vec<CheckedBuffer>) -> Result<(), BenchError> {
        Ok(())
    }
}

/// A device for single kernels.
#[derive(Debug)]
pub struct DeviceBench<M> {
    pub(crate) machine: M,
    memory_bytes: u64,
    launches: u64,
    epoch: Epoch,
    patience: Option<Duration>,
}

/// A kernel on a device.
#[derive(Debug)]
pub struct LoadedKernel {
    module: ModuleId,
    function: Function,
    facts: KernelFacts,
    appended: Appended,
    /// Block shape as the kernel sees it.
    block: [u32; 3],
    /// Parameters that are the kernel's own; behind them stand those that passes appended.
    own_params: usize,
}

/// Device memory that buffers of so many bytes take.
#[cfg(any(feature = "host", feature = "cuda"))]
pub(crate) fn device_bytes(buffers_bytes: u64) -> u64 {
    buffers_bytes.saturating_add(BUFFERS_BEGIN)
}

impl<M: Machine> DeviceBench<M> {
    /// On a device with [`device_bytes`] of memory.
    #[cfg(any(feature = "host", feature = "cuda"))]
    pub(crate) fn on(machine: M, buffers_bytes: u64) -> DeviceBench<M> {
        DeviceBench { machine, memory_bytes: device_bytes(buffers_bytes), launches: 0, epoch: Epoch(0), patience: None }
    }

    /// Gives a launch up that has not ended by then ([`BenchError::Stuck`]). For devices that
    /// cannot stop one; such a bench is good for nothing more, and dropping it may wait.
    pub fn with_patience(self, patience: Duration) -> DeviceBench<M> {
        DeviceBench { patience: Some(patience), ..self }
    }

    /// Bytes of device memory that a launch on these buffers takes at most. Pages that nobody
    /// touches cost nothing.
    pub fn bytes_for(buffers: &[Buffer]) -> u64 {
        let apart: u64 =
            buffers.iter().map(|b| (b.bytes.len() as u64).next_multiple_of(BUFFER_ALIGN) + BUFFER_ALIGN).sum();
        let fence = Self::fence(buffers);
        apart.max(fence.region.end.max(fence.constants.end))
    }

    /// Where a fenced kernel's memory lies when it is launched on these buffers.
    pub fn fence(buffers: &[Buffer]) -> Fence {
        FenceLayout::of(buffers).behind(BUFFERS_BEGIN)
    }

    /// The device, for those who look at its memory from outside.
    pub fn device(&mut self) -> &mut M::Device {
        self.machine.device()
    }

    /// Launches a preemptible kernel once, evicts it as told and resumes it until it is complete.
    pub fn launch_evicted(
        &mut self,
        kernel: &LoadedKernel,
        launch: &Launch,
        buffers: &mut [Buffer],
        evictions: &Evictions,
    ) -> Result<Outcome, BenchError> {
        let mut bound = self.bind(kernel, launch, buffers)?;
        let mut outcome = Outcome::default();
        for wait in evictions.after.iter().map(Some).chain([None]) {
            self.submit(&bound)?;
            if let Some(wait) = wait {
                std::thread::sleep(*wait);
                self.epoch = Epoch(self.epoch.0.wrapping_add(1));
                self.machine.device().store_epoch(bound.record.epoch_word, self.epoch);
            }
            let completion = self.wait(kernel, &mut outcome)?;
            outcome.times.push(elapsed(&completion));
            if completion.status == LaunchStatus::Complete && !self.has_left(kernel, &bound)? {
                break;
            }
            outcome.evictions += 1;
            self.resume(kernel, &mut bound)?;
        }
        self.read_back(&bound, buffers)?;
        Ok(outcome)
    }

    /// Control words, parameters and buffers, in device memory.
    fn bind(&mut self, kernel: &LoadedKernel, launch: &Launch, buffers: &[Buffer]) -> Result<Bound, BenchError> {
        let blocks = blocks(launch)?;
        let mut block = ParameterBlock::new(&kernel.function, kernel.own_params, &launch.args, buffers)?;
        let places = self.place(blocks, kernel, buffers)?;
        for (&at, buffer) in places.buffers.iter().zip(buffers) {
            self.machine.device().write(DeviceOffset(at), &buffer.bytes)?;
        }
        let mut address_slots = AddressSlots::NONE;
        let mut set = |bytes: &mut [u8], at: usize, offset: u64| {
            bytes[at..at + 8].copy_from_slice(&offset.to_le_bytes());
            address_slots.insert(at / 8);
        };
        for (at, buffer, offset) in block.addresses {
            set(&mut block.bytes, at, places.buffers[buffer] + offset);
        }
        block.bytes.resize(block.bytes.len().max(kernel.appended.end() as usize), 0);
        for (at, offset) in kernel.appended.write_fence(&mut block.bytes, &Self::fence(buffers), launch.shared_bytes) {
            set(&mut block.bytes, at, offset);
        }
        kernel.appended.write_virtual(&mut block.bytes, launch.grid, kernel.block);
        if let Some(offset) = kernel.facts.preempt_offset {
            let at = |param: u32| (offset + param) as usize;
            set(&mut block.bytes, at(preempt_params::EPOCH_WORD), places.epoch_word);
            set(&mut block.bytes, at(preempt_params::EVICTED_WORD), places.evicted_word);
            set(&mut block.bytes, at(preempt_params::PROGRESS), places.progress);
            block.bytes[at(preempt_params::ISSUED_EPOCH)..][..4].copy_from_slice(&self.epoch.0.to_le_bytes());
            self.machine.device().store_epoch(DeviceOffset(places.epoch_word), self.epoch);
            self.machine.device().write(DeviceOffset(places.evicted_word), &[0; 4])?;
            self.machine.device().fill(DeviceOffset(places.progress), 0, blocks)?;
        }
        let record = LaunchRecord {
            launch: LaunchId(self.launches),
            module: kernel.module,
            kernel: 0,
            grid: kernel.appended.real_grid(launch.grid)?,
            shared_bytes: self.shared_bytes(kernel, launch)?,
            address_slots,
            evicted_word: DeviceOffset(places.evicted_word),
            epoch_word: DeviceOffset(places.epoch_word),
            epoch: self.epoch,
            preemptible: u32::from(kernel.appended.keeps_progress),
            may_run_again: 0,
            followed: 0,
        };
        self.machine.check_buffers(&|| places.checked(buffers, blocks))?;
        Ok(Bound { record, params: block.bytes, places })
    }

    fn shared_bytes(&self, kernel: &LoadedKernel, launch: &Launch) -> Result<u32, BenchError> {
        let most = self.machine.info().shared_bytes_max;
        let bytes = kernel.facts.shared_bytes.checked_add(launch.shared_bytes).filter(|b| *b <= most);
        bytes.ok_or_else(|| {
            let (own, dynamic) = (kernel.facts.shared_bytes, launch.shared_bytes);
            BenchError::Launch(format!("{own} + {dynamic} bytes of shared memory; a compute unit has {most}"))
        })
    }

    fn place(&self, blocks: u64, kernel: &LoadedKernel, buffers: &[Buffer]) -> Result<Places, BenchError> {
        if kernel.function.params.len() > kernel.own_params && kernel.appended.begin().is_none() {
            return Err(BenchError::Launch(format!(
                "nothing is known about the parameters that a pass appended to `{}`",
                kernel.facts.name
            )));
        }
        if kernel.facts.params_bytes as usize > PARAMS_BYTES_MAX {
            let bytes = kernel.facts.params_bytes;
            return Err(BenchError::Launch(format!("{bytes} bytes of parameters; a device takes {PARAMS_BYTES_MAX}")));
        }
        let mut end = BUFFERS_BEGIN;
        let mut take = |bytes: u64| {
            let at = end;
            end = end.saturating_add(bytes.next_multiple_of(BUFFER_ALIGN) + BUFFER_ALIGN);
            at
        };
        let buffers = if kernel.appended.fence.is_some() {
            let layout = FenceLayout::of(buffers);
            let fence = layout.behind(BUFFERS_BEGIN);
            take(fence.region.end.max(fence.constants.end).saturating_sub(BUFFERS_BEGIN));
            layout.addresses(fence.region.start, fence.constants.start)
        } else {
            buffers.iter().map(|b| take(b.bytes.len() as u64)).collect()
        };
        let progress = take(if kernel.facts.preempt_offset.is_some() { blocks } else { 0 });
        if end > self.memory_bytes {
            return Err(BenchError::Launch(format!(
                "the buffers take {end} bytes, the device has {}",
                self.memory_bytes
            )));
        }
        Ok(Places { buffers, progress, epoch_word: 256, evicted_word: 512 })
    }

    fn submit(&mut self, bound: &Bound) -> Result<(), BenchError> {
        let record = LaunchRecord { launch: LaunchId(self.launches), ..bound.record };
        self.launches += 1;
        self.machine.device().submit(QUEUE, &record, &bound.params).map_err(|e| BenchError::Launch(e.to_string()))
    }

    /// Whether a block of a kernel left that the device does not watch, because it keeps no
    /// progress map: only the kernel itself says so.
    fn has_left(&mut self, kernel: &LoadedKernel, bound: &Bound) -> Result<bool, BenchError> {
        let mut word = [0; 4];
        if kernel.facts.preempt_offset.is_some() && !kernel.appended.keeps_progress {
            self.machine.device().read(bound.record.evicted_word, &mut word)?;
        }
        Ok(word != [0; 4])
    }

    /// Issues the launch anew under the epoch that is now.
    fn resume(&mut self, kernel: &LoadedKernel, bound: &mut Bound) -> Result<(), BenchError> {
        self.machine.device().write(bound.record.evicted_word, &[0; 4])?;
        bound.record.epoch = self.epoch;
        if let Some(offset) = kernel.facts.preempt_offset {
            bound.params[(offset + preempt_params::ISSUED_EPOCH) as usize..][..4]
                .copy_from_slice(&self.epoch.0.to_le_bytes());
        }
        Ok(())
    }

    fn wait(&mut self, kernel: &LoadedKernel, outcome: &mut Outcome) -> Result<Completion, BenchError> {
        let begun = Instant::now();
        let completion = loop {
            if let Some(completion) = self.machine.device().next_completion() {
                break completion;
            }
            if let Some(patience) = self.patience.filter(|patience| begun.elapsed() > *patience) {
                return Err(BenchError::Stuck { entry: kernel.facts.name.clone(), seconds: patience.as_secs() });
            }
            let fd = self.machine.device().completion_fd();
            // A wake-up that gets lost costs a moment, not the answer.
            let timeout = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
            let _ = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout));
        };
        let report = self.machine.device().report(completion.launch).unwrap_or_default();
        outcome.printed.push_str(&report.printed);
        outcome.printed_lost_bytes += report.printed_lost_bytes;
        match (completion.status, report.fault) {
            (LaunchStatus::Complete | LaunchStatus::Evicted, _) => Ok(completion),
            (LaunchStatus::Failed, Some(fault)) => {
                Err(BenchError::Fault { fault: Box::new(fault), printed: std::mem::take(&mut outcome.printed) })
            }
            (LaunchStatus::Failed, None) => Err(BenchError::Launch(format!(
                "kernel `{}` failed, and the device does not say why",
                kernel.facts.name
            ))),
            (LaunchStatus::Aborted, _) => Err(BenchError::Launch(format!(
                "kernel `{}` was aborted, and nobody asked for that",
                kernel.facts.name
            ))),
        }
    }

    fn read_back(&mut self, bound: &Bound, buffers: &mut [Buffer]) -> Result<(), BenchError> {
        for (&at, buffer) in bound.places.buffers.iter().zip(buffers) {
            self.machine.device().read(DeviceOffset(at), &mut buffer.bytes)?;
        }
        Ok(())
    }
}

/// A launch on its way.
struct Bound {
    record: LaunchRecord,
    params: Vec<u8>,
    places: Places,
}

/// Where things lie in device memory.
struct Places {
    buffers: Vec<u64>,
    progress: u64,
    epoch_word: u64,
    evicted_word: u64,
}

impl Places {
    /// Everything that a kernel may access.
    fn checked(&self, buffers: &[Buffer], blocks: u64) -> Vec<CheckedBuffer> {
        let own = [
            ("epoch word", self.epoch_word, 4, true),
            ("evicted word", self.evicted_word, 4, false),
            ("progress map", self.progress, blocks, false),
        ];
        let given =
            buffers.iter().zip(&self.buffers).map(|(b, &at)| (b.name.as_str(), at, b.bytes.len() as u64, !b.writable));
        own.into_iter()
            .chain(given)
            .map(|(name, at, bytes, read_only)| CheckedBuffer {
                name: name.into(),
                at: DeviceOffset(at),
                bytes,
                read_only,
            })
            .collect()
    }
}

impl<M: Machine> KernelDevice for DeviceBench<M> {
    type Loaded = LoadedKernel;

    fn load(&mut self, kernel: &Kernel<'_>) -> Result<LoadedKernel, BenchError> {
        let appended = Appended::of(kernel)?;
        let block = appended.real_block(kernel.block);
        let Compiled { target, code, params_bytes, shared_bytes, scratch_bytes } =
            self.machine.compile(kernel, block)?;
        let function = kernel.module.function(kernel.entry).expect("it was compiled").clone();
        let facts = KernelFacts {
            name: kernel.entry.to_owned(),
            block,
            params_bytes,
            preempt_offset: appended.preempt,
            shared_bytes: shared_bytes + appended.shared_bytes,
            scratch_bytes,
            ..KernelFacts::default()
        };
        let image =
            ModuleImage { domain: "", target: &target, code: &code, ptx: None, kernels: std::slice::from_ref(&facts) };
        let module = self.machine.device().load_module(image)?;
        let own_params = parameter_count(&function, appended.begin());
        Ok(LoadedKernel { module, function, facts, appended, block: kernel.block, own_params })
    }

    fn launch(
        &mut self,
        kernel: &LoadedKernel,
        launch: &Launch,
        buffers: &mut [Buffer],
        repeat: u32,
    ) -> Result<Outcome, BenchError> {
        let mut outcome = Outcome::default();
        let bound = self.bind(kernel, launch, buffers)?;
        for repetition in 0..repeat.max(1) {
            if repetition > 0 && kernel.facts.preempt_offset.is_some() {
                self.machine.device().fill(DeviceOffset(bound.places.progress), 0, blocks(launch)?)?;
            }
            self.submit(&bound)?;
            let mut each = Outcome::default();
            let completion = self.wait(kernel, &mut each)?;
            outcome.times.push(elapsed(&completion));
            if repetition == 0 {
                self.read_back(&bound, buffers)?;
                (outcome.printed, outcome.printed_lost_bytes) = (each.printed, each.printed_lost_bytes);
            }
        }
        Ok(outcome)
    }

    fn unload(&mut self, kernel: LoadedKernel) {
        self.machine.device().unload_module(kernel.module);
    }

    fn hears(&self) -> bool {
        M::HEARS
    }
}

fn elapsed(completion: &Completion) -> Duration {
    Duration::from_nanos(completion.ended_ns.saturating_sub(completion.started_ns))
}

fn blocks(launch: &Launch) -> Result<u64, BenchError> {
    let count = launch.grid.iter().try_fold(1u64, |n, g| n.checked_mul(u64::from(*g)));
    match count {
        Some(0) => Err(BenchError::Launch("the grid is empty".into())),
        Some(count) => Ok(count),
        None => Err(BenchError::Launch("the grid has more blocks than can be counted".into())),
    }
}
