//! The plain model of a device: constants that the daemon's residency keeps, loads one after the
//! other, and requests that each run for their service time.

use super::setup::{ClusterDevice, ClusterFunction};
use atoll_core::residency::{ItemFacts, ItemId, Residency, ResidencyPolicyEntry};
use atoll_core::{Class, Nanos};
use std::collections::{BTreeMap, VecDeque};

/// A device that runs its requests one after the other.
pub(super) struct PlainDevice {
    spec: ClusterDevice,
    residency: Residency,
    /// Functions being loaded, each with the time at which its load ends.
    loading: BTreeMap<usize, u64>,
    loader_free_at: u64,
    pub(super) running: Vec<Running>,
    /// Requests that wait until there is room for their constants.
    blocked: VecDeque<usize>,
    best_effort_free_at: u64,
    real_time_free_at: u64,
}

/// A request on a device.
#[derive(Clone, Copy)]
pub(super) struct Running {
    pub(super) request: usize,
    pub(super) function: usize,
    /// When it ends, unless a real-time request arrives before.
    pub(super) end_ns: u64,
    pub(super) cold: bool,
    pub(super) real_time: bool,
}

/// The consequences of accepting a request.
#[derive(Default)]
pub(super) struct Accepted {
    /// Functions that were evicted for it.
    pub(super) evicted: Vec<usize>,
    /// When the load that it started ends.
    pub(super) loaded_at: Option<u64>,
}

fn item(function: usize) -> ItemId {
    ItemId(function as u64)
}

impl PlainDevice {
    pub(super) fn new(spec: ClusterDevice, residency: &ResidencyPolicyEntry) -> PlainDevice {
        PlainDevice {
            spec,
            residency: Residency::new((residency.make)()),
            loading: BTreeMap::new(),
            loader_free_at: 0,
            running: Vec::new(),
            blocked: VecDeque::new(),
            best_effort_free_at: 0,
            real_time_free_at: 0,
        }
    }

    /// Makes room for a function and starts to load it. `None` if constants in use leave no room.
    fn load(&mut self, now: u64, index: usize, function: &ClusterFunction) -> Option<Accepted> {
        let bytes = function.constant_bytes;
        let free = self.spec.memory_bytes.saturating_sub(self.residency.resident_bytes());
        let evicted = self.residency.reclaim(Nanos(now), bytes.saturating_sub(free)).ok()?;
        let facts = ItemFacts { bytes, reload_ns: function.reload_ns, class: function.class };
        self.residency.add(Nanos(now), item(index), &facts);
        // Pinned until the load ends.
        self.residency.pin(item(index));
        let at = self.loader_free_at.max(now) + function.reload_ns;
        self.loader_free_at = at;
        self.loading.insert(index, at);
        Some(Accepted { evicted: evicted.iter().map(|item| item.0 as usize).collect(), loaded_at: Some(at) })
    }

    /// Loads a function ahead of requests. `None` if that is not possible.
    pub(super) fn preload(&mut self, now: u64, index: usize, function: &ClusterFunction) -> Option<Accepted> {
        if self.residency.contains(item(index)) {
            return Some(Accepted::default());
        }
        self.load(now, index, function)
    }

    /// The load of a function ended.
    pub(super) fn loaded(&mut self, index: usize) {
        self.loading.remove(&index);
        self.residency.unpin(item(index));
    }

    /// Evicts a function if no request uses it. Returns whether it did.
    pub(super) fn unload(&mut self, index: usize) -> bool {
        let is_used = self.running.iter().any(|running| running.function == index)
            || self.loading.contains_key(&index)
            || !self.residency.contains(item(index));
        if !is_used {
            self.residency.remove(item(index));
        }
        !is_used
    }

    /// Takes a request; `None` if it has to wait on the device for memory.
    pub(super) fn accept(
        &mut self,
        now: u64,
        request: usize,
        index: usize,
        function: &ClusterFunction,
    ) -> Option<Accepted> {
        let cold = !self.residency.contains(item(index));
        let accepted = if cold { self.load(now, index, function) } else { Some(Accepted::default()) };
        let Some(accepted) = accepted else {
            self.blocked.push_front(request);
            return None;
        };
        self.residency.used(Nanos(now), item(index));
        self.residency.pin(item(index));
        let ready = self.loading.get(&index).copied().unwrap_or(now).max(now);
        let real_time = function.class == Class::RealTime;
        let end_ns = self.run(ready, self.spec.service_ns(function), real_time);
        self.running.push(Running { request, function: index, end_ns, cold, real_time });
        Some(accepted)
    }

    /// Plans a request whose constants are there at `ready`. Returns when it ends.
    fn run(&mut self, ready: u64, service_ns: u64, real_time: bool) -> u64 {
        if !real_time {
            self.best_effort_free_at = self.best_effort_free_at.max(self.real_time_free_at).max(ready) + service_ns;
            return self.best_effort_free_at;
        }
        self.real_time_free_at = self.real_time_free_at.max(ready) + service_ns;
        // Best-effort requests are delayed by the time that it takes.
        self.best_effort_free_at += service_ns;
        for running in self.running.iter_mut().filter(|running| !running.real_time) {
            running.end_ns += service_ns;
        }
        self.real_time_free_at
    }

    /// Ends a request; `None` if it ends later, since a real-time request has delayed it.
    pub(super) fn end(&mut self, now: u64, request: usize) -> Option<Running> {
        let at = self.running.iter().position(|running| running.request == request && running.end_ns == now)?;
        let running = self.running.swap_remove(at);
        self.residency.unpin(item(running.function));
        self.residency.use_ended(Nanos(now), item(running.function));
        Some(running)
    }

    /// Removes and returns the first request that waits for memory.
    pub(super) fn unblock(&mut self) -> Option<usize> {
        self.blocked.pop_front()
    }
}
