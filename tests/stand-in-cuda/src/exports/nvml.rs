//! The entry points of NVIDIA's management library (`nvml.h`), which is a separate library on real
//! systems. It knows all devices, also those that `CUDA_VISIBLE_DEVICES` hides from the process.

#![allow(non_snake_case, reason = "the names are those of the library's functions")]

use super::arguments::Out;
use crate::options::{INSTANCES_MAX, Options, VARIABLE};
use crate::visible::{Visible, is_divided};
use atoll_cuda_api::nvml::{nvmlDeviceAttributes_t, nvmlMemory_t, nvmlReturn_t, status};
use std::ffi::{c_char, c_uint};
use std::sync::OnceLock;

/// The options, since `nvmlInit`.
static OPTIONS: OnceLock<Options> = OnceLock::new();

/// Handles begin at this number, so that null is none: one for each GPU, and one for each instance.
const FIRST: usize = 1;

/// The handles of a GPU.
const PER_GPU: usize = INSTANCES_MAX as usize + 1;

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlInit_v2() -> nvmlReturn_t {
    let options = Options::parse(&std::env::var(VARIABLE).unwrap_or_default());
    let Ok(options) = options else { return status::INVALID_ARGUMENT };
    OPTIONS.get_or_init(|| options);
    0
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlShutdown() -> nvmlReturn_t {
    answer(options().map(drop))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetCount_v2(count: Out<c_uint>) -> nvmlReturn_t {
    answer(options().and_then(|options| set(count, options.devices)))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: Out<usize>) -> nvmlReturn_t {
    let is_there = options().map(|options| index < options.devices);
    answer(match is_there {
        Ok(true) => set(device, handle(Visible { gpu: index, instance: None })),
        Ok(false) => Err(status::INVALID_ARGUMENT),
        Err(code) => Err(code),
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetName(device: usize, name: Out<c_char>, room: c_uint) -> nvmlReturn_t {
    answer(device_of(device).map(|device| {
        name.set_text(&device.name(), room as usize);
    }))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetUUID(device: usize, uuid: Out<c_char>, room: c_uint) -> nvmlReturn_t {
    answer(device_of(device).map(|device| {
        uuid.set_text(&device.id(), room as usize);
    }))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetMemoryInfo(device: usize, memory: Out<nvmlMemory_t>) -> nvmlReturn_t {
    let bytes = device_of(device).and_then(|device| {
        let options = options()?;
        Ok(if device.instance.is_some() { options.instance_bytes() } else { options.memory_bytes })
    });
    answer(bytes.and_then(|total| set(memory, nvmlMemory_t { total, free: total, used: 0 })))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetMigMode(
    device: usize,
    current: Out<c_uint>,
    pending: Out<c_uint>,
) -> nvmlReturn_t {
    let is_on = device_of(device).and_then(|device| Ok(is_divided(options()?, device.gpu)));
    answer(is_on.and_then(|is_on| set(current, is_on.into()).and(set(pending, is_on.into()))))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetMaxMigDeviceCount(device: usize, count: Out<c_uint>) -> nvmlReturn_t {
    answer(device_of(device).and_then(|_| set(count, INSTANCES_MAX)))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetMigDeviceHandleByIndex(
    device: usize,
    index: c_uint,
    instance: Out<usize>,
) -> nvmlReturn_t {
    let found = device_of(device)
        .and_then(|device| Visible::instances(options()?, device.gpu).nth(index as usize).ok_or(status::NOT_FOUND));
    answer(found.and_then(|found| set(instance, handle(found))))
}

/// The numbers of GPU instances begin at 7, as those of the smallest profile do.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetGpuInstanceId(instance: usize, id: Out<c_uint>) -> nvmlReturn_t {
    answer(instance_of(instance).and_then(|instance| set(id, 7 + instance)))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetComputeInstanceId(instance: usize, id: Out<c_uint>) -> nvmlReturn_t {
    answer(instance_of(instance).and_then(|_| set(id, 0)))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlDeviceGetAttributes_v2(
    instance: usize,
    attributes: Out<nvmlDeviceAttributes_t>,
) -> nvmlReturn_t {
    let found = instance_of(instance).and_then(|_| {
        let options = options()?;
        Ok(nvmlDeviceAttributes_t {
            multiprocessorCount: options.instance_units(),
            gpuInstanceSliceCount: 1,
            computeInstanceSliceCount: 1,
            memorySizeMB: options.instance_bytes() >> 20,
            ..nvmlDeviceAttributes_t::default()
        })
    });
    answer(found.and_then(|found| set(attributes, found)))
}

fn options() -> Result<&'static Options, nvmlReturn_t> {
    OPTIONS.get().ok_or(status::UNINITIALIZED)
}

fn handle(device: Visible) -> usize {
    let place = device.instance.map_or(0, |instance| instance as usize + 1);
    FIRST + device.gpu as usize * PER_GPU + place
}

/// The device of a handle.
fn device_of(handle: usize) -> Result<Visible, nvmlReturn_t> {
    let options = options()?;
    let number = handle.checked_sub(FIRST).ok_or(status::INVALID_ARGUMENT)?;
    let (gpu, place) = ((number / PER_GPU) as u32, (number % PER_GPU) as u32);
    let whole = (gpu < options.devices).then_some(Visible { gpu, instance: None });
    let found = match place.checked_sub(1) {
        None => whole,
        Some(place) => whole.and_then(|_| Visible::instances(options, gpu).nth(place as usize)),
    };
    found.ok_or(status::INVALID_ARGUMENT)
}

/// The number of the instance of a handle; an error for a whole GPU.
fn instance_of(handle: usize) -> Result<u32, nvmlReturn_t> {
    device_of(handle)?.instance.ok_or(status::INVALID_ARGUMENT)
}

fn set<T>(out: Out<T>, value: T) -> Result<(), nvmlReturn_t> {
    out.set(value).map_err(|_| status::INVALID_ARGUMENT)
}

fn answer(outcome: Result<(), nvmlReturn_t>) -> nvmlReturn_t {
    outcome.err().unwrap_or(0)
}
