//! Accounting for the memory of request bodies, from their first byte until the request is
//! processed.

use crate::limits::{BODIES_IN_FLIGHT_BYTES_MAX, SMALL_BODIES_IN_FLIGHT_BYTES, SMALL_BODY_BYTES_MAX};
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Granularity of the accounting, so that byte counts fit the permits of a semaphore.
const UNIT_BYTES: usize = 4096;

/// The memory budget of all bodies. A part of it is reserved for small bodies.
#[derive(Clone, Debug)]
pub(crate) struct Bodies {
    any: Arc<Semaphore>,
    small: Arc<Semaphore>,
}

impl Bodies {
    pub(crate) fn new() -> Bodies {
        let of = |bytes: usize| Arc::new(Semaphore::new(bytes / UNIT_BYTES));
        Bodies {
            any: of(BODIES_IN_FLIGHT_BYTES_MAX - SMALL_BODIES_IN_FLIGHT_BYTES),
            small: of(SMALL_BODIES_IN_FLIGHT_BYTES),
        }
    }

    /// A reservation of zero bytes, to be grown with [`BodyRoom::grow_to`].
    pub(crate) fn room(&self) -> BodyRoom {
        BodyRoom { of: self.clone(), any: None, small: None }
    }
}

/// Largest body for which a reservation can succeed.
pub(crate) const ROOM_BYTES_MAX: usize = BODIES_IN_FLIGHT_BYTES_MAX - SMALL_BODIES_IN_FLIGHT_BYTES;

/// The reservation of one body; dropping it returns the memory.
#[derive(Debug)]
pub(crate) struct BodyRoom {
    of: Bodies,
    any: Option<OwnedSemaphorePermit>,
    small: Option<OwnedSemaphorePermit>,
}

impl BodyRoom {
    /// Grows the reservation to `bytes` in total. Returns false, and leaves the reservation
    /// unchanged, if the budget does not allow it.
    pub(crate) fn grow_to(&mut self, bytes: usize) -> bool {
        let has = |permit: &Option<OwnedSemaphorePermit>| permit.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let missing = bytes.div_ceil(UNIT_BYTES).saturating_sub(has(&self.any) + has(&self.small));
        let Ok(missing) = u32::try_from(missing) else { return false };
        if take(&self.of.any, &mut self.any, missing) {
            return true;
        }
        bytes <= SMALL_BODY_BYTES_MAX && take(&self.of.small, &mut self.small, missing)
    }
}

fn take(from: &Arc<Semaphore>, into: &mut Option<OwnedSemaphorePermit>, units: u32) -> bool {
    let Ok(taken) = from.clone().try_acquire_many_owned(units) else { return false };
    match into {
        Some(permit) => permit.merge(taken),
        None => *into = Some(taken),
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_bodies_leave_room_for_small_ones() {
        let bodies = Bodies::new();
        let mut large = bodies.room();
        assert!(large.grow_to(ROOM_BYTES_MAX - UNIT_BYTES) && large.grow_to(ROOM_BYTES_MAX));
        assert!(!large.grow_to(ROOM_BYTES_MAX + 1));
        let mut other = bodies.room();
        assert!(other.grow_to(SMALL_BODY_BYTES_MAX) && !other.grow_to(SMALL_BODY_BYTES_MAX + 1));
        drop(large);
        assert!(other.grow_to(SMALL_BODY_BYTES_MAX + 1));
    }

    #[test]
    fn a_dropped_reservation_returns_its_memory() {
        let bodies = Bodies::new();
        for _ in 0..3 {
            let mut rooms: Vec<BodyRoom> = std::iter::repeat_with(|| bodies.room()).take(1024).collect();
            assert!(rooms.iter_mut().all(|room| room.grow_to(SMALL_BODY_BYTES_MAX)), "1 GiB in all");
            assert!(!bodies.room().grow_to(1));
        }
    }
}
