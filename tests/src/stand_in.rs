//! Paths of the stand-ins for drivers (`tests/stand-in-cuda`, `tests/stand-in-hip`), for programs that
//! look for a driver.

use anyhow::{Context, Result, ensure};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Environment variable with the options of the stand-in; see `tests/stand-in-cuda/src/options.rs`.
pub const OPTIONS: &str = "ATOLL_STAND_IN_CUDA";

/// The library, built by the same cargo call as the test, or by
/// `cargo build -p atoll-stand-in-cuda`.
pub fn library() -> Result<PathBuf> {
    let path = crate::program("libatoll_stand_in_cuda.so");
    ensure!(path.exists(), "{} is not built; run cargo build -p atoll-stand-in-cuda", path.display());
    Ok(path)
}

/// Links the library into a folder under the driver's name.
pub fn install(folder: &Path) -> Result<()> {
    let place = folder.join("libcuda.so.1");
    std::os::unix::fs::symlink(library()?, &place).with_context(|| place.display().to_string())
}

/// Links the library into a folder also under the name of NVIDIA's management library.
pub fn install_nvml(folder: &Path) -> Result<()> {
    let place = folder.join("libnvidia-ml.so.1");
    std::os::unix::fs::symlink(library()?, &place).with_context(|| place.display().to_string())
}

/// Links the MPS control daemon into `programs` under NVIDIA's name. Returns the environment in
/// which a program finds it, and keeps its state in `folder`.
pub fn install_mps(programs: &Path, folder: &Path) -> Result<[(&'static str, OsString); 2]> {
    let control = crate::program("atoll-stand-in-mps-control");
    ensure!(control.exists(), "{} is not built; run cargo build -p atoll-stand-in-cuda", control.display());
    std::os::unix::fs::symlink(control, programs.join("nvidia-cuda-mps-control"))?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(std::iter::once(programs.to_owned()).chain(std::env::split_paths(&path)))?;
    Ok([("PATH", path), ("CUDA_MPS_PIPE_DIRECTORY", folder.into())])
}

/// A program that finds the stand-in as its driver. Links the library into `folder` if necessary.
pub fn command(program: &Path, folder: &Path, options: &str) -> Result<Command> {
    if !folder.join("libcuda.so.1").exists() {
        install(folder)?;
    }
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", folder).env(OPTIONS, options);
    Ok(command)
}

/// Environment variable with the options of the stand-in for HIP; see
/// `tests/stand-in-hip/src/options.rs`.
pub const HIP_OPTIONS: &str = "ATOLL_STAND_IN_HIP";

/// The stand-in for HIP, built by the same cargo call as the test, or by
/// `cargo build -p atoll-stand-in-hip`.
pub fn hip_library() -> Result<PathBuf> {
    let library = crate::program("libatoll_stand_in_hip.so");
    ensure!(library.exists(), "{} is not built; run cargo build -p atoll-stand-in-hip", library.display());
    Ok(library)
}

/// The environment in which a program finds the stand-in for HIP as its runtime. Links the library
/// into `folder` if necessary.
pub fn hip_environment(folder: &Path, options: &str) -> Result<[(&'static str, OsString); 2]> {
    let library = hip_library()?;
    let place = folder.join("libamdhip64.so.7");
    if !place.exists() {
        std::os::unix::fs::symlink(library, &place).with_context(|| place.display().to_string())?;
    }
    Ok([("LD_LIBRARY_PATH", folder.into()), (HIP_OPTIONS, options.into())])
}

/// A program in this environment.
pub fn hip_command(program: &Path, folder: &Path, options: &str) -> Result<Command> {
    let mut command = Command::new(program);
    command.envs(hip_environment(folder, options)?);
    Ok(command)
}
