//! The host device, and launches on it.
//!
//! Every launch uses its own device queue while it runs. The host device runs launches of one queue
//! one after the other, and launches of different queues concurrently. Streams of higher priority
//! use queues of higher priority.

use crate::fault_state::FaultState;
use crate::options::Options;
use crate::status::Status;
use crate::table::Handle;
use atoll_core::{DeviceOffset, Epoch, LaneId, LaunchId, QueueId};
use atoll_device::report::{Fault, FaultKind};
use atoll_device::{
    AddressSlots, Completion, Device as _, DeviceError, LaneSpec, Lanes as _, LaunchRecord, LaunchStatus,
    Launching as _, ModuleId, ModuleImage, Modules as _,
};
use atoll_device_host::{HostConfig, HostDevice};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// The highest stream priority, numerically the lowest; 0 is the lowest priority.
pub(crate) const PRIORITY_MIN: i32 = -2;

/// Device queues per priority, highest first: all queues of the host device that are not for lanes.
const QUEUES: [u32; 3] = [8, 8, 15];

/// Device queues per priority for a part of the device, which is a lane of the host device.
const PART_QUEUES: [u32; 3] = [2, 2, 2];

/// Device queues in order of priority, each for one launch at a time.
#[derive(Debug)]
pub(crate) struct Queues {
    first: u32,
    per_priority: [u32; 3],
    /// Queues without a launch.
    free: Mutex<Vec<u32>>,
    freed: Condvar,
}

impl Queues {
    fn new(first: u32, per_priority: [u32; 3]) -> Queues {
        let all = first..first + per_priority.iter().sum::<u32>();
        Queues { first, per_priority, free: Mutex::new(all.collect()), freed: Condvar::new() }
    }

    /// Waits for a free queue of a priority.
    fn take(&self, priority: i32) -> u32 {
        let level = (priority.clamp(PRIORITY_MIN, 0) - PRIORITY_MIN) as usize;
        let first = self.first + self.per_priority[..level].iter().sum::<u32>();
        let range = first..first + self.per_priority[level];
        let mut free = lock(&self.free);
        loop {
            if let Some(place) = free.iter().position(|queue| range.contains(queue)) {
                return free.swap_remove(place);
            }
            free = self.freed.wait(free).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn give(&self, queue: u32) {
        lock(&self.free).push(queue);
        self.freed.notify_all();
    }
}

/// Some of a device's compute units; freed when dropped.
#[derive(Debug)]
pub(crate) struct Part {
    device: Arc<Device>,
    lane: LaneId,
    queues: Queues,
}

impl Drop for Part {
    fn drop(&mut self) {
        // All launches in it have ended: each holds the part while it runs.
        let _ = lock(&self.device.host).close_lane(self.lane);
    }
}

/// Where a launch runs.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// 0 or less; lower is more urgent.
    pub(crate) priority: i32,
    /// The part of the device; `None` for the whole device. Only the green context owns the part,
    /// so it is freed when the green context is destroyed, even if streams and their threads still
    /// exist.
    pub(crate) part: Option<Weak<Part>>,
}

/// Dynamic plus static shared memory of a block in bytes, as on large GPUs.
pub(crate) const SHARED_BYTES_MAX: u32 = 227 << 10;

/// A device of the driver.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) ordinal: u32,
    host: Mutex<HostDevice>,
    queues: Queues,
    in_flight: Mutex<HashMap<LaunchId, Flight>>,
    launches: AtomicU64,
    verbose: bool,
}

/// A launch in flight.
#[derive(Debug)]
struct Flight {
    queue: QueueId,
    context: Handle,
    answer: Sender<Result<(), Status>>,
}

/// A launch with everything that the device needs.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    pub(crate) grid: [u32; 3],
    /// Static plus dynamic.
    pub(crate) shared_bytes: u32,
    pub(crate) params: Vec<u8>,
}

impl Device {
    /// Starts the compute units.
    pub(crate) fn start(ordinal: u32, options: &Options) -> Result<Arc<Device>, DeviceError> {
        let config = HostConfig {
            name: format!("stand-in:{ordinal}"),
            compute_units: options.compute_units,
            // Device memory is allocated elsewhere (`memory`).
            memory_bytes: 1 << 20,
            constants_bytes: 1 << 20,
            queues: QUEUES.iter().sum(),
            paired_queues: false,
            queue_capacity: 1,
            shared_bytes_max: SHARED_BYTES_MAX,
            cpus: vec![],
            time_limit: options.time_limit.unwrap_or(Duration::MAX),
            ..HostConfig::default()
        };
        let host = HostDevice::start(config)?;
        let bell = host.completion_fd().try_clone_to_owned();
        let bell = bell.map_err(|source| DeviceError::Os { what: "duplicate an eventfd", source })?;
        let device = Arc::new(Device {
            ordinal,
            host: Mutex::new(host),
            queues: Queues::new(0, QUEUES),
            in_flight: Mutex::default(),
            launches: AtomicU64::new(0),
            verbose: options.verbose,
        });
        let completer = device.clone();
        let thread =
            std::thread::Builder::new().name(format!("stand-in-{ordinal}")).spawn(move || completer.complete(&bell));
        thread.map_err(|source| DeviceError::Os { what: "start a thread", source })?;
        Ok(device)
    }

    pub(crate) fn load(&self, image: ModuleImage<'_>) -> Result<ModuleId, DeviceError> {
        lock(&self.host).load_module(image)
    }

    pub(crate) fn unload(&self, module: ModuleId) {
        lock(&self.host).unload_module(module);
    }

    /// Runs a launch of a context and waits for its end.
    pub(crate) fn run(
        &self,
        fault_state: &FaultState,
        place: &Place,
        module: ModuleId,
        order: &Order,
    ) -> Result<(), Status> {
        let part = match &place.part {
            Some(part) => Some(part.upgrade().ok_or(Status::ContextIsDestroyed)?),
            None => None,
        };
        let queues = part.as_ref().map_or(&self.queues, |part| &part.queues);
        let queue = queues.take(place.priority);
        let outcome = self.run_in(QueueId(queue), fault_state, module, order);
        queues.give(queue);
        outcome
    }

    /// Reserves a part with these compute units; an error if there are too many parts.
    pub(crate) fn part(self: &Arc<Device>, units: Vec<u32>) -> Result<Part, Status> {
        let queues = PART_QUEUES.iter().sum();
        let lane = lock(&self.host).open_lane(&LaneSpec { units, queues }).map_err(|_| Status::OutOfMemory)?;
        Ok(Part { device: self.clone(), lane: lane.id, queues: Queues::new(lane.queues.start, PART_QUEUES) })
    }

    /// Aborts all launches of a context.
    pub(crate) fn abort(&self, context: Handle) {
        let launches: Vec<(LaunchId, QueueId)> = lock(&self.in_flight)
            .iter()
            .filter(|(_, flight)| flight.context == context)
            .map(|(launch, flight)| (*launch, flight.queue))
            .collect();
        let mut host = lock(&self.host);
        launches.into_iter().for_each(|(launch, queue)| host.abort(queue, launch));
    }

    fn run_in(&self, queue: QueueId, fault_state: &FaultState, module: ModuleId, order: &Order) -> Result<(), Status> {
        let launch = LaunchId(self.launches.fetch_add(1, Relaxed));
        let record = LaunchRecord {
            launch,
            module,
            kernel: 0,
            grid: order.grid,
            shared_bytes: order.shared_bytes,
            // Pointers in the parameters are addresses already.
            address_slots: AddressSlots::NONE,
            evicted_word: DeviceOffset(0),
            epoch_word: DeviceOffset(0),
            epoch: Epoch(0),
            preemptible: 0,
            may_run_again: 0,
            followed: 0,
        };
        let (answer, answered) = channel();
        lock(&self.in_flight).insert(launch, Flight { queue, context: fault_state.context, answer });
        let mut host = lock(&self.host);
        // A thread that ends a context first changes its state and then takes this lock to abort
        // launches in flight.
        let is_refused = fault_state.check().is_err() || host.submit(queue, &record, &order.params).is_err();
        drop(host);
        if is_refused {
            lock(&self.in_flight).remove(&launch);
            return Err(Status::LaunchFailed);
        }
        answered.recv().unwrap_or(Err(Status::LaunchFailed))
    }

    /// Delivers completions to waiting threads; runs as long as the process.
    fn complete(&self, bell: &OwnedFd) {
        loop {
            while let Some((completion, fault)) = self.next_completion() {
                let Some(flight) = lock(&self.in_flight).remove(&completion.launch) else { continue };
                let _ = flight.answer.send(self.status_of(&completion, fault));
            }
            // The timeout bounds the delay if a wake-up is lost.
            let timeout = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
            let _ = poll(&mut [PollFd::new(bell, PollFlags::IN)], Some(&timeout));
        }
    }

    fn next_completion(&self) -> Option<(Completion, Option<Fault>)> {
        let mut host = lock(&self.host);
        let completion = host.next_completion()?;
        let report = host.report(completion.launch).unwrap_or_default();
        drop(host);
        show(&report.printed);
        Some((completion, report.fault))
    }

    /// The driver's status for the end of a launch.
    fn status_of(&self, completion: &Completion, fault: Option<Fault>) -> Result<(), Status> {
        match completion.status {
            LaunchStatus::Complete | LaunchStatus::Evicted => return Ok(()),
            LaunchStatus::Aborted => return Err(Status::LaunchFailed),
            LaunchStatus::Failed => {}
        }
        let Some(fault) = fault else { return Err(Status::LaunchFailed) };
        if self.verbose {
            crate::log::log(&fault);
        }
        Err(match fault.kind {
            FaultKind::BadAddress { .. } | FaultKind::OutOfBounds => Status::IllegalAddress,
            FaultKind::Misaligned => Status::MisalignedAddress,
            FaultKind::BadInstruction { .. } => Status::IllegalInstruction,
            FaultKind::Assert => Status::Assert,
            FaultKind::TimeLimit { .. } => Status::LaunchTimeout,
            FaultKind::Trap
            | FaultKind::Unreachable
            | FaultKind::Deadlock
            | FaultKind::Refused { .. }
            | FaultKind::Ended
            | FaultKind::Fatal { .. }
            | FaultKind::Lost { .. } => Status::LaunchFailed,
        })
    }
}

/// Prints the output of kernels to standard output, as a GPU's driver does.
fn show(printed: &str) {
    use std::io::Write;
    if !printed.is_empty() {
        let _ = std::io::stdout().write_all(printed.as_bytes());
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
