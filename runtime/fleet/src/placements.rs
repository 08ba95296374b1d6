//! The devices of each function, and the bytes that each device holds.

use atoll_core::DeviceId;
use atoll_core::placement::FunctionId;
use atoll_engine::{FunctionKey, FunctionOptions};
use atoll_kgraph::{Bundle, ConstantDigest};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Instant;

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
    /// How to load it onto further devices; `None` if it has to stay where it is.
    pub(crate) source: Option<Arc<Source>>,
    /// When it was last loaded onto further devices in vain.
    pub(crate) failed_at: Option<Instant>,
    weights: Vec<(DeviceId, Weight)>,
}

/// What is needed to load a function again.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) bundle: Arc<Bundle>,
    pub(crate) options: FunctionOptions,
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
        let placement = Placement { id, devices, is_pooled: false, source: None, failed_at: None, weights };
        self.functions.insert(function, placement);
        id
    }

    /// Records the devices onto which a function was loaded.
    pub(crate) fn loaded(
        &mut self,
        function: &FunctionKey,
        devices: &[DeviceId],
        is_pooled: bool,
        source: Option<Source>,
    ) {
        if let Some(placement) = self.functions.get_mut(function) {
            placement.source = source.map(Arc::new);
            placement.devices = devices.to_vec();
            placement.weights.retain(|(device, _)| devices.contains(device));
            placement.is_pooled = is_pooled;
        }
    }

    /// Records further devices onto which a function was loaded; `false` if it was unloaded meanwhile.
    pub(crate) fn extend(&mut self, function: &FunctionKey, id: FunctionId, more: Vec<(DeviceId, Weight)>) -> bool {
        let Some(placement) = self.functions.get_mut(function).filter(|placement| placement.id == id) else {
            return false;
        };
        if more.is_empty() {
            placement.failed_at = Some(Instant::now());
        }
        placement.devices.extend(more.iter().map(|(device, _)| *device));
        placement.weights.extend(more);
        true
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
