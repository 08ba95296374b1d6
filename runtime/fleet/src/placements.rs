//! The devices of each function, and the bytes that each device holds.

use atoll_core::DeviceId;
use atoll_core::placement::FunctionId;
use atoll_engine::FunctionKey;
use atoll_kgraph::{Bundle, ConstantDigest};
use std::collections::{BTreeMap, HashMap};

/// The functions of the fleet, including functions that are being loaded.
#[derive(Debug, Default)]
pub(crate) struct Placements {
    functions: HashMap<FunctionKey, Placement>,
    next_id: u32,
}

/// The place of a function.
#[derive(Clone, Debug)]
pub(crate) struct Placement {
    /// Its id in the pool.
    pub(crate) id: FunctionId,
    /// The devices that hold it, the first one first. Sessions are opened there.
    pub(crate) devices: Vec<DeviceId>,
    /// Whether the pool chooses among the devices for each request.
    pub(crate) is_pooled: bool,
    weights: Vec<(DeviceId, Weight)>,
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
    pub(crate) fn get(&self, function: &FunctionKey) -> Option<&Placement> {
        self.functions.get(function)
    }

    /// Records that a function is being loaded onto these devices. At least one.
    pub(crate) fn insert(&mut self, function: FunctionKey, weights: Vec<(DeviceId, Weight)>) -> FunctionId {
        let id = FunctionId(self.next_id);
        self.next_id += 1;
        let devices = weights.iter().map(|(device, _)| *device).collect();
        self.functions.insert(function, Placement { id, devices, is_pooled: false, weights });
        id
    }

    /// Records the devices onto which a function was loaded.
    pub(crate) fn loaded(&mut self, function: &FunctionKey, devices: &[DeviceId], is_pooled: bool) {
        if let Some(placement) = self.functions.get_mut(function) {
            placement.devices = devices.to_vec();
            placement.weights.retain(|(device, _)| devices.contains(device));
            placement.is_pooled = is_pooled;
        }
    }

    pub(crate) fn remove(&mut self, function: &FunctionKey) {
        self.functions.remove(function);
    }

    /// The bytes of all functions on a device. Equal constants count once.
    pub(crate) fn bytes_on(&self, device: DeviceId) -> u64 {
        let weights = || {
            let all = self.functions.values().flat_map(|placement| &placement.weights);
            all.filter(|(on, _)| *on == device).map(|(_, weight)| weight)
        };
        let distinct: BTreeMap<_, _> = weights().flat_map(|weight| &weight.constants).collect();
        distinct.into_values().sum::<u64>() + weights().map(|weight| weight.code_bytes).sum::<u64>()
    }
}
