//! Unmodified third-party clients: load like that of perf_analyzer, KServe's SDK, and a client that
//! knows the service by reflection alone.

use crate::batching::add;
use crate::serve::Daemon;
use anyhow::{Context, Result, ensure};
use atoll_models::{BuildOptions, build_onnx};
use atoll_tests::{full, measured, python, root, skip};
use std::path::PathBuf;
use std::process::Command;

/// Python of the environment with these clients, which is beside the tests' environment.
pub(crate) fn clients_python() -> Result<PathBuf> {
    Ok(python().ancestors().nth(3).context("an environment has a folder")?.join("clients/bin/python"))
}

/// Runs a script, and reports its measurements and skipped tests as those of this test.
fn run(script: &mut Command) -> Result<String> {
    let output = script.env("PYTHONDONTWRITEBYTECODE", "1").output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    for line in text.lines() {
        match line.strip_prefix("SKIPPED: ") {
            Some(reason) => skip(reason),
            None if line.contains("/s, ") => measured(line),
            None => {}
        }
    }
    Ok(text)
}

#[test]
fn ranges_of_concurrency_have_right_answers_and_statistics() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let repository = folder.path().join("repository");
    let model = build_onnx("mlp", &BuildOptions { symbolic: true, image: Some(64), ..BuildOptions::default() })?;
    let path = folder.path().join("mlp.onnx");
    std::fs::write(&path, &model)?;
    add(&repository, "mlp", &model, "max_batch_size: 8 dynamic_batching { }")?;
    add(&repository, "alone", &model, "")?;
    let daemon = Daemon::start_with(&repository, folder.path(), &[])?;
    let scripts = root().join("tests/python");
    let case = folder.path().join("case.npz");
    let mut load = Command::new(python());
    load.arg(scripts.join("load_conformance.py")).args([&daemon.http, &daemon.grpc]).args([&path, &case]);
    ensure!(run(&mut load)?.ends_with("all of it holds\n"));

    let clients = clients_python()?;
    if !full() {
        skip("KServe's SDK and grpc_requests: `make test-full` runs them");
    } else if !clients.exists() {
        skip(&format!(
            "KServe's SDK and grpc_requests: {} is not installed; tools/setup.sh does it",
            clients.display()
        ));
    } else {
        let mut kserve = Command::new(clients);
        kserve.arg(scripts.join("kserve_conformance.py")).args([&daemon.http, &daemon.grpc]).arg(&case);
        run(&mut kserve)?;
    }
    Ok(())
}

#[test]
fn the_null_model_is_measured_beside_fastapi() -> Result<()> {
    let clients = clients_python()?;
    if !full() || !clients.exists() {
        skip("the null model beside FastAPI: `make test-full` installs what it needs");
        return Ok(());
    }
    let mut bench = Command::new(crate::serve::atoll());
    bench.args(["bench", "overhead", "--count", "20", "--warm-up", "2", "--json", "--against", "fastapi"]);
    let output = bench.arg("--python").arg(clients).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    for way in ["over_HTTP", "over_gRPC", "FastAPI_with_ONNX_Runtime"] {
        ensure!(json[way]["count"] == 20, "{way}: {json}");
    }
    Ok(())
}
