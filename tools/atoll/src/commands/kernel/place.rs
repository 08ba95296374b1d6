//! The devices on which single kernels run (`--device`).

use crate::device_name::{DeviceName, GpuName};
use crate::failure::user_error;
use anyhow::{Context, Result};
#[cfg(feature = "cuda")]
use atoll_device_cuda::CudaConfig;
#[cfg(feature = "cuda")]
use atoll_workbench::CudaBench;
#[cfg(feature = "native")]
use atoll_workbench::{HostBench, HostOptions};
use atoll_workbench::{InterpBench, Runner};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A device for single kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The PTX interpreter.
    Interp,
    /// A device.
    On(DeviceName),
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Place, String> {
        match text {
            "interp" => Ok(Place::Interp),
            _ => text.parse().map(Place::On).map_err(|error| format!("{error}, interp (the interpreter)")),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Interp => f.write_str("interp"),
            Place::On(device) => device.fmt(f),
        }
    }
}

impl Place {
    /// Starts the device, for kernels with `buffers_bytes` of buffers. Launches that it cannot
    /// abort are abandoned after `timeout`.
    pub(crate) fn start(self, buffers_bytes: u64, timeout: Duration) -> Result<Box<dyn Runner>> {
        let started = match self {
            Place::Interp => return Ok(Box::new(InterpBench::default())),
            Place::On(DeviceName::Host) => host(buffers_bytes, timeout),
            Place::On(DeviceName::Cuda(gpu)) => cuda(gpu, buffers_bytes, timeout),
            Place::On(DeviceName::Hip(_)) => Err(no_single_kernels()),
        };
        started.with_context(|| format!("cannot start {self}"))
    }
}

/// The error for AMD GPUs.
pub(super) fn no_single_kernels() -> anyhow::Error {
    user_error("single kernels do not run on AMD GPUs yet; use interp, host or cuda")
}

#[cfg(feature = "native")]
fn host(buffers_bytes: u64, timeout: Duration) -> Result<Box<dyn Runner>> {
    let options = HostOptions { memory_bytes: buffers_bytes, time_limit: timeout, ..HostOptions::default() };
    Ok(Box::new(HostBench::start(options)?))
}

#[cfg(not(feature = "native"))]
fn host(_: u64, _: Duration) -> Result<Box<dyn Runner>> {
    Err(without_llvm())
}

/// The error of a program without a host device.
#[cfg(not(feature = "native"))]
pub(super) fn without_llvm() -> anyhow::Error {
    user_error("this program was built without LLVM and cannot generate code for CPUs; use interp, or a GPU")
}

#[cfg(feature = "cuda")]
fn cuda(gpu: GpuName, buffers_bytes: u64, timeout: Duration) -> Result<Box<dyn Runner>> {
    Ok(Box::new(cuda_bench(gpu, buffers_bytes)?.with_timeout(timeout)))
}

/// A GPU for single kernels.
#[cfg(feature = "cuda")]
pub(super) fn cuda_bench(gpu: GpuName, buffers_bytes: u64) -> Result<CudaBench> {
    Ok(CudaBench::start(CudaConfig { gpu: gpu.into(), ..CudaConfig::default() }, buffers_bytes)?)
}

#[cfg(not(feature = "cuda"))]
fn cuda(_: GpuName, _: u64, _: Duration) -> Result<Box<dyn Runner>> {
    Err(without_gpus())
}

/// The error of a program without GPU support.
#[cfg(not(feature = "cuda"))]
pub(super) fn without_gpus() -> anyhow::Error {
    user_error("this program was built without support for NVIDIA GPUs; build it with the cargo feature `cuda`")
}
