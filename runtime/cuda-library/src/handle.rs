//! Handles: the context in which they were created, their settings, and the kernels that they have
//! loaded.

use crate::driver::{Driver, driver};
use crate::log::log_once;
use crate::status::Status;
use atoll_cuda_api::types::*;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A handle as the program has it: a number, never an address, so a wrong one is an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(transparent)]
pub struct HandleId(usize);

/// Device memory of a handle for a result in bytes.
const SCRATCH_BYTES: usize = 16;

/// The first handle, and the distance of handles.
const FIRST_ID: usize = 0x1000;
const ID_STEP: usize = 16;

/// A module of kernels of a library, by what distinguishes it from the others.
pub trait Kernels: Copy + Ord + Debug {
    /// The library's name in messages.
    const LIBRARY: &'static str;

    /// The PTX of the module.
    fn ptx(self) -> String;
}

struct Handle<C, S> {
    context: CUcontext,
    state: Mutex<State<C, S>>,
}

/// Settings and loaded kernels of a handle. `C` is the library's type of modules, `S` that of its
/// settings.
pub struct State<C, S> {
    /// The stream of the handle's work.
    pub stream: CUstream,
    /// The library's settings.
    pub settings: S,
    scratch: Option<CUdeviceptr>,
    modules: BTreeMap<C, CUmodule>,
    functions: BTreeMap<(C, &'static str), CUfunction>,
}

/// The handles of a library.
pub struct Handles<C, S> {
    table: Mutex<Table<C, S>>,
}

/// The handles, and the next one's number.
struct Table<C, S> {
    next: usize,
    known: BTreeMap<HandleId, Arc<Handle<C, S>>>,
}

impl<C, S> Handles<C, S> {
    /// No handles.
    pub const fn new() -> Handles<C, S> {
        Handles { table: Mutex::new(Table { next: FIRST_ID, known: BTreeMap::new() }) }
    }

    fn lock(&self) -> MutexGuard<'_, Table<C, S>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, id: HandleId) -> Result<Arc<Handle<C, S>>, Status> {
        self.lock().known.get(&id).cloned().ok_or(Status::NotInitialized)
    }
}

impl<C, S> Default for Handles<C, S> {
    fn default() -> Handles<C, S> {
        Handles::new()
    }
}

impl<C: Kernels, S: Default> Handles<C, S> {
    /// Creates a handle in the current context of the thread, or in the primary context of device 0 if
    /// it has none.
    pub fn create(&self) -> Result<HandleId, Status> {
        let context = current_context(driver()?)?;
        let state = State {
            stream: CUstream::NULL,
            settings: S::default(),
            scratch: None,
            modules: BTreeMap::new(),
            functions: BTreeMap::new(),
        };
        let mut table = self.lock();
        let id = HandleId(table.next);
        table.next += ID_STEP;
        table.known.insert(id, Arc::new(Handle { context, state: Mutex::new(state) }));
        Ok(id)
    }

    /// Destroys a handle. As in cuBLAS and cuDNN, it waits for all work of the context: launches may
    /// run in any stream that the handle had, and the program may have destroyed those. Frees the
    /// handle's modules and memory; the context may be gone already. An unknown handle is an error.
    pub fn destroy(&self, id: HandleId) -> Result<(), Status> {
        let handle = self.lock().known.remove(&id).ok_or(Status::NotInitialized)?;
        let driver = driver()?;
        let _ = within(driver, &handle, |call| {
            let waited = driver.cuCtxSynchronize();
            if let Some(memory) = call.state.scratch.take() {
                let _ = driver.cuMemFree_v2(memory);
            }
            call.state.functions.clear();
            for module in std::mem::take(&mut call.state.modules).into_values() {
                let _ = driver.cuModuleUnload(module);
            }
            waited
        });
        Ok(())
    }

    /// Makes a call with a handle. An unknown handle is an error.
    pub fn with<R>(
        &self,
        id: HandleId,
        call: impl FnOnce(&mut Call<'_, C, S>) -> Result<R, Status>,
    ) -> Result<R, Status> {
        let handle = self.find(id)?;
        within(driver()?, &handle, call)
    }

    /// Reads or changes the state of a handle. Nothing is called in the driver. An unknown handle is an
    /// error.
    pub fn state<R>(&self, id: HandleId, change: impl FnOnce(&mut State<C, S>) -> R) -> Result<R, Status> {
        let handle = self.find(id)?;
        let mut state = handle.state.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(change(&mut state))
    }
}

/// The current context; if there is none, the primary context of device 0, which becomes current.
pub fn current_context(driver: &Driver) -> Result<CUcontext, Status> {
    let mut context = CUcontext::NULL;
    driver.cuCtxGetCurrent(&mut context)?;
    if context == CUcontext::NULL {
        driver.cuDevicePrimaryCtxRetain(&mut context, 0)?;
        driver.cuCtxSetCurrent(context)?;
    }
    Ok(context)
}

/// A call with a handle: its context is current, and other calls with the handle wait.
pub struct Call<'a, C, S> {
    /// The driver.
    pub driver: &'static Driver,
    /// The handle's state.
    pub state: &'a mut State<C, S>,
}

fn within<R, C, S>(
    driver: &'static Driver,
    handle: &Handle<C, S>,
    call: impl FnOnce(&mut Call<'_, C, S>) -> Result<R, Status>,
) -> Result<R, Status> {
    let mut current = CUcontext::NULL;
    driver.cuCtxGetCurrent(&mut current)?;
    let is_other = current != handle.context;
    if is_other {
        driver.cuCtxPushCurrent_v2(handle.context)?;
    }
    let mut state = handle.state.lock().unwrap_or_else(PoisonError::into_inner);
    let result = call(&mut Call { driver, state: &mut state });
    drop(state);
    if is_other {
        let mut popped = CUcontext::NULL;
        driver.cuCtxPopCurrent_v2(&mut popped)?;
    }
    result
}

impl<C: Kernels, S> Call<'_, C, S> {
    /// A kernel, loaded if it is not yet.
    fn function(&mut self, code: C, name: &'static str) -> Result<CUfunction, Status> {
        if let Some(function) = self.state.functions.get(&(code, name)) {
            return Ok(*function);
        }
        let module = match self.state.modules.get(&code) {
            Some(module) => *module,
            None => {
                let module = load(self.driver, code)?;
                self.state.modules.insert(code, module);
                module
            }
        };
        let mut function = CUfunction::NULL;
        let symbol = CString::new(name).map_err(|_| Status::InternalError)?;
        self.driver.cuModuleGetFunction(&mut function, module, symbol.as_ptr())?;
        self.state.functions.insert((code, name), function);
        Ok(function)
    }

    /// Launches a kernel in the handle's stream. Each parameter is the low bytes of its value.
    pub fn launch(
        &mut self,
        (code, name): (C, &'static str),
        (grid, threads): ([u32; 3], u32),
        values: &[u64],
    ) -> Result<(), Status> {
        let function = self.function(code, name)?;
        let mut pointers: Vec<*mut c_void> =
            values.iter().map(|value| std::ptr::from_ref(value).cast_mut().cast()).collect();
        let [x, y, z] = grid;
        self.driver.cuLaunchKernel(
            function,
            x,
            y,
            z,
            threads,
            1,
            1,
            0,
            self.state.stream,
            pointers.as_mut_ptr(),
            std::ptr::null_mut(),
        )
    }

    /// Device memory for a result of at most 16 bytes.
    pub fn scratch(&mut self) -> Result<CUdeviceptr, Status> {
        if let Some(memory) = self.state.scratch {
            return Ok(memory);
        }
        let mut memory = 0;
        self.driver.cuMemAlloc_v2(&mut memory, SCRATCH_BYTES)?;
        self.state.scratch = Some(memory);
        Ok(memory)
    }
}

fn load<C: Kernels>(driver: &Driver, code: C) -> Result<CUmodule, Status> {
    let text = CString::new(code.ptx()).map_err(|_| Status::InternalError)?;
    let mut module = CUmodule::NULL;
    let loaded = driver.cuModuleLoadData(&mut module, text.as_ptr().cast());
    if let Err(status) = loaded {
        let line = format_args!("the driver cannot load a kernel of {} ({code:?}): {status:?}", C::LIBRARY);
        log_once("kernels", &line);
    }
    loaded.map(|()| module)
}
