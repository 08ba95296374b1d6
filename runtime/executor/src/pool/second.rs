//! The second executor of a device whose running blocks are stopped all together; see `pair`.

use super::lifecycle::watch;
use super::{ExecutorPool, SHARED_DOMAIN};
use crate::config::ExecutorConfig;
use crate::device::ExecutorDevice;
use crate::domain::State;
use crate::pair::Pair;
use atoll_core::PreemptLevel;
use atoll_device::process::DevicePlan;
use atoll_device::{Device, DeviceError};
use rustix::event::epoll;

impl ExecutorPool {
    /// Starts a second executor for the first time, if the device needs one, and waits until it
    /// runs. Without it, all work has one executor, and running blocks are stopped only while no
    /// real-time launch is there.
    pub(super) fn try_second(&self, first: &ExecutorDevice) -> Option<ExecutorDevice> {
        if self.config.device.second.is_none() || self.info.preempt_level != PreemptLevel::Interrupt {
            return None;
        }
        let started = self.start_second(first).and_then(|device| device.wait_ready().map(|_| device));
        started.inspect_err(|error| self.warn_of_one(&error.to_string())).ok()
    }

    fn warn_of_one(&self, error: &str) {
        tracing::warn!(
            device = %self.info.name, error,
            "real-time and best-effort kernels share a process, so kernels are not stopped while both run"
        );
    }

    fn start_second(&self, first: &ExecutorDevice) -> Result<ExecutorDevice, DeviceError> {
        let cannot = || DeviceError::Unavailable("the memory of the device cannot be shared".to_owned());
        let config_of = self.config.device.second.ok_or_else(cannot)?;
        let (memory, facts) = (first.shared_memory().ok_or_else(cannot)?, first.facts().ok_or_else(cannot)?);
        let device = DevicePlan {
            config: config_of(&self.config.device.config, &memory)?,
            memory_bytes: Some(facts.memory_bytes),
            ..self.config.device.clone()
        };
        let config = ExecutorConfig { device, domain: SHARED_DOMAIN.to_owned(), ..self.config.clone() };
        ExecutorDevice::start_remote(&config, Some(facts))
    }

    /// The executors of a domain, of which the first one was started.
    pub(super) fn pair(&self, first: ExecutorDevice) -> Pair {
        if self.is_split { Pair::awaiting(first, self.config.device.link) } else { Pair::alone(first) }
    }

    /// Starts the second executor of a domain once the first one runs. If it cannot be started, or
    /// ends before it runs, the first one goes on alone; the next replacement gets a second one
    /// again.
    pub(super) fn complete(&mut self, index: usize) {
        let State::Running(pair) = &mut self.domains[index].state else { return };
        if let Some(second) = pair.take_unready() {
            let _ = epoll::delete(&self.ready, second.completion_fd());
            if let Some(loss) = second.loss() {
                self.statistics.count(&loss.cause);
                self.warn_of_one(&loss.to_string());
            }
            return self.domains[index].load_all();
        }
        if !pair.is_due() {
            return;
        }
        let State::Running(pair) = &self.domains[index].state else { return };
        let joined = self.start_second(pair.first()).and_then(|device| self.join(index, device));
        let Err(error) = joined else { return };
        self.warn_of_one(&error.to_string());
        if let State::Running(pair) = &mut self.domains[index].state {
            pair.go_alone();
        }
        self.domains[index].load_all();
    }

    /// Adds the second executor to that of a domain, and loads the modules.
    pub(super) fn join(&mut self, index: usize, mut device: ExecutorDevice) -> Result<(), DeviceError> {
        watch(&self.ready, device.completion_fd())?;
        self.lanes.iter().for_each(|(lane, units)| device.attach_lane(lane, units));
        device.allow_memory(self.domains[index].allowed_bytes);
        self.statistics.started += 1;
        tracing::info!(device = %self.info.name, pid = device.pid(), "executor for best-effort work started");
        if let State::Running(pair) = &mut self.domains[index].state {
            pair.start_second(device);
        }
        self.domains[index].load_all();
        Ok(())
    }
}
