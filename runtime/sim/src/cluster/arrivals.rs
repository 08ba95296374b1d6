//! Generators of requests and functions for clusters.

use super::setup::{Arrival, ClusterFunction};
use atoll_core::Class;
use atoll_core::placement::{GroupId, Suits};
use atoll_core::rng::Rng;

/// The arrival process of a function's requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Process {
    /// A Poisson process with this many requests per second.
    Poisson(f64),
    /// Bursts of simultaneous requests. The bursts are a Poisson process.
    Bursts {
        /// Requests per second on average.
        rate: f64,
        /// Requests of a burst.
        size: u32,
    },
    /// A Markov-modulated Poisson process with two states of equal mean length.
    Mmpp {
        /// Requests per second in the quiet state.
        quiet: f64,
        /// Requests per second in the busy state.
        busy: f64,
        /// Mean length of a state in seconds.
        state_s: f64,
    },
}

/// A uniform random number in (0, 1], so that its logarithm is finite.
fn unit(rng: &mut Rng) -> f64 {
    ((rng.next_u64() >> 11) + 1) as f64 / (1_u64 << 53) as f64
}

/// A number with an exponential distribution of mean 1.
fn exponential(rng: &mut Rng) -> f64 {
    -unit(rng).ln()
}

/// A number with the standard normal distribution (Box and Muller).
fn normal(rng: &mut Rng) -> f64 {
    let radius = (2.0 * exponential(rng)).sqrt();
    radius * (std::f64::consts::TAU * unit(rng)).cos()
}

impl Process {
    /// The times of arrival until `end_s`, in seconds.
    fn times(self, end_s: f64, rng: &mut Rng) -> Vec<f64> {
        let mut times = Vec::new();
        let mut at = 0.0;
        match self {
            Process::Poisson(rate) => {
                let gap = |rng: &mut Rng| if rate > 0.0 { exponential(rng) / rate } else { f64::INFINITY };
                at += gap(rng);
                while at < end_s {
                    times.push(at);
                    at += gap(rng);
                }
            }
            Process::Bursts { rate, size } => {
                let size = size.max(1);
                let bursts = Process::Poisson(rate / f64::from(size)).times(end_s, rng);
                times.extend(bursts.into_iter().flat_map(|at| std::iter::repeat_n(at, size as usize)));
            }
            Process::Mmpp { quiet, busy, state_s } => {
                let mut is_busy = rng.one_in(2);
                while at < end_s && state_s > 0.0 {
                    let length = exponential(rng) * state_s;
                    let rate = if is_busy { busy } else { quiet };
                    let state = Process::Poisson(rate).times(length.min(end_s - at), rng);
                    times.extend(state.into_iter().map(|time| at + time));
                    at += length;
                    is_busy = !is_busy;
                }
            }
        }
        times
    }
}

/// The arrivals of functions until `end_s`, one process each. Function `i` has the seed
/// `seed + i`.
pub fn generate(processes: &[Process], end_s: f64, seed: u64) -> Vec<Arrival> {
    let mut arrivals = Vec::new();
    for (function, process) in processes.iter().enumerate() {
        let mut rng = Rng::new(seed.wrapping_add(function as u64));
        let times = process.times(end_s, &mut rng);
        arrivals.extend(times.into_iter().map(|at| Arrival { at_ns: (at * 1e9) as u64, function }));
    }
    arrivals.sort_unstable();
    arrivals
}

/// Logarithms of the mean and deviation of execution times in seconds of Azure Functions: the
/// log-normal fit of "Serverless in the Wild" (Shahrad et al., ATC 2020, §3.4).
const AZURE_SECONDS: (f64, f64) = (-0.38, 2.36);

/// The Burr distribution of allocated memory in MB of the same paper (§3.5): c, k, scale.
const AZURE_MEGABYTES: (f64, f64, f64) = (11.652, 0.221, 107.083);

/// Popularity in the same paper (§3.3): 45 % of the applications are invoked once an hour or less,
/// 81 % once a minute or less. Each entry is a quantile and its requests per second; between
/// entries the logarithm of the rate is interpolated. The rates span eight orders of magnitude.
const AZURE_RATES: [(f64, f64); 4] = [(0.0, 1.0 / 604_800.0), (0.45, 1.0 / 3600.0), (0.81, 1.0 / 60.0), (1.0, 100.0)];

/// Options of [`azure`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Azure {
    /// Number of functions, each in its own group.
    pub functions: usize,
    /// Offered load: device time of all requests per second. Rates are scaled to match it.
    pub load: f64,
    /// Longest service time in seconds; longer draws are reduced to it. The published times are
    /// those of general functions, up to hours.
    pub service_s_max: f64,
    /// Bytes per second at which constants are loaded.
    pub bytes_per_s: f64,
    /// Seed of all draws.
    pub seed: u64,
}

/// Functions in the shape of Azure's published workload, with their arrival processes.
pub fn azure(options: &Azure) -> (Vec<ClusterFunction>, Vec<Process>) {
    let mut rng = Rng::new(options.seed);
    let mut functions = Vec::new();
    let mut rates = Vec::new();
    for index in 0..options.functions {
        let service_s = (AZURE_SECONDS.0 + AZURE_SECONDS.1 * normal(&mut rng)).exp().min(options.service_s_max);
        let (c, k, scale) = AZURE_MEGABYTES;
        let megabytes = scale * (unit(&mut rng).powf(-1.0 / k) - 1.0).powf(1.0 / c);
        let constant_bytes = (megabytes * 1e6) as u64;
        rates.push((azure_rate(unit(&mut rng)), service_s));
        functions.push(ClusterFunction {
            name: format!("f{index}"),
            group: GroupId(index as u32),
            class: Class::BestEffort,
            service_ns: (service_s * 1e9) as u64 + 1,
            reload_ns: (constant_bytes as f64 / options.bytes_per_s * 1e9) as u64 + 1,
            constant_bytes,
            suits: Suits::All,
        });
    }
    let load: f64 = rates.iter().map(|(rate, service)| rate * service).sum();
    let scaled = rates.iter().map(|(rate, _)| Process::Poisson(rate * options.load / load.max(f64::MIN_POSITIVE)));
    (functions, scaled.collect())
}

fn azure_rate(quantile: f64) -> f64 {
    let at = AZURE_RATES.partition_point(|(q, _)| *q < quantile).clamp(1, AZURE_RATES.len() - 1);
    let ((low_q, low), (high_q, high)) = (AZURE_RATES[at - 1], AZURE_RATES[at]);
    let part = (quantile - low_q) / (high_q - low_q);
    (low.ln() + part * (high.ln() - low.ln())).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_keep_their_rate_and_their_seed() {
        let processes = [
            Process::Poisson(50.0),
            Process::Bursts { rate: 50.0, size: 10 },
            Process::Mmpp { quiet: 10.0, busy: 90.0, state_s: 1.0 },
        ];
        let arrivals = generate(&processes, 400.0, 1);
        for (function, process) in processes.iter().enumerate() {
            let count = arrivals.iter().filter(|arrival| arrival.function == function).count();
            assert!(count.abs_diff(20_000) < 2_500, "{count} of {process:?}");
        }
        assert!(arrivals.is_sorted());
        assert_eq!(arrivals, generate(&processes, 400.0, 1));
        assert_ne!(arrivals, generate(&processes, 400.0, 2));
    }

    #[test]
    fn azure_has_the_published_shape() {
        let options = Azure { functions: 4000, load: 10.0, service_s_max: 1e9, bytes_per_s: 1e10, seed: 1 };
        let (functions, processes) = azure(&options);
        let mut seconds: Vec<f64> = functions.iter().map(|f| f.service_ns as f64 / 1e9).collect();
        seconds.sort_by(f64::total_cmp);
        let median = seconds[seconds.len() / 2];
        assert!((median / 0.684 - 1.0).abs() < 0.15, "the median of the fit is e^-0.38 s, not {median}");
        let mut bytes: Vec<u64> = functions.iter().map(|f| f.constant_bytes).collect();
        bytes.sort_unstable();
        let median = bytes[bytes.len() / 2] as f64 / 1e6;
        // scale × (2^(1/k) − 1)^(1/c)
        assert!((median / 138.5 - 1.0).abs() < 0.1, "{median} MB");
        let load: f64 = functions
            .iter()
            .zip(&processes)
            .map(|(function, process)| {
                let Process::Poisson(rate) = process else { panic!("azure's arrivals are Poisson processes") };
                rate * function.service_ns as f64 / 1e9
            })
            .sum();
        assert!((load - 10.0).abs() < 0.01, "{load}");
        assert!((azure_rate(0.45) * 3600.0 - 1.0).abs() < 1e-9 && (azure_rate(0.81) * 60.0 - 1.0).abs() < 1e-9);
    }
}
