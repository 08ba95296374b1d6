//! The tickets of sessions over the network. A ticket is random, belongs to one tenant, and is valid
//! for one connection at a time.

use super::relay::{Duplex, Steer};
use crate::identity::Peer;
use crate::limits::CUDA_ENDED_TICKETS_MAX;
use atoll_engine::Tenant;
use atoll_session::{Code, SECRET_BYTES, Ticket};
use rustix::rand::{GetRandomFlags, getrandom};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use subtle::ConstantTimeEq;
use tokio::sync::{mpsc, oneshot, watch};

/// A connection of an identified client.
pub(super) struct Connection {
    pub(super) stream: Box<dyn Duplex>,
    pub(super) address: SocketAddr,
    /// The credentials of the client.
    pub(super) token: Option<String>,
    pub(super) peer: Option<Peer>,
    /// Bytes of the session that the client has received.
    pub(super) received: u64,
    /// Dropped when the session no longer uses the connection; nothing is sent.
    pub(super) in_use: oneshot::Sender<()>,
}

/// Why a ticket is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum TicketError {
    /// No session has such a ticket. A wrong secret has the same error as a wrong number.
    #[error("no session has this ticket; the daemon may have restarted")]
    Unknown,
    /// The ticket is valid, but the client acts for another tenant.
    #[error("the ticket is of another tenant's session")]
    OtherTenant,
    /// The session has a connection.
    #[error("the session has a connection; the daemon checks whether its client still answers, so try again")]
    Connected,
    /// The session has ended because its client did not reconnect in time.
    #[error("the ticket has expired: the session had no connection for more than {} s", .0.as_secs_f64())]
    Expired(Duration),
    /// The session has ended for another reason.
    #[error("the session of this ticket has ended")]
    Ended,
}

impl TicketError {
    /// The error for the client, which may try again after `NOT_READY`.
    pub(super) fn code(self) -> Code {
        match self {
            TicketError::Unknown => Code::INVALID_HANDLE,
            TicketError::OtherTenant => Code::NOT_PERMITTED,
            TicketError::Connected => Code::NOT_READY,
            TicketError::Expired(_) | TicketError::Ended => Code::CONTEXT_IS_DESTROYED,
        }
    }
}

/// All tickets.
pub(crate) struct Tickets {
    /// How long a session is kept without a connection; zero if it ends with its connection.
    pub(super) keep: Duration,
    state: Mutex<State>,
    /// Number of sessions that have a ticket.
    open: watch::Sender<usize>,
}

#[derive(Default)]
struct State {
    next: u64,
    sessions: BTreeMap<u64, Entry>,
    /// Tickets of sessions that have ended, the oldest first.
    ended: VecDeque<(u64, Owner, TicketError)>,
}

/// What a client must present.
struct Owner {
    secret: [u8; SECRET_BYTES],
    tenant: Tenant,
}

struct Entry {
    owner: Owner,
    is_connected: bool,
    arrivals: mpsc::Sender<Connection>,
    steer: mpsc::Sender<Steer>,
}

/// The ticket of an open session. Dropping this invalidates it.
pub(super) struct Held {
    tickets: Arc<Tickets>,
    pub(super) ticket: Ticket,
    /// Further connections of the client.
    pub(super) arrivals: mpsc::Receiver<Connection>,
    /// Requests to the relay of the current connection, and their sender.
    pub(super) steer: mpsc::Receiver<Steer>,
    pub(super) steering: mpsc::Sender<Steer>,
    why: TicketError,
}

impl Tickets {
    pub(crate) fn new(keep: Duration) -> Tickets {
        Tickets { keep, state: Mutex::default(), open: watch::Sender::new(0) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Issues the ticket of a session that has a connection.
    pub(super) fn issue(self: &Arc<Tickets>, tenant: &Tenant) -> io::Result<Held> {
        let secret = random()?;
        let ((arrivals, arrived), (steer, steered)) = (mpsc::channel(1), mpsc::channel(1));
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        let owner = Owner { secret, tenant: tenant.clone() };
        state.sessions.insert(number, Entry { owner, is_connected: true, arrivals, steer: steer.clone() });
        self.open.send_replace(state.sessions.len());
        drop(state);
        let ticket = Ticket { number, secret };
        Ok(Held {
            tickets: self.clone(),
            ticket,
            arrivals: arrived,
            steer: steered,
            steering: steer,
            why: TicketError::Ended,
        })
    }

    /// Hands a connection to the session of a ticket. Returns the connection if the ticket is refused.
    /// If the session already has a connection, sends a keepalive probe on that one.
    pub(super) fn connect(
        &self,
        ticket: &Ticket,
        tenant: &Tenant,
        connection: Connection,
    ) -> Result<(), (Connection, TicketError)> {
        let mut state = self.lock();
        let Some(entry) = state.sessions.get_mut(&ticket.number) else {
            let ended = state.ended.iter().find(|(number, ..)| *number == ticket.number);
            let why =
                ended.map_or(TicketError::Unknown, |(_, owner, why)| owner.check(ticket, tenant).err().unwrap_or(*why));
            return Err((connection, why));
        };
        if let Err(why) = entry.owner.check(ticket, tenant) {
            return Err((connection, why));
        }
        if entry.is_connected {
            // A probe that is already queued is enough.
            let _ = entry.steer.try_send(Steer::Ask);
            return Err((connection, TicketError::Connected));
        }
        match entry.arrivals.try_send(connection) {
            Ok(()) => {
                entry.is_connected = true;
                Ok(())
            }
            // The session is about to end.
            Err(mpsc::error::TrySendError::Full(connection) | mpsc::error::TrySendError::Closed(connection)) => {
                Err((connection, TicketError::Ended))
            }
        }
    }

    /// Waits until no session has a ticket.
    pub(crate) async fn emptied(&self) {
        // The sender is in `self`.
        let _ = self.open.subscribe().wait_for(|open| *open == 0).await;
    }
}

impl Owner {
    fn check(&self, ticket: &Ticket, tenant: &Tenant) -> Result<(), TicketError> {
        if !bool::from(self.secret.ct_eq(&ticket.secret)) {
            return Err(TicketError::Unknown);
        }
        if self.tenant == *tenant { Ok(()) } else { Err(TicketError::OtherTenant) }
    }
}

impl Held {
    /// Notes that the session has lost its connection and accepts another one.
    pub(super) fn disconnect(&mut self) {
        // Queued requests were for that connection.
        while self.steer.try_recv().is_ok() {}
        if let Some(entry) = self.tickets.lock().sessions.get_mut(&self.ticket.number) {
            entry.is_connected = false;
        }
    }

    /// Ends the ticket because its session had no connection for too long. Returns false if a
    /// connection has just arrived.
    pub(super) fn expire(&mut self) -> bool {
        let mut state = self.tickets.lock();
        if state.sessions.get(&self.ticket.number).is_some_and(|entry| entry.is_connected) {
            return false;
        }
        self.why = TicketError::Expired(self.tickets.keep);
        state.end(&self.ticket, self.why);
        true
    }
}

impl State {
    fn end(&mut self, ticket: &Ticket, why: TicketError) {
        let Some(entry) = self.sessions.remove(&ticket.number) else { return };
        self.ended.push_back((ticket.number, entry.owner, why));
        if self.ended.len() > CUDA_ENDED_TICKETS_MAX {
            self.ended.pop_front();
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut state = self.tickets.lock();
        state.end(&self.ticket, self.why);
        self.tickets.open.send_replace(state.sessions.len());
    }
}

fn random() -> io::Result<[u8; SECRET_BYTES]> {
    let mut bytes = [0; SECRET_BYTES];
    let mut filled = 0;
    while filled < bytes.len() {
        filled += getrandom(&mut bytes[filled..], GetRandomFlags::empty())?;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    fn connection() -> Connection {
        let (stream, _) = tokio::io::duplex(1);
        let address = "127.0.0.1:1".parse().unwrap();
        let in_use = oneshot::channel().0;
        Connection { stream: Box::new(stream), address, token: None, peer: None, received: 0, in_use }
    }

    fn refused(tickets: &Tickets, ticket: &Ticket, tenant: &Tenant) -> Option<TicketError> {
        tickets.connect(ticket, tenant, connection()).err().map(|(_, why)| why)
    }

    #[test]
    fn a_ticket_is_of_one_tenant_and_of_one_connection_at_a_time() {
        let tickets = Arc::new(Tickets::new(Duration::from_secs(7)));
        let (own, other): (Tenant, Tenant) = ("own".parse().unwrap(), "other".parse().unwrap());
        let mut held = tickets.issue(&own).unwrap();
        let ticket = held.ticket;
        assert_ne!(tickets.issue(&own).unwrap().ticket.secret, ticket.secret, "it is random");
        let wrong = Ticket { secret: [1; SECRET_BYTES], ..ticket };
        for is_connected in [true, false] {
            assert_eq!(refused(&tickets, &wrong, &own), Some(TicketError::Unknown));
            assert_eq!(refused(&tickets, &Ticket { number: 99, ..ticket }, &own), Some(TicketError::Unknown));
            assert_eq!(refused(&tickets, &ticket, &other), Some(TicketError::OtherTenant));
            if is_connected {
                assert!(held.steer.try_recv().is_err(), "only the owner makes the daemon ask");
                assert_eq!(refused(&tickets, &ticket, &own), Some(TicketError::Connected));
                assert_eq!(refused(&tickets, &ticket, &own), Some(TicketError::Connected));
                assert_eq!(held.steer.try_recv(), Ok(Steer::Ask));
                held.disconnect();
            }
        }
        assert_eq!(refused(&tickets, &ticket, &own), None);
        assert_eq!(refused(&tickets, &ticket, &own), Some(TicketError::Connected));
        assert!(!held.expire(), "a connection waits");
        assert!(held.arrivals.try_recv().is_ok());
        held.disconnect();
        assert!(held.expire());
        let expired = Some(TicketError::Expired(Duration::from_secs(7)));
        assert_eq!(refused(&tickets, &ticket, &own), expired);
        drop(held);
        assert_eq!(refused(&tickets, &ticket, &own), expired);
        assert_eq!(refused(&tickets, &wrong, &own), Some(TicketError::Unknown));
        assert_eq!(refused(&tickets, &ticket, &other), Some(TicketError::OtherTenant));
    }

    #[tokio::test]
    async fn ended_tickets_are_remembered_up_to_a_limit() {
        let tickets = Arc::new(Tickets::new(Duration::ZERO));
        let own: Tenant = "own".parse().unwrap();
        let held = tickets.issue(&own).unwrap();
        let (first, mut emptied) = (held.ticket, Box::pin(tickets.emptied()));
        assert!(emptied.as_mut().now_or_never().is_none());
        drop(held);
        emptied.await;
        assert_eq!(refused(&tickets, &first, &own), Some(TicketError::Ended));
        for _ in 0..CUDA_ENDED_TICKETS_MAX {
            drop(tickets.issue(&own).unwrap());
        }
        assert_eq!(refused(&tickets, &first, &own), Some(TicketError::Unknown));
        assert_eq!(tickets.lock().ended.len(), CUDA_ENDED_TICKETS_MAX);
    }
}
