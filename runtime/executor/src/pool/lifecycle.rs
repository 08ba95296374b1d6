//! The lifecycle of executors: they are started when a module is loaded, replaced when they are
//! lost, after a pause that grows with the number of losses, and ended when no module is loaded.

use super::addresses::gone;
use super::{ExecutorPool, SHARED_DOMAIN, os};
use crate::config::ExecutorConfig;
use crate::device::ExecutorDevice;
use crate::domain::State;
use crate::pair::Pair;
use crate::regions::Regions;
use crate::supervisor::Loss;
use atoll_device::{Device, DeviceError};
use rustix::event::epoll;
use rustix::time::{Itimerspec, TimerfdTimerFlags, Timespec, timerfd_settime};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// How long a loss counts against a domain.
const LOSS_WINDOW: Duration = Duration::from_secs(60);

/// Losses within that time after which a domain is unavailable.
const LOSSES_MAX: usize = 5;

/// How long a domain is unavailable before the next attempt.
const UNAVAILABLE_FOR: Duration = Duration::from_secs(30);

/// Pause before the second replacement; doubles with each further one.
const PAUSE: Duration = Duration::from_millis(50);

/// The domain of code from the daemon's own compiler. Executors of other domains get a higher nice
/// value.
const OWN_DOMAIN: &str = "local";
const TENANT_NICE: i32 = 5;

impl ExecutorPool {
    /// Starts a domain's executor, unless it runs, its pause has not ended, or the engine has not
    /// yet learned of lost constants.
    pub(super) fn wake(&mut self, index: usize) -> Result<(), DeviceError> {
        if !matches!(self.domains[index].state, State::Absent) {
            return Ok(());
        }
        if self.constants_lost {
            return Ok(());
        }
        match self.start(index).and_then(|device| self.install(index, self.pair(device))) {
            Ok(()) => Ok(()),
            Err(error) => {
                self.pause(index, error.to_string());
                Err(error)
            }
        }
    }

    pub(super) fn start(&mut self, index: usize) -> Result<ExecutorDevice, DeviceError> {
        let nice = if is_kept(&self.domains[index].name) { 0 } else { TENANT_NICE };
        let domain = self.domains[index].name.clone();
        let config = ExecutorConfig { nice: self.config.nice.max(nice), domain, ..self.config.clone() };
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

    /// Makes executors the domain's current ones. The second one, if there is one, is started
    /// later.
    pub(super) fn install(&mut self, index: usize, mut pair: Pair) -> Result<(), DeviceError> {
        watch(&self.ready, pair.first().completion_fd())?;
        self.lanes.iter().for_each(|(lane, units)| pair.attach_lane(lane, units));
        let domain = &mut self.domains[index];
        pair.allow_memory(domain.allowed_bytes);
        self.imports.iter().for_each(|imports| imports.set_executor(pair.first().supervised()));
        tracing::info!(device = %self.info.name, domain = %domain.name, pid = pair.pid(), "executor started");
        domain.state = State::Running(Box::new(pair));
        self.statistics.started += 1;
        // Constants are sent before the modules, so that they are mapped once the modules are
        // loaded.
        domain.show(domain.constants.iter().copied(), &self.constants);
        domain.load_all();
        Ok(())
    }

    /// Starts a pause after a domain's executor was lost or could not be started.
    pub(super) fn pause(&mut self, index: usize, cause: String) {
        let domain = &mut self.domains[index];
        let now = Instant::now();
        domain.losses.push_back(now);
        domain.losses_ever += 1;
        domain.losses.retain(|loss| now.saturating_duration_since(*loss) < LOSS_WINDOW);
        let losses = domain.losses.len();
        let is_unavailable = losses >= LOSSES_MAX;
        let pause = match losses {
            0 | 1 => Duration::ZERO,
            _ if is_unavailable => UNAVAILABLE_FOR,
            more => PAUSE * (1 << (more - 2)),
        };
        tracing::error!(
            device = %self.info.name, domain = %domain.name, %cause, losses, pause_ms = pause.as_millis() as u64,
            "executor lost"
        );
        if is_unavailable {
            // One more loss after the pause makes the domain unavailable again.
            domain.losses.pop_front();
        }
        domain.state = State::Pausing { until: now + pause, cause, is_unavailable };
        self.set_timer();
    }

    /// Collects completions, reports and counts of a dead executor.
    pub(super) fn reap(&mut self, index: usize, loss: &Loss) {
        self.statistics.count(&loss.cause);
        let cause = loss.to_string();
        let State::Running(device) = std::mem::replace(&mut self.domains[index].state, State::Absent) else { return };
        let mut device = device;
        while let Some(completion) = device.next_completion() {
            self.reports.extend(device.report(completion.launch).map(|report| (completion.launch, report)));
            self.abandoned.push_back(completion);
            self.ring();
        }
        self.unwatch(&device);
        self.keep_counts(index, &device);
        // A kernel that ended its context is no failure of the GPU.
        let counts_against_domain = !(self.is_remote() && device.gave_up());
        self.domains[index].memory = None;
        drop_elsewhere(device);
        self.constants_lost = self.is_remote();
        self.regions.iter_mut().for_each(Regions::lose_memory);
        self.domains[index].modules.values_mut().for_each(|module| module.lose_executor(&cause));
        self.pause(index, cause);
        if !counts_against_domain {
            self.domains[index].losses.pop_back();
        }
    }

    /// Handles everything beyond completions. Returns whether an executor was found dead, which may
    /// have produced completions.
    pub(super) fn advance(&mut self) -> bool {
        let mut any_dead = false;
        let _ = rustix::io::read(&self.timer, &mut [0u8; 8]);
        let _ = rustix::io::read(&self.bell, &mut [0u8; 8]);
        for index in 0..self.domains.len() {
            self.complete(index);
            let domain = &mut self.domains[index];
            domain.take_loaded();
            match &mut domain.state {
                State::Running(pair) => {
                    if let Some(loss) = pair.take_loss() {
                        self.reap(index, &loss);
                        any_dead = true;
                    }
                }
                State::Pausing { until, .. } if *until <= Instant::now() => {
                    if self.constants_lost {
                        continue;
                    }
                    domain.state = State::Absent;
                    if is_kept(&domain.name) || domain.modules.values().any(|module| module.refusal.is_none()) {
                        // A failure is recorded, and tried again later.
                        let _ = self.wake(index);
                    }
                }
                _ => {}
            }
        }
        // The timer rang for one pause, and there may be more.
        self.set_timer();
        any_dead
    }

    /// Sets the timer to the end of the next pause.
    pub(super) fn set_timer(&self) {
        let pauses = self.domains.iter().filter_map(|domain| match domain.state {
            State::Pausing { until, .. } => Some(until),
            _ => None,
        });
        let Some(first) = pauses.min() else { return };
        // Zero would disarm the timer.
        let wait = first.saturating_duration_since(Instant::now()).max(Duration::from_micros(1));
        let value = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once);
    }

    /// Ends an executor that has no modules. Its domain starts anew when a module is loaded again.
    pub(super) fn end(&mut self, index: usize) {
        // The domain may have got new memory since it lost its last executor.
        self.domains[index].memory = None;
        if let State::Running(device) = std::mem::replace(&mut self.domains[index].state, State::Absent) {
            self.unwatch(&device);
            self.keep_counts(index, &device);
            tracing::info!(
                device = %self.info.name, domain = %self.domains[index].name, pid = device.pid(),
                "executor ended: no module is loaded"
            );
            drop_elsewhere(device);
        }
    }

    /// Waits no longer for executors.
    fn unwatch(&self, pair: &Pair) {
        for device in pair.started() {
            let _ = epoll::delete(&self.ready, device.completion_fd());
        }
    }

    /// Adds up the counts of executors that are about to be dropped.
    fn keep_counts(&mut self, index: usize, device: &Pair) {
        let domain = &mut self.domains[index];
        domain.cpu_before_ns = domain.cpu_before_ns.saturating_add(device.cpu_ns());
        domain.group_before = domain.group_use_with(device.group_use());
        self.busy_before_ns = self.busy_before_ns.saturating_add(device.busy_ns().unwrap_or(0));
        self.units_before.iter_mut().zip(device.compute_units()).for_each(|(unit, more)| *unit = unit.plus(more));
        self.chunks_lost = self.chunks_lost.saturating_add(device.chunks_left());
    }
}

/// Drops an executor on another thread, since waiting for its process and unmapping its memory
/// takes milliseconds to seconds. If no thread can be started, it is dropped on this one.
fn drop_elsewhere(device: Box<Pair>) {
    let _ = std::thread::Builder::new().name("atoll-reap".to_owned()).spawn(move || drop(device));
}

/// Whether a domain keeps its executor while no module is loaded.
pub(super) fn is_kept(name: &str) -> bool {
    name == OWN_DOMAIN || name == SHARED_DOMAIN
}

pub(super) fn watch(ready: &OwnedFd, fd: BorrowedFd<'_>) -> Result<(), DeviceError> {
    epoll::add(ready, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN).map_err(os("watch a descriptor"))
}
