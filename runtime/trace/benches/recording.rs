//! The cost of writing a record, with and without reading the clock.
//!
//! `cargo bench -p atoll-trace --bench recording`

#![expect(clippy::print_stdout, reason = "a bench prints its figures")]

use atoll_core::{Epoch, LaunchId, Nanos, QueueId, TaskId};
use atoll_trace::{EventKind, Record, Ring};
use std::hint::black_box;
use std::time::Instant;

const TIMES: u64 = 10_000_000;
const ROUNDS: usize = 9;

fn record(at: Nanos, number: u64) -> Record {
    let kind = EventKind::Issued { launch: LaunchId(number), node: 1, queue: QueueId(1), epoch: Epoch(0) };
    Record { at, task: TaskId(number / 64), function: 3, kind }
}

/// Nanoseconds per call of `once`, in the round with the least interference.
fn best(mut once: impl FnMut(u64)) -> f64 {
    let round = |_| {
        let begin = Instant::now();
        (0..TIMES).for_each(&mut once);
        begin.elapsed().as_nanos() as f64 / TIMES as f64
    };
    (0..ROUNDS).map(round).fold(f64::INFINITY, f64::min)
}

fn main() {
    let (mut ring, start) = (Ring::new(1 << 16), Instant::now());
    let known = best(|number| black_box(&mut ring).push(record(Nanos(number), number)));
    let read = best(|number| black_box(&mut ring).push(record(Nanos(start.elapsed().as_nanos() as u64), number)));
    println!("a record: {known:.1} ns; and the time for it: {read:.1} ns");
}
