//! The reservations of a node: runs one after the other, without overlaps.
//!
//! A new reservation never moves an existing one. It takes a gap, or joins a batch if the longer
//! run delays no other reservation. So an admitted deadline holds if runs take no longer than their
//! costs. If a run takes longer, later reservations are delayed and keep their order.

use super::event::{FunctionId, RequestId};

/// A run that a node executes now or later.
#[derive(Debug)]
pub(super) struct Reservation {
    pub(super) function: FunctionId,
    pub(super) start: u64,
    pub(super) end: u64,
    /// The promised start. Unlike `start`, it does not change if the node is late.
    pub(super) due: u64,
    /// The latest end that delays no later stage of its members and misses no deadline.
    pub(super) latest_end: u64,
    pub(super) batch_max: u32,
    pub(super) batch_step: u64,
    /// The requests that it serves, each with the index of its stage.
    pub(super) members: Vec<(RequestId, usize)>,
    /// Number of members whose requests ended while it ran. Their pins are kept until it ends.
    pub(super) orphans: usize,
    pub(super) is_running: bool,
}

impl Reservation {
    fn takes(&self) -> u64 {
        self.end - self.start
    }
}

/// A run that is planned, but not reserved.
#[derive(Clone, Copy, Debug)]
pub(super) struct Draft {
    pub(super) node: usize,
    pub(super) start: u64,
    pub(super) end: u64,
    /// The index of the reservation that it joins.
    pub(super) joins: Option<usize>,
    /// Number of requests in the run.
    pub(super) batch: u32,
    pub(super) is_cold: bool,
    /// When its constants are loaded.
    pub(super) loaded: u64,
}

/// The requirements of a stage on a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Need {
    pub(super) function: FunctionId,
    /// When its inputs and constants are available.
    pub(super) ready: u64,
    pub(super) takes: u64,
    pub(super) batch_max: u32,
}

/// The reservations in the order of their starts. A running reservation comes first.
#[derive(Debug, Default)]
pub(super) struct Timeline {
    pub(super) list: Vec<Reservation>,
}

impl Timeline {
    /// Delays reservations that should have begun or ended by now. Keeps their order.
    pub(super) fn catch_up(&mut self, now: u64) {
        let mut free = now;
        for reservation in &mut self.list {
            if reservation.is_running {
                reservation.end = reservation.end.max(now);
            } else if reservation.start < free {
                (reservation.start, reservation.end) = (free, free + reservation.takes());
            } else {
                // The rest begins later and does not overlap.
                break;
            }
            free = reservation.end;
        }
    }

    /// The earliest run for a stage that does not overlap `drafts` of the same node. The stage
    /// joins a batch if the batch ends no later than a separate run would.
    pub(super) fn fit(&self, node: usize, need: Need, drafts: &[Draft]) -> Draft {
        let own = self.gap(node, need.ready, need.takes, drafts);
        let draft = Draft { node, start: own, end: own + need.takes, joins: None, batch: 1, is_cold: false, loaded: 0 };
        if need.batch_max < 2 {
            return draft;
        }
        self.batch(node, need, draft.end, drafts).unwrap_or(draft)
    }

    fn gap(&self, node: usize, ready: u64, takes: u64, drafts: &[Draft]) -> u64 {
        let mut start = ready;
        loop {
            let first = self.list.partition_point(|reservation| reservation.end <= start);
            for reservation in &self.list[first..] {
                if start + takes <= reservation.start {
                    break;
                }
                start = start.max(reservation.end);
            }
            let overlap = drafts.iter().find(|draft| draft.node == node && overlaps(draft, start, start + takes));
            match overlap {
                Some(draft) => start = draft.end,
                None => return start,
            }
        }
    }

    /// The first reservation that the stage can join such that the run ends by `by`.
    fn batch(&self, node: usize, need: Need, by: u64, drafts: &[Draft]) -> Option<Draft> {
        let first = self.list.partition_point(|reservation| reservation.start < need.ready);
        for (index, reservation) in self.list.iter().enumerate().skip(first) {
            let end = reservation.end + reservation.batch_step;
            if end > by {
                return None;
            }
            let count = reservation.members.len() as u32;
            let is_free = self.list.get(index + 1).is_none_or(|next| end <= next.start)
                && !drafts.iter().any(|draft| draft.node == node && overlaps(draft, reservation.start, end));
            let may_grow = !reservation.is_running && count < reservation.batch_max.min(need.batch_max);
            if reservation.function == need.function && may_grow && is_free && end <= reservation.latest_end {
                let start = reservation.start;
                return Some(Draft {
                    node,
                    start,
                    end,
                    joins: Some(index),
                    batch: count + 1,
                    is_cold: false,
                    loaded: 0,
                });
            }
        }
        None
    }

    /// Adds a reservation. It must not overlap others.
    pub(super) fn insert(&mut self, reservation: Reservation) {
        let at = self.list.partition_point(|other| other.start <= reservation.start);
        let is_apart = at == 0 || self.list[at - 1].end <= reservation.start;
        assert!(
            is_apart && self.list.get(at).is_none_or(|next| reservation.end <= next.start),
            "reservations of a node do not overlap"
        );
        self.list.insert(at, reservation);
    }

    /// The index of the run to begin now, if the node is idle: the first that is ready and ends
    /// before the promised start of each earlier run that is not ready. Earlier runs that have
    /// missed their promised start do not count, so nodes cannot wait for each other in a cycle.
    /// The error is the time of the next attempt, later than `now`.
    pub(super) fn next(&self, now: u64, scan: usize, is_ready: impl Fn(&Reservation) -> bool) -> Result<usize, u64> {
        let (mut earliest, mut wake) = (u64::MAX, u64::MAX);
        if self.list.first().is_some_and(|first| first.is_running) {
            return Err(wake);
        }
        for (index, reservation) in self.list.iter().enumerate().take(scan) {
            if is_ready(reservation) {
                if now + reservation.takes() <= earliest {
                    return Ok(index);
                }
                wake = wake.min(earliest.max(now + 1));
            } else if reservation.due >= now {
                earliest = earliest.min(reservation.due);
            }
        }
        Err(wake)
    }

    /// Begins a run now.
    pub(super) fn start(&mut self, index: usize, now: u64) -> &Reservation {
        let mut reservation = self.list.remove(index);
        (reservation.start, reservation.end) = (now, now + reservation.takes());
        reservation.is_running = true;
        self.list.insert(0, reservation);
        &self.list[0]
    }

    /// Removes a request from the run that serves its stage, and removes the run if it has not
    /// begun and has no requests left. Returns the function to unpin; `None` if the run has begun,
    /// because its pins are kept until it ends.
    pub(super) fn withdraw(&mut self, request: RequestId, stage: usize) -> Option<FunctionId> {
        let is_member = |reservation: &Reservation| reservation.members.contains(&(request, stage));
        let index = self.list.iter().position(is_member)?;
        let reservation = &mut self.list[index];
        let function = reservation.function;
        reservation.members.retain(|member| *member != (request, stage));
        if reservation.is_running {
            reservation.orphans += 1;
            return None;
        }
        if reservation.members.is_empty() {
            self.list.remove(index);
        } else {
            reservation.end -= reservation.batch_step;
        }
        Some(function)
    }
}

fn overlaps(draft: &Draft, start: u64, end: u64) -> bool {
    draft.start < end && start < draft.end
}
