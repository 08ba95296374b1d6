//! Handles: the context in which they were created, their settings, and the kernels that they have
//! loaded.

use crate::driver::{Driver, driver};
use crate::kernels::Code;
use crate::log::log_once;
use crate::status::Status;
use atoll_cuda_api::types::*;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A handle as the program has it: a number, never an address, so a wrong one is an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(transparent)]
pub(crate) struct HandleId(usize);

/// Device memory of a handle for a result in bytes.
const SCRATCH_BYTES: usize = 16;

/// The first handle, and the distance of handles.
const FIRST_ID: usize = 0x1000;
const ID_STEP: usize = 16;

struct Handle {
    context: CUcontext,
    state: Mutex<State>,
}

/// Settings and loaded kernels of a handle.
pub(crate) struct State {
    pub(crate) stream: CUstream,
    /// `cublasPointerMode_t`: whether factors and results are in device memory.
    pub(crate) on_device: bool,
    /// Settings that have no effect but are kept.
    pub(crate) math_mode: c_int,
    pub(crate) atomics_mode: c_int,
    pub(crate) sm_count_target: c_int,
    scratch: Option<CUdeviceptr>,
    modules: BTreeMap<Code, CUmodule>,
    functions: BTreeMap<(Code, &'static str), CUfunction>,
}

/// The handles, and the next one's number.
struct Handles {
    next: usize,
    known: BTreeMap<HandleId, Arc<Handle>>,
}

static HANDLES: Mutex<Handles> = Mutex::new(Handles { next: FIRST_ID, known: BTreeMap::new() });

fn handles() -> MutexGuard<'static, Handles> {
    HANDLES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Creates a handle in the current context of the thread, or in the primary context of device 0 if
/// it has none.
pub(crate) fn create() -> Result<HandleId, Status> {
    let context = current_context(driver()?)?;
    let state = State {
        stream: CUstream::NULL,
        on_device: false,
        math_mode: 0,
        atomics_mode: 0,
        sm_count_target: 0,
        scratch: None,
        modules: BTreeMap::new(),
        functions: BTreeMap::new(),
    };
    let mut handles = handles();
    let id = HandleId(handles.next);
    handles.next += ID_STEP;
    handles.known.insert(id, Arc::new(Handle { context, state: Mutex::new(state) }));
    Ok(id)
}

/// The current context; if there is none, the primary context of device 0, which becomes current.
pub(crate) fn current_context(driver: &Driver) -> Result<CUcontext, Status> {
    let mut context = CUcontext::NULL;
    driver.cuCtxGetCurrent(&mut context)?;
    if context == CUcontext::NULL {
        driver.cuDevicePrimaryCtxRetain(&mut context, 0)?;
        driver.cuCtxSetCurrent(context)?;
    }
    Ok(context)
}

/// Destroys a handle. As in cuBLAS, it waits for all work of the context: launches may run in any
/// stream that the handle had, or that cuBLASLt got, and the program may have destroyed those. Frees
/// the handle's modules and memory. The context may be gone already.
pub(crate) fn destroy(id: HandleId) -> Result<(), Status> {
    let handle = handles().known.remove(&id).ok_or(Status::NOT_INITIALIZED)?;
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

/// A call with a handle: its context is current, and other calls with the handle wait.
pub(crate) struct Call<'a> {
    pub(crate) driver: &'static Driver,
    pub(crate) state: &'a mut State,
}

/// Makes a call with a handle.
pub(crate) fn with<R>(id: HandleId, call: impl FnOnce(&mut Call<'_>) -> Result<R, Status>) -> Result<R, Status> {
    let handle = handles().known.get(&id).cloned().ok_or(Status::NOT_INITIALIZED)?;
    within(driver()?, &handle, call)
}

/// Reads or changes settings of a handle. Nothing is called in the driver.
pub(crate) fn settings<R>(id: HandleId, change: impl FnOnce(&mut State) -> R) -> Result<R, Status> {
    let handle = handles().known.get(&id).cloned().ok_or(Status::NOT_INITIALIZED)?;
    let mut state = handle.state.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(change(&mut state))
}

fn within<R>(
    driver: &'static Driver,
    handle: &Handle,
    call: impl FnOnce(&mut Call<'_>) -> Result<R, Status>,
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

impl Call<'_> {
    /// A kernel, loaded if it is not yet.
    fn function(&mut self, code: Code, name: &'static str) -> Result<CUfunction, Status> {
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
        let symbol = CString::new(name).map_err(|_| Status::INTERNAL_ERROR)?;
        self.driver.cuModuleGetFunction(&mut function, module, symbol.as_ptr())?;
        self.state.functions.insert((code, name), function);
        Ok(function)
    }

    /// Launches a kernel in the handle's stream. Each parameter is the low bytes of its value.
    pub(crate) fn launch(
        &mut self,
        (code, name): (Code, &'static str),
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
    pub(crate) fn scratch(&mut self) -> Result<CUdeviceptr, Status> {
        if let Some(memory) = self.state.scratch {
            return Ok(memory);
        }
        let mut memory = 0;
        self.driver.cuMemAlloc_v2(&mut memory, SCRATCH_BYTES)?;
        self.state.scratch = Some(memory);
        Ok(memory)
    }
}

fn load(driver: &Driver, code: Code) -> Result<CUmodule, Status> {
    let text = CString::new(code.ptx()).map_err(|_| Status::INTERNAL_ERROR)?;
    let mut module = CUmodule::NULL;
    let loaded = driver.cuModuleLoadData(&mut module, text.as_ptr().cast());
    if let Err(status) = loaded {
        log_once(
            "kernels",
            &format_args!("the driver cannot load a kernel of cuBLAS ({code:?}): {}", status.name().to_string_lossy()),
        );
    }
    loaded.map(|()| module)
}
