//! The span of a request while the request runs, and the queue of spans that are finished.

use super::context::{Arrival, Context};
use super::export::Exporter;
use super::{Counts, OtlpConfig};
use crate::app::App;
use crate::identity::Principal;
use crate::limits::{OTLP_REQUESTS_MAX, OTLP_STOP_MAX, OTLP_TEXT_MAX};
use crate::model::Model;
use crate::requests::error::{Kind, RequestError};
use atoll_core::TaskId;
use atoll_engine::{Class, DeviceId, InvocationResult, InvocationTiming};
use atoll_fleet::Inference;
use rustix::rand::{GetRandomFlags, getrandom};
use rustix::time::{ClockId, clock_gettime};
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Decides which requests are traced, and takes their spans. Dropping it sends what is left, unless
/// the collector takes it too slowly.
pub(crate) struct Tracer {
    /// Requests without a parent are traced if a random number is below this one.
    threshold: u64,
    /// Whether all of them are traced.
    all: bool,
    /// `None` only while it is being dropped.
    finished: Option<SyncSender<Box<Finished>>>,
    counts: Arc<Counts>,
    /// Disconnected when the thread has ended.
    ended: Mutex<Receiver<()>>,
}

/// A span whose request is over, with all times in nanoseconds.
#[derive(Debug)]
pub(super) struct Finished {
    pub(super) trace: [u8; 16],
    pub(super) id: [u8; 8],
    pub(super) parent: Option<[u8; 8]>,
    pub(super) protocol: &'static str,
    pub(super) model: String,
    pub(super) version: String,
    pub(super) tenant: String,
    pub(super) request_id: String,
    pub(super) class: Option<Class>,
    /// Since 1970.
    pub(super) start_ns: u64,
    pub(super) end_ns: u64,
    /// What is added to a time of the monotonic clock to get one since 1970.
    pub(super) clock_offset_ns: u64,
    pub(super) ran: Option<Ran>,
    pub(super) error: Option<Failure>,
}

/// How a request ran on a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ran {
    pub(super) timing: InvocationTiming,
    pub(super) device: DeviceId,
    /// Its ids in the traces of the device and of the pool.
    pub(super) task: Option<TaskId>,
    pub(super) placed: Option<TaskId>,
    pub(super) preemptions: u32,
    pub(super) cold_start: bool,
    pub(super) batch: u32,
    /// When the result arrived, on the monotonic clock.
    pub(super) replied_ns: u64,
}

/// Why a request has no result.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) kind: Option<Kind>,
    pub(super) message: String,
}

impl Finished {
    /// The number of spans that it becomes.
    pub(super) fn spans(&self) -> usize {
        if self.ran.is_some_and(|ran| ran.has_phases()) { 5 } else { 1 }
    }
}

impl Ran {
    /// Whether it ran, and was not answered from kept responses.
    pub(super) fn has_phases(&self) -> bool {
        self.timing != InvocationTiming::default()
    }
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
        let threshold = (config.sample_rate * u64::MAX as f64) as u64;
        let (all, ended) = (config.sample_rate >= 1.0, Mutex::new(ended));
        Ok(Tracer { threshold, all, finished: Some(finished), counts, ended })
    }

    /// The ids of a request that is traced: the client decides if it sent a context, else the rate.
    fn ids(&self, context: Option<Context>) -> Option<([u8; 16], [u8; 8])> {
        if context.is_some_and(|context| !context.is_sampled) {
            return None;
        }
        let mut random = [0; 32];
        getrandom(&mut random, GetRandomFlags::empty()).ok()?;
        let [trace, own, rest] = [&random[..16], &random[16..24], &random[24..]];
        let is_chosen = || self.all || u64::from_le_bytes(rest.try_into().unwrap_or_default()) < self.threshold;
        if context.is_none() && !is_chosen() {
            return None;
        }
        let trace = context.map_or(trace.try_into().unwrap_or_default(), |context| context.trace);
        Some((trace, own.try_into().unwrap_or_default()))
    }

    fn take(&self, span: Box<Finished>) {
        let spans = span.spans();
        let sent = self.finished.as_ref().is_some_and(|finished| finished.try_send(span).is_ok());
        if !sent {
            Counts::add(&self.counts.overflowed, spans);
        }
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        self.finished = None;
        let ended = self.ended.get_mut().unwrap_or_else(PoisonError::into_inner);
        if ended.recv_timeout(OTLP_STOP_MAX) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("the collector does not take the last traces; they are lost");
        }
    }
}

/// The span of a request, which ends when it is dropped.
pub(crate) struct Span {
    app: Arc<App>,
    arrived: Instant,
    /// `None` once it is sent.
    span: Option<Box<Finished>>,
}

impl Span {
    /// Begins the span of a request; `None` if it is not traced.
    pub(crate) fn begin(
        app: &Arc<App>,
        caller: &Principal,
        model: &Model,
        request_id: &str,
        arrival: Arrival,
    ) -> Option<Span> {
        let (trace, id) = app.tracer.as_ref()?.ids(arrival.context)?;
        let span = Finished {
            trace,
            id,
            parent: arrival.context.map(|context| context.parent),
            protocol: arrival.protocol,
            model: model.name.clone(),
            version: model.version.clone(),
            tenant: caller.tenant.to_string(),
            request_id: cut(request_id),
            class: None,
            start_ns: 0,
            end_ns: 0,
            clock_offset_ns: 0,
            ran: None,
            error: Some(Failure { kind: None, message: "the client left, or the daemon stopped".into() }),
        };
        Some(Span { app: app.clone(), arrived: arrival.at, span: Some(Box::new(span)) })
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

    /// Notes why the request has no answer.
    pub(crate) fn note_error(&mut self, error: &RequestError) {
        self.note(|span| span.error = Some(Failure { kind: Some(error.kind), message: cut(&error.message) }));
    }

    fn note(&mut self, note: impl FnOnce(&mut Finished)) {
        if let Some(span) = &mut self.span {
            note(span);
        }
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        let (Some(mut span), Some(tracer)) = (self.span.take(), &self.app.tracer) else { return };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        span.end_ns = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        let took = u64::try_from(self.arrived.elapsed().as_nanos()).unwrap_or(u64::MAX);
        span.start_ns = span.end_ns.saturating_sub(took);
        span.clock_offset_ns = span.end_ns.saturating_sub(monotonic_ns());
        tracer.take(span);
    }
}

fn cut(text: &str) -> String {
    text.chars().take(OTLP_TEXT_MAX).collect()
}

/// The clock of devices and their traces.
pub(super) fn monotonic_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}
