//! Green contexts: partitions of a device's compute units. Their streams are streams of the primary context and run on all compute units here; how many they would have is counted.

use super::arguments::{In, Out, Pointer};
use super::entry_points;
use super::stream::start;
use crate::driver::Driver;
use crate::status::Status;
use crate::table::Handle;
use std::ffi::{c_int, c_uint};
use std::sync::Arc;

/// `CU_DEV_RESOURCE_TYPE_SM`.
const TYPE_SM: u32 = 1;

/// Compute units come in pairs, as on the GPUs that can be divided most finely.
const STEP: u32 = 2;

/// `CU_GREEN_CTX_DEFAULT_STREAM`.
const DEFAULT_STREAM: c_uint = 1;

/// The first driver that has them.
const DRIVER_MIN: c_int = 12_040;

/// `CUdevResource` of CUDA 12: the type, 92 bytes of the driver's, and 48 of which the first four are the number of compute units.
type Resource = [u32; 36];

/// Where that number is.
const UNITS: usize = 24;

/// A partition, or the description of one.
#[derive(Debug)]
pub(crate) struct Green {
    ordinal: u32,
}

entry_points! { GREEN:
    fn cuDeviceGetDevResource(device: c_int, resource: Out<Resource>, kind: c_uint) {
        let driver = supported()?;
        driver.check_ordinal(device)?;
        if kind != TYPE_SM {
            return Err(Status::InvalidValue);
        }
        resource.set(of_units(driver.options.compute_units))
    }

    fn cuDevSmResourceSplitByCount(
        result: Out<Resource>,
        groups: Pointer,
        input: In<Resource>,
        rest: Out<Resource>,
        flags: c_uint,
        units_min: c_uint,
    ) {
        supported()?;
        let all = units_of(input.get()?)?;
        let units = units_min.max(STEP).checked_next_multiple_of(STEP).filter(|units| *units <= all && flags == 0).ok_or(Status::InvalidValue)?;
        let wanted = if result.is_null() { u32::MAX } else { groups.as_in::<u32>().get()? };
        let count = wanted.min(all / units);
        result.set_all((0..count).map(|_| of_units(units)), count as usize * usize::from(!result.is_null()));
        rest.set_if_wanted(of_units(all - count * units));
        groups.as_out().set(count)
    }

    fn cuDevResourceGenerateDesc(description: Out<u64>, resources: In<Resource>, count: c_uint) {
        let driver = supported()?;
        if count != 1 {
            return Err(Status::InvalidValue);
        }
        units_of(resources.get()?)?;
        let handle = Handle::fresh();
        driver.descriptions.put(handle, Arc::new(()));
        description.set(handle.0)
    }

    fn cuGreenCtxCreate(green: Out<u64>, description: u64, device: c_int, flags: c_uint) {
        let driver = supported()?;
        let ordinal = driver.check_ordinal(device)?;
        driver.descriptions.get(Handle(description))?;
        if flags != DEFAULT_STREAM {
            return Err(Status::InvalidValue);
        }
        green.is_wanted()?;
        driver.retain_primary(ordinal)?;
        let handle = Handle::fresh();
        driver.greens.put(handle, Arc::new(Green { ordinal }));
        green.set(handle.0)
    }

    fn cuGreenCtxDestroy(green: u64) {
        let driver = supported()?;
        let green = driver.greens.remove(Handle(green))?;
        driver.release_primary(green.ordinal)
    }

    fn cuGreenCtxStreamCreate(stream: Out<u64>, green: u64, flags: c_uint, priority: c_int) {
        let driver = supported()?;
        let green = driver.greens.get(Handle(green))?;
        let primary = driver.primary(green.ordinal)?;
        start(&primary, stream, flags, priority)
    }
}

fn supported() -> Result<&'static Driver, Status> {
    Driver::get().and_then(|driver| if driver.options.driver < DRIVER_MIN { Err(Status::NotSupported) } else { Ok(driver) })
}

fn of_units(units: u32) -> Resource {
    let mut resource = [0; 36];
    (resource[0], resource[UNITS]) = (TYPE_SM, units);
    resource
}

fn units_of(resource: Resource) -> Result<u32, Status> {
    if resource[0] == TYPE_SM { Ok(resource[UNITS]) } else { Err(Status::InvalidValue) }
}
