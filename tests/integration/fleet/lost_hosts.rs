//! Two host devices under load, one of which is lost: its executors are killed until it gets no more
//! for a while, or, in the daemon's own process, its rings report that a compute unit died. The other
//! device is undisturbed, and all reports name the lost one.

use super::{ask_faulty, executors, two_hosts};
use crate::cancel::{HARMLESS, metric};
use crate::executors::wait_until;
use crate::functions::{manifest, packed};
use crate::serve::{Daemon, atoll};
use anyhow::{Context, Result, ensure};
use atoll_client::Client;
use rustix::process::{Pid, Signal, kill_process};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// Losses of an executor within a minute after which no other one is started for half a minute.
const LOSSES: u32 = 5;

/// Offset of the state in the memory that the engine and its compute units share, and its value after
/// a compute unit died.
const STATE_AT: u64 = 192;
const LOST: u32 = 2;

/// A daemon with two host devices. The models `left` and `right` are on one of them each, `anywhere`
/// is on both.
fn serve(folder: &Path, options: &[&str]) -> Result<Daemon> {
    let repository = folder.join("repository");
    std::fs::create_dir(&repository)?;
    packed(&manifest("faulty"), &repository.join("anywhere.kg"))?;
    for (model, device) in [("left", "host:0"), ("right", "host:1")] {
        std::fs::copy(repository.join("anywhere.kg"), repository.join(model).with_extension("kg"))?;
        std::fs::write(repository.join(model).with_extension("toml"), format!("device = \"{device}\""))?;
    }
    let devices = two_hosts()?;
    let options: Vec<&str> = devices.iter().map(String::as_str).chain(options.iter().copied()).collect();
    Daemon::start_with(&repository, folder, &options)
}

/// The answers to the calls of one model.
struct Answers {
    model: &'static str,
    calls: u32,
    /// Status and body of those that failed.
    failures: Vec<(u16, String)>,
}

fn call_until(over: &AtomicBool, daemon: &Daemon, model: &'static str) -> Result<Answers> {
    let mut answers = Answers { model, calls: 0, failures: Vec::new() };
    while !over.load(Relaxed) {
        answers.calls += 1;
        let (status, body) = ask_faulty(daemon, model, HARMLESS)?;
        if status != 200 {
            answers.failures.push((status, body));
            // A lost device answers at once.
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    Ok(answers)
}

/// Calls all models from two threads each until `harm` is over. Returns the answers.
fn under_load(daemon: &Daemon, harm: impl FnOnce() -> Result<()>) -> Result<Vec<Answers>> {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let models = ["left", "left", "right", "right", "anywhere", "anywhere"];
        let load = models.map(|model| scope.spawn(|| call_until(&over, daemon, model)));
        let harmed = harm();
        std::thread::sleep(Duration::from_millis(200));
        over.store(true, Relaxed);
        let answers: Result<Vec<_>> = load.into_iter().map(|load| load.join().expect("no panic")).collect();
        harmed.and(answers)
    })
}

/// All calls of `left` succeeded; of those of the others, failures name the cause.
fn check_answers(answers: &[Answers], cause: &str) -> Result<()> {
    for Answers { model, calls, failures } in answers {
        ensure!(*calls > 1, "only {calls} calls of {model}");
        ensure!(*model != "left" || failures.is_empty(), "the other device was affected: {failures:?}");
        for (status, body) in failures {
            ensure!(*status >= 500 && body.contains(cause), "{model}: {status}: {body}");
        }
    }
    Ok(())
}

/// Functions on the lost device alone are refused with the cause; the others are served.
fn check_lost(daemon: &Daemon, cause: &str) -> Result<()> {
    let (status, body) = ask_faulty(daemon, "right", HARMLESS)?;
    ensure!(status == 503 && body.contains(cause), "{status}: {body}");
    for model in ["left", "anywhere"].repeat(5) {
        let (status, body) = ask_faulty(daemon, model, HARMLESS)?;
        ensure!(status == 200, "{model}: {status}: {body}");
    }
    Ok(())
}

fn ps(folder: &Path) -> Result<String> {
    let output = Command::new(atoll()).arg("ps").arg("--control-socket").arg(folder.join("atoll.sock")).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

/// The value of a gauge or counter of each device.
fn of_both(daemon: &Daemon, name: &str, labels: &str) -> Result<[f64; 2]> {
    let of = |device: &str| metric(daemon, &format!("{name}{{{labels}device=\"{device}\"}}"));
    Ok([of("host:0")?, of("host:1")?])
}

/// Kills every executor of `host:1` until no other one is started. Returns the last one.
fn kill_all(client: &mut Client) -> Result<u32> {
    let mut last = None;
    for _ in 0..LOSSES {
        wait_until("another executor", || {
            let pid = executors(client)?[1].pid;
            let is_new = pid.is_some() && pid != last;
            last = if is_new { pid } else { last };
            Ok(is_new)
        })?;
        let victim = last.and_then(|pid| Pid::from_raw(pid as i32)).context("an executor")?;
        kill_process(victim, Signal::KILL)?;
    }
    last.context("an executor")
}

#[test]
fn a_host_device_whose_executors_are_killed_again_and_again_leaves_the_other_undisturbed() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let daemon = serve(folder.path(), &[])?;
    let mut client = Client::connect(&folder.path().join("atoll.sock"))?;
    let before = executors(&mut client)?;
    let mut cause = String::new();
    let answers = under_load(&daemon, || {
        let last = kill_all(&mut client)?;
        cause = format!("executor {last} was killed by SIGKILL");
        wait_until("unavailable", || Ok(ask_faulty(&daemon, "right", HARMLESS)?.0 == 503))
    })?;
    check_answers(&answers, "was killed by SIGKILL")?;
    check_lost(&daemon, &format!("the function is unavailable for now: {cause}; it will be tried again"))?;
    let after = executors(&mut client)?;
    ensure!((after[0].pid, after[0].restarts) == (before[0].pid, 0), "{after:?}");
    ensure!(after[1].pid.is_none() && after[1].cause.as_deref() == Some(&cause), "{after:?}");
    let listed = ps(folder.path())?;
    ensure!(listed.contains(&cause), "{listed}");
    ensure!(of_both(&daemon, "atoll_executors", "")? == [1.0, 0.0]);
    ensure!(of_both(&daemon, "atoll_executor_losses_total", "cause=\"died\",")? == [0.0, f64::from(LOSSES)]);
    ensure!(of_both(&daemon, "atoll_device_lost", "")? == [0.0, 0.0], "it is tried again later");
    Ok(())
}

/// The memory that a daemon's engines share with their compute units, in the order of the devices.
fn links(daemon: u32) -> Result<Vec<std::fs::File>> {
    let mut numbers = Vec::new();
    for entry in std::fs::read_dir(format!("/proc/{daemon}/fd"))? {
        let entry = entry?;
        if std::fs::read_link(entry.path()).is_ok_and(|target| target.starts_with("/memfd:atoll-link (deleted)")) {
            numbers.push(entry.file_name().to_string_lossy().parse::<u32>()?);
        }
    }
    numbers.sort_unstable();
    let open = |number: &u32| std::fs::File::options().write(true).open(format!("/proc/{daemon}/fd/{number}"));
    Ok(numbers.iter().map(open).collect::<std::io::Result<_>>()?)
}

#[test]
fn a_host_device_that_is_lost_for_good_leaves_the_other_undisturbed() -> Result<()> {
    const CAUSE: &str = "the device is lost: a compute unit died";
    let folder = tempfile::tempdir()?;
    let daemon = serve(folder.path(), &["--isolation", "none"])?;
    let links = links(daemon.process().id())?;
    ensure!(links.len() == 2, "{links:?}");
    let answers = under_load(&daemon, || {
        std::thread::sleep(Duration::from_millis(200));
        links[1].write_all_at(&LOST.to_le_bytes(), STATE_AT)?;
        wait_until("lost", || Ok(of_both(&daemon, "atoll_device_lost", "")?[1] == 1.0))
    })?;
    // A request that was running is given back to the pool, which has no other device for it.
    check_answers(&answers, "the device is lost")?;
    check_lost(&daemon, CAUSE)?;
    let listed = ps(folder.path())?;
    let line = |device: &str| listed.lines().find(|line| line.starts_with(device)).unwrap_or_default();
    ensure!(line("host:1").ends_with(", lost: a compute unit died") && !line("host:0").contains("lost"), "{listed}");
    ensure!(of_both(&daemon, "atoll_device_lost", "")? == [0.0, 1.0]);
    Ok(())
}
