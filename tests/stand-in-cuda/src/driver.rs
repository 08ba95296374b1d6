//! The state of the process: options, devices, memory, and the tables of handles.

use crate::context::Context;
use crate::device::Device;
use crate::event::Event;
use crate::graph::Graph;
use crate::green::Green;
use crate::log::log;
use crate::memory::Memory;
use crate::module::{Function, Module};
use crate::mps;
use crate::options::{Options, VARIABLE};
use crate::status::Status;
use crate::stream::Stream;
use crate::table::{Handle, Table};
use crate::visible::Visible;
use atoll_kgraph::DiskCache;
use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Maximum size of the cached native code in bytes.
const CACHE_BYTES_MAX: u64 = 256 << 20;

/// The driver of this process; set by `cuInit`.
static DRIVER: OnceLock<Result<Driver, Status>> = OnceLock::new();

thread_local! {
    /// The context stack of this thread; the last one is current.
    static CONTEXTS: RefCell<Vec<Handle>> = const { RefCell::new(Vec::new()) };
}

/// The driver.
#[derive(Debug)]
pub(crate) struct Driver {
    /// With the compute units and the memory that this process may use of a device.
    pub(crate) options: Options,
    /// The devices that this process sees.
    pub(crate) visible: Vec<Visible>,
    pub(crate) memory: Memory,
    /// The cache of native code, if there is one.
    pub(crate) cache: Option<Arc<DiskCache>>,
    pub(crate) contexts: Table<Context>,
    pub(crate) streams: Table<Stream>,
    pub(crate) events: Table<Event>,
    pub(crate) modules: Table<Module>,
    pub(crate) functions: Table<Function>,
    pub(crate) graphs: Table<Graph>,
    /// Green contexts, and descriptions from which they are created.
    pub(crate) greens: Table<Green>,
    /// The compute units of each description.
    pub(crate) descriptions: Table<Range<u32>>,
    /// Instantiated graphs.
    pub(crate) executables: Table<Graph>,
    /// Number of calls so far, for each entry point that the options make fail.
    calls: Mutex<HashMap<&'static str, u64>>,
    primaries: Mutex<Vec<Primary>>,
}

/// A device and its primary context.
#[derive(Debug)]
struct Primary {
    handle: Handle,
    /// Number of times it is retained; the context exists while this is not 0.
    retained: u64,
    device: Option<Arc<Device>>,
}

impl Driver {
    /// `cuInit`: reads the options, once per process.
    pub(crate) fn init() -> Result<(), Status> {
        DRIVER.get_or_init(Driver::start).as_ref().map(drop).map_err(|status| *status)
    }

    /// The driver; an error before `cuInit`.
    pub(crate) fn get() -> Result<&'static Driver, Status> {
        DRIVER.get().ok_or(Status::NotInitialized)?.as_ref().map_err(|status| *status)
    }

    fn start() -> Result<Driver, Status> {
        let text = std::env::var(VARIABLE).unwrap_or_default();
        let mut options = Options::parse(&text).map_err(|error| {
            log(&error);
            Status::InvalidValue
        })?;
        let visible = Visible::of_this_process(&options);
        let Some(first) = visible.first() else { return Err(Status::NoDevice) };
        if first.instance.is_some() {
            (options.compute_units, options.memory_bytes) = (options.instance_units(), options.instance_bytes());
        }
        options.compute_units = mps::join(options.compute_units);
        let primary = |_| Primary { handle: Handle::fresh(), retained: 0, device: None };
        Ok(Driver {
            memory: Memory::new(options.memory_bytes)?,
            cache: options.code_folder().map(|folder| Arc::new(DiskCache::new(folder, "o", CACHE_BYTES_MAX))),
            contexts: Table::default(),
            streams: Table::default(),
            events: Table::default(),
            modules: Table::default(),
            functions: Table::default(),
            graphs: Table::default(),
            executables: Table::default(),
            greens: Table::default(),
            descriptions: Table::default(),
            calls: Mutex::default(),
            primaries: Mutex::new((0..visible.len()).map(primary).collect()),
            options,
            visible,
        })
    }

    /// Fails if the options request that this call of the entry point fails.
    pub(crate) fn fail_on_demand(&self, name: &'static str) -> Result<(), Status> {
        if !self.options.failures.iter().any(|failure| failure.name == name) {
            return Ok(());
        }
        let mut calls = lock(&self.calls);
        let call = calls.entry(name).or_default();
        *call += 1;
        let failure = self.options.failures.iter().find(|failure| failure.name == name && failure.call == *call);
        failure.map_or(Ok(()), |failure| Err(failure.status))
    }

    /// Checks that a device exists.
    pub(crate) fn check_ordinal(&self, ordinal: i32) -> Result<u32, Status> {
        self.device_at(ordinal).map(|_| ordinal as u32)
    }

    /// The GPU or MIG instance with an ordinal.
    pub(crate) fn device_at(&self, ordinal: i32) -> Result<Visible, Status> {
        let device = usize::try_from(ordinal).ok().and_then(|ordinal| self.visible.get(ordinal));
        device.copied().ok_or(Status::InvalidDevice)
    }

    /// The current context of this thread, if it has not faulted.
    pub(crate) fn current(&self) -> Result<Arc<Context>, Status> {
        let handle = current_handle().ok_or(Status::InvalidContext)?;
        let context = self.contexts.get(handle).map_err(|_| Status::ContextIsDestroyed)?;
        context.check()?;
        Ok(context)
    }

    /// The context of a handle from the program.
    pub(crate) fn context(&self, handle: Handle) -> Result<Arc<Context>, Status> {
        self.contexts.get(handle).map_err(|_| Status::InvalidContext)
    }

    /// A stream; handles 0 and 1 are the default stream of the current context.
    pub(crate) fn stream(&self, handle: Handle) -> Result<Arc<Stream>, Status> {
        match handle.0 {
            0 | 1 => self.current()?.default_stream(),
            2 => Err(Status::NotSupported),
            _ => self.streams.get(handle),
        }
    }

    /// Retains the primary context of a device.
    pub(crate) fn retain_primary(&'static self, ordinal: u32) -> Result<Handle, Status> {
        self.refuse_if_exclusive()?;
        let mut primaries = lock(&self.primaries);
        let device = self.device(&mut primaries, ordinal)?;
        let primary = &mut primaries[ordinal as usize];
        if primary.retained == 0 {
            self.contexts.put(primary.handle, Arc::new(self.new_context(device, primary.handle, true)));
        }
        primary.retained += 1;
        Ok(primary.handle)
    }

    /// Releases the primary context of a device once; the last release destroys it.
    pub(crate) fn release_primary(&self, ordinal: u32) -> Result<(), Status> {
        let mut primaries = lock(&self.primaries);
        let primary = &mut primaries[ordinal as usize];
        primary.retained = primary.retained.checked_sub(1).ok_or(Status::InvalidContext)?;
        if primary.retained == 0 {
            self.destroy(&*self.contexts.remove(primary.handle)?);
        }
        Ok(())
    }

    /// Destroys the primary context of a device, even if it is retained several times.
    pub(crate) fn reset_primary(&self, ordinal: u32) -> Result<(), Status> {
        let mut primaries = lock(&self.primaries);
        let primary = &mut primaries[ordinal as usize];
        if std::mem::take(&mut primary.retained) > 0 {
            self.destroy(&*self.contexts.remove(primary.handle)?);
        }
        Ok(())
    }

    /// A device's primary context, while it is retained.
    pub(crate) fn primary(&self, ordinal: u32) -> Result<Arc<Context>, Status> {
        let handle = lock(&self.primaries)[ordinal as usize].handle;
        self.context(handle)
    }

    /// Whether the primary context exists.
    pub(crate) fn is_primary_active(&self, ordinal: u32) -> bool {
        lock(&self.primaries)[ordinal as usize].retained > 0
    }

    /// Creates another context.
    pub(crate) fn create_context(&'static self, ordinal: u32) -> Result<Handle, Status> {
        self.refuse_if_exclusive()?;
        let device = self.device(&mut lock(&self.primaries), ordinal)?;
        let handle = Handle::fresh();
        self.contexts.put(handle, Arc::new(self.new_context(device, handle, false)));
        Ok(handle)
    }

    fn new_context(&'static self, device: Arc<Device>, handle: Handle, is_primary: bool) -> Context {
        Context::new(&self.memory, self.cache.clone(), device, handle, is_primary)
    }

    /// Ends all work of a context that was removed from the table, and frees all that belongs to
    /// it.
    pub(crate) fn destroy(&self, context: &Context) {
        context.end();
        self.forget_all_of(context.handle);
        self.memory.give_back_all(context.handle);
    }

    /// Removes the objects of a context from their tables.
    fn forget_all_of(&self, context: Handle) {
        self.streams.drain(|stream| stream.context.handle == context);
        self.events.drain(|event| event.context.handle == context);
        self.functions.drain(|function| function.module.context.handle == context);
        self.modules.drain(|module| module.context.handle == context);
        self.graphs.drain(|graph| graph.context.handle == context);
        self.executables.drain(|graph| graph.context.handle == context);
    }

    fn refuse_if_exclusive(&self) -> Result<(), Status> {
        if self.options.compute_mode.is_available() { Ok(()) } else { Err(Status::DeviceUnavailable) }
    }

    /// The device with an ordinal; its compute units start with its first context.
    fn device(&self, primaries: &mut [Primary], ordinal: u32) -> Result<Arc<Device>, Status> {
        let device = &mut primaries[ordinal as usize].device;
        if let Some(device) = device {
            return Ok(device.clone());
        }
        let started = Device::start(ordinal, &self.options).map_err(|error| {
            log(&error);
            Status::OperatingSystem
        })?;
        Ok(device.insert(started).clone())
    }
}

/// The handle of this thread's current context, which may be destroyed.
pub(crate) fn current_handle() -> Option<Handle> {
    CONTEXTS.with_borrow(|contexts| contexts.last().copied())
}

/// Changes the context stack of this thread.
pub(crate) fn change_contexts<R>(change: impl FnOnce(&mut Vec<Handle>) -> R) -> R {
    CONTEXTS.with_borrow_mut(change)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
