//! One of four devices is killed again and again, under load.
//!
//! `ATOLL_ROUNDS` is the number of kills. A device that loses several executors within a minute is
//! started again after a pause, so a round takes about four seconds.

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
use std::collections::VecDeque;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

const DEVICES: usize = 4;
const CALLERS: u32 = 6;
/// Kills of one device within a minute. After five, the daemon gives the device up for a while.
const LOSSES_PER_MINUTE: usize = 4;
const MINUTE: Duration = Duration::from_secs(61);

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

/// Executors of a device that died.
fn died(daemon: &Daemon, device: usize) -> Result<f64> {
    metric(daemon, &format!("atoll_executor_losses_total{{cause=\"died\",device=\"cuda:{device}\"}}"))
}

/// The executors. The test learns which device a process belongs to when it has killed one of the
/// device.
struct Executors<'a> {
    daemon: &'a Daemon,
    known: [Option<i32>; DEVICES],
    losses: [VecDeque<Instant>; DEVICES],
}

impl Executors<'_> {
    fn processes(&self) -> Result<Vec<i32>> {
        children(self.daemon.process().id() as i32)
    }

    /// Picks a process whose device may lose an executor, and waits until there is one.
    fn next(&mut self, rng: &mut Rng) -> Result<i32> {
        loop {
            self.losses.iter_mut().for_each(|losses| losses.retain(|loss| loss.elapsed() < MINUTE));
            let is_spent = |device: usize| self.losses[device].len() >= LOSSES_PER_MINUTE;
            let spent: Vec<i32> = (0..DEVICES).filter(|&at| is_spent(at)).filter_map(|at| self.known[at]).collect();
            let possible: Vec<i32> = self.processes()?.into_iter().filter(|pid| !spent.contains(pid)).collect();
            if !possible.is_empty() {
                return Ok(possible[rng.below(possible.len() as u64) as usize]);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Kills a process, and returns the time until its device answers again.
    fn kill(&mut self, pid: i32) -> Result<Duration> {
        let daemon = self.daemon;
        let before = (0..DEVICES).map(|device| died(daemon, device)).collect::<Result<Vec<f64>>>()?;
        let others = self.processes()?;
        let killed = Instant::now();
        kill_process(Pid::from_raw(pid).context("a process has a number")?, Signal::KILL)?;
        let mut device = None;
        wait_until("a device has lost it", || {
            for (at, before) in before.iter().enumerate() {
                device = device.or((died(daemon, at)? > *before).then_some(at));
            }
            Ok(device.is_some())
        })?;
        let device = device.context("a device has lost it")?;
        self.losses[device].push_back(killed);
        let count = answered(daemon, device)?;
        wait_until("it is replaced", || {
            self.known[device] = self.processes()?.into_iter().find(|pid| !others.contains(pid));
            Ok(self.known[device].is_some())
        })?;
        wait_until("the device answers again", || Ok(answered(daemon, device)? > count))?;
        Ok(killed.elapsed())
    }
}

/// Kills executors, and returns the times until their devices answered again.
fn kill(daemon: &Daemon, rounds: u32) -> Result<Vec<Duration>> {
    let mut rng = Rng::new(seed());
    let mut executors = Executors { daemon, known: [None; DEVICES], losses: Default::default() };
    wait_until("all executors run", || Ok(executors.processes()?.len() == DEVICES))?;
    let one = |round| {
        let pid = executors.next(&mut rng)?;
        executors.kill(pid).with_context(|| format!("round {round}"))
    };
    (0..rounds).map(one).collect()
}

fn rounds() -> u32 {
    let given = std::env::var("ATOLL_ROUNDS").ok().and_then(|text| text.parse().ok());
    given.unwrap_or(if full() { 60 } else { 6 })
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

#[test]
fn killed_devices_lose_no_request_and_answer_none_twice() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let daemon = start(folder.path())?;
    let (over, calls) = (AtomicBool::new(false), AtomicU32::new(0));
    let load = || -> Result<()> {
        while !over.load(Relaxed) {
            call(&daemon, calls.fetch_add(1, Relaxed))?;
        }
        Ok(())
    };
    let rounds = rounds();
    let mut recoveries = std::thread::scope(|scope| -> Result<Vec<Duration>> {
        let callers: Vec<_> = (0..CALLERS).map(|_| scope.spawn(load)).collect();
        let recoveries = kill(&daemon, rounds);
        over.store(true, Relaxed);
        callers.into_iter().try_for_each(|caller| caller.join().expect("no panic"))?;
        recoveries
    })?;
    let calls = f64::from(calls.into_inner());
    let each = (0..DEVICES).map(|device| answered(&daemon, device)).collect::<Result<Vec<f64>>>()?;
    ensure!(each.iter().sum::<f64>() == calls, "{calls} calls, answered by the devices: {each:?}");
    let died = (0..DEVICES).map(|device| died(&daemon, device)).sum::<Result<f64>>()?;
    ensure!(died == f64::from(rounds), "{rounds} executors were killed, {died} died");
    ensure!(metric(&daemon, "atoll_pool_waiting")? == 0.0, "nothing is left in the queue");
    recoveries.sort_unstable();
    let quantile = |percent: usize| recoveries[(recoveries.len() - 1) * percent / 100].as_secs_f64() * 1e3;
    measured(&format!(
        "{rounds} kills, {calls} calls; ms until the device answers again: p50 {:.0}, p90 {:.0}, p99 {:.0}, \
         longest {:.0}",
        quantile(50),
        quantile(90),
        quantile(99),
        quantile(100)
    ));
    Ok(())
}
