//! Profiles, and workloads that run or are simulated with them.

use crate::serve::atoll;
use anyhow::{Context, Result, ensure};
use atoll_tests::{built_small, compile};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

/// Runs the program with its own cache folder.
fn run(cache: &Path, arguments: &[&str]) -> Result<Output> {
    Ok(Command::new(atoll()).args(arguments).env("XDG_CACHE_HOME", cache).output()?)
}

fn json(cache: &Path, arguments: &[&str]) -> Result<Value> {
    let output = run(cache, arguments)?;
    ensure!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn client<'a>(report: &'a Value, id: &str) -> Result<&'a Value> {
    let clients = report["clients"].as_array().context("clients")?;
    clients.iter().find(|client| client["id"] == id).with_context(|| format!("client {id} in {report}"))
}

#[test]
fn a_workload_runs_and_is_predicted_from_a_profile() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let cache = folder.path().join("cache");
    let bundle = compile(&built_small("squeezenet", folder.path())?, folder.path())?;
    let file = bundle.path().to_str().context("a path in UTF-8")?;
    let workload = folder.path().join("pair.json");
    std::fs::write(
        &workload,
        r#"{"time": 1.0, "tasks": [
            {"id": "a_rt", "load": {"type": "periodic", "frequency": 20}, "client": {"model_name": "m"}},
            {"id": "b_be", "load": {"type": "continuous"}, "client": {"model_name": "m"}}]}"#,
    )?;
    let disb = |device: &str, more: &[&str]| {
        let map = format!("m={file}");
        let arguments = [
            "bench",
            "disb",
            "--json",
            "--device",
            device,
            "--compute-units",
            "2",
            "--workload",
            workload.to_str().unwrap_or(""),
        ];
        let arguments: Vec<&str> = arguments.iter().chain(&["--map", &map]).chain(more).copied().collect();
        json(&cache, &arguments)
    };
    let missing = disb("sim:host", &[]).expect_err("there is no profile yet").to_string();
    ensure!(missing.contains("atoll profile"), "{missing}");

    let profile = json(&cache, &["profile", file, "--runs", "3", "--compute-units", "2", "--json"])?;
    let launches = profile["shapes"][0]["launches"].as_array().context("launches")?;
    let kernels = bundle.graph().nodes.len();
    ensure!(launches.len() == kernels, "{} launches of {kernels} kernels", launches.len());
    let times = |launch: &Value| {
        launch["blocks"].as_u64() > Some(0)
            && launch["total_ns"].as_u64() > Some(0)
            && launch["wave_ns"][0].as_u64() > Some(0)
    };
    ensure!(launches.iter().all(times), "{launches:?}");
    let again = json(&cache, &["profile", file, "--runs", "3", "--compute-units", "2", "--json"])?;
    ensure!(
        again["shapes"].as_array().map(Vec::len) == Some(1),
        "a second profile of the same shapes replaces the first"
    );

    for device in ["host", "sim:host"] {
        let reports = disb(device, &["--policy", "reset,block-wait,rt-only"])?;
        for report in reports.as_array().context("reports")? {
            let (rt, be) = (client(report, "a_rt")?, client(report, "b_be")?);
            ensure!(rt["scheduled"] == 20 && rt["served"].as_u64() > Some(0), "{device}: {rt}");
            ensure!(rt["latency_us"]["p50"].as_f64() > Some(0.0), "{device}: {rt}");
            match report["policy"].as_str() {
                Some("rt-only") => ensure!(be["served"] == 0, "{device}: {be}"),
                // In the simulation, every arrival meets the same phase of the best-effort work,
                // which may be a gap.
                Some("reset") => ensure!(
                    device == "sim:host" || report["preemption"]["count"].as_u64() > Some(0),
                    "{device}: {report}"
                ),
                _ => {
                    ensure!(report["preemption"]["count"] == 0 && be["served"].as_u64() > Some(0), "{device}: {report}")
                }
            }
        }
    }
    Ok(())
}

#[test]
fn missing_inputs_of_a_workload_are_reported() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let told = |arguments: &[&str]| {
        let output = run(folder.path(), arguments)?;
        ensure!(output.status.code() == Some(2), "{arguments:?} is the user's mistake");
        Ok(String::from_utf8_lossy(&output.stderr).into_owned())
    };
    ensure!(
        told(&["bench", "disb", "--device", "host", "--workload", "A"])?.contains("--map resnet152-imagenet=FILE.kg")
    );
    ensure!(told(&["bench", "disb", "--device", "sim:mi50", "--workload", "A"])?.contains("--profiles DIR"));
    ensure!(
        told(&["bench", "disb", "--device", "tpu", "--workload", "A"])?
            .contains("unknown device tpu; the devices are host, cuda:N, sim:mi50")
    );
    ensure!(told(&["profile", "missing.kg"])?.contains("missing.kg"));
    Ok(())
}
