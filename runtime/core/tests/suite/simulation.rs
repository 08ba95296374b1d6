//! The scheduler driven by a small model of a device, with random launch durations, delays until
//! the device sees a raised epoch, delays of completions, cancellations and kernel failures. The
//! invariants are checked after every step.
//!
//! A failure prints the command that runs its seed alone. `ATOLL_TEST_FULL=1` simulates a hundred
//! million steps; `ATOLL_SEEDS=10` sets the seeds per scenario, for mutation testing.

use crate::model::{Aborts, Faults, Rate, Scenario, Totals, World};
use atoll_core::{POLICIES, PolicyEntry};
use std::panic::{AssertUnwindSafe, catch_unwind};

fn is_full() -> bool {
    std::env::var_os("ATOLL_TEST_FULL").is_some_and(|v| v == "1")
}

/// The seed in `ATOLL_SEED`.
fn seed_asked_for() -> Option<u64> {
    std::env::var("ATOLL_SEED")
        .ok()
        .map(|text| text.parse().unwrap_or_else(|_| panic!("ATOLL_SEED={text} is no number")))
}

/// Seeds per scenario: enough that every branch of the scheduler is taken many times, few enough to
/// take a few seconds.
fn seeds() -> u64 {
    let asked_for = std::env::var("ATOLL_SEEDS").ok().and_then(|text| text.parse().ok());
    asked_for.unwrap_or(if is_full() { 400 } else { 50 })
}

/// Runs one world; a failure is reported with the command that reproduces it.
fn run(test: &str, policy: &'static PolicyEntry, seed: u64, scenario: Scenario) -> Totals {
    let text = format!("{scenario:?}");
    let run = AssertUnwindSafe(|| World::new(policy, seed, scenario).run());
    catch_unwind(run).unwrap_or_else(|cause| {
        let cause = cause.downcast_ref::<String>().cloned().or(cause.downcast_ref::<&str>().map(|s| s.to_string()));
        let cause = cause.unwrap_or_default();
        panic!(
            "{cause}\npolicy {}, {text}\nagain: ATOLL_SEED={seed} cargo test -p atoll-core --test suite \
             simulation {test}",
            policy.name
        );
    })
}

/// Runs one scenario per seed and policy.
fn run_all(test: &str, make: impl Fn(u64) -> Scenario) -> Totals {
    let seeds = seed_asked_for().map_or(0..seeds(), |seed| seed..seed + 1);
    let mut totals = Totals::default();
    for policy in POLICIES {
        seeds.clone().for_each(|seed| totals += run(test, policy, seed, make(seed)));
    }
    totals
}

/// A count that is expected of 50 seeds, in proportion to the actual number of seeds.
fn share(count: u64) -> u64 {
    count * seeds() / 50
}

/// Checks that the runs covered what a test is about; not checked for a single seed.
fn is_enough(totals: &Totals, enough: impl Fn(&Totals) -> bool) {
    assert!(seed_asked_for().is_some() || enough(totals), "the scenarios cover too little: {totals:?}");
}

#[test]
fn whatever_goes_wrong() {
    let steps = seeds() * if is_full() { 200_000 } else { 60_000 };
    let mut totals = Totals::default();
    for seed in seed_asked_for().map_or(0..u64::MAX, |seed| seed..seed + 1) {
        let (policy, scenario) = Scenario::any(seed);
        totals += run("whatever_goes_wrong", policy, seed, scenario);
        if totals.steps >= steps {
            break;
        }
    }
    let t = &totals;
    let ends = [t.complete, t.cancelled, t.failed, t.expired, t.lost];
    let lanes = [t.closed_lanes, t.moved, t.moved_midway];
    let launches = [
        t.evicted_launches,
        t.repeated_launches,
        t.aborted_launches,
        t.padded_launches,
        t.stopped_blocks,
        t.slices,
        t.hung,
    ];
    is_enough(&totals, |_| ends.iter().chain(&launches).chain(&lanes).all(|&count| count > share(20)));
}

#[test]
fn every_task_ends_once_and_in_order() {
    let totals = run_all("every_task_ends", |_| Scenario::default());
    is_enough(&totals, |t| {
        t.complete > share(4_500) && t.evicted_launches > share(200) && t.padded_launches > share(80)
    });
}

#[test]
fn perturbed_tasks_still_run_every_block_once() {
    let totals = run_all("perturbed_tasks", |seed| Scenario { perturb: Some(seed), ..Scenario::default() });
    is_enough(&totals, |t| t.evicted_launches > share(5_000));
}

#[test]
fn cancellations_deadlines_and_failures_leave_nothing_behind() {
    let totals = run_all("cancellations", |_| Scenario::default().with_faults());
    is_enough(&totals, |t| t.cancelled > share(150) && t.failed > share(150) && t.expired > share(150));
}

#[test]
fn host_steps_may_determine_further_steps() {
    let scenario = |seed: u64| {
        let unfolding = Scenario {
            unfolding: true,
            perturb: seed.is_multiple_of(4).then_some(seed),
            paired_queues: seed.is_multiple_of(3),
            ..Scenario::default()
        };
        if seed.is_multiple_of(2) { unfolding.with_faults() } else { unfolding }
    };
    let totals = run_all("host_steps_may_determine", scenario);
    is_enough(&totals, |t| t.unfolded > share(2_000) && t.evicted_launches > share(1_000) && t.complete > share(3_000));
}

#[test]
fn lanes_open_and_close_without_losing_tasks() {
    let scenario = |seed: u64| {
        let queues = [4, 8, 8, 16][seed as usize % 4];
        let lanes = Scenario { lanes: true, queues, cold: seed.is_multiple_of(3), ..Scenario::default() };
        if seed.is_multiple_of(2) { lanes.with_faults() } else { lanes }
    };
    let totals = run_all("lanes_open_and_close", scenario);
    is_enough(&totals, |t| t.closed_lanes > share(500) && t.moved > share(500) && t.moved_midway > share(50));
}

#[test]
fn a_lane_is_closed_on_a_device_that_cannot_preempt() {
    let scenario =
        |_| Scenario { lanes: true, queues: 8, preempt_level: atoll_core::PreemptLevel::Block, ..Scenario::default() };
    let totals = run_all("a_lane_is_closed_on_a_device", scenario);
    is_enough(&totals, |t| t.evicted_launches == 0 && t.closed_lanes > share(500) && t.moved_midway > share(50));
}

#[test]
fn a_lost_device_ends_its_lanes_too() {
    let scenario = |seed| Scenario { lanes: true, queues: 8, lost_after: Some(100 + 7 * seed), ..Scenario::default() };
    let totals = run_all("a_lost_device_ends_its_lanes", scenario);
    is_enough(&totals, |t| t.lost > share(500) && t.closed_lanes > share(200));
}

#[test]
fn a_single_queue_serves_both_classes() {
    let totals = run_all("a_single_queue", |_| Scenario { queues: 1, ..Scenario::default() });
    is_enough(&totals, |t| t.evicted_launches > share(100));
}

#[test]
fn a_lost_device_ends_everything_at_once() {
    let totals = run_all("a_lost_device", |seed| Scenario { lost_after: Some(20 + seed), ..Scenario::default() });
    is_enough(&totals, |t| t.lost > share(500));
}

#[test]
fn a_device_that_only_stops_submitting_is_never_asked_for_more() {
    let scenario = |_| Scenario { preempt_level: atoll_core::PreemptLevel::Block, ..Scenario::default() };
    assert_eq!(run_all("a_device_that_only", scenario).evicted_launches, 0);
}

#[test]
fn stuck_launches_are_aborted_once_their_tasks_are_over() {
    let totals = run_all("stuck_launches", |_| Scenario::default().with_faults().with_stuck_kernels(20));
    is_enough(&totals, |t| t.aborted_launches > share(500) && t.complete > share(250));
}

#[test]
fn a_device_that_cannot_abort_is_never_asked_to() {
    let totals = run_all("a_device_that_cannot_abort", |_| Scenario {
        aborts: Aborts::Never,
        ..Scenario::default().with_faults()
    });
    is_enough(&totals, |t| t.cancelled > share(150));
    assert_eq!(totals.aborted_launches, 0);
}

#[test]
fn a_device_that_does_not_abort_counts_as_hung() {
    let scenario = |_| Scenario { aborts: Aborts::Broken, ..Scenario::default().with_faults().with_stuck_kernels(20) };
    let totals = run_all("a_device_that_does_not_abort", scenario);
    is_enough(&totals, |t| t.hung > share(150) && t.lost > share(150));
}

#[test]
fn resets_that_fail_only_cost_time() {
    let faults = Faults { failing_resets: Rate::one_in(2), late_completions: Rate::one_in(4), ..Faults::default() };
    let totals = run_all("resets_that_fail", |seed| Scenario { perturb: Some(seed), faults, ..Scenario::default() });
    is_enough(&totals, |t| t.complete > share(4_500) && t.evicted_launches > share(1_000));
}

#[test]
fn restartable_launches_run_again_from_their_restore_points() {
    let scenario =
        |seed, wrong_restore_points| Scenario { perturb: Some(seed), wrong_restore_points, ..Scenario::default() };
    let totals = run_all("restartable_launches", |seed| scenario(seed, false));
    is_enough(&totals, |t| t.repeated_launches > share(1_000));
    // The check is effective: with wrong restore points, it finds a task that computes from
    // incomplete inputs.
    let is_found_out =
        |seed| catch_unwind(AssertUnwindSafe(|| World::new(&POLICIES[0], seed, scenario(seed, true)).run())).is_err();
    assert!((0..50).any(is_found_out), "wrong restore points go undetected");
}

#[test]
fn the_two_branches_of_a_fork_are_independent() {
    let scenario = |seed: u64| {
        let paired_queues = Scenario {
            paired_queues: true,
            lanes: seed % 3 == 1,
            queues: [1, 2, 4, 8][seed as usize % 4],
            ..Scenario::default()
        };
        let paired_queues = Scenario { perturb: (seed % 4 < 2).then_some(seed), ..paired_queues };
        if seed.is_multiple_of(2) { paired_queues.with_faults() } else { paired_queues }
    };
    let totals = run_all("the_two_branches", scenario);
    is_enough(&totals, |t| {
        t.forks > share(2_000) && t.evicted_in_second_branches > share(200) && t.moved_midway > share(20)
    });
    // The check is effective: with dependent branches, it finds a task that computes from
    // incomplete inputs.
    let wrong = |seed| Scenario { wrong_forks: true, ..scenario(seed) };
    let is_found_out =
        |seed| catch_unwind(AssertUnwindSafe(|| World::new(&POLICIES[0], seed, wrong(seed)).run())).is_err();
    assert!((0..50).any(is_found_out), "dependent branches go undetected");
}

#[test]
fn unready_tasks_keep_their_place_and_block_no_other_task() {
    let scenario = |seed: u64| {
        let cold = Scenario { cold: true, ..Scenario::default() };
        if seed.is_multiple_of(2) { cold.with_faults() } else { cold }
    };
    let totals = run_all("unready_tasks", scenario);
    is_enough(&totals, |t| t.complete > share(3_000) && t.unready > share(500));
}
