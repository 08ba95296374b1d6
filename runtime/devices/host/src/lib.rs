//! The host device: runs native code of transformed kernels on CPU cores.
//!
//! A compute unit is a worker thread, and a block runs on one compute unit from beginning to end.
//! The device has two sides that share nothing but memory:
//!
//! ```text
//! engine's side                    shared memory                      device's side
//! EngineSide ── launches ──▶ command ring per queue ──────▶ DeviceQueue ── chunks ──▶ ComputeUnit (threads)
//!            ◀── ends ────── completion ring per queue ◀──
//!            ── raise ─────▶ epoch words, stop words, progress maps ─────────────────▶ kernels
//!            ── write ─────▶ memory; constants, which kernels cannot write ──────────▶ kernels
//! ```
//!
//! No thread is between a submission and a compute unit: compute units take records from the rings
//! themselves, and sleeping ones are woken by a futex. Queue 0 is the most urgent. A submission
//! sets the *stop word* of compute units that run preemptible blocks of less urgent queues. They
//! return after the current block (the progress map tells where they stopped), and their launch
//! resumes later. If that block is long and may run again, they are interrupted in the middle of it
//! (`interrupt`). So a real-time launch waits for one short block at most, however much work is
//! queued. Raising the epoch is only needed to remove the launches behind that block from the
//! queue.
//!
//! A kernel that traps or faults fails its launch (`fault`), and so does one that exceeds its time
//! limit (`watchdog`). The report gives block, thread and line of PTX as far as they are known
//! (`diagnose`). A launch is aborted the same way when the engine asks for it through a word of its
//! queue. A stray store may have hit anything in the process, unless the code was compiled with
//! checks that confine each access to its own buffer (`bounds`); therefore untrusted code belongs
//! in an executor process (`atoll-executor`).
//!
//! Not here: the order of tasks, which the engine decides, the compiler of native code, and
//! executor processes (`atoll-executor`).
//!
//! Start reading at [`HostDevice`], then `device_side`, `queue` and `compute_unit`.
//!
//! # Invariants
//!
//! - The launches of a queue run in order, one at a time. A block runs on one compute unit at a
//!   time.
//! - A launch without a progress map is never stopped between blocks, and a block is interrupted
//!   only if it may run again. A block whose progress byte is set does not run again.
//! - The device's side checks every record before it runs it: module, kernel, grid, parameters and
//!   addresses (`launch`). A record that fails the check completes as failed.
//! - Code stays mapped as long as a launch of it is active, even if its module is unloaded.
//! - A compute unit that panics, or finds a ring corrupt, marks the device as lost; all launches in
//!   flight then complete as failed.
//! - Locks are taken in this order: a queue, then the modules; never two queues. No lock is held
//!   while a kernel runs.

mod arena;
mod bounds;
mod compute_unit;
mod cpu;
mod device_side;
mod diagnose;
mod draft;
mod elf;
mod fault;
mod helpers;
mod image;
mod launch;
mod line_table;
mod module;
mod queue;
mod run_time;
mod space;
mod watchdog;

mod config;
mod executed;

pub use bounds::CheckedBuffer;
pub use config::HostConfig;
pub use executed::KIND;

use atoll_core::{DeviceOffset, Epoch, LaneId, LaunchId, QueueId};
use atoll_device::extent::{Window, discard};
use atoll_device::link::EngineSide;
use atoll_device::space::{CONSTANTS_BASE, ConstantStore, EngineSpace, constants_window, memory_region};
use atoll_device::{
    ChunkRecord, Completion, ComputeUnitUse, Constants, Device, DeviceError, DeviceInfo, Domains, Lane, LaneSpec,
    LaneTable, LaneUnits, Lanes, LaunchRecord, LaunchReport, Launching, Memory, ModuleId, ModuleImage, Modules,
    Reports, SubmitError, Telemetry,
};
use device_side::DeviceSide;
use space::KernelSpace;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// The host device with its compute units in this process.
#[derive(Debug)]
pub struct HostDevice {
    info: DeviceInfo,
    engine_side: EngineSide,
    lanes: LaneTable,
    space: EngineSpace,
    device_side: DeviceSide,
    /// The address range in which kernels find constants.
    window: Arc<Window>,
    reports: Arc<Reports>,
    modules_loaded: u32,
}

impl HostDevice {
    /// Reserves memory and starts the compute units.
    pub fn start(config: HostConfig) -> Result<HostDevice, DeviceError> {
        let config = config.checked()?;
        let space = EngineSpace {
            memory: memory_region(config.memory_bytes)?,
            constants: ConstantStore::new(config.constants_bytes),
        };
        let window = Arc::new(constants_window(config.constants_bytes)?);
        let kernel_space = KernelSpace::new(space.memory.clone(), window.clone());
        let engine_side = EngineSide::new(config.link_shape())?;
        let reports = Arc::new(Reports::default());
        let device_side = DeviceSide::start(
            &config,
            engine_side.link.clone(),
            kernel_space,
            engine_side.device_bell()?,
            reports.clone(),
        )?;
        let lanes = LaneTable::new(config.link_shape(), config.compute_units, LaneUnits::Any);
        Ok(HostDevice {
            info: config.info(),
            engine_side,
            lanes,
            space,
            device_side,
            window,
            reports,
            modules_loaded: 0,
        })
    }

    /// Restricts checked code to these buffers, its module's variables and its block's own memory,
    /// starting with the next launch. Before the first call it may access all device memory.
    /// Buffers must not overlap.
    pub fn set_checked_buffers(&mut self, buffers: &[CheckedBuffer]) -> Result<(), DeviceError> {
        self.device_side.set_checked_buffers(buffers)
    }
}

impl Launching for HostDevice {
    fn store_epoch(&self, word: DeviceOffset, epoch: Epoch) {
        self.space.store_epoch(word, epoch);
    }

    /// # Panics
    /// If the device has no such queue.
    fn submit(&mut self, queue: QueueId, record: &LaunchRecord, params: &[u8]) -> Result<(), SubmitError> {
        self.engine_side.submit(queue, record, params)
    }

    /// # Panics
    /// If the device has no such queue.
    fn interrupt(&mut self, queue: QueueId, launch: LaunchId, blocks: u64) {
        self.engine_side.interrupt(queue, launch, blocks);
    }

    /// # Panics
    /// If the device has no such queue.
    fn abort(&mut self, queue: QueueId, launch: LaunchId) {
        self.engine_side.abort(queue, launch);
    }

    fn next_completion(&mut self) -> Option<Completion> {
        let completion = self.engine_side.next_completion();
        completion.or_else(|| if self.engine_side.is_lost() { Some(self.engine_side.abandon()?.1) } else { None })
    }

    fn report(&mut self, launch: LaunchId) -> Option<LaunchReport> {
        self.reports.take(launch)
    }
}

impl Memory for HostDevice {
    fn write(&mut self, at: DeviceOffset, bytes: &[u8]) -> Result<(), DeviceError> {
        self.space.place(at).write(bytes)
    }

    fn read(&mut self, at: DeviceOffset, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.space.place(at).read(bytes)
    }

    fn copy(&mut self, from: DeviceOffset, to: DeviceOffset, bytes: u64) -> Result<(), DeviceError> {
        self.space.place(from).copy_to(self.space.place(to), bytes)
    }

    fn fill(&mut self, at: DeviceOffset, value: u8, bytes: u64) -> Result<(), DeviceError> {
        self.space.place(at).fill(value, bytes)
    }

    fn give_back(&mut self, at: DeviceOffset, bytes: u64) -> Result<(), DeviceError> {
        self.space.place(at).give_back(bytes)
    }
}

impl Constants for HostDevice {
    fn reserve_constant(&mut self, at: DeviceOffset, bytes: u64) -> Result<(), DeviceError> {
        let file = self.space.constants.reserve(at, bytes)?.read_only();
        let shown = file.and_then(|file| self.window.show(at.0 - CONSTANTS_BASE.0, bytes, file.as_fd()));
        shown.map_err(os("map a constant")).inspect_err(|_| self.release_constant(at))
    }

    fn release_constant(&mut self, at: DeviceOffset) {
        let Some(extent) = self.space.constants.release(at) else { return };
        if let Err(error) = self.window.hide(at.0 - CONSTANTS_BASE.0, extent.bytes()) {
            tracing::error!(%error, "cannot unmap a constant");
        }
        discard(extent);
    }
}

impl Modules for HostDevice {
    fn load_module(&mut self, image: ModuleImage<'_>) -> Result<ModuleId, DeviceError> {
        let module = ModuleId(self.modules_loaded);
        self.modules_loaded += 1;
        self.device_side.load_module(module, image).map(|()| module)
    }

    fn unload_module(&mut self, module: ModuleId) {
        self.device_side.unload_module(module);
    }
}

impl Domains for HostDevice {}

impl Lanes for HostDevice {
    fn open_lane(&mut self, spec: &LaneSpec) -> Result<Lane, DeviceError> {
        let lane = self.lanes.open(spec)?;
        self.engine_side.open_lane(&lane, &spec.units);
        Ok(lane)
    }

    fn close_lane(&mut self, lane: LaneId) -> Result<(), DeviceError> {
        let queues = self.lanes.find(lane)?.queues.clone();
        if !self.engine_side.is_idle(queues.clone()) {
            return Err(DeviceError::Lanes(format!("lane {} holds launches", lane.0)));
        }
        self.engine_side.close_lane(queues);
        self.lanes.close(lane);
        Ok(())
    }
}

impl Telemetry for HostDevice {
    fn busy_ns(&self) -> Option<u64> {
        Some(self.engine_side.link.busy_ns())
    }

    fn compute_units(&self) -> Vec<ComputeUnitUse> {
        self.engine_side.compute_units()
    }

    fn take_chunks(&mut self, max: u64, take: &mut dyn FnMut(Option<&str>, ChunkRecord)) -> u64 {
        self.engine_side.take_chunks(max, &mut |chunk| take(None, chunk))
    }
}

impl Device for HostDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn lost(&self) -> Option<String> {
        self.engine_side.is_lost().then(|| "a compute unit died".to_owned())
    }

    fn completion_fd(&self) -> BorrowedFd<'_> {
        self.engine_side.completion_fd()
    }
}

/// Wraps an error of the operating system.
fn os<E: Into<std::io::Error>>(what: &'static str) -> impl Fn(E) -> DeviceError {
    move |source| DeviceError::Os { what, source: source.into() }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use atoll_device::LaunchStatus;
    use atoll_device::link::State;

    fn device() -> HostDevice {
        HostDevice::start(HostConfig { compute_units: 1, memory_bytes: 1 << 20, ..HostConfig::default() }).unwrap()
    }

    /// A launch that cannot run, because no module is loaded.
    fn record(launch: u64) -> LaunchRecord {
        LaunchRecord {
            launch: LaunchId(launch),
            module: ModuleId(0),
            kernel: 0,
            grid: [1; 3],
            shared_bytes: 0,
            address_slots: atoll_device::AddressSlots::NONE,
            evicted_word: DeviceOffset(0),
            epoch_word: DeviceOffset(0),
            epoch: Epoch(0),
            preemptible: 0,
            may_run_again: 0,
            followed: 0,
        }
    }

    #[test]
    fn a_lost_device_completes_every_launch_it_accepted() {
        let mut device = device();
        (0..4).for_each(|launch| device.submit(QueueId(0), &record(launch), &[]).unwrap());
        device.engine_side.link.end(State::Lost);
        assert_eq!(device.submit(QueueId(0), &record(9), &[]), Err(SubmitError::Lost));
        for launch in 0..4 {
            let completion = device.next_completion().unwrap();
            assert_eq!((completion.launch, completion.status), (LaunchId(launch), LaunchStatus::Failed));
        }
        assert_eq!(device.next_completion(), None);
    }

    #[test]
    fn an_unexpected_completion_means_that_the_device_is_lost() {
        let mut device = device();
        let (_, mut forger) = device.engine_side.link.device_ends(1);
        let completion = Completion::unrun(LaunchId(7), LaunchStatus::Complete);
        forger.push(&completion.to_words()).unwrap();
        assert_eq!(device.next_completion(), None);
        assert_eq!(device.submit(QueueId(0), &record(0), &[]), Err(SubmitError::Lost));
    }

    #[test]
    fn the_completion_descriptor_is_readable_while_completions_wait() {
        let mut device = device();
        let readable = |device: &HostDevice, wait_ms: i64| {
            let fd = device.completion_fd();
            let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
            let timeout = rustix::event::Timespec { tv_sec: 0, tv_nsec: wait_ms * 1_000_000 };
            rustix::event::poll(&mut fds, Some(&timeout)).unwrap() == 1
        };
        assert!(!readable(&device, 0));
        for launch in 0..100 {
            device.submit(QueueId(0), &record(launch), &[]).unwrap();
            while device.engine_side.in_flight() > 0 {
                assert!(readable(&device, 999));
                while device.next_completion().is_some() {}
            }
            // The last completion's bell may still be pending; the next call silences it.
            while device.next_completion().is_some()
                || device.engine_side.link.completion_flag().load(std::sync::atomic::Ordering::SeqCst) == 1
            {
            }
            assert!(!readable(&device, 0));
        }
    }
}
