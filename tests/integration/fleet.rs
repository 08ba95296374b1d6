//! A daemon with several devices: all of them serve, a failing one does not affect the others, and
//! reports name the device.

mod cold_starts;
mod kills;
mod lost_hosts;
mod mig;
mod mixed;
mod refusals;
mod residency;

use crate::cancel::{HARMLESS, metric};
use crate::control::Setup;
use crate::executors::wait_until;
use crate::serve::{Daemon, atoll};
use anyhow::{Context, Result, ensure};
use atoll_client::{Call, Client, ClientError, Deploy, ExecutorEntry, RefusalKind, Tensor};
use atoll_device::cpus;
use atoll_pipeline::{CompileOptions, Silent, Target, pack};
use atoll_tests::{http, measured, root, stand_in};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// Functions, each with the device that it is deployed on.
const PLACES: [(&str, &str); 2] = [("left", "host:0"), ("right", "host:1")];

/// Two host devices with one CPU each.
pub(crate) fn two_hosts() -> Result<[String; 4]> {
    let allowed = cpus::allowed();
    let [first, second, ..] = allowed[..] else {
        anyhow::bail!("two host devices take two CPUs, here are {allowed:?}")
    };
    Ok(["--device".into(), format!("host:0@{first}"), "--device".into(), format!("host:1@{second}")])
}

fn start() -> Result<Setup> {
    let options = two_hosts()?;
    let setup = Setup::start(&options.each_ref().map(String::as_str), "")?;
    for (name, device) in PLACES {
        let how = Deploy { name: Some(name.into()), device: Some(device.into()), ..Deploy::default() };
        let deployed = setup.client()?.deploy(&setup.path("affine.kg"), &how)?;
        ensure!(deployed.device.as_deref() == Some(device), "{deployed:?}");
    }
    Ok(setup)
}

/// Calls a function of `tests/functions/affine.toml`, `3 x + b`, and checks the result.
fn call(client: &mut Client, function: &str, seed: f32) -> Result<Result<(), ClientError>> {
    let tensor = |of: &dyn Fn(f32) -> f32| Tensor::f32(&[1000], &(0..1000).map(|i| of(i as f32)).collect::<Vec<_>>());
    let (x, b) = (tensor(&|i| i + seed), tensor(&|i| -i));
    match client.invoke(Call::of(function).input("x", x).input("b", b)) {
        Ok(answer) => {
            let expected = tensor(&|i| (i + seed).mul_add(3.0, -i));
            ensure!(answer.tensor("y")? == &expected, "{function} with {seed} is wrong");
            Ok(Ok(()))
        }
        Err(error) => Ok(Err(error)),
    }
}

/// The executors of the daemon's own functions, by device.
fn executors(client: &mut Client) -> Result<[ExecutorEntry; 2]> {
    let executors = client.processes()?.executors;
    let of = |device: &str| {
        executors
            .iter()
            .find(|entry| entry.device == device)
            .cloned()
            .with_context(|| format!("{device}: {executors:?}"))
    };
    Ok([of("host:0")?, of("host:1")?])
}

#[test]
fn a_failing_device_does_not_affect_the_other() -> Result<()> {
    let setup = start()?;
    for (name, _) in PLACES {
        call(&mut setup.client()?, name, 1.0)??;
    }
    let before = executors(&mut setup.client()?)?;
    let over = AtomicBool::new(false);
    // Calls a function until the end; returns the number of calls, and of failed ones.
    let load = |name: &'static str| -> Result<(u32, u32)> {
        let (mut client, mut calls, mut failed) = (setup.client()?, 0, 0);
        while !over.load(Relaxed) {
            calls += 1;
            match call(&mut client, name, calls as f32)? {
                Ok(()) => {}
                Err(ClientError::Refused(refusal)) if refusal.message.contains("executor") => failed += 1,
                Err(error) => return Err(error).with_context(|| name),
            }
        }
        Ok((calls, failed))
    };
    let (left, right) = std::thread::scope(|scope| -> Result<_> {
        let [left, right] = PLACES.map(|(name, _)| scope.spawn(move || load(name)));
        let harm = || -> Result<()> {
            std::thread::sleep(Duration::from_millis(200));
            let victim = before[1].pid.and_then(|pid| Pid::from_raw(pid as i32)).context("an executor")?;
            kill_process(victim, Signal::KILL)?;
            wait_until("replaced", || {
                let now = executors(&mut setup.client()?)?;
                Ok(now[1].pid.is_some() && now[1].pid != before[1].pid)
            })?;
            std::thread::sleep(Duration::from_millis(200));
            Ok(())
        };
        let harmed = harm();
        over.store(true, Relaxed);
        let done = (left.join().expect("no panic")?, right.join().expect("no panic")?);
        harmed.map(|()| done)
    })?;
    ensure!(left.0 > 10 && left.1 == 0, "the other device was affected: {} of {} calls failed", left.1, left.0);
    ensure!(right.0 > right.1, "it came back: {right:?}");
    let after = executors(&mut setup.client()?)?;
    ensure!((after[0].pid, after[0].restarts) == (before[0].pid, 0) && after[1].restarts == 1, "{after:?}");
    let died = |device: &str| {
        metric(&setup.daemon, &format!("atoll_executor_losses_total{{cause=\"died\",device=\"{device}\"}}"))
    };
    ensure!((died("host:0")?, died("host:1")?) == (0.0, 1.0), "the loss is counted where it was");
    Ok(())
}

#[test]
fn all_reports_name_the_device() -> Result<()> {
    let setup = start()?;
    let mut client = setup.client()?;
    for (name, device) in PLACES {
        call(&mut client, name, 2.0)??;
        let launches = format!(
            "atoll_usage_launches_total{{tenant=\"local\",function=\"{name}\",\
             class=\"best_effort\",device=\"{device}\"}}"
        );
        ensure!(metric(&setup.daemon, &launches)? == 1.0, "{launches}");
        ensure!(metric(&setup.daemon, &format!("atoll_device_compute_units{{device=\"{device}\"}}"))? == 1.0);
    }
    let names = |list: &serde_json::Value| -> Vec<String> {
        let entries = list.as_array().into_iter().flatten();
        entries
            .map(|entry| {
                format!(
                    "{} {}",
                    entry["function"].as_str().unwrap_or_default(),
                    entry["device"].as_str().unwrap_or_default()
                )
            })
            .collect()
    };
    let expected = ["left host:0", "right host:1"];
    for (command, list) in
        [(&["ps"][..], "functions"), (&["usage"], "rows"), (&["top", "--once", "--interval", "0.1"], "functions")]
    {
        let report = setup.json(command)?;
        ensure!(report["device"] == "host:0", "who knows of one device sees the first: {report}");
        ensure!(names(&report["devices"]) == [" host:0", " host:1"], "{command:?}: {report}");
        let mut found = names(&report[list]);
        found.dedup();
        ensure!(found.iter().filter(|name| !name.starts_with(' ')).eq(&expected), "{command:?}: {found:?}");
    }
    let trace = setup.json(&["trace", "record", "--past", "--seconds", "0"])?;
    ensure!(names(&trace["devices"]) == [" host:0", " host:1", " pool"], "{trace}");
    ensure!((0..2).all(|device| trace["devices"][device]["launches"] == 1) && trace["launches"] == 2, "{trace}");
    // A chain across both devices.
    let tensor = || Tensor::f32(&[4], &[1.0; 4]);
    let chain =
        Call::of("left").input("x", tensor()).input("b", tensor()).then("right").take("x", "y").input("b", tensor());
    match client.invoke(chain) {
        Err(ClientError::Refused(refusal)) => {
            let is_told =
                refusal.message.contains("`left` is on host:0") && refusal.message.contains("`right` is on host:1");
            ensure!(refusal.kind == RefusalKind::BadRequest && is_told, "{refusal:?}");
        }
        other => anyhow::bail!("{other:?}"),
    }
    let nowhere = Deploy { name: Some("nowhere".into()), device: Some("cuda:3".into()), ..Deploy::default() };
    match client.deploy(&setup.path("affine.kg"), &nowhere) {
        Err(ClientError::Refused(refusal)) => {
            ensure!(refusal.message.contains("no device `cuda:3`; choose one of: host:0, host:1"), "{refusal:?}")
        }
        other => anyhow::bail!("{other:?}"),
    }
    Ok(())
}

/// The message of `atoll serve` for devices with which it does not start.
fn refused(folder: &Path, devices: &[&str], environment: &[(&'static str, OsString)]) -> Result<String> {
    let devices = devices.iter().flat_map(|device| ["--device", device]);
    let mut command = Command::new(atoll());
    command
        .args(["serve", "--no-control", "--http-port", "0", "--no-grpc", "--metrics-port", "0", "--model-repository"])
        .arg(folder);
    let output = command.args(devices).env("XDG_CACHE_HOME", folder).envs(environment.iter().cloned()).output()?;
    ensure!(!output.status.success(), "it started");
    Ok(String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn devices_that_cannot_be_together_are_refused_with_the_cause() -> Result<()> {
    let folder = tempfile::tempdir()?;
    for (devices, cause) in [
        (&["host:0@0", "host:1@0"][..], "CPU 0 is in the CPU sets of both host:0 and host:1"),
        (&["host:0@0", "host:0@1"], "device host:0 is given twice"),
        (&["host:0@0", "host:1"], "host:1 is one of several host devices, but has no CPU set"),
        (&["host:0@8000"], "CPU 8000, but this process may use only"),
        (&["host:0@"], "the CPU set is empty"),
    ] {
        let said = refused(folder.path(), devices, &[])?;
        ensure!(said.contains(cause), "{devices:?}: {said}");
    }
    Ok(())
}

/// A repository with the model `faulty` on each of two GPUs.
fn two_gpus(folder: &Path) -> Result<PathBuf> {
    let repository = folder.join("repository");
    std::fs::create_dir(&repository)?;
    let compile = CompileOptions { targets: vec![Target::NVIDIA], ..CompileOptions::default() };
    pack(&root().join("tests/functions/faulty.toml"), &repository.join("first.kg"), &compile, &Silent)?;
    std::fs::copy(repository.join("first.kg"), repository.join("second.kg"))?;
    std::fs::write(repository.join("second.toml"), "device = \"cuda:1\"")?;
    stand_in::install(folder)?;
    Ok(repository)
}

fn stand_in_options(folder: &Path, options: &str) -> [(&'static str, OsString); 2] {
    [("LD_LIBRARY_PATH", folder.into()), (stand_in::OPTIONS, OsString::from(options))]
}

/// Calls `faulty` with a mode.
fn ask_faulty(daemon: &Daemon, model: &str, mode: u32) -> Result<(u16, String)> {
    let request =
        format!(r#"{{"inputs": [{{"name": "mode", "shape": [1], "datatype": "UINT32", "data": [{mode}]}}]}}"#);
    Ok(http::ask(&daemon.http, "POST", &format!("/v2/models/{model}/infer"), &request)?)
}

#[test]
fn two_gpus_serve_in_one_daemon() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let repository = two_gpus(folder.path())?;
    let said = refused(&repository, &["cuda:0", "cuda:1"], &stand_in_options(folder.path(), "devices=1"))?;
    ensure!(said.contains("cannot start cuda:1"), "{said}");
    let devices = ["--device", "cuda:0", "--device", "cuda:1"];
    let daemon = Daemon::start_in(&repository, folder.path(), &devices, &stand_in_options(folder.path(), "devices=2"))?;
    for (model, device) in [("first", "cuda:0"), ("second", "cuda:1")] {
        let (status, body) = ask_faulty(&daemon, model, HARMLESS)?;
        ensure!(status == 200, "{model}: {body}");
        let sample = format!("nv_inference_request_success{{model=\"{model}\",version=\"1\",device=\"{device}\"}}");
        ensure!(metric(&daemon, &sample)? == 1.0, "{sample}");
    }
    Ok(())
}

/// In the daemon's own process, a GPU whose context failed is not replaced.
#[test]
fn a_permanently_lost_gpu_does_not_affect_the_other() -> Result<()> {
    const TRAP: u32 = 4;
    let folder = tempfile::tempdir()?;
    let repository = two_gpus(folder.path())?;
    let devices = ["--device", "cuda:0", "--device", "cuda:1", "--isolation", "none"];
    let daemon = Daemon::start_in(&repository, folder.path(), &devices, &stand_in_options(folder.path(), "devices=2"))?;
    let over = AtomicBool::new(false);
    let load = || -> Result<u32> {
        let mut calls = 0;
        while !over.load(Relaxed) {
            let (status, body) = ask_faulty(&daemon, "first", HARMLESS)?;
            ensure!(status == 200, "the other device failed: {body}");
            calls += 1;
        }
        Ok(calls)
    };
    let calls = std::thread::scope(|scope| {
        let load = scope.spawn(load);
        let harm = || -> Result<()> {
            std::thread::sleep(Duration::from_millis(200));
            let (status, body) = ask_faulty(&daemon, "second", TRAP)?;
            ensure!(status == 503, "{status}: {body}");
            wait_until("lost", || Ok(metric(&daemon, "atoll_device_lost{device=\"cuda:1\"}")? == 1.0))?;
            let (status, body) = ask_faulty(&daemon, "second", HARMLESS)?;
            ensure!(status == 503 && body.contains("the device is lost"), "{status}: {body}");
            std::thread::sleep(Duration::from_millis(200));
            Ok(())
        };
        let harmed = harm();
        over.store(true, Relaxed);
        let calls = load.join().expect("no panic");
        harmed.and(calls)
    })?;
    ensure!(calls > 10, "only {calls} calls");
    ensure!(metric(&daemon, "atoll_device_lost{device=\"cuda:0\"}")? == 0.0);
    Ok(())
}

/// Calls a model from several threads until `harm` returns. Returns the number of calls; all must
/// succeed.
fn call_during(daemon: &Daemon, model: &str, harm: impl FnOnce() -> Result<()>) -> Result<u32> {
    let over = AtomicBool::new(false);
    let load = || -> Result<u32> {
        let mut calls = 0;
        while !over.load(Relaxed) {
            let (status, body) = ask_faulty(daemon, model, HARMLESS)?;
            ensure!(status == 200, "call {calls}: {status}: {body}");
            calls += 1;
        }
        Ok(calls)
    };
    std::thread::scope(|scope| {
        let loads: Vec<_> = (0..6).map(|_| scope.spawn(load)).collect();
        let harmed = harm();
        over.store(true, Relaxed);
        let calls = loads.into_iter().map(|load| load.join().expect("no panic")).sum::<Result<u32>>();
        harmed.and(calls)
    })
}

#[test]
fn requests_of_a_lost_gpu_go_to_the_other() -> Result<()> {
    const TRAP: u32 = 4;
    let folder = tempfile::tempdir()?;
    let repository = two_gpus(folder.path())?;
    let devices = ["--device", "cuda:0", "--device", "cuda:1", "--isolation", "none"];
    let daemon = Daemon::start_in(&repository, folder.path(), &devices, &stand_in_options(folder.path(), "devices=2"))?;
    let placed = |device: &str| metric(&daemon, &format!("atoll_device_placed_total{{device=\"{device}\"}}"));
    let mut before = 0.0;
    // `first` is on both devices, `second` on one.
    let calls = call_during(&daemon, "first", || {
        wait_until("both are used", || Ok(placed("cuda:0")? > 20.0 && placed("cuda:1")? > 20.0))?;
        let (status, body) = ask_faulty(&daemon, "second", TRAP)?;
        ensure!(status == 503, "{status}: {body}");
        before = placed("cuda:0")?;
        wait_until("the other goes on", || Ok(placed("cuda:0")? > before + 20.0))
    })?;
    ensure!(calls > 60, "only {calls} calls");
    ensure!(metric(&daemon, "atoll_device_lost{device=\"cuda:1\"}")? == 1.0);
    ensure!(metric(&daemon, "atoll_pool_waiting")? == 0.0, "nothing is left in the queue");
    let succeeded = |device: &str| {
        metric(&daemon, &format!("nv_inference_request_success{{model=\"first\",version=\"1\",device=\"{device}\"}}"))
    };
    let answered = succeeded("cuda:0")? + succeeded("cuda:1")?;
    ensure!(answered >= f64::from(calls), "{calls} calls, {answered} invocations");
    Ok(())
}

/// `atoll device COMMAND` for a daemon.
fn device(setup: &Setup, arguments: &[&str]) -> Result<String> {
    let output = Command::new(atoll())
        .arg("device")
        .args(arguments)
        .arg("--control-socket")
        .arg(setup.path("atoll.sock"))
        .output()?;
    ensure!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

#[test]
fn a_function_without_a_device_is_on_all_and_a_drained_device_gets_nothing() -> Result<()> {
    // With `round-robin`, both devices are used even if calls are short.
    let options = two_hosts()?.into_iter().chain(["--placement".into(), "round-robin".into()]);
    let options: Vec<String> = options.collect();
    let setup = Setup::start(&options.iter().map(String::as_str).collect::<Vec<_>>(), "")?;
    let mut client = setup.client()?;
    let how = Deploy { name: Some("everywhere".into()), ..Deploy::default() };
    let deployed = client.deploy(&setup.path("affine.kg"), &how)?;
    ensure!(deployed.devices.len() == 2, "{deployed:?}");
    let placed = || -> Result<[f64; 2]> {
        let of = |device: &str| metric(&setup.daemon, &format!("atoll_device_placed_total{{device=\"{device}\"}}"));
        Ok([of("host:0")?, of("host:1")?])
    };
    let calls = |count: u32| -> Result<()> {
        std::thread::scope(|scope| {
            let call = |seed| call(&mut setup.client()?, "everywhere", seed as f32)?.map_err(anyhow::Error::from);
            let calls: Vec<_> = (0..4).map(|_| scope.spawn(move || (0..count).try_for_each(call))).collect();
            calls.into_iter().try_for_each(|calls| calls.join().expect("no panic"))
        })
    };
    calls(20)?;
    let used = placed()?;
    ensure!(used == [40.0, 40.0], "{used:?}");
    device(&setup, &["drain", "host:1"])?;
    let listed = device(&setup, &["ls"])?;
    ensure!(listed.contains("placement policy round-robin") && listed.contains("drained"), "{listed}");
    calls(5)?;
    ensure!(placed()? == [used[0] + 20.0, used[1]], "{used:?}, then {:?}", placed()?);
    device(&setup, &["resume", "host:1"])?;
    let listed: serde_json::Value = serde_json::from_str(&device(&setup, &["ls", "--json"])?)?;
    let states: Vec<_> = listed["devices"].as_array().into_iter().flatten().map(|device| &device["state"]).collect();
    ensure!(states == ["ready", "ready"], "{listed}");
    calls(20)?;
    ensure!(placed()?[1] > used[1], "it gets requests again");
    let unknown = client.drain("host:7", true).expect_err("there is no such device").to_string();
    ensure!(unknown.contains("host:0, host:1"), "{unknown}");
    Ok(())
}

/// The errors depend on the machine, so they are only printed.
#[test]
fn policies_are_compared_in_simulation_and_on_two_devices() -> Result<()> {
    let hosts = two_hosts()?;
    let arguments = ["bench", "placement", "--clients", "3", "--sizes", "64,128", "--seconds", "0.5", "--load", "0.3"];
    let policies = ["--policy", "cost,balance,exclusive", "--json"];
    let output = Command::new(atoll()).args(arguments).args(policies).args(&hosts).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let json: Value = serde_json::from_slice(&output.stdout)?;
    let functions = json["functions"].as_array().context("functions")?;
    ensure!(functions.len() == 3 && functions.iter().all(|one| one["service_ms"].as_f64() > Some(0.0)), "{json}");
    let rows = json["policies"].as_array().context("policies")?;
    let names: Vec<&str> = rows.iter().filter_map(|row| row["policy"].as_str()).collect();
    ensure!(names == ["cost", "balance", "exclusive"], "{names:?}");
    for row in rows {
        let requests = row["real"]["count"].as_u64().context("a count")?;
        ensure!(requests > 0 && row["simulated"]["count"] == requests, "both get the same arrivals: {row}");
        for split in ["real_split", "simulated_split"] {
            let split: u64 = row[split].as_array().into_iter().flatten().filter_map(Value::as_u64).sum();
            ensure!(split == requests, "{row}");
        }
        ensure!(row["mean_error"].is_f64() && row["p99_error"].is_f64(), "{row}");
        measured(&format!("{}: mean off by {}, p99 by {}", row["policy"], row["mean_error"], row["p99_error"]));
    }
    for order in ["real_order", "simulated_order"] {
        ensure!(json[order].as_array().map(Vec::len) == Some(3), "{json}");
    }
    Ok(())
}
