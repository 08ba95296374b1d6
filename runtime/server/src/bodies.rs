//! Accounting for the memory of request bodies, from their first byte until the request is
//! processed.

use crate::limits::{
    BODIES_IN_FLIGHT_BYTES_MAX, REAL_TIME_BODIES_IN_FLIGHT_BYTES, SMALL_BODIES_IN_FLIGHT_BYTES, SMALL_BODY_BYTES_MAX,
};
use atoll_engine::Class;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Granularity of the accounting, so that byte counts fit the permits of a semaphore.
const UNIT_BYTES: usize = 4096;

/// Budget of bodies of any size.
const ANY_BYTES: usize = BODIES_IN_FLIGHT_BYTES_MAX - SMALL_BODIES_IN_FLIGHT_BYTES;

/// Largest body for which a reservation can succeed, in either class.
pub(crate) const ROOM_BYTES_MAX: usize = ANY_BYTES - REAL_TIME_BODIES_IN_FLIGHT_BYTES;

/// The memory budget of all bodies. A part of it is reserved for small bodies, and another one for
/// real-time requests.
#[derive(Clone, Debug)]
pub(crate) struct Bodies {
    any: Arc<Semaphore>,
    /// What best-effort requests may have of `any`.
    best_effort: Arc<Semaphore>,
    small: Arc<Semaphore>,
}

impl Bodies {
    pub(crate) fn new() -> Bodies {
        let of = |bytes: usize| Arc::new(Semaphore::new(bytes / UNIT_BYTES));
        Bodies { any: of(ANY_BYTES), best_effort: of(ROOM_BYTES_MAX), small: of(SMALL_BODIES_IN_FLIGHT_BYTES) }
    }

    /// A reservation of zero bytes, to be grown with [`BodyRoom::grow_to`]. The class of a request is
    /// in its body; until that has arrived, it is the highest one that its tenant may have.
    pub(crate) fn room(&self, class: Class) -> BodyRoom {
        BodyRoom { of: self.clone(), class, any: None, best_effort: None, small: None }
    }
}

/// The reservation of one body; dropping it returns the memory.
#[derive(Debug)]
pub(crate) struct BodyRoom {
    of: Bodies,
    class: Class,
    any: Option<OwnedSemaphorePermit>,
    best_effort: Option<OwnedSemaphorePermit>,
    small: Option<OwnedSemaphorePermit>,
}

impl BodyRoom {
    /// Grows the reservation to `bytes` in total. Returns false, and leaves the reservation
    /// unchanged, if the budget does not allow it.
    pub(crate) fn grow_to(&mut self, bytes: usize) -> bool {
        let has = |permit: &Option<OwnedSemaphorePermit>| permit.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let missing = bytes.div_ceil(UNIT_BYTES).saturating_sub(has(&self.any) + has(&self.small));
        let Ok(missing) = u32::try_from(missing) else { return false };
        if self.take_any(missing) {
            return true;
        }
        bytes <= SMALL_BODY_BYTES_MAX && take(&self.of.small, &mut self.small, missing)
    }

    fn take_any(&mut self, units: u32) -> bool {
        if self.class == Class::RealTime {
            return take(&self.of.any, &mut self.any, units);
        }
        // Returned at once if there is no memory for it.
        let mut share = None;
        if !take(&self.of.best_effort, &mut share, units) || !take(&self.of.any, &mut self.any, units) {
            return false;
        }
        put(&mut self.best_effort, share);
        true
    }
}

fn take(from: &Arc<Semaphore>, into: &mut Option<OwnedSemaphorePermit>, units: u32) -> bool {
    let taken = from.clone().try_acquire_many_owned(units).ok();
    let is_taken = taken.is_some();
    put(into, taken);
    is_taken
}

fn put(into: &mut Option<OwnedSemaphorePermit>, taken: Option<OwnedSemaphorePermit>) {
    match (into, taken) {
        (Some(permit), Some(taken)) => permit.merge(taken),
        (none, Some(taken)) => *none = Some(taken),
        (_, None) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_bodies_leave_room_for_small_ones() {
        let bodies = Bodies::new();
        let mut large = bodies.room(Class::RealTime);
        assert!(large.grow_to(ANY_BYTES - UNIT_BYTES) && large.grow_to(ANY_BYTES));
        assert!(!large.grow_to(ANY_BYTES + 1));
        let mut other = bodies.room(Class::RealTime);
        assert!(other.grow_to(SMALL_BODY_BYTES_MAX) && !other.grow_to(SMALL_BODY_BYTES_MAX + 1));
        drop(large);
        assert!(other.grow_to(SMALL_BODY_BYTES_MAX + 1));
    }

    #[test]
    fn best_effort_bodies_leave_room_for_real_time_ones() {
        let bodies = Bodies::new();
        let mut flood = bodies.room(Class::BestEffort);
        assert!(flood.grow_to(ROOM_BYTES_MAX) && !flood.grow_to(ROOM_BYTES_MAX + 1));
        let mut more = bodies.room(Class::BestEffort);
        assert!(!more.grow_to(SMALL_BODY_BYTES_MAX + 1));
        let mut urgent = bodies.room(Class::RealTime);
        assert!(urgent.grow_to(REAL_TIME_BODIES_IN_FLIGHT_BYTES));
        assert!(!urgent.grow_to(REAL_TIME_BODIES_IN_FLIGHT_BYTES + 1));
        drop(flood);
        assert!(more.grow_to(ROOM_BYTES_MAX), "all of its share is free again");
        // Real-time requests may take more than the part that is theirs.
        drop(more);
        assert!(urgent.grow_to(ANY_BYTES));
        let mut late = bodies.room(Class::BestEffort);
        assert!(!late.grow_to(SMALL_BODY_BYTES_MAX + 1));
        drop(urgent);
        assert!(late.grow_to(ROOM_BYTES_MAX), "what it did not get was not taken from its share");
    }

    #[test]
    fn a_dropped_reservation_returns_its_memory() {
        let bodies = Bodies::new();
        for _ in 0..3 {
            let mut rooms: Vec<BodyRoom> = std::iter::repeat_with(|| bodies.room(Class::RealTime)).take(1024).collect();
            assert!(rooms.iter_mut().all(|room| room.grow_to(SMALL_BODY_BYTES_MAX)), "1 GiB in all");
            assert!(!bodies.room(Class::RealTime).grow_to(1));
        }
    }
}
