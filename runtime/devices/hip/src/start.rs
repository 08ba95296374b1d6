//! Starting a device: loads its library, reserves its memory, and queries its capabilities.

use crate::HipDevice;
use crate::config::HipConfig;
use crate::driver::Failure;
use atoll_device::{DeviceError, DeviceFacts, LaneUnits};
use atoll_device_streams::{EpochPlace, StartStreams, StreamDevice, device_error};
use atoll_hip::{Context, DeviceMemory, Driver, Gpu, HipError, MemoryHandle, OpenError, UnitMask};
use atoll_kgraph::{AMD_TARGETS, amd_target};
use std::sync::Arc;

/// Bytes of device memory that are left to the library in each process, for code, scratch and its
/// own data.
const SPARE_BYTES: u64 = 512 << 20;

/// Prefix of the targets whose compute units are masked one by one. The others mask them in pairs.
const SINGLE_UNITS: &str = "amd-gfx9";

/// Starts an AMD GPU in this process, and reserves its memory.
///
/// # Errors
/// [`DeviceError::Unavailable`] with the reason and the remedy, or the error of the library.
pub fn start(config: &HipConfig) -> Result<HipDevice, DeviceError> {
    let shape = config.link_shape()?;
    let driver = config.library.as_deref().map_or_else(Driver::load, Driver::load_from).map_err(unavailable)?;
    let gpu = driver.gpu(config.index).map_err(unavailable)?;
    let context = gpu.enter().map_err(refused)?;
    let facts = describe(&gpu, config)?;
    let can_reset = config.resets_waves && can_reset_waves(&context);
    let memory = match &config.memory_of {
        Some(handle) => open(&context, handle, config.memory_bytes)?,
        None => reserve(&context, config.memory_bytes, can_reset)?,
    };
    let (memory_bytes, memory_address) = (memory.bytes(), memory.address());
    let facts = DeviceFacts { memory_bytes, memory_address, can_interrupt: can_reset, ..facts };
    StreamDevice::start(StartStreams {
        units: config.compute_units.and_then(|count| UnitMask::new(0..count)),
        // Streams with a mask all have the usual priority.
        highest_priority: context.highest_priority().map_err(refused)?.min(0),
        context,
        memory,
        is_owner: config.memory_of.is_none(),
        info: config.info(),
        facts,
        shape,
        epoch_place: EpochPlace::Mapped,
        shares_faults: false,
        can_reset,
    })
}

/// The target image that a GPU runs, without using it.
///
/// # Errors
/// As [`start`].
pub fn target(config: &HipConfig) -> Result<&'static str, DeviceError> {
    let driver = config.library.as_deref().map_or_else(Driver::load, Driver::load_from).map_err(unavailable)?;
    target_of(&driver.gpu(config.index).map_err(unavailable)?, config.index)
}

/// The target image that a GPU runs.
fn target_of(gpu: &Gpu, index: u32) -> Result<&'static str, DeviceError> {
    let full = gpu.architecture().map_err(refused)?;
    amd_target(full.split(':').next().unwrap_or(&full)).ok_or_else(|| {
        let known: Vec<&str> = AMD_TARGETS.iter().map(|(name, _)| *name).collect();
        DeviceError::Unavailable(format!(
            "hip:{index} is a {full}, for which Atoll makes no code; it does for {}",
            known.join(", ")
        ))
    })
}

/// Whether running waves can be killed. Tries the call while no waves run.
fn can_reset_waves(context: &Arc<Context>) -> bool {
    match context.reset_waves() {
        Ok(()) => true,
        Err(error) => {
            tracing::info!(%error, "running waves cannot be killed; preemption waits for running blocks");
            false
        }
    }
}

/// The facts of the GPU, except for those of its memory.
fn describe(gpu: &Gpu, config: &HipConfig) -> Result<DeviceFacts, DeviceError> {
    let target = target_of(gpu, config.index)?;
    let all = gpu.compute_units().map_err(refused)?;
    if let Some(wanted) = config.compute_units.filter(|wanted| *wanted == 0 || *wanted > all) {
        return Err(DeviceError::Unavailable(format!("the GPU has {all} compute units, not {wanted}")));
    }
    let lane_units = match config.compute_units {
        // A device on a part of the compute units cannot be divided further.
        Some(_) => LaneUnits::None,
        None if target.starts_with(SINGLE_UNITS) => LaneUnits::Any,
        None => LaneUnits::Ranges { step: 2 },
    };
    Ok(DeviceFacts {
        targets: vec![target.to_owned()],
        compute_units: config.compute_units.unwrap_or(all),
        memory_bytes: 0,
        memory_address: 0,
        shared_bytes_max: gpu.lds_bytes().map_err(refused)?,
        lane_units,
        can_interrupt: false,
    })
}

/// Opens the memory of another executor.
fn open(context: &Arc<Context>, handle: &[u8], bytes: Option<u64>) -> Result<DeviceMemory, DeviceError> {
    let invalid = || DeviceError::Unavailable("the memory of another executor has no valid handle or size".to_owned());
    let handle = MemoryHandle { bytes: handle.try_into().map_err(|_| invalid())? };
    let cannot = |error| DeviceError::Unavailable(format!("memory of another process cannot be opened: {error}"));
    DeviceMemory::open(context, handle, bytes.ok_or_else(invalid)?).map_err(cannot)
}

/// Reserves memory of the device, which a second process may open.
fn reserve(context: &Arc<Context>, wanted: Option<u64>, has_second: bool) -> Result<DeviceMemory, DeviceError> {
    let (free, total) = context.memory_bytes().map_err(refused)?;
    let spare = if has_second { 2 * SPARE_BYTES } else { SPARE_BYTES };
    let bytes = wanted.unwrap_or_else(|| free.saturating_sub(spare.min(free / 8)));
    let bytes = bytes - bytes % 256;
    DeviceMemory::new(context, bytes).map_err(|error| match error.is_out_of_memory() {
        true => DeviceError::Unavailable(format!(
            "the GPU has no {bytes} contiguous bytes of memory: {free} of its {total} are free; \
             stop other users of the GPU, or set a memory limit"
        )),
        false => refused(error),
    })
}

fn unavailable(error: OpenError) -> DeviceError {
    DeviceError::Unavailable(error.to_string())
}

fn refused(error: HipError) -> DeviceError {
    device_error(&Failure(error))
}
