//! `tools/gpu-check/gpu-check` on the stand-in driver, with the programs that cargo built: a folder
//! as made by `pack.sh`, but with links, and one small model under all names. In a run that is not
//! full, the conformance suite runs without its tests in an executor, which run as its own tests, too.
//! So do the scripts of `tools/gpu-check/models`, but the one that needs PyTorch.

use super::functions::manifest;
use super::serve::atoll;
use anyhow::{Context, Result, ensure};
use atoll_pipeline::{CompileOptions, Silent, Target, compile};
use atoll_tests::{built_small, corpus, full, kernel_cache, program, python, root, skip, stand_in};
use serde_json::Value;
use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// The models of the check.
const MODELS: [&str; 5] = ["resnet152", "densenet201", "vgg19", "inception_v3", "distilbert"];

#[test]
fn the_check_of_gpus_runs_to_its_end_on_the_stand_in() -> Result<()> {
    let Some(conformance) = conformance()? else {
        skip("the conformance suite of NVIDIA GPUs is not built: cargo test -p atoll-device-cuda --test cuda --no-run");
        return Ok(());
    };
    let folder = tempfile::tempdir()?;
    let packed = folder.path().join("gpu-check");
    pack(&packed, &conformance)?;
    let results = folder.path().join("results");
    let code = folder.path().join("code");
    // Each part of the check is a process that compiles the same kernels.
    let options = if kernel_cache().is_some() { String::new() } else { format!("cache={}", code.display()) };
    let (random, segments) = if full() { (20, MODELS.len()) } else { (4, 1) };
    let output = stand_in::command(&packed.join("gpu-check"), folder.path(), &options)?
        .args(["--quick", "--random", &random.to_string(), "--segments", &segments.to_string(), "--output"])
        .arg(&results)
        .output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success() && said.contains("THIS IS THE STAND-IN DRIVER"), "{said}");
    let report: Value = serde_json::from_slice(&std::fs::read(results.join("gpu-check.json"))?)?;
    ensure!(report["failed"] == Value::Array(vec![]) && report["figures_mean_nothing"] == true, "{said}");
    ensure!(report["conformance"]["passed"].as_u64().is_some_and(|tests| tests > 20), "{said}");
    ensure!(report["kernels"]["random"]["equal"] == random, "{said}");
    let models = report["models"].as_array().context("no models")?;
    ensure!(models.len() == MODELS.len() && models.iter().all(|model| model["cuda"].is_object()), "{said}");
    let in_segments = report["segments"].as_array().context("no segments")?;
    ensure!(
        in_segments.len() == segments && in_segments.iter().all(|model| model["8"]["milliseconds"].is_array()),
        "{said}"
    );
    ensure!(report["preempt"]["rows"].as_array().is_some_and(|rows| !rows.is_empty()), "{said}");
    ensure!(report["dkp"]["rows"].as_array().is_some_and(|rows| rows.len() > 4), "{said}");
    ensure!(report["parts"]["part_beside"]["latency"]["count"].as_u64().is_some_and(|count| count > 0), "{said}");
    ensure!(report["probe"]["rows"].is_array() && report["disb"]["A"].is_array(), "{said}");
    Ok(())
}

/// The scripts that compare models, with a few node cases and one architecture.
#[test]
fn the_checks_of_models_run_on_the_stand_in() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let scripts = root().join("tools/gpu-check/models");
    let architectures = root().join("tests/fixtures/architectures");
    let run = |script: &str, filter: &str, more: &[&str]| -> Result<Value> {
        let output = folder.path().join(script).with_extension("json");
        let done = stand_in::command(&python(), folder.path(), "")?
            .args(["-W", "ignore"])
            .arg(scripts.join(script))
            .args(["--workers", "1", "--target", "nvidia:sm_75", "--seconds", "300", "--filter", filter])
            .arg("--atoll")
            .arg(atoll())
            .arg("--output")
            .arg(&output)
            .args(more)
            .env("PYTHONPATH", root().join("tests/python"))
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .output()?;
        ensure!(
            done.status.success(),
            "{}{}",
            String::from_utf8_lossy(&done.stdout),
            String::from_utf8_lossy(&done.stderr)
        );
        Ok(serde_json::from_slice(&std::fs::read(output)?)?)
    };
    let nodes = run("onnx_nodes.py", "^test_(add_bcast|range_float_type_positive_delta|cast_FLOAT_to_BFLOAT16)$", &[])?;
    let outcome = |name: &str| nodes["rows"][name]["outcome"].clone();
    ensure!(outcome("test_add_bcast") == "passed" && outcome("test_cast_FLOAT_to_BFLOAT16") == "passed", "{nodes}");
    ensure!(nodes["rows"].as_object().is_some_and(|rows| rows.len() == 3), "{nodes}");
    let architecture = run("architectures.py", "^gru/open$", &["--models", &architectures.to_string_lossy()])?;
    ensure!(architecture["rows"]["gru/open"]["outcome"] == "passed", "{architecture}");
    Ok(())
}

/// Creates the packed folder.
fn pack(folder: &Path, conformance: &Path) -> Result<()> {
    let (bin, models) = (folder.join("bin"), folder.join("models"));
    std::fs::create_dir_all(&bin)?;
    std::fs::create_dir(&models)?;
    // Copied, since the script looks for other files in its own folder.
    for script in ["gpu-check", "tenants"] {
        std::fs::copy(root().join("tools/gpu-check").join(script), folder.join(script))?;
    }
    pack_functions(&folder.join("functions"))?;
    symlink(corpus::folder(), folder.join("kernels"))?;
    symlink(atoll(), bin.join("atoll"))?;
    symlink(program("gpu-probe"), bin.join("gpu-probe"))?;
    match full() {
        true => symlink(conformance, bin.join("conformance"))?,
        false => {
            let skipped = "--skip executor:: --skip in_an_executor";
            let script = format!("#!/bin/sh\nexec '{}' {skipped} \"$@\"\n", conformance.display());
            std::fs::write(bin.join("conformance"), script)?;
            std::fs::set_permissions(bin.join("conformance"), Permissions::from_mode(0o755))?;
        }
    }
    let bundle = folder.join("model.kg");
    let options = CompileOptions {
        targets: vec![Target::NVIDIA, Target::this_host()],
        kernel_cache: kernel_cache(),
        ..CompileOptions::default()
    };
    compile(&built_small("squeezenet", folder)?.path, &bundle, &options, &Silent)?;
    MODELS.iter().try_for_each(|name| symlink(&bundle, models.join(format!("{name}.kg"))))?;
    Ok(())
}

/// The functions with which `tenants` attacks, as `pack.sh` makes them.
fn pack_functions(folder: &Path) -> Result<()> {
    std::fs::create_dir(folder)?;
    std::fs::write(folder.join("secret.bin"), [b'S'; 65536])?;
    std::fs::write(folder.join("own.bin"), [b'O'; 4096])?;
    let options = CompileOptions { targets: vec![Target::NVIDIA], ..CompileOptions::default() };
    for function in ["affine", "faulty", "prowl", "vault"] {
        let source = folder.join(function).with_extension("toml");
        std::fs::copy(manifest(function), &source)?;
        std::fs::copy(manifest(function).with_extension("ptx"), source.with_extension("ptx"))?;
        atoll_pipeline::pack(&source, &source.with_extension("kg"), &options, &Silent)?;
    }
    Ok(())
}

/// The newest conformance suite built by cargo, `deps/cuda-…`.
fn conformance() -> Result<Option<PathBuf>> {
    let is_suite = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("cuda-") && path.extension().is_none()
    };
    let mut suites = Vec::new();
    for entry in std::fs::read_dir(program("deps"))? {
        let path = entry?.path();
        if is_suite(&path) {
            suites.push((std::fs::metadata(&path)?.modified()?, path));
        }
    }
    Ok(suites.into_iter().max().map(|(_, path)| path))
}
