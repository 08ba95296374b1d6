//! The cost of choosing a candidate at run time.

use super::entry_check::Length;
use crate::bench::{Bench, QueueTimer};
use crate::device::{DeviceWords, ProbeError};
use crate::report::{Findings, Row};
use crate::stats::median;
use atoll_cuda::{Arg, Module};

const DISPATCH_PTX: &str = include_str!("../../kernels/dispatch.ptx");

const THREADS: u32 = 256;
const REPEATS: usize = 60;
/// Launches in the queue at a time.
const DEPTH: u32 = 32;
const TARGETS_US: [f64; 2] = [5.0, 20.0];
const FORMS: [&str; 3] = ["alone", "direct", "table"];

/// Compares a candidate launched alone with the same candidate chosen inside a launch, for all
/// blocks and for half of them.
pub(crate) fn run(bench: &Bench, found: &mut Findings) -> Result<(), ProbeError> {
    let blocks = bench.compute_units * 8;
    let module = Module::load(&bench.context, DISPATCH_PTX.as_bytes())?;
    let data = DeviceWords::new(&bench.context, blocks as usize * THREADS as usize)?;
    let timer = QueueTimer::new(bench)?;
    let time = |form: &str, rounds: u32, split: u32| {
        let kernel = module.kernel(form)?;
        let args = [Arg::U64(data.address()), Arg::U32(rounds), Arg::U32(split)];
        timer.micros_per_launch(DEPTH, |stream, _| kernel.launch(stream, blocks, THREADS, &args))
    };
    let length = Length::calibrate(|rounds| time(FORMS[0], rounds, blocks))?;
    for target_us in TARGETS_US {
        let rounds = length.rounds(target_us);
        for (split, share) in [(blocks, "one candidate"), (blocks / 2, "four candidates")] {
            let mut times = FORMS.map(|_| Vec::new());
            for _ in 0..REPEATS {
                for (form, samples) in FORMS.iter().zip(&mut times) {
                    samples.push(time(form, rounds, split)?);
                }
            }
            let base = median(&times[0]);
            for (form, samples) in FORMS.iter().zip(&times) {
                let case = format!("{target_us} us, {share}, {form}");
                found.push(Row::samples(&case, "per kernel", "us", samples));
                if *form != FORMS[0] && base > 0.0 {
                    let overhead: Vec<f64> = samples.iter().map(|us| (us / base - 1.0) * 100.0).collect();
                    found.push(Row::samples(&case, "overhead", "%", &overhead));
                }
            }
        }
    }
    Ok(())
}
