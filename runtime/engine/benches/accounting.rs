//! The cost of billing: of adding a launch to an invocation's usage, and of adding that usage to an
//! account.
//!
//! `cargo bench -p atoll-engine --bench accounting`

#![expect(clippy::print_stdout, reason = "a bench prints its figures")]

use atoll_core::LaunchId;
use atoll_device::{Completion, LaunchStatus};
use atoll_engine::Usage;
use std::hint::black_box;
use std::time::Instant;

const TIMES: u32 = 10_000_000;
const ROUNDS: usize = 9;

fn launch(index: u64) -> Completion {
    let status = if index % 8 == 7 { LaunchStatus::Evicted } else { LaunchStatus::Complete };
    Completion { started_ns: 1, ended_ns: index, busy_ns: index, ..Completion::unrun(LaunchId(index), status) }
}

/// Nanoseconds per call, of the round with the least interference.
fn best(mut once: impl FnMut(u32)) -> f64 {
    let round = |_| {
        let begin = Instant::now();
        (0..TIMES).for_each(&mut once);
        begin.elapsed().as_nanos() as f64 / f64::from(TIMES)
    };
    (0..ROUNDS).map(round).fold(f64::INFINITY, f64::min)
}

fn main() {
    let launches: Vec<Completion> = (0..1024).map(launch).collect();
    let mut usage = Usage::default();
    let bill =
        best(|index| black_box(&mut usage).add_launch(black_box(&launches[index as usize % launches.len()]), 1 << 40));
    let (mut account, nothing) = (Usage::default(), Usage::default());
    let add = best(|_| *black_box(&mut account) += black_box(&nothing));
    println!("adding a launch to a usage: {bill:.1} ns; adding a usage to an account: {add:.1} ns");
}
