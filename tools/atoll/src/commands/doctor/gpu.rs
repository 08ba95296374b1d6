//! Describes the GPU of `--device cuda`, and measures how fast an epoch reaches its kernels.

use super::{Finding, shares};
use crate::device_name::GpuName;
use anyhow::{Context, Result};
use atoll_device::{Device, Division};
use atoll_device_cuda::{CudaConfig, CudaDevice, FlagRoute, GpuId, MpsControl, RouteCost, VISIBLE_DEVICES};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The smallest amount that a device accepts; nothing runs on it.
const MEMORY_BYTES: u64 = 1 << 20;

/// Starts this program again, so that it sees only the GPU that has the UUID: a process sees one MIG
/// instance. Returns if it sees that one already, or if the environment chooses other devices.
pub(super) fn see_only(name: GpuName) -> Result<()> {
    let id = GpuId::from(name);
    let Some(id) = id.visible_alone().filter(|id| std::env::var_os(VISIBLE_DEVICES).is_none_or(|list| list != *id))
    else {
        return Ok(());
    };
    let program = std::env::current_exe().context("the path of this program")?;
    let error = Command::new(program).args(std::env::args_os().skip(1)).env(VISIBLE_DEVICES, id).exec();
    Err(error).context("cannot start this program again")
}

pub(super) fn findings(name: GpuName) -> Vec<Finding> {
    match describe(name) {
        Ok((detail, divisions)) => vec![Finding::good("GPU", detail), shares(&divisions)],
        Err(error) => vec![Finding::bad("GPU", format!("{error:#}"), "models can run with `--device host` instead")],
    }
}

/// The GPU, and the ways in which it is divided.
fn describe(name: GpuName) -> Result<(String, Vec<Division>)> {
    let config = CudaConfig { gpu: name.into(), memory_bytes: Some(MEMORY_BYTES), ..CudaConfig::default() };
    let device = CudaDevice::start(&config)?;
    let (info, gpu) = (device.info(), device.gpu());
    let version = gpu.driver().version()?;
    let mut text = format!(
        "{}: {}, sm_{}, {} compute units, driver for CUDA {}.{}",
        info.name,
        gpu.name()?,
        gpu.capability()?,
        info.compute_units,
        version / 1000,
        version % 1000 / 10
    );
    if let Some(routes) = device.flag_routes() {
        let place = match routes.chosen {
            FlagRoute::Mapped => "host memory",
            FlagRoute::StreamWrite => "device memory",
            FlagRoute::Bar => "device memory through the BAR",
        };
        // Not reported as missing, since few machines have it.
        let bar =
            routes.bar.map_or_else(String::new, |bar| format!("; device memory through the BAR: {}", cost(Some(bar))));
        text += &format!(
            "; kernels read epochs from {place} (host memory: {}; device memory: {}{bar})",
            cost(routes.mapped),
            cost(routes.stream_write)
        );
    }
    text += &match device.smallest_partition() {
        Ok(units) => format!("; it can be partitioned in units of at least {units} compute units (`--compute-units`)"),
        Err(error) => format!("; {error}"),
    };
    let mut divisions = vec![Division::of(info)];
    let is_mig = gpu.is_mig()?;
    if is_mig {
        text += &format!("; it is a MIG instance of {}", gpu.whole_id()?);
        divisions.push(Division::Mig);
    }
    let mps = MpsControl::ambient();
    divisions.extend(mps.is_some().then_some(Division::Mps));
    text += match mps {
        Some(control) if control.answers() => "; MPS is running, so several processes use it concurrently",
        Some(_) => "; MPS was started but does not respond, so programs that use the GPU may hang at startup",
        None if is_mig => "; MPS is not running, so processes that use the instance are time-sliced",
        None => "; MPS is not running, so processes are time-sliced (start it with `--mps`)",
    };
    Ok((text, divisions))
}

fn cost(cost: Option<RouteCost>) -> String {
    cost.map_or_else(
        || "not available".to_owned(),
        |RouteCost { visible_ns, read_ns }| {
            format!("visible after {:.1} µs (round trip), read in {read_ns} ns", visible_ns as f64 / 1e3)
        },
    )
}
