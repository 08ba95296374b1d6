//! The cost of reading the epoch word for a block, by the location of the word.

use crate::bench::{Bench, QueueTimer, repeats};
use crate::device::{DeviceWords, ProbeError};
use crate::report::{Findings, Row};
use crate::stats::median;
use atoll_cuda::{Arg, FLAG_PTX, HostWords, Module};

const READ_COST_PTX: &str = include_str!("../../kernels/read_cost.ptx");

const REPEATS: usize = 40;
/// Dependent reads of one thread.
const CHAIN_READS: u32 = 2_000;
/// Launches in the queue at a time.
const DEPTH: u32 = 4;
const THREADS: u32 = 128;

/// Measures the latency of a read, and its share of the time of a block in full grids.
pub(crate) fn run(bench: &Bench, found: &mut Findings) -> Result<(), ProbeError> {
    let context = &bench.context;
    let module = Module::load(context, READ_COST_PTX.as_bytes())?;
    let (host, device, sink) =
        (HostWords::new(context, 1)?, DeviceWords::new(context, 1)?, DeviceWords::new(context, 2)?);
    let stream = bench.stream(false)?;
    let places = [("word in mapped host memory", host.address()), ("word in device memory", device.address())];

    let chain = Module::load(context, FLAG_PTX.as_bytes())?.kernel("read_chain")?;
    for (place, address) in places {
        let mut samples = Vec::new();
        for _ in repeats(REPEATS) {
            chain.launch(&stream, 1, 1, &[Arg::U64(address), Arg::U64(sink.address()), Arg::U32(CHAIN_READS)])?;
            stream.synchronize()?;
            let words = sink.read()?;
            let elapsed_ns = words.iter().rev().fold(0_u64, |value, &word| value << 32 | u64::from(word));
            samples.push(elapsed_ns as f64 / f64::from(CHAIN_READS));
        }
        found.push(Row::samples(place, "latency of a read", "ns", &samples));
    }

    let timer = QueueTimer::new(bench)?;
    let (with, without) = (module.kernel("read_per_block")?, module.kernel("read_none")?);
    for waves in [1, 16, 64] {
        let blocks = bench.compute_units * 16 * waves;
        let mut none_us = Vec::new();
        let mut with_us = [Vec::new(), Vec::new()];
        for _ in repeats(REPEATS) {
            // A nonzero address keeps the kernel without a read from storing.
            let args = |address| [Arg::U64(address), Arg::U64(sink.address())];
            none_us.push(timer.micros_per_launch(DEPTH, |stream, _| {
                without.launch(stream, blocks, THREADS, &args(device.address()))
            })?);
            for ((_, address), samples) in places.iter().zip(&mut with_us) {
                samples.push(
                    timer
                        .micros_per_launch(DEPTH, |stream, _| with.launch(stream, blocks, THREADS, &args(*address)))?,
                );
            }
        }
        let base = median(&none_us);
        found.push(Row::samples(format!("{blocks} blocks, no read"), "per kernel", "us", &none_us));
        for ((place, _), samples) in places.iter().zip(&with_us) {
            found.push(Row::samples(format!("{blocks} blocks, {place}"), "per kernel", "us", samples));
            let per_block: Vec<f64> = samples.iter().map(|us| (us - base) * 1e3 / f64::from(blocks)).collect();
            found.push(Row::samples(format!("{blocks} blocks, {place}"), "added per block", "ns", &per_block));
        }
    }
    Ok(())
}
