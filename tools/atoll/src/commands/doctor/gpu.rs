//! What the GPU of `--device cuda` is, and how fast an epoch reaches its kernels.

use super::Finding;
use anyhow::Result;
use atoll_device::Device;
use atoll_device_cuda::{CudaConfig, CudaDevice, FlagRoute, MpsControl, RouteCost};

/// As little as a device takes: nothing is run on it.
const MEMORY_BYTES: u64 = 1 << 20;

pub(super) fn finding(index: u32) -> Finding {
    match describe(index) {
        Ok(detail) => Finding::good("GPU", detail),
        Err(error) => Finding::bad("GPU", format!("{error:#}"), "without it models run with `--device host`"),
    }
}

fn describe(index: u32) -> Result<String> {
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
            FlagRoute::Bar => "device memory behind the BAR",
        };
        // Few machines have it, so that nobody misses it.
        let bar =
            routes.bar.map_or_else(String::new, |bar| format!("; device memory behind the BAR: {}", cost(Some(bar))));
        text += &format!(
            "; kernels look for epochs in {place} (host memory: {}; device memory: {}{bar})",
            cost(routes.mapped),
            cost(routes.stream_write)
        );
    }
    text += &match device.smallest_partition() {
        Ok(units) => format!("; it can be divided into parts of {units} compute units and more (`--compute-units`)"),
        Err(error) => format!("; {error}"),
    };
    text += if gpu.name()?.contains(" MIG ") { "; it is an instance of a GPU that MIG divides" } else { "" };
    text += match MpsControl::ambient() {
        Some(control) if control.answers() => "; MPS runs here, so that several processes use it at once",
        Some(_) => "; MPS was started here and does not answer, so programs that use the GPU may hang when they begin",
        None => "; MPS does not run, so processes take turns on it (`--mps` starts it)",
    };
    Ok(text)
}

fn cost(cost: Option<RouteCost>) -> String {
    cost.map_or_else(
        || "does not work".to_owned(),
        |RouteCost { visible_ns, read_ns }| {
            format!("seen and answered in {:.1} µs, read in {read_ns} ns", visible_ns as f64 / 1e3)
        },
    )
}
