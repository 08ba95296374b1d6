//! The scheduler driven by a small model of a device, with everything at random that is random in life: how long launches take, when the device sees a raised
//! epoch, when completions arrive, who cancels what, which kernel fails. After every step the invariants are checked.
//!
//! A failure prints its seed; `ATOLL_SIM_SEED=<seed> cargo test -p atoll-core --test simulation` runs that one alone.

mod model;

use atoll_core::POLICIES;
use model::{Aborts, Scenario, World};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Seeds per policy. Enough that every branch of the scheduler is taken many times, few enough for a few seconds.
const SEEDS: u64 = 100;

fn seeds() -> std::ops::Range<u64> {
    match std::env::var("ATOLL_SIM_SEED").ok().and_then(|text| text.parse().ok()) {
        Some(seed) => seed..seed + 1,
        None => 0..SEEDS,
    }
}

/// Runs one scenario per seed and policy, and adds the seed to whatever goes wrong.
fn run_all(make: impl Fn(u64) -> Scenario) -> model::Totals {
    let mut totals = model::Totals::default();
    for entry in POLICIES {
        for seed in seeds() {
            let run = AssertUnwindSafe(|| World::new(entry, seed, make(seed)).run());
            match catch_unwind(run) {
                Ok(run) => totals += run,
                Err(cause) => {
                    let text = cause.downcast_ref::<String>().cloned().or(cause.downcast_ref::<&str>().map(|s| s.to_string()));
                    panic!("policy {}, ATOLL_SIM_SEED={seed}: {}", entry.name, text.unwrap_or_default());
                }
            }
        }
    }
    totals
}

#[test]
fn every_task_ends_once_and_in_order() {
    let totals = run_all(|_| Scenario::default());
    assert!(totals.complete > 9_000 && totals.evicted_launches > 500, "the scenarios are too tame: {totals:?}");
    assert!(totals.padded_launches > 400, "nobody pads: {totals:?}");
}

#[test]
fn perturbed_tasks_still_run_every_block_once() {
    let totals = run_all(|seed| Scenario { perturb: Some(seed), ..Scenario::default() });
    assert!(totals.evicted_launches > 10_000, "the perturbation does nothing: {totals:?}");
}

#[test]
fn cancellations_deadlines_and_failures_leave_nothing_behind() {
    let totals = run_all(|_| Scenario { mishaps: true, ..Scenario::default() });
    assert!(totals.cancelled > 300 && totals.failed > 300 && totals.expired > 300, "the scenarios are too tame: {totals:?}");
}

#[test]
fn a_single_queue_serves_both_classes() {
    let totals = run_all(|_| Scenario { queues: 1, ..Scenario::default() });
    assert!(totals.evicted_launches > 200, "the scenarios are too tame: {totals:?}");
}

#[test]
fn a_lost_device_ends_everything_at_once() {
    let totals = run_all(|seed| Scenario { lost_after: Some(20 + seed), ..Scenario::default() });
    assert!(totals.lost > 1_000, "the device was lost too late: {totals:?}");
}

#[test]
fn a_device_that_only_stops_submitting_is_never_asked_for_more() {
    let scenario = |_| Scenario { preempt_level: atoll_core::PreemptLevel::Block, ..Scenario::default() };
    assert_eq!(run_all(scenario).evicted_launches, 0);
}

#[test]
fn launches_that_never_end_are_ended_once_nobody_wants_them() {
    let totals = run_all(|_| Scenario { mishaps: true, endless: Some(20), ..Scenario::default() });
    assert!(totals.aborted_launches > 1_000 && totals.complete > 500, "the scenarios are too tame: {totals:?}");
}

#[test]
fn a_device_that_cannot_abort_is_never_asked_to() {
    let totals = run_all(|_| Scenario { mishaps: true, aborts: Aborts::Never, ..Scenario::default() });
    assert!(totals.cancelled > 300 && totals.aborted_launches == 0, "{totals:?}");
}

#[test]
fn a_device_that_does_not_abort_counts_as_hung() {
    let totals = run_all(|_| Scenario { mishaps: true, endless: Some(20), aborts: Aborts::Broken, ..Scenario::default() });
    assert!(totals.hung > 300 && totals.lost > 300, "the scenarios are too tame: {totals:?}");
}

#[test]
fn tasks_that_cannot_start_keep_their_place_and_stand_in_nobodys_way() {
    let totals = run_all(|seed| Scenario { cold: true, mishaps: seed % 2 == 0, ..Scenario::default() });
    assert!(totals.complete > 6_000 && totals.unready > 1_000, "the scenarios are too tame: {totals:?}");
}
