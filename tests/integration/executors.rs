//! A daemon whose executors are killed and stopped under load: every request is answered once, and
//! no resource is leaked.

use crate::cancel::{HARMLESS, TIMEOUT, metric, send};
use crate::functions::pack_grind;
use crate::serve::Daemon;
use anyhow::{Context, Result, ensure};
use atoll_client::{Answer, Call, Client, ClientError, DataType, Deploy, Refusal, RefusalKind, Tensor};
use atoll_pipeline::{CompileOptions, Silent, Target, pack};
use atoll_tests::chaos::grind;
use atoll_tests::http::answer;
use atoll_tests::{full, kernel_cache, root};
use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

fn start(folder: &Path) -> Result<Daemon> {
    let repository = folder.join("repository");
    std::fs::create_dir(&repository)?;
    let options = CompileOptions {
        targets: vec![Target::this_host()],
        kernel_cache: kernel_cache(),
        ..CompileOptions::default()
    };
    pack(&root().join("tests/functions/faulty.toml"), &repository.join("faulty.kg"), &options, &Silent)?;
    Daemon::start_with(&repository, folder, &[])
}

/// Parent of a process; `None` if it has ended or is a zombie.
fn parent_of(pid: i32) -> Option<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?;
    if state == "Z" { None } else { fields.next()?.parse().ok() }
}

/// Whether a process is running as a child of another one.
pub(crate) fn is_child_of(pid: i32, parent: i32) -> bool {
    parent_of(pid) == Some(parent)
}

/// The children of a process; those of a daemon are its executors.
pub(crate) fn children(daemon: i32) -> Result<Vec<i32>> {
    let numbers = std::fs::read_dir("/proc")?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    Ok(numbers.filter(|pid| is_child_of(*pid, daemon)).collect())
}

pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    let start = Instant::now();
    while !is_so()? {
        ensure!(start.elapsed() < TIMEOUT, "timed out waiting: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Sends a signal to an executor of the daemon, and waits until it has been replaced.
fn harm(daemon: i32, signal: Signal) -> Result<()> {
    let mut victim = None;
    wait_until("an executor", || {
        victim = children(daemon)?.first().copied();
        Ok(victim.is_some())
    })?;
    let victim = victim.and_then(Pid::from_raw).context("an executor")?;
    // It may have ended meanwhile.
    let _ = kill_process(victim, signal);
    wait_until("replaced", || Ok(children(daemon)?.iter().any(|pid| *pid != victim.as_raw_nonzero().get())))
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
        let harmed = (0..if full() { 8 } else { 2 }).try_for_each(|_| {
            harm(pid, Signal::KILL)?;
            // In a full run, longer than the window in which the daemon counts losses; otherwise a
            // few losses in a row are tolerated.
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
    let last = children(pid)?;
    let status = daemon.signal(Signal::TERM)?;
    ensure!(status.code() == Some(0), "SIGTERM ended the daemon with {status}");
    ensure!(last.iter().all(|pid| parent_of(*pid).is_none()), "an executor outlived its daemon");
    Ok(())
}

/// A chain of three functions, each long enough for the executor to be killed in the middle.
fn long_chain(x: &[u32], times: u32) -> Call {
    let vector = |values: &[u32]| Tensor {
        datatype: DataType::Uint32,
        shape: vec![values.len() as i64],
        bytes: grind::bytes(values),
    };
    let first = Call::of("grind").input("x", vector(x)).input("times", vector(&[times]));
    (1..3).fold(first, |call, _| call.then("grind").take("x", "y").input("times", vector(&[times])))
}

#[test]
fn a_chain_whose_executor_dies_in_the_middle_is_run_once_more() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let daemon = start(folder.path())?;
    let pid = daemon.process().id() as i32;
    let connect =
        || Client::connect_as(&folder.path().join("atoll.sock"), Some("a".parse()?)).context("the control socket");
    connect()?.deploy(&pack_grind(folder.path(), 1)?, &Deploy::default())?;
    let (x, table, times) = ([1, 2, 3, 4], grind::table(1), 80_000_000);
    let expected = (0..3).fold(x.to_vec(), |x, _| grind::grind(&x, &table, times));
    // A function of a chain is issued when the previous one has finished, so the second launch
    // marks the middle.
    let kill_in_the_middle = || -> Result<i32> {
        let issued = metric(&daemon, "atoll_issued_launches_total")?;
        wait_until("in the middle", || Ok(metric(&daemon, "atoll_issued_launches_total")? >= issued + 2.0))?;
        // The executor started last is the tenant's; the daemon's own one is idle.
        let executor = children(pid)?.into_iter().max().context("an executor")?;
        kill_process(Pid::from_raw(executor).context("a number")?, Signal::KILL)?;
        Ok(executor)
    };
    for kills in 1..=2 {
        let (answer, killed) = std::thread::scope(|scope| -> Result<_> {
            let answer =
                scope.spawn(|| -> Result<Result<Answer, ClientError>> { Ok(connect()?.invoke(long_chain(&x, times))) });
            let killed = (0..kills).map(|_| kill_in_the_middle()).collect::<Result<Vec<i32>>>();
            Ok((answer.join().expect("no panic")?, killed?))
        })?;
        match answer {
            Ok(answer) if kills == 1 => ensure!(answer.tensor("y")?.bytes == grind::bytes(&expected)),
            Err(ClientError::Refused(Refusal { kind: RefusalKind::Function, message })) if kills == 2 => {
                let cause = format!("executor {} was killed by SIGKILL", killed[1]);
                ensure!(message.contains(&cause), "{message}");
            }
            other => anyhow::bail!("after {kills} losses: {other:?}"),
        }
        ensure!(metric(&daemon, "atoll_retries_total")? == f64::from(kills), "it is tried again once");
        let usage = connect()?.usage()?;
        ensure!(usage.rows.iter().all(|row| row.memory["invocations"].bytes == 0), "{usage:?}");
    }
    Ok(())
}

#[test]
fn executors_die_with_a_daemon_that_is_killed() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut daemon = start(folder.path())?;
    let executors = children(daemon.process().id() as i32)?;
    ensure!(executors.len() == 1, "{executors:?}");
    daemon.signal(Signal::KILL)?;
    wait_until("gone", || Ok(executors.iter().all(|pid| parent_of(*pid).is_none())))
}
