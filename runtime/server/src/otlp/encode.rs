//! Encodes finished requests as messages. Each has a server span with child spans for its phases,
//! and events for the decisions of the scheduler.

use super::message::{
    Event, ExportTraceServiceRequest, InstrumentationScope, KeyValue, Resource, ResourceSpans, ScopeSpans, Span,
    Status, attribute,
};
use super::record::{Finished, Ran};
use atoll_core::TaskId;
use atoll_core::placement::PLACEMENTS;
use atoll_engine::Class;
use atoll_trace::{EventKind, Record};
use std::collections::BTreeMap;

const INTERNAL: i32 = 1;
const SERVER: i32 = 2;
const ERROR: i32 = 2;

/// Flags of a span: it is sampled; the next flag is valid; its parent is remote.
const SAMPLED: u32 = 0x001;
const HAS_REMOTE: u32 = 0x100;
const IS_REMOTE: u32 = 0x200;

/// The message with the spans of these requests. `records` has the trace records of their tasks,
/// `devices` the names of the devices.
pub(super) fn message(
    requests: &[Finished],
    records: &BTreeMap<TaskId, Vec<Record>>,
    devices: &[String],
) -> ExportTraceServiceRequest {
    let version = env!("CARGO_PKG_VERSION");
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let attributes = vec![
        attribute("service.name", "atoll"),
        attribute("service.version", version),
        attribute("host.name", host),
        attribute("process.pid", u64::from(std::process::id())),
    ];
    let scope = InstrumentationScope { name: "atoll".into(), version: version.into() };
    let spans = requests.iter().flat_map(|request| spans(request, records, devices)).collect();
    let scope_spans = vec![ScopeSpans { scope: Some(scope), spans }];
    let resource = Some(Resource { attributes });
    ExportTraceServiceRequest { resource_spans: vec![ResourceSpans { resource, scope_spans }] }
}

fn spans(request: &Finished, records: &BTreeMap<TaskId, Vec<Record>>, devices: &[String]) -> Vec<Span> {
    let of = |task: Option<TaskId>| task.and_then(|task| records.get(&task)).into_iter().flatten();
    let ran = request.ran.as_ref();
    let told: Vec<&Record> = ran.into_iter().flat_map(|ran| of(ran.placed).chain(of(ran.task))).collect();
    let mut events: Vec<Event> = told.iter().filter_map(|record| event(request, record, devices)).collect();
    events.sort_by_key(|event| event.time_unix_nano);
    let status = request.error.as_ref().map(|error| Status { message: error.message.clone(), code: ERROR });
    let remote = if request.parent.is_some() { IS_REMOTE } else { 0 };
    let root = Span {
        trace_id: request.trace.to_vec(),
        span_id: request.id.to_vec(),
        parent_span_id: request.parent.map_or(Vec::new(), Vec::from),
        name: format!("infer {}", request.model),
        kind: SERVER,
        start_time_unix_nano: request.start_ns,
        end_time_unix_nano: request.end_ns,
        attributes: attributes(request, devices),
        events,
        status,
        flags: SAMPLED | HAS_REMOTE | remote,
    };
    let phases = ran.filter(|ran| ran.has_phases()).map_or(Vec::new(), |ran| phases(request, ran, &told));
    std::iter::once(root).chain(phases).collect()
}

fn attributes(request: &Finished, devices: &[String]) -> Vec<KeyValue> {
    let mut all = vec![
        attribute("atoll.model", request.model.as_str()),
        attribute("atoll.model.version", request.version.as_str()),
        attribute("atoll.tenant", request.tenant.as_str()),
        attribute("atoll.protocol", request.protocol),
    ];
    if !request.request_id.is_empty() {
        all.push(attribute("atoll.request.id", request.request_id.as_str()));
    }
    if let Some(class) = request.class {
        all.push(attribute("atoll.class", if class == Class::RealTime { "real-time" } else { "best-effort" }));
    }
    if let Some(error) = &request.error {
        all.push(attribute("error.type", error.kind));
    }
    if let Some(ran) = &request.ran {
        if let Some(device) = devices.get(usize::from(ran.device.0)) {
            all.push(attribute("atoll.device", device.as_str()));
        }
        all.push(attribute("atoll.preemptions", u64::from(ran.preemptions)));
        all.push(attribute("atoll.cold_start", ran.cold_start));
        all.push(attribute("atoll.batch.requests", u64::from(ran.batch)));
    }
    all
}

/// The spans of a request's phases. Their times are computed backwards from its answer. The request
/// waits both before and after its inputs are written (`load`); a record of the trace says when
/// that began.
fn phases(request: &Finished, ran: &Ran, told: &[&Record]) -> Vec<Span> {
    let timing = ran.timing;
    let answered = ran.replied_ns.saturating_add(request.clock_offset_ns).min(request.end_ns);
    let submitted = answered
        .saturating_sub(timing.output_ns + timing.compute_ns + timing.input_ns + timing.queue_ns)
        .max(request.start_ns);
    let computed = answered.saturating_sub(timing.output_ns).max(submitted);
    let begun = computed.saturating_sub(timing.compute_ns).max(submitted);
    let preparing = told.iter().rev().find(|record| record.kind == EventKind::Preparing);
    let latest = begun.saturating_sub(timing.input_ns).max(submitted);
    let loading = preparing.map_or(latest, |record| unix(request, record).clamp(submitted, latest));
    let loaded = loading.saturating_add(timing.input_ns).min(begun);
    let phases = [
        ("queue", submitted, loading),
        ("load", loading, loaded),
        ("wait", loaded, begun),
        ("execute", begun, computed),
        ("output", computed, answered),
    ];
    let phase = |(at, (name, start, end)): (usize, (&str, u64, u64))| {
        // Differs from the id of the request's span and from those of its other phases.
        let mut id = request.id;
        id[7] ^= at as u8 + 1;
        Span {
            trace_id: request.trace.to_vec(),
            span_id: id.to_vec(),
            parent_span_id: request.id.to_vec(),
            name: name.into(),
            kind: INTERNAL,
            start_time_unix_nano: start,
            end_time_unix_nano: end,
            flags: SAMPLED | HAS_REMOTE,
            ..Span::default()
        }
    };
    phases.into_iter().enumerate().map(phase).collect()
}

fn unix(request: &Finished, record: &Record) -> u64 {
    record.at.0.saturating_add(request.clock_offset_ns)
}

/// The event for a record; `None` for records that are not reported.
fn event(request: &Finished, record: &Record, devices: &[String]) -> Option<Event> {
    let (name, attributes) = match record.kind {
        EventKind::Ready => ("constants loaded", Vec::new()),
        EventKind::Unready => ("constants evicted", Vec::new()),
        EventKind::Raised { epoch, .. } => ("evicted", vec![attribute("atoll.epoch", u64::from(epoch.0))]),
        EventKind::Issued { epoch, node, .. } => {
            ("resumed", vec![attribute("atoll.epoch", u64::from(epoch.0)), attribute("atoll.node", u64::from(node))])
        }
        EventKind::Padded { blocks, .. } => ("padded", vec![attribute("atoll.blocks", u64::from(blocks))]),
        EventKind::Aborting { .. } => ("aborted", Vec::new()),
        EventKind::Hung { .. } => ("hung", Vec::new()),
        EventKind::Batched { requests, rows, .. } => {
            let requests = attribute("atoll.batch.requests", u64::from(requests));
            ("batched", vec![requests, attribute("atoll.batch.rows", rows)])
        }
        EventKind::Placed { device, policy, why, waiting, .. } => {
            let device = usize::try_from(device).ok().and_then(|at| devices.get(at)).map_or("", String::as_str);
            let policy = PLACEMENTS.get(usize::from(policy)).map_or("", |entry| entry.name);
            let mut all = vec![attribute("atoll.device", device), attribute("atoll.policy", policy)];
            all.extend([attribute("atoll.why", why.words()), attribute("atoll.waiting", waiting)]);
            ("placed", all)
        }
        _ => return None,
    };
    Some(Event { time_unix_nano: unix(request, record), name: name.into(), attributes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::otlp::message::Value;
    use crate::otlp::record::Failure;
    use atoll_core::placement::Why;
    use atoll_core::{Epoch, LaunchId, Nanos, QueueId};
    use atoll_engine::{DeviceId, InvocationTiming};
    use atoll_trace::Raise;

    /// A request that arrived at 1,000 and was answered at 2,000 ns since 1970. The monotonic clock
    /// is 1,000 ns behind.
    fn request() -> Finished {
        let timing = InvocationTiming { queue_ns: 100, input_ns: 50, compute_ns: 400, output_ns: 30 };
        Finished {
            trace: [1; 16],
            id: [2; 8],
            parent: Some([3; 8]),
            protocol: "http",
            model: "toy".into(),
            version: "1".into(),
            tenant: "local".into(),
            request_id: "r1".into(),
            class: Some(Class::BestEffort),
            start_ns: 1000,
            end_ns: 2000,
            clock_offset_ns: 1000,
            ran: Some(Ran {
                timing,
                device: DeviceId(0),
                task: Some(TaskId(7)),
                placed: Some(TaskId(9)),
                preemptions: 1,
                cold_start: false,
                batch: 1,
                replied_ns: 900,
            }),
            error: None,
        }
    }

    fn record(task: u64, at: u64, kind: EventKind) -> Record {
        Record { at: Nanos(at), task: TaskId(task), function: 0, kind }
    }

    fn encoded(request: Finished, records: Vec<Record>) -> Vec<Span> {
        let mut of = BTreeMap::<TaskId, Vec<Record>>::new();
        records.into_iter().for_each(|record| of.entry(record.task).or_default().push(record));
        let mut message = message(&[request], &of, &["host:0".into(), "host:1".into()]);
        message.resource_spans.remove(0).scope_spans.remove(0).spans
    }

    #[test]
    fn phases_lie_within_their_request_and_decisions_are_its_events() {
        let (launch, queue) = (LaunchId(1), QueueId(0));
        let issued = EventKind::Issued { launch, node: 3, queue, epoch: Epoch(1) };
        let zero = Nanos(0);
        let placed = EventKind::Placed {
            device: 1,
            policy: 0,
            why: Why::Holder,
            arrived: zero,
            reload: zero,
            service: zero,
            waiting: 2,
        };
        let records = vec![
            record(7, 340, EventKind::Preparing),
            record(7, 500, EventKind::Raised { epoch: Epoch(1), why: Raise::Preempted }),
            record(7, 600, issued),
            record(9, 300, placed),
        ];
        let spans = encoded(request(), records);
        let times: Vec<_> =
            spans.iter().map(|span| (&*span.name, span.start_time_unix_nano, span.end_time_unix_nano)).collect();
        let expected = [
            ("infer toy", 1000, 2000),
            ("queue", 1320, 1340),
            ("load", 1340, 1390),
            ("wait", 1390, 1470),
            ("execute", 1470, 1870),
            ("output", 1870, 1900),
        ];
        assert_eq!(times, expected);
        let events: Vec<_> = spans[0].events.iter().map(|event| (&*event.name, event.time_unix_nano)).collect();
        assert_eq!(events, [("placed", 1300), ("evicted", 1500), ("resumed", 1600)]);
        assert!(spans[0].events[0].attributes.contains(&attribute("atoll.device", "host:1")));
        assert!(spans[0].attributes.contains(&attribute("atoll.preemptions", 1_u64)));
        assert_eq!((spans[0].kind, spans[0].flags, spans[0].parent_span_id.len()), (SERVER, 0x301, 8));
        let mut ids: Vec<_> = spans.iter().map(|span| span.span_id.clone()).collect();
        assert!(spans[1..].iter().all(|span| span.parent_span_id == [2; 8] && span.trace_id == [1; 16]));
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), request().spans());
    }

    #[test]
    fn without_records_and_with_wrong_clocks_phases_stay_within_their_request() {
        let mut late = request();
        late.ran.as_mut().unwrap().replied_ns = u64::MAX;
        let mut long = request();
        long.ran.as_mut().unwrap().timing.compute_ns = 1 << 40;
        for request in [request(), late, long] {
            let spans =
                encoded(request, vec![record(7, 0, EventKind::Preparing), record(7, u64::MAX, EventKind::Ready)]);
            for span in &spans {
                let (start, end) = (span.start_time_unix_nano, span.end_time_unix_nano);
                assert!(1000 <= start && start <= end && end <= 2000, "{span:?}");
            }
        }
    }

    #[test]
    fn a_request_that_failed_says_why() {
        let error = Some(Failure { kind: "exhausted", message: "the queue is full".into() });
        let spans = encoded(Finished { ran: None, error, parent: None, ..request() }, Vec::new());
        assert_eq!(spans.len(), 1);
        assert_eq!(spans[0].status, Some(Status { message: "the queue is full".into(), code: ERROR }));
        let kind = spans[0].attributes.iter().find(|attribute| attribute.key == "error.type").unwrap();
        assert_eq!(kind.value.clone().unwrap().value, Some(Value::Text("exhausted".into())));
        assert_eq!((spans[0].flags, spans[0].parent_span_id.len()), (0x101, 0));
    }
}
