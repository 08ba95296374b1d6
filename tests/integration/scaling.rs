//! Models whose instances follow the load, in a real daemon.

use crate::cancel::metric;
use crate::control::Setup;
use crate::executors::wait_until;
use crate::fleet::two_hosts;
use crate::functions::pack_grind;
use crate::graphs::twice;
use anyhow::{Context, Result, ensure};
use atoll_client::{Class, Client, Deploy, InstanceReport, InstanceSpec};
use atoll_tests::chaos::grind;
use atoll_tests::http::ask;
use std::process::Output;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Clients that always have a request in flight.
const CLIENTS: usize = 8;

/// Least device time of a request: so long that one share of two devices is too little for all
/// clients.
const SERVICE_MS: f64 = 3.0;

const SEED: u64 = 7;

/// Writes `grind` with `[scaling]` into the repository of a daemon.
fn load(setup: &Setup, settings: &str) -> Result<(u16, String)> {
    let repository = setup.path("repository");
    if !repository.join("grind.kg").exists() {
        let folder = tempfile::tempdir()?;
        std::fs::copy(pack_grind(folder.path(), SEED)?, repository.join("grind.kg"))?;
    }
    std::fs::write(repository.join("grind.toml"), format!("[scaling]\n{settings}"))?;
    Ok(ask(&setup.daemon.http, "POST", "/v2/repository/models/grind/load", "{}")?)
}

fn start(options: &[&str], settings: &str) -> Result<Setup> {
    let setup = Setup::start(options, "")?;
    let (status, text) = load(&setup, settings)?;
    ensure!(status == 200, "{text}");
    Ok(setup)
}

const X: [u32; 4] = [1, 2, 3, 4_000_000_000];

/// The body of a request for `grind`, with parameters.
fn body(times: u32, parameters: &serde_json::Value) -> String {
    let input = |name: &str, data: &[u32]| {
        let shape = [data.len()];
        serde_json::json!({ "name": name, "datatype": "UINT32", "shape": shape, "data": data })
    };
    let inputs = [input("x", &X), input("times", &[times])];
    serde_json::json!({ "inputs": inputs, "parameters": parameters }).to_string()
}

/// Asks `grind`.
fn call(setup: &Setup, times: u32, parameters: &serde_json::Value) -> Result<(u16, String)> {
    Ok(ask(&setup.daemon.http, "POST", "/v2/models/grind/infer", &body(times, parameters))?)
}

/// Calls `grind` and checks the answer.
fn check(setup: &Setup, times: u32) -> Result<()> {
    let (status, text) = call(setup, times, &serde_json::json!({}))?;
    ensure!(status == 200, "{text}");
    let answer: serde_json::Value = serde_json::from_str(&text)?;
    let data = answer["outputs"][0]["data"].as_array().context("data")?;
    let values: Vec<u32> = data.iter().filter_map(|value| u32::try_from(value.as_u64()?).ok()).collect();
    ensure!(values == grind::grind(&X, &grind::table(SEED), times), "a wrong answer for {times}: {text}");
    Ok(())
}

/// The instances that the autoscaler created.
fn made(client: &mut Client) -> Result<Vec<InstanceReport>> {
    let mut instances = client.instances()?;
    instances.retain(|report| report.autoscaled.is_some());
    Ok(instances)
}

/// The value of a metric; 0 if it does not exist yet.
fn sample(setup: &Setup, name: &str) -> f64 {
    metric(&setup.daemon, name).unwrap_or(0.0)
}

/// The number of iterations of `grind` for the device time of a request.
fn times(setup: &Setup, client: &mut Client) -> Result<u32> {
    let mut times = 1_000;
    loop {
        for _ in 0..10 {
            check(setup, times)?;
        }
        let measured = made(client)?.iter().filter_map(|report| report.service_ms).fold(0.0, f64::max);
        if measured >= SERVICE_MS {
            return Ok(times);
        }
        times *= 2;
        ensure!(times < 1 << 30, "{measured} ms");
    }
}

#[test]
fn instances_come_with_the_load_and_go_without_it_and_no_request_is_lost() -> Result<()> {
    // Each client waits for its answer, so without a headroom one instance would be enough to keep
    // the target.
    let settings = "latency_ms = 500\nquota_request = 0.1\nmax_instances = 3\ninterval_ms = 100\n\
                    headroom_percent = 30\ncool_down_ms = 500\nidle_ms = 2000";
    let hosts = two_hosts()?;
    let options: Vec<&str> = hosts.iter().map(String::as_str).collect();
    let setup = start(&options, settings)?;
    let mut client = setup.client()?;
    ensure!(made(&mut client)?.is_empty(), "there are no requests");
    // A request finds no instance, and waits for one.
    check(&setup, 1)?;
    let first = made(&mut client)?;
    ensure!(first.len() == 1 && first[0].instance.as_deref() == Some("grind-auto-1"), "{first:?}");
    ensure!(first[0].devices.len() == 1 && first[0].quota_request == 0.1, "on one device: {first:?}");
    let operators = InstanceSpec {
        name: "mine".into(),
        function: "grind".into(),
        class: Some(Class::RealTime),
        sm_partition: 100.0,
        quota_request: 0.05,
        quota_limit: 0.05,
        gpu_mem: None,
        latency_ms: None,
    };
    client.create_instance(operators)?;

    let times = times(&setup, &mut client)?;
    let (over, answered, most) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| -> Result<()> {
        let ask = || -> Result<()> {
            while !over.load(Relaxed) {
                check(&setup, times)?;
                answered.fetch_add(1, Relaxed);
            }
            Ok(())
        };
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(ask)).collect();
        let grown = wait_until("instances for the load", || {
            let instances = made(&mut client)?.len() as u64;
            most.fetch_max(instances, Relaxed);
            Ok(instances >= 2)
        });
        // A few requests are sent while the number of instances changes.
        let before = answered.load(Relaxed);
        let went_on = wait_until("requests beside the changes", || Ok(answered.load(Relaxed) >= before + 50));
        over.store(true, Relaxed);
        for client in clients {
            client.join().expect("no panic").context("a request was lost")?;
        }
        grown.and(went_on)
    })?;
    let staying = made(&mut client)?.iter().filter(|report| !report.draining).count();
    ensure!(staying <= 3, "at most max_instances, and those that they replace");
    let listed = setup.command(&["instance", "ls"]).output()?;
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    ensure!(listed.contains("is the autoscaler's") && listed.contains("requests/s"), "{listed}");

    wait_until("no instance without requests", || Ok(made(&mut client)?.is_empty()))?;
    let left = client.instances()?;
    ensure!(left.len() == 1 && left[0].instance.as_deref() == Some("mine"), "the operator's stays: {left:?}");
    for (kind, least) in [("create", 2.0), ("remove", 2.0)] {
        let name = format!("atoll_scaling_decisions_total{{model=\"grind\",decision=\"{kind}\"}}");
        let count = sample(&setup, &name);
        ensure!(count >= least, "{kind}: {count}");
    }
    check(&setup, 1)?;
    ensure!(made(&mut client)?.len() == 1, "it starts from zero again");
    Ok(())
}

#[test]
fn a_request_waits_for_room_until_its_deadline_and_instances_outlive_the_daemon() -> Result<()> {
    let settings = "latency_ms = 500\nquota_request = 0.5\ninterval_ms = 100\nidle_ms = 60000\ncool_down_ms = 60000";
    let mut setup = start(&["--compute-units", "1"], settings)?;
    let mut client = setup.client()?;
    // An instance for the other class has the whole device.
    let all = InstanceSpec {
        name: "all".into(),
        function: "grind".into(),
        class: Some(Class::RealTime),
        sm_partition: 100.0,
        quota_request: 1.0,
        quota_limit: 1.0,
        gpu_mem: None,
        latency_ms: None,
    };
    client.create_instance(all)?;
    let (status, text) = call(&setup, 1, &serde_json::json!({ "timeout": 300_000 }))?;
    ensure!(status == 504, "{status}: {text}");
    wait_until("the refusal to be counted", || {
        Ok(sample(&setup, "atoll_scaling_decisions_total{model=\"grind\",decision=\"refused\"}") >= 1.0)
    })?;
    std::thread::scope(|scope| -> Result<()> {
        let waiting = scope.spawn(|| check(&setup, 1));
        wait_until("a request that waits", || {
            Ok(sample(&setup, "atoll_scaling_waiting_requests{model=\"grind\"}") >= 1.0)
        })?;
        client.remove_instance("all")?;
        waiting.join().expect("no panic").context("there is room now")
    })?;
    ensure!(made(&mut client)?.len() == 1);

    setup.kill_and_restart()?;
    let mut client = setup.client()?;
    ensure!(made(&mut client)?.len() == 1, "it is there again, and the autoscaler's");
    check(&setup, 1)?;
    // Without the settings, the instance is removed.
    std::fs::write(setup.path("repository/grind.toml"), "")?;
    let (status, text) = ask(&setup.daemon.http, "POST", "/v2/repository/models/grind/load", "{}")?;
    ensure!(status == 200, "{text}");
    wait_until("the instance to go", || Ok(made(&mut client)?.is_empty()))?;
    check(&setup, 1)?;
    let (status, text) = load(&setup, "latency_ms = 500\nmin_instances = 3\nmax_instances = 2")?;
    ensure!(status == 400 && text.contains("at least 3 instances, and at most 2"), "{text}");
    Ok(())
}

/// The devices of the instances that the daemon made, in order.
fn devices(client: &mut Client) -> Result<Vec<String>> {
    let mut devices: Vec<String> = made(client)?.into_iter().filter_map(|report| report.device).collect();
    devices.sort();
    Ok(devices)
}

#[test]
fn instances_fill_a_device_before_another_one_and_leave_one_that_is_drained_or_gone() -> Result<()> {
    let settings = "latency_ms = 500\nquota_request = 0.5\nmin_instances = 3\nmax_instances = 3\ninterval_ms = 100\n\
                    cool_down_ms = 500\nidle_ms = 60000";
    let hosts = two_hosts()?;
    let options: Vec<&str> = hosts.iter().map(String::as_str).collect();
    let mut setup = start(&options, settings)?;
    let mut client = setup.client()?;
    wait_until("three instances", || Ok(devices(&mut client)?.len() == 3))?;
    let places = devices(&mut client)?;
    ensure!(places[0] != places[2], "a device has room for two halves: {places:?}");
    let (full, other) = match places[1] == places[0] {
        true => (places[0].clone(), places[2].clone()),
        false => (places[2].clone(), places[0].clone()),
    };
    check(&setup, 1)?;
    let map = setup.command(&["instance", "map"]).output()?;
    let map = String::from_utf8_lossy(&map.stdout).into_owned();
    ensure!(map.contains(&format!("{full}, ")) && map.contains(&format!("{other}, ")), "{map}");

    let drain = setup.command(&["device", "drain", &other]).output()?;
    ensure!(drain.status.success(), "{}", String::from_utf8_lossy(&drain.stderr));
    wait_until("the instance of the drained device to go", || Ok(devices(&mut client)? == [&*full, &*full]))?;
    check(&setup, 1)?;
    let resume = setup.command(&["device", "resume", &other]).output()?;
    ensure!(resume.status.success(), "{}", String::from_utf8_lossy(&resume.stderr));
    wait_until("three instances again", || Ok(devices(&mut client)?.len() == 3))?;

    // One of the devices is gone after a restart; the other one has room for two. A function that
    // names the device itself is not ready, and says why.
    let bound = Deploy { device: Some("host:1".into()), ..Deploy::default() };
    client.deploy(&setup.path("affine.kg"), &bound)?;
    setup.kill_and_restart_with(&options[..2])?;
    let mut client = setup.client()?;
    wait_until("the instances of the device that is left", || Ok(devices(&mut client)? == ["host:0", "host:0"]))?;
    wait_until("the function of the device that is gone", || {
        let models = setup.json(&["models", "--url", &setup.daemon.http])?;
        let affine = models.as_array().into_iter().flatten().find(|model| model["name"] == "affine");
        let reason = affine.and_then(|model| model["reason"].as_str()).unwrap_or_default();
        Ok(reason.contains("there is no device `host:1`; choose one of: host:0"))
    })?;
    check(&setup, 1)
}

#[test]
fn the_load_of_a_graph_reaches_the_instances_of_its_functions() -> Result<()> {
    let settings = "[scaling.affine]\nlatency_ms = 1000\nquota_request = 0.2\ninterval_ms = 100\nidle_ms = 1000\n\
                    cool_down_ms = 500";
    let setup = Setup::start(&["--compute-units", "1"], settings)?;
    let mut client = setup.client()?;
    client.deploy(&setup.path("affine.kg"), &Deploy::default())?;
    std::fs::write(setup.path("twice.toml"), twice("affine"))?;
    let deployed = setup.command(&["graph", "deploy", "twice.toml"]).output()?;
    ensure!(deployed.status.success(), "{}", String::from_utf8_lossy(&deployed.stderr));
    ensure!(made(&mut client)?.is_empty(), "there are no requests");
    let call = || -> Result<()> {
        let inputs = [("x", [1.0, 2.0]), ("b", [1.0, 0.0])]
            .map(|(name, data)| serde_json::json!({ "name": name, "datatype": "FP32", "shape": [2], "data": data }));
        let request = serde_json::json!({ "inputs": inputs });
        let (status, text) = ask(&setup.daemon.http, "POST", "/v2/models/twice/infer", &request.to_string())?;
        // 3 (3·1 + 1) + 1 and 3 (3·2).
        ensure!(status == 200 && text.contains("[13.0,18.0]"), "{status}: {text}");
        Ok(())
    };
    // Both stages wait for the first instance, and run under it.
    call()?;
    let first = made(&mut client)?;
    ensure!(first.len() == 1 && first[0].function.as_deref() == Some("affine"), "{first:?}");
    ensure!(first[0].service_ms.is_some() && first[0].devices[0].received_s > 0.0, "nothing ran under it: {first:?}");
    // The second stage counts like the first one.
    call()?;
    wait_until("a rate of arrivals", || {
        call()?;
        Ok(sample(&setup, "atoll_scaling_arrival_rate{model=\"affine\"}") > 0.0)
    })?;
    wait_until("no instance without requests", || Ok(made(&mut client)?.is_empty()))
}

/// Runs `atoll profile --grid` for `grind` with the cache of the daemon.
fn grid(setup: &Setup, arguments: &[&str]) -> Result<Output> {
    let has_seconds = arguments.contains(&"--seconds");
    let seconds: &[&str] = if has_seconds { &[] } else { &["--seconds", "0.1"] };
    let measure = ["profile", "repository/grind.kg", "--grid", "--partitions", "100"];
    let model = ["--runs", "3", "--compute-units", "1", "--input", "times=100"];
    let mut command = setup.command(&[&measure[..], &model[..], seconds, arguments].concat());
    Ok(command.env("XDG_CACHE_HOME", setup.path("")).output()?)
}

#[test]
fn a_grid_goes_on_where_it_was_and_the_daemon_scales_by_it() -> Result<()> {
    let setup = start(&["--compute-units", "1"], "latency_ms = 1000")?;
    let stdout = |output: &Output| -> Result<String> {
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let first: serde_json::Value = serde_json::from_str(&stdout(&grid(&setup, &["--quotas", "100", "--json"])?)?)?;
    ensure!(first["points"].as_array().context("points")?.len() == 1 && first["device"] == "host", "{first}");
    let is_part = |name: &str| first["points"][0][name].as_u64().is_some_and(|part| (1..=1000).contains(&part));
    ensure!(is_part("utilisation_permille") && is_part("occupancy_permille"), "{first}");
    let both = stdout(&grid(&setup, &["--quotas", "50,100"])?)?;
    ensure!(both.contains("1 of 2 points were known"), "{both}");
    let at = stdout(&grid(&setup, &["--quotas", "50,100", "--at", "100,75", "--json"])?)?;
    let at: serde_json::Value = serde_json::from_str(&at)?;
    ensure!(at["requests_per_s"].as_f64().is_some_and(|rate| rate > 0.0) && at["error_percent"].is_null(), "{at}");
    for (arguments, part) in [
        (["--quotas", "50,100", "--at", "100,20"], "--at 100,20 is outside the grid"),
        (["--quotas", "0", "--at", "1,1"], "--quotas 0: 1 to 100 %"),
        (["--quotas", "50", "--batch", "8"], "so it has no batches"),
        (["--quotas", "50", "--seconds", "0"], "expected more than 0"),
    ] {
        let output = grid(&setup, &arguments)?;
        let message = String::from_utf8_lossy(&output.stderr);
        ensure!(!output.status.success() && message.contains(part), "{arguments:?}: {message}");
    }

    let profiled = |expected: f64| {
        wait_until("the profile is read", || {
            Ok(metric(&setup.daemon, "atoll_scaling_profiled{model=\"grind\"}").is_ok_and(|value| value == expected))
        })
    };
    let (status, text) = load(&setup, "latency_ms = 2000")?;
    ensure!(status == 200, "{text}");
    profiled(1.0)?;
    let points = || -> Result<serde_json::Value> {
        let (status, text) = ask(&setup.daemon.http, "GET", "/v2/models/grind/profile", "")?;
        ensure!(status == 200, "{text}");
        Ok(serde_json::from_str::<serde_json::Value>(&text)?["points"].take())
    };
    let found = points()?;
    let quotas: Vec<f64> = found.as_array().into_iter().flatten().filter_map(|point| point["quota"].as_f64()).collect();
    ensure!(quotas == [0.5, 1.0] && found[1]["sm_partition"] == 100, "{found}");
    let mut client = setup.client()?;
    check(&setup, 1)?;
    let made = made(&mut client)?;
    ensure!(made.len() == 1 && [0.5, 1.0].contains(&made[0].quota_request), "a point of the grid: {made:?}");

    // A profile with a point without throughput is not used.
    let found = std::fs::read_dir(setup.path("atoll/profiles"))?.next().context("a profile")??.path();
    let path = found.join("host-1.json");
    let mut profile: serde_json::Value = serde_json::from_slice(&std::fs::read(&path)?)?;
    profile["points"][0]["per_1000_s"] = 0.into();
    std::fs::write(&path, profile.to_string())?;
    let (status, text) = load(&setup, "latency_ms = 3000")?;
    ensure!(status == 200, "{text}");
    profiled(0.0)?;
    ensure!(points()? == serde_json::json!([]), "one that is not used is not reported");
    let log = std::fs::read_to_string(setup.path(crate::serve::LOG))?;
    ensure!(log.contains("no throughput at 100 % of the compute units"), "{log}");
    check(&setup, 1)
}
