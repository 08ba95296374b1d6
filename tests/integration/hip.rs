//! AMD GPUs on the stand-in for the HIP runtime, which interprets code objects: the program
//! compiles for them, runs on them, and reports missing parts.

use super::batching::add;
use super::serve::{Daemon, atoll};
use anyhow::{Context, Result, ensure};
use atoll_kgraph::Bundle;
use atoll_models::{BuildOptions, build_onnx};
use atoll_pipeline::{Target, pad_bundles};
use atoll_tests::http::ask;
use atoll_tests::{Model, TOLERANCE, Tensor, oracle, relative_error, root, skip, stand_in};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
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
    // ROCm 5.0 is the oldest release that works, and 5.3 the oldest that knows RDNA 3.
    for (target, options) in [("amd:gfx90a", "rocm=5.0"), ("amd:gfx1100", "arch=gfx1100,rocm=5.3")] {
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

/// From ONNX to an answer over HTTP. The daemon serves a bundle that `compile` made, and compiles a
/// model for the GPU that it finds.
#[test]
fn a_model_is_compiled_inspected_and_served() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let folder = folder.path();
    let onnx = build_onnx("mlp", &BuildOptions { seed: 5, image: Some(16), ..BuildOptions::default() })?;
    let repository = folder.join("models");
    add(&repository, "raw", &onnx, "")?;
    std::fs::write(folder.join("mlp.onnx"), onnx)?;
    let mut compile = Command::new(atoll());
    compile.args(["compile", "mlp.onnx", "--target", "amd:gfx90a", "-o", "models/mlp.kg"]).current_dir(folder);
    let output = compile.output()?;
    ensure!(output.status.success(), "{}", said(&output));
    let output = Command::new(atoll()).args(["inspect", "models/mlp.kg", "--json"]).current_dir(folder).output()?;
    ensure!(output.status.success(), "{}", said(&output));
    let shown: Value = serde_json::from_slice(&output.stdout)?;
    ensure!(shown["targets"] == json!(["amd-gfx90a"]), "{shown:#}");
    for kernel in shown["kernels"].as_array().context("kernels")? {
        let facts = &kernel["amd"];
        ensure!(facts["vgprs"].as_u64() > Some(0) && facts["private_bytes"] == 0, "{kernel:#}");
        ensure!(kernel["spill_bytes"] == 0, "{kernel:#}");
        ensure!(
            kernel["occupancy"]["device"] == "mi250" && kernel["occupancy"]["blocks"].as_u64() > Some(0),
            "{kernel:#}"
        );
        ensure!(kernel["preemptible"] == true, "{kernel:#}");
    }
    let environment = stand_in::hip_environment(folder, "")?;
    let daemon = Daemon::start_in(&repository, folder, &["--device", "hip:0", "--memory-limit", "64M"], &environment)?;
    let model = Model { name: "mlp".into(), path: folder.join("mlp.onnx"), symbols: Vec::new() };
    let case = oracle(&model, &[2], folder)?.remove(0);
    for name in ["mlp", "raw"] {
        let found = ask_model(&daemon, name, &case.inputs[0])?;
        let error = relative_error(&found, &numbers(&case.outputs[0]));
        ensure!(error < TOLERANCE, "{name} differs by {error:.2e}");
    }
    Ok(())
}

/// The elements of a tensor of f32.
fn numbers(tensor: &Tensor) -> Vec<f64> {
    let (elements, _) = tensor.bytes.as_chunks::<4>();
    elements.iter().map(|bytes| f64::from(f32::from_le_bytes(*bytes))).collect()
}

/// The first output of a model, over HTTP.
fn ask_model(daemon: &Daemon, model: &str, input: &Tensor) -> Result<Vec<f64>> {
    let input = json!({ "name": input.name, "datatype": "FP32", "shape": input.shape, "data": numbers(input) });
    let request = json!({ "inputs": [input] }).to_string();
    let (status, answer) = ask(&daemon.http, "POST", &format!("/v2/models/{model}/infer"), &request)?;
    ensure!(status == 200, "{model}: {status} {answer}");
    let answer: Value = serde_json::from_str(&answer)?;
    let data = answer["outputs"][0]["data"].as_array().context("an output")?;
    Ok(data.iter().filter_map(Value::as_f64).collect())
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

/// Code of a version that is newer than the runtime, as bundles from elsewhere may have.
#[test]
fn an_old_loader_and_new_code_are_told_with_a_remedy() -> Result<()> {
    let folder = tempfile::tempdir()?;
    packed(folder.path(), "amd:gfx1100")?;
    let mut infer = stand_in::hip_command(&atoll(), folder.path(), "arch=gfx1100,rocm=5.1")?;
    infer.args(["infer", "--model", "affine.kg", "--device", "hip", "--memory-limit", "64M", "--shape", "x=8"]);
    let output = infer.current_dir(folder.path()).output()?;
    let text = said(&output);
    let why = "ROCm 5.1 is older than the code, a code object of version 5: install ROCm 5.2 or later";
    ensure!(
        !output.status.success() && text.contains(why) && text.contains("hipErrorSharedObjectInitFailed"),
        "{text}"
    );
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
    ensure!(found.contains("(patch absent: the kernel driver does not know the ioctl)"), "{found}");
    let other = with("kfd=other-abi")?;
    ensure!(other.contains("(the kernel driver has the patch of another version)"), "{other}");
    let patched = with("kfd")?;
    let by = "running waves can be killed (by the kernel driver, which has Atoll's patch)";
    ensure!(patched.contains(by), "{patched}");
    // A call would end the program.
    let changed = with("reef=fatal")?;
    ensure!(changed.contains("has `hipResetWavefronts`, which is not tried"), "{changed}");
    let none = with("devices=0,rocm=5.2")?;
    ensure!(none.contains("finds no device (hipInit: hipErrorInvalidDevice (101))"), "{none}");
    ensure!(none.contains("/dev/kfd"), "{none}");
    let old = with("arch=gfx803")?;
    ensure!(old.contains("for which Atoll makes no code"), "{old}");
    Ok(())
}

/// AMD's own runtime, of ROCm 5.2, without a GPU.
#[test]
fn doctor_tells_what_the_real_runtime_answers() -> Result<()> {
    let Some(library) = std::env::var_os("ATOLL_HIP_LIBRARY").map(PathBuf::from) else {
        skip("ATOLL_HIP_LIBRARY names no HIP runtime; full runs of `tools/setup.sh` download one");
        return Ok(());
    };
    if Path::new("/dev/kfd").exists() {
        skip("this machine has an AMD GPU");
        return Ok(());
    }
    let mut command = Command::new(atoll());
    command.env("LD_LIBRARY_PATH", library.parent().context("a folder")?);
    let told = doctor(command)?;
    ensure!(
        told.starts_with("!!  GPU") && told.contains("the HIP runtime finds no device (hipInit: hipError"),
        "{told}"
    );
    ensure!(
        told.contains("may this user open `/dev/kfd`") && told.contains("patch absent: there is no `/dev/kfd`"),
        "{told}"
    );
    Ok(())
}
