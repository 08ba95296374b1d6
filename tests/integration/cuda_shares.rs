//! Shares on an NVIDIA GPU, on the stand-in driver: quotas of time, partitions by green contexts,
//! and a GPU that MPS shares with others.

use super::cancel::{HARMLESS, send};
use super::cuda::{engine, faulty_daemon_in};
use super::executors::wait_until;
use super::serve::{Daemon, atoll};
use anyhow::{Context, Result, ensure};
use atoll_engine::{
    Class, EngineConfig, EngineHandle, FunctionKey, FunctionOptions, ShareClient, ShareRequest, ShareSpec, Tenant,
};
use atoll_pipeline::Target;
use atoll_tests::http::answer;
use atoll_tests::{Loaded, built_small, compile_for, oracle, stand_in};
use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Device time that two tenants use together before their parts are compared.
const RECEIVED: Duration = Duration::from_secs(1);

fn tenant(name: &str) -> Result<ShareClient> {
    Ok(ShareClient { tenant: name.parse::<Tenant>()?, instance: None })
}

/// The device time that a client received so far.
fn received(handle: &EngineHandle, client: &ShareClient) -> Duration {
    let shares = handle.statistics().shares;
    let its = shares.iter().find(|share| share.client == *client);
    Duration::from_nanos(its.map_or(0, |share| share.received_ns))
}

#[test]
fn tenants_of_a_gpu_receive_their_quotas() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let model = built_small("squeezenet", folder.path())?;
    let bundle = compile_for(&model, folder.path(), Target::NVIDIA)?;
    let case = oracle(&model, &[1], folder.path())?.remove(0);
    let loaded = Loaded::start_in(engine(EngineConfig::default())?, &bundle)?;
    let (handle, is_over) = (&loaded.handle, AtomicBool::new(false));
    let clients = [("small", 0.3), ("large", 0.7)];
    let functions = clients.map(|(name, quota)| -> Result<Loaded> {
        let share = ShareRequest { sm_partition: 100.0, quota_request: quota, quota_limit: quota, group: 0 };
        handle.place_share(tenant(name)?, ShareSpec::new(&share)?)?;
        let key = FunctionKey { tenant: name.parse()?, name: "model".into() };
        let options = FunctionOptions {
            key,
            class: Class::BestEffort,
            queue_capacity: None,
            lane: Default::default(),
            batching: None,
        };
        loaded.beside(&bundle, options)
    });
    let [small, large] = functions;
    let (small, large) = (small?, large?);
    let repeat = |function: &Loaded| -> Result<()> {
        while !is_over.load(Ordering::Relaxed) {
            function.check(&model, &case)?;
        }
        Ok(())
    };
    let (repeat, small, large) = (&repeat, &small, &large);
    let part = std::thread::scope(|scope| -> Result<f64> {
        // Two requests of each tenant at a time, so that it always has work.
        let busy = [small, small, large, large].map(|function| scope.spawn(move || repeat(function)));
        let clients = (tenant("small")?, tenant("large")?);
        let both = || (received(handle, &clients.0), received(handle, &clients.1));
        let is_busy = || busy.iter().all(|thread| !thread.is_finished());
        while both().0 + both().1 < RECEIVED && is_busy() {
            std::thread::sleep(Duration::from_millis(20));
        }
        let (of_small, of_large) = both();
        is_over.store(true, Ordering::Relaxed);
        for thread in busy {
            thread.join().expect("no panic")?;
        }
        Ok(of_small.as_secs_f64() / (of_small + of_large).as_secs_f64())
    })?;
    ensure!((0.2..0.4).contains(&part), "the tenant with 30 % of the time received {part}");
    loaded.stop();
    Ok(())
}

/// Runs the command line against the daemon of a folder.
fn command(folder: &Path, arguments: &[&str]) -> Result<String> {
    let output =
        std::process::Command::new(atoll()).env("XDG_RUNTIME_DIR", folder).args(arguments).output().context("atoll")?;
    ensure!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

/// Creates an instance; returns what the command prints.
fn create(folder: &Path, name: &str, partition: &str, more: &[&str]) -> Result<String> {
    let create = ["instance", "create", name, "--function", "faulty", "--quota-request", "0.3", "--sm-partition"];
    command(folder, &[&create[..], &[partition], more].concat())
}

/// The share of an instance on the only device, as the command line lists it.
fn listed(folder: &Path, name: &str) -> Result<serde_json::Value> {
    let all: serde_json::Value = serde_json::from_str(&command(folder, &["instance", "ls", "--json"])?)?;
    let its = all.as_array().context("a list")?.iter().find(|report| report["instance"] == name);
    Ok(its.context("it is listed")?["devices"][0].clone())
}

#[test]
fn instances_are_bound_to_whole_groups_of_units_and_billed_for_them() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let daemon = faulty_daemon_in(folder.path(), &[], "units=50", &[])?;
    // 11 % of 50 units are 5.5; the GPU assigns pairs of units.
    let said = create(folder.path(), "small", "11", &[])?;
    ensure!(said.contains("small asked for 11.0 % of the compute units of cuda:0 and has 12.0 %"), "{said}");
    let said = create(folder.path(), "half", "48", &[])?;
    ensure!(!said.contains("asked for"), "48 % are 12 pairs: {said}");
    let answered = answer(send(&daemon.http, HARMLESS, r#"{"instance": "small"}"#)?)?;
    ensure!(answered.starts_with("HTTP/1.1 200"), "{answered}");
    let (small, half) = (listed(folder.path(), "small")?, listed(folder.path(), "half")?);
    ensure!(small["area"]["units"] == 6 && small["unbound"].is_null() && half["area"]["units"] == 24, "{small} {half}");
    let number = |of: &serde_json::Value, name: &str| of[name].as_f64().context("a number");
    let (received, of_units) = (number(&small, "received_s")?, number(&small, "received_unit_s")?);
    ensure!(received > 0.0 && (of_units / received - 6.0).abs() < 0.01, "six units are billed: {small}");
    ensure!(number(&half, "received_s")? == 0.0, "the request ran under the other one: {half}");
    Ok(())
}

/// The instance `half` of a daemon serves a request; returns its share.
fn served(folder: &Path, daemon: &Daemon) -> Result<serde_json::Value> {
    let answered = answer(send(&daemon.http, HARMLESS, r#"{"instance": "half"}"#)?)?;
    ensure!(answered.starts_with("HTTP/1.1 200"), "{answered}");
    let half = listed(folder, "half")?;
    ensure!(half["received_s"].as_f64().is_some_and(|received| received > 0.0), "its quota applies: {half}");
    Ok(half)
}

#[test]
fn instances_of_a_gpu_that_cannot_be_divided_say_so() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let daemon = faulty_daemon_in(folder.path(), &["--compute-units", "4"], "units=8", &[])?;
    let said = create(folder.path(), "half", "50", &[])?;
    ensure!(said.contains("half is not bound to compute units of cuda:0: the device cannot be divided"), "{said}");
    let half = served(folder.path(), &daemon)?;
    ensure!(half["area"].is_null() && half["compute_units"] == 4, "{half}");
    Ok(())
}

#[test]
fn the_part_of_a_gpu_that_mps_leaves_is_divided_among_instances() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let service = folder.path().join("mps");
    let variables = stand_in::install_mps(folder.path(), &service)?;
    let daemon = faulty_daemon_in(folder.path(), &["--mps", "50"], "units=8", &variables)?;
    create(folder.path(), "half", "50", &[])?;
    let half = served(folder.path(), &daemon)?;
    ensure!(half["compute_units"] == 4 && half["area"]["units"] == 2 && half["unbound"].is_null(), "{half}");
    end_service(&daemon, &service.join("journal"))
}

/// Ends a daemon that shares its GPU, and then the control daemon that it started.
fn end_service(daemon: &Daemon, journal: &Path) -> Result<()> {
    let journal = || std::fs::read_to_string(journal).unwrap_or_default();
    let first = |what: &str| journal().lines().find_map(|line| line.strip_prefix(what)?.trim().parse::<i32>().ok());
    let (control, executor) = first("start").zip(first("client")).context("a control daemon and its client")?;
    let kill =
        |process: i32| -> Result<()> { Ok(kill_process(Pid::from_raw(process).context("a number")?, Signal::KILL)?) };
    kill(daemon.process().id() as i32)?;
    wait_until("the executor detached", || Ok(journal().lines().any(|line| line == format!("gone {executor}"))))?;
    kill(control)
}
