//! Executors come and go: they are started when something is loaded, replaced when they are lost,
//! after a pause that grows with how often that happens, and end when nothing is loaded any more.

use super::places::gone;
use super::{EVERYBODY, ExecutorPool, os};
use crate::config::ExecutorConfig;
use crate::device::ExecutorDevice;
use crate::domain::State;
use crate::supervisor::Loss;
use atoll_device::{Device, DeviceError, Launching, Telemetry};
use rustix::event::epoll;
use rustix::time::{Itimerspec, TimerfdTimerFlags, Timespec, timerfd_settime};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Losses of a domain that count against it: those of this long ago.
const MEMORY_OF_LOSSES: Duration = Duration::from_secs(60);

/// Losses after which a domain is unavailable.
const LOSSES_MAX: usize = 5;

/// How long it is then, before one more is tried.
const UNAVAILABLE_FOR: Duration = Duration::from_secs(30);

/// Pause before the second replacement; it doubles with each.
const PAUSE: Duration = Duration::from_millis(50);

/// The domain whose code comes from the daemon's own compiler; the others are less urgent to the
/// system.
const OWN_DOMAIN: &str = "local";
const NICE_OF_OTHERS: i32 = 5;

impl ExecutorPool {
    /// Sees that a domain's executor runs, or is about to.
    pub(super) fn wake(&mut self, index: usize) -> Result<(), DeviceError> {
        if !matches!(self.domains[index].state, State::Absent) {
            return Ok(());
        }
        if self.constants_lost {
            return Ok(());
        }
        match self.start(index).and_then(|device| self.begun(index, device)) {
            Ok(()) => Ok(()),
            Err(error) => {
                self.pause(index, error.to_string());
                Err(error)
            }
        }
    }

    pub(super) fn start(&mut self, index: usize) -> Result<ExecutorDevice, DeviceError> {
        let nice = if is_kept(&self.domains[index].name) { 0 } else { NICE_OF_OTHERS };
        let config = ExecutorConfig { nice: self.config.nice.max(nice), ..self.config.clone() };
        let region = self.memory(index)?.region.clone();
        match (self.is_remote(), region) {
            (false, Some(region)) => ExecutorDevice::start_shared(&config, region),
            (false, None) => Err(gone()),
            (true, _) => {
                self.service.as_ref().map_or(Ok(()), |service| service.ensure())?;
                ExecutorDevice::start_remote(&config, self.facts.clone())
            }
        }
    }

    /// A domain has an executor from now on.
    pub(super) fn begun(&mut self, index: usize, mut device: ExecutorDevice) -> Result<(), DeviceError> {
        watch(&self.ready, device.completion_fd())?;
        self.lanes.iter().for_each(|(lane, units)| device.serve_lane(lane, units));
        let domain = &mut self.domains[index];
        tracing::info!(device = %self.info.name, domain = %domain.name, pid = device.pid(), "an executor begins");
        domain.state = State::Running(Box::new(device));
        self.statistics.started += 1;
        // First, so that it has them once its modules are loaded.
        domain.show(domain.constants.iter().copied(), &self.constants);
        domain.load_all();
        Ok(())
    }

    /// A domain's executor is gone, or could not be started.
    pub(super) fn pause(&mut self, index: usize, cause: String) {
        let domain = &mut self.domains[index];
        let now = Instant::now();
        domain.losses.push_back(now);
        domain.losses_ever += 1;
        domain.losses.retain(|loss| now.saturating_duration_since(*loss) < MEMORY_OF_LOSSES);
        let losses = domain.losses.len();
        let is_unavailable = losses >= LOSSES_MAX;
        let pause = match losses {
            0 | 1 => Duration::ZERO,
            _ if is_unavailable => UNAVAILABLE_FOR,
            more => PAUSE * (1 << (more - 2)),
        };
        tracing::error!(device = %self.info.name, domain = %domain.name, %cause, losses, pause_ms = pause.as_millis() as u64, "an executor was lost");
        if is_unavailable {
            // One more loss after the pause, and it is unavailable again.
            domain.losses.pop_front();
        }
        domain.state = State::Pausing { until: now + pause, cause, is_unavailable };
        self.set_timer();
    }

    /// Takes what an executor left behind when it died.
    pub(super) fn take_remains(&mut self, index: usize, loss: &Loss) {
        self.statistics.count(&loss.cause);
        let cause = loss.to_string();
        let State::Running(device) = std::mem::replace(&mut self.domains[index].state, State::Absent) else { return };
        let mut device = device;
        while let Some(completion) = device.next_completion() {
            self.reports.extend(device.report(completion.launch).map(|report| (completion.launch, report)));
            self.buried.push_back(completion);
            self.ring();
        }
        let _ = epoll::delete(&self.ready, device.completion_fd());
        self.keep_counts(&device);
        // That a kernel ended its context says nothing about the GPU.
        let is_its_fault = !(self.is_remote() && device.gave_up());
        drop(device);
        self.domains[index].memory = None;
        self.constants_lost = self.is_remote();
        self.domains[index].modules.values_mut().for_each(|module| module.lose_executor(&cause));
        self.pause(index, cause);
        if !is_its_fault {
            self.domains[index].losses.pop_back();
        }
    }

    /// Does what there is to do beyond completions. Whether an executor was found dead, which may
    /// have left some.
    pub(super) fn advance(&mut self) -> bool {
        let mut any_dead = false;
        let _ = rustix::io::read(&self.timer, &mut [0u8; 8]);
        let _ = rustix::io::read(&self.bell, &mut [0u8; 8]);
        for index in 0..self.domains.len() {
            let domain = &mut self.domains[index];
            domain.take_loaded();
            match &domain.state {
                State::Running(device) => {
                    if let Some(loss) = device.loss().cloned() {
                        self.take_remains(index, &loss);
                        any_dead = true;
                    }
                }
                State::Pausing { until, .. } if *until <= Instant::now() => {
                    if self.constants_lost {
                        continue;
                    }
                    domain.state = State::Absent;
                    if is_kept(&domain.name) || domain.modules.values().any(|module| module.refusal.is_none()) {
                        // A failure is told, and tried again later.
                        let _ = self.wake(index);
                    }
                }
                _ => {}
            }
        }
        // It rang for one pause, and there may be more.
        self.set_timer();
        any_dead
    }

    /// Rings when the next pause is over.
    pub(super) fn set_timer(&self) {
        let pauses = self.domains.iter().filter_map(|domain| match domain.state {
            State::Pausing { until, .. } => Some(until),
            _ => None,
        });
        let Some(first) = pauses.min() else { return };
        // Zero would turn it off.
        let wait = first.saturating_duration_since(Instant::now()).max(Duration::from_micros(1));
        let value = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once);
    }

    /// Ends an executor that has nothing to do. Its domain starts afresh when something is loaded
    /// again.
    pub(super) fn end(&mut self, index: usize) {
        // It may have got some since it lost its last executor, too.
        self.domains[index].memory = None;
        if let State::Running(device) = std::mem::replace(&mut self.domains[index].state, State::Absent) {
            let _ = epoll::delete(&self.ready, device.completion_fd());
            self.keep_counts(&device);
            tracing::info!(device = %self.info.name, domain = %self.domains[index].name, pid = device.pid(), "an executor ends: nothing is loaded");
        }
    }

    /// Keeps what an executor counted that is about to go.
    fn keep_counts(&mut self, device: &ExecutorDevice) {
        self.busy_before_ns = self.busy_before_ns.saturating_add(device.busy_ns().unwrap_or(0));
        self.units_before.iter_mut().zip(device.compute_units()).for_each(|(unit, more)| *unit = unit.plus(more));
        self.chunks_lost = self.chunks_lost.saturating_add(device.chunks_left());
    }
}

/// Whether a domain has an executor also while nothing is loaded.
pub(super) fn is_kept(name: &str) -> bool {
    name == OWN_DOMAIN || name == EVERYBODY
}

pub(super) fn watch(ready: &OwnedFd, fd: BorrowedFd<'_>) -> Result<(), DeviceError> {
    epoll::add(ready, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN).map_err(os("watch a descriptor"))
}
