//! The thread of a ring: takes requests, runs them, and answers them.
//!
//! It runs the requests itself instead of handing them to the server's threads, because each
//! hand-over takes as long as waking a thread. Without work it spins for a while, and then sleeps
//! on the ring's bell.

use super::registry::{End, Seat};
use super::request::{execute, failure, place, prepare};
use crate::app::App;
use crate::identity::Principal;
use crate::otlp::Arrival;
use crate::requests::error::RequestError;
use atoll_protocol::InferResponse;
use atoll_ring::limits::SLEEP_MAX;
use atoll_ring::{DaemonBell, DaemonEnd, Reply, Request, RingError, Span, Spin, Taken};
use futures_util::stream::{FuturesUnordered, StreamExt};
use rustix::time::{ClockId, clock_gettime};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// Most wake-ups without work in a row. A client that causes more of them only burns CPU time, so
/// the thread then pauses.
const IDLE_WAKES_MAX: u32 = 64;

/// The pause after too many wake-ups without work.
const PAUSE: Duration = Duration::from_millis(1);

/// Idle time is charged to the tenant's budget when it has added up to this.
const IDLE_STEP: Duration = Duration::from_millis(1);

/// How often CPU time is billed. Reading the clock of a thread is a system call.
const BILL_EVERY: Duration = Duration::from_millis(10);

/// How long a thread pauses before it checks whether it should end.
const PAUSE_STEP: Duration = Duration::from_millis(10);

/// What the thread is asked to do.
const RUN: u8 = 0;
const DRAIN: u8 = 1;
const CANCEL: u8 = 2;

/// A ring that is being served. Dropping it cancels the ring's requests and ends its thread.
pub(crate) struct Running {
    wish: Arc<AtomicU8>,
    bell: DaemonBell,
    ended: oneshot::Receiver<(End, Option<RingError>)>,
}

/// State of the thread.
struct Worker {
    app: Arc<App>,
    caller: Arc<Principal>,
    daemon: DaemonEnd,
    spin: Duration,
    wish: Arc<AtomicU8>,
    seat: Seat,
}

/// A finished request.
struct Finished {
    tag: u64,
    window: Span,
    answer: Result<InferResponse, RequestError>,
}

/// The time accounting of a thread.
struct Clock {
    /// The end of the last turn.
    at: Instant,
    /// The time until which the thread may spin because of a request.
    earned: Instant,
    /// Idle time that has not been charged to the budget yet.
    idle: Duration,
    /// When CPU time was last billed, and the CPU time of the thread then.
    billed_at: Instant,
    billed: Duration,
}

impl Clock {
    fn new() -> Clock {
        let at = Instant::now();
        Clock { at, earned: at, idle: Duration::ZERO, billed_at: at, billed: cpu_time() }
    }

    /// Ends a turn. It was idle if the thread served no request in it, and has not served one within
    /// `spin` before.
    fn turn(&mut self, served: bool, spin: Duration) {
        let now = Instant::now();
        if served {
            self.earned = now + spin;
        } else if now > self.earned {
            self.idle += now.saturating_duration_since(self.at.max(self.earned));
        }
        self.at = now;
    }

    /// Continues after a sleep.
    fn resume(&mut self) {
        self.at = Instant::now();
    }

    /// Whether CPU time has to be billed.
    fn is_due(&self) -> bool {
        self.at.saturating_duration_since(self.billed_at) >= BILL_EVERY
    }

    /// The CPU time since the last call.
    fn take_cpu(&mut self) -> Duration {
        let (before, now) = (self.billed, cpu_time());
        (self.billed_at, self.billed) = (self.at, now);
        now.saturating_sub(before)
    }
}

/// CPU time of the calling thread.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    // The kernel's times are not negative, and have less than a second of nanoseconds.
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

type Work = Pin<Box<dyn Future<Output = Finished> + Send>>;

/// Wakes the thread when one of its requests can continue.
struct Bell(DaemonBell);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.ring();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.ring();
    }
}

/// Starts the thread of a ring. It spins for `spin` before it sleeps. Must be called on the server's
/// runtime.
pub(crate) fn start(
    app: Arc<App>,
    caller: Arc<Principal>,
    daemon: DaemonEnd,
    spin: Duration,
    seat: Seat,
) -> io::Result<Running> {
    let wish = Arc::new(AtomicU8::new(RUN));
    let bell = daemon.bell();
    let (report, ended) = oneshot::channel();
    let (runtime, asked) = (Handle::current(), wish.clone());
    let serve = move || {
        // Timers and blocking work of requests belong to the server's runtime.
        let _inside = runtime.enter();
        let mut worker = Worker { app, caller, daemon, spin, wish: asked, seat };
        let end = worker.run();
        let (end, error) = end.map_or_else(|error| (End::Violation, Some(error)), |end| (end, None));
        worker.seat.rings.note_end(end);
        drop(worker);
        // Fails if the connection is gone.
        let _ = report.send((end, error));
    };
    thread::Builder::new().name("atoll-ring".into()).spawn(serve)?;
    Ok(Running { wish, bell, ended })
}

impl Running {
    /// Lets the requests that were taken finish, takes no more, and then ends.
    pub(crate) fn drain(&self) {
        self.ask(DRAIN);
    }

    /// Cancels all requests, and ends.
    pub(crate) fn cancel(&self) {
        self.ask(CANCEL);
    }

    fn ask(&self, wish: u8) {
        self.wish.fetch_max(wish, Ordering::SeqCst);
        self.bell.ring();
    }

    /// Waits until the thread has ended. Returns the reason, with the error of the client if there
    /// was one; `None` if the thread panicked.
    pub(crate) async fn ended(&mut self) -> Option<(End, Option<RingError>)> {
        (&mut self.ended).await.ok()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.cancel();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.daemon.close();
    }
}

impl Worker {
    fn run(&mut self) -> Result<End, RingError> {
        let mut clock = Clock::new();
        let end = self.serve(&mut clock);
        self.seat.account.bill(clock.take_cpu());
        end
    }

    fn serve(&mut self, clock: &mut Clock) -> Result<End, RingError> {
        let waker = Waker::from(Arc::new(Bell(self.daemon.bell())));
        let mut context = Context::from_waker(&waker);
        let mut running: FuturesUnordered<Work> = FuturesUnordered::new();
        let mut spinning = Spin::new(self.spin);
        let mut idle_wakes = 0;
        loop {
            let ticket = self.daemon.ticket();
            let wish = self.wish.load(Ordering::SeqCst);
            let (mut is_busy, mut served) = (false, false);
            match wish {
                CANCEL => return Ok(End::Client),
                DRAIN if running.is_empty() => return Ok(End::Stopped),
                DRAIN => {}
                _ => {
                    // At most as many as there are slots, so that a client that always has requests
                    // cannot keep the thread from answering and from stopping.
                    for _ in 0..self.daemon.layout().slots() {
                        let Some(taken) = self.daemon.take()? else { break };
                        is_busy = true;
                        let begun = self.begin(taken)?;
                        served |= begun.is_some();
                        running.extend(begun);
                    }
                }
            }
            while let Poll::Ready(Some(finished)) = running.poll_next_unpin(&mut context) {
                (is_busy, served) = (true, true);
                self.answer(finished)?;
            }
            clock.turn(served, self.spin);
            self.account(clock);
            if is_busy {
                (spinning, idle_wakes) = (Spin::new(self.spin), 0);
                continue;
            }
            if spinning.turn() {
                continue;
            }
            self.seat.rings.sleeps.fetch_add(1, Ordering::Relaxed);
            let begun = Instant::now();
            self.daemon.sleep(ticket, SLEEP_MAX);
            idle_wakes = if begun.elapsed() < SLEEP_MAX / 2 { idle_wakes + 1 } else { 0 };
            if idle_wakes > IDLE_WAKES_MAX {
                thread::sleep(PAUSE);
            }
            clock.resume();
        }
    }

    /// Bills the thread's CPU time to the tenant. Pauses if the tenant's rings have exceeded their idle
    /// budget. Idle time is spent on pings, requests that are refused at once, bells without a request,
    /// and spinning that no request has caused.
    fn account(&self, clock: &mut Clock) {
        if clock.is_due() {
            self.seat.account.bill(clock.take_cpu());
        }
        if clock.idle < IDLE_STEP {
            return;
        }
        let mut left = self.seat.account.take_idle(std::mem::take(&mut clock.idle));
        if left.is_zero() {
            return;
        }
        self.seat.rings.pauses.fetch_add(1, Ordering::Relaxed);
        while !left.is_zero() && self.wish.load(Ordering::SeqCst) == RUN {
            let step = left.min(PAUSE_STEP);
            thread::sleep(step);
            left -= step;
        }
        clock.resume();
    }

    /// Begins a request, or answers it at once.
    fn begin(&mut self, Taken { tag, request }: Taken) -> Result<Option<Work>, RingError> {
        let arrival = Arrival { at: Instant::now(), protocol: "ring", context: None };
        let call = match request {
            Ok(Request::Ping) => return self.daemon.answer(tag, &Reply::Pong).map(|()| None),
            Ok(Request::Call(call)) => call,
            Err(error) => {
                let answer = Err(RequestError::bad_request(format!("the request of the ring is not valid: {error}")));
                return self.answer(Finished { tag, window: Span::default(), answer }).map(|()| None);
            }
        };
        let window = call.window;
        match prepare(&self.app, &self.caller, &self.daemon, call) {
            Err(error) => self.answer(Finished { tag, window, answer: Err(error) }).map(|()| None),
            Ok((model, checked)) => {
                let (app, caller) = (self.app.clone(), self.caller.clone());
                Ok(Some(Box::pin(async move {
                    Finished { tag, window, answer: execute(app, caller, model, checked, arrival).await }
                })))
            }
        }
    }

    fn answer(&mut self, Finished { tag, window, answer }: Finished) -> Result<(), RingError> {
        let answer = answer.and_then(|answer| place(&self.daemon, window, answer));
        self.seat.rings.note_answer(answer.is_ok());
        let reply = match answer {
            Ok(done) => Reply::Done(done),
            Err(error) => Reply::Failed(failure(error)),
        };
        self.daemon.answer(tag, &reply)
    }
}
