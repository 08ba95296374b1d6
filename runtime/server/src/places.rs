//! The connections of one port: how many there may be, what each of them does, and which one is
//! closed to make room.
//!
//! A connection that does nothing costs a descriptor and a place that somebody else may need. So a
//! connection that sends the head of a request slowly is closed after
//! [`ConnectionLimits::head_timeout`], one that is idle after [`ConnectionLimits::idle_timeout`],
//! and where all places are taken, the one that has been idle for longest makes room for a new one.
//! A connection whose request runs is never closed for another one.

use crate::limits;
use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;

/// Head senders younger than this are left alone where a new connection needs a place: most of them
/// have sent the rest by then.
const HEAD_GRACE: Duration = Duration::from_secs(1);

/// How many connections a port takes, and how long they may do nothing.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// Connections at one time. Where all places are taken, the connection that has been idle for
    /// longest is closed for a new one.
    pub most: usize,
    /// How long the head of a request may take from its first byte.
    pub head_timeout: Duration,
    /// How long a connection stays open on which nothing moves.
    pub idle_timeout: Duration,
    /// How long a body may pause.
    pub body_pause: Duration,
}

impl ConnectionLimits {
    /// The usual limits, with as many connections as a quarter of the files that the process may
    /// open.
    pub fn for_open_files(files: u64) -> ConnectionLimits {
        let most = usize::try_from(files / 4).unwrap_or(usize::MAX).clamp(16, limits::CONNECTIONS_MAX);
        ConnectionLimits { most, ..ConnectionLimits::default() }
    }
}

impl Default for ConnectionLimits {
    fn default() -> ConnectionLimits {
        ConnectionLimits {
            most: limits::CONNECTIONS_MAX,
            head_timeout: limits::HEAD_TIMEOUT,
            idle_timeout: limits::IDLE_TIMEOUT,
            body_pause: limits::BODY_PAUSE_MAX,
        }
    }
}

/// Why a connection was closed before its client closed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closed {
    /// The head of a request took too long.
    SlowHead,
    /// Nothing moved for too long.
    Idle,
    /// Another connection needed the place.
    MadeRoom,
}

impl Closed {
    pub(crate) const ALL: [Closed; 3] = [Closed::SlowHead, Closed::Idle, Closed::MadeRoom];

    pub(crate) fn label(self) -> &'static str {
        match self {
            Closed::SlowHead => "slow_head",
            Closed::Idle => "idle",
            Closed::MadeRoom => "made_room",
        }
    }
}

/// Counts closed connections by reason; shared by the ports.
#[derive(Debug, Default)]
pub(crate) struct ClosedCounts([AtomicU64; Closed::ALL.len()]);

impl ClosedCounts {
    fn note(&self, why: Closed) {
        self.0[why as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn of(&self, why: Closed) -> u64 {
        self.0[why as usize].load(Ordering::Relaxed)
    }
}

/// What a connection does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    /// Nothing, or the client reads the last answer.
    Idle,
    /// The client sends the head of a request.
    SendingHead,
    /// A request runs; its body may still arrive.
    Request,
    /// It was told to close.
    Closing,
}

impl Doing {
    fn from_number(number: u8) -> Doing {
        [Doing::Idle, Doing::SendingHead, Doing::Request, Doing::Closing][usize::from(number)]
    }
}

/// One connection, as it and the port see it.
#[derive(Debug)]
pub(crate) struct Place {
    doing: AtomicU8,
    /// When it began to do that, or last moved bytes while idle, in milliseconds since `epoch`.
    since_ms: AtomicU64,
    epoch: Instant,
    close: Notify,
}

impl Place {
    fn new(epoch: Instant) -> Place {
        let place =
            Place { doing: AtomicU8::new(Doing::Idle as u8), since_ms: AtomicU64::new(0), epoch, close: Notify::new() };
        place.touch();
        place
    }

    fn doing(&self) -> Doing {
        Doing::from_number(self.doing.load(Ordering::Relaxed))
    }

    fn touch(&self) {
        self.since_ms.store(self.epoch.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    fn set(&self, doing: Doing) {
        self.touch();
        self.doing.store(doing as u8, Ordering::Relaxed);
    }

    /// For how long it has done what it does.
    fn age(&self) -> Duration {
        self.epoch.elapsed().saturating_sub(Duration::from_millis(self.since_ms.load(Ordering::Relaxed)))
    }

    /// A request begins; it is over when the guard is dropped.
    pub(crate) fn request(self: &Arc<Place>) -> RequestGuard {
        self.set(Doing::Request);
        RequestGuard(self.clone())
    }

    fn note_read(&self) {
        match self.doing() {
            Doing::Idle => self.set(Doing::SendingHead),
            Doing::SendingHead | Doing::Request | Doing::Closing => {}
        }
    }

    fn note_write(&self) {
        if self.doing() == Doing::Idle {
            self.touch();
        }
    }

    /// Returns once the connection is to close.
    pub(crate) async fn closing(&self) {
        self.close.notified().await;
    }

    /// Whether a connection that was told to close still works on a request.
    pub(crate) fn is_busy(&self) -> bool {
        self.doing() == Doing::Request
    }

    fn tell_to_close(&self) {
        self.set(Doing::Closing);
        self.close.notify_one();
    }
}

/// A request that runs.
pub(crate) struct RequestGuard(Arc<Place>);

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.0.set(Doing::Idle);
    }
}

/// All connections of a port.
pub(crate) struct Places {
    limits: ConnectionLimits,
    epoch: Instant,
    taken: Mutex<HashMap<u64, Arc<Place>>>,
    freed: Notify,
    counts: Arc<ClosedCounts>,
}

/// A connection's place; dropping it gives it back.
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
        Arc::new(Places { limits, epoch: Instant::now(), taken: Mutex::default(), freed: Notify::new(), counts })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Arc<Place>>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for the connection of this number. Waits while all are taken by connections with
    /// requests.
    pub(crate) async fn take(self: &Arc<Places>, id: u64) -> Seat {
        loop {
            let freed = self.freed.notified();
            {
                let mut taken = self.lock();
                if taken.len() < self.limits.most {
                    let place = Arc::new(Place::new(self.epoch));
                    taken.insert(id, place.clone());
                    return Seat { places: self.clone(), id, place };
                }
                if !taken.values().any(|place| place.doing() == Doing::Closing) {
                    self.make_room(&taken);
                }
            }
            // Which connections may be closed changes without a notice.
            let _ = tokio::time::timeout(Duration::from_millis(100), freed).await;
        }
    }

    fn make_room(&self, taken: &HashMap<u64, Arc<Place>>) {
        let longest =
            |doing: Doing| taken.values().filter(move |place| place.doing() == doing).max_by_key(|place| place.age());
        let slow = || longest(Doing::SendingHead).filter(|place| place.age() > HEAD_GRACE);
        if let Some(place) = longest(Doing::Idle).or_else(slow) {
            self.close(place, Closed::MadeRoom);
        }
    }

    /// Closes the connections that have done nothing for too long.
    pub(crate) fn reap(&self) {
        for place in self.lock().values() {
            let why = match place.doing() {
                Doing::Idle => (place.age() > self.limits.idle_timeout).then_some(Closed::Idle),
                Doing::SendingHead => (place.age() > self.limits.head_timeout).then_some(Closed::SlowHead),
                Doing::Request | Doing::Closing => None,
            };
            if let Some(why) = why {
                self.close(place, why);
            }
        }
    }

    fn close(&self, place: &Place, why: Closed) {
        place.tell_to_close();
        self.counts.note(why);
    }
}

/// A connection's stream that tells its place when bytes move.
pub(crate) struct Watched<S> {
    pub(crate) stream: S,
    pub(crate) place: Arc<Place>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.place.note_read();
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        if matches!(polled, Poll::Ready(Ok(_))) {
            self.place.note_write();
        }
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        if matches!(polled, Poll::Ready(Ok(_))) {
            self.place.note_write();
        }
        polled
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
