//! Which device of a fleet gets a new instance, and which instances move for it.
//!
//! A device is a plan of time and compute units, divided by maximal rectangles
//! ([`crate::packing::Layout`]), with memory that only adds up. [`assign`] places new instances
//! largest first:
//!
//! 1. on a device that has instances, into the smallest free rectangle that holds it; what is on
//!    that device already is arranged anew if it has to be, which is free;
//! 2. there, after other instances have moved to other devices that have instances;
//! 3. on a device without instances;
//! 4. after others have moved to any device;
//! 5. where the constants of all functions do not fit into memory together: they take turns.
//!
//! [`resized`] says whether an instance has room for another share on its device.
//!
//! [`consolidate`] moves the instances of a device to others that have room, so that it is free.
//!
//! An instance moves by a successor on the other device, which takes the new requests. Its old
//! place is free once its own requests have ended, so both are promised for a while. The cost of a
//! move is that while in device time, and the constants that are copied to a device that had none
//! of the function ([`crate::scaling::NS_PER_BYTE`]). Moves pay if their cost does not exceed what
//! they bring until the next decision can take it back, for which `pay_ns` stands: the time of the
//! device that stays free, or the time of the instance that would have no place.

use crate::packing::InstanceId;
use crate::scaling::fleet::{Fleet, Repacked};
use crate::scaling::host::{Entry, Host, Need, Nowhere, Placed, Relocation, Spot, Stay};
use crate::tokens::ShareSpec;
use std::cmp::Reverse;

/// Where new instances go, and what moves for them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assignment {
    /// The new instances, largest first.
    pub spots: Vec<(InstanceId, Spot)>,
    /// Moves in their order. There is room for each successor as soon as those before it are there,
    /// while the old places are still taken.
    pub moves: Vec<Relocation>,
}

impl Assignment {
    /// What the moves cost, in nanoseconds of a device's time.
    pub fn cost_ns(&self) -> u64 {
        self.moves.iter().map(|relocation| relocation.cost_ns).sum()
    }
}

/// Where new instances go. `pay_ns` is the time for which a place is kept at least: the time until
/// an instance that was added may be removed again.
pub fn assign(hosts: &[Host], placed: &[Placed], wanted: &[(InstanceId, Need)], pay_ns: u64) -> Assignment {
    let mut fleet = Fleet::new(hosts, placed);
    let mut wanted = wanted.to_vec();
    wanted.sort_by_key(|(id, need)| (Reverse(need.size()), *id));
    let mut assignment = Assignment::default();
    for (id, need) in wanted {
        let entry = fleet.entry(id, need, Stay::Fixed);
        let spot = place(&mut fleet, &entry, pay_ns, &mut assignment.moves);
        assignment.spots.push((id, spot));
    }
    assignment
}

fn place(fleet: &mut Fleet<'_>, entry: &Entry, pay_ns: u64, moves: &mut Vec<Relocation>) -> Spot {
    if !fleet.is_taken_somewhere(&entry.need) {
        return Spot::Nowhere(Nowhere::Closed);
    }
    if let Some(device) = fleet.best(entry, true) {
        return fleet.put(device, entry);
    }
    // A device that is not asked for is free for all of the time.
    if let Some(repacked) = fleet.repack(entry, pay_ns, false) {
        return adopt(fleet, repacked, entry, moves);
    }
    if let Some(device) = fleet.best(entry, false) {
        return fleet.put(device, entry);
    }
    let share = &entry.need.share;
    let brings_ns = share.partition().of(share.request().of(pay_ns));
    if let Some(repacked) = fleet.repack(entry, brings_ns, true) {
        return adopt(fleet, repacked, entry, moves);
    }
    match fleet.best_over_memory(entry) {
        Some(device) => fleet.put(device, entry),
        None => Spot::Nowhere(Nowhere::Room),
    }
}

fn adopt<'a>(fleet: &mut Fleet<'a>, repacked: Repacked<'a>, entry: &Entry, moves: &mut Vec<Relocation>) -> Spot {
    moves.extend(&repacked.moves);
    let device = repacked.device;
    fleet.adopt(repacked);
    fleet.settle(device, entry)
}

/// Whether an instance can have another share on its device: now, later when leaving instances are
/// gone, or not at all. In the last case it needs a successor on another device. No other instance
/// moves for it.
pub fn resized(hosts: &[Host], placed: &[Placed], id: InstanceId, share: ShareSpec) -> Spot {
    let Some(own) = placed.iter().find(|placed| placed.id == id) else { return Spot::Nowhere(Nowhere::Closed) };
    let others: Vec<Placed> = placed.iter().filter(|placed| placed.id != id).copied().collect();
    let mut fleet = Fleet::new(hosts, &others);
    let entry = fleet.entry(id, Need { share, ..own.need }, Stay::Fixed);
    if fleet.has_room(own.device, &entry) { fleet.put(own.device, &entry) } else { Spot::Nowhere(Nowhere::Room) }
}

/// The moves after which a device that has instances has none any more, if there are any that pay.
///
/// Nothing moves while instances are leaving, or while a new one waits for its place (`waits`,
/// after [`Spot::Later`]): the instances that made room for it could move back into that place,
/// would have to make room again, and so on without end.
pub fn consolidate(hosts: &[Host], placed: &[Placed], waits: bool, pay_ns: u64) -> Vec<Relocation> {
    if waits || placed.iter().any(|placed| placed.stay == Stay::Leaving) {
        return Vec::new();
    }
    Fleet::new(hosts, placed).emptied(pay_ns).map(|repacked| repacked.moves).unwrap_or_default()
}
