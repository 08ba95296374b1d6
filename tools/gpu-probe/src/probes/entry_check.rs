//! The cost of the preemption passes for a kernel that is not preempted.

use super::preemptible::{Preemptible, THREADS};
use crate::bench::{Bench, QueueTimer, repeats};
use crate::device::ProbeError;
use crate::report::{Findings, Row};
use crate::stats::median;

const TARGETS_US: [f64; 6] = [2.0, 5.0, 10.0, 20.0, 50.0, 100.0];
const REPEATS: usize = 40;
/// Launches in the queue at a time.
const DEPTH: u32 = 32;
/// Variants of the kernel; the first one is untransformed.
const FORMS: [&str; 6] = ["plain", "check", "barrier_unfenced", "barrier", "count", "loops"];

/// Times all variants of one body at several lengths, with one wave of blocks and with four.
pub(crate) fn run(bench: &Bench, found: &mut Findings) -> Result<(), ProbeError> {
    for blocks_per_unit in [8, 32] {
        let blocks = bench.compute_units * blocks_per_unit;
        let kernels = Preemptible::new(&bench.context, blocks, DEPTH)?;
        let timer = QueueTimer::new(bench)?;
        let time = |form: &str, rounds: u32| {
            // A block with a set progress byte exits at once, so every launch needs its own bytes.
            kernels.clear_progress()?;
            let kernel = kernels.module.kernel(form)?;
            timer.micros_per_launch(DEPTH, |stream, launch| {
                kernel.launch(stream, blocks, THREADS, &kernels.args(rounds, launch))
            })
        };
        let length = Length::calibrate(|rounds| time("plain", rounds))?;
        for target_us in TARGETS_US {
            let rounds = length.rounds(target_us);
            let mut times = FORMS.map(|_| Vec::new());
            for _ in repeats(REPEATS) {
                for (form, samples) in FORMS.iter().zip(&mut times) {
                    samples.push(time(form, rounds)?);
                }
            }
            let base = median(&times[0]);
            for (form, samples) in FORMS.iter().zip(&times) {
                let case = format!("{blocks} blocks, {target_us} us, {form}");
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

/// Kernel time as a linear function of its loop iterations.
pub(crate) struct Length {
    base_us: f64,
    us_per_round: f64,
}

impl Length {
    /// Measures two points of the line.
    pub(crate) fn calibrate(mut time: impl FnMut(u32) -> Result<f64, ProbeError>) -> Result<Length, ProbeError> {
        const FEW: u32 = 10;
        const MANY: u32 = 2_010;
        let mut median_of =
            |rounds| (0..5).map(|_| time(rounds)).collect::<Result<Vec<_>, _>>().map(|samples| median(&samples));
        let (few_us, many_us) = (median_of(FEW)?, median_of(MANY)?);
        let us_per_round = (many_us - few_us) / f64::from(MANY - FEW);
        Ok(Length { base_us: few_us - us_per_round * f64::from(FEW), us_per_round })
    }

    /// The number of iterations that takes this long, at least one.
    pub(crate) fn rounds(&self, target_us: f64) -> u32 {
        let rounds = (target_us - self.base_us) / self.us_per_round.max(1e-6);
        // The cast saturates values outside the range of u32.
        rounds.clamp(1.0, 10_000_000.0) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_follow_the_line_and_stay_positive() {
        let length = Length::calibrate(|rounds| Ok(1.5 + 0.01 * f64::from(rounds))).expect("no device involved");
        assert_eq!(length.rounds(11.5), 1000);
        assert_eq!(length.rounds(0.1), 1);
        let flat = Length::calibrate(|_| Ok(3.0)).expect("no device involved");
        assert_eq!(flat.rounds(50.0), 10_000_000);
    }
}
