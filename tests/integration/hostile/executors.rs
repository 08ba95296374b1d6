//! Native code that takes memory, floods the channel, makes system calls, and changes the rings and
//! counters that its executor shares with the daemon.

use super::{Intruder, beside, pack_hostile, rights, start};
use crate::cancel::metric;
use crate::executors::wait_until;
use anyhow::{Context, Result, ensure};
use atoll_device::cpu_time::process_cpu_time;
use atoll_device::cpus;
use atoll_hostile_executor::Attack;
use atoll_tests::{full, measured, seed};
use std::time::{Duration, Instant};

/// System calls of x86-64 Linux.
const MMAP: u64 = 9;
const CLONE: u64 = 56;
const KILL: u64 = 62;
const GETPPID: u64 = 110;
const MEMFD_CREATE: u64 = 319;

const EPERM: u64 = 1;
const ENOMEM: u64 = 12;

fn system_call(number: u64, arguments: [u64; 6]) -> Attack {
    Attack::Call { number, arguments }
}

#[test]
fn memory_beyond_the_quota_costs_only_the_executor_that_takes_it() -> Result<()> {
    let setup = start(&[], &rights(&["hoarder", "toucher", "sharer"]))?;
    let bundle = pack_hostile(&setup.path(""))?;
    beside("memory", &setup, |others| {
        // Private memory is limited before it is touched: 2 GiB, and 256 MiB for each compute unit.
        let mut hoarder = Intruder::new(&setup, &bundle, "hoarder")?;
        let out = hoarder.run(&Attack::Hoard { part: 64 << 20 })?.ok().context("it is refused, not killed")?;
        let most = (2 << 30) + cpus::allowed().len() as u64 * (256 << 20);
        ensure!(out[1] == ENOMEM && out[0] <= most, "it got {} bytes of private memory, error {}", out[0], out[1]);
        // Shared memory, which no limit counts, can be neither mapped nor created.
        let mut sharer = Intruder::new(&setup, &bundle, "sharer")?;
        let shared = system_call(MMAP, [0, 64 << 20, 3, 0x21, u64::MAX, 0]);
        ensure!(sharer.run(&shared)?.ok().is_some_and(|out| out[0] == EPERM.wrapping_neg()), "shared memory");
        let cause = ["made a forbidden system call"];
        sharer.is_ended(&setup, &system_call(MEMFD_CREATE, [0; 6]), "protocol_violation", &cause)?;
        // Device memory that was not granted, in windows: little of it is ever mapped.
        let mut toucher = Intruder::new(&setup, &bundle, "toucher")?;
        let touch = Attack::Windows { window: 2 << 20, bytes: 96 << 20 };
        let cause = ["MiB of device memory, and its work holds at most"];
        toucher.is_ended(&setup, &touch, "protocol_violation", &cause)?;
        others.go_on(5)
    })
}

#[test]
fn messages_that_nothing_asked_for_end_their_executor() -> Result<()> {
    let setup = start(&[], &rights(&["teller", "flooder", "babbler", "sender", "ringer"]))?;
    let bundle = pack_hostile(&setup.path(""))?;
    let report = r#"{"Report":{"launch":7,"fault":null,"printed":"x","printed_lost_bytes":0,"is_last":true}}"#;
    let send = |times, text: &str| Attack::Send { times, text: text.to_owned() };
    beside("messages", &setup, |others| {
        for (tenant, attack, cause) in [
            ("teller", send(1, "\"Shown\""), "it answered a mapping that was not requested"),
            ("flooder", send(1_000_000, report), "parts of reports for"),
            ("babbler", send(1, "what?"), "an invalid message"),
            ("sender", Attack::SendFile { text: "\"Shown\"".into() }, "it sent descriptors"),
        ] {
            let mut intruder = Intruder::new(&setup, &bundle, tenant)?;
            intruder.is_ended(&setup, &attack, "protocol_violation", &[cause])?;
        }
        // Rings of the bell without a completion. A slow daemon may see few of them, because rings
        // add up until it looks.
        let mut ringer = Intruder::new(&setup, &bundle, "ringer")?;
        let times = if full() { 20_000_000 } else { 200_000 };
        if let Err(message) = ringer.run(&Attack::Ring { times })? {
            let causes = ["it rings without completions", "longer than its limit"];
            ensure!(causes.iter().any(|cause| message.contains(cause)), "{message}");
        }
        others.go_on(5)
    })
}

#[test]
fn forbidden_calls_and_signals_reach_no_other_process() -> Result<()> {
    let setup = start(&[], &rights(&["forker", "killer", "ender"]))?;
    let bundle = pack_hostile(&setup.path(""))?;
    let daemon = u64::from(setup.daemon.process().id());
    beside("system calls and signals", &setup, |others| {
        // A thread: CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD.
        let thread = system_call(CLONE, [0x10f00, 0, 0, 0, 0, 0]);
        for (tenant, attack) in [("forker", thread), ("killer", system_call(KILL, [daemon, 9, 0, 0, 0, 0]))] {
            let mut intruder = Intruder::new(&setup, &bundle, tenant)?;
            intruder.is_ended(&setup, &attack, "protocol_violation", &["made a forbidden system call"])?;
        }
        let mut ender = Intruder::new(&setup, &bundle, "ender")?;
        let end = system_call(231, [0; 6]);
        ender.is_ended(&setup, &end, "died", &["ended by itself, with status 0"])?;
        ender.is_ended(&setup, &system_call(GETPPID, [0; 6]), "protocol_violation", &["forbidden system call"])?;
        others.go_on(5)
    })
}

#[test]
fn words_that_are_scribbled_on_are_refused_and_not_believed() -> Result<()> {
    let setup = start(&["--time-limit", "2"], &rights(&["claimer", "scribbler", "vandal"]))?;
    let bundle = pack_hostile(&setup.path(""))?;
    let began = Instant::now();
    beside("scribbles", &setup, |others| {
        let mut claimer = Intruder::new(&setup, &bundle, "claimer")?;
        let busy = Attack::Store { at: claimer.layout.busy_at, value: u64::MAX / 2 };
        claimer.is_ended(&setup, &busy, "protocol_violation", &["of work, and at most"])?;
        // ATOLL_SEED gives a full run other seeds every day.
        let rounds = if full() { 50 } else { 3 };
        for (tenant, only_rings) in [("scribbler", true), ("vandal", false)] {
            let mut intruder = Intruder::new(&setup, &bundle, tenant)?;
            let range = if only_rings { intruder.layout.rings() } else { 0..intruder.layout.bytes };
            for round in 0..rounds {
                let attack = Attack::Scribble { seed: seed() * 1000 + round, words: 200, range: range.clone() };
                // The rings may still work, or the tenant is unavailable after many losses.
                let _ = intruder.run(&attack)?;
                others.go_on(1)?;
            }
        }
        // No counter of the daemon is higher than what is possible.
        let possible = began.elapsed().as_secs_f64() + 60.0;
        for name in ["atoll_device_busy_seconds_total", "atoll_device_seconds_total"] {
            let Ok(seconds) = metric(&setup.daemon, name) else { continue };
            ensure!(seconds <= possible * cpus::allowed().len() as f64, "{name} is {seconds}");
        }
        let busy = metric(&setup.daemon, "atoll_device_busy_seconds_total")?;
        ensure!(busy >= 0.0, "{busy}");
        others.go_on(5)
    })
}

#[test]
fn a_thread_that_computes_behind_a_forged_completion_is_ended() -> Result<()> {
    let setup = start(&[], &rights(&["forger"]))?;
    let bundle = pack_hostile(&setup.path(""))?;
    beside("forged completions", &setup, |others| {
        let mut forger = Intruder::new(&setup, &bundle, "forger")?;
        let before = setup.client_of("forger")?.processes()?.executors;
        let pid = before.first().and_then(|executor| executor.pid).context("its process")?;
        // The call succeeds, because its completion was forged. The thread keeps computing, and is
        // detected even if it gets little of a CPU.
        let out = forger.run(&Attack::Forge { time: Duration::from_secs(600) })?;
        ensure!(out.is_ok(), "the forged completion was not taken: {out:?}");
        let mut stolen = Duration::ZERO;
        while let Some(used) = process_cpu_time(pid) {
            stolen = used;
            ensure!(stolen < Duration::from_secs(30), "it computed for {stolen:?}");
            others.go_on(1)?;
        }
        measured(&format!("a forged completion: the thread computed for {stolen:.1?}"));
        let log = std::fs::read_to_string(setup.path(crate::serve::LOG))?;
        ensure!(log.contains("without a launch"), "{log}");
        ensure!(metric(&setup.daemon, "atoll_executor_losses_total{cause=\"protocol_violation\"}")? >= 1.0);
        // On the host device the kernel's count of CPU time is the bill; it is divided among the
        // functions of the tenant when one of them has run.
        ensure!(forger.run(&Attack::Nothing)?.is_ok(), "a new executor runs its code");
        wait_until("it is billed", || {
            let usage = setup.json(&["usage", "--tenant", "forger"])?;
            let rows = usage["rows"].as_array().context("rows")?;
            let billed: f64 = rows.iter().filter_map(|row| row["billed_s"].as_f64()).sum();
            // A second of the device is a second of all its compute units.
            let units = usage["compute_units"].as_f64().context("compute_units")?;
            Ok(billed * units >= stolen.as_secs_f64() - 0.5)
        })?;
        others.go_on(5)
    })
}
