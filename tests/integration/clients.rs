//! Unmodified third-party clients: load like that of perf_analyzer, KServe's SDK, a client that knows
//! the service by reflection alone, load generators, and FastAPI as a peer.

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

/// What a load generator prints after its requests to the null model.
fn load(program: &str, arguments: &[&str], url: &str) -> Result<String> {
    let output = Command::new(program).args(arguments).arg(url).output().with_context(|| program.to_owned())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.success(), "{program}: {text}{}", String::from_utf8_lossy(&output.stderr));
    if let Some(rate) = text.lines().find(|line| line.trim().starts_with("Requests/sec")) {
        measured(&format!("{program}: {}", rate.trim()));
    }
    Ok(text)
}

#[test]
fn hey_and_wrk_get_an_answer_to_each_request() -> Result<()> {
    let is_there = |program: &str| Command::new(program).arg("-h").output().is_ok();
    if !full() || !is_there("hey") || !is_there("wrk") {
        skip("hey and wrk: `make test-full` installs and runs them");
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let repository = folder.path().join("repository");
    add(&repository, "null", &build_onnx("null", &BuildOptions::default())?, "")?;
    let daemon = Daemon::start_with(&repository, folder.path(), &["--no-control"])?;
    let url = format!("http://{}/v2/models/null/infer", daemon.http);
    let input = serde_json::json!({ "name": "input", "datatype": "FP32", "shape": [1, 16], "data": vec![0.5; 16] });
    let body = serde_json::json!({ "inputs": [input] }).to_string();

    let text = load("hey", &["-n", "400", "-c", "8", "-m", "POST", "-T", "application/json", "-d", &body], &url)?;
    ensure!(text.contains("[200]\t400 responses") && !text.contains("Error distribution"), "{text}");
    let script = folder.path().join("post.lua").to_string_lossy().into_owned();
    std::fs::write(&script, format!("wrk.method = 'POST'\nwrk.body = [[{body}]]\n"))?;
    let text = load("wrk", &["-t", "1", "-c", "8", "-d", "1s", "-s", &script], &url)?;
    let has_errors = ["Non-2xx", "Socket errors"].iter().any(|words| text.contains(words));
    ensure!(text.contains("Requests/sec") && !has_errors, "{text}");
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
