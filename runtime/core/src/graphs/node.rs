//! The nodes of a cluster: their constants and reservations.

use super::costs::KindId;
use super::event::{Action, FunctionId, NodeId};
use super::timeline::Timeline;
use std::collections::BTreeMap;

/// A device that runs one stage at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeSpec {
    /// Its kind.
    pub kind: KindId,
    /// Memory for constants, in bytes.
    pub bytes: u64,
}

/// Constants on a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resident {
    pub(super) bytes: u64,
    /// Time to unload them.
    pub(super) post: u64,
    /// Reserved and running stages that need them.
    pub(super) pins: u32,
    /// When their load is planned to end.
    pub(super) ready: u64,
    pub(super) is_loaded: bool,
    /// The last time that they were needed.
    pub(super) used: u64,
}

/// The state of a node.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) spec: NodeSpec,
    pub(super) is_lost: bool,
    /// Whether it gets no new requests.
    pub(super) is_drained: bool,
    pub(super) resident: BTreeMap<FunctionId, Resident>,
    /// Bytes of all constants on it.
    used_bytes: u64,
    /// Bytes of the constants that are pinned.
    pinned_bytes: u64,
    pub(super) timeline: Timeline,
    /// When to look for work again.
    pub(super) wake: u64,
    /// When the current run began.
    pub(super) started: u64,
    /// When the last requested load is planned to end. A node loads one function at a time.
    pub(super) loads_until: u64,
}

impl Node {
    /// Whether it may get new requests.
    pub(super) fn is_open(&self) -> bool {
        !self.is_lost && !self.is_drained
    }

    pub(super) fn new(spec: NodeSpec) -> Node {
        Node {
            spec,
            is_lost: false,
            is_drained: false,
            resident: BTreeMap::new(),
            used_bytes: 0,
            pinned_bytes: 0,
            timeline: Timeline::default(),
            wake: u64::MAX,
            started: 0,
            loads_until: 0,
        }
    }

    /// Bytes that are free or can be freed: all but those of pinned constants.
    pub(super) fn free_bytes(&self) -> u64 {
        self.spec.bytes - self.pinned_bytes
    }

    /// Bytes that a function adds to the pinned ones.
    pub(super) fn needed_bytes(&self, function: FunctionId, bytes: u64) -> u64 {
        match self.resident.get(&function) {
            Some(resident) if resident.pins > 0 => 0,
            _ => bytes,
        }
    }

    /// Time to unload enough constants for `bytes` more bytes. Functions for which `kept` is true
    /// are not unloaded.
    pub(super) fn unload_ns(&self, bytes: u64, kept: impl Fn(FunctionId) -> bool) -> u64 {
        if self.used_bytes + bytes <= self.spec.bytes {
            return 0;
        }
        self.victims(bytes, kept).iter().map(|victim| self.resident[victim].post).sum()
    }

    /// The constants to unload for `bytes` more bytes, the least recently used first. May free less
    /// than needed if the rest is pinned or kept.
    fn victims(&self, bytes: u64, kept: impl Fn(FunctionId) -> bool) -> Vec<FunctionId> {
        let mut missing = (self.used_bytes + bytes).saturating_sub(self.spec.bytes);
        let idle = self.resident.iter().filter(|(function, resident)| resident.pins == 0 && !kept(**function));
        let mut idle: Vec<(u64, FunctionId, u64)> =
            idle.map(|(function, resident)| (resident.used, *function, resident.bytes)).collect();
        idle.sort_unstable();
        let mut victims = Vec::new();
        for (_, function, bytes) in idle {
            if missing == 0 {
                break;
            }
            victims.push(function);
            missing = missing.saturating_sub(bytes);
        }
        victims
    }

    /// Pins a function for one more stage. Loads it if it is not resident; the caller has checked
    /// that there is room.
    pub(super) fn pin(&mut self, id: NodeId, function: FunctionId, new: Resident, actions: &mut Vec<Action>) {
        if let Some(resident) = self.resident.get_mut(&function) {
            resident.pins += 1;
            resident.used = new.used;
            if resident.pins == 1 {
                self.pinned_bytes += resident.bytes;
            }
            return;
        }
        self.unload_for(id, new.bytes, actions);
        self.loads_until = self.loads_until.max(new.ready);
        assert!(self.used_bytes + new.bytes <= self.spec.bytes, "a placement checks the memory that it needs");
        self.used_bytes += new.bytes;
        self.pinned_bytes += new.bytes;
        self.resident.insert(function, Resident { pins: 1, is_loaded: false, ..new });
        actions.push(Action::Load { node: id, function });
    }

    fn unload_for(&mut self, id: NodeId, bytes: u64, actions: &mut Vec<Action>) {
        for victim in self.victims(bytes, |_| false) {
            if let Some(resident) = self.resident.remove(&victim) {
                self.used_bytes -= resident.bytes;
                actions.push(Action::Unload { node: id, function: victim });
            }
        }
    }

    /// Records a function that became resident without a load of this admission. Ignored if it is
    /// known already, or does not fit beside the others.
    pub(super) fn found(&mut self, function: FunctionId, new: Resident) {
        let fits = self.used_bytes.saturating_add(new.bytes) <= self.spec.bytes;
        if fits && !self.is_lost && !self.resident.contains_key(&function) {
            self.used_bytes += new.bytes;
            self.resident.insert(function, Resident { pins: 0, is_loaded: true, ..new });
        }
    }

    /// Forgets functions that are gone and not pinned.
    pub(super) fn forget(&mut self, is_gone: impl Fn(FunctionId) -> bool) {
        let used = &mut self.used_bytes;
        self.resident.retain(|function, resident| {
            let keep = resident.pins > 0 || !is_gone(*function);
            *used -= if keep { 0 } else { resident.bytes };
            keep
        });
    }

    /// Unpins a function: a stage that needed it has ended.
    pub(super) fn unpin(&mut self, function: FunctionId, now: u64) {
        let Some(resident) = self.resident.get_mut(&function) else { return };
        resident.pins -= 1;
        resident.used = now;
        if resident.pins == 0 {
            self.pinned_bytes -= resident.bytes;
        }
    }

    /// Marks the node as lost and clears its state.
    pub(super) fn lose(&mut self) {
        *self = Node { is_lost: true, is_drained: self.is_drained, ..Node::new(self.spec) };
    }
}
