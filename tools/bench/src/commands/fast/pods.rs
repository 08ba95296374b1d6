//! Pods on a simulated V100: their models, their shares, and a run.

use anyhow::{Context, Result, anyhow};
use atoll_core::tokens::{ShareRequest, ShareSpec, TokenConfig};
use atoll_core::{Class, LaunchProfile, policy_by_name};
use atoll_sim::{
    Client, DeviceParameters, Faults, Kernel, LaneSetup, Load, Model, Received, Report, ShareSetup, Simulation,
    Workload, device_by_name, simulate_shares,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A model in the shape of one of the paper's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Shape {
    pub(super) name: &'static str,
    /// Blocks of each kernel: so many compute units it can use.
    blocks: u32,
    kernels: usize,
    /// Time of a block, in nanoseconds.
    block_ns: u64,
}

/// A quarter of the units, 14 ms alone (71.37 requests a second in the paper).
pub(super) const RESNET: Shape = Shape { name: "ResNet", blocks: 20, kernels: 28, block_ns: 500_000 };
/// A quarter of the units, 80 ms alone (12.51 requests a second).
pub(super) const RNNT: Shape = Shape { name: "RNNT", blocks: 20, kernels: 80, block_ns: 1_000_000 };
/// Half of the units, 35 ms alone (28.85 requests a second).
pub(super) const GNMT: Shape = Shape { name: "GNMT", blocks: 40, kernels: 35, block_ns: 1_000_000 };
/// Half of the units.
pub(super) const BERT: Shape = Shape { name: "BERT", blocks: 40, kernels: 40, block_ns: 1_000_000 };

/// A pod that always has a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pod {
    pub(super) shape: Shape,
    /// Quotas of time, in percent; none if it races.
    pub(super) quotas: Option<(u32, u32)>,
    /// Compute units in percent.
    pub(super) partition: u32,
    /// Whether it is bound to compute units of its own.
    pub(super) is_bound: bool,
}

/// The results of a run.
pub(super) struct Run {
    pub(super) report: Report,
    received: Vec<Received>,
    seconds: f64,
}

impl Pod {
    fn name(at: usize) -> String {
        format!("pod-{at}")
    }

    fn share(&self, at: usize) -> Result<Option<ShareSetup>> {
        let Some((request, limit)) = self.quotas else { return Ok(None) };
        // Of its lane, which is the partition if it is bound.
        let sm_partition = if self.is_bound { 100.0 } else { f64::from(self.partition) };
        let fraction = |percent: u32| f64::from(percent) / 100.0;
        let request =
            ShareRequest { sm_partition, quota_request: fraction(request), quota_limit: fraction(limit), group: 0 };
        let share = ShareSpec::new(&request).map_err(|error| anyhow!("{error}"))?;
        Ok(Some(ShareSetup { client: Pod::name(at), share, removed_at: None }))
    }
}

fn model(shape: &Shape) -> Model {
    let profile = LaunchProfile::new(shape.blocks, [shape.block_ns]);
    let kernel = Arc::new(Kernel { name: shape.name.to_lowercase(), profile });
    let kernels = std::iter::repeat_n(kernel, shape.kernels).collect();
    Model { name: shape.name.to_owned(), kernels, before_ns: 50_000, after_ns: 0 }
}

fn device() -> Result<DeviceParameters> {
    device_by_name("v100").copied().context("there is a V100")
}

/// Compute units for a percentage, rounded up.
fn units(percent: u32, device: &DeviceParameters) -> u32 {
    (percent * device.compute_units).div_ceil(100)
}

/// Runs pods on a V100.
pub(super) fn run(pods: &[Pod], seconds: u64, seed: u64) -> Result<Run> {
    let device = device()?;
    let models = pods.iter().map(|pod| (pod.shape.name.to_owned(), model(&pod.shape))).collect::<BTreeMap<_, _>>();
    let client = |(at, pod): (usize, &Pod)| Client {
        id: Pod::name(at),
        class: Class::BestEffort,
        model: pod.shape.name.to_owned(),
        load: Load::Continuous,
    };
    let clients = pods.iter().enumerate().map(client).collect();
    let workload = Workload { name: "fast".to_owned(), duration_ns: seconds * 1_000_000_000, clients };
    let bound = pods.iter().enumerate().filter(|(_, pod)| pod.is_bound);
    let lane = |(at, pod): (usize, &Pod)| LaneSetup {
        compute_units: units(pod.partition, &device),
        clients: vec![Pod::name(at)],
        closes_at: None,
    };
    let lanes: Vec<LaneSetup> = bound.map(lane).collect();
    let mut shares = Vec::new();
    for (at, pod) in pods.iter().enumerate() {
        shares.extend(pod.share(at)?);
    }
    let simulation = Simulation {
        policy: policy_by_name("reset").context("there is the policy")?,
        device,
        queue_capacity: 4,
        lanes: &lanes,
        workload: &workload,
        models: &models,
        faults: Faults::default(),
        seed,
        as_disb: false,
    };
    let tokens = TokenConfig::for_device(device.costs.launch_ns);
    let (report, received) = simulate_shares(&simulation, &shares, tokens).map_err(|error| anyhow!("{error}"))?;
    Ok(Run { report, received, seconds: seconds as f64 })
}

impl Run {
    /// Requests per second of a pod.
    pub(super) fn per_s(&self, pod: usize) -> f64 {
        self.report.clients.get(pod).map_or(0.0, |client| client.served as f64 / self.seconds)
    }

    /// Requests per second of all pods.
    pub(super) fn all_per_s(&self) -> f64 {
        (0..self.report.clients.len()).map(|pod| self.per_s(pod)).sum()
    }

    /// The 99th percentile of the latencies of all pods, in milliseconds: the highest of theirs.
    pub(super) fn p99_ms(&self) -> f64 {
        self.report.clients.iter().map(|client| client.latency_us.p99 / 1e3).fold(0.0, f64::max)
    }

    /// The part of the time in which any kernel ran: what `nvidia-smi` shows as utilisation.
    pub(super) fn utilisation(&self) -> f64 {
        let mut busy: Vec<(u64, u64)> =
            self.received.iter().flat_map(|pod| &pod.busy).map(|busy| (busy.start, busy.end)).collect();
        busy.sort_unstable();
        let (mut sum, mut until) = (0, 0);
        for (start, end) in busy {
            sum += end.saturating_sub(start.max(until));
            until = until.max(end);
        }
        sum as f64 / 1e9 / self.seconds
    }

    /// The mean part of the compute units in use.
    pub(super) fn occupancy(&self) -> f64 {
        self.report.utilisation
    }
}
