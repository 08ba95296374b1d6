//! OpenTelemetry, with a collector that decodes what the daemon sends.

use crate::support::grpc::request;
use crate::support::{Behaviour, Connection, Daemon, Options, eventually, write_bundle};
use atoll_engine::InvokeError;
use atoll_fleet::Inference;
use atoll_server::OtlpConfig;
use prost::Message;
use serde_json::json;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use tonic::Request;

const INFER: &str = "/v2/models/toy/infer";
const BODY: &str = r#"{"id":"r1","inputs":[{"name":"in","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]}"#;
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

/// The messages of OTLP, written from the public definition, with the fields that the tests read.
mod messages {
    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Export {
        #[prost(message, repeated, tag = "1")]
        pub(super) resource_spans: Vec<ResourceSpans>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct ResourceSpans {
        #[prost(message, optional, tag = "1")]
        pub(super) resource: Option<Attributes>,
        #[prost(message, repeated, tag = "2")]
        pub(super) scope_spans: Vec<ScopeSpans>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Attributes {
        #[prost(message, repeated, tag = "1")]
        pub(super) attributes: Vec<KeyValue>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct ScopeSpans {
        #[prost(message, repeated, tag = "2")]
        pub(super) spans: Vec<Span>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Span {
        #[prost(bytes = "vec", tag = "1")]
        pub(super) trace_id: Vec<u8>,
        #[prost(bytes = "vec", tag = "2")]
        pub(super) span_id: Vec<u8>,
        #[prost(bytes = "vec", tag = "4")]
        pub(super) parent_span_id: Vec<u8>,
        #[prost(string, tag = "5")]
        pub(super) name: String,
        #[prost(int32, tag = "6")]
        pub(super) kind: i32,
        #[prost(fixed64, tag = "7")]
        pub(super) start: u64,
        #[prost(fixed64, tag = "8")]
        pub(super) end: u64,
        #[prost(message, repeated, tag = "9")]
        pub(super) attributes: Vec<KeyValue>,
        #[prost(message, repeated, tag = "11")]
        pub(super) events: Vec<Event>,
        #[prost(message, optional, tag = "15")]
        pub(super) status: Option<Status>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Event {
        #[prost(fixed64, tag = "1")]
        pub(super) time: u64,
        #[prost(string, tag = "2")]
        pub(super) name: String,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Status {
        #[prost(string, tag = "2")]
        pub(super) message: String,
        #[prost(int32, tag = "3")]
        pub(super) code: i32,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct KeyValue {
        #[prost(string, tag = "1")]
        pub(super) key: String,
        #[prost(message, optional, tag = "2")]
        pub(super) value: Option<AnyValue>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct AnyValue {
        #[prost(string, optional, tag = "1")]
        pub(super) text: Option<String>,
        #[prost(int64, optional, tag = "3")]
        pub(super) int: Option<i64>,
    }
}

/// A collector that answers with `status`.
struct Collector {
    address: SocketAddr,
    status: Arc<AtomicU16>,
    spans: Arc<Mutex<Vec<messages::Span>>>,
    services: Arc<Mutex<Vec<String>>>,
}

impl Collector {
    fn start() -> Collector {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let collector = Collector {
            address: listener.local_addr().unwrap(),
            status: Arc::new(AtomicU16::new(200)),
            spans: Arc::default(),
            services: Arc::default(),
        };
        let (status, spans, services) = (collector.status.clone(), collector.spans.clone(), collector.services.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (status, spans, services) = (status.clone(), spans.clone(), services.clone());
                std::thread::spawn(move || serve(&mut stream.unwrap(), &status, &spans, &services));
            }
        });
        collector
    }

    fn daemon(&self, sample_rate: f64) -> Daemon {
        let otlp = OtlpConfig::new(&format!("http://{}", self.address), sample_rate).unwrap();
        let options = Options { otlp: Some(otlp), ..Options::default() };
        Daemon::with(options, |repository| write_bundle(&repository.join("toy.kg")))
    }

    /// Waits until there are this many spans, and takes them.
    fn spans(&self, count: usize) -> Vec<messages::Span> {
        eventually(|| self.spans.lock().unwrap().len() >= count);
        std::mem::take(&mut *self.spans.lock().unwrap())
    }
}

/// Answers the requests of a connection.
fn serve(
    stream: &mut std::net::TcpStream,
    status: &AtomicU16,
    spans: &Mutex<Vec<messages::Span>>,
    services: &Mutex<Vec<String>>,
) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    loop {
        let (mut head, mut line) = (Vec::new(), String::new());
        while reader.read_line(&mut line).unwrap_or(0) > 2 {
            head.push(std::mem::take(&mut line).trim().to_ascii_lowercase());
        }
        if head.is_empty() {
            return;
        }
        assert_eq!(head[0], "post /v1/traces http/1.1");
        let header = |name: &str| head.iter().find_map(|line| Some(line.strip_prefix(name)?.trim().to_owned()));
        assert_eq!(header("content-type:").as_deref(), Some("application/x-protobuf"));
        let mut body = vec![0; header("content-length:").expect("a length").parse().unwrap()];
        reader.read_exact(&mut body).unwrap();
        let status = status.load(Ordering::Relaxed);
        let export = messages::Export::decode(&*body).expect("a message of OTLP");
        if status == 200 {
            for of in export.resource_spans {
                let resource = of.resource.unwrap_or_default().attributes;
                let name = resource.iter().find(|attribute| attribute.key == "service.name");
                services.lock().unwrap().extend(name.and_then(|name| name.value.clone()?.text));
                spans.lock().unwrap().extend(of.scope_spans.into_iter().flat_map(|scope| scope.spans));
            }
        }
        let answer =
            format!("HTTP/1.1 {status} Status\r\nContent-Type: application/x-protobuf\r\nContent-Length: 0\r\n\r\n");
        stream.write_all(answer.as_bytes()).unwrap();
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn attributes(span: &messages::Span) -> BTreeMap<&str, String> {
    let value =
        |value: &messages::AnyValue| value.text.clone().or(value.int.map(|int| int.to_string())).unwrap_or_default();
    span.attributes.iter().map(|it| (&*it.key, it.value.as_ref().map(value).unwrap_or_default())).collect()
}

fn infer(daemon: &Daemon, headers: &[(&str, &str)]) -> u16 {
    Connection::open(daemon.http).request("POST", INFER, headers, BODY.as_bytes()).status
}

fn context(flags: &str) -> String {
    format!("00-{TRACE}-{PARENT}-{flags}")
}

#[test]
fn a_request_is_a_span_of_its_clients_trace_over_both_protocols() {
    let collector = Collector::start();
    let daemon = collector.daemon(1e-15);
    assert_eq!(infer(&daemon, &[("traceparent", &context("01"))]), 200);
    let mut client = daemon.client();
    let mut message = Request::new(request("r2"));
    message.metadata_mut().insert("traceparent", context("01").parse().unwrap());
    daemon.block_on(client.model_infer(message)).unwrap();
    let mut message = Request::new(tokio_stream::iter([request("r3"), request("r4")]));
    message.metadata_mut().insert("traceparent", context("01").parse().unwrap());
    daemon.block_on(async {
        let mut answers = client.model_stream_infer(message).await.unwrap().into_inner();
        while answers.message().await.unwrap().is_some() {}
    });
    let spans = collector.spans(4);
    assert_eq!(spans.len(), 4);
    for (span, id) in spans.iter().zip(["r1", "r2", "r3", "r4"]) {
        assert_eq!((hex(&span.trace_id).as_str(), hex(&span.parent_span_id).as_str()), (TRACE, PARENT));
        assert_eq!((&*span.name, span.kind, span.span_id.len()), ("infer toy", 2, 8));
        assert!(span.start > 1_600_000_000_000_000_000 && span.start <= span.end);
        let attributes = attributes(span);
        assert_eq!(attributes["atoll.request.id"], id);
        assert_eq!(attributes["atoll.protocol"], if id == "r1" { "http" } else { "grpc" });
        assert_eq!((&*attributes["atoll.tenant"], &*attributes["atoll.device"]), ("local", "host:0"));
        assert_eq!(attributes["atoll.class"], "best-effort");
        assert_eq!(span.status, None);
    }
    assert_eq!(collector.services.lock().unwrap()[0], "atoll");
    eventually(|| daemon.metric("atoll_otlp_spans_exported_total") == 4);
}

#[test]
fn settings_of_traces_change_which_requests_are_traced() {
    let collector = Collector::start();
    let daemon = collector.daemon(0.0);
    let (setting, of_model) = ("/v2/trace/setting", "/v2/models/toy/trace/setting");
    let settings = daemon.get(setting).json();
    assert_eq!((&settings["trace_level"], &settings["trace_mode"]), (&json!(["OFF"]), &json!("opentelemetry")));
    assert_eq!(infer(&daemon, &[]), 200);
    let on = daemon.post(setting, r#"{"trace_level": ["TIMESTAMPS"], "trace_rate": 1}"#).json();
    assert_eq!((&on["trace_level"], &on["trace_rate"]), (&json!(["TIMESTAMPS"]), &json!("1")));
    assert_eq!(daemon.get(of_model).json(), on);
    assert_eq!(infer(&daemon, &[]), 200);
    assert_eq!(collector.spans(1).len(), 1, "the request after the change");
    for (path, body, word) in [
        (setting, r#"{"trace_level": ["TENSORS"]}"#, "TIMESTAMPS"),
        (setting, r#"{"trace_rate": "0"}"#, "whole number"),
        (setting, r#"{"trace_file": "/tmp/file"}"#, "cannot be changed"),
        (setting, r#"{"rate": "1"}"#, "no setting `rate`"),
        (of_model, r#"{"trace_level": ["OFF"]}"#, "models have no settings"),
    ] {
        let refused = daemon.post(path, body);
        assert!(refused.status == 400 && refused.error().contains(word), "{body}: {}", refused.error());
    }
    let off = daemon.post(setting, r#"{"trace_level": null}"#).json();
    assert_eq!((&off["trace_level"], &off["trace_rate"]), (&json!(["OFF"]), &json!("1")));
    assert_eq!(infer(&daemon, &[("traceparent", &context("01"))]), 200);
    daemon.stop();
    assert!(collector.spans.lock().unwrap().is_empty());
}

#[test]
fn the_client_decides_by_its_flag_and_the_rate_for_others() {
    let collector = Collector::start();
    let (never, idle) = (collector.daemon(0.0), collector.daemon(1.0));
    assert_eq!(infer(&never, &[("traceparent", &context("01"))]), 200);
    assert_eq!(infer(&never, &[]), 200);
    assert_eq!(infer(&never, &[("traceparent", "00-broken")]), 200);
    let always = collector.daemon(1.0);
    assert_eq!(infer(&always, &[("traceparent", &context("00"))]), 200);
    assert_eq!(infer(&always, &[]), 200);
    // A stopped daemon has sent all its spans.
    never.stop();
    let spans = collector.spans(1);
    assert_eq!(spans.len(), 1);
    assert!(spans[0].parent_span_id.is_empty() && hex(&spans[0].trace_id) != TRACE);
    let daemon = collector.daemon(0.5);
    for _ in 0..200 {
        assert_eq!(infer(&daemon, &[]), 200);
    }
    daemon.stop();
    let count = collector.spans(1).len();
    // Fewer than 40 or more than 160 of 200 requests are sampled once in 10^17 runs.
    assert!((40..160).contains(&count), "{count}");
    // Several intervals have passed.
    let traces = idle.engine.traced().len() as u64;
    assert!(idle.engine.trace_reads() <= traces, "traces are read though no request is traced");
}

#[test]
fn failures_and_decisions_of_the_scheduler_are_told() {
    let collector = Collector::start();
    let daemon = collector.daemon(1.0);
    daemon.engine.behave(Behaviour::Fail(InvokeError::QueueFull { capacity: 3 }));
    assert_eq!(infer(&daemon, &[]), 503);
    let spans = collector.spans(1);
    let status = spans[0].status.clone().unwrap();
    assert_eq!((status.code, &*attributes(&spans[0])["error.type"]), (2, "unavailable"));
    assert!(status.message.contains("3"), "{}", status.message);
    // The traces of both devices have a preemption of the task.
    daemon.engine.behave(Behaviour::Echo);
    daemon.engine.preempt();
    let told = || {
        assert_eq!(infer(&daemon, &[]), 200);
        let spans = collector.spans(1);
        spans[0].events.iter().any(|event| event.name == "evicted" && event.time > 0)
    };
    eventually(told);
}

#[test]
fn a_collector_that_is_gone_or_refuses_delays_nothing_and_is_counted() {
    let collector = Collector::start();
    collector.status.store(400, Ordering::Relaxed);
    let daemon = collector.daemon(1.0);
    assert_eq!(infer(&daemon, &[]), 200);
    let dropped = |daemon: &Daemon| daemon.metric("atoll_otlp_spans_dropped_total{reason=\"not_taken\"}");
    eventually(|| dropped(&daemon) == 1);
    assert_eq!(daemon.metric("atoll_otlp_spans_exported_total"), 0);
    collector.status.store(200, Ordering::Relaxed);
    assert_eq!(infer(&daemon, &[]), 200);
    collector.spans(1);
    // A collector that restarts misses no span.
    collector.status.store(503, Ordering::Relaxed);
    assert_eq!(infer(&daemon, &[]), 200);
    std::thread::sleep(std::time::Duration::from_millis(700));
    collector.status.store(200, Ordering::Relaxed);
    collector.spans(1);
    assert_eq!(dropped(&daemon), 1);
    // No collector listens there.
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let otlp = OtlpConfig::new(&format!("http://{gone}"), 1.0).unwrap();
    let options = Options { otlp: Some(otlp), ..Options::default() };
    let daemon = Daemon::with(options, |repository| write_bundle(&repository.join("toy.kg")));
    assert_eq!(infer(&daemon, &[]), 200);
    daemon.stop();
}

#[test]
fn a_collector_that_hangs_delays_nothing_and_gets_nothing_twice() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let otlp = OtlpConfig::new(&format!("http://{}", listener.local_addr().unwrap()), 1.0).unwrap();
    let options = Options { otlp: Some(otlp), ..Options::default() };
    let daemon = Daemon::with(options, |repository| write_bundle(&repository.join("toy.kg")));
    let dropped = || daemon.metric("atoll_otlp_spans_dropped_total{reason=\"not_taken\"}");
    assert_eq!(infer(&daemon, &[]), 200);
    let (mut stream, _) = listener.accept().unwrap();
    assert!(stream.read(&mut [0; 64]).unwrap() > 0, "a message is sent");
    for _ in 0..20 {
        assert_eq!(infer(&daemon, &[]), 200);
    }
    assert_eq!(dropped(), 0);
    // The message may have arrived, so it is not sent again.
    drop(stream);
    eventually(|| dropped() == 1);
    drop(listener);
    daemon.stop();
}
