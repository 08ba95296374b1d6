//! Lanes of clients with shares: opens lanes for the compute units that the layout assigns, moves
//! clients between them, and closes lanes without clients.

use super::Worker;
use crate::clock;
use crate::error::EngineError;
use crate::share::SHARE_LANE_QUEUES;
use atoll_core::packing::Place;
use atoll_core::tokens::{Ppm, ShareSpec, Span};
use atoll_core::{ClientId, LaneId};
use atoll_device::LaneSpec;

impl Worker {
    /// Sets or changes the share of a client on compute units that the layout chooses. Other
    /// clients may move to other compute units. On error the old layout is restored.
    pub(super) fn place_share(&mut self, client: ClientId, share: ShareSpec) -> Result<(), EngineError> {
        let before = self.lanes.layout.clone();
        self.lanes.layout.set(client, &share);
        self.move_clients(Some(client));
        let lane = self.lane_in_layout(client);
        let granted = self.lanes.layout.granted(client).unwrap_or(Ppm::WHOLE);
        let set = self.put_share(client, lane, share, granted);
        if set.is_err() {
            self.lanes.layout = before;
            self.move_clients(None);
        }
        self.close_unused_lanes();
        set
    }

    /// Removes a client from the layout, because its share was removed or is in a lane that the
    /// caller chose.
    pub(super) fn leave_layout(&mut self, client: ClientId) {
        if self.lanes.layout.place(client).is_some() {
            self.lanes.layout.remove(client);
            self.move_clients(None);
        }
        self.close_unused_lanes();
    }

    /// Tries to bind unbound clients after a lane was closed and its queues are free.
    pub(super) fn bind_others(&mut self) {
        if self.lost.is_none() && self.lanes.layout.places().any(|(_, place)| matches!(place, Place::Unbound(_))) {
            self.lanes.layout.bind_others();
            self.move_clients(None);
            self.close_unused_lanes();
        }
    }

    /// Moves clients to the lanes of their compute units, except for one.
    fn move_clients(&mut self, except: Option<ClientId>) {
        let clients: Vec<ClientId> = self.lanes.layout.places().map(|(client, _)| client).collect();
        for client in clients.into_iter().filter(|client| Some(*client) != except) {
            let lane = self.lane_in_layout(client);
            let granted = self.lanes.layout.granted(client);
            let Some(sharer) = self.lanes.shares.get(&client) else { continue };
            let (share, granted) = (sharer.share, granted.unwrap_or(sharer.granted));
            if (sharer.lane, sharer.granted) == (lane, granted) {
                continue;
            }
            if let Err(error) = self.put_share(client, lane, share, granted) {
                // The client stays in its lane and keeps its share of time.
                let client_name = self.lanes.name_of(client);
                tracing::warn!(client = %client_name, %error, "a client cannot move to other compute units");
                self.lanes.layout.refuse(client);
            }
        }
    }

    /// The lane for the place of a client. Opens it if it is not open; if the device refuses it,
    /// the client is not bound.
    fn lane_in_layout(&mut self, client: ClientId) -> LaneId {
        let Some(Place::Bound(span)) = self.lanes.layout.place(client) else { return LaneId::DEFAULT };
        match self.lane_of_span(span) {
            Ok(lane) => lane,
            Err(error) => {
                let client_name = self.lanes.name_of(client);
                tracing::warn!(client = %client_name, ?span, %error, "no lane for a client with a share");
                self.lanes.layout.refuse(client);
                LaneId::DEFAULT
            }
        }
    }

    fn lane_of_span(&mut self, span: Span) -> Result<LaneId, EngineError> {
        if let Some(lane) = self.lanes.spans.get(&span) {
            return Ok(*lane);
        }
        let lane = self.open_lane(&LaneSpec { units: span.units().collect(), queues: SHARE_LANE_QUEUES })?.id;
        self.scheduler.join_lane(lane, span).map_err(EngineError::Share)?;
        self.lanes.spans.insert(span, lane);
        Ok(lane)
    }

    /// Closes the lanes of the layout in which no client has a share. Tasks in them are preempted
    /// and continue in the default lane.
    fn close_unused_lanes(&mut self) {
        let is_unused = |lane: &LaneId| !self.lanes.shares.values().any(|sharer| sharer.lane == *lane);
        let unused: Vec<LaneId> = self.lanes.spans.values().copied().filter(is_unused).collect();
        for lane in unused {
            self.begin_close_lane(lane, None);
        }
    }

    /// Removes a closing lane from the layout. Its clients are no longer bound.
    pub(super) fn leave_lane(&mut self, lane: LaneId) {
        self.lanes.spans.retain(|_, other| *other != lane);
        let of_lane = self.lanes.shares.iter_mut().filter(|(_, sharer)| sharer.lane == lane);
        for (client, sharer) in of_lane {
            sharer.lane = LaneId::DEFAULT;
            self.lanes.layout.refuse(*client);
        }
    }

    /// Adds busy time, weighted by the client's compute units, to what it received.
    pub(super) fn charge_units(&mut self, client: ClientId, busy_ns: u64) {
        if let Some(sharer) = self.lanes.shares.get_mut(&client) {
            sharer.received_part_ns += u128::from(busy_ns) * u128::from(sharer.granted.millionths());
        }
    }

    /// The compute units to which a client is bound, or why it is not bound.
    pub(super) fn binding_of(&self, client: ClientId) -> (Option<Span>, Option<String>) {
        let span = self.lanes.bound_lane(client).and_then(|lane| self.lanes.span_of(lane));
        let why = match self.lanes.layout.place(client) {
            Some(Place::Unbound(reason)) if span.is_none() => Some(reason.to_string()),
            _ => None,
        };
        (span, why)
    }

    /// Sets the share of a client in a lane, with the granted partition.
    pub(super) fn put_share(
        &mut self,
        client: ClientId,
        lane: LaneId,
        share: ShareSpec,
        granted: Ppm,
    ) -> Result<(), EngineError> {
        let now = clock::now();
        let set = self.scheduler.set_share(now, lane, client, share.with_partition(granted), &mut self.pending_actions);
        set.map_err(EngineError::Share)?;
        let before = self.lanes.shares.get(&client).map(|sharer| sharer.lane).filter(|before| *before != lane);
        if let Some(before) = before {
            // Has no effect if both lanes have the same ledger: the share has moved then.
            self.scheduler.remove_share(now, before, client, &mut self.pending_actions);
        }
        self.actions.extend(self.pending_actions.drain(..));
        self.note_share(client, lane, share, granted, now);
        Ok(())
    }
}
