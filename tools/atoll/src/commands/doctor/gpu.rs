//! Describes the GPU of `--device cuda`, and measures how fast an epoch reaches its kernels.

use super::{Finding, shares};
use anyhow::Result;
use atoll_device::{Device, Division};
use atoll_device_cuda::{CudaConfig, CudaDevice, FlagRoute, MpsControl, RouteCost};

/// The smallest amount that a device accepts; nothing runs on it.
const MEMORY_BYTES: u64 = 1 << 20;

pub(super) fn findings(index: u32) -> Vec<Finding> {
    match describe(index) {
        Ok((detail, divisions)) => vec![Finding::good("GPU", detail), shares(&divisions)],
        Err(error) => vec![Finding::bad("GPU", format!("{error:#}"), "models can run with `--device host` instead")],
    }
}

/// The GPU, and the ways in which it is divided.
fn describe(index: u32) -> Result<(String, Vec<Division>)> {
    let device = CudaDevice::start(&CudaConfig { index, memory_bytes: Some(MEMORY_BYTES), ..CudaConfig::default() })?;
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
    if gpu.name()?.contains(" MIG ") {
        text += "; it is a MIG instance";
        divisions.push(Division::Mig);
    }
    let mps = MpsControl::ambient();
    divisions.extend(mps.is_some().then_some(Division::Mps));
    text += match mps {
        Some(control) if control.answers() => "; MPS is running, so several processes use it concurrently",
        Some(_) => "; MPS was started but does not respond, so programs that use the GPU may hang at startup",
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
