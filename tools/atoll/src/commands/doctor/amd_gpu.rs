//! Describes the GPU of `--device hip`.

use super::Finding;
use anyhow::Result;
use atoll_device::{Device, LaneUnits};
use atoll_device_hip::{HipConfig, KfdError, kernel_patch, start};

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
    let config = HipConfig { index, memory_bytes: Some(MEMORY_BYTES), ..HipConfig::default() };
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
    // This process has no work, so the driver kills nothing.
    text += &kills(device.context().reset_by_kernel(), gpu.driver().can_reset_waves());
    text += match info.lane_units {
        LaneUnits::None => "; it cannot be divided into lanes",
        LaneUnits::Any => "; lanes may have any compute units",
        LaneUnits::Ranges { .. } => "; lanes have pairs of compute units",
    };
    Ok(text)
}

/// How running waves are killed: by the kernel driver, or by `hipResetWavefronts` if the runtime has
/// it. The second is never called here: REEF's runtime may kill the waves of a running daemon.
fn kills(by_driver: Result<(), KfdError>, has_reset: bool) -> String {
    match by_driver {
        Ok(()) => "; running waves can be killed (by the kernel driver, which has Atoll's patch)".to_owned(),
        Err(why) if has_reset => format!(
            "; the runtime has `hipResetWavefronts`, which is not tried, since it may kill the waves of a running \
             daemon ({why})"
        ),
        Err(why) => format!("; preemption waits for running blocks: the runtime cannot kill waves ({why})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_to_kill_waves_is_told() {
        let absent = || Err(KfdError::Absent("there is no `/dev/kfd`"));
        assert!(kills(Ok(()), true).contains("can be killed (by the kernel driver"));
        assert!(kills(absent(), true).contains("is not tried"));
        let none = kills(absent(), false);
        assert!(none.ends_with("the runtime cannot kill waves (patch absent: there is no `/dev/kfd`)"), "{none}");
    }
}
