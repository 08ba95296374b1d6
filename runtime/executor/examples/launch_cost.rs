//! The cost of a launch on a host device beyond the time of its blocks, for streams of launches as
//! an inference makes them.
//!
//! ```text
//! cargo run --release -p atoll-executor --example launch_cost [--executor] [compute units] [spin µs while others run]
//! ```
//!
//! With `--executor` the device runs in a process of its own. The stream is kept full, as by the
//! engine. `work` is the number of blocks times the block time, divided by the compute units;
//! `cost` is the time of a launch beyond that.
#![cfg_attr(target_arch = "x86_64", expect(clippy::print_stdout, reason = "it prints a table"))]

#[cfg(not(target_arch = "x86_64"))]
fn main() {}

#[cfg(target_arch = "x86_64")]
fn main() {
    measure::main();
}

#[cfg(target_arch = "x86_64")]
mod common;

#[cfg(target_arch = "x86_64")]
mod measure {
    use crate::common::rig::{Launch, Rig};
    use crate::common::{arguments, cycles_per_us, place, serve_if_executor, start};
    use atoll_device_host::HostConfig;
    use std::time::Instant;

    /// Number of blocks of a launch, and the time of one in nanoseconds.
    const SHAPES: [(u32, u64); 7] = [(1, 0), (2, 0), (2, 5_000), (8, 5_000), (8, 20_000), (64, 2_000), (4096, 100)];

    pub(crate) fn main() {
        serve_if_executor();
        let arguments = arguments();
        let default = HostConfig::default();
        let compute_units = arguments.first().copied().unwrap_or(default.compute_units);
        let busy_spin_ns = arguments.get(1).map_or(default.busy_spin_ns, |us| u64::from(*us) * 1000);
        let per_ns = cycles_per_us() / 1000.0;
        let config = HostConfig { compute_units, busy_spin_ns, memory_bytes: 64 << 20, ..default };
        let mut rig = start(config);
        let counts = rig.alloc(4096 * 4);

        println!(
            "{}, {compute_units} compute units, {busy_spin_ns} ns of spinning while others run; \
             µs per launch, best of 5",
            place()
        );
        println!("{:>8} {:>12} {:>10} {:>10} {:>10}", "blocks", "block", "work", "took", "cost");
        for (blocks, block_ns) in SHAPES {
            let launch = Launch::spin(blocks, counts, (block_ns as f64 * per_ns) as u64);
            let work_us = f64::from(blocks.div_ceil(compute_units)) * block_ns as f64 / 1000.0;
            let launches = (50_000.0 / (work_us + 2.0)) as u32;
            let took_us = (0..5).map(|_| stream(&mut rig, &launch, launches)).fold(f64::INFINITY, f64::min);
            println!(
                "{blocks:>8} {:>12} {work_us:>10.1} {took_us:>10.1} {:>10.1}",
                block_ns as f64 / 1000.0,
                took_us - work_us
            );
        }
    }

    /// Microseconds per launch of a stream that is kept full.
    fn stream(rig: &mut Rig, launch: &Launch, launches: u32) -> f64 {
        let start = Instant::now();
        let mut submitted = 0;
        for _ in 0..launches {
            while submitted < launches && rig.submit(1, launch).is_ok() {
                submitted += 1;
            }
            rig.wait();
        }
        start.elapsed().as_nanos() as f64 / 1000.0 / f64::from(launches)
    }
}
