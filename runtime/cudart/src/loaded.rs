//! Loaded code: the module of each fat binary in each context. Threads that need the same module
//! wait until one of them has loaded it; other threads do not wait while the driver compiles.

use crate::driver::{Driver, driver};
use crate::error::Code;
use atoll_cuda_api::constants::{CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
use atoll_cuda_api::types::*;
use atoll_cuda_library::{log, pointer};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

/// Room for the log of the driver's compiler in bytes.
const LOG_BYTES: usize = 8 << 10;

/// A fat binary in a context: the bits of the context's handle, and the binary's number.
type Place = (u64, u64);

/// The result of loading. `None` before loading, and after an error that may be temporary.
type Slot = Arc<Mutex<Option<Result<CUmodule, Code>>>>;

struct Loaded {
    modules: BTreeMap<Place, Slot>,
    /// Kernels that have been used, by place and address in the program.
    functions: BTreeMap<(Place, u64), CUfunction>,
}

static LOADED: Mutex<Loaded> = Mutex::new(Loaded { modules: BTreeMap::new(), functions: BTreeMap::new() });

fn loaded() -> MutexGuard<'static, Loaded> {
    LOADED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The module of a fat binary in the current context, loaded if it is not yet. `image` is the
/// address of the fat binary.
pub(crate) fn module(driver: &Driver, context: CUcontext, binary: u64, image: u64) -> Result<CUmodule, Code> {
    let slot = loaded().modules.entry((context.bits(), binary)).or_default().clone();
    let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = *slot {
        return known;
    }
    let result = load(driver, image);
    if result.is_ok() || result.is_err_and(Code::is_of_code) {
        *slot = Some(result);
    }
    result
}

/// A kernel that was used in this context before.
pub(crate) fn function(context: CUcontext, binary: u64, at: u64) -> Option<CUfunction> {
    loaded().functions.get(&((context.bits(), binary), at)).copied()
}

/// Keeps a kernel for [`function`].
pub(crate) fn keep_function(context: CUcontext, binary: u64, at: u64, function: CUfunction) {
    loaded().functions.insert(((context.bits(), binary), at), function);
}

/// The address in the program of a kernel that was used before.
pub(crate) fn host_of(function: CUfunction) -> Option<u64> {
    loaded().functions.iter().find(|(_, known)| **known == function).map(|((_, at), _)| *at)
}

/// Drops the modules and kernels of a context that no longer exists.
pub(crate) fn forget(context: CUcontext) {
    let mut loaded = loaded();
    loaded.modules.retain(|(of, _), _| *of != context.bits());
    loaded.functions.retain(|((of, _), _), _| *of != context.bits());
}

/// Unloads a fat binary from all contexts.
pub(crate) fn unload(binary: u64) {
    let mut loaded = loaded();
    loaded.functions.retain(|((_, of), _), _| *of != binary);
    let places: Vec<Place> = loaded.modules.keys().filter(|(_, of)| *of == binary).copied().collect();
    let slots: Vec<(Place, Slot)> =
        places.into_iter().filter_map(|place| loaded.modules.remove_entry(&place)).collect();
    drop(loaded);
    for ((context, _), slot) in slots {
        // Another thread may be loading the module while the program ends. It then stays loaded.
        let module = match slot.try_lock() {
            Ok(slot) => *slot,
            Err(TryLockError::Poisoned(slot)) => *slot.into_inner(),
            Err(TryLockError::WouldBlock) => None,
        };
        if let Some(Ok(module)) = module {
            // The driver or the context may no longer exist.
            let _ = driver().and_then(|driver| unload_from(driver, CUcontext::from_bits(context), module));
        }
    }
}

/// Unloads a module while its context is current.
fn unload_from(driver: &Driver, context: CUcontext, module: CUmodule) -> Result<(), Code> {
    driver.cuCtxPushCurrent_v2(context)?;
    let unloaded = driver.cuModuleUnload(module);
    let mut popped = CUcontext::NULL;
    driver.cuCtxPopCurrent_v2(&mut popped)?;
    unloaded
}

/// Loads a fat binary. The log of the driver's compiler goes to standard error, since the runtime
/// API has no argument for it.
fn load(driver: &Driver, image: u64) -> Result<CUmodule, Code> {
    let mut text = vec![0u8; LOG_BYTES];
    let mut names = [CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
    let mut values = [text.as_mut_ptr().cast::<c_void>(), pointer(LOG_BYTES as u64)];
    let mut module = CUmodule::NULL;
    let (count, names, values) = (names.len() as c_uint, names.as_mut_ptr(), values.as_mut_ptr());
    let loaded = driver.cuModuleLoadDataEx(&mut module, pointer(image), count, names, values);
    if let Err(Code(code)) = loaded {
        let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
        let why = String::from_utf8_lossy(&text[..end]);
        let why = if why.is_empty() { "the driver does not say why".into() } else { why };
        log(&format_args!("the driver cannot load the program's code (error {code}): {}", why.trim_end()));
    }
    loaded.map(|()| module)
}
