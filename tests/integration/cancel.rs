//! Cancelled requests in the middle of an endless kernel: their launches leave the device, and
//! other requests are served normally.

use crate::serve::Daemon;
use anyhow::{Context, Result, ensure};
use atoll_client::{Call, Client, ClientError, DataType, Deploy, Tensor};
use atoll_pipeline::{CompileOptions, Silent, Target, pack};
use atoll_tests::http::{self, answer};
use atoll_tests::root;
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Modes of `faulty.toml`: run forever, or return at once.
const ENDLESS: u32 = 5;
pub(crate) const HARMLESS: u32 = 0;

/// Timeout of the tests; the actual times are milliseconds.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// Sends a request for `faulty` with parameters in JSON, without waiting for the answer.
pub(crate) fn send(address: &str, mode: u32, parameters: &str) -> Result<TcpStream> {
    let inputs = format!(r#"[{{"name": "mode", "shape": [1], "datatype": "UINT32", "data": [{mode}]}}]"#);
    Ok(http::send(
        address,
        "POST",
        "/v2/models/faulty/infer",
        &format!(r#"{{"inputs": {inputs}, "parameters": {parameters}}}"#),
    )?)
}

/// The value of a metric; the sum over all devices if the sample names none.
pub(crate) fn metric(daemon: &Daemon, sample: &str) -> Result<f64> {
    let (_, text) = http::ask(&daemon.metrics, "GET", "/metrics", "")?;
    let value = |line: &str| {
        let (found, value) = line.rsplit_once(' ')?;
        let is_it = found == sample || !sample.contains("device=") && without_device(found) == sample;
        is_it.then(|| value.trim().parse::<f64>())
    };
    let values = text.lines().filter_map(value).collect::<Result<Vec<f64>, _>>()?;
    ensure!(!values.is_empty(), "no {sample} in {text}");
    Ok(values.iter().sum())
}

/// A sample without its last label, `device`.
pub(crate) fn without_device(sample: &str) -> String {
    let Some(at) = sample.find("device=\"") else { return sample.to_owned() };
    match sample[..at].strip_suffix(',') {
        Some(others) => format!("{others}}}"),
        None => sample[..at].trim_end_matches('{').to_owned(),
    }
}

fn wait_for(daemon: &Daemon, sample: &str, value: f64) -> Result<()> {
    let start = Instant::now();
    while metric(daemon, sample)? != value {
        ensure!(start.elapsed() < TIMEOUT, "{sample} is {}, not {value}", metric(daemon, sample)?);
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

#[test]
fn cancelled_requests_leave_the_device() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let repository = folder.path().join("repository");
    std::fs::create_dir(&repository)?;
    let options = CompileOptions { targets: vec![Target::this_host()], ..CompileOptions::default() };
    pack(&root().join("tests/functions/faulty.toml"), &repository.join("faulty.kg"), &options, &Silent)?;
    // A time limit would also end the kernels, but long after this test's timeout.
    let daemon = Daemon::start_with(&repository, folder.path(), &["--time-limit", "3600"])?;
    let running = "atoll_running_invocations{model=\"faulty\",version=\"1\"}";
    let held = "atoll_usage_memory_bytes{tenant=\"local\",function=\"faulty\",\
             class=\"best_effort\",kind=\"invocations\"}";
    let ended = |outcome: &str| {
        format!(
            "atoll_usage_invocations_total{{tenant=\"local\",function=\"faulty\",\
             class=\"best_effort\",outcome=\"{outcome}\"}}"
        )
    };
    ensure!(
        metric(&daemon, held)? == 0.0 && metric(&daemon, &ended("cancelled"))? == 0.0,
        "series are there before anything ran"
    );

    for round in 1..=3 {
        // The client disconnects.
        let client = send(&daemon.http, ENDLESS, "{}")?;
        wait_for(&daemon, running, 1.0)?;
        std::thread::sleep(Duration::from_millis(20));
        drop(client);
        wait_for(&daemon, &ended("cancelled"), f64::from(round))?;

        // The client waits, but with a deadline.
        let text = answer(send(&daemon.http, ENDLESS, r#"{"timeout": 30000}"#)?)?;
        ensure!(text.starts_with("HTTP/1.1 504"), "{text}");
        ensure!(metric(&daemon, &ended("deadline_exceeded"))? == f64::from(round));

        // No resource is leaked, and other requests are served.
        ensure!(metric(&daemon, running)? == 0.0 && metric(&daemon, held)? == 0.0);
        let text = answer(send(&daemon.http, HARMLESS, "{}")?)?;
        ensure!(text.starts_with("HTTP/1.1 200"), "{text}");
    }
    ensure!(metric(&daemon, "atoll_aborted_launches_total")? > 0.0);

    // All work of the compute units is billed, including aborted launches.
    let device = daemon_device(&daemon)?;
    let billed: f64 = ["real_time", "best_effort"]
        .into_iter()
        .map(|class| {
            metric(
                &daemon,
                &format!(
                    "atoll_usage_device_seconds_total{{tenant=\"local\",function=\"faulty\",\
             class=\"{class}\"}}"
                ),
            )
        })
        .sum::<Result<f64>>()?;
    let busy = metric(&daemon, &format!("atoll_device_busy_seconds_total{{device=\"{device}\"}}"))?;
    ensure!(billed > 0.0 && (billed - busy).abs() < 1e-9, "{billed} s are billed, the device was busy for {busy} s");
    Ok(())
}

#[test]
fn a_call_ends_when_another_thread_interrupts_its_connection() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (repository, bundle) = (folder.path().join("repository"), folder.path().join("faulty.kg"));
    std::fs::create_dir(&repository)?;
    let options = CompileOptions { targets: vec![Target::this_host()], ..CompileOptions::default() };
    pack(&root().join("tests/functions/faulty.toml"), &bundle, &options, &Silent)?;
    let daemon = Daemon::start_with(&repository, folder.path(), &["--time-limit", "3600"])?;
    let connect = || Client::connect(&folder.path().join("atoll.sock"));
    let mut client = connect()?;
    client.deploy(&bundle, &Deploy::default())?;
    let call = |mode: u32| {
        let mode = Tensor { datatype: DataType::Uint32, shape: vec![1], bytes: mode.to_le_bytes().to_vec() };
        Call::of("faulty").input("mode", mode)
    };
    let (interrupter, endless, harmless) = (client.interrupter()?, call(ENDLESS), call(HARMLESS));
    let waits = std::thread::spawn(move || [client.invoke(endless).is_err(), client.invoke(harmless).is_err()]);
    let of = |kind: &str| format!("{{tenant=\"local\",function=\"faulty\",class=\"best_effort\",{kind}}}");
    let held = format!("atoll_usage_memory_bytes{}", of("kind=\"invocations\""));
    let start = Instant::now();
    while metric(&daemon, &held)? == 0.0 {
        ensure!(start.elapsed() < TIMEOUT, "the call does not run");
        std::thread::sleep(Duration::from_millis(5));
    }
    interrupter.interrupt();
    let failed = waits.join().map_err(|_| anyhow::anyhow!("the thread panicked"))?;
    ensure!(failed == [true, true], "the connection is closed for later calls, too: {failed:?}");
    wait_for(&daemon, &format!("atoll_usage_invocations_total{}", of("outcome=\"cancelled\"")), 1.0)?;
    // A client that is asked whether it waits on.
    let mut watched = connect()?;
    watched.watch(Duration::from_millis(5), || true)?;
    watched.invoke(call(HARMLESS))?;
    watched.watch(Duration::from_millis(5), || false)?;
    let ended = watched.invoke(call(ENDLESS));
    ensure!(matches!(ended, Err(ClientError::Interrupted)), "{ended:?}");
    connect()?.invoke(call(HARMLESS))?;
    Ok(())
}

/// The name of the daemon's device.
fn daemon_device(daemon: &Daemon) -> Result<String> {
    let (_, text) = http::ask(&daemon.metrics, "GET", "/metrics", "")?;
    let name =
        text.lines().find_map(|line| line.strip_prefix("atoll_device_compute_units{device=\"")?.split('"').next());
    Ok(name.context("a device")?.to_owned())
}
