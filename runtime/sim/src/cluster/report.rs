//! Results of a cluster simulation.

use super::setup::Arrival;
use atoll_core::Counters;

/// One dispatch that led to an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scheduled {
    /// When it was dispatched to the device, in nanoseconds.
    pub start_ns: u64,
    /// The request.
    pub arrival: Arrival,
    /// Index of the device.
    pub device: usize,
    /// Whether its constants had to be loaded.
    pub cold: bool,
    /// When it was answered.
    pub end_ns: u64,
}

/// Times of a set of answered requests.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Waits {
    /// Number of requests.
    pub jobs: usize,
    /// Mean time from arrival to dispatch, in nanoseconds.
    pub mean_wait_ns: f64,
    /// 99th percentile of the time from arrival to dispatch, in nanoseconds.
    pub p99_wait_ns: u64,
    /// Mean time from arrival to answer, in nanoseconds.
    pub mean_completion_ns: f64,
    /// 99th percentile of the time from arrival to answer, in nanoseconds.
    pub p99_completion_ns: u64,
}

impl Waits {
    fn of<'a>(schedule: impl Iterator<Item = &'a Scheduled>) -> Waits {
        let times: Vec<(u64, u64)> =
            schedule.map(|s| (s.start_ns - s.arrival.at_ns, s.end_ns - s.arrival.at_ns)).collect();
        let (mut waits, mut completions): (Vec<u64>, Vec<u64>) = times.into_iter().unzip();
        let mean = |times: &[u64]| {
            let sum: u128 = times.iter().map(|time| u128::from(*time)).sum();
            if times.is_empty() { 0.0 } else { sum as f64 / times.len() as f64 }
        };
        Waits {
            jobs: waits.len(),
            mean_wait_ns: mean(&waits),
            p99_wait_ns: percentile(&mut waits, 99),
            mean_completion_ns: mean(&completions),
            p99_completion_ns: percentile(&mut completions, 99),
        }
    }
}

/// The percentile by nearest rank; 0 if there are no times.
fn percentile(times: &mut [u64], percent: usize) -> u64 {
    if times.is_empty() {
        return 0;
    }
    let rank = (times.len() * percent).div_ceil(100).max(1) - 1;
    *times.select_nth_unstable(rank).1
}

/// Results of a function.
#[derive(Clone, Debug, PartialEq)]
pub struct FunctionReport {
    /// Its name.
    pub name: String,
    /// Times of its answered requests.
    pub waits: Waits,
}

/// What the launch schedulers of all devices did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaunchReport {
    /// Launches submitted to devices, repeated ones included.
    pub launches: u64,
    /// Times a request was evicted in favour of another one.
    pub preemptions: u64,
    /// Launches that exited early.
    pub evicted_launches: u64,
    /// Launches with blocks of other requests.
    pub padded_launches: u64,
}

impl LaunchReport {
    pub(super) fn add(&mut self, counters: Counters) {
        self.launches += counters.issued_launches;
        self.preemptions += counters.preemptions;
        self.evicted_launches += counters.evicted_launches;
        self.padded_launches += counters.padded_launches;
    }
}

/// What the memory decisions of all devices did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryReport {
    /// Functions whose constants were loaded completely.
    pub loads: u64,
    /// Bytes of device memory that their constants took: those that were evicted, and those that
    /// are still held.
    pub loaded_bytes: u64,
    /// Bytes copied to devices, including those of loads that did not end.
    pub copied_bytes: u64,
    /// Functions whose constants were evicted.
    pub evictions: u64,
    /// Bytes of device memory that their constants took.
    pub evicted_bytes: u64,
    /// Bytes of the constants on the devices at the end, or when a device was lost.
    pub held_bytes: u64,
    /// The largest use of a device's memory, including that of requests.
    pub used_bytes_max: u64,
}

impl MemoryReport {
    pub(super) fn add(&mut self, of_device: MemoryReport) {
        self.loads += of_device.loads;
        self.loaded_bytes += of_device.loaded_bytes;
        self.copied_bytes += of_device.copied_bytes;
        self.evictions += of_device.evictions;
        self.evicted_bytes += of_device.evicted_bytes;
        self.held_bytes += of_device.held_bytes;
        self.used_bytes_max = self.used_bytes_max.max(of_device.used_bytes_max);
    }
}

/// Results of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterReport {
    /// Times of all answered requests.
    pub waits: Waits,
    /// Results by function, in the order of the cluster.
    pub functions: Vec<FunctionReport>,
    /// When the last request was answered, in nanoseconds.
    pub total_ns: u64,
    /// Number of dispatches to devices that did not hold the function.
    pub cold: usize,
    /// Number of loads that the pool requested ahead of requests.
    pub loads: usize,
    /// Number of functions evicted from devices.
    pub evictions: usize,
    /// Number of moves of devices to another group.
    pub moves: usize,
    /// Number of requests dispatched again after their device was lost or refused them.
    pub retries: usize,
    /// Number of requests that the pool rejected.
    pub rejected: usize,
    /// Number of dispatches, including retries.
    pub dispatches: usize,
    /// The launches of all devices, lost ones included; `None` for plain devices.
    pub launches: Option<LaunchReport>,
    /// The memory of all devices, lost ones included; `None` for plain devices.
    pub memory: Option<MemoryReport>,
    /// The schedule, in the order of dispatch.
    pub schedule: Vec<Scheduled>,
}

impl ClusterReport {
    pub(super) fn finish(&mut self, names: impl Iterator<Item = String>) {
        self.schedule.sort_by_key(|scheduled| (scheduled.start_ns, scheduled.arrival));
        self.waits = Waits::of(self.schedule.iter());
        let mut by_function: Vec<Vec<Scheduled>> = names
            .map(|name| (name, Vec::new()))
            .map(|(name, schedule)| {
                self.functions.push(FunctionReport { name, waits: Waits::default() });
                schedule
            })
            .collect();
        for scheduled in &self.schedule {
            by_function[scheduled.arrival.function].push(*scheduled);
        }
        for (function, schedule) in self.functions.iter_mut().zip(&by_function) {
            function.waits = Waits::of(schedule.iter());
        }
        self.total_ns = self.schedule.iter().map(|scheduled| scheduled.end_ns).max().unwrap_or(0);
    }
}
