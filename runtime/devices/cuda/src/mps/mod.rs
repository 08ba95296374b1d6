//! NVIDIA's Multi-Process Service (MPS): several processes use a GPU at the same time, each with a
//! share of its compute units.
//!
//! Without MPS, processes take turns using the whole GPU. A *control daemon* listens in a folder. A
//! process whose environment names that folder becomes a *client* when it initializes CUDA: its
//! kernels go through a *server*, which confines them to the share that the process's environment
//! names. So a process has its share from the start, and only an executor can have one.
//!
//! All clients share the server's context. A kernel that faults, or a client that is killed while
//! it has work on the GPU, ends the work of all clients. The effect of a fault cannot be prevented.
//! The effect of a kill can: before a client is killed, by the daemon or, if it is an orphaned
//! executor, by itself, the server is told to terminate the client ([`MpsControl::terminate`]).

mod control;
mod service;

pub use control::{MpsControl, MpsError};

use atoll_device::DeviceError;
use atoll_device::process::{KeptService, ProcessService};
use service::MpsService;

use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// NVIDIA's control program: it is the daemon, and also the client that sends requests to it.
const PROGRAM: &str = "nvidia-cuda-mps-control";

/// The folder in which it listens, and where CUDA programs look for it, unless the environment
/// names another one.
const FOLDER: &str = "/tmp/nvidia-mps";

/// The environment variable with the folder.
const FOLDER_VARIABLE: &str = "CUDA_MPS_PIPE_DIRECTORY";

/// A share of a GPU that a process has through MPS.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MpsShare {
    /// Percentage of the compute units that its kernels may use at a time, 1 to 100; the hardware
    /// rounds it up.
    pub percentage: u32,
    /// The folder in which the control daemon listens.
    pub folder: PathBuf,
    /// Path of NVIDIA's control program.
    pub program: PathBuf,
}

impl MpsShare {
    /// A share through the control daemon that other programs in this process's environment use.
    pub fn new(percentage: u32) -> MpsShare {
        MpsShare { percentage, folder: folder(), program: find(PROGRAM) }
    }

    /// Its control daemon.
    pub fn control(&self) -> MpsControl {
        MpsControl::new(self.program.clone(), self.folder.clone())
    }

    /// The environment variables that give a process this share.
    pub(crate) fn environment(&self) -> [(OsString, OsString); 2] {
        let percentage = self.percentage.to_string();
        [
            (FOLDER_VARIABLE.into(), self.folder.clone().into()),
            ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE".into(), percentage.into()),
        ]
    }
}

/// MPS, of which an executor's process is or may be a client.
#[derive(Clone, Debug)]
pub(crate) struct Mps {
    pub(crate) control: MpsControl,
    /// The share of the process. Without one, the control daemon is managed elsewhere.
    pub(crate) share: Option<MpsShare>,
}

impl ProcessService for Mps {
    fn keep(&self) -> Result<Option<Box<dyn KeptService>>, DeviceError> {
        let Some(share) = &self.share else { return Ok(None) };
        Ok(Some(Box::new(MpsService::begin(share)?)))
    }

    fn detach(&self, pid: u32) -> Result<bool, DeviceError> {
        self.control.terminate(pid).map_err(|error| DeviceError::Driver(error.to_string()))
    }
}

fn folder() -> PathBuf {
    std::env::var_os(FOLDER_VARIABLE)
        .filter(|folder| Path::new(folder).is_absolute())
        .map_or_else(|| FOLDER.into(), PathBuf::from)
}

/// The absolute path of a program: an executor does not inherit `PATH`.
fn find(program: &str) -> PathBuf {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&folders).map(|folder| folder.join(program)).find(|path| path.is_file());
    found.unwrap_or_else(|| program.into())
}
