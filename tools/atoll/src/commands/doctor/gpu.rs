//! What the GPU of `--device cuda` is, and how fast an epoch reaches its kernels.

use super::Finding;
use anyhow::Result;
use atoll_device::cuda::{FlagRoute, RouteCost};
use atoll_device::{CudaConfig, CudaDevice, Device};
use std::path::PathBuf;

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
        };
        text += &format!(
            "; kernels look for epochs in {place} (host memory: {}; device memory: {})",
            cost(routes.mapped),
            cost(routes.stream_write)
        );
    }
    text += &match device.smallest_partition() {
        Ok(units) => format!("; it can be divided into parts of {units} compute units and more (`--compute-units`)"),
        Err(error) => format!("; {error}"),
    };
    text += if gpu.name()?.contains(" MIG ") { "; it is an instance of a GPU that MIG divides" } else { "" };
    text += match mps_control() {
        Some(pipe) if pipe.exists() => "; MPS runs here, so that several processes use it at once",
        _ => "; without MPS, processes take turns on it",
    };
    Ok(text)
}

/// Where the control daemon of MPS listens while it runs.
fn mps_control() -> Option<PathBuf> {
    let folder = std::env::var_os("CUDA_MPS_PIPE_DIRECTORY").map_or_else(|| PathBuf::from("/tmp/nvidia-mps"), PathBuf::from);
    folder.is_absolute().then(|| folder.join("control"))
}

fn cost(cost: Option<RouteCost>) -> String {
    cost.map_or_else(
        || "does not work".to_owned(),
        |RouteCost { visible_ns, read_ns }| format!("seen and answered in {:.1} µs, read in {read_ns} ns", visible_ns as f64 / 1e3),
    )
}
