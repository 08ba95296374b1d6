//! The functions of the private tables.

use super::digest::digest;
use super::{INTEGRITY, RUNTIME};
use crate::arguments::{Argument, Out, Place};
use crate::contexts::PRIMARY;
use crate::exports::{check_device, enter, load};
use crate::handles::{Kind, handle, number};
use crate::shim::Shim;
use crate::storage::{Destructor, Value};
use atoll_cuda_api::types::*;
use atoll_session::{Code, DeviceFacts};

/// A result of the caller.
fn out<T>(at: *mut T) -> Out<T> {
    Argument::of(at)
}

fn place(at: *const c_void) -> Place {
    Place::at(at.expose_provenance() as u64)
}

fn load_module(module: *mut CUmodule, image: *const c_void) -> Result<(), Code> {
    out(module).is_wanted()?;
    let loaded = load(place(image)).map_err(|error| error.code)?;
    out(module).set(handle(Kind::Module, loaded))
}

/// Loads a fat binary, given by its wrapper, for the current context.
pub(super) extern "C" fn load_wrapper(module: *mut CUmodule, wrapper: *const c_void) -> CUresult {
    enter("the runtime's load of a module", || load_module(module, wrapper))
}

/// The same with options, which are not known; programs pass none.
pub(super) extern "C" fn load_wrapper_with(
    module: *mut CUmodule,
    wrapper: *const c_void,
    _names: *const c_void,
    _values: *const c_void,
    _count: c_uint,
) -> CUresult {
    enter("the runtime's load of a module", || load_module(module, wrapper))
}

/// The same for a fat binary without a wrapper.
pub(super) extern "C" fn load_binary_with(
    binary: *const c_void,
    module: *mut CUmodule,
    _names: *const c_void,
    _values: *const c_void,
    _count: c_uint,
) -> CUresult {
    enter("the runtime's load of a module", || load_module(module, binary))
}

/// The primary context of a device, which is not retained.
pub(super) extern "C" fn primary_context(context: *mut CUcontext, device: CUdevice) -> CUresult {
    enter("the runtime's look-up of the primary context", || {
        let mut shim = Shim::get()?;
        check_device(device)?;
        out(context).is_wanted()?;
        shim.contexts.reveal();
        out(context).set(handle(Kind::Context, PRIMARY))
    })
}

/// Does nothing.
pub(super) extern "C" fn ignore(_: usize) {}

/// Loads the driver's compilers, which are the server's here.
pub(super) extern "C" fn load_compilers() -> CUresult {
    0
}

/// The number of a context; null is the current one. It need not be active.
fn context_number(shim: &Shim, context: CUcontext) -> Result<u32, Code> {
    if context == CUcontext::NULL { shim.contexts.current() } else { number(Kind::Context, context) }
}

/// Keeps a value for a context.
pub(super) extern "C" fn put(
    context: CUcontext,
    key: *mut c_void,
    value: *mut c_void,
    destructor: Option<Destructor>,
) -> CUresult {
    enter("the runtime's storage", || {
        let mut shim = Shim::get()?;
        let context = context_number(&shim, context)?;
        shim.storage.put(context, Value { key: place(key).address(), value: place(value).address(), destructor });
        Ok(())
    })
}

/// Removes a value without freeing it.
pub(super) extern "C" fn remove(context: CUcontext, key: *mut c_void) -> CUresult {
    enter("the runtime's storage", || {
        let mut shim = Shim::get()?;
        let context = context_number(&shim, context)?;
        if shim.storage.remove(context, place(key).address()) { Ok(()) } else { Err(Code::INVALID_HANDLE) }
    })
}

/// Reads a value.
pub(super) extern "C" fn get(value: *mut *mut c_void, context: CUcontext, key: *mut c_void) -> CUresult {
    enter("the runtime's storage", || {
        let shim = Shim::get()?;
        let context = context_number(&shim, context)?;
        let found = shim.storage.get(context, place(key).address()).ok_or(Code::INVALID_HANDLE)?;
        out(value).set(std::ptr::with_exposed_provenance_mut(found as usize))
    })
}

/// The device of a context.
pub(super) extern "C" fn context_device(context: CUcontext, device: *mut CUdevice) -> CUresult {
    enter("the runtime's look-up of a context's device", || {
        context_number(&*Shim::get()?, context)?;
        out(device).set(0)
    })
}

/// The number of a context.
pub(super) extern "C" fn context_number_of(context: CUcontext, found: *mut u64) -> CUresult {
    enter("the runtime's look-up of a context's number", || {
        out(found).set(context_number(&*Shim::get()?, context)?.into())
    })
}

/// Room for more flags than the runtime has functions.
static FLAGS: [u64; 1024] = [0; 1024];

/// For each function of the runtime whether a profiler wants to know of its calls: none does.
pub(super) extern "C" fn callbacks(flags: *mut *const u64, count: *mut usize) {
    out(flags).set_if_wanted(FLAGS.as_ptr());
    out(count).set_if_wanted(FLAGS.len());
}

/// The same for groups of functions.
pub(super) extern "C" fn callback_flags(flags: *mut *const u64, count: *mut usize) {
    out(flags).set_if_wanted(FLAGS.as_ptr());
    out(count).set_if_wanted(14);
}

/// A state of a context that is never set.
pub(super) extern "C" fn check_context(_: CUcontext, state: *mut u32, _: *mut *const c_void) -> CUresult {
    out(state).set_if_wanted(0);
    0
}

/// A state that is never set.
pub(super) extern "C" fn check() -> u32 {
    0
}

/// The runtime's check that it has NVIDIA's driver. The last digit of the version chooses an answer
/// that is always the same, or a digest of what both know.
pub(super) extern "C" fn integrity(version: c_uint, seconds: u64, answer: *mut [u64; 2]) -> CUresult {
    enter("the runtime's check of the driver", || {
        let shim = Shim::get()?;
        out(answer).set(match version % 10 {
            0 => [0x3341_181c_03cb_675c, 0x8ed3_83aa_1f4c_d1e8],
            1 => [0x1841_181c_03cb_675c, 0x8ed3_83aa_1f4c_d1e8],
            _ => {
                let whole = u128::from_le_bytes(digest(&message(version, seconds, shim.client.facts())));
                [whole as u64, (whole >> 64) as u64]
            }
        })
    })
}

/// What the digest is made of.
fn message(version: c_uint, seconds: u64, facts: &DeviceFacts) -> Vec<u8> {
    // SAFETY: the function has no conditions.
    let thread = unsafe { libc::pthread_self() } as u32;
    let words = [facts.driver, version, std::process::id(), thread];
    let function = integrity as extern "C" fn(c_uint, u64, *mut [u64; 2]) -> CUresult;
    let places = [RUNTIME.address(), INTEGRITY.address(), function as *const ()];
    let longs = places.map(|place| place.expose_provenance() as u64).into_iter().chain([seconds]);
    let of_device = |attribute| facts.attribute(attribute).unwrap_or(0);
    let device = PCI_ATTRIBUTES.map(of_device);
    let mut message: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
    message.extend(longs.flat_map(u64::to_le_bytes));
    message.extend(facts.uuid);
    message.extend(device.into_iter().flat_map(i32::to_le_bytes));
    message
}

/// The attributes of a device with its PCI domain, bus and device.
const PCI_ATTRIBUTES: [c_int; 3] = [50, 33, 34];
