//! AMD GPUs on the stand-in for the HIP runtime, which interprets code objects: the program
//! compiles for them, runs on them, and reports missing parts.

use super::serve::atoll;
use anyhow::{Context, Result, ensure};
use atoll_kgraph::Bundle;
use atoll_pipeline::{Target, pad_bundles};
use atoll_tests::{root, stand_in};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;

/// Standard output and standard error of a program.
fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// A function in PTX as a bundle with code for an architecture.
fn packed(folder: &Path, target: &str) -> Result<()> {
    let mut pack = Command::new(atoll());
    pack.arg("pack").arg(root().join("tests/functions/affine.toml")).args(["--target", target, "-o", "affine.kg"]);
    let output = pack.current_dir(folder).output()?;
    ensure!(output.status.success(), "{}", said(&output));
    Ok(())
}

#[test]
fn a_function_is_compiled_for_an_amd_gpu_and_runs_there() -> Result<()> {
    for (target, options) in [("amd:gfx90a", ""), ("amd:gfx1100", "arch=gfx1100,rocm=5.2")] {
        let folder = tempfile::tempdir()?;
        packed(folder.path(), target)?;
        for isolation in ["none", "process"] {
            let mut infer = stand_in::hip_command(&atoll(), folder.path(), options)?;
            infer.args(["infer", "--model", "affine.kg", "--device", "hip:0", "--memory-limit", "64M"]);
            infer.args(["--isolation", isolation, "--shape", "x=8", "--input", "x=2", "--input", "b=1"]);
            let output = infer.current_dir(folder.path()).output()?;
            let text = said(&output);
            ensure!(
                output.status.success() && text.contains("min 7.000000  max 7.000000"),
                "{target}, {isolation}: {text}"
            );
        }
    }
    Ok(())
}

/// The compile service makes a code object per occupancy level, with a proxy kernel as its entry.
#[test]
fn kernels_of_two_functions_share_a_module_with_a_proxy() -> Result<()> {
    for name in ["amd:gfx90a", "amd:gfx1100"] {
        let folder = tempfile::tempdir()?;
        packed(folder.path(), name)?;
        let target: Target = name.parse()?;
        let bundle = Bundle::open(&folder.path().join("affine.kg"))?;
        let kernels = bundle.target(target.name()).context("code for the architecture")?.kernels.len() as u32;
        let modules = pad_bundles(target, &[Arc::clone(&bundle), bundle], None)?;
        let mut candidates: Vec<(usize, u32)> = modules.iter().flat_map(|module| module.candidates.clone()).collect();
        candidates.sort_unstable();
        // The modules of other levels may contain it too.
        candidates.dedup();
        let expected: Vec<(usize, u32)> = [0, 1].iter().flat_map(|of| (0..kernels).map(|at| (*of, at))).collect();
        ensure!(candidates == expected, "{name}: {candidates:?}");
        for module in &modules {
            let entry = &module.facts.entry;
            let level: u32 = entry.rsplit('_').next().unwrap_or_default().parse()?;
            for kernel in &module.kernels {
                let amd = kernel.amd.context("resources of the proxy")?;
                ensure!(kernel.name == *entry && amd.vgprs == level, "{name}: {kernel:?}");
                ensure!((amd.private_bytes, amd.agprs) == (0, 0), "{name}: {kernel:?}");
            }
        }
    }
    Ok(())
}

#[test]
fn code_for_another_architecture_is_refused_with_a_remedy() -> Result<()> {
    let folder = tempfile::tempdir()?;
    packed(folder.path(), "amd:gfx1100")?;
    let mut infer = stand_in::hip_command(&atoll(), folder.path(), "")?;
    infer.args(["infer", "--model", "affine.kg", "--device", "hip", "--memory-limit", "64M", "--shape", "x=8"]);
    let output = infer.current_dir(folder.path()).output()?;
    let text = said(&output);
    ensure!(!output.status.success() && text.contains("amd-gfx90a"), "{text}");
    Ok(())
}

/// The line of `atoll doctor` about the GPU.
fn doctor(mut command: Command) -> Result<String> {
    let output = command.args(["doctor", "--device", "hip:0"]).output()?;
    let text = said(&output);
    let line = text.lines().find(|line| line.contains("GPU  ")).map(str::to_owned);
    line.with_context(|| text.clone())
}

#[test]
fn doctor_describes_an_amd_gpu_or_says_what_is_missing() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let with = |options| doctor(stand_in::hip_command(&atoll(), folder.path(), options)?);
    let found = with("")?;
    for part in ["ok  GPU", "hip:0: stand-in, gfx90a:sramecc+:xnack-, 8 compute units", "waves of 64 lanes, HIP 6.2"] {
        ensure!(found.contains(part), "no {part} in {found}");
    }
    ensure!(found.contains("the runtime cannot kill waves"), "{found}");
    ensure!(found.contains("(patch absent: the kernel driver does not know the ioctl)"), "{found}");
    let other = with("kfd=other-abi")?;
    ensure!(other.contains("(the kernel driver has the patch of another version)"), "{other}");
    let patched = with("kfd")?;
    let by = "running waves can be killed (by the kernel driver, which has Atoll's patch)";
    ensure!(patched.contains(by), "{patched}");
    let changed = with("reef")?;
    ensure!(changed.contains("running waves can be killed (`hipResetWavefronts`)"), "{changed}");
    let none = with("devices=0,rocm=5.2")?;
    ensure!(none.contains("finds no device (hipInit: hipErrorInvalidDevice (101))"), "{none}");
    ensure!(none.contains("/dev/kfd"), "{none}");
    let old = with("arch=gfx803")?;
    ensure!(old.contains("for which Atoll makes no code"), "{old}");
    Ok(())
}
