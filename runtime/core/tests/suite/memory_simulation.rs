//! Memory decisions driven by a small model of an engine and a device, with random arrivals,
//! unloads, cancellations, refusals and losses. The invariants are checked after every step.
//!
//! A failure prints the commit, and the command that runs its seed alone. `ATOLL_TEST_FULL=1`
//! simulates a million steps, in longer runs; `ATOLL_SEEDS=10` sets the number of seeds,
//! `ATOLL_STEPS=100` the steps of each.

use crate::memory_model::{Totals, World};
use std::panic::{AssertUnwindSafe, catch_unwind};

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{variable}={text} is no number")))
}

/// Runs one world; a failure is reported with the command that reproduces it.
fn run(seed: u64, steps: u64) -> Totals {
    catch_unwind(AssertUnwindSafe(|| World::new(seed).run(steps))).unwrap_or_else(|cause| {
        let cause = cause.downcast_ref::<String>().cloned().or(cause.downcast_ref::<&str>().map(|s| (*s).to_string()));
        let commit = std::process::Command::new("git").args(["rev-parse", "--short", "HEAD"]).output();
        let commit = commit.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default();
        panic!(
            "{}\nagain, at commit {commit}: ATOLL_SEED={seed} cargo test -p atoll-core --test suite memory_simulation",
            cause.unwrap_or_default()
        );
    })
}

#[test]
fn bytes_add_up_and_every_invocation_is_served() {
    let is_full = std::env::var_os("ATOLL_TEST_FULL").is_some_and(|value| value == "1");
    let steps = number("ATOLL_STEPS").unwrap_or(if is_full { 10_000 } else { 2_500 });
    let seeds = match number("ATOLL_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("ATOLL_SEEDS").unwrap_or(if is_full { 100 } else { 40 }),
    };
    let mut totals = Totals::default();
    for seed in seeds.clone() {
        totals += run(seed, steps);
    }
    let t = totals;
    let counts = [
        t.completed,
        t.cold,
        t.reclaimed,
        t.made_cold,
        t.reserve_failed,
        t.clear_failed,
        t.free_failed,
        t.write_failed,
        t.unmapped,
        t.lost,
        t.reused,
        t.refused,
        t.over_quota,
        t.device_lost,
        t.resumed,
        t.expired,
        t.saved,
        t.released,
    ];
    assert!(
        seeds.end - seeds.start < 40 || counts.iter().all(|&count| count >= 10),
        "the scenarios cover too little: {t:?}"
    );
}

const RECORDED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/suite/memory_model/recorded.txt");

/// The invariants leave many decisions open; this test fixes all of them. `ATOLL_RECORD=1` records
/// them again after an intended change of behaviour, which the commit has to explain. Renamed
/// actions are mapped to their recorded names (`RECORDED_WORDS`).
#[test]
fn decisions_are_the_recorded_ones() {
    let lines: Vec<String> = (0..60).map(|seed| format!("{seed} {:016x}", World::new(seed).recorded(1_500))).collect();
    if std::env::var_os("ATOLL_RECORD").is_some() {
        return std::fs::write(RECORDED, lines.join("\n") + "\n").expect("the file can be written");
    }
    let recorded = std::fs::read_to_string(RECORDED).expect("the recording is there");
    for (now, then) in lines.iter().zip(recorded.lines()) {
        assert_eq!(now, then, "the digest of decisions differs from the recorded one, for this seed");
    }
    assert_eq!(lines.len(), recorded.lines().count());
}
