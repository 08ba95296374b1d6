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

impl ExecutorPool {
    /// Starts a second executor for the first time, if the device needs one, and waits until it
    /// runs. Without it, all work has one executor, and running blocks are stopped only while no
    /// real-time launch is there.
    pub(super) fn try_second(&self, first: &ExecutorDevice) -> Option<ExecutorDevice> {
        if self.config.device.second.is_none() || self.info.preempt_level != PreemptLevel::Interrupt {
            return None;
        }
        let started = self.start_second(first).and_then(|device| device.wait_ready().map(|_| device));
        let warn = |error: &DeviceError| {
            tracing::warn!(
                device = %self.info.name, %error,
                "real-time and best-effort kernels share a process, so kernels are not stopped while both run"
            );
        };
        started.inspect_err(warn).ok()
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

    /// Starts the second executor of a domain once the first one runs.
    pub(super) fn complete(&mut self, index: usize) {
        let State::Running(pair) = &self.domains[index].state else { return };
        if !pair.is_due() {
            return;
        }
        let joined = self.start_second(pair.first()).and_then(|device| self.join(index, device));
        if let (Err(error), State::Running(pair)) = (joined, &self.domains[index].state) {
            pair.kill(&format!("was killed, since the second executor of its device cannot be started: {error}"));
        }
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
