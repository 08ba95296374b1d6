//! State of the process: options, devices, and tables of handles.

use crate::device::Device;
use crate::options::{Options, VARIABLE};
use crate::space::Space;
use crate::status::Status;
use crate::work::Event;
use atoll_amd_interp::Program;
use atoll_hip_api::types::HipHandle;
use std::cell::Cell;
use std::collections::HashMap;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

thread_local! {
    /// The ordinal of the device that is current on this thread.
    static CURRENT: Cell<u32> = const { Cell::new(0) };
}

/// The library's state.
pub(crate) struct Runtime {
    pub(crate) options: Options,
    pub(crate) space: Arc<Space>,
    devices: Vec<Arc<Device>>,
    /// Streams with their devices, by handle.
    pub(crate) streams: Table<Arc<Device>>,
    pub(crate) events: Table<Arc<Event>>,
    pub(crate) modules: Table<Arc<Module>>,
    pub(crate) functions: Table<Function>,
}

/// A loaded module.
pub(crate) struct Module {
    pub(crate) program: Arc<Program>,
    pub(crate) device: Arc<Device>,
}

/// A kernel of a module.
#[derive(Clone)]
pub(crate) struct Function {
    /// The handle of its module.
    pub(crate) module: u64,
    pub(crate) kernel: String,
}

/// Objects of one kind, by handle.
pub(crate) struct Table<T>(RwLock<HashMap<u64, T>>);

impl<T> Default for Table<T> {
    fn default() -> Table<T> {
        Table(RwLock::default())
    }
}

impl<T: Clone> Table<T> {
    pub(crate) fn put(&self, handle: u64, object: T) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(handle, object);
    }

    pub(crate) fn get(&self, handle: impl HipHandle) -> Result<T, Status> {
        let table = self.0.read().unwrap_or_else(PoisonError::into_inner);
        table.get(&handle.bits()).cloned().ok_or(Status::InvalidHandle)
    }

    pub(crate) fn remove(&self, handle: impl HipHandle) -> Result<T, Status> {
        let mut table = self.0.write().unwrap_or_else(PoisonError::into_inner);
        table.remove(&handle.bits()).ok_or(Status::InvalidHandle)
    }

    /// Removes all objects that satisfy a predicate.
    pub(crate) fn retain(&self, keeps: impl Fn(&T) -> bool) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).retain(|_, object| keeps(object));
    }
}

/// A new handle. Handles look like unmapped addresses, so that a program that dereferences one
/// faults.
pub(crate) fn fresh() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0x5a3d_a000_0000_0000);
    NEXT.fetch_add(16, Relaxed)
}

impl Runtime {
    /// The state; made by the first call.
    pub(crate) fn get() -> Result<&'static Runtime, Status> {
        static RUNTIME: OnceLock<Result<Runtime, Status>> = OnceLock::new();
        RUNTIME.get_or_init(Runtime::new).as_ref().map_err(|status| *status)
    }

    fn new() -> Result<Runtime, Status> {
        let text = std::env::var(VARIABLE).unwrap_or_default();
        let options = Options::parse(&text).map_err(|error| {
            let _ = writeln!(std::io::stderr(), "stand-in HIP runtime: {error}");
            Status::InvalidValue
        })?;
        let space = Arc::new(Space::new(options.devices, options.memory_bytes)?);
        let device = |ordinal| Arc::new(Device::new(ordinal, space.clone(), &options));
        let devices = (0..options.devices).map(device).collect();
        Ok(Runtime {
            devices,
            space,
            options,
            streams: Table::default(),
            events: Table::default(),
            modules: Table::default(),
            functions: Table::default(),
        })
    }

    /// A device by its ordinal.
    pub(crate) fn device(&self, ordinal: i32) -> Result<&Arc<Device>, Status> {
        if self.devices.is_empty() {
            return Err(Status::NoDevice);
        }
        usize::try_from(ordinal).ok().and_then(|ordinal| self.devices.get(ordinal)).ok_or(Status::InvalidDevice)
    }

    /// The device that is current on this thread. An error if it has faulted.
    pub(crate) fn current(&self) -> Result<&Arc<Device>, Status> {
        let device = self.device(CURRENT.get() as i32)?;
        device.check()?;
        Ok(device)
    }

    /// Number of devices.
    pub(crate) fn count(&self) -> i32 {
        self.devices.len() as i32
    }

    /// Makes a device current on this thread.
    pub(crate) fn set_current(&self, ordinal: i32) -> Result<(), Status> {
        CURRENT.set(self.device(ordinal)?.ordinal);
        Ok(())
    }
}
