//! NVIDIA's Multi-Process Service (MPS): processes that use a GPU at the same time, each on a share
//! of its compute units.
//!
//! Without it they take turns on the GPU as wholes. A *control daemon* listens in a folder. The
//! driver in a process that names that folder, and begins with CUDA, becomes a *client*: its
//! kernels go through a *server*, which keeps them to the share that the environment of the process
//! names. So a share belongs to a process from its beginning, and only an executor can have one.
//!
//! What is shared is the context of the server. A kernel that faults, or a client that is killed
//! while it has something on the GPU, ends what all clients have there. Nothing helps against the
//! first; so that the second does not happen, the server is told to end a client before its process
//! is killed ([`MpsControl::terminate`]), whoever kills it: the daemon, or its own executor once
//! there is no daemon any more.

mod control;
mod service;

pub use control::{MpsControl, MpsError};

use atoll_device::DeviceError;
use atoll_device::process::{KeptService, ProcessService};
use service::MpsService;

use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// What NVIDIA calls the program of the control daemon, which is also the way to it.
const PROGRAM: &str = "nvidia-cuda-mps-control";

/// Where it listens unless its environment names another folder, and so do CUDA programs look for
/// it.
const FOLDER: &str = "/tmp/nvidia-mps";

/// The variable that names the folder.
const FOLDER_VARIABLE: &str = "CUDA_MPS_PIPE_DIRECTORY";

/// A share of a GPU that a process has through MPS.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MpsShare {
    /// How many percent of the compute units its kernels may use at a time, 1 to 100; the hardware
    /// rounds it up.
    pub percentage: u32,
    /// Where the control daemon listens.
    pub folder: PathBuf,
    /// NVIDIA's program.
    pub program: PathBuf,
}

impl MpsShare {
    /// A share, through the control daemon that other programs with this process's environment use
    /// as well.
    pub fn new(percentage: u32) -> MpsShare {
        MpsShare { percentage, folder: folder(), program: find(PROGRAM) }
    }

    /// The way to its control daemon.
    pub fn control(&self) -> MpsControl {
        MpsControl::new(self.program.clone(), self.folder.clone())
    }

    /// What makes a process have it.
    pub(crate) fn environment(&self) -> [(OsString, OsString); 2] {
        let percentage = self.percentage.to_string();
        [
            (FOLDER_VARIABLE.into(), self.folder.clone().into()),
            ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE".into(), percentage.into()),
        ]
    }
}

/// MPS as an executor's process is, or may be, a client of it.
#[derive(Clone, Debug)]
pub(crate) struct Mps {
    pub(crate) control: MpsControl,
    /// The share that a process is to have; without one, the control daemon is somebody else's.
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

/// The whole path of a program, which an executor needs, as it does not get this process's `PATH`.
fn find(program: &str) -> PathBuf {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&folders).map(|folder| folder.join(program)).find(|path| path.is_file());
    found.unwrap_or_else(|| program.into())
}
