//! The thread that sends spans to the collector.

use super::config::{Counts, OtlpConfig};
use super::encode::message;
use super::follow::Follower;
use super::message::ExportTraceServiceResponse;
use super::record::{Finished, Ran};
use crate::limits::{OTLP_BATCH_MAX, OTLP_INTERVAL, OTLP_SEND_MAX};
use atoll_core::TaskId;
use atoll_fleet::Inference;
use prost::Message;
use std::collections::BTreeSet;
use std::io::{ErrorKind, Read};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};
use ureq::{Agent, Error, Timeout};

/// Largest answer of a collector that is read.
const ANSWER_BYTES_MAX: u64 = 64 << 10;

/// Pauses before further attempts to send a message. A collector that restarts is usually back
/// within this time.
const RETRY_PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(2)];

/// The state of the thread.
pub(super) struct Exporter {
    url: String,
    agent: Agent,
    engine: Arc<dyn Inference>,
    counts: Arc<Counts>,
    follower: Follower,
    /// Whether the last attempt to send failed.
    fails: bool,
}

/// Why an attempt to send failed.
struct Failed {
    reason: String,
    /// Whether another attempt may succeed.
    may_retry: bool,
}

impl Exporter {
    pub(super) fn new(config: &OtlpConfig, engine: Arc<dyn Inference>, counts: Arc<Counts>) -> Exporter {
        let agent = Agent::config_builder()
            .timeout_global(Some(OTLP_SEND_MAX))
            .timeout_connect(Some(OTLP_SEND_MAX / 2))
            .http_status_as_error(false)
            // Ignores proxies of the environment: the endpoint is the collector itself.
            .proxy(None)
            .max_redirects(0)
            .build();
        let url = config.url();
        Exporter { url, agent: agent.into(), engine, counts, follower: Follower::default(), fails: false }
    }

    /// Sends finished requests until the queue is closed and empty.
    pub(super) fn run(mut self, finished: &Receiver<Box<Finished>>) {
        self.follower.mark(&*self.engine);
        loop {
            let (requests, is_closed) = collect(finished);
            if !requests.is_empty() {
                self.send(&requests, is_closed);
                self.follower.mark(&*self.engine);
            }
            if is_closed {
                return;
            }
        }
    }

    fn send(&mut self, requests: &[Finished], is_closed: bool) {
        let spans = requests.iter().map(Finished::spans).sum();
        let ran = || requests.iter().filter_map(|request| request.ran);
        let tasks: BTreeSet<TaskId> = ran().flat_map(|ran: Ran| ran.task.into_iter().chain(ran.placed)).collect();
        let begin = |request: &Finished| request.start_ns.saturating_sub(request.clock_offset_ns);
        let since_ns = requests.iter().map(begin).min().unwrap_or(0);
        let records = self.follower.find(&*self.engine, since_ns, &tasks);
        let body = message(requests, &records, self.engine.devices()).encode_to_vec();
        let mut sent = self.post(&body);
        for pause in RETRY_PAUSES.iter().filter(|_| !is_closed) {
            if !matches!(sent, Err(Failed { may_retry: true, .. })) {
                break;
            }
            std::thread::sleep(*pause);
            sent = self.post(&body);
        }
        self.note(sent, spans);
    }

    fn note(&mut self, sent: Result<usize, Failed>, spans: usize) {
        let fails = sent.is_err();
        match sent {
            Ok(rejected) => {
                Counts::add(&self.counts.refused, rejected.min(spans));
                Counts::add(&self.counts.exported, spans.saturating_sub(rejected));
                if self.fails {
                    tracing::info!(url = self.url, "the collector accepts traces again");
                }
            }
            Err(Failed { reason, .. }) => {
                Counts::add(&self.counts.refused, spans);
                if !self.fails {
                    tracing::warn!(url = self.url, reason, "cannot send traces to the collector; they are dropped");
                }
            }
        }
        self.fails = fails;
    }

    /// Sends a message. Returns the number of spans that the collector rejected.
    fn post(&self, body: &[u8]) -> Result<usize, Failed> {
        let sent = self.agent.post(&self.url).header("content-type", "application/x-protobuf").send(body);
        // Retries only if the collector was not reached: otherwise it may have accepted the spans
        // and would get them twice.
        let failed = |error: Error| Failed { reason: error.to_string(), may_retry: has_no_connection(&error) };
        let answer = sent.map_err(failed)?;
        let status = answer.status().as_u16();
        let mut bytes = Vec::new();
        let read = answer.into_body().into_reader().take(ANSWER_BYTES_MAX).read_to_end(&mut bytes);
        if !(200..300).contains(&status) {
            // The statuses that the specification of OTLP declares as retryable.
            let may_retry = matches!(status, 429 | 502 | 503 | 504);
            return Err(Failed { reason: format!("it answered with status {status}"), may_retry });
        }
        let answer = read.ok().and_then(|_| ExportTraceServiceResponse::decode(&*bytes).ok());
        let partly = answer.and_then(|answer| answer.partial_success).unwrap_or_default();
        if partly.rejected_spans > 0 {
            let (spans, reason) = (partly.rejected_spans, partly.error_message.escape_debug().to_string());
            tracing::warn!(url = self.url, spans, reason, "the collector rejected spans");
        }
        Ok(usize::try_from(partly.rejected_spans).unwrap_or(0))
    }
}

/// Whether an attempt failed before anything was sent.
fn has_no_connection(error: &Error) -> bool {
    match error {
        Error::HostNotFound | Error::ConnectionFailed => true,
        Error::Timeout(part) => matches!(part, Timeout::Resolve | Timeout::Connect),
        Error::Io(error) => matches!(
            error.kind(),
            ErrorKind::ConnectionRefused | ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable
        ),
        _ => false,
    }
}

/// Takes the requests that arrive within [`OTLP_INTERVAL`], up to [`OTLP_BATCH_MAX`]. Also returns
/// whether the queue is closed.
fn collect(finished: &Receiver<Box<Finished>>) -> (Vec<Finished>, bool) {
    let (end, mut requests) = (Instant::now() + OTLP_INTERVAL, Vec::new());
    while requests.len() < OTLP_BATCH_MAX {
        match finished.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(request) => requests.push(*request),
            Err(RecvTimeoutError::Timeout) => return (requests, false),
            Err(RecvTimeoutError::Disconnected) => return (requests, true),
        }
    }
    (requests, false)
}
