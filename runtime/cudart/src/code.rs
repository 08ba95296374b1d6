//! Code that the program has registered. `nvcc` puts calls into the program that register each fat
//! binary with its kernels and variables when the program starts; a kernel or variable is named by
//! the address of something of the same name in the program. A fat binary is loaded into a context
//! when something of it is first used there.

use crate::arguments::{In, pointer};
use crate::device::{Current, current};
use crate::driver::driver;
use crate::error::Code;
use crate::log::log;
use atoll_cuda_api::constants::{CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
use atoll_cuda_api::types::*;
use std::collections::{BTreeMap, HashMap};
use std::ffi::CStr;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

/// The first word of the struct with which `nvcc` registers a fat binary.
const WRAPPER: u32 = 0x4662_43b1;

/// Room for the log of the driver's compiler in bytes.
const LOG_BYTES: usize = 8 << 10;

/// The struct with which `nvcc` registers a fat binary.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Wrapper {
    magic: u32,
    version: u32,
    /// Address of the fat binary.
    image: u64,
    _rest: u64,
}

/// A kernel or a variable.
#[derive(Clone, Debug)]
struct Symbol {
    /// The fat binary that it is in.
    binary: u64,
    /// Its name there.
    name: Box<CStr>,
}

/// A variable in device memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Variable {
    pub(crate) at: CUdeviceptr,
    pub(crate) bytes: u64,
}

#[derive(Debug, Default)]
struct Registered {
    /// Addresses of fat binaries, by the number that the program gets.
    binaries: BTreeMap<u64, u64>,
    last: u64,
    /// By the address in the program.
    kernels: HashMap<u64, Symbol>,
    variables: HashMap<u64, Symbol>,
    /// Modules by context and fat binary.
    modules: HashMap<(u64, u64), CUmodule>,
    /// Kernels that have been used, by context and address.
    functions: HashMap<(u64, u64), CUfunction>,
}

static REGISTERED: LazyLock<Mutex<Registered>> = LazyLock::new(Mutex::default);

fn registered() -> MutexGuard<'static, Registered> {
    REGISTERED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Registers a fat binary; returns its number, or 0 if it is not one.
pub(crate) fn add_binary(wrapper: In<Wrapper>) -> u64 {
    let image = match wrapper.get() {
        Ok(wrapper) if wrapper.magic == WRAPPER && wrapper.image != 0 => wrapper.image,
        _ => {
            log(&"__cudaRegisterFatBinary: the argument is no fat binary of nvcc; its kernels cannot be used");
            return 0;
        }
    };
    let mut registered = registered();
    registered.last += 1;
    let number = registered.last;
    registered.binaries.insert(number, image);
    number
}

/// Forgets a fat binary and what is in it, when the program or a library of it ends.
pub(crate) fn remove_binary(number: u64) {
    let mut guard = registered();
    let Registered { binaries, kernels, variables, modules, functions, .. } = &mut *guard;
    binaries.remove(&number);
    kernels.retain(|_, symbol| symbol.binary != number);
    variables.retain(|_, symbol| symbol.binary != number);
    functions.retain(|(_, at), _| kernels.contains_key(at));
    let modules: Vec<CUmodule> =
        modules.extract_if(|(_, binary), _| *binary == number).map(|(_, module)| module).collect();
    drop(guard);
    for module in modules {
        // The driver may have ended before.
        let _ = driver().and_then(|driver| driver.cuModuleUnload(module));
    }
}

/// Registers a kernel.
pub(crate) fn add_kernel(binary: u64, at: u64, name: Box<CStr>) {
    registered().kernels.insert(at, Symbol { binary, name });
}

/// Registers a variable.
pub(crate) fn add_variable(binary: u64, at: u64, name: Box<CStr>) {
    registered().variables.insert(at, Symbol { binary, name });
}

/// Whether there is a kernel at an address.
pub(crate) fn is_kernel(at: u64) -> bool {
    registered().kernels.contains_key(&at)
}

/// A kernel in the current context, loaded if it is not.
pub(crate) fn kernel(at: u64) -> Result<(Current, CUfunction), Code> {
    let current = current()?;
    let key = (current.context.bits(), at);
    let mut registered = registered();
    if let Some(function) = registered.functions.get(&key) {
        return Ok((current, *function));
    }
    let symbol = registered.kernels.get(&at).ok_or(Code::INVALID_DEVICE_FUNCTION)?.clone();
    let module = registered.module(current, symbol.binary)?;
    let mut function = CUfunction::NULL;
    current.driver.cuModuleGetFunction(&mut function, module, symbol.name.as_ptr()).map_err(|code| match code {
        Code::SYMBOL_NOT_FOUND => Code::INVALID_DEVICE_FUNCTION,
        code => code,
    })?;
    registered.functions.insert(key, function);
    Ok((current, function))
}

/// A variable in the current context, loaded if it is not.
pub(crate) fn variable(at: u64) -> Result<(Current, Variable), Code> {
    let current = current()?;
    let mut registered = registered();
    let symbol = registered.variables.get(&at).ok_or(Code::INVALID_SYMBOL)?.clone();
    let module = registered.module(current, symbol.binary)?;
    let (mut at, mut bytes) = (0, 0);
    current.driver.cuModuleGetGlobal_v2(&mut at, &mut bytes, module, symbol.name.as_ptr()).map_err(
        |code| match code {
            Code::SYMBOL_NOT_FOUND => Code::INVALID_SYMBOL,
            code => code,
        },
    )?;
    Ok((current, Variable { at, bytes: bytes as u64 }))
}

/// Forgets what was loaded into a context that has ended.
pub(crate) fn forget(context: CUcontext) {
    let mut registered = registered();
    registered.modules.retain(|(of, _), _| *of != context.bits());
    registered.functions.retain(|(of, _), _| *of != context.bits());
}

impl Registered {
    /// A fat binary in the current context, loaded if it is not.
    fn module(&mut self, current: Current, binary: u64) -> Result<CUmodule, Code> {
        let key = (current.context.bits(), binary);
        if let Some(module) = self.modules.get(&key) {
            return Ok(*module);
        }
        let image = *self.binaries.get(&binary).ok_or(Code::INVALID_DEVICE_FUNCTION)?;
        let module = load(current, image)?;
        self.modules.insert(key, module);
        Ok(module)
    }
}

/// Loads a fat binary. What the driver's compiler says about an error is printed, since the runtime
/// API has no place for it.
fn load(current: Current, image: u64) -> Result<CUmodule, Code> {
    let mut text = vec![0u8; LOG_BYTES];
    let mut names = [CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
    let mut values = [text.as_mut_ptr().cast::<c_void>(), pointer(LOG_BYTES as u64)];
    let mut module = CUmodule::NULL;
    let (count, names, values) = (names.len() as c_uint, names.as_mut_ptr(), values.as_mut_ptr());
    let loaded = current.driver.cuModuleLoadDataEx(&mut module, pointer(image), count, names, values);
    if let Err(Code(code)) = loaded {
        let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
        let why = String::from_utf8_lossy(&text[..end]);
        let why = if why.is_empty() { "the driver does not say why".into() } else { why };
        log(&format_args!("the driver cannot load the program's code (error {code}): {}", why.trim_end()));
    }
    loaded.map(|()| module)
}
