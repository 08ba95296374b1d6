//! The results of a run.

use crate::faults::FaultCounts;
use atoll_core::Class;
use serde::Serialize;

/// Quantiles of times, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Distribution {
    /// The mean.
    pub mean: f64,
    /// The median.
    pub p50: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The 99.9th percentile.
    pub p999: f64,
    /// The maximum.
    pub max: f64,
}

impl Distribution {
    /// The distribution of times in nanoseconds. All values are 0 if there are none.
    pub fn of(mut ns: Vec<u64>) -> Distribution {
        if ns.is_empty() {
            return Distribution::default();
        }
        ns.sort_unstable();
        let at = |share: f64| ns[((ns.len() as f64 * share).ceil() as usize).clamp(1, ns.len()) - 1] as f64 / 1e3;
        let mean = ns.iter().map(|ns| *ns as f64).sum::<f64>() / ns.len() as f64 / 1e3;
        Distribution { mean, p50: at(0.5), p99: at(0.99), p999: at(0.999), max: at(1.0) }
    }
}

/// The results of a client.
#[derive(Clone, Debug, Serialize)]
pub struct ClientReport {
    /// The id of the client.
    pub id: String,
    /// Its class.
    #[serde(serialize_with = "class")]
    pub class: Class,
    /// How many calls arrived.
    pub scheduled: u64,
    /// How many were answered within the run.
    pub served: u64,
    /// How many were rejected, or not answered by the end of the run.
    pub dropped: u64,
    /// From the scheduled arrival to the answer.
    pub latency_us: Distribution,
    /// The latencies in nanoseconds, unordered, for plots.
    #[serde(skip)]
    pub latencies_ns: Vec<u64>,
}

fn class<S: serde::Serializer>(class: &Class, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(class)
}

/// Preemptions of best-effort work by real-time calls.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PreemptionReport {
    /// The number of real-time calls that preempted others.
    pub count: u64,
    /// From the arrival of the call to its first block.
    pub total_us: Distribution,
    /// Of that, the time until kernels saw the raised epoch; `None` if it was not measured.
    pub flag_us: Option<f64>,
    /// From the arrival of the call until no evicted launch was left on the device.
    pub drain_us: Distribution,
    /// The time to stop running blocks: 0 if the device cannot stop them, `None` if it was not
    /// measured.
    pub interrupt_us: Option<f64>,
    /// Compute-unit time lost by blocks that were stopped and ran again, per preemption; `None` if
    /// it was not measured.
    pub restore_us: Option<f64>,
    /// The number of blocks that were stopped and ran again.
    pub reexecuted_blocks: u64,
}

/// The results of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The workload and its variant.
    pub variant: String,
    /// The name of the policy.
    pub policy: String,
    /// The name of the device.
    pub device: String,
    /// For how long calls arrived, in seconds.
    pub duration_s: f64,
    /// The results of each client.
    pub clients: Vec<ClientReport>,
    /// Preemptions.
    pub preemption: PreemptionReport,
    /// From the arrival of a real-time call that found only best-effort launches on the device to
    /// its first block, whether the policy preempts or waits; `None` if it was not measured.
    pub first_block_us: Option<Distribution>,
    /// The number of real-time launches with padding.
    pub padded_launches: u64,
    /// The number of best-effort blocks that ran as padding.
    pub padding_blocks: u64,
    /// How much longer than alone each of these launches took, in nanoseconds, unordered; empty if
    /// it was not measured.
    #[serde(skip)]
    pub padding_delays_ns: Vec<u64>,
    /// The injected faults.
    pub faults: FaultCounts,
    /// The average share of compute units in use.
    pub utilisation: f64,
}

impl Report {
    /// Answers per second to all clients of a class.
    pub fn throughput(&self, class: Class) -> f64 {
        self.clients.iter().filter(|client| client.class == class).map(|client| client.served).sum::<u64>() as f64
            / self.duration_s
    }

    /// The mean latency over all answers to clients of a class, in microseconds.
    pub fn mean_latency_us(&self, class: Class) -> f64 {
        let of_class = || self.clients.iter().filter(|client| client.class == class);
        let served = of_class().map(|client| client.served).sum::<u64>();
        of_class().map(|client| client.latency_us.mean * client.served as f64).sum::<f64>() / served.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_were_there() {
        let of = Distribution::of((1..=1000).rev().map(|us| us * 1000).collect());
        assert_eq!(of, Distribution { mean: 500.5, p50: 500.0, p99: 990.0, p999: 999.0, max: 1000.0 });
        assert_eq!(Distribution::of(vec![7000]), Distribution { mean: 7.0, p50: 7.0, p99: 7.0, p999: 7.0, max: 7.0 });
        assert_eq!(Distribution::of(vec![]), Distribution::default());
    }
}
