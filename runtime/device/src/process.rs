//! What a device offers so that a process of its own, an *executor*, can run it. Executors
//! themselves are another crate's (`atoll-executor`), which knows no device: the daemon gets a
//! [`DevicePlan`], and the program that is started as an executor brings a table of
//! [`DeviceKind`]s.
//!
//! There are two ways for a device to be in another process:
//!
//! - **Its memory is the daemon's** ([`MemoryHome::Daemon`]). The compute units in the executor
//!   take launches from the rings themselves, and memory is mapped by both. Each domain has an
//!   executor. The executor side implements [`StartUnits`] and [`RunningUnits`].
//! - **Its memory is the executor's** ([`MemoryHome::Process`]), as that of a GPU is its process's.
//!   One thread of the executor moves launches from the rings into a [`RelayedDevice`], and does
//!   the transfers that the daemon asks for. All domains share one executor. The executor side
//!   implements [`StartRelayed`] and [`RelayedDevice`].

use crate::Device;
use crate::doorbell::FdBell;
use crate::error::DeviceError;
use crate::extent::Window;
use crate::info::{DeviceFacts, DeviceInfo};
use crate::lanes::Lane;
use crate::link::{Link, LinkShape};
use crate::modules::{ModuleId, ModuleImage};
use crate::reports::KeepReports;
use crate::shm::Region;
use atoll_core::{DeviceOffset, QueueId};
use std::any::Any;
use std::ffi::OsString;
use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// A configuration of a device that can run in executors.
pub trait Plan {
    /// Describes the device to the daemon.
    ///
    /// # Errors
    /// If no device can have this configuration.
    fn plan(self) -> Result<DevicePlan, DeviceError>;
}

/// A device that runs in executors, as its crate describes it to the daemon.
#[derive(Clone, Debug)]
pub struct DevicePlan {
    /// The [`DeviceKind::name`] of the device.
    pub kind: &'static str,
    /// Its configuration, as [`DeviceKind::open`] reads it.
    pub config: String,
    /// What the device is. Where the memory is the executor's, the executor's [`DeviceFacts`]
    /// complete it.
    pub info: DeviceInfo,
    /// The shape of its rings; the same as the executor side says.
    pub link: LinkShape,
    /// Whose memory it is.
    pub memory: MemoryHome,
    /// How much memory an executor that has its own is to reserve; set by the daemon for one that
    /// takes the place of another.
    pub memory_bytes: Option<u64>,
    /// How long a launch may run.
    pub time_limit: Duration,
    /// How long an executor may take to load a module, where that is longer than for an ordinary
    /// answer.
    pub load_within: Option<Duration>,
    /// Variables of the executor's environment.
    pub environment: Vec<(OsString, OsString)>,
    /// The service that the executor may be a client of.
    pub service: Option<Arc<dyn ProcessService>>,
}

impl Plan for DevicePlan {
    fn plan(self) -> Result<DevicePlan, DeviceError> {
        Ok(self)
    }
}

/// Whose a device's memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryHome {
    /// The daemon's, which shares it with executors, one for each domain.
    Daemon,
    /// The one executor's.
    Process,
}

/// A service on this machine that the processes of a device are clients of, as NVIDIA's MPS.
pub trait ProcessService: Debug + Send + Sync {
    /// Keeps the service running for as long as the result lives; `None` where it is somebody
    /// else's business.
    ///
    /// # Errors
    /// If it cannot be started.
    fn keep(&self) -> Result<Option<Box<dyn KeptService>>, DeviceError>;

    /// Ends whatever a process has on the device, so that it can be killed and no other client
    /// notices. False where it is no client. Takes milliseconds, and seconds at most.
    ///
    /// # Errors
    /// If the service refuses or does not answer.
    fn detach(&self, pid: u32) -> Result<bool, DeviceError>;
}

/// A [`ProcessService`] that is kept running until this is dropped.
pub trait KeptService: Debug + Send {
    /// Sees that the service answers, before a process is started that needs it.
    ///
    /// # Errors
    /// If it cannot be started.
    fn ensure(&self) -> Result<(), DeviceError>;

    /// Whether a process that uses the device is a client, as far as that can be told.
    ///
    /// # Errors
    /// If the service does not answer.
    fn has_client(&self, pid: u32) -> Result<bool, DeviceError>;
}

/// A kind of device that a program can run as an executor: a row of the table that the program
/// hands in.
#[derive(Clone, Copy, Debug)]
pub struct DeviceKind {
    /// `host`, `cuda`.
    pub name: &'static str,
    /// Reads a [`DevicePlan::config`]. The number is how much memory to reserve, where the executor
    /// takes the place of another one that had so much.
    pub open: fn(&str, Option<u64>) -> Result<OpenDevice, DeviceError>,
}

/// A device that is about to be started in an executor.
#[derive(Debug)]
pub enum OpenDevice {
    /// [`MemoryHome::Daemon`].
    Units(Box<dyn StartUnits>),
    /// [`MemoryHome::Process`].
    Relayed(Box<dyn StartRelayed>),
}

/// Compute units that are about to be started.
pub trait StartUnits: Debug {
    /// The shape of the rings.
    fn link_shape(&self) -> LinkShape;

    /// Size of the memory that the daemon shares.
    fn memory_bytes(&self) -> u64;

    /// Size of the range of addresses in which constants are shown.
    fn constants_bytes(&self) -> u64;

    /// Private memory that the compute units may take, for the limits of the process.
    fn private_bytes(&self) -> u64;

    /// Starts the threads; all of them run when it returns.
    ///
    /// # Errors
    /// If the system refuses.
    fn start(self: Box<Self>, seat: Seat) -> Result<Box<dyn RunningUnits>, DeviceError>;
}

/// What compute units in an executor work with.
#[derive(Debug)]
pub struct Seat {
    /// The rings.
    pub link: Link,
    /// Device memory.
    pub memory: Arc<Region>,
    /// Where constants are shown.
    pub constants: Arc<Window>,
    /// Rings for the daemon when launches end.
    pub bell: FdBell,
    /// Takes reports, before the completions of their launches.
    pub reports: Arc<dyn KeepReports>,
}

/// Compute units that run.
pub trait RunningUnits: Debug {
    /// Loads code under a number of the daemon's.
    ///
    /// # Errors
    /// [`DeviceError::BadModule`] if the code is not for these compute units or damaged.
    fn load_module(&mut self, id: ModuleId, image: ModuleImage<'_>) -> Result<(), DeviceError>;

    /// Unloads code that no launch in flight uses.
    fn unload_module(&mut self, id: ModuleId);
}

/// A device with memory of its own that is about to be started.
pub trait StartRelayed: Debug {
    /// The shape of the rings.
    fn link_shape(&self) -> LinkShape;

    /// The service that this process may be a client of.
    fn service(&self) -> Option<Arc<dyn ProcessService>>;

    /// Starts the device. Transfers go through `region`, which the daemon shares; from `words_at`
    /// on it holds the epoch words, [`crate::word_table::WORDS_MAX`] of four bytes.
    ///
    /// # Errors
    /// If there is no such device or its driver refuses.
    fn start(self: Box<Self>, region: &Arc<Region>, words_at: u64) -> Result<Box<dyn RelayedDevice>, DeviceError>;
}

/// Loads a module on a thread of its own.
pub type LoadModule = Box<dyn Fn(ModuleImage<'_>) -> Result<LoadedModule, DeviceError> + Send>;

/// A module that a [`LoadModule`] loaded and the device does not have yet; only the device knows
/// its type.
pub struct LoadedModule(pub Box<dyn Any + Send>);

/// A device with memory of its own, as its executor drives it: the daemon raises its epoch words,
/// and transfers pass through memory of the daemon.
pub trait RelayedDevice: Debug {
    /// The device.
    fn device(&self) -> &dyn Device;

    /// The device, to be driven.
    fn device_mut(&mut self) -> &mut dyn Device;

    /// What it found out when it started.
    fn facts(&self) -> DeviceFacts;

    /// What loads modules beside everything else: a driver may take seconds to compile one, in
    /// which launches should not wait.
    fn loader(&self) -> LoadModule;

    /// Takes in a module that its loader loaded.
    ///
    /// # Errors
    /// [`DeviceError::BadModule`] if it is another device's.
    fn adopt(&mut self, module: LoadedModule) -> Result<ModuleId, DeviceError>;

    /// Binds an epoch word in device memory to a word of the shared region, which says the same
    /// from now on and which the daemon raises.
    ///
    /// # Errors
    /// As for [`crate::Memory`].
    fn bind_epoch(&mut self, word: DeviceOffset, index: usize) -> Result<(), DeviceError>;

    /// Writes epochs that the daemon raised through to device memory. Does not wait.
    ///
    /// # Errors
    /// As for [`crate::Memory`].
    fn follow_epochs(&mut self) -> Result<(), DeviceError>;

    /// Opens a lane under these queues, which the daemon has chosen: its own table of lanes is the
    /// one that counts.
    ///
    /// # Errors
    /// If the driver refuses.
    fn serve_lane(&mut self, lane: &Lane, units: &[u32]) -> Result<(), DeviceError>;

    /// Closes it. Nothing is in its queues.
    fn leave_lane(&mut self, queues: Range<u32>);

    /// Whether a queue belongs to a lane that is open.
    fn has_queue(&self, queue: QueueId) -> bool;

    /// Copies bytes at `from` in the shared region into device memory.
    ///
    /// # Errors
    /// As for [`crate::Memory`].
    fn write_from(&mut self, at: DeviceOffset, from: u64, bytes: u64) -> Result<(), DeviceError>;

    /// Copies device memory into the shared region.
    ///
    /// # Errors
    /// As for [`crate::Memory`].
    fn read_into(&mut self, at: DeviceOffset, to: u64, bytes: u64) -> Result<(), DeviceError>;
}

impl Debug for LoadedModule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LoadedModule")
    }
}
