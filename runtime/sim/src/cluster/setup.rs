//! A simulated cluster: its devices, functions and requests.

use crate::parameters::DeviceParameters;
use atoll_core::placement::{DeviceKind, GroupId, PoolConfig, Suits, Visibility};
use atoll_core::residency::ResidencyPolicyEntry;
use atoll_core::{Class, Nanos, PolicyEntry};

/// A function of a simulated cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterFunction {
    /// Its name in reports.
    pub name: String,
    /// The group to which its requests count.
    pub group: GroupId,
    /// Class of its requests.
    pub class: Class,
    /// Device time of a request on a device of speed 1.
    pub service_ns: u64,
    /// Time to load its constants.
    pub reload_ns: u64,
    /// Bytes of its constants.
    pub constant_bytes: u64,
    /// The devices that can run it.
    pub suits: Suits,
}

/// A device of a simulated cluster.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClusterDevice {
    /// Its kind. Devices of a kind share measured times.
    pub kind: DeviceKind,
    /// Largest number of best-effort requests in flight. The device runs them one after the other,
    /// and loads constants meanwhile.
    pub slots: u32,
    /// Bytes of memory for constants. Full devices have memory for the requests of their slots
    /// beside it ([`MemorySetup`]).
    pub memory_bytes: u64,
    /// Service times are divided by this.
    pub speed: f64,
}

impl ClusterDevice {
    /// Device time of a request of a function here.
    pub(super) fn service_ns(&self, function: &ClusterFunction) -> u64 {
        (function.service_ns as f64 / self.speed).round() as u64
    }
}

/// How a device executes its requests.
#[derive(Clone, Copy, Debug)]
pub enum NodeModel {
    /// One request after the other, each for its service time. A real-time request delays the
    /// others by its service time.
    Plain,
    /// The daemon's launch scheduler and memory decisions, and a simulated device: a full device.
    Scheduler(NodeSetup),
}

/// The launch scheduler and the memory of each device, and how requests are divided into launches.
#[derive(Clone, Copy, Debug)]
pub struct NodeSetup {
    /// The scheduling policy, a row of [`atoll_core::POLICIES`].
    pub policy: &'static PolicyEntry,
    /// The simulated device. The speed of a [`ClusterDevice`] changes its block times.
    pub device: DeviceParameters,
    /// The capacity of each device queue, in launches.
    pub queue_capacity: u32,
    /// Launches of a request, at least 1.
    pub launches: u32,
    /// Blocks of a launch, at least 1. A compute unit runs one block at a time.
    pub blocks: u32,
    /// The memory of requests, and its limits.
    pub memory: MemorySetup,
}

/// What requests need of a device's memory, and how much a group may use. Each group is a tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemorySetup {
    /// Bytes of memory of a request while it runs, at least 1.
    pub request_bytes: u64,
    /// Most bytes that the functions of a group may use on a device, with those of requests; `None`
    /// for no limit.
    pub quota_bytes: Option<u64>,
}

/// A request of a simulated cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Arrival {
    /// When it arrives, in nanoseconds from the start.
    pub at_ns: u64,
    /// Index of its function.
    pub function: usize,
}

/// A change of a device's state at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClusterFault {
    /// When it happens, in nanoseconds from the start.
    pub at_ns: u64,
    /// Index of the device.
    pub device: usize,
    /// The change.
    pub kind: FaultKind,
}

/// A change of a device's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The device is lost with its requests and constants.
    Lost,
    /// A lost device returns without constants.
    Back,
    /// It gets no new requests.
    Drained,
    /// It gets requests again.
    Resumed,
}

/// A simulated cluster and its workload.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// The pool's configuration. Its visibility decides when requests are announced.
    pub pool: PoolConfig,
    /// The residency policy, which chooses the constants that a device evicts.
    pub residency: &'static ResidencyPolicyEntry,
    /// The devices; at most 65,536.
    pub devices: Vec<ClusterDevice>,
    /// The functions.
    pub functions: Vec<ClusterFunction>,
    /// The requests, by ascending time.
    pub arrivals: Vec<Arrival>,
    /// Changes of devices, by ascending time.
    pub faults: Vec<ClusterFault>,
    /// Whether the pool knows service and reload times from the start. Otherwise it learns them.
    pub times_known: bool,
    /// If set, the pool also decides once per step of this length, like simulators with time steps.
    pub step: Option<Nanos>,
    /// How each device executes its requests.
    pub node: NodeModel,
}

impl Cluster {
    /// When a request is announced to the pool.
    pub(super) fn announced_at(&self, arrival: &Arrival) -> u64 {
        match self.pool.options.visibility {
            Visibility::Online => arrival.at_ns,
            Visibility::LookAhead(ahead) => arrival.at_ns.saturating_sub(ahead.0),
            Visibility::Preloaded => 0,
        }
    }
}
