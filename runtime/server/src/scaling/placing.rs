//! Places the instances of models: collects devices and instances for [`atoll_core::scaling`], and
//! carries out the moves that it decides.

use crate::app::App;
use crate::graphs::Functions;
use crate::instances::{Instance, client};
use crate::limits::FUNCTION_NAME_BYTES_MAX;
use crate::model::Model;
use atoll_core::packing::InstanceId;
use atoll_core::scaling::{
    self, Constants, Host, INSTANCES_MAX, Need, Placed, Relocation, Spot, Stay, assign, consolidate,
};
use atoll_engine::{DeviceId, FunctionKey, ShareSpec};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes reserved for `-auto-` and a number in an instance's name.
const SUFFIX_BYTES: usize = 12;

/// The number of the instance that is to be placed.
const NEW: InstanceId = InstanceId(u64::MAX);

/// Where a new instance goes.
#[derive(Debug)]
pub(super) enum Room {
    /// To the device of this name; to all devices of its function if `None`.
    On(Option<String>),
    /// Nowhere yet: instances have to leave first, and do.
    Later,
    /// There is no rectangle for it, for this reason.
    Nowhere(String),
}

/// The fleet with the instances of all functions.
struct View {
    hosts: Vec<Host>,
    placed: Vec<Placed>,
    /// By their numbers.
    instances: Vec<(FunctionKey, Arc<Instance>)>,
    functions: BTreeMap<FunctionKey, Constants>,
}

/// The function of an instance, as far as its place depends on it.
#[derive(Clone, Copy)]
struct OfFunction {
    constants: Constants,
    devices: u64,
}

fn mask(devices: &[DeviceId]) -> u64 {
    devices.iter().filter_map(|device| 1_u64.checked_shl(device.0.into())).fold(0, |mask, bit| mask | bit)
}

impl View {
    /// `None` if the fleet reports no room of devices, as a test double does.
    fn of(app: &App) -> Option<View> {
        let rooms = app.engine.share_rooms();
        if rooms.is_empty() {
            return None;
        }
        let mut view =
            View { hosts: Vec::new(), placed: Vec::new(), instances: app.instances.all(), functions: BTreeMap::new() };
        let numbers: BTreeMap<_, _> = (0..).zip(&view.instances).map(|(id, (key, _))| (client(key), id)).collect();
        for (device, room) in rooms.into_iter().enumerate() {
            let mut reserved = Vec::new();
            for (client, share) in room.held {
                // The share of a tenant, or of an instance that is being removed.
                let Some(id) = numbers.get(&client) else {
                    reserved.push(share);
                    continue;
                };
                view.add(app, *id, share, device);
            }
            let (divisible, bytes, is_open) = (room.divisible, room.memory_bytes, room.is_open);
            view.hosts.push(Host { divisible, bytes, is_open, reserved });
        }
        Some(view)
    }

    fn add(&mut self, app: &App, id: usize, share: ShareSpec, device: usize) {
        let (key, instance) = self.instances[id].clone();
        let function = FunctionKey { tenant: key.tenant.clone(), name: instance.function.clone() };
        let model = app.stage_model(&function.tenant, &function.name).ok();
        let of_function = self.function(&function, model.as_deref());
        // The part of the constants within its limit is counted with those.
        let bytes = instance.gpu_mem.unwrap_or(0).saturating_sub(of_function.constants.bytes);
        let need = Need { share, bytes, constants: of_function.constants, devices: of_function.devices };
        let stay = stay(app, &key, &instance);
        self.placed.push(Placed { id: InstanceId(id as u64), need, device, stay });
    }

    fn function(&mut self, key: &FunctionKey, model: Option<&Model>) -> OfFunction {
        let (next, bytes) = (self.functions.len() as u32, model.map_or(0, |model| model.constant_bytes));
        let constants = *self.functions.entry(key.clone()).or_insert(Constants { function: next, bytes });
        OfFunction { constants, devices: model.map_or(0, |model| mask(&model.devices)) }
    }

    /// Makes the successor of an instance that moves. The instance gets no more requests, and is
    /// removed when its own have ended.
    fn relocate(&self, app: &App, relocation: &Relocation, why: &str) -> bool {
        let (Some((key, instance)), Some(to)) =
            (self.instances.get(relocation.instance.0 as usize), app.engine.devices().get(relocation.to))
        else {
            return false;
        };
        let is_own =
            |now: Arc<Instance>| now.autoscaled.is_some() && now == *instance && !app.instances.is_draining(key);
        let function = FunctionKey { tenant: key.tenant.clone(), name: instance.function.clone() };
        let Some(successor) = free_key(app, &function).filter(|_| app.instances.find(key).is_some_and(is_own)) else {
            return false;
        };
        let from = instance.device.as_deref().unwrap_or("?");
        let moved = Instance {
            device: Some(to.clone()),
            autoscaled: Some(format!("{why} (from {from})")),
            ..Instance::clone(instance)
        };
        let cost_ms = relocation.cost_ns as f64 / 1e6;
        match app.instances.create(successor.clone(), moved, true) {
            Ok(()) => {
                app.instances.set_draining(key, true);
                app.scaler.note_move(&function);
                tracing::info!(instance = %key, %successor, from, to, cost_ms, why, "an instance moves");
                true
            }
            Err(error) => {
                tracing::warn!(instance = %key, from, to, %error, "an instance cannot move");
                false
            }
        }
    }
}

fn stay(app: &App, key: &FunctionKey, instance: &Instance) -> Stay {
    if app.instances.is_draining(key) {
        return Stay::Leaving;
    }
    if instance.autoscaled.is_none() || instance.lease.is_some() || instance.device.is_none() {
        return Stay::Fixed;
    }
    let standing = app.instances.standing(key, instance);
    let drain_ns =
        standing.map_or(0, |standing| u64::from(standing.in_flight).saturating_mul(standing.service_ns.unwrap_or(0)));
    Stay::Movable { drain_ns }
}

/// Chooses the place of a new instance of a model, and starts the moves that make room for it.
/// `pay_ns` is how long the instance stays at least.
pub(super) fn room(app: &App, model: &Model, share: ShareSpec, pay_ns: u64) -> Room {
    let Some(mut view) = View::of(app) else { return Room::On(None) };
    let of_function = view.function(&model.key, Some(model));
    let need = Need { share, bytes: 0, constants: of_function.constants, devices: of_function.devices };
    let assignment = assign(&view.hosts, &view.placed, &[(NEW, need)], pay_ns);
    let why = format!("it made room for an instance of {}", model.name);
    // Each has room once those before it are there.
    let have_moved = assignment.moves.iter().all(|relocation| view.relocate(app, relocation, &why));
    match assignment.spots.first() {
        Some((_, Spot::Now { device, is_over_memory })) => {
            let device = app.engine.devices().get(*device).cloned();
            if *is_over_memory {
                tracing::info!(model = model.name, device, "the constants of the instances there take turns in memory");
            }
            Room::On(device)
        }
        Some((_, Spot::Later { .. })) if have_moved => Room::Later,
        Some((_, Spot::Nowhere(why))) => Room::Nowhere(why.to_string()),
        _ => Room::Nowhere("instances that would have to move cannot; it is tried again".into()),
    }
}

/// Whether an instance can have another share on its device. `None` if the fleet does not report
/// the room of its devices, or the instance is unknown.
pub(super) fn resized(app: &App, key: &FunctionKey, share: ShareSpec) -> Option<Spot> {
    let view = View::of(app)?;
    let id = view.instances.iter().position(|(known, _)| known == key)?;
    Some(scaling::resized(&view.hosts, &view.placed, InstanceId(id as u64), share))
}

/// The devices of a model that take requests, those with the most time left first.
pub(super) fn open_devices(app: &App, model: &Model) -> Vec<Option<String>> {
    let Some(view) = View::of(app) else { return Vec::new() };
    let promised = |at: usize| {
        let of_device = view.placed.iter().filter(|placed| placed.device == at).map(|placed| placed.need.share);
        let all = of_device.chain(view.hosts[at].reserved.iter().copied());
        all.map(|share| share.partition().of(share.request().millionths().into())).sum::<u64>()
    };
    let mut devices: Vec<(u64, usize)> = model
        .devices
        .iter()
        .map(|device| usize::from(device.0))
        .filter(|at| view.hosts.get(*at).is_some_and(|host| host.is_open))
        .map(|at| (promised(at), at))
        .collect();
    devices.sort_unstable();
    devices.into_iter().map(|(_, at)| app.engine.devices().get(at).cloned()).collect()
}

/// Moves the instances of a device to others if that frees the device and pays. `waits` says
/// whether a new instance waits for room.
pub(super) fn free_a_device(app: &App, waits: bool, pay_ns: u64) {
    let Some(view) = View::of(app) else { return };
    for relocation in consolidate(&view.hosts, &view.placed, waits, pay_ns) {
        if !view.relocate(app, &relocation, "its device is free without it") {
            return;
        }
    }
}

/// The first name of an instance of a function that is free.
pub(super) fn free_key(app: &App, function: &FunctionKey) -> Option<FunctionKey> {
    let stem: String = function.name.chars().take(FUNCTION_NAME_BYTES_MAX - SUFFIX_BYTES).collect();
    let name = |number: usize| FunctionKey { tenant: function.tenant.clone(), name: format!("{stem}-auto-{number}") };
    (1..=INSTANCES_MAX + 1).map(name).find(|key| app.instances.find(key).is_none())
}
