//! Simulation of functions whose instances follow their load on a cluster of devices. The daemon's
//! own [`Autoscaler`](atoll_core::scaling::Autoscaler) decides how many instances there are, and
//! [`atoll_core::scaling::assign`] where they go.
//!
//! - [`simulate_scaling`] runs [`Scaled`] functions and returns a [`ScalingReport`].
//! - [`Shape`] generates loads that step, ramp or spike.
//! - [`resnet_like`] is a profile in the shape of FaST-GShare's Fig. 8.
//!
//! An instance begins requests at intervals of at least what the throughput of its point says, and
//! each takes the latency of the point from there. An instance that gets no more requests keeps its
//! share until the service time of its last request has passed, so that no work is free. Devices do
//! not slow each other down, and nothing is simulated inside of them: no kernels, tokens or
//! preemption.

mod loads;
mod oracle;
mod report;
mod world;

pub use loads::{SHAPES, Shape};
pub use report::{FunctionScaling, Sample, ScalingReport};
pub use world::simulate_scaling;

use atoll_core::scaling::{Host, Point, Profile, ScalingConfig};

/// A function of a simulated cluster, with its requests.
#[derive(Clone, Debug)]
pub struct ScaledFunction {
    /// Its name in reports.
    pub name: String,
    /// What its instances serve.
    pub profile: Profile,
    /// When it is scaled.
    pub config: ScalingConfig,
    /// Bytes of its constants.
    pub constant_bytes: u64,
    /// When its requests arrive, in nanoseconds from the start, ascending.
    pub arrivals: Vec<u64>,
}

/// What decides on instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Controller {
    /// The daemon's autoscaler.
    Autoscaler,
    /// An oracle that knows every request beforehand. In each interval it has the instances that
    /// serve all requests of the interval in time, and they start without delay. All instances of a
    /// function have one size: the one that takes the least device time over the run.
    Oracle,
}

/// A simulated cluster with functions that are scaled.
#[derive(Clone, Debug)]
pub struct Scaled {
    /// The devices.
    pub hosts: Vec<Host>,
    /// The functions; each can run on every device.
    pub functions: Vec<ScaledFunction>,
    /// When the run ends, in nanoseconds.
    pub end_ns: u64,
    /// How long an instance takes to start, in nanoseconds.
    pub start_ns: u64,
    /// What decides.
    pub controller: Controller,
}

/// A function that saturates at a quarter of the compute units, like ResNet in FaST-GShare's Fig.
/// 8: its throughput is linear in the quota, and with less of it, a request takes longer. `whole`
/// is the throughput of a whole device, in thousandths of a request per second.
pub fn resnet_like(whole: u64) -> Profile {
    /// Partitions in percent, and what each serves, in thousandths of a whole device.
    const PARTITIONS: [(u32, u64); 5] = [(6, 260), (12, 490), (24, 940), (50, 970), (100, 1000)];
    /// What a request takes longer with each percent of the time that the instance does not have.
    const PAUSE_NS: u64 = 400_000;
    let mut points = Vec::new();
    for (partition, part) in PARTITIONS {
        for quota in [20, 40, 60, 80, 100] {
            let of_partition = (whole * part / 1000).max(1);
            let latency_ns = 1_000_000_000_000 / of_partition + (100 - u64::from(quota)) * PAUSE_NS;
            let throughput = (of_partition * u64::from(quota) / 100).max(1);
            points.push(Point { partition, quota, throughput, latency_ns });
        }
    }
    Profile::new(points).expect("a full grid that grows with the resources")
}
