//! Assigns offsets to temporary buffers.

use super::aligned_bytes;
use super::lifetime::Lifetime;
use crate::size::{as_monomial, canonical};
use atoll_kgraph::{BUFFER_ALIGN, BufferId, Expr, KernelGraph};
use std::collections::BTreeMap;

/// The offsets of all buffers.
pub(super) struct Placed {
    /// One entry per lifetime, in that order.
    pub(super) temps: Vec<Temp>,
    pub(super) arena_bytes: Expr,
}

/// The offset of one buffer.
pub(super) struct Temp {
    pub(super) buffer: BufferId,
    pub(super) offset: Expr,
    pub(super) region: Region,
}

/// A memory range that can be compared for all symbol values at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Region {
    /// Bytes `start..end` of a family, each multiplied by the family's symbols.
    Family { family: usize, start: i64, end: i64 },
    /// A whole slot.
    Slot(usize),
}

impl Region {
    pub(super) fn overlaps(&self, other: &Region) -> bool {
        match (self, other) {
            (Region::Family { family: f, start: s, end: e }, Region::Family { family: g, start: t, end: u }) => {
                f == g && s < u && t < e
            }
            (Region::Slot(a), Region::Slot(b)) => a == b,
            _ => false,
        }
    }
}

/// Assigns an offset to every lifetime.
pub(super) fn place(graph: &KernelGraph, lifetimes: &[Lifetime]) -> Placed {
    let mut families: BTreeMap<Vec<Expr>, Vec<(usize, i64)>> = BTreeMap::new();
    let mut others: Vec<usize> = Vec::new();
    for (index, lifetime) in lifetimes.iter().enumerate() {
        match family_of(graph, lifetime.buffer) {
            Some((factor, symbols)) => families.entry(symbols).or_default().push((index, factor)),
            None => others.push(index),
        }
    }
    let mut regions: Vec<Option<(Expr, Region)>> = vec![None; lifetimes.len()];
    let mut base = Expr::Const(0);
    for (family, (symbols, members)) in families.iter().enumerate() {
        let (starts, length) = pack(lifetimes, members);
        let times = |bytes: i64| Expr::product(symbols) * bytes;
        for ((index, bytes), start) in members.iter().zip(starts) {
            let offset = canonical(&(base.clone() + times(start)));
            regions[*index] = Some((offset, Region::Family { family, start, end: start + bytes }));
        }
        base = base + times(length);
    }
    for (slot, members) in share_slots(graph, lifetimes, &others).into_iter().enumerate() {
        for index in &members.lifetimes {
            regions[*index] = Some((canonical(&base), Region::Slot(slot)));
        }
        base = base + members.bytes;
    }
    let temps = lifetimes
        .iter()
        .zip(regions)
        .filter_map(|(l, r)| r.map(|(offset, region)| Temp { buffer: l.buffer, offset, region }));
    Placed { temps: temps.collect(), arena_bytes: base }
}

/// A buffer's size as `(factor, symbols)`: a multiple of the alignment times symbols that are at
/// least 1. Rounding up the factor is enough: `c * s` bytes are at most `align(c) * s`. Buffers
/// without memory have no family.
fn family_of(graph: &KernelGraph, buffer: BufferId) -> Option<(i64, Vec<Expr>)> {
    let (factor, symbols) = as_monomial(&graph.buffers[buffer.0 as usize].bytes())?;
    let at_least_one = symbols.iter().all(|e| crate::size::bounds(e, &graph.symbols).is_some_and(|(low, _)| low >= 1));
    let unit = BUFFER_ALIGN as i64;
    let aligned = factor.checked_add(unit - 1)? / unit * unit;
    (factor > 0 && at_least_one).then_some((aligned, symbols))
}

/// Packs the members, largest first, each into the smallest hole between the members that live at
/// the same time. Returns the start of each member and the total length.
fn pack(lifetimes: &[Lifetime], members: &[(usize, i64)]) -> (Vec<i64>, i64) {
    let mut order: Vec<usize> = (0..members.len()).collect();
    order.sort_by_key(|m| (-members[*m].1, lifetimes[members[*m].0].first));
    let mut starts = vec![0; members.len()];
    let mut done: Vec<usize> = Vec::with_capacity(members.len());
    let mut length = 0;
    for member in order {
        let (index, bytes) = members[member];
        let mut taken: Vec<(i64, i64)> = done
            .iter()
            .filter(|other| lifetimes[members[**other].0].meets(&lifetimes[index]))
            .map(|other| (starts[*other], starts[*other] + members[*other].1))
            .collect();
        taken.sort_unstable();
        starts[member] = best_hole(&taken, bytes);
        length = length.max(starts[member] + bytes);
        done.push(member);
    }
    (starts, length)
}

/// Start of the smallest hole of at least `bytes` between sorted ranges; the end of all ranges if
/// no hole is large enough.
fn best_hole(taken: &[(i64, i64)], bytes: i64) -> i64 {
    let mut best: Option<(i64, i64)> = None;
    let mut free_from = 0;
    for (start, end) in taken {
        let hole = start - free_from;
        if hole >= bytes && best.is_none_or(|(smallest, _)| hole < smallest) {
            best = Some((hole, free_from));
        }
        free_from = free_from.max(*end);
    }
    best.map_or(free_from, |(_, start)| start)
}

/// Buffers that use the same memory, one after the other.
struct Slot {
    lifetimes: Vec<usize>,
    bytes: Expr,
}

/// Assigns slots to buffers whose sizes cannot be compared for all symbol values: each goes into
/// the free slot that grows least, at the symbols' largest values.
fn share_slots(graph: &KernelGraph, lifetimes: &[Lifetime], members: &[usize]) -> Vec<Slot> {
    let largest: Vec<i64> = graph.symbols.iter().map(|s| s.max).collect();
    let weight = |size: &Expr| size.eval(&largest).unwrap_or(i64::MAX);
    let size = |index: usize| canonical(&aligned_bytes(graph, lifetimes[index].buffer));
    let mut order: Vec<usize> = members.to_vec();
    order.sort_by_key(|index| std::cmp::Reverse(weight(&size(*index))));
    let mut slots: Vec<Slot> = Vec::new();
    for index in order {
        let bytes = size(index);
        let free = |slot: &&mut Slot| slot.lifetimes.iter().all(|other| !lifetimes[*other].meets(&lifetimes[index]));
        let grown = |slot: &Slot| canonical(&slot.bytes.clone().max(bytes.clone()));
        match slots.iter_mut().filter(free).min_by_key(|slot| weight(&grown(slot)).saturating_sub(weight(&slot.bytes)))
        {
            Some(slot) => {
                slot.bytes = grown(slot);
                slot.lifetimes.push(index);
            }
            None => slots.push(Slot { lifetimes: vec![index], bytes }),
        }
    }
    slots
}
