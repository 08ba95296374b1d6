//! The interface between a device and the executor process that runs it. Executors are implemented
//! in `atoll-executor`, which knows no device: the daemon gets a [`DevicePlan`], and the executor's
//! program passes a table of [`DeviceKind`]s.
//!
//! A device can be run in another process in two ways:
//!
//! - **Memory owned by the daemon** ([`MemoryHome::Daemon`]). Both processes map the memory, and
//!   the compute units in the executor take launches from the rings themselves. Each domain has an
//!   executor. The executor side implements [`StartUnits`] and [`RunningUnits`].
//! - **Memory owned by the executor** ([`MemoryHome::Process`]), as GPU memory belongs to the
//!   process that allocated it. One thread of the executor moves launches from the rings to a
//!   [`RelayedDevice`] and performs the transfers that the daemon asks for. All domains share one
//!   executor; a second one may use its memory ([`DevicePlan::second`]). The executor side
//!   implements [`StartRelayed`] and [`RelayedDevice`].

use crate::Device;
use crate::doorbell::FdBell;
use crate::error::DeviceError;
use crate::extent::Window;
use crate::imports::Importer;
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

/// The configuration of a device that can run in executors.
pub trait Plan {
    /// Describes the device for the daemon.
    ///
    /// # Errors
    /// If the configuration is invalid.
    fn plan(self) -> Result<DevicePlan, DeviceError>;
}

/// A device that runs in executors, as the daemon sees it.
#[derive(Clone, Debug)]
pub struct DevicePlan {
    /// The [`DeviceKind::name`] of the device.
    pub kind: &'static str,
    /// Its configuration, in the form that [`DeviceKind::open`] reads.
    pub config: String,
    /// Describes the device. If the executor owns the memory, its [`DeviceFacts`] complete this.
    pub info: DeviceInfo,
    /// The shape of its rings; the executor side computes the same.
    pub link: LinkShape,
    /// The process that owns the device memory.
    pub memory: MemoryHome,
    /// Bytes of memory that the executor reserves, if it owns the memory. The daemon sets it when
    /// an executor replaces another one.
    pub memory_bytes: Option<u64>,
    /// The time limit of a launch.
    pub time_limit: Duration,
    /// The time limit for loading a module, if it is longer than that of other answers.
    pub load_within: Option<Duration>,
    /// Variables of the executor's environment.
    pub environment: Vec<(OsString, OsString)>,
    /// The service of which the executor may be a client.
    pub service: Option<Arc<dyn ProcessService>>,
    /// The number by which clients name the device when they share memory on it; `None` if it
    /// cannot open memory of other processes.
    pub imports: Option<u32>,
    /// If the executor owns the memory, and can only stop all running blocks of its process at
    /// once: how a second executor for best-effort work is configured.
    pub second: Option<SecondConfig>,
}

/// Returns the configuration of a second executor, which uses the memory of the first one. Takes
/// the configuration of the first one, and the result of [`RelayedDevice::share_memory`].
///
/// # Errors
/// If the first configuration is invalid.
pub type SecondConfig = fn(&str, &[u8]) -> Result<String, DeviceError>;

impl Plan for DevicePlan {
    fn plan(self) -> Result<DevicePlan, DeviceError> {
        Ok(self)
    }
}

/// The process that owns a device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryHome {
    /// The daemon, which shares it with executors, one per domain.
    Daemon,
    /// The executor. A second one may map it.
    Process,
}

/// A service on this machine whose clients are the device's processes, such as NVIDIA's MPS.
pub trait ProcessService: Debug + Send + Sync {
    /// Keeps the service running while the result lives; `None` if the service is managed
    /// elsewhere.
    ///
    /// # Errors
    /// If the service cannot be started.
    fn keep(&self) -> Result<Option<Box<dyn KeptService>>, DeviceError>;

    /// Ends the work of a client process on the device, so that it can be killed without harm to
    /// other clients. False if the process is no client. Takes milliseconds, a few seconds at most.
    ///
    /// # Errors
    /// If the service refuses or does not answer.
    fn detach(&self, pid: u32) -> Result<bool, DeviceError>;
}

/// Keeps a [`ProcessService`] running until dropped.
pub trait KeptService: Debug + Send {
    /// Makes sure that the service answers before a process that needs it is started.
    ///
    /// # Errors
    /// If it cannot be started.
    fn ensure(&self) -> Result<(), DeviceError>;

    /// Whether a process that uses the device is a client. If the service has clients but cannot
    /// tell which processes they are, the answer is yes.
    ///
    /// # Errors
    /// If the service does not answer.
    fn has_client(&self, pid: u32) -> Result<bool, DeviceError>;
}

/// A kind of device that an executor can run: a row of the table that the program passes in.
#[derive(Clone, Copy, Debug)]
pub struct DeviceKind {
    /// For example `host` or `cuda`.
    pub name: &'static str,
    /// Parses a [`DevicePlan::config`]. The number is the memory to reserve in bytes, if the
    /// executor replaces an earlier one that had that much.
    pub open: fn(&str, Option<u64>) -> Result<OpenDevice, DeviceError>,
}

/// A configured device that has not been started yet.
#[derive(Debug)]
pub enum OpenDevice {
    /// [`MemoryHome::Daemon`].
    Units(Box<dyn StartUnits>),
    /// [`MemoryHome::Process`].
    Relayed(Box<dyn StartRelayed>),
}

/// Compute units that have not been started yet.
pub trait StartUnits: Debug {
    /// The shape of the rings.
    fn link_shape(&self) -> LinkShape;

    /// Size in bytes of the memory that the daemon shares.
    fn memory_bytes(&self) -> u64;

    /// Size in bytes of the address range for constants.
    fn constants_bytes(&self) -> u64;

    /// Private memory in bytes that the compute units may allocate. The jail adds it to the memory
    /// limit of the process.
    fn private_bytes(&self) -> u64;

    /// Starts the threads. All of them run when this returns.
    ///
    /// # Errors
    /// If the system refuses to start them.
    fn start(self: Box<Self>, resources: UnitResources) -> Result<Box<dyn RunningUnits>, DeviceError>;
}

/// The shared resources that compute units in an executor work with.
#[derive(Debug)]
pub struct UnitResources {
    /// The rings.
    pub link: Link,
    /// Device memory.
    pub memory: Arc<Region>,
    /// The address range for constants.
    pub constants: Arc<Window>,
    /// Rung when launches end, for the daemon.
    pub bell: FdBell,
    /// Receives reports, each before the completion of its launch.
    pub reports: Arc<dyn KeepReports>,
}

/// Running compute units.
pub trait RunningUnits: Debug {
    /// Loads code under an id that the daemon chose.
    ///
    /// # Errors
    /// [`DeviceError::BadModule`] if the code is damaged or for another target.
    fn load_module(&mut self, id: ModuleId, image: ModuleImage<'_>) -> Result<(), DeviceError>;

    /// Unloads code that no launch in flight uses.
    fn unload_module(&mut self, id: ModuleId);
}

/// A device with memory of its own that has not been started yet.
pub trait StartRelayed: Debug {
    /// The shape of the rings.
    fn link_shape(&self) -> LinkShape;

    /// The service of which this process may be a client.
    fn service(&self) -> Option<Arc<dyn ProcessService>>;

    /// Starts the device. Transfers go through `region`, which the daemon shares. The epoch words
    /// begin at offset `words_at` of it: [`crate::word_table::WORDS_MAX`] words of four bytes.
    ///
    /// # Errors
    /// If there is no such device, or its driver refuses.
    fn start(self: Box<Self>, region: &Arc<Region>, words_at: u64) -> Result<Box<dyn RelayedDevice>, DeviceError>;
}

/// Loads a module on a thread of its own.
pub type LoadModule = Box<dyn Fn(ModuleImage<'_>) -> Result<LoadedModule, DeviceError> + Send>;

/// A module that a [`LoadModule`] loaded and the device has not registered yet. Only the device
/// knows its type.
pub struct LoadedModule(pub Box<dyn Any + Send>);

/// A device with memory of its own, as its executor drives it: the daemon raises its epoch words,
/// and transfers go through the daemon's shared memory.
pub trait RelayedDevice: Debug {
    /// The device.
    fn device(&self) -> &dyn Device;

    /// The device, for driving it.
    fn device_mut(&mut self) -> &mut dyn Device;

    /// The facts that the device found out when it started.
    fn facts(&self) -> DeviceFacts;

    /// A handle by which another executor opens the memory of this one, if it can.
    fn share_memory(&self) -> Option<Vec<u8>> {
        None
    }

    /// Returns the loader of modules. It runs on another thread, so that launches do not wait while
    /// a driver compiles a module for seconds.
    fn loader(&self) -> LoadModule;

    /// Returns what opens memory of other processes, on another thread; `None` if the device
    /// cannot.
    ///
    /// # Errors
    /// If the driver refuses a stream for the copies.
    fn importer(&self) -> Result<Option<Box<dyn Importer>>, DeviceError> {
        Ok(None)
    }

    /// Registers a module that its loader loaded.
    ///
    /// # Errors
    /// [`DeviceError::BadModule`] if another device loaded it.
    fn adopt(&mut self, module: LoadedModule) -> Result<ModuleId, DeviceError>;

    /// Binds an epoch word in device memory to a word of the shared region. From then on both hold
    /// the same value, and the daemon raises the shared one.
    ///
    /// # Errors
    /// As for [`crate::Memory`].
    fn bind_epoch(&mut self, word: DeviceOffset, index: usize) -> Result<(), DeviceError>;

    /// Copies to device memory the epochs that the daemon raised. Does not wait.
    ///
    /// # Errors
    /// As for [`crate::Memory`].
    fn follow_epochs(&mut self) -> Result<(), DeviceError>;

    /// Opens a lane on the queues that the daemon chose; the daemon's lane table is authoritative.
    ///
    /// # Errors
    /// If the driver refuses.
    fn attach_lane(&mut self, lane: &Lane, units: &[u32]) -> Result<(), DeviceError>;

    /// Closes a lane whose queues are empty.
    fn detach_lane(&mut self, queues: Range<u32>);

    /// Whether a queue belongs to a lane that is open.
    fn has_queue(&self, queue: QueueId) -> bool;

    /// Copies bytes at offset `from` of the shared region into device memory.
    ///
    /// # Errors
    /// As for [`crate::Memory`].
    fn write_from(&mut self, at: DeviceOffset, from: u64, bytes: u64) -> Result<(), DeviceError>;

    /// Copies device memory to offset `to` of the shared region.
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
