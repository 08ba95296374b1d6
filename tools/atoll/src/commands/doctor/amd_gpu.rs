//! Describes the GPU of `--device hip`.

use super::Finding;
use anyhow::Result;
use atoll_core::PreemptLevel;
use atoll_device::{Device, LaneUnits};
use atoll_device_hip::{HipConfig, kernel_patch, start};

/// The smallest amount that a device accepts; nothing runs on it.
const MEMORY_BYTES: u64 = 1 << 20;

pub(super) fn finding(index: u32) -> Finding {
    match describe(index) {
        Ok(detail) => Finding::good("GPU", detail),
        Err(error) => {
            let driver = kernel_patch().err().map(|why| format!("; {why}")).unwrap_or_default();
            Finding::bad("GPU", format!("{error:#}{driver}"), "models can run with `--device host` instead")
        }
    }
}

fn describe(index: u32) -> Result<String> {
    let config = HipConfig { index, memory_bytes: Some(MEMORY_BYTES), resets_waves: true, ..HipConfig::default() };
    let device = start(&config)?;
    let (info, gpu) = (device.info(), device.context().gpu());
    let version = gpu.driver().version()?;
    let mut text = format!(
        "{}: {}, {}, {} compute units, waves of {} lanes, HIP {}.{}",
        info.name,
        gpu.name()?,
        gpu.architecture()?,
        info.compute_units,
        gpu.wave_lanes()?,
        version / 10_000_000,
        version / 100_000 % 100
    );
    text += &match info.preempt_level {
        PreemptLevel::Interrupt if device.context().resets_by_kernel() => {
            "; running waves can be killed (by the kernel driver, which has Atoll's patch)".to_owned()
        }
        PreemptLevel::Interrupt => "; running waves can be killed (`hipResetWavefronts`)".to_owned(),
        _ => {
            // The device has no work, so this kills nothing.
            let why = device.context().reset_waves().err().map(|error| format!(" ({})", error.name));
            format!("; preemption waits for running blocks: the runtime cannot kill waves{}", why.unwrap_or_default())
        }
    };
    text += match info.lane_units {
        LaneUnits::None => "; it cannot be divided into lanes",
        LaneUnits::Any => "; lanes may have any compute units",
        LaneUnits::Ranges { .. } => "; lanes have pairs of compute units",
    };
    Ok(text)
}
