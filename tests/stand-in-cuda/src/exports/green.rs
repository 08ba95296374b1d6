//! Green contexts: partitions of a device's compute units. Their streams are streams of the primary
//! context whose launches run on those compute units, a lane of the host device.

use super::arguments::{In, Out, Pointer};
use super::entry_points;
use super::stream::start;
use crate::driver::Driver;
use crate::green::Green;
use crate::status::Status;
use crate::table::Handle;
use atoll_cuda_api::constants::*;
use atoll_cuda_api::types::*;
use std::ops::Range;
use std::sync::Arc;

/// Compute units come in pairs, the finest granularity of real GPUs.
const STEP: u32 = 2;

/// The first driver versions with green contexts and with their streams.
const DRIVER_MIN: c_int = 12_040;
const STREAMS_DRIVER_MIN: c_int = 12_050;

/// Offsets in a resource's private bytes: its first compute unit, and whether a split returned it.
const FIRST_AT: usize = 0;
const SPLIT_AT: usize = 4;

entry_points! { GREEN:
    fn cuDeviceGetDevResource(device: CUdevice, resource: Out<CUdevResource>, kind: CUdevResourceType) {
        let driver = supported()?;
        driver.check_ordinal(device)?;
        if kind != CU_DEV_RESOURCE_TYPE_SM {
            return Err(Status::InvalidValue);
        }
        resource.set(of_units(0..driver.options.compute_units, false))
    }

    fn cuDevSmResourceSplitByCount(
        result: Out<CUdevResource>, groups: Pointer, input: In<CUdevResource>, rest: Out<CUdevResource>, flags: c_uint,
        units_min: c_uint
    ) {
        supported()?;
        let input = input.get()?;
        if input.internal[SPLIT_AT] != 0 {
            return Err(Status::InvalidResourceConfiguration);
        }
        let Range { start, end } = units_of(input)?;
        let units = units_min.max(STEP).checked_next_multiple_of(STEP);
        let units = units.filter(|units| *units <= end - start && flags == 0).ok_or(Status::InvalidValue)?;
        let wanted = if result.is_null() { u32::MAX } else { groups.as_in::<u32>().get()? };
        let count = wanted.min((end - start) / units);
        let group = |index: u32| of_units(start + index * units..start + (index + 1) * units, true);
        result.set_all((0..count).map(group), count as usize * usize::from(!result.is_null()));
        rest.set_if_wanted(of_units(start + count * units..end, true));
        groups.as_out().set(count)
    }

    fn cuDevResourceGenerateDesc(description: Out<CUdevResourceDesc>, resources: In<CUdevResource>, count: c_uint) {
        let driver = supported()?;
        let parts = (0..count as usize).map(|at| units_of(resources.at(at)?)).collect::<Result<Vec<_>, _>>()?;
        let (Some(first), Some(last)) = (parts.first(), parts.last()) else { return Err(Status::InvalidValue) };
        // A GPU would accept them too. Here the units of a lane must be one range.
        if parts.windows(2).any(|pair| pair[0].end != pair[1].start) {
            return Err(Status::InvalidResourceConfiguration);
        }
        let (units, handle) = (first.start..last.end, Handle::fresh());
        driver.descriptions.put(handle, Arc::new(units));
        description.set(handle.raw())
    }

    fn cuGreenCtxCreate(green: Out<CUgreenCtx>, description: CUdevResourceDesc, device: CUdevice, flags: c_uint) {
        let driver = supported()?;
        let ordinal = driver.check_ordinal(device)?;
        let units = driver.descriptions.get(Handle::of(description))?;
        if flags != CU_GREEN_CTX_DEFAULT_STREAM {
            return Err(Status::InvalidValue);
        }
        green.is_wanted()?;
        driver.retain_primary(ordinal)?;
        let part = driver.primary(ordinal)?.device.part((*units).clone().collect()).inspect_err(|_| {
            let _ = driver.release_primary(ordinal);
        })?;
        let handle = Handle::fresh();
        driver.greens.put(handle, Arc::new(Green { ordinal, part: Arc::new(part) }));
        green.set(handle.raw())
    }

    fn cuGreenCtxDestroy(green: CUgreenCtx) {
        let driver = supported()?;
        let green = driver.greens.remove(Handle::of(green))?;
        driver.release_primary(green.ordinal)
    }

    fn cuGreenCtxStreamCreate(stream: Out<CUstream>, green: CUgreenCtx, flags: c_uint, priority: c_int) {
        let driver = supported()?;
        if driver.options.driver < STREAMS_DRIVER_MIN {
            return Err(Status::NotSupported);
        }
        let green = driver.greens.get(Handle::of(green))?;
        let primary = driver.primary(green.ordinal)?;
        start(&primary, stream, flags, priority, Some(Arc::downgrade(&green.part)))
    }
}

fn supported() -> Result<&'static Driver, Status> {
    Driver::get()
        .and_then(|driver| if driver.options.driver < DRIVER_MIN { Err(Status::NotSupported) } else { Ok(driver) })
}

fn of_units(units: Range<u32>, is_split: bool) -> CUdevResource {
    let mut internal = [0; 92];
    internal[SPLIT_AT] = u8::from(is_split);
    internal[FIRST_AT..FIRST_AT + 4].copy_from_slice(&units.start.to_le_bytes());
    CUdevResource { kind: CU_DEV_RESOURCE_TYPE_SM, internal, sm_count: units.end - units.start, rest: [0; 44] }
}

fn units_of(resource: CUdevResource) -> Result<Range<u32>, Status> {
    let first = u32::from_le_bytes(std::array::from_fn(|at| resource.internal[FIRST_AT + at]));
    let all = Driver::get()?.options.compute_units;
    let end =
        first.checked_add(resource.sm_count).filter(|end| *end <= all && resource.kind == CU_DEV_RESOURCE_TYPE_SM);
    end.map(|end| first..end).ok_or(Status::InvalidValue)
}
