//! The cost of one lazily evicted kernel. REEF reports 20 µs per kernel on its GPU; figures for
//! recent GPUs are not published.

use super::preemptible::{Preemptible, THREADS};
use crate::bench::{Bench, QueueTimer, repeats};
use crate::device::ProbeError;
use crate::report::{Findings, Row};
use std::sync::atomic::Ordering;

/// Launches in the queue at a time.
const DEPTH: u32 = 16;
const REPEATS: usize = 50;

/// Evicts queues of kernels of several sizes, and compares with empty kernels.
pub(crate) fn run(bench: &Bench, found: &mut Findings) -> Result<(), ProbeError> {
    let grids = [1, bench.compute_units, 8 * bench.compute_units, 64 * bench.compute_units, 65_536];
    let largest = grids.into_iter().max().unwrap_or(1);
    let kernels = Preemptible::new(&bench.context, largest, 1)?;
    let timer = QueueTimer::new(bench)?;
    let (empty, barrier) = (kernels.module.kernel("empty")?, kernels.module.kernel("barrier")?);
    kernels.epoch.word(0).store(1, Ordering::Release);
    for blocks in grids {
        let mut empty_us = Vec::new();
        let mut evicted_us = Vec::new();
        for _ in repeats(REPEATS) {
            empty_us.push(timer.micros_per_launch(DEPTH, |stream, _| empty.launch(stream, blocks, THREADS, &[]))?);
            evicted_us.push(
                timer.micros_per_launch(DEPTH, |stream, _| {
                    barrier.launch(stream, blocks, THREADS, &kernels.args(1, 0))
                })?,
            );
        }
        found.push(Row::samples(format!("{blocks} blocks"), "empty kernel", "us", &empty_us));
        found.push(Row::samples(format!("{blocks} blocks"), "evicted kernel", "us", &evicted_us));
    }
    for depth in [1, 4, 16, 256] {
        let mut total_us = Vec::new();
        for _ in repeats(REPEATS) {
            let each = timer.micros_per_launch(depth, |stream, _| {
                barrier.launch(stream, 8 * bench.compute_units, THREADS, &kernels.args(1, 0))
            })?;
            total_us.push(each * f64::from(depth));
        }
        found.push(Row::samples(
            format!("{depth} launches of {} blocks", 8 * bench.compute_units),
            "whole queue",
            "us",
            &total_us,
        ));
    }
    let evicted = if kernels.evicted.read()?.first() == Some(&1) { "set" } else { "NOT set" };
    found.push(Row::text("every launch", "evicted word", evicted));
    Ok(())
}
