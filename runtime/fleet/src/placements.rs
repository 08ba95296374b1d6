//! Which function is on which device, and how many bytes each device holds.

use atoll_core::DeviceId;
use atoll_engine::FunctionKey;
use atoll_kgraph::{Bundle, ConstantDigest};
use std::collections::{BTreeMap, HashMap};

/// The placement of each function of the fleet, including functions that are being loaded.
#[derive(Debug, Default)]
pub(crate) struct Placements(HashMap<FunctionKey, Placement>);

#[derive(Debug)]
struct Placement {
    device: DeviceId,
    weight: Weight,
}

/// The memory that a function takes on a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Weight {
    /// The bytes of each constant by its digest: a device holds equal constants only once.
    constants: BTreeMap<ConstantDigest, u64>,
    code_bytes: u64,
}

impl Weight {
    pub(crate) fn of(bundle: &Bundle, target: &str) -> Weight {
        Weight {
            constants: bundle.constants().iter().map(|constant| (constant.digest, constant.bytes)).collect(),
            code_bytes: bundle.code(target).map_or(0, <[u8]>::len) as u64,
        }
    }
}

impl Placements {
    pub(crate) fn device_of(&self, function: &FunctionKey) -> Option<DeviceId> {
        self.0.get(function).map(|placement| placement.device)
    }

    pub(crate) fn insert(&mut self, function: FunctionKey, device: DeviceId, weight: Weight) {
        self.0.insert(function, Placement { device, weight });
    }

    pub(crate) fn remove(&mut self, function: &FunctionKey) {
        self.0.remove(function);
    }

    /// The bytes of all functions on a device. Equal constants count once.
    pub(crate) fn bytes_on(&self, device: DeviceId) -> u64 {
        let weights =
            || self.0.values().filter(|placement| placement.device == device).map(|placement| &placement.weight);
        let distinct: BTreeMap<_, _> = weights().flat_map(|weight| &weight.constants).collect();
        distinct.into_values().sum::<u64>() + weights().map(|weight| weight.code_bytes).sum::<u64>()
    }
}
