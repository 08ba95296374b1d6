//! Pods on a simulated V100: their models, their shares, and a run.

use anyhow::{Context, Result, anyhow};
use atoll_core::tokens::{ShareRequest, ShareSpec, Span, TokenConfig};
use atoll_core::{Class, LaunchProfile, PaddingOptions, policy_by_name};
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
    /// The compute units that it runs on.
    pub(super) units: Units,
}

/// The compute units of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Units {
    /// Any, and as many as are free.
    Any,
    /// As many as its partition, which no other pod uses.
    Own,
    /// These. Others may use them when it has no token.
    Span(Span),
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
        // Of its lane, which is the partition if no other pod uses it.
        let sm_partition = if self.units == Units::Own { 100.0 } else { f64::from(self.partition) };
        let fraction = |percent: u32| f64::from(percent) / 100.0;
        let request =
            ShareRequest { sm_partition, quota_request: fraction(request), quota_limit: fraction(limit), group: 0 };
        let share = ShareSpec::new(&request).map_err(|error| anyhow!("{error}"))?;
        Ok(Some(ShareSetup { client: Pod::name(at), share, removed_at: None }))
    }

    fn lane(&self, at: usize, device: &DeviceParameters) -> Option<LaneSetup> {
        let (compute_units, span) = match self.units {
            Units::Any => return None,
            Units::Own => ((self.partition * device.compute_units).div_ceil(100), None),
            Units::Span(span) => (span.count, Some(span)),
        };
        Some(LaneSetup { compute_units, span, clients: vec![Pod::name(at)], closes_at: None })
    }
}

fn model(shape: &Shape) -> Model {
    let profile = LaunchProfile::new(shape.blocks, [shape.block_ns]);
    let kernel = Arc::new(Kernel { name: shape.name.to_lowercase(), profile });
    let kernels = std::iter::repeat_n(kernel, shape.kernels).collect();
    Model { name: shape.name.to_owned(), kernels, before_ns: 50_000, after_ns: 0 }
}

/// Clients on a V100, and how they share it.
pub(super) struct Setting<'a> {
    pub(super) policy: &'a str,
    pub(super) models: &'a BTreeMap<String, Model>,
    pub(super) clients: Vec<Client>,
    pub(super) lanes: &'a [LaneSetup],
    pub(super) shares: &'a [ShareSetup],
}

pub(super) fn device() -> Result<DeviceParameters> {
    device_by_name("v100").copied().context("there is a V100")
}

/// Runs clients on a V100.
pub(super) fn run_clients(setting: Setting<'_>, seconds: u64, seed: u64) -> Result<Run> {
    let Setting { policy, models, clients, lanes, shares } = setting;
    let device = device()?;
    let workload = Workload { name: "fast".to_owned(), duration_ns: seconds * 1_000_000_000, clients };
    let simulation = Simulation {
        policy: policy_by_name(policy).context("there is the policy")?,
        device,
        queue_capacity: 4,
        lanes,
        workload: &workload,
        models,
        padding: PaddingOptions::default(),
        faults: Faults::default(),
        seed,
        as_disb: false,
    };
    let tokens = TokenConfig::for_device(device.costs.launch_ns);
    let (report, received) = simulate_shares(&simulation, shares, tokens).map_err(|error| anyhow!("{error}"))?;
    Ok(Run { report, received, seconds: seconds as f64 })
}

/// A client that always has a request.
pub(super) fn busy(id: String, model: &str) -> Client {
    Client { id, class: Class::BestEffort, model: model.to_owned(), load: Load::Continuous }
}

/// Runs pods on a V100.
pub(super) fn run(pods: &[Pod], seconds: u64, seed: u64) -> Result<Run> {
    let device = device()?;
    let models = pods.iter().map(|pod| (pod.shape.name.to_owned(), model(&pod.shape))).collect::<BTreeMap<_, _>>();
    let clients = pods.iter().enumerate().map(|(at, pod)| busy(Pod::name(at), pod.shape.name)).collect();
    let lanes: Vec<LaneSetup> = pods.iter().enumerate().filter_map(|(at, pod)| pod.lane(at, &device)).collect();
    let mut shares = Vec::new();
    for (at, pod) in pods.iter().enumerate() {
        shares.extend(pod.share(at)?);
    }
    run_clients(Setting { policy: "reset", models: &models, clients, lanes: &lanes, shares: &shares }, seconds, seed)
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
