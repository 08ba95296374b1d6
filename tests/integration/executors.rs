//! A daemon whose executors are killed and stopped under load: every request is answered once, and nothing stays behind.

use crate::cancel::{HARMLESS, PATIENCE, answer, metric, send};
use crate::serve::Daemon;
use anyhow::{Context, Result, ensure};
use atoll_pipeline::{CompileOptions, Silent, Target, pack};
use atoll_tests::{full, root};
use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

fn start(folder: &Path) -> Result<Daemon> {
    let repository = folder.join("repository");
    std::fs::create_dir(&repository)?;
    let options = CompileOptions { targets: vec![Target::this_host()], ..CompileOptions::default() };
    pack(&root().join("tests/functions/faulty.toml"), &repository.join("faulty.kg"), &options, &Silent)?;
    Daemon::start_with(&repository, folder, &[])
}

/// State and parent of a process; `None` once it is gone or only waits to be reaped.
fn parent_of(pid: i32) -> Option<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?;
    if state == "Z" { None } else { fields.next()?.parse().ok() }
}

/// The executors of a daemon.
fn executors(daemon: i32) -> Result<Vec<i32>> {
    let numbers = std::fs::read_dir("/proc")?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    Ok(numbers.filter(|pid| parent_of(*pid) == Some(daemon)).collect())
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    let start = Instant::now();
    while !is_so()? {
        ensure!(start.elapsed() < PATIENCE, "never {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Signals an executor of the daemon, and waits until there is another one.
fn harm(daemon: i32, signal: Signal) -> Result<()> {
    let mut victim = None;
    wait_until("an executor", || {
        victim = executors(daemon)?.first().copied();
        Ok(victim.is_some())
    })?;
    let victim = victim.and_then(Pid::from_raw).context("an executor")?;
    // It may have ended a moment ago.
    let _ = kill_process(victim, signal);
    wait_until("replaced", || Ok(executors(daemon)?.iter().any(|pid| *pid != victim.as_raw_nonzero().get())))
}

#[test]
fn requests_survive_executors_that_are_killed_and_stopped() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut daemon = start(folder.path())?;
    let (pid, over) = (daemon.process().id() as i32, AtomicBool::new(false));
    ensure!(
        metric(&daemon, "atoll_executors")? == 1.0 && metric(&daemon, "atoll_retries_total")? == 0.0,
        "series are there from the start"
    );
    let http = daemon.http.clone();
    let client = || -> Result<(u32, u32)> {
        let (mut answered, mut failed) = (0, 0);
        while !over.load(Relaxed) {
            let text = answer(send(&http, HARMLESS, "{}")?)?;
            let is_cause = text.starts_with("HTTP/1.1 5") && text.contains("executor");
            ensure!(text.starts_with("HTTP/1.1 200") || is_cause, "{text}");
            answered += 1;
            failed += u32::from(is_cause);
        }
        Ok((answered, failed))
    };
    let totals = std::thread::scope(|scope| -> Result<Vec<(u32, u32)>> {
        let clients: Vec<_> = (0..3).map(|_| scope.spawn(client)).collect();
        let harmed = (0..if full() { 100 } else { 2 }).try_for_each(|_| {
            harm(pid, Signal::KILL)?;
            // Longer than the daemon remembers a loss in the long run; a few in a row it takes.
            std::thread::sleep(if full() { Duration::from_secs(16) } else { Duration::from_millis(300) });
            Ok(())
        });
        let harmed = harmed.and_then(|()| harm(pid, Signal::STOP));
        std::thread::sleep(Duration::from_millis(300));
        over.store(true, Relaxed);
        let totals = clients.into_iter().map(|client| client.join().expect("no panic")).collect::<Result<Vec<_>>>();
        harmed.and(totals)
    })?;
    ensure!(totals.iter().all(|(answered, failed)| answered > failed), "{totals:?}");
    let text = answer(send(&daemon.http, HARMLESS, "{}")?)?;
    ensure!(text.starts_with("HTTP/1.1 200"), "{text}");
    ensure!(metric(&daemon, "atoll_executor_losses_total{cause=\"died\"}")? >= 2.0, "they were counted");
    ensure!(metric(&daemon, "atoll_executor_losses_total{cause=\"hung\"}")? == 1.0, "it was found");
    let last = executors(pid)?;
    let status = daemon.signal(Signal::TERM)?;
    ensure!(status.code() == Some(0), "SIGTERM ended the daemon with {status}");
    ensure!(last.iter().all(|pid| parent_of(*pid).is_none()), "an executor outlived its daemon");
    Ok(())
}

#[test]
fn executors_die_with_a_daemon_that_is_killed() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut daemon = start(folder.path())?;
    let executors = executors(daemon.process().id() as i32)?;
    ensure!(executors.len() == 1, "{executors:?}");
    daemon.signal(Signal::KILL)?;
    wait_until("gone", || Ok(executors.iter().all(|pid| parent_of(*pid).is_none())))
}
