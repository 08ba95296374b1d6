//! The latency of a real-time launch on a host device whose compute units are all busy, by the
//! number of best-effort launches that are queued.
//!
//! ```text
//! cargo run --release -p atoll-executor --example preempt_latency \
//!     [--executor] [--finish] [compute units] [block µs] [rounds]
//! ```
//!
//! With `--executor` the device runs in a process of its own; with `--finish` running blocks may
//! not be interrupted. Times come from the time stamp counter, read by this program and by the
//! kernels. Parts of `first block`: `submit` is raising the epoch and submitting; `drain` lasts
//! until the best-effort block ended on the compute unit that then ran the first real-time block;
//! `launch` is the time from there to that block. `evicted` lasts until the last queued best-effort
//! launch has exited.
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
    use crate::common::rig::{Kernel, Launch, Param, Preempt, Rig};
    use crate::common::{arguments, cycles_per_us, now, place, serve_if_executor, start};
    use atoll_core::{DeviceOffset, Epoch};
    use atoll_device::LaunchStatus;
    use atoll_device_host::HostConfig;
    use std::time::Duration;

    const QUEUED: [u32; 4] = [10, 100, 1000, 10_000];
    const BLOCKS_PER_LAUNCH: u32 = 64;

    /// One round, in cycles.
    struct Sample {
        submit: u64,
        drain: u64,
        launch: u64,
        first_block: u64,
        evicted: u64,
    }

    struct Bench {
        rig: Rig,
        compute_units: u32,
        block_cycles: u64,
        stamps: DeviceOffset,
        progress: DeviceOffset,
        preempt: Preempt,
        may_run_again: bool,
    }

    pub(crate) fn main() {
        serve_if_executor();
        let arguments = arguments();
        let default = HostConfig::default();
        let compute_units = arguments.first().copied().unwrap_or(default.compute_units);
        let block_us = arguments.get(1).copied().unwrap_or(20);
        let rounds = arguments.get(2).copied().unwrap_or(200);
        let config = HostConfig { compute_units, queue_capacity: 16_384, memory_bytes: 64 << 20, ..default };
        let per_us = cycles_per_us();
        let mut bench = Bench::new(config, (f64::from(block_us) * per_us) as u64);

        println!("{}, {compute_units} compute units, blocks of {block_us} µs, {rounds} rounds; µs, p50 / p99", place());
        println!(
            "{:>7} {:>15} {:>15} {:>15} {:>15} {:>17}",
            "queued", "submit", "drain", "launch", "first block", "evicted"
        );
        for queued in QUEUED {
            let samples: Vec<Sample> =
                (0..).filter_map(|round| bench.round(queued, round)).take(rounds as usize).collect();
            let column = |part: fn(&Sample) -> u64| percentiles(samples.iter().map(part).collect(), per_us);
            println!(
                "{queued:>7} {:>15} {:>15} {:>15} {:>15} {:>17}",
                column(|s| s.submit),
                column(|s| s.drain),
                column(|s| s.launch),
                column(|s| s.first_block),
                column(|s| s.evicted)
            );
        }
    }

    fn percentiles(mut cycles: Vec<u64>, per_us: f64) -> String {
        cycles.sort_unstable();
        let at = |percent: usize| cycles[(cycles.len() - 1) * percent / 100] as f64 / per_us;
        format!("{:.1} / {:.1}", at(50), at(99))
    }

    impl Bench {
        fn new(config: HostConfig, block_cycles: u64) -> Bench {
            let compute_units = config.compute_units;
            let mut rig = start(config);
            let stamps = rig.alloc(u64::from(compute_units) * 16);
            let progress = rig.alloc(u64::from(QUEUED[3] * BLOCKS_PER_LAUNCH));
            let preempt = rig.preempt(0);
            let may_run_again = !std::env::args().any(|argument| argument == "--finish");
            Bench { rig, compute_units, block_cycles, stamps, progress, preempt, may_run_again }
        }

        /// One preemption; `None` if other programs kept a compute unit from its CPU, so that not
        /// all were busy.
        fn round(&mut self, queued: u32, round: u32) -> Option<Sample> {
            self.fill_queue(queued);
            let units = self.compute_units;
            std::thread::sleep(Duration::from_micros(500));
            let all_busy = self.rig.u64s(self.stamps, units as usize * 2).chunks(2).all(|unit| unit[0] != 0);
            // Somewhere inside a block.
            std::thread::sleep(Duration::from_micros(300 + u64::from(round * 7 % 20)));
            let urgent = Launch::new(Kernel::StampFirst, units, vec![Param::At(self.stamps), Param::U64(0)]);
            let raised = now();
            self.preempt.epoch = self.preempt.epoch.next();
            self.rig.device.store_epoch(self.preempt.epoch_word, self.preempt.epoch);
            let urgent = self.rig.submit(0, &urgent).expect("room");
            let submitted = now();
            let mut evicted = 0;
            for _ in 0..=queued {
                let completion = self.rig.wait();
                assert_ne!(completion.status, LaunchStatus::Failed);
                if completion.launch != urgent {
                    evicted = now();
                }
            }
            let stamps = self.rig.u64s(self.stamps, units as usize * 2);
            let (drained, began) = stamps
                .chunks(2)
                .filter(|s| s[1] != 0)
                .map(|s| (s[0], s[1]))
                .min_by_key(|s| s.1)
                .expect("a real-time block");
            all_busy.then(|| Sample {
                submit: submitted - raised,
                drain: drained.saturating_sub(raised),
                launch: began.saturating_sub(drained.max(raised)),
                first_block: began.saturating_sub(raised),
                evicted: evicted.saturating_sub(raised),
            })
        }

        /// Makes all compute units busy, with `queued` launches behind the running one.
        fn fill_queue(&mut self, queued: u32) {
            self.rig.device.fill(self.stamps, 0, u64::from(self.compute_units) * 16).expect("memory");
            self.rig.device.fill(self.preempt.evicted_word, 0, 4).expect("memory");
            self.rig.device.fill(self.progress, 0, u64::from(queued * BLOCKS_PER_LAUNCH)).expect("memory");
            for index in 0..queued {
                let progress = DeviceOffset(self.progress.0 + u64::from(index * BLOCKS_PER_LAUNCH));
                let preempt = Preempt { progress, epoch: Epoch(self.preempt.epoch.0), ..self.preempt };
                let params = vec![Param::At(self.stamps), Param::U64(self.block_cycles)];
                let launch = Launch::new(Kernel::StampLastPreemptible, BLOCKS_PER_LAUNCH, params).preemptible(preempt);
                let launch = Launch { may_run_again: self.may_run_again, ..launch };
                self.rig.submit(1, &launch).expect("room");
            }
        }
    }
}
