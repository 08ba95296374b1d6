//! The code that the program has registered. `nvcc` adds calls to a program that register each fat
//! binary with its kernels and variables at start. The program names a kernel or variable by the
//! address of the host symbol of the same name. A fat binary is loaded into a context when the
//! program first uses one of its kernels or variables there.

use crate::arguments::In;
use crate::device::{Current, current};
use crate::error::Code;
use crate::loaded::{function, keep_function, module, unload};
use atoll_cuda_api::types::*;
use atoll_cuda_library::log;
use atoll_fatbin::WRAPPER;
use std::collections::{BTreeMap, HashMap};
use std::ffi::CStr;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

/// The struct by which `nvcc` registers a fat binary.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Wrapper {
    magic: u32,
    version: u32,
    /// Address of the fat binary.
    image: u64,
    _rest: u64,
}

/// A fat binary.
#[derive(Clone, Copy, Debug)]
struct Binary {
    /// Its address.
    image: u64,
    /// Whether it needs a feature that is missing, so that it must not be loaded.
    is_refused: bool,
}

/// A kernel or a variable.
#[derive(Clone, Debug)]
struct Symbol {
    /// The number of its fat binary.
    binary: u64,
    /// Its name in the fat binary.
    name: Arc<CStr>,
}

/// Symbols by their address in the program. Two libraries may register the same address if the
/// linker merges their functions or variables. The last registration counts.
type Symbols = HashMap<u64, Vec<Symbol>>;

/// A variable in device memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Variable {
    pub(crate) at: CUdeviceptr,
    pub(crate) bytes: u64,
}

#[derive(Debug, Default)]
struct Registered {
    /// By the number that `__cudaRegisterFatBinary` returns.
    binaries: BTreeMap<u64, Binary>,
    last: u64,
    kernels: Symbols,
    variables: Symbols,
}

static REGISTERED: LazyLock<Mutex<Registered>> = LazyLock::new(Mutex::default);

/// The process that registered the first fat binary; 0 if none has.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// The registrations. The lock is never held during a call to the driver.
fn registered() -> MutexGuard<'static, Registered> {
    REGISTERED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Registers a fat binary. Returns its number, or 0 if the wrapper is invalid.
pub(crate) fn add_binary(wrapper: In<Wrapper>) -> u64 {
    let image = match wrapper.get() {
        Ok(wrapper) if wrapper.magic == WRAPPER && wrapper.image != 0 => wrapper.image,
        _ => {
            log(&"__cudaRegisterFatBinary: the argument is not a fat binary of nvcc; its kernels cannot be used");
            return 0;
        }
    };
    let _ = PROCESS.compare_exchange(0, std::process::id(), Relaxed, Relaxed);
    let mut registered = registered();
    registered.last += 1;
    let number = registered.last;
    registered.binaries.insert(number, Binary { image, is_refused: false });
    number
}

/// Marks a fat binary that needs a missing feature: its use returns an error.
pub(crate) fn refuse_binary(number: u64) {
    if let Some(binary) = registered().binaries.get_mut(&number) {
        binary.is_refused = true;
    }
}

/// Removes a fat binary and its symbols when the program or one of its libraries ends. Does nothing
/// in a forked child of the process that registered it: the child has no driver, and a thread of
/// the parent may have held a lock at the fork.
pub(crate) fn remove_binary(number: u64) {
    if PROCESS.load(Relaxed) != std::process::id() {
        return;
    }
    let mut registered = registered();
    registered.binaries.remove(&number);
    remove_symbols(&mut registered.kernels, number);
    remove_symbols(&mut registered.variables, number);
    drop(registered);
    unload(number);
}

fn remove_symbols(symbols: &mut Symbols, binary: u64) {
    symbols.retain(|_, symbols| {
        symbols.retain(|symbol| symbol.binary != binary);
        !symbols.is_empty()
    });
}

/// Registers a kernel.
pub(crate) fn add_kernel(binary: u64, at: u64, name: Box<CStr>) {
    registered().kernels.entry(at).or_default().push(Symbol { binary, name: name.into() });
}

/// Registers a variable.
pub(crate) fn add_variable(binary: u64, at: u64, name: Box<CStr>) {
    registered().variables.entry(at).or_default().push(Symbol { binary, name: name.into() });
}

/// Whether a kernel is registered at an address.
pub(crate) fn is_kernel(at: u64) -> bool {
    registered().kernels.contains_key(&at)
}

/// The kernel at an address, loaded into the current context if it is not yet.
pub(crate) fn kernel(at: u64) -> Result<(Current, CUfunction), Code> {
    let current = current()?;
    let (symbol, binary) = registered().find(|registered| &registered.kernels, at, Code::INVALID_DEVICE_FUNCTION)?;
    if let Some(function) = function(current.context, symbol.binary, at) {
        return Ok((current, function));
    }
    let module = binary.module(current, symbol.binary)?;
    let mut function = CUfunction::NULL;
    current.driver.cuModuleGetFunction(&mut function, module, symbol.name.as_ptr()).map_err(|code| match code {
        Code::SYMBOL_NOT_FOUND => Code::INVALID_DEVICE_FUNCTION,
        code => code,
    })?;
    keep_function(current.context, symbol.binary, at, function);
    Ok((current, function))
}

/// The variable at an address, loaded into the current context if it is not yet.
pub(crate) fn variable(at: u64) -> Result<(Current, Variable), Code> {
    let current = current()?;
    let (symbol, binary) = registered().find(|registered| &registered.variables, at, Code::INVALID_SYMBOL)?;
    let module = binary.module(current, symbol.binary)?;
    let (mut at, mut bytes) = (0, 0);
    current.driver.cuModuleGetGlobal_v2(&mut at, &mut bytes, module, symbol.name.as_ptr()).map_err(
        |code| match code {
            Code::SYMBOL_NOT_FOUND => Code::INVALID_SYMBOL,
            code => code,
        },
    )?;
    Ok((current, Variable { at, bytes: bytes as u64 }))
}

impl Registered {
    /// The last symbol registered at an address, and its fat binary. The error is `missing` if
    /// there is none.
    fn find(&self, of: fn(&Registered) -> &Symbols, at: u64, missing: Code) -> Result<(Symbol, Binary), Code> {
        let symbol = of(self).get(&at).and_then(|symbols| symbols.last()).ok_or(missing)?;
        let binary = self.binaries.get(&symbol.binary).ok_or(missing)?;
        Ok((symbol.clone(), *binary))
    }
}

impl Binary {
    /// The module of the fat binary in the current context, loaded if it is not yet.
    fn module(self, current: Current, number: u64) -> Result<CUmodule, Code> {
        if self.is_refused {
            return Err(Code::NOT_SUPPORTED);
        }
        module(current.driver, current.context, number, self.image)
    }
}
