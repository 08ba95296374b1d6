//! Code that the program has registered. `nvcc` puts calls into the program that register each fat
//! binary with its kernels and variables when the program starts; a kernel or variable is named by
//! the address of something of the same name in the program. A fat binary is loaded into a context
//! when something of it is first used there.

use crate::arguments::In;
use crate::device::{Current, current};
use crate::error::Code;
use crate::loaded::{function, keep_function, module, unload};
use crate::log::log;
use atoll_cuda_api::types::*;
use atoll_fatbin::WRAPPER;
use std::collections::{BTreeMap, HashMap};
use std::ffi::CStr;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

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

/// A fat binary.
#[derive(Clone, Copy, Debug)]
struct Binary {
    /// Its address.
    image: u64,
    /// Whether it needs something that is missing, so that it cannot be loaded.
    is_refused: bool,
}

/// A kernel or a variable.
#[derive(Clone, Debug)]
struct Symbol {
    /// The fat binary that it is in.
    binary: u64,
    /// Its name there.
    name: Arc<CStr>,
}

/// Symbols by the address in the program. Two libraries may register the same address, if the
/// linker makes one function or variable of theirs; the last one counts.
type Symbols = HashMap<u64, Vec<Symbol>>;

/// A variable in device memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Variable {
    pub(crate) at: CUdeviceptr,
    pub(crate) bytes: u64,
}

#[derive(Debug, Default)]
struct Registered {
    /// By the number that the program gets.
    binaries: BTreeMap<u64, Binary>,
    last: u64,
    kernels: Symbols,
    variables: Symbols,
}

static REGISTERED: LazyLock<Mutex<Registered>> = LazyLock::new(Mutex::default);

/// The process that registered the first fat binary; 0 is none.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// What is registered. The lock is never held during a call to the driver.
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
    let _ = PROCESS.compare_exchange(0, std::process::id(), Relaxed, Relaxed);
    let mut registered = registered();
    registered.last += 1;
    let number = registered.last;
    registered.binaries.insert(number, Binary { image, is_refused: false });
    number
}

/// Makes the use of a fat binary an error: it needs something that is missing.
pub(crate) fn refuse_binary(number: u64) {
    if let Some(binary) = registered().binaries.get_mut(&number) {
        binary.is_refused = true;
    }
}

/// Forgets a fat binary and what is in it, when the program or a library of it ends. In a child
/// that was forked from the process with the registrations nothing happens: it has no driver to
/// unload from, and a lock may be that of a thread that it does not have.
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

/// Whether there is a kernel at an address.
pub(crate) fn is_kernel(at: u64) -> bool {
    registered().kernels.contains_key(&at)
}

/// A kernel in the current context, loaded if it is not.
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

/// A variable in the current context, loaded if it is not.
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
    /// The symbol at an address, and its fat binary; `missing` if there is none.
    fn find(&self, of: fn(&Registered) -> &Symbols, at: u64, missing: Code) -> Result<(Symbol, Binary), Code> {
        let symbol = of(self).get(&at).and_then(|symbols| symbols.last()).ok_or(missing)?;
        let binary = self.binaries.get(&symbol.binary).ok_or(missing)?;
        Ok((symbol.clone(), *binary))
    }
}

impl Binary {
    /// The fat binary in the current context, loaded if it is not.
    fn module(self, current: Current, number: u64) -> Result<CUmodule, Code> {
        if self.is_refused {
            return Err(Code::NOT_SUPPORTED);
        }
        module(current.driver, current.context, number, self.image)
    }
}
