//! Placement by expected cost.
//!
//! The cost of a request on a device is its expected service time there. If the device does not
//! hold the function, a share of the time to load it is added. Requests with a low cost come first,
//! as in SRTF. Waiting time is subtracted from the cost ([`Ageing`](super::super::Ageing)), so that
//! no request starves. The sort key `service + arrival × ageing` does not change while a request
//! waits.
//!
//! Requests of a function that is loaded on a device wait for that device, with three exceptions: a
//! load onto another device is expected to finish earlier; the waiting requests would keep the
//! function's devices busy for longer than a load takes; or the first request has waited as long as
//! a load takes (the ski-rental rule). In pools of different kinds of devices, requests may also wait
//! for a faster device (`faster.rs`).

use super::Policy;
use super::faster::{alone_ns, finish_ns, is_slower, may_run_on};
use super::heads::Heads;
use crate::ids::{DeviceId, Nanos};
use crate::placement::classes::ClassId;
use crate::placement::config::PoolOptions;
use crate::placement::id_set::DeviceSet;
use crate::placement::state::{Device, Function, State};
use crate::placement::{FunctionId, PoolAction};

/// Devices or functions that one decision examines at most, so that its time is bounded. The best
/// of them is taken.
const LOOKED_AT: usize = 64;
/// Devices that are examined to find how soon a holder of a function is free, or to place a
/// replica.
const HOLDERS: usize = 16;
/// Functions whose waiting requests are counted to decide about a slower device.
const COUNTED: usize = 16;
/// Functions that are unloaded for one that does not fit.
const UNLOADS_MAX: usize = 4;

/// The policy `cost`; see the module's description.
pub(super) struct Cost {
    ageing: u64,
    /// Functions by class and key.
    heads: Heads<ClassId, u64>,
    /// Devices with a free slot.
    free: DeviceSet,
    /// Functions whose queue has grown since replication was last considered.
    grown: Vec<FunctionId>,
    /// Functions that were dispatched to a device that did not hold them.
    cold: Vec<(FunctionId, DeviceId)>,
    /// Functions to unload to make room for the functions of `cold`.
    unloads: Vec<PoolAction>,
}

impl Cost {
    pub(super) fn new(options: &PoolOptions) -> Cost {
        Cost {
            ageing: u64::from(options.ageing.per_mille.max(1)),
            heads: Heads::default(),
            free: DeviceSet::default(),
            grown: Vec::new(),
            cold: Vec::new(),
            unloads: Vec::new(),
        }
    }

    /// Expected time of the waiting requests of a class on the fastest devices; a lower bound if they
    /// are of many functions.
    fn backlog_ns(&self, state: &State, class: ClassId) -> u64 {
        let of = |(_, id)| {
            let function = state.function(id);
            (function.waiting.len() as u64).saturating_mul(function.shortest_service())
        };
        self.heads.part(class).take(COUNTED).map(of).fold(0, u64::saturating_add)
    }

    fn key(&self, service: u64, arrival: Nanos) -> u64 {
        // Divided first, since the product would overflow after a long uptime.
        service.saturating_add(arrival.0 / 1000 * self.ageing)
    }

    /// The share of a load in the cost of the function's first request: the waiting requests divide
    /// the time of the load. A load that evicts other functions counts twice, because it is likely
    /// to cause another load.
    fn load_share(state: &State, function: &Function, device: DeviceId) -> u64 {
        let reload = state.reload(function, device);
        let member = state.member(device);
        let evicts = member.resident_bytes.saturating_add(function.constant_bytes) > member.spec.memory_bytes;
        (if evicts { 2 * reload } else { reload }) / (function.waiting.len() as u64).max(1)
    }

    /// Whether to load the function onto this device now instead of waiting for a device that holds
    /// it.
    fn is_worth_loading(now: Nanos, state: &State, function: &Function, device: DeviceId) -> bool {
        let reload = state.reload(function, device);
        let waited = function.waiting.first().map_or(0, |((arrival, _), _)| now.0.saturating_sub(arrival.0));
        if waited >= reload {
            return true;
        }
        let holders = function.resident.len() as u64;
        let service = |device| state.service(function, state.member(device));
        let fastest = function.resident.iter().take(HOLDERS).map(service).min().unwrap_or_default();
        if holders == 0 || function.waiting.len() as u64 * fastest / holders > reload {
            return true;
        }
        // True if no holder is active.
        let active = &state.classes.get(function.class).active;
        let here = reload.saturating_add(service(device));
        let is_later = |holder| finish_ns(now, state, function, holder) > here;
        function.resident.both(active).take(HOLDERS).all(is_later)
    }

    /// The best function for a free device. Walks functions in the order of their keys: the first
    /// one that the device holds is the best resident one; the others pay for a load.
    fn for_device(&self, now: Nanos, state: &State, device: DeviceId) -> Option<(u64, FunctionId)> {
        let mut best: Option<(u64, FunctionId)> = None;
        for &class in &state.member(device).classes {
            for (key, id) in self.heads.part(class).take(LOOKED_AT) {
                if best.is_some_and(|best| best.0 <= key) {
                    break;
                }
                let function = state.function(id);
                let slower = state.service(function, state.member(device)) - function.shortest_service();
                let is_resident = function.resident.contains(device);
                let load = if is_resident { 0 } else { Cost::load_share(state, function, device) };
                let key = key.saturating_add(slower).saturating_add(load);
                if best.is_none_or(|best| key < best.0)
                    && (is_resident || Cost::is_worth_loading(now, state, function, device))
                    && may_run_on(now, state, function, device, || self.backlog_ns(state, class))
                {
                    best = Some((key, id));
                }
                if is_resident && slower == 0 {
                    break;
                }
            }
        }
        best
    }

    /// The best free device for a function; `None` if its first request waits for another one.
    fn for_function(&self, now: Nanos, state: &State, id: FunctionId) -> Option<DeviceId> {
        let function = state.function(id);
        let device = Cost::free_device(now, state, id)?;
        if !is_slower(state, function, device) {
            return Some(device);
        }
        // A faster device that is free may be worth a load.
        let service = |device| state.service(function, state.member(device));
        let faster = state.free(id).iter().take(LOOKED_AT).filter(|other| service(*other) < service(device));
        let finish = |device| (finish_ns(now, state, function, device), device);
        let (_, device) = faster.chain([device]).map(finish).min()?;
        may_run_on(now, state, function, device, || self.backlog_ns(state, function.class)).then_some(device)
    }

    /// The best free device for a function, of those that hold it if there is one. Ignores devices
    /// that are not free.
    fn free_device(now: Nanos, state: &State, id: FunctionId) -> Option<DeviceId> {
        let function = state.function(id);
        let free = state.free(id);
        let finish = |device: &DeviceId| {
            let member = state.member(*device);
            member.best_effort.left_ns(now).saturating_add(state.service(function, member))
        };
        // A kind of device whose time is unknown counts as the fastest, and is tried first.
        let is_known = |device: &DeviceId| state.is_mixed() && function.times.knows(state.member(*device).spec.kind);
        let warm = function.resident.both(free).take(LOOKED_AT);
        if let Some((.., device)) = warm.map(|device| (finish(&device), is_known(&device), device)).min() {
            return Some(device);
        }
        // Of equal devices the next one in turn: if all are full, loads are divided among them.
        let cold = free.cycle_from(state.cursor).take(LOOKED_AT);
        let device = cold.min_by_key(|device| {
            let cost = finish(device).saturating_add(Cost::load_share(state, function, *device));
            (cost, is_known(device), state.member(*device).resident_bytes)
        })?;
        Cost::is_worth_loading(now, state, function, device).then_some(device)
    }

    /// Loads a function with waiting requests onto one more device that has room. The device may
    /// still be busy with other requests. The second half of a device's memory is reserved for
    /// functions whose waiting requests take longer than a load.
    fn replicate(now: Nanos, state: &State, id: FunctionId) -> Option<PoolAction> {
        let function = state.functions.get(id)?;
        let class = state.classes.get(function.class);
        let holders = function.resident.len() as u64;
        if function.waiting.is_empty() || holders == 0 || holders >= class.active.len() as u64 {
            return None;
        }
        if function.constant_bytes > 0 && state.with_room.is_empty() {
            return None;
        }
        let work = function.waiting.len() as u64 * function.shortest_service();
        let reload = function.times.shortest_reload().unwrap_or_default().0;
        let limit = |member: &Device| match work / holders > reload {
            true => member.spec.memory_bytes,
            false => member.spec.memory_bytes / 2,
        };
        let fits = |device: &DeviceId| {
            let member = state.member(*device);
            !is_slower(state, function, *device)
                && !function.resident.contains(*device)
                && member.resident_bytes.saturating_add(function.constant_bytes) <= limit(member)
        };
        let devices = class.active.cycle_from(state.cursor).take(HOLDERS).filter(fits);
        let device = devices.min_by_key(|device| (state.member(*device).best_effort.until(now), *device))?;
        Some(PoolAction::Load { function: id, device })
    }

    /// Unloads idle functions that other devices hold, too, from a device whose resident bytes
    /// exceed its memory.
    fn make_room(state: &State, device: DeviceId, keep: FunctionId) -> Vec<PoolAction> {
        let mut actions = Vec::new();
        let Some(member) = state.device(device) else { return actions };
        let mut excess = member.resident_bytes.saturating_sub(member.spec.memory_bytes);
        if excess == 0 || state.idle.is_empty() {
            return actions;
        }
        let is_replicated =
            |id: &FunctionId| *id != keep && state.idle.contains(*id) && state.function(*id).resident.len() > 1;
        for id in member.resident.iter().take(LOOKED_AT).filter(is_replicated).take(UNLOADS_MAX) {
            if excess == 0 {
                break;
            }
            excess = excess.saturating_sub(state.function(id).constant_bytes);
            actions.push(PoolAction::Unload { function: id, device });
        }
        actions
    }
}

impl Policy for Cost {
    fn function_changed(&mut self, state: &State, function: FunctionId) {
        let entry = state.head(function);
        let entry = entry.map(|(head, (arrival, _))| (head.class, self.key(head.shortest_service(), arrival)));
        self.heads.set(function, entry);
    }

    fn device_changed(&mut self, state: &State, device: DeviceId) {
        self.free.set(device, state.device(device).is_some_and(|device| device.has_slot()));
    }

    fn arrived(&mut self, _state: &State, function: FunctionId) {
        self.grown.push(function);
    }

    fn next(&mut self, now: Nanos, state: &State) -> Option<(FunctionId, DeviceId)> {
        if self.free.is_empty() || self.heads.len() == 0 {
            return None;
        }
        if self.heads.len() > self.free.len() {
            let choice = |device| Some((self.for_device(now, state, device)?, device));
            let ((_, function), device) = self.free.iter().filter_map(choice).next()?;
            return Some((function, device));
        }
        let parts = self.heads.firsts().map(|(class, ..)| class);
        let with_free = parts.filter(|class| !state.classes.get(*class).free.is_empty());
        let mut functions = with_free.flat_map(|class| self.heads.part(class).take(LOOKED_AT));
        functions.find_map(|(_, id)| Some((id, self.for_function(now, state, id)?)))
    }

    fn dispatched(&mut self, _now: Nanos, state: &State, function: FunctionId, device: DeviceId) {
        if !state.function(function).resident.contains(device) {
            self.cold.push((function, device));
        }
    }

    /// The next time at which a function's first request has waited as long as a load onto a free
    /// device takes.
    fn wakeup(&self, now: Nanos, state: &State) -> Option<Nanos> {
        if self.free.is_empty() {
            return None;
        }
        let functions = self.heads.firsts().flat_map(|(class, ..)| self.heads.part(class).take(LOOKED_AT));
        let worth_loading = |(_, id)| {
            let device = state.free(id).first_from(0)?;
            let function = state.function(id);
            let ((arrival, _), _) = function.waiting.first()?;
            let after = |ns: u64| Some(Nanos(arrival.0.saturating_add(ns))).filter(|at| *at > now);
            let load = after(state.reload(function, device));
            // Slower devices wait longer.
            let slower = state.free(id).iter().take(HOLDERS).filter(|device| is_slower(state, function, *device));
            let slower = slower.filter_map(|device| after(alone_ns(state, function, device)));
            slower.chain(load).min()
        };
        functions.filter_map(worth_loading).min()
    }

    fn after(&mut self, now: Nanos, state: &State) -> Option<PoolAction> {
        while let Some((function, device)) = self.cold.pop() {
            self.unloads.extend(Cost::make_room(state, device, function));
        }
        if let Some(action) = self.unloads.pop() {
            return Some(action);
        }
        while let Some(function) = self.grown.pop() {
            if let Some(action) = Cost::replicate(now, state, function) {
                return Some(action);
            }
        }
        None
    }
}
