//! The requests of a pool, by id and by the slot in which each is stored.

use super::event::{RequestId, RequestSpec};
use super::grounds::Grounds;
use crate::ids::{DeviceId, Nanos};
use foldhash::fast::FixedState;
use std::collections::HashMap;
use std::ops::{Index, IndexMut};

/// The order of requests: by arrival time, then by the order of their events. A request that is
/// queued again keeps its position.
pub(super) type Order = (Nanos, u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In no queue: announced before its arrival, or released from a device.
    Announced,
    /// In the queue of its function or, if real-time, in a list of the pool.
    Waiting,
    InFlight(DeviceId),
}

/// Where a request is stored while it is in the pool. Slots are reused, so only queues of requests
/// in the pool may keep one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RequestSlot(pub(super) u32);

pub(super) struct Request {
    pub(super) id: RequestId,
    pub(super) spec: RequestSpec,
    pub(super) order: Order,
    pub(super) place: Place,
    pub(super) attempts: u32,
    pub(super) cancelled: bool,
    /// Why its device was chosen; set while it is in flight.
    pub(super) grounds: Option<Grounds>,
    /// The time for which it counts in the work of its device.
    pub(super) work_ns: u64,
}

/// All requests that have not ended.
#[derive(Default)]
pub(super) struct Requests {
    by_id: HashMap<RequestId, RequestSlot, FixedState>,
    slots: Vec<Request>,
    unused: Vec<RequestSlot>,
}

impl Requests {
    /// The slot of a request that has not ended.
    pub(super) fn find(&self, id: RequestId) -> Option<RequestSlot> {
        self.by_id.get(&id).copied()
    }

    /// Adds a request, whose id must be new.
    pub(super) fn insert(&mut self, request: Request) -> RequestSlot {
        let id = request.id;
        let slot = match self.unused.pop() {
            Some(slot) => {
                self[slot] = request;
                slot
            }
            None => {
                let slot = RequestSlot(u32::try_from(self.slots.len()).expect("fewer than 2^32 requests are open"));
                self.slots.push(request);
                slot
            }
        };
        let before = self.by_id.insert(id, slot);
        assert!(before.is_none(), "request {} arrives once", id.0);
        slot
    }

    /// Removes a request. Its slot may be reused.
    pub(super) fn remove(&mut self, slot: RequestSlot) {
        let id = self[slot].id;
        self.by_id.remove(&id).expect("a request ends once");
        self.unused.push(slot);
    }
}

impl Index<RequestSlot> for Requests {
    type Output = Request;

    fn index(&self, slot: RequestSlot) -> &Request {
        &self.slots[slot.0 as usize]
    }
}

impl IndexMut<RequestSlot> for Requests {
    fn index_mut(&mut self, slot: RequestSlot) -> &mut Request {
        &mut self.slots[slot.0 as usize]
    }
}
