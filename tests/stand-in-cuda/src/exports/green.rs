//! Green contexts: partitions of a device's compute units. Their streams are streams of the primary context and run on all compute units here; how many they would have is counted.

use super::arguments::{In, Out, Pointer};
use super::entry_points;
use super::stream::start;
use crate::driver::Driver;
use crate::status::Status;
use crate::table::Handle;
use atoll_cuda_api::constants::*;
use atoll_cuda_api::types::*;
use std::sync::Arc;

/// Compute units come in pairs, as on the GPUs that can be divided most finely.
const STEP: u32 = 2;

/// The first driver that has them.
const DRIVER_MIN: c_int = 12_040;

/// A partition, or the description of one.
#[derive(Debug)]
pub(crate) struct Green {
    ordinal: u32,
}

entry_points! { GREEN:
    fn cuDeviceGetDevResource(device: CUdevice, resource: Out<CUdevResource>, kind: CUdevResourceType) {
        let driver = supported()?;
        driver.check_ordinal(device)?;
        if kind != CU_DEV_RESOURCE_TYPE_SM {
            return Err(Status::InvalidValue);
        }
        resource.set(of_units(driver.options.compute_units))
    }

    fn cuDevSmResourceSplitByCount(result: Out<CUdevResource>, groups: Pointer, input: In<CUdevResource>, rest: Out<CUdevResource>, flags: c_uint, units_min: c_uint) {
        supported()?;
        let all = units_of(input.get()?)?;
        let units = units_min.max(STEP).checked_next_multiple_of(STEP).filter(|units| *units <= all && flags == 0).ok_or(Status::InvalidValue)?;
        let wanted = if result.is_null() { u32::MAX } else { groups.as_in::<u32>().get()? };
        let count = wanted.min(all / units);
        result.set_all((0..count).map(|_| of_units(units)), count as usize * usize::from(!result.is_null()));
        rest.set_if_wanted(of_units(all - count * units));
        groups.as_out().set(count)
    }

    fn cuDevResourceGenerateDesc(description: Out<CUdevResourceDesc>, resources: In<CUdevResource>, count: c_uint) {
        let driver = supported()?;
        if count != 1 {
            return Err(Status::InvalidValue);
        }
        units_of(resources.get()?)?;
        let handle = Handle::fresh();
        driver.descriptions.put(handle, Arc::new(()));
        description.set(handle.raw())
    }

    fn cuGreenCtxCreate(green: Out<CUgreenCtx>, description: CUdevResourceDesc, device: CUdevice, flags: c_uint) {
        let driver = supported()?;
        let ordinal = driver.check_ordinal(device)?;
        driver.descriptions.get(Handle::of(description))?;
        if flags != CU_GREEN_CTX_DEFAULT_STREAM {
            return Err(Status::InvalidValue);
        }
        green.is_wanted()?;
        driver.retain_primary(ordinal)?;
        let handle = Handle::fresh();
        driver.greens.put(handle, Arc::new(Green { ordinal }));
        green.set(handle.raw())
    }

    fn cuGreenCtxDestroy(green: CUgreenCtx) {
        let driver = supported()?;
        let green = driver.greens.remove(Handle::of(green))?;
        driver.release_primary(green.ordinal)
    }

    fn cuGreenCtxStreamCreate(stream: Out<CUstream>, green: CUgreenCtx, flags: c_uint, priority: c_int) {
        let driver = supported()?;
        let green = driver.greens.get(Handle::of(green))?;
        let primary = driver.primary(green.ordinal)?;
        start(&primary, stream, flags, priority)
    }
}

fn supported() -> Result<&'static Driver, Status> {
    Driver::get().and_then(|driver| if driver.options.driver < DRIVER_MIN { Err(Status::NotSupported) } else { Ok(driver) })
}

fn of_units(units: u32) -> CUdevResource {
    CUdevResource { kind: CU_DEV_RESOURCE_TYPE_SM, internal: [0; 92], sm_count: units, rest: [0; 44] }
}

fn units_of(resource: CUdevResource) -> Result<u32, Status> {
    if resource.kind == CU_DEV_RESOURCE_TYPE_SM { Ok(resource.sm_count) } else { Err(Status::InvalidValue) }
}
