//! The device's side of the rings: queues, modules, and the threads that are the compute units.

use super::arena::Arena;
use super::bounds::{self, Bounds, CheckedBuffer};
use super::compute_unit::ComputeUnit;
use super::fault;
use super::helpers;
use super::launch::Launch;
use super::module::Module;
use super::queue::{Bind, Chunk, Claim, DeviceQueue, Outcome, Pacing};
use super::space::KernelSpace;
use super::watchdog::{Watch, Watchdog};
use super::{HostConfig, os};
use atoll_core::LaunchId;
use atoll_device::KeepReports;
use atoll_device::doorbell::FdBell;
use atoll_device::link::{Link, Order, State};
use atoll_device::record::Command;
use atoll_device::report::{Fault, FaultKind};
use atoll_device::ring::Corrupt;
use atoll_device::{DeviceError, ModuleId, ModuleImage, cpus};
use atoll_kgraph::host_abi::HostHelpers;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed, Ordering::SeqCst, fence};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::JoinHandle;

/// State shared by all compute units. Lock order: a queue, then the modules; never two queues.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) link: Link,
    pub(crate) helpers: HostHelpers,
    /// The most scratch memory that any loaded kernel needs, in bytes.
    pub(crate) scratch_bytes: AtomicU32,
    /// Chunks that are running.
    pub(crate) running: AtomicU32,
    /// How long an idle compute unit spins: while no chunk is running, and while some are.
    pub(crate) spin_ns: u64,
    pub(crate) busy_spin_ns: u64,
    pub(crate) watches: Box<[Watch]>,
    pub(crate) time_limit_ns: u64,
    /// The buffers that checked code may access.
    bounds: RwLock<Arc<Bounds>>,
    space: KernelSpace,
    queues: Vec<Mutex<DeviceQueue>>,
    modules: RwLock<HashMap<u32, Arc<Module>>>,
    completion_bell: FdBell,
    shared_bytes_max: u32,
    compute_units: u32,
    /// The process id.
    pub(crate) process: i32,
}

impl Shared {
    /// Takes the first available chunk from these queues; returns it with the index of its queue.
    pub(crate) fn claim(&self, order: &[u32], now_ns: u64) -> Result<Option<(usize, Chunk)>, Corrupt> {
        let (mut place, mut found, mut completed) = (0, None, false);
        while found.is_none()
            && let Some(&queue) = order.get(place)
        {
            let index = queue as usize;
            let claim = self.claim_from(index, now_ns)?;
            completed |= claim.completed > 0;
            if claim.waiting > 0 && self.compute_units > 1 {
                self.link.wake(queue, claim.waiting.min(u64::from(self.compute_units - 1)) as u32);
            }
            let next = if claim.is_cut_short() { 0 } else { place + 1 };
            if claim.waiting > 0 {
                // Plus one, since this compute unit counts as available, for its own chunk.
                self.link.interrupt_for(queue, claim.waiting + 1, self.process);
            }
            if claim.chunk.is_some() {
                self.link.clear_evicted(queue);
            }
            found = claim.chunk.map(|chunk| (index, chunk));
            place = next;
        }
        if completed {
            self.completion_bell.ring(self.link.completion_flag());
        }
        Ok(found)
    }

    fn claim_from(&self, index: usize, now_ns: u64) -> Result<Claim, Corrupt> {
        let mut queue = lock(&self.queues[index]);
        let claim = queue.claim(self, now_ns)?;
        self.publish(index as u32, &mut queue)?;
        Ok(claim)
    }

    /// Ends launches without blocks to run at the heads of their queues. Compute units do this when
    /// they look for work; this function does it while all of them are busy with other queues.
    pub(crate) fn clear_heads(&self, now_ns: u64) -> Result<(), Corrupt> {
        for (index, queue) in self.queues.iter().enumerate() {
            let mut queue = lock(queue);
            let completed = queue.advance(self, now_ns)?;
            self.publish(index as u32, &mut queue)?;
            drop(queue);
            if completed > 0 {
                self.completion_bell.ring(self.link.completion_flag());
            }
        }
        Ok(())
    }

    /// Takes back a chunk that has run; true if its queue has more to run.
    pub(crate) fn finish(&self, queue: usize, outcome: &Outcome) -> Result<bool, Corrupt> {
        self.link.add_busy(outcome.busy_ns());
        let mut queue = lock(&self.queues[queue]);
        let completed = queue.finish(outcome)?;
        let is_runnable = queue.is_runnable()?;
        drop(queue);
        if completed {
            self.completion_bell.ring(self.link.completion_flag());
        }
        Ok(is_runnable)
    }

    /// Marks the device as lost: all threads end, and the engine is woken.
    pub(crate) fn mark_lost(&self) {
        self.link.end(State::Lost);
        self.completion_bell.ring(self.link.completion_flag());
    }

    /// Tells compute units on less urgent queues whether this queue has blocks to run.
    fn publish(&self, index: u32, queue: &mut DeviceQueue) -> Result<(), Corrupt> {
        if queue.is_runnable()? {
            self.link.raise_stop(index);
            return Ok(());
        }
        self.link.clear_stop(index);
        // A submission between the check and the clearing would have been missed.
        fence(SeqCst);
        if queue.is_runnable()? {
            self.link.raise_stop(index);
        }
        Ok(())
    }
}

impl Bind for Shared {
    fn bind(&self, command: Command) -> Result<Launch, (LaunchId, Box<Fault>)> {
        let record = command.record;
        let modules = self.modules.read().unwrap_or_else(PoisonError::into_inner);
        let bounds = self.bounds.read().unwrap_or_else(PoisonError::into_inner).clone();
        Launch::bind(command, &modules, &self.space, bounds, self.shared_bytes_max).map_err(|refusal| {
            tracing::error!(launch = record.launch.0, %refusal, "cannot run a launch");
            let kernel = modules.get(&record.module.0).and_then(|module| module.kernel(record.kernel));
            let kernel = kernel.map_or("", |kernel| &kernel.facts.name);
            (record.launch, Box::new(Fault::of_kernel(FaultKind::Refused { reason: refusal.to_string() }, kernel)))
        })
    }
}

/// Locks even after a panic: the compute unit that panicked has marked the device as lost, and the
/// queue is only torn down.
fn lock(queue: &Mutex<DeviceQueue>) -> MutexGuard<'_, DeviceQueue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The threads and the loaded modules. Dropping this ends the threads.
#[derive(Debug)]
pub(crate) struct DeviceSide {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Dropped after the threads have ended, since ending them may need it.
    _watchdog: Watchdog,
}

impl DeviceSide {
    /// Starts the threads. All of them run when this returns.
    pub(crate) fn start(
        config: &HostConfig,
        link: Link,
        space: KernelSpace,
        completion_bell: FdBell,
        reports: Arc<dyn KeepReports>,
    ) -> Result<DeviceSide, DeviceError> {
        fault::install().map_err(os("install fault handlers"))?;
        let time_limit_ns = u64::try_from(config.time_limit.as_nanos()).unwrap_or(u64::MAX);
        let pacing = Pacing { chunk_ns: config.chunk_ns, time_limit_ns };
        let queue = |queue| Mutex::new(DeviceQueue::new(queue, &link, pacing, reports.clone()));
        let queues = (0..link.shape().all_queues()).map(queue).collect();
        let watches = (0..config.compute_units).map(|_| Watch::default()).collect();
        let shared = Arc::new(Shared {
            link,
            helpers: helpers::table(),
            scratch_bytes: AtomicU32::new(0),
            running: AtomicU32::new(0),
            spin_ns: config.spin_ns,
            busy_spin_ns: config.busy_spin_ns,
            watches,
            time_limit_ns,
            bounds: RwLock::new(Arc::new(space.bounds())),
            space,
            queues,
            modules: RwLock::default(),
            completion_bell,
            shared_bytes_max: config.shared_bytes_max,
            compute_units: config.compute_units,
            process: rustix::process::getpid().as_raw_nonzero().get(),
        });
        let (started, starts) = channel();
        let watchdog = Watchdog::start(shared.clone(), started.clone()).map_err(os("start the watchdog"))?;
        let mut side = DeviceSide { shared, threads: Vec::new(), _watchdog: watchdog };
        for index in 0..config.compute_units {
            side.spawn(index, config.pinned_to().get(index as usize).copied(), started.clone())?;
        }
        drop(started);
        // A jail may forbid the system calls that a thread makes when it starts, so wait until all
        // have started.
        let began = starts.iter().count();
        assert_eq!(began, side.threads.len() + 1, "every thread reports that it started");
        Ok(side)
    }

    fn spawn(&mut self, index: u32, cpu: Option<usize>, started: Sender<()>) -> Result<(), DeviceError> {
        let shared = self.shared.clone();
        let shared_memory = Arena::new(shared.shared_bytes_max).map_err(os("map shared memory of a compute unit"))?;
        let scratch = Arena::new(0).map_err(os("map scratch memory of a compute unit"))?;
        let body = move || {
            let watch = MarkLostOnPanic(&shared);
            if let Some(cpu) = cpu {
                cpus::keep_to(&[cpu]);
            }
            shared.link.unit(index).attach();
            let _ = started.send(());
            drop(started);
            let chunks = shared.link.chunk_writer(index);
            ComputeUnit { index, shared: &shared, shared_memory, scratch, chunks, order: Order::default() }.run();
            drop(watch);
        };
        let thread = std::thread::Builder::new().name(format!("atoll-cu-{index}")).spawn(body);
        self.threads.push(thread.map_err(os("start a compute unit"))?);
        Ok(())
    }

    pub(crate) fn load_module(&mut self, id: ModuleId, image: ModuleImage<'_>) -> Result<(), DeviceError> {
        let module = Module::load(image, self.shared.shared_bytes_max)?;
        self.shared.scratch_bytes.fetch_max(module.scratch_bytes_max(), Relaxed);
        self.shared.modules.write().unwrap_or_else(PoisonError::into_inner).insert(id.0, Arc::new(module));
        // Idle compute units wake up and grow their scratch memory now.
        self.shared.link.bell().ring(self.shared.compute_units);
        Ok(())
    }

    /// Restricts checked code to these buffers, starting with the next launch.
    pub(crate) fn set_checked_buffers(&mut self, buffers: &[CheckedBuffer]) -> Result<(), DeviceError> {
        let range = |buffer: &CheckedBuffer| {
            let outside = |memory_bytes| DeviceError::OutOfRange { at: buffer.at.0, bytes: buffer.bytes, memory_bytes };
            let (begin, end, is_constant) = self.shared.space.range(buffer.at, buffer.bytes).map_err(outside)?;
            Ok(bounds::Range { name: buffer.name.clone(), begin, end, read_only: buffer.read_only || is_constant })
        };
        let bounds = Bounds::new(buffers.iter().map(range).collect::<Result<_, DeviceError>>()?);
        *self.shared.bounds.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(bounds);
        Ok(())
    }

    pub(crate) fn unload_module(&mut self, module: ModuleId) {
        let module = self.shared.modules.write().unwrap_or_else(PoisonError::into_inner).remove(&module.0);
        // Outside the lock, because unmapping code is slow.
        drop(module);
    }
}

impl Drop for DeviceSide {
    fn drop(&mut self) {
        self.shared.link.end(State::Ending);
        for thread in self.threads.drain(..) {
            // A panic was reported when it happened.
            let _ = thread.join();
        }
    }
}

/// Marks the device as lost when its thread panics.
struct MarkLostOnPanic<'a>(&'a Shared);

impl Drop for MarkLostOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.mark_lost();
        }
    }
}
