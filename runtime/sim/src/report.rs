//! What came of a run.

use crate::faults::FaultCounts;
use atoll_core::Class;
use serde::Serialize;

/// Quantiles of times, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Distribution {
    /// The mean.
    pub mean: f64,
    /// Half of them are not above it.
    pub p50: f64,
    /// 99 of 100 are not above it.
    pub p99: f64,
    /// 999 of 1,000 are not above it.
    pub p999: f64,
    /// The longest.
    pub max: f64,
}

impl Distribution {
    /// That of times in nanoseconds; all 0 where there are none.
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

/// What became of a client's calls.
#[derive(Clone, Debug, Serialize)]
pub struct ClientReport {
    /// The client.
    pub id: String,
    /// Its class.
    #[serde(serialize_with = "class")]
    pub class: Class,
    /// Calls that arrived.
    pub scheduled: u64,
    /// Those answered within the run.
    pub served: u64,
    /// Those refused, or not answered when the run was over.
    pub dropped: u64,
    /// From the scheduled arrival to the answer.
    pub latency_us: Distribution,
    /// The latencies themselves in nanoseconds, in no order; for pictures.
    #[serde(skip)]
    pub latencies_ns: Vec<u64>,
}

fn class<S: serde::Serializer>(class: &Class, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(class)
}

/// Real-time calls that made others leave.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PreemptionReport {
    /// How many.
    pub count: u64,
    /// From the arrival to the first block of the call.
    pub total_us: Distribution,
    /// Of that, until kernels read the raised epoch; `None` where nobody measures it.
    pub flag_us: Option<f64>,
    /// From the arrival until nothing that had to leave was left on the device.
    pub drain_us: Distribution,
    /// What stopping running blocks took; 0 where none can be stopped, `None` where nobody measures
    /// it.
    pub interrupt_us: Option<f64>,
    /// Compute-unit time of blocks that were stopped and ran again, per preemption; `None` where
    /// nobody measures it.
    pub restore_us: Option<f64>,
    /// Blocks that were stopped and ran again.
    pub reexecuted_blocks: u64,
}

/// What came of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The workload, and which variant of it.
    pub variant: String,
    /// The policy.
    pub policy: String,
    /// The device.
    pub device: String,
    /// How long calls arrived, in seconds.
    pub duration_s: f64,
    /// Every client.
    pub clients: Vec<ClientReport>,
    /// Preemptions.
    pub preemption: PreemptionReport,
    /// Real-time launches beside which best-effort blocks ran.
    pub padded_launches: u64,
    /// How many best-effort blocks did.
    pub padding_blocks: u64,
    /// What went wrong on demand.
    pub faults: FaultCounts,
    /// The share of compute units in use.
    pub utilisation: f64,
}

impl Report {
    /// Answers per second to clients of a class.
    pub fn throughput(&self, class: Class) -> f64 {
        self.clients.iter().filter(|client| client.class == class).map(|client| client.served).sum::<u64>() as f64
            / self.duration_s
    }

    /// The mean latency of all answers to clients of a class, in microseconds.
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
