//! Places for connections on the control socket, and what each user holds.
//!
//! Connections that wait for a request hold a place without using it. If all places are taken, the one
//! that has waited longest, of the user with the most connections, makes room. Some places are for
//! operators only, that is, for root and the daemon's own user, so that they can always reach the
//! daemon.

use crate::limits::{
    CONTROL_CONNECTIONS_FOR_OPERATORS, CONTROL_CONNECTIONS_MAX, CONTROL_CONNECTIONS_PER_USER_MAX,
    CONTROL_FILES_PER_USER_MAX,
};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// Limits of the places.
#[derive(Clone, Copy, Debug)]
struct Limits {
    all: usize,
    for_operators: usize,
    per_user: usize,
    files_per_user: usize,
}

/// The places of the control socket.
#[derive(Debug)]
pub(super) struct Seats {
    limits: Limits,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The open connections by number. Later ones have higher numbers.
    open: BTreeMap<u64, Open>,
    users: HashMap<u32, Holding>,
    /// Counts connections, and their waits.
    last: u64,
}

/// What a user's connections hold.
#[derive(Clone, Copy, Debug, Default)]
struct Holding {
    connections: usize,
    /// File descriptors in frames that arrive or are being answered.
    files: usize,
}

/// An open connection.
#[derive(Debug)]
struct Open {
    uid: u32,
    is_operator: bool,
    files: usize,
    /// When it began to wait for a request, as a count of all waits; `None` while one is answered.
    waits_since: Option<u64>,
    closing: Arc<Notify>,
}

/// Why a connection gets no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoSeat {
    /// Its user has as many as one user may have.
    #[error("user {uid} already has {limit} open control connections")]
    OfUser {
        /// The user.
        uid: u32,
        /// The limit.
        limit: usize,
    },
    /// All places are taken by connections whose requests are being answered.
    #[error("all {limit} places of the control socket are taken by requests; try again later")]
    OfAll {
        /// The number of places.
        limit: usize,
    },
}

/// Told to a connection that makes room.
pub(super) const MADE_ROOM: &str = "the connection was closed since it waited longest, and another one needed its \
    place; connect again";

impl Default for Seats {
    fn default() -> Seats {
        Seats::new(Limits {
            all: CONTROL_CONNECTIONS_MAX,
            for_operators: CONTROL_CONNECTIONS_FOR_OPERATORS,
            per_user: CONTROL_CONNECTIONS_PER_USER_MAX,
            files_per_user: CONTROL_FILES_PER_USER_MAX,
        })
    }
}

impl Seats {
    fn new(limits: Limits) -> Seats {
        Seats { limits, state: Mutex::default() }
    }

    /// Takes a place for a connection that waits for its first request. Returns the place, and
    /// whether another connection makes room for it.
    pub(super) fn take(&self, uid: u32, is_operator: bool) -> Result<(Seat<'_>, bool), NoSeat> {
        let mut state = self.lock();
        let limits = self.limits;
        if state.users.get(&uid).is_some_and(|holding| holding.connections >= limits.per_user) {
            return Err(NoSeat::OfUser { uid, limit: limits.per_user });
        }
        let others = state.open.values().filter(|open| !open.is_operator).count();
        let (taken, most) = match is_operator {
            true => (state.open.len(), limits.all),
            false => (others, limits.all - limits.for_operators),
        };
        let makes_room = taken >= most;
        if makes_room && !state.make_room() {
            return Err(NoSeat::OfAll { limit: most });
        }
        state.last += 1;
        let (number, closing) = (state.last, Arc::new(Notify::new()));
        let open = Open { uid, is_operator, files: 0, waits_since: Some(number), closing: closing.clone() };
        state.open.insert(number, open);
        state.users.entry(uid).or_default().connections += 1;
        Ok((Seat { seats: self, number, closing }, makes_room))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Closes the connection that has waited longest, of the users with the most connections.
    /// Returns false if none waits. Connections of operators stay.
    fn make_room(&mut self) -> bool {
        let waiting = self.open.iter().filter(|(_, open)| !open.is_operator && open.waits_since.is_some());
        let connections = |open: &Open| self.users.get(&open.uid).map_or(0, |holding| holding.connections);
        let first = waiting.min_by_key(|(_, open)| (usize::MAX - connections(open), open.waits_since));
        let Some(number) = first.map(|(number, _)| *number) else { return false };
        if let Some(open) = self.remove(number) {
            open.closing.notify_one();
        }
        true
    }

    fn remove(&mut self, number: u64) -> Option<Open> {
        let open = self.open.remove(&number)?;
        if let Some(holding) = self.users.get_mut(&open.uid) {
            holding.connections -= 1;
            holding.files -= open.files;
            if holding.connections == 0 {
                self.users.remove(&open.uid);
            }
        }
        Some(open)
    }
}

/// The place of an open connection, and the files in its frame. They count until it is dropped, or
/// makes room.
#[derive(Debug)]
pub(super) struct Seat<'a> {
    seats: &'a Seats,
    number: u64,
    closing: Arc<Notify>,
}

impl Seat<'_> {
    /// Notes that the connection waits for its next request. From now on it may have to make room.
    pub(super) fn waits(&self) {
        let mut state = self.seats.lock();
        state.last += 1;
        let since = state.last;
        if let Some(open) = state.open.get_mut(&self.number) {
            open.waits_since = Some(since);
        }
    }

    /// Notes that a request has arrived. Returns false if the connection has to make room.
    pub(super) fn works(&self) -> bool {
        let mut state = self.seats.lock();
        let open = state.open.get_mut(&self.number);
        open.map(|open| open.waits_since = None).is_some()
    }

    /// Returns when the connection has to make room.
    pub(super) fn closing(&self) -> impl Future<Output = ()> + use<> {
        let closing = self.closing.clone();
        async move { closing.notified().await }
    }

    /// Sets the number of files in the frame of this connection. The error is the number of files
    /// that all connections of the user would hold.
    pub(super) fn hold(&self, files: usize) -> Result<(), usize> {
        let limit = self.seats.limits.files_per_user;
        let mut guard = self.seats.lock();
        let State { open, users, .. } = &mut *guard;
        let Some(open) = open.get_mut(&self.number).filter(|open| open.files != files) else { return Ok(()) };
        let holding = users.entry(open.uid).or_default();
        let all = holding.files - open.files + files;
        if files > open.files && all > limit {
            return Err(all);
        }
        (holding.files, open.files) = (all, files);
        Ok(())
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        drop(self.seats.lock().remove(self.number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::{Context, Waker};

    const OPERATOR: u32 = 0;

    fn seats(all: usize, per_user: usize) -> Seats {
        Seats::new(Limits { all, for_operators: 1, per_user, files_per_user: 10 })
    }

    fn is_closing(seat: &Seat<'_>) -> bool {
        let mut closing = pin!(seat.closing());
        // Keeps the notification for the next question.
        let is_closing = closing.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
        if is_closing {
            seat.closing.notify_one();
        }
        is_closing
    }

    #[test]
    fn the_user_with_the_most_connections_makes_room_with_the_one_that_waited_longest() {
        let seats = seats(5, 4);
        let take = |uid| seats.take(uid, false);
        let lonely = take(7).unwrap().0;
        let many: Vec<_> = (0..3).map(|_| take(8).unwrap().0).collect();
        // The first one has answered a request since, so the second has waited longest.
        assert!(many[0].works());
        many[0].waits();
        let (other, makes_room) = take(9).unwrap();
        assert!(makes_room && is_closing(&many[1]));
        assert!([&lonely, &many[0], &many[2], &other].into_iter().all(|seat| !is_closing(seat)));
        assert!(!many[1].works(), "too late");
        // Its place is free only once.
        drop(many.into_iter().nth(1));
        assert_eq!(seats.lock().open.len(), 2);
    }

    #[test]
    fn connections_that_work_stay_and_operators_always_get_in() {
        let seats = seats(3, 3);
        let busy: Vec<_> = (7..9).map(|uid| seats.take(uid, false).unwrap().0).collect();
        assert!(busy.iter().all(Seat::works));
        assert_eq!(seats.take(9, false).unwrap_err(), NoSeat::OfAll { limit: 2 });
        let (operator, makes_room) = seats.take(OPERATOR, true).unwrap();
        assert!(!makes_room);
        assert_eq!(seats.take(OPERATOR, true).unwrap_err(), NoSeat::OfAll { limit: 3 }, "all work, or are operators'");
        busy[1].waits();
        assert!(seats.take(OPERATOR, true).unwrap().1);
        assert!(is_closing(&busy[1]) && !is_closing(&operator));
    }

    #[test]
    fn a_user_has_so_many_connections_and_files() {
        let seats = seats(10, 2);
        let (first, second) = (seats.take(7, false).unwrap().0, seats.take(7, false).unwrap().0);
        assert_eq!(seats.take(7, false).unwrap_err(), NoSeat::OfUser { uid: 7, limit: 2 });
        assert!(!seats.take(8, false).unwrap().1);
        assert_eq!((first.hold(6), second.hold(5), second.hold(4)), (Ok(()), Err(11), Ok(())));
        assert_eq!((first.hold(0), second.hold(10)), (Ok(()), Ok(())));
        drop(second);
        assert!(first.hold(10).is_ok() && seats.take(7, false).is_ok());
        drop(first);
        assert!(seats.lock().users.is_empty());
    }
}
