//! Divides the compute units of one device among its clients with shares: binds each client to
//! certain units.
//!
//! A client is a rectangle of time (its request, in millionths) and compute units (in the groups
//! that the device assigns). Rectangles do not overlap, so all requests can be kept. Clients whose
//! rectangles have the same compute units share a lane that is bound to these units. A rectangle's
//! position in time is not a schedule: it only proves that the requests fit, and tokens are given
//! as work arrives.
//!
//! A client gets units that no other client has; if there are none, units of an existing lane with
//! time left; then any free rectangle. If no free rectangle fits, all clients are packed anew,
//! largest first. A client that still does not fit, or would need more lanes than the device has,
//! is not bound until there is room. Its tokens then keep its share of time on any free units.

use super::rectangles::{FreeList, Rect};
use crate::ids::ClientId;
use crate::tokens::{Ppm, ShareSpec, Span};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Time of a device, in millionths, so that requests are not rounded and three thirds fit.
pub const TIME: u32 = Ppm::WHOLE.millionths();

/// How a device can be divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Divisible {
    /// Its compute units.
    pub units: u32,
    /// Compute units of a group, the smallest part that it assigns; 0 if it cannot be divided.
    pub step: u32,
    /// Largest number of lanes for bound clients.
    pub lanes_max: u32,
}

/// The compute units of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// All units of the device.
    Whole,
    /// These units.
    Bound(Span),
    /// Any units: as many at a time as its partition allows.
    Unbound(Reason),
}

/// Why a client is not bound to units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The device cannot be divided.
    Indivisible,
    /// No arrangement of the device's clients has room for it.
    Room,
    /// The device has no lanes left.
    Lanes,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::Indivisible => "the device cannot be divided",
            Reason::Room => {
                "no compute units are free for its part of the time, however the others are arranged, so its request \
                 is not guaranteed"
            }
            Reason::Lanes => "the device has no lanes left, so its request is not guaranteed",
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Client {
    /// Its partition as requested.
    partition: Ppm,
    /// Its part of the time, in millionths.
    time: u32,
    /// Groups of compute units, rounded up.
    rows: u32,
    /// Whether it gets the whole device; see [`Layout::is_whole`].
    is_whole: bool,
    at: Result<Rect, Reason>,
}

impl Client {
    /// Time times groups of compute units.
    fn area(&self) -> u64 {
        u64::from(self.time) * u64::from(self.rows)
    }
}

/// The clients of a device and their compute units. Deterministic.
#[derive(Clone, Debug)]
pub struct Layout {
    device: Divisible,
    clients: BTreeMap<ClientId, Client>,
}

impl Layout {
    /// A device without clients.
    pub fn new(device: Divisible) -> Layout {
        Layout { device, clients: BTreeMap::new() }
    }

    /// Places a client with a share, or changes the share of a placed one. Other clients may move;
    /// [`Layout::places`] returns the result.
    pub fn set(&mut self, id: ClientId, share: &ShareSpec) {
        let old = self.clients.remove(&id);
        let mut client = self.client(share);
        let (time, rows, is_whole) = (client.time, client.rows, client.is_whole);
        if self.device.step > 0 {
            client.at = match old.filter(|old| (old.time, old.rows, old.is_whole) == (time, rows, is_whole)) {
                Some(old) => old.at,
                None => self.fit(&client),
            };
        }
        self.clients.insert(id, client);
        if client.at.is_err() && self.device.step > 0 {
            self.pack_anew();
        }
    }

    /// Removes a client, and tries to bind clients that are not bound.
    pub fn remove(&mut self, id: ClientId) {
        if self.clients.remove(&id).is_some() {
            self.bind_others();
        }
    }

    /// Tries again to bind the clients that are not bound.
    pub fn bind_others(&mut self) {
        if self.device.step > 0 && self.clients.values().any(|client| client.at.is_err()) {
            self.pack_anew();
        }
    }

    /// Notes that the device refused to create the lane of a client: the client is not bound.
    pub fn refuse(&mut self, id: ClientId) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.at = Err(Reason::Lanes);
        }
    }

    /// The area that remains of the smallest free rectangle that holds a share while all others
    /// stay where they are, in millionths of the device; `None` if there is no such rectangle.
    pub fn slack(&self, share: &ShareSpec) -> Option<u64> {
        let client = self.client(share);
        self.fit(&client).ok()?;
        let placed = self.clients.values().filter_map(|client| client.at.ok());
        let free = FreeList::around(TIME, self.all_rows(), placed);
        let holds = free.rects().iter().filter(|room| room.w >= client.time && room.h >= client.rows);
        let left = holds.map(|room| room.area() - client.area()).min()?;
        Some(left / u64::from(self.all_rows().max(1)))
    }

    /// Whether the bound clients leave at least the area of a share. If not, no arrangement of them
    /// has room for the share.
    pub fn has_area(&self, share: &ShareSpec) -> bool {
        let client = self.client(share);
        let placed = self.clients.values().filter_map(|client| client.at.ok());
        let taken: u64 = placed.map(Rect::area).sum();
        taken + client.area() <= u64::from(TIME) * u64::from(self.all_rows())
    }

    /// The compute units of a client; `None` if it has no share.
    pub fn place(&self, id: ClientId) -> Option<Place> {
        self.clients.get(&id).map(|client| self.place_of(client))
    }

    /// All clients with their compute units.
    pub fn places(&self) -> impl Iterator<Item = (ClientId, Place)> {
        self.clients.iter().map(|(id, client)| (*id, self.place_of(client)))
    }

    /// The part of the compute units that a client has: that of its place, or the requested one if
    /// it is not bound. `None` if it has no share.
    pub fn granted(&self, id: ClientId) -> Option<Ppm> {
        let client = self.clients.get(&id)?;
        Some(match self.place_of(client) {
            Place::Whole => Ppm::WHOLE,
            Place::Bound(span) => Ppm::of_parts(span.count, self.device.units),
            Place::Unbound(_) => client.partition,
        })
    }

    /// The rectangle of a client: `x` and `w` in millionths of the time, `y` and `h` in compute
    /// units. `None` if the client is not bound.
    pub fn rect(&self, id: ClientId) -> Option<Rect> {
        let client = self.clients.get(&id)?;
        let rect = client.at.ok()?;
        let span = self.span(client, rect);
        Some(Rect { y: span.first, h: span.count, ..rect })
    }

    /// A client without a place.
    fn client(&self, share: &ShareSpec) -> Client {
        let partition = share.partition();
        let (time, rows, is_whole) = (share.request().millionths(), self.rows(partition), self.is_whole(partition));
        Client { partition, time, rows, is_whole, at: Err(Reason::Indivisible) }
    }

    /// Number of groups of compute units of the device.
    fn all_rows(&self) -> u32 {
        self.device.units / self.device.step.max(1)
    }

    /// Number of compute units for a partition, rounded up.
    fn units(&self, partition: Ppm) -> u32 {
        (u64::from(partition.millionths()) * u64::from(self.device.units)).div_ceil(1_000_000) as u32
    }

    /// Groups of compute units for a partition: at least one, at most all.
    fn rows(&self, partition: Ppm) -> u32 {
        self.units(partition).div_ceil(self.device.step.max(1)).clamp(1, self.all_rows().max(1))
    }

    /// Whether a partition gets the whole device: if it is 100 %, if its groups have all compute
    /// units, or if it needs more units than all groups have, since some may belong to no group.
    fn is_whole(&self, partition: Ppm) -> bool {
        let in_groups = self.rows(partition) * self.device.step.max(1);
        partition == Ppm::WHOLE || in_groups >= self.device.units || self.units(partition) > in_groups
    }

    fn span(&self, client: &Client, rect: Rect) -> Span {
        match client.is_whole {
            true => Span { first: 0, count: self.device.units },
            false => Span { first: rect.y * self.device.step, count: rect.h * self.device.step },
        }
    }

    fn place_of(&self, client: &Client) -> Place {
        match client.at {
            _ if client.is_whole => Place::Whole,
            Ok(rect) => Place::Bound(self.span(client, rect)),
            Err(reason) => Place::Unbound(reason),
        }
    }

    /// The best rectangle for a client that moves no others. A client that does not get the whole
    /// device needs a lane.
    fn fit(&self, &Client { rows, time, is_whole, .. }: &Client) -> Result<Rect, Reason> {
        let placed: Vec<Rect> = self.clients.values().filter_map(|client| client.at.ok()).collect();
        let free = FreeList::around(TIME, self.all_rows(), placed.iter().copied());
        let in_lanes = self.clients.values().filter(|client| !client.is_whole).filter_map(|client| client.at.ok());
        let lanes: BTreeSet<(u32, u32)> = in_lanes.map(|rect| (rect.y, rect.h)).collect();
        let has_lanes = (lanes.len() as u32) < self.device.lanes_max;
        let mut best: Option<((u8, u64, u32, u32), Rect)> = None;
        let mut without_lanes = false;
        for room in free.rects().iter().filter(|room| room.w >= time && room.h >= rows) {
            let inside = |y: &u32| room.y <= *y && y + rows <= room.y + room.h;
            let same = lanes.iter().filter(|(y, h)| *h == rows && inside(y)).map(|(y, _)| *y);
            for y in same.chain([room.y]) {
                let rect = Rect { x: room.x, y, w: time, h: rows };
                let is_lane = lanes.contains(&(y, rows)) || is_whole;
                if !is_lane && !has_lanes {
                    without_lanes = true;
                    continue;
                }
                let in_units = |other: &&Rect| other.y < y + rows && y < other.y + other.h;
                let kind = match placed.iter().any(|other| in_units(&other)) {
                    false => 0,
                    true if is_lane => 1,
                    true => 2,
                };
                let score = (kind, room.area() - rect.area(), rect.y, rect.x);
                if best.is_none_or(|(other, _)| score < other) {
                    best = Some((score, rect));
                }
            }
        }
        let reason = if without_lanes { Reason::Lanes } else { Reason::Room };
        best.map(|(_, rect)| rect).ok_or(reason)
    }

    /// Packs all clients anew, largest first, in the first order of [`ORDERS`] that binds them all.
    /// If none does, bound clients stay where they are, and the others are tried one by one.
    fn pack_anew(&mut self) {
        for order in ORDERS {
            let mut ids: Vec<ClientId> = self.clients.keys().copied().collect();
            ids.sort_by_key(|id| (Reverse(order(&self.clients[id])), *id));
            let mut packed = Layout::new(self.device);
            let fits = ids.into_iter().all(|id| {
                let client = self.clients[&id];
                let at = packed.fit(&client);
                packed.clients.insert(id, Client { at, ..client });
                at.is_ok()
            });
            if fits {
                self.clients = packed.clients;
                return;
            }
        }
        let ids: Vec<ClientId> = self.clients.keys().copied().collect();
        for id in ids {
            let client = self.clients[&id];
            if client.at.is_err() {
                let at = self.fit(&client);
                self.clients.insert(id, Client { at, ..client });
            }
        }
    }
}

/// The sort key of clients.
type Order = fn(&Client) -> (u64, u32);

const ORDERS: [Order; 4] = [
    |client| (client.area(), client.rows),
    |client| (client.rows.into(), client.time),
    |client| (client.time.into(), client.rows),
    |client| {
        let (time, units) = (client.time, client.partition.millionths());
        (time.max(units).into(), time.min(units))
    },
];
