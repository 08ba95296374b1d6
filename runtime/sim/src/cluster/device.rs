//! A device of the cluster, in one of the two models ([`NodeModel`]).

use super::full::FullDevice;
use super::plain::PlainDevice;
use super::setup::{Cluster, ClusterDevice, NodeModel};

/// A device while it is in the cluster.
pub(super) enum Device {
    Plain(Box<PlainDevice>),
    Full(Box<FullDevice>),
}

impl Device {
    /// An empty device, in the model of the cluster.
    pub(super) fn new(spec: ClusterDevice, cluster: &Cluster) -> Device {
        match &cluster.node {
            NodeModel::Plain => Device::Plain(Box::new(PlainDevice::new(spec, cluster.residency))),
            NodeModel::Scheduler(setup) => Device::Full(Box::new(FullDevice::new(&spec, setup, cluster.residency))),
        }
    }

    /// The device, if it has a launch scheduler and memory decisions.
    pub(super) fn full(&mut self) -> Option<&mut FullDevice> {
        match self {
            Device::Plain(_) => None,
            Device::Full(device) => Some(device),
        }
    }

    /// The device, if it is plain.
    pub(super) fn plain(&mut self) -> Option<&mut PlainDevice> {
        match self {
            Device::Plain(device) => Some(device),
            Device::Full(_) => None,
        }
    }
}
