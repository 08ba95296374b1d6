//! The span of a running request, and the queue of finished requests.

use super::config::{Counts, OtlpConfig};
use super::context::{Arrival, Context};
use super::export::Exporter;
use super::record::{Failure, Finished, Ran, monotonic_ns};
use crate::limits::{OTLP_REQUESTS_MAX, OTLP_STOP_MAX, OTLP_TEXT_MAX};
use atoll_engine::{Class, InvocationResult};
use atoll_fleet::Inference;
use rustix::rand::{GetRandomFlags, getrandom};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Which requests are traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sampling {
    /// Whether any are.
    pub(crate) is_on: bool,
    /// One of this many requests without a parent span, at least 1.
    pub(crate) one_of: u64,
}

impl Sampling {
    /// The sampling for a rate of the configuration.
    fn of_rate(rate: f64) -> Sampling {
        let one_of = if rate > 0.0 { ((1.0 / rate).round() as u64).max(1) } else { ONE_OF_DEFAULT };
        Sampling { is_on: rate > 0.0, one_of }
    }

    fn threshold(self) -> u64 {
        if self.is_on { u64::MAX / self.one_of.max(1) } else { 0 }
    }
}

/// [`Sampling::one_of`] if the configuration has a rate of 0, as in Triton.
const ONE_OF_DEFAULT: u64 = 1000;

/// Decides which requests are traced, and queues their spans. Dropping it sends the remaining
/// spans, for at most [`OTLP_STOP_MAX`].
pub(crate) struct Tracer {
    /// Requests without a parent are traced if a random number is below this one. With 0 no request
    /// is traced, with `u64::MAX` all are.
    threshold: AtomicU64,
    /// As [`Sampling::one_of`].
    one_of: AtomicU64,
    at_start: Sampling,
    /// `None` only while it is being dropped.
    finished: Option<SyncSender<Box<Finished>>>,
    counts: Arc<Counts>,
    /// Whether the end of the thread was already logged.
    is_broken: AtomicBool,
    /// Disconnects when the thread has ended.
    ended: Mutex<Receiver<()>>,
}

impl Tracer {
    /// Starts the thread that sends spans.
    pub(crate) fn start(config: &OtlpConfig, engine: Arc<dyn Inference>, counts: Arc<Counts>) -> io::Result<Tracer> {
        let (finished, receiver) = sync_channel(OTLP_REQUESTS_MAX);
        let (ends, ended) = channel::<()>();
        let exporter = Exporter::new(config, engine, counts.clone());
        std::thread::Builder::new().name("otlp".into()).spawn(move || {
            exporter.run(&receiver);
            drop(ends);
        })?;
        Ok(Tracer::new(config.sample_rate, finished, counts, ended))
    }

    fn new(rate: f64, finished: SyncSender<Box<Finished>>, counts: Arc<Counts>, ended: Receiver<()>) -> Tracer {
        let threshold = (rate * u64::MAX as f64) as u64;
        let (is_broken, ended) = (AtomicBool::new(false), Mutex::new(ended));
        let at_start = Sampling::of_rate(rate);
        let (threshold, one_of) = (AtomicU64::new(threshold), AtomicU64::new(at_start.one_of));
        Tracer { threshold, one_of, at_start, finished: Some(finished), counts, is_broken, ended }
    }

    /// Which requests are traced now.
    pub(crate) fn sampling(&self) -> Sampling {
        let is_on = self.threshold.load(Ordering::Relaxed) > 0;
        Sampling { is_on, one_of: self.one_of.load(Ordering::Relaxed) }
    }

    /// The sampling of the configuration.
    pub(crate) fn sampling_at_start(&self) -> Sampling {
        self.at_start
    }

    /// Changes which requests are traced.
    pub(crate) fn sample(&self, sampling: Sampling) {
        if sampling != self.sampling() {
            self.one_of.store(sampling.one_of, Ordering::Relaxed);
            self.threshold.store(sampling.threshold(), Ordering::Relaxed);
        }
    }

    /// The ids of the trace and of the span of a request; `None` if it is not traced. If the client
    /// sent a context, its flag decides, otherwise the rate. With a rate of 0 no request is traced,
    /// so that clients cannot override the operator.
    fn ids(&self, context: Option<Context>) -> Option<([u8; 16], [u8; 8])> {
        let threshold = self.threshold.load(Ordering::Relaxed);
        if threshold == 0 || context.is_some_and(|context| !context.is_sampled) {
            return None;
        }
        let mut random = [0; 32];
        getrandom(&mut random, GetRandomFlags::empty()).ok()?;
        let [trace, own, rest] = [&random[..16], &random[16..24], &random[24..]];
        let random = u64::from_le_bytes(rest.try_into().unwrap_or_default());
        let is_chosen = || threshold == u64::MAX || random < threshold;
        if context.is_none() && !is_chosen() {
            return None;
        }
        let trace = context.map_or(trace.try_into().unwrap_or_default(), |context| context.trace);
        Some((trace, own.try_into().unwrap_or_default()))
    }

    fn take(&self, span: Box<Finished>) {
        let spans = span.spans();
        let Some(finished) = &self.finished else { return };
        match finished.try_send(span) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => Counts::add(&self.counts.overflowed, spans),
            Err(TrySendError::Disconnected(_)) => {
                Counts::add(&self.counts.refused, spans);
                if !self.is_broken.swap(true, Ordering::Relaxed) {
                    tracing::error!(
                        "internal error: the thread that sends traces has ended, so all further ones are dropped; \
                        restart the daemon to get them again, and please report this bug"
                    );
                }
            }
        }
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        self.finished = None;
        let ended = self.ended.get_mut().unwrap_or_else(PoisonError::into_inner);
        if ended.recv_timeout(OTLP_STOP_MAX) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("the last traces could not be sent to the collector in time and are lost");
        }
    }
}

/// The properties of a request that its span has as attributes.
pub(crate) struct Asked<'r> {
    pub(crate) tenant: &'r str,
    pub(crate) model: &'r str,
    pub(crate) version: &'r str,
    pub(crate) request_id: &'r str,
}

/// The span of a request. It ends when this is dropped.
pub(crate) struct Span {
    tracer: Arc<Tracer>,
    arrived: Instant,
    /// `None` once it is sent.
    span: Option<Box<Finished>>,
}

impl Span {
    /// Begins the span of a request; `None` if it is not traced.
    pub(crate) fn begin(tracer: &Arc<Tracer>, asked: &Asked<'_>, arrival: Arrival) -> Option<Span> {
        let (trace, id) = tracer.ids(arrival.context)?;
        let span = Finished {
            trace,
            id,
            parent: arrival.context.map(|context| context.parent),
            protocol: arrival.protocol,
            model: cut(asked.model),
            version: cut(asked.version),
            tenant: asked.tenant.into(),
            request_id: cut(asked.request_id),
            class: None,
            start_ns: 0,
            end_ns: 0,
            clock_offset_ns: 0,
            ran: None,
            error: Some(Failure { kind: "cancelled", message: "the client left, or the daemon stopped".into() }),
        };
        Some(Span { tracer: tracer.clone(), arrived: arrival.at, span: Some(Box::new(span)) })
    }

    /// Notes the class in which the request runs.
    pub(crate) fn note_class(&mut self, class: Class) {
        self.note(|span| span.class = Some(class));
    }

    /// Notes the result of the request.
    pub(crate) fn note_result(&mut self, result: &InvocationResult) {
        let InvocationResult { timing, device, task, placed, preemptions, cold_start, batch, .. } = *result;
        let replied_ns = monotonic_ns();
        self.note(|span| {
            span.ran = Some(Ran { timing, device, task, placed, preemptions, cold_start, batch, replied_ns });
            span.error = None;
        });
    }

    /// Notes why the request has no answer: the kind of the error, and its message.
    pub(crate) fn note_error(&mut self, kind: &'static str, message: &str) {
        self.note(|span| span.error = Some(Failure { kind, message: cut(message) }));
    }

    fn note(&mut self, note: impl FnOnce(&mut Finished)) {
        if let Some(span) = &mut self.span {
            note(span);
        }
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        let Some(mut span) = self.span.take() else { return };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        span.end_ns = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        let took = u64::try_from(self.arrived.elapsed().as_nanos()).unwrap_or(u64::MAX);
        span.start_ns = span.end_ns.saturating_sub(took);
        span.clock_offset_ns = span.end_ns.saturating_sub(monotonic_ns());
        self.tracer.take(span);
    }
}

fn cut(text: &str) -> String {
    text.chars().take(OTLP_TEXT_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderMap;

    fn tracer(rate: f64, room: usize) -> (Arc<Tracer>, Receiver<Box<Finished>>, Arc<Counts>) {
        let ((finished, receiver), (_, ended)) = (sync_channel(room), channel());
        let counts = Arc::<Counts>::default();
        (Arc::new(Tracer::new(rate, finished, counts.clone(), ended)), receiver, counts)
    }

    fn request(tracer: &Arc<Tracer>, context: Option<Context>) -> bool {
        let asked = Asked { tenant: "local", model: "toy", version: "1", request_id: "" };
        let arrival = Arrival { context, ..Arrival::now("http", &HeaderMap::new()) };
        Span::begin(tracer, &asked, arrival).is_some()
    }

    #[test]
    fn what_finds_the_queue_full_or_closed_is_counted() {
        let (tracer, receiver, counts) = tracer(1.0, 3);
        let dropped = || [&counts.overflowed, &counts.refused].map(|count| count.load(Ordering::Relaxed));
        for _ in 0..5 {
            assert!(request(&tracer, None));
        }
        assert_eq!((dropped(), tracer.is_broken.load(Ordering::Relaxed)), ([2, 0], false));
        assert_eq!(receiver.try_iter().count(), 3);
        drop(receiver);
        assert!(request(&tracer, None));
        assert_eq!((dropped(), tracer.is_broken.load(Ordering::Relaxed)), ([2, 1], true));
    }

    #[test]
    fn a_rate_of_0_traces_nothing_whatever_the_client_asks_for() {
        let context = |is_sampled| Some(Context { trace: [1; 16], parent: [2; 8], is_sampled });
        let asks = [None, context(true), context(false)];
        for (rate, expected) in [(0.0, [false; 3]), (1e-15, [false, true, false]), (1.0, [true, true, false])] {
            let (tracer, _receiver, _) = tracer(rate, 8);
            assert_eq!(asks.map(|context| request(&tracer, context)), expected, "{rate}");
        }
    }
    #[test]
    fn sampling_changes_while_requests_run() {
        for (rate, is_on, one_of) in [(1.0, true, 1), (0.1, true, 10), (0.3, true, 3), (0.0, false, 1000)] {
            let (tracer, _receiver, _) = tracer(rate, 8);
            assert_eq!(tracer.sampling(), Sampling { is_on, one_of }, "{rate}");
            assert_eq!(tracer.sampling(), tracer.sampling_at_start());
        }
        let (tracer, _receiver, _) = tracer(0.3, 8);
        let before = tracer.threshold.load(Ordering::Relaxed);
        tracer.sample(Sampling { is_on: true, one_of: 3 });
        assert_eq!(tracer.threshold.load(Ordering::Relaxed), before, "a rate between whole numbers stays");
        tracer.sample(Sampling { is_on: false, one_of: 3 });
        assert!(!request(&tracer, Some(Context { trace: [1; 16], parent: [2; 8], is_sampled: true })));
        tracer.sample(Sampling { is_on: true, one_of: 1 });
        assert!((0..8).all(|_| request(&tracer, None)));
        assert_eq!(tracer.sampling_at_start(), Sampling { is_on: true, one_of: 3 });
    }
}
