//! Kernels on any device of the runtime: a launch is bound, submitted, evicted and resumed as the
//! engine does it.

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

/// The only queue that is used.
const QUEUE: QueueId = QueueId(0);

/// Offset of the first buffer. Control words of the launch are below, so small offsets from null
/// are never in a buffer.
const BUFFERS_BEGIN: u64 = 1 << 16;

/// Evictions of a launch, for tests of resuming.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evictions {
    /// Time before each eviction.
    pub after: Vec<Duration>,
}

/// Code of a kernel for a device.
pub struct Compiled {
    /// The target of the bundle format.
    pub target: String,
    /// The code.
    pub code: Vec<u8>,
    /// Size of the parameter block.
    pub params_bytes: u32,
    /// Declared shared memory, if the launch has to supply it.
    pub shared_bytes: u32,
    /// Scratch memory per compute unit.
    pub scratch_bytes: u32,
}

/// What distinguishes the devices.
pub trait Machine {
    /// The device.
    type Device: Device;

    /// See [`KernelDevice::captures_output`].
    const CAPTURES_OUTPUT: bool = true;

    /// The device, mutable.
    fn device(&mut self) -> &mut Self::Device;

    /// Properties of the device.
    fn info(&self) -> &DeviceInfo;

    /// Compiles a kernel for its block shape.
    fn compile(&self, kernel: &Kernel<'_>, block: [u32; 3]) -> Result<Compiled, BenchError>;

    /// Restricts kernels to these buffers, starting with the next launch, if the device supports
    /// that.
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
    timeout: Option<Duration>,
}

/// A kernel loaded on a device.
#[derive(Debug)]
pub struct LoadedKernel {
    module: ModuleId,
    function: Function,
    facts: KernelFacts,
    appended: Appended,
    /// Block shape as the kernel sees it.
    block: [u32; 3],
    /// Number of the kernel's own parameters, which precede those appended by passes.
    own_params: usize,
}

/// Device memory needed for buffers of this size.
#[cfg(any(feature = "host", feature = "cuda"))]
pub(crate) fn device_bytes(buffers_bytes: u64) -> u64 {
    buffers_bytes.saturating_add(BUFFERS_BEGIN)
}

impl<M: Machine> DeviceBench<M> {
    /// A bench on a device with [`device_bytes`] of memory.
    #[cfg(any(feature = "host", feature = "cuda"))]
    pub(crate) fn on(machine: M, buffers_bytes: u64) -> DeviceBench<M> {
        DeviceBench { machine, memory_bytes: device_bytes(buffers_bytes), launches: 0, epoch: Epoch(0), timeout: None }
    }

    /// Sets a timeout after which a launch is abandoned ([`BenchError::Stuck`]), for devices that
    /// cannot abort one. The bench cannot be used afterwards, and dropping it may block.
    pub fn with_timeout(self, timeout: Duration) -> DeviceBench<M> {
        DeviceBench { timeout: Some(timeout), ..self }
    }

    /// Upper bound of the device memory for a launch on these buffers. Untouched pages cost
    /// nothing.
    pub fn bytes_for(buffers: &[Buffer]) -> u64 {
        let apart: u64 =
            buffers.iter().map(|b| (b.bytes.len() as u64).next_multiple_of(BUFFER_ALIGN) + BUFFER_ALIGN).sum();
        let fence = Self::fence(buffers);
        apart.max(fence.region.end.max(fence.constants.end))
    }

    /// The memory ranges of a fenced kernel, when launched on these buffers.
    pub fn fence(buffers: &[Buffer]) -> Fence {
        FenceLayout::of(buffers).behind(BUFFERS_BEGIN)
    }

    /// The device, to inspect its memory.
    pub fn device(&mut self) -> &mut M::Device {
        self.machine.device()
    }

    /// Launches a preemptible kernel once, evicts it as requested, and resumes it until it is
    /// complete.
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

    /// Writes control words, parameters and buffers to device memory.
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
            BenchError::Launch(format!("{own} + {dynamic} bytes of shared memory exceed the limit of {most} bytes"))
        })
    }

    fn place(&self, blocks: u64, kernel: &LoadedKernel, buffers: &[Buffer]) -> Result<Places, BenchError> {
        if kernel.function.params.len() > kernel.own_params && kernel.appended.begin().is_none() {
            return Err(BenchError::Launch(format!("a pass appended unknown parameters to `{}`", kernel.facts.name)));
        }
        if kernel.facts.params_bytes as usize > PARAMS_BYTES_MAX {
            let bytes = kernel.facts.params_bytes;
            return Err(BenchError::Launch(format!(
                "{bytes} bytes of parameters exceed the limit of {PARAMS_BYTES_MAX} bytes"
            )));
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
                "the buffers take {end} bytes, but the device has {}",
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

    /// Whether a block exited early, for a kernel without a progress map: only its evicted word
    /// tells.
    fn has_left(&mut self, kernel: &LoadedKernel, bound: &Bound) -> Result<bool, BenchError> {
        let mut word = [0; 4];
        if kernel.facts.preempt_offset.is_some() && !kernel.appended.keeps_progress {
            self.machine.device().read(bound.record.evicted_word, &mut word)?;
        }
        Ok(word != [0; 4])
    }

    /// Submits the launch again under the current epoch.
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
            if let Some(timeout) = self.timeout.filter(|timeout| begun.elapsed() > *timeout) {
                return Err(BenchError::Stuck { entry: kernel.facts.name.clone(), seconds: timeout.as_secs() });
            }
            let fd = self.machine.device().completion_fd();
            // The timeout covers a lost wake-up.
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
                "kernel `{}` failed, and the device reported no reason",
                kernel.facts.name
            ))),
            (LaunchStatus::Aborted, _) => {
                Err(BenchError::Launch(format!("kernel `{}` was aborted unexpectedly", kernel.facts.name)))
            }
        }
    }

    fn read_back(&mut self, bound: &Bound, buffers: &mut [Buffer]) -> Result<(), BenchError> {
        for (&at, buffer) in bound.places.buffers.iter().zip(buffers) {
            self.machine.device().read(DeviceOffset(at), &mut buffer.bytes)?;
        }
        Ok(())
    }
}

/// A prepared launch.
struct Bound {
    record: LaunchRecord,
    params: Vec<u8>,
    places: Places,
}

/// Addresses in device memory.
struct Places {
    buffers: Vec<u64>,
    progress: u64,
    epoch_word: u64,
    evicted_word: u64,
}

impl Places {
    /// All memory that a kernel may access.
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
        let function = kernel.module.function(kernel.entry).expect("the kernel was compiled from this module").clone();
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

    fn captures_output(&self) -> bool {
        M::CAPTURES_OUTPUT
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
        None => Err(BenchError::Launch("the number of blocks of the grid overflows".into())),
    }
}
