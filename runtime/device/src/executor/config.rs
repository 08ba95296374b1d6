//! How executors are made.

#[cfg(feature = "cuda")]
use super::mps::{MpsControl, MpsShare};
use super::supervisor::Patience;
#[cfg(feature = "cuda")]
use crate::CudaConfig;
use crate::host::HostConfig;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// Patience with what takes milliseconds on a machine that is not overloaded.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// Patience with a GPU's driver that compiles the kernels of many functions.
#[cfg(feature = "cuda")]
const COMPILE_WITHIN: Duration = Duration::from_secs(600);

/// How an executor is made, and what it may take.
#[derive(Clone, Debug)]
pub struct ExecutorConfig {
    /// The device that it runs.
    pub device: DeviceConfig,
    /// The program that calls [`super::serve`] with its standard input.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Its environment, beside where libraries are.
    pub environment: Vec<(OsString, OsString)>,
    /// How long it may show no sign of life while it has something to do.
    pub hang_after: Duration,
    /// How long it may take to start, to map constants, and for a transfer.
    pub answer_within: Duration,
    /// How long it may take to load a module.
    pub load_within: Duration,
    /// How much less urgent than others its compute units are, as for nice(2).
    pub nice: i32,
}

/// What an executor runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeviceConfig {
    /// CPU cores, for those of one domain.
    Host(HostConfig),
    /// A GPU, for all domains: they share its context.
    #[cfg(feature = "cuda")]
    Cuda(CudaConfig),
}

#[cfg(feature = "cuda")]
impl DeviceConfig {
    /// The control daemon whose client an executor may be, because it was given a share or because one runs here anyway.
    pub(super) fn mps(&self) -> Option<MpsControl> {
        match self {
            DeviceConfig::Host(_) => None,
            DeviceConfig::Cuda(cuda) => cuda.mps.as_ref().map(MpsShare::control).or_else(MpsControl::ambient),
        }
    }
}

impl From<HostConfig> for DeviceConfig {
    fn from(config: HostConfig) -> DeviceConfig {
        DeviceConfig::Host(config)
    }
}

#[cfg(feature = "cuda")]
impl From<CudaConfig> for DeviceConfig {
    fn from(config: CudaConfig) -> DeviceConfig {
        DeviceConfig::Cuda(config)
    }
}

impl ExecutorConfig {
    /// An executor of this program, `atoll executor`.
    pub fn new(device: impl Into<DeviceConfig>) -> ExecutorConfig {
        let device = device.into();
        let load_within = match &device {
            DeviceConfig::Host(_) => ANSWER_WITHIN,
            #[cfg(feature = "cuda")]
            DeviceConfig::Cuda(_) => COMPILE_WITHIN,
        };
        ExecutorConfig {
            environment: environment(&device),
            device,
            program: "/proc/self/exe".into(),
            arguments: vec!["executor".into()],
            hang_after: Duration::from_secs(3),
            answer_within: ANSWER_WITHIN,
            load_within,
            nice: 0,
        }
    }

    pub(super) fn patience(&self) -> Patience {
        let (time_limit, queues) = match &self.device {
            DeviceConfig::Host(host) => (host.time_limit, host.queues),
            #[cfg(feature = "cuda")]
            DeviceConfig::Cuda(cuda) => (cuda.time_limit, cuda.queues),
        };
        // A launch may be stopped for those of every more urgent queue, each of which may take its whole time.
        let launch_within = time_limit.saturating_mul(queues).saturating_add(self.hang_after);
        Patience { hang_after: self.hang_after, answer_within: self.answer_within, load_within: self.load_within, launch_within }
    }
}

/// What of this process's environment a driver looks at.
fn environment(device: &DeviceConfig) -> Vec<(OsString, OsString)> {
    match device {
        DeviceConfig::Host(_) => Vec::new(),
        #[cfg(feature = "cuda")]
        DeviceConfig::Cuda(cuda) => {
            let is_meant = |name: &str| name == "HOME" || ["CUDA_", "NVIDIA_", "ATOLL_"].iter().any(|begin| name.starts_with(begin));
            let of_this_process = std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(is_meant));
            // What is named last counts.
            of_this_process.chain(cuda.mps.iter().flat_map(MpsShare::environment)).collect()
        }
    }
}
