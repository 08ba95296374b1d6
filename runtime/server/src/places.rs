//! The connections of one port: their number, their activity, and the choice of one that is closed
//! to make room.
//!
//! An idle connection costs a file descriptor and a place that another client may need. A
//! connection that sends the head of a request slowly is closed after
//! [`ConnectionLimits::head_timeout`], an idle one after [`ConnectionLimits::idle_timeout`]. If all
//! places are taken, the connection that has been idle longest is closed for a new one; if none is
//! idle, one whose requests are all stalled ([`Stall`]). In HTTP/2, a single request that is not
//! stalled keeps the connection open. If the client of a connection reads nothing for
//! [`ConnectionLimits::write_pause`], the connection is closed and its requests are cancelled.

use crate::limits;
use crate::progress::{Progress, Stall};
use crate::tls::Wire;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// A connection that began to send a request head less than this ago is not closed to make room:
/// most heads are complete by then. One that has been idle for less is closed only if there is no
/// other.
const HEAD_GRACE: Duration = Duration::from_secs(1);

/// The port of metrics and health has at least so many places, however few the others have.
const CONNECTIONS_MIN: usize = 16;

/// Limits on the number of connections of a port and on their idle time.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// Open connections at one time. If all places are taken, the connection that has been idle
    /// longest is closed for a new one.
    pub most: usize,
    /// Longest time in which the head of a request arrives, from its first byte; also the longest
    /// TLS handshake, from the acceptance of the connection.
    pub head_timeout: Duration,
    /// How long a connection without traffic, in HTTP/2 without requests, stays open.
    pub idle_timeout: Duration,
    /// Longest pause between two parts of a request body.
    pub body_pause: Duration,
    /// How long a stream of messages may be silent before its connection makes room for another
    /// one.
    pub stream_pause: Duration,
    /// Number of running requests of all HTTP/2 connections above which each connection may have only
    /// [`limits::STREAMS_SHARE`].
    pub requests: usize,
    /// How long a client may read nothing while bytes wait to be sent to it.
    pub write_pause: Duration,
}

impl ConnectionLimits {
    /// The default limits, with at most a quarter of the process's open-file limit as connections.
    pub fn for_open_files(files: u64) -> ConnectionLimits {
        let most = usize::try_from(files / 4).unwrap_or(usize::MAX).clamp(CONNECTIONS_MIN, limits::CONNECTIONS_MAX);
        ConnectionLimits { most, ..ConnectionLimits::default() }
    }

    /// The limits of the port of metrics and health. A client that reads it on a new connection
    /// each time needs no place that another one may have to leave.
    pub(crate) fn of_metrics(self) -> ConnectionLimits {
        ConnectionLimits { most: self.most.max(CONNECTIONS_MIN), ..self }
    }
}

impl Default for ConnectionLimits {
    fn default() -> ConnectionLimits {
        ConnectionLimits {
            most: limits::CONNECTIONS_MAX,
            head_timeout: limits::HEAD_TIMEOUT,
            idle_timeout: limits::IDLE_TIMEOUT,
            body_pause: limits::BODY_PAUSE_MAX,
            stream_pause: limits::STREAM_PAUSE_MAX,
            requests: limits::STREAMS_MAX,
            write_pause: limits::WRITE_PAUSE_MAX,
        }
    }
}

/// Why the server closed a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closed {
    /// The head of a request took too long.
    SlowHead,
    /// No bytes moved for too long.
    Idle,
    /// Another connection needed the place.
    MadeRoom,
    /// The TLS handshake took too long.
    SlowHandshake,
    /// The client did not read what was sent to it.
    NotReading,
}

impl Closed {
    pub(crate) const ALL: [Closed; 5] =
        [Closed::SlowHead, Closed::Idle, Closed::MadeRoom, Closed::SlowHandshake, Closed::NotReading];

    pub(crate) fn label(self) -> &'static str {
        match self {
            Closed::SlowHead => "slow_head",
            Closed::Idle => "idle",
            Closed::MadeRoom => "made_room",
            Closed::SlowHandshake => "slow_handshake",
            Closed::NotReading => "not_reading",
        }
    }
}

/// Counts closed connections by reason; shared by all ports.
#[derive(Debug, Default)]
pub(crate) struct ClosedCounts([AtomicU64; Closed::ALL.len()]);

impl ClosedCounts {
    pub(crate) fn note(&self, why: Closed) {
        self.0[why as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn of(&self, why: Closed) -> u64 {
        self.0[why as usize].load(Ordering::Relaxed)
    }
}

/// Current activity of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Activity {
    /// No request, or the client is still reading the last answer.
    Idle,
    /// The client is sending the head of a request.
    SendingHead,
    /// Requests are running; their bodies may still be arriving.
    Request,
    /// The connection was asked to close.
    Closing,
}

/// One connection, shared between its task and the port.
#[derive(Debug)]
pub(crate) struct Place {
    /// Number of running requests: at most one in HTTP/1, many in HTTP/2.
    running: AtomicUsize,
    /// The running requests.
    requests: Mutex<Vec<Arc<Progress>>>,
    /// Number of running requests of all connections of the port.
    all: Arc<AtomicUsize>,
    sending_head: AtomicBool,
    closing: AtomicBool,
    /// Whether its requests are given up: it ends without waiting for them.
    given_up: AtomicBool,
    /// Whether the next answer closes the connection, because the server stops.
    leaving: AtomicBool,
    /// Start of the current activity, or the last traffic while idle, in milliseconds since
    /// `epoch`.
    since_ms: AtomicU64,
    epoch: Instant,
    limits: ConnectionLimits,
    close: Notify,
}

impl Place {
    fn new(epoch: Instant, limits: ConnectionLimits, all: Arc<AtomicUsize>) -> Place {
        let place = Place {
            running: AtomicUsize::new(0),
            requests: Mutex::default(),
            all,
            sending_head: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            given_up: AtomicBool::new(false),
            leaving: AtomicBool::new(false),
            since_ms: AtomicU64::new(0),
            epoch,
            limits,
            close: Notify::new(),
        };
        place.touch();
        place
    }

    fn activity(&self) -> Activity {
        if self.closing.load(Ordering::Relaxed) {
            Activity::Closing
        } else if self.is_busy() {
            Activity::Request
        } else if self.sending_head.load(Ordering::Relaxed) {
            Activity::SendingHead
        } else {
            Activity::Idle
        }
    }

    fn now_ms(&self) -> u64 {
        self.epoch.elapsed().as_millis() as u64
    }

    fn touch(&self) {
        self.since_ms.store(self.now_ms(), Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Progress>>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why each request of the connection is stalled; `None` if one of them is not, or there is none.
    fn stalls(&self) -> Option<Vec<Stall>> {
        let stalls: Option<Vec<Stall>> =
            self.lock().iter().map(|request| request.stall(self.limits.stream_pause)).collect();
        stalls.filter(|stalls| !stalls.is_empty())
    }

    /// Whether the connection may be closed to make room: it runs no request, or all of its requests
    /// are stalled.
    fn is_dispensable(&self) -> bool {
        !self.is_busy() || self.stalls().is_some()
    }

    /// Gives up the requests of a connection that has to close, if all of them are stalled. Returns
    /// whether the connection may end now.
    pub(crate) fn give_up(&self) -> bool {
        let ends = self.is_dispensable();
        if ends {
            self.given_up.store(true, Ordering::Relaxed);
        }
        ends
    }

    /// Whether the connection was asked to close and will soon free its place. A request that is
    /// given up is no longer stalled, since nothing of it arrives any more; its connection ends all
    /// the same.
    fn is_making_room(&self) -> bool {
        let gives_up = || self.given_up.load(Ordering::Relaxed) || self.is_dispensable();
        self.activity() == Activity::Closing && gives_up()
    }

    /// Duration of the current activity.
    fn age(&self) -> Duration {
        self.epoch.elapsed().saturating_sub(Duration::from_millis(self.since_ms.load(Ordering::Relaxed)))
    }

    /// Marks the beginning of a request; dropping the guard marks its end.
    pub(crate) fn request(self: &Arc<Place>) -> RequestGuard {
        let progress = Arc::<Progress>::default();
        self.lock().push(progress.clone());
        self.running.fetch_add(1, Ordering::Relaxed);
        self.all.fetch_add(1, Ordering::Relaxed);
        self.sending_head.store(false, Ordering::Relaxed);
        self.touch();
        RequestGuard { place: self.clone(), progress }
    }

    /// Whether the port has too many requests, and this connection more than its share of them.
    pub(crate) fn is_over_share(&self) -> bool {
        let (own, all) = (self.running.load(Ordering::Relaxed), self.all.load(Ordering::Relaxed));
        all > self.limits.requests && own > limits::STREAMS_SHARE
    }

    /// In HTTP/1 the first bytes after an answer begin the head of the next request, and the first
    /// bytes of a CUDA session are its credentials and greeting. In HTTP/2 they
    /// may be something else, such as a ping, and a head takes only a few frames; so there a
    /// connection counts as busy only when a request begins.
    pub(crate) fn note_read(&self, wire: Wire) {
        if wire != Wire::Http2 && self.activity() == Activity::Idle {
            self.touch();
            self.sending_head.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn note_write(&self, wire: Wire) {
        if wire != Wire::Http2 && self.activity() == Activity::Idle {
            self.touch();
        }
    }

    /// Returns once the connection has to close.
    pub(crate) async fn closing(&self) {
        self.close.notified().await;
    }

    /// Lets the next answer close the connection.
    pub(crate) fn leave(&self) {
        self.leaving.store(true, Ordering::Relaxed);
    }

    /// Whether the next answer closes the connection.
    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Relaxed)
    }

    /// Whether a request is running.
    pub(crate) fn is_busy(&self) -> bool {
        self.running.load(Ordering::Relaxed) > 0
    }

    fn request_close(&self) {
        self.touch();
        self.closing.store(true, Ordering::Relaxed);
        self.close.notify_one();
    }
}

/// Marks a running request.
pub(crate) struct RequestGuard {
    place: Arc<Place>,
    pub(crate) progress: Arc<Progress>,
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.place.touch();
        self.place.lock().retain(|request| !Arc::ptr_eq(request, &self.progress));
        self.place.running.fetch_sub(1, Ordering::Relaxed);
        self.place.all.fetch_sub(1, Ordering::Relaxed);
    }
}

/// All connections of a port.
pub(crate) struct Places {
    limits: ConnectionLimits,
    epoch: Instant,
    taken: Mutex<HashMap<u64, Arc<Place>>>,
    /// Number of running requests.
    requests: Arc<AtomicUsize>,
    freed: Notify,
    counts: Arc<ClosedCounts>,
}

/// A connection's place; dropping it frees the place.
pub(crate) struct Seat {
    places: Arc<Places>,
    id: u64,
    pub(crate) place: Arc<Place>,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.places.lock().remove(&self.id);
        self.places.freed.notify_one();
    }
}

impl Places {
    pub(crate) fn new(limits: ConnectionLimits, counts: Arc<ClosedCounts>) -> Arc<Places> {
        let (taken, requests) = (Mutex::default(), Arc::default());
        Arc::new(Places { limits, epoch: Instant::now(), taken, requests, freed: Notify::new(), counts })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Arc<Place>>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place for connection `id`. If all places are taken, asks a connection without a
    /// running request to close, and waits until a place is free.
    pub(crate) async fn take(self: &Arc<Places>, id: u64) -> Seat {
        loop {
            let freed = self.freed.notified();
            {
                let mut taken = self.lock();
                if taken.len() < self.limits.most {
                    let place = Arc::new(Place::new(self.epoch, self.limits, self.requests.clone()));
                    taken.insert(id, place.clone());
                    return Seat { places: self.clone(), id, place };
                }
                if !taken.values().any(|place| place.is_making_room()) {
                    self.make_room(&taken);
                }
            }
            // The timeout is needed because a connection that becomes idle notifies nothing.
            let _ = tokio::time::timeout(Duration::from_millis(100), freed).await;
        }
    }

    fn make_room(&self, taken: &HashMap<u64, Arc<Place>>) {
        let longest = |activity: Activity| {
            taken.values().filter(move |place| place.activity() == activity).max_by_key(|place| place.age())
        };
        // The request of a new connection may not have been read yet.
        let idle = || longest(Activity::Idle).filter(|place| place.age() > HEAD_GRACE);
        let slow = || longest(Activity::SendingHead).filter(|place| place.age() > HEAD_GRACE);
        // A stream may be silent for a good reason, so connections with slow transfers are closed first.
        let stalled = || {
            let running = taken.values().filter(|place| place.activity() == Activity::Request);
            let stalled = running.filter_map(|place| Some((place.stalls()?, place)));
            let is_silent = |stall: &Stall| matches!(stall, Stall::Silent(_));
            let rank = |stalls: &[Stall]| (!stalls.iter().any(is_silent), stalls.iter().map(|s| s.since()).max());
            stalled.max_by_key(|(stalls, _)| rank(stalls)).map(|(_, place)| place)
        };
        if let Some(place) = idle().or_else(slow).or_else(stalled).or_else(|| longest(Activity::Idle)) {
            self.close(place, Closed::MadeRoom);
        }
    }

    /// Closes connections that exceeded a timeout.
    pub(crate) fn reap(&self) {
        for place in self.lock().values() {
            let why = match place.activity() {
                Activity::Idle => (place.age() > self.limits.idle_timeout).then_some(Closed::Idle),
                Activity::SendingHead => (place.age() > self.limits.head_timeout).then_some(Closed::SlowHead),
                // In HTTP/2 a client can read from its socket, and open no window for an answer.
                Activity::Request => place.stalls().and_then(|stalls| {
                    let is_unread = |s: &Stall| matches!(s, Stall::Unread(since) if *since > self.limits.write_pause);
                    stalls.iter().any(is_unread).then_some(Closed::NotReading)
                }),
                Activity::Closing => None,
            };
            if let Some(why) = why {
                self.close(place, why);
            }
        }
    }

    fn close(&self, place: &Place, why: Closed) {
        place.request_close();
        self.counts.note(why);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use std::pin::{Pin, pin};
    use std::task::Waker;

    fn is_pending(future: Pin<&mut impl Future>) -> bool {
        future.poll(&mut std::task::Context::from_waker(Waker::noop())).is_pending()
    }

    /// Makes the one that waits for a place look again.
    fn looks_again(places: &Places, waits: Pin<&mut impl Future>) {
        places.freed.notify_one();
        assert!(is_pending(waits), "no place is free");
    }

    /// A full port of two connections, each with a request that is stalled, and the number of those
    /// that were closed to make room.
    fn full() -> (Arc<Places>, Vec<(Seat, RequestGuard)>, Arc<ClosedCounts>) {
        let limits = ConnectionLimits { most: 2, stream_pause: Duration::ZERO, ..ConnectionLimits::default() };
        let counts = Arc::<ClosedCounts>::default();
        let places = Places::new(limits, counts.clone());
        let stalled = |id| {
            let seat = places.take(id).now_or_never().expect("a free place");
            let request = seat.place.request();
            // A stream that is silent for longer than `stream_pause`.
            request.progress.set_stream();
            while !seat.place.is_dispensable() {
                std::thread::yield_now();
            }
            (seat, request)
        };
        let taken = (0..2).map(stalled).collect();
        (places, taken, counts)
    }

    /// Removes the one that was asked to close.
    fn closing(taken: &mut Vec<(Seat, RequestGuard)>) -> (Seat, RequestGuard) {
        let is_closing = |(seat, _): &(Seat, RequestGuard)| seat.place.activity() == Activity::Closing;
        let at = taken.iter().position(is_closing).expect("one was asked to close");
        taken.remove(at)
    }

    #[tokio::test]
    async fn a_connection_that_gives_its_request_up_is_the_only_one_that_makes_room() {
        let (places, mut taken, counts) = full();
        let mut next = pin!(places.take(2));
        assert!(is_pending(next.as_mut()));
        let (seat, request) = closing(&mut taken);
        looks_again(&places, next.as_mut());
        assert!(seat.place.give_up());
        // It is no longer stalled, like one whose body has ended.
        request.progress.begin_arriving(1 << 30);
        assert!(!seat.place.is_dispensable());
        looks_again(&places, next.as_mut());
        assert_eq!(counts.of(Closed::MadeRoom), 1);
        drop((seat, request));
        assert_eq!(next.await.id, 2);
        assert_eq!(taken[0].0.place.activity(), Activity::Request);
    }

    #[tokio::test]
    async fn a_connection_whose_request_goes_on_makes_no_room() {
        let (places, mut taken, counts) = full();
        let mut next = pin!(places.take(2));
        assert!(is_pending(next.as_mut()));
        let (seat, request) = closing(&mut taken);
        request.progress.begin_arriving(1 << 30);
        assert!(!seat.place.give_up(), "the rest of its request arrives");
        looks_again(&places, next.as_mut());
        assert_eq!(counts.of(Closed::MadeRoom), 2, "the other one has to");
    }
}
