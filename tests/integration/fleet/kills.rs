//! One of four devices loses its executor again and again, under load: it is killed, or stopped so
//! that it hangs.
//!
//! `ATOLL_ROUNDS` is the number of losses: 3 by default, 1,000 in full runs.

use super::stand_in_options;
use crate::cancel::metric;
use crate::executors::{children, wait_until};
use crate::serve::Daemon;
use anyhow::{Context, Result, ensure};
use atoll_core::rng::Rng;
use atoll_pipeline::{CompileOptions, Silent, Target, pack};
use atoll_tests::{full, http, measured, root, seed, stand_in};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

const DEVICES: usize = 4;
const CALLERS: u32 = 6;
/// Losses of one device in a daemon. After five within a minute, the daemon gives the device up for a
/// while, so the next daemon is started before.
const LOSSES_MAX: u32 = 4;
/// Every so many rounds, an executor is stopped instead of killed.
const STOPPED: u32 = 3;

/// Calls `affine`, 3 x + b, with values that no other call has, and checks the result.
fn call(daemon: &Daemon, number: u32) -> Result<()> {
    let x = [number, number + 1, number + 2].map(f64::from);
    let tensor = |name: &str, data: &[f64]| json!({"name": name, "shape": [3], "datatype": "FP32", "data": data});
    let request = json!({"inputs": [tensor("x", &x), tensor("b", &[1.0, 2.0, 3.0])]}).to_string();
    let (status, body) = http::ask(&daemon.http, "POST", "/v2/models/affine/infer", &request)?;
    ensure!(status == 200, "call {number}: {status}: {body}");
    let body: Value = serde_json::from_str(&body)?;
    let expected: Vec<f64> = x.iter().zip([1.0, 2.0, 3.0]).map(|(x, b)| x.mul_add(3.0, b)).collect();
    ensure!(body["outputs"][0]["data"] == json!(expected), "call {number}: {body}");
    Ok(())
}

/// Requests that a device answered.
fn answered(daemon: &Daemon, device: usize) -> Result<f64> {
    metric(daemon, &format!("nv_inference_request_success{{model=\"affine\",version=\"1\",device=\"cuda:{device}\"}}"))
}

/// Executors of a device that were lost for a cause.
fn lost(daemon: &Daemon, device: usize, cause: &str) -> Result<f64> {
    metric(daemon, &format!("atoll_executor_losses_total{{cause=\"{cause}\",device=\"cuda:{device}\"}}"))
}

/// A metric of all devices.
fn sum(of: impl Fn(usize) -> Result<f64>) -> Result<f64> {
    (0..DEVICES).map(of).sum()
}

/// The executors. The test learns which device a process belongs to when the device has lost one.
struct Executors<'a> {
    daemon: &'a Daemon,
    known: [Option<i32>; DEVICES],
    losses: [u32; DEVICES],
}

impl Executors<'_> {
    fn processes(&self) -> Result<Vec<i32>> {
        children(self.daemon.process().id() as i32)
    }

    /// A process whose device may lose an executor.
    fn next(&self, rng: &mut Rng) -> Result<i32> {
        let is_spent = |pid: &i32| {
            let device = self.known.iter().position(|known| known.as_ref() == Some(pid));
            device.is_some_and(|device| self.losses[device] >= LOSSES_MAX)
        };
        let possible: Vec<i32> = self.processes()?.into_iter().filter(|pid| !is_spent(pid)).collect();
        ensure!(!possible.is_empty(), "all devices have lost enough executors");
        Ok(possible[rng.below(possible.len() as u64) as usize])
    }

    /// Kills or stops a process, and returns the time until its device answers again.
    fn harm(&mut self, pid: i32, signal: Signal) -> Result<Duration> {
        let daemon = self.daemon;
        let cause = if signal == Signal::KILL { "died" } else { "hung" };
        let before = (0..DEVICES).map(|device| lost(daemon, device, cause)).collect::<Result<Vec<f64>>>()?;
        let others = self.processes()?;
        let harmed = Instant::now();
        kill_process(Pid::from_raw(pid).context("a process has a number")?, signal)?;
        let mut device = None;
        wait_until("a device has lost it", || {
            for (at, before) in before.iter().enumerate() {
                device = device.or((lost(daemon, at, cause)? > *before).then_some(at));
            }
            Ok(device.is_some())
        })?;
        let device = device.context("a device has lost it")?;
        self.losses[device] += 1;
        let count = answered(daemon, device)?;
        wait_until("it is replaced", || {
            self.known[device] = self.processes()?.into_iter().find(|pid| !others.contains(pid));
            Ok(self.known[device].is_some())
        })?;
        wait_until("the device answers again", || Ok(answered(daemon, device)? > count))?;
        Ok(harmed.elapsed())
    }
}

/// The times until devices answered again.
#[derive(Default)]
struct Recoveries {
    killed: Vec<Duration>,
    stopped: Vec<Duration>,
}

impl Recoveries {
    /// Harms executors of a daemon in these rounds.
    fn measure(&mut self, daemon: &Daemon, rounds: Range<u32>, rng: &mut Rng) -> Result<()> {
        let mut executors = Executors { daemon, known: [None; DEVICES], losses: Default::default() };
        wait_until("all executors run", || Ok(executors.processes()?.len() == DEVICES))?;
        for round in rounds {
            let is_stopped = round % STOPPED == STOPPED - 1;
            let (signal, times) = match is_stopped {
                true => (Signal::STOP, &mut self.stopped),
                false => (Signal::KILL, &mut self.killed),
            };
            let pid = executors.next(rng)?;
            times.push(executors.harm(pid, signal).with_context(|| format!("round {round}"))?);
        }
        Ok(())
    }

    fn report(mut self, calls: u32) {
        let quantiles = |times: &mut Vec<Duration>| {
            times.sort_unstable();
            let at = |percent: usize| times.get(times.len().saturating_sub(1) * percent / 100);
            let ms = |percent| at(percent).map_or(f64::NAN, |time| time.as_secs_f64() * 1e3);
            format!("p50 {:.0}, p90 {:.0}, p99 {:.0}, longest {:.0}", ms(50), ms(90), ms(99), ms(100))
        };
        measured(&format!(
            "{calls} calls; ms until the device answers again: {} killed executors: {}; {} stopped ones: {}",
            self.killed.len(),
            quantiles(&mut self.killed),
            self.stopped.len(),
            quantiles(&mut self.stopped),
        ));
    }
}

fn rounds() -> u32 {
    let given = std::env::var("ATOLL_ROUNDS").ok().and_then(|text| text.parse().ok());
    given.unwrap_or(if full() { 1_000 } else { 3 })
}

fn start(folder: &Path) -> Result<Daemon> {
    let repository = folder.join("repository");
    std::fs::create_dir(&repository)?;
    let compile = CompileOptions { targets: vec![Target::NVIDIA], ..CompileOptions::default() };
    pack(&root().join("tests/functions/affine.toml"), &repository.join("affine.kg"), &compile, &Silent)?;
    stand_in::install(folder)?;
    let devices = (0..DEVICES).flat_map(|device| ["--device".into(), format!("cuda:{device}")]);
    let options: Vec<String> = devices.chain(["--placement".into(), "round-robin".into()]).collect();
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    Daemon::start_in(&repository, folder, &options, &stand_in_options(folder, "devices=4,units=1"))
}

/// Harms executors of a daemon under load. Returns the number of calls, all of which have one answer.
fn under_load(rounds: Range<u32>, rng: &mut Rng, recoveries: &mut Recoveries) -> Result<u32> {
    let folder = tempfile::tempdir()?;
    let daemon = start(folder.path())?;
    let (over, calls) = (AtomicBool::new(false), AtomicU32::new(0));
    let load = || -> Result<()> {
        while !over.load(Relaxed) {
            call(&daemon, calls.fetch_add(1, Relaxed))?;
        }
        Ok(())
    };
    std::thread::scope(|scope| -> Result<()> {
        let callers: Vec<_> = (0..CALLERS).map(|_| scope.spawn(load)).collect();
        let harmed = recoveries.measure(&daemon, rounds.clone(), rng);
        over.store(true, Relaxed);
        callers.into_iter().try_for_each(|caller| caller.join().expect("no panic"))?;
        harmed
    })?;
    let calls = calls.into_inner();
    let each = sum(|device| answered(&daemon, device))?;
    ensure!(each == f64::from(calls), "{calls} calls, answered by the devices: {each}");
    let (died, hung) = (sum(|device| lost(&daemon, device, "died"))?, sum(|device| lost(&daemon, device, "hung"))?);
    ensure!(died + hung == f64::from(rounds.end - rounds.start), "{rounds:?}: {died} died, {hung} hung");
    // The requests of a stopped executor wait until it is found to hang.
    let moved = sum(|device| metric(&daemon, &format!("atoll_device_moved_total{{device=\"cuda:{device}\"}}")))?;
    ensure!(hung == 0.0 || moved > 0.0, "no request went to another device");
    ensure!(metric(&daemon, "atoll_pool_waiting")? == 0.0, "nothing is left in the queue");
    Ok(calls)
}

#[test]
fn devices_that_are_killed_or_hang_lose_no_request_and_answer_none_twice() -> Result<()> {
    let (rounds, each) = (rounds(), LOSSES_MAX * DEVICES as u32);
    let (mut rng, mut recoveries, mut calls) = (Rng::new(seed()), Recoveries::default(), 0);
    for first in (0..rounds).step_by(each as usize) {
        calls += under_load(first..rounds.min(first + each), &mut rng, &mut recoveries)?;
    }
    recoveries.report(calls);
    Ok(())
}
