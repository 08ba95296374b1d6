//! A device that records the calls it receives, so that they can be replayed without an engine.

use anyhow::{Context, Result, ensure};
use atoll_core::{DeviceOffset, Epoch, LaunchId, QueueId};
use atoll_device::{
    Completion, Constants, Device, DeviceError, DeviceInfo, Domains, Lanes, LaunchRecord, LaunchReport, LaunchStatus,
    Launching, Memory, ModuleId, ModuleImage, Modules, SubmitError, Telemetry,
};
use atoll_device_host::{HostConfig, HostDevice};
use atoll_executor::{ExecutorConfig, ExecutorDevice};
use rustix::event::{PollFd, PollFlags, poll};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The calls of an invocation to the device.
#[derive(Default)]
struct Tape {
    fills: Vec<(DeviceOffset, u8, u64)>,
    launches: Vec<(QueueId, LaunchRecord, Vec<u8>)>,
}

/// The device and its tape; clones share both.
#[derive(Clone)]
pub(super) struct Deck {
    device: Arc<Mutex<Box<dyn Device>>>,
    tape: Arc<Mutex<Tape>>,
    records: Arc<AtomicBool>,
}

/// Location of the compute units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Threads of this process.
    Here,
    /// An executor process.
    Executor,
}

/// What the replaying thread does while it waits for a completion.
#[derive(Clone, Copy)]
pub(super) enum Idle {
    /// Sleeps until a completion, like the engine's thread; the wake-up is part of the measurement.
    Sleep,
    /// Polls, on a CPU of its own or on one that a compute unit could use.
    Spin,
}

impl Deck {
    pub(super) fn start(config: HostConfig, place: Place) -> Result<Deck> {
        let device: Box<dyn Device> = match place {
            Place::Here => Box::new(HostDevice::start(config).context("cannot start the host device")?),
            Place::Executor => Box::new(
                ExecutorConfig::new(config).and_then(ExecutorDevice::start).context("cannot start an executor")?,
            ),
        };
        Ok(Deck { device: Arc::new(Mutex::new(device)), tape: Arc::default(), records: Arc::default() })
    }

    /// The device for an engine.
    pub(super) fn device(&self) -> Result<Box<dyn Device>> {
        let device = lock(&self.device);
        let (info, completions) = (device.info().clone(), device.completion_fd().try_clone_to_owned()?);
        Ok(Box::new(Taped { deck: self.clone(), info, completions }))
    }

    /// Starts or stops recording.
    pub(super) fn record(&self, on: bool) {
        self.records.store(on, Ordering::Relaxed);
    }

    /// Number of launches on the tape.
    pub(super) fn launches(&self) -> usize {
        lock(&self.tape).launches.len()
    }

    /// Replays the tape, with as many launches in the queue as the engine allows, and returns the
    /// duration.
    pub(super) fn replay(&self, in_queue: usize, idle: Idle) -> Result<Duration> {
        let (mut device, tape) = (lock(&self.device), lock(&self.tape));
        for &(at, value, bytes) in &tape.fills {
            device.fill(at, value, bytes)?;
        }
        let started = Instant::now();
        let (mut submitted, mut ended) = (0, 0);
        while ended < tape.launches.len() {
            if let Some(completion) = device.next_completion() {
                ensure!(
                    completion.status == LaunchStatus::Complete,
                    "a launch of an empty kernel ended as {:?}",
                    completion.status
                );
                ended += 1;
            } else if submitted == ended + in_queue || submitted == tape.launches.len() {
                match idle {
                    Idle::Sleep => {
                        poll(&mut [PollFd::new(&device.completion_fd(), PollFlags::IN)], None)?;
                    }
                    Idle::Spin => std::hint::spin_loop(),
                }
            }
            while submitted < tape.launches.len() && submitted < ended + in_queue {
                let (queue, record, params) = &tape.launches[submitted];
                device.submit(*queue, record, params)?;
                submitted += 1;
            }
        }
        Ok(started.elapsed())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The device as passed to the engine. Its uncontended lock costs a few nanoseconds.
struct Taped {
    deck: Deck,
    info: DeviceInfo,
    completions: OwnedFd,
}

impl Taped {
    fn device(&self) -> MutexGuard<'_, Box<dyn Device>> {
        lock(&self.deck.device)
    }

    fn records(&self) -> bool {
        self.deck.records.load(Ordering::Relaxed)
    }
}

impl Device for Taped {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn lost(&self) -> Option<String> {
        self.device().lost()
    }

    fn completion_fd(&self) -> BorrowedFd<'_> {
        self.completions.as_fd()
    }
}

impl Launching for Taped {
    fn store_epoch(&self, word: DeviceOffset, epoch: Epoch) {
        self.device().store_epoch(word, epoch);
    }

    fn submit(&mut self, queue: QueueId, record: &LaunchRecord, params: &[u8]) -> Result<(), SubmitError> {
        if self.records() {
            lock(&self.deck.tape).launches.push((queue, *record, params.to_vec()));
        }
        self.device().submit(queue, record, params)
    }

    fn abort(&mut self, queue: QueueId, launch: LaunchId) {
        self.device().abort(queue, launch);
    }

    fn next_completion(&mut self) -> Option<Completion> {
        self.device().next_completion()
    }

    fn report(&mut self, launch: LaunchId) -> Option<LaunchReport> {
        self.device().report(launch)
    }
}

impl Memory for Taped {
    fn write(&mut self, at: DeviceOffset, bytes: &[u8]) -> Result<(), DeviceError> {
        self.device().write(at, bytes)
    }

    fn read(&mut self, at: DeviceOffset, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.device().read(at, bytes)
    }

    fn copy(&mut self, from: DeviceOffset, to: DeviceOffset, bytes: u64) -> Result<(), DeviceError> {
        self.device().copy(from, to, bytes)
    }

    fn fill(&mut self, at: DeviceOffset, value: u8, bytes: u64) -> Result<(), DeviceError> {
        if self.records() {
            lock(&self.deck.tape).fills.push((at, value, bytes));
        }
        self.device().fill(at, value, bytes)
    }

    fn give_back(&mut self, at: DeviceOffset, bytes: u64) -> Result<(), DeviceError> {
        self.device().give_back(at, bytes)
    }
}

impl Constants for Taped {
    fn reserve_constant(&mut self, at: DeviceOffset, bytes: u64) -> Result<(), DeviceError> {
        self.device().reserve_constant(at, bytes)
    }

    /// Ignored, like unloading modules: the replay needs the constants.
    fn release_constant(&mut self, _at: DeviceOffset) {}

    fn show_constants(&mut self, domain: &str, constants: &[DeviceOffset]) {
        self.device().show_constants(domain, constants);
    }

    fn sees_constants(&self, domain: &str) -> bool {
        self.device().sees_constants(domain)
    }
}

impl Modules for Taped {
    fn load_module(&mut self, image: ModuleImage<'_>) -> Result<ModuleId, DeviceError> {
        self.device().load_module(image)
    }

    /// Ignored: the replay needs the modules.
    fn unload_module(&mut self, _module: ModuleId) {}
}

impl Domains for Taped {}

impl Lanes for Taped {}

impl Telemetry for Taped {
    fn busy_ns(&self) -> Option<u64> {
        self.device().busy_ns()
    }
}
