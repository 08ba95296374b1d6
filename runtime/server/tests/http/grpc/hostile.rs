//! Messages and connections that no client should send, while another client is served.

use crate::support::frames::*;
use crate::support::grpc::proto::model_infer_request::InferInputTensor;
use crate::support::grpc::proto::{LogSettingsRequest, ModelInferRequest};
use crate::support::grpc::{Client, refused, request};
use crate::support::{Behaviour, Daemon, Options, eventually, write_bundle};
use atoll_server::ConnectionLimits;
use axum::body::Bytes;
use axum::http;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures_util::stream::{self, StreamExt};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use prost::Message;
use std::future::poll_fn;
use std::io::Write;
use std::time::Duration;
use tonic::body::Body;
use tonic::codec::CompressionEncoding;
use tonic::codegen::Service;
use tonic::{Code, Status};

fn daemon(change: impl FnOnce(&mut Options)) -> Daemon {
    let mut options = Options::default();
    change(&mut options);
    Daemon::with(options, |repository| write_bundle(&repository.join("toy.kg")))
}

fn small_bodies() -> Daemon {
    daemon(|options| options.body_bytes_max = Some(100_000))
}

fn is_served(daemon: &Daemon) -> bool {
    daemon.block_on(daemon.client().model_infer(request(""))).is_ok()
}

/// Calls `ModelInfer` with these bytes as the body. The body ends only if `ends` is true.
fn call(daemon: &Daemon, more: &[(&'static str, &'static str)], body: &[u8], ends: bool) -> Status {
    let mut request = http::Request::post("/inference.GRPCInferenceService/ModelInfer");
    for (name, value) in [("content-type", "application/grpc"), ("te", "trailers")].iter().chain(more) {
        request = request.header(*name, *value);
    }
    let part = Ok::<_, Status>(Frame::data(Bytes::copy_from_slice(body)));
    let rest = if ends { stream::empty().boxed() } else { stream::pending().boxed() };
    let request = request.body(Body::new(StreamBody::new(stream::iter([part]).chain(rest)))).unwrap();
    let mut channel = daemon.channel();
    daemon.block_on(async {
        poll_fn(|context| channel.poll_ready(context)).await.unwrap();
        let (head, body) = channel.call(request).await.unwrap().into_parts();
        let trailers = body.collect().await.unwrap().trailers().cloned();
        Status::from_header_map(&trailers.unwrap_or(head.headers)).expect("a status")
    })
}

fn says(status: &Status, code: Code, words: &[&str]) {
    refused(Err::<(), _>(status.clone()), code, words);
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packer = GzEncoder::new(Vec::new(), Compression::best());
    packer.write_all(bytes).unwrap();
    packer.finish().unwrap()
}

#[test]
fn compressed_requests_are_read_and_answered_compressed() {
    let daemon = Daemon::start();
    let gzip = CompressionEncoding::Gzip;
    let mut both = daemon.client().send_compressed(gzip).accept_compressed(gzip);
    let answer = daemon.block_on(both.model_infer(request("r1"))).unwrap();
    assert_eq!(answer.metadata().get("grpc-encoding").unwrap(), "gzip");
    assert_eq!(answer.into_inner().id, "r1");
    let mut plain: Client = daemon.client().accept_compressed(gzip);
    let answer = daemon.block_on(plain.model_infer(request("r2"))).unwrap();
    assert_eq!(answer.metadata().get("grpc-encoding"), None, "the client says so without need");
}

#[test]
fn messages_above_the_limit_are_refused_before_they_arrive() {
    let daemon = small_bodies();
    let large = ModelInferRequest { raw_input_contents: vec![vec![0; 200_000]], ..request("") };
    let words = ["larger than 100000 bytes", "--body-bytes-max"];
    refused(daemon.block_on(daemon.client().model_infer(large)), Code::ResourceExhausted, &words);
    let announced = call(&daemon, &[], &[0, 0xff, 0xff, 0xff, 0xff], false);
    says(&announced, Code::ResourceExhausted, &words);
    let setting = ("x".repeat(2 << 20), Default::default());
    let settings = LogSettingsRequest { settings: [setting].into() };
    refused(daemon.block_on(daemon.client().log_settings(settings)), Code::ResourceExhausted, &["larger than"]);
    assert!(is_served(&daemon));
}

#[test]
fn a_bomb_is_refused_when_it_has_grown_to_the_limit() {
    let daemon = small_bodies();
    let packed = gzip(&vec![0; 64 << 20]);
    assert!(packed.len() < 100_000);
    let gzip = &[("grpc-encoding", "gzip")];
    let grown = call(&daemon, gzip, &message(1, &packed), true);
    says(&grown, Code::ResourceExhausted, &["larger than 100000 bytes"]);
    let broken = call(&daemon, gzip, &message(1, &packed[..50]), true);
    says(&broken, Code::InvalidArgument, &["cannot be decompressed"]);
    let unknown = call(&daemon, &[("grpc-encoding", "zstd")], &message(1, &packed), true);
    says(&unknown, Code::Unimplemented, &["zstd", "gzip"]);
    let unnamed = call(&daemon, &[], &message(1, &packed), true);
    says(&unnamed, Code::InvalidArgument, &["no grpc-encoding"]);
    assert!(is_served(&daemon));
}

#[test]
fn messages_that_decode_to_many_tensors_are_refused_before() {
    let daemon = Daemon::start();
    let many = ModelInferRequest { inputs: vec![InferInputTensor::default(); 100_000], ..request("") };
    refused(daemon.block_on(daemon.client().model_infer(many)), Code::InvalidArgument, &["1025 inputs", "1024"]);
    assert!(is_served(&daemon));
}

#[test]
fn text_that_is_not_utf_8_and_bytes_that_are_no_message_are_refused() {
    let daemon = Daemon::start();
    let mut named = request("").encode_to_vec();
    // The name follows its tag and its length.
    assert_eq!(&named[..5], b"\x0a\x03toy");
    named[2..5].copy_from_slice(&[0xff, 0xfe, 0xfd]);
    says(&call(&daemon, &[], &message(0, &named), true), Code::InvalidArgument, &["not valid", "UTF-8"]);
    says(&call(&daemon, &[], &message(0, &[0xff; 64]), true), Code::InvalidArgument, &["not valid"]);
    says(&call(&daemon, &[], &message(7, b""), true), Code::InvalidArgument, &["begins with 7"]);
    assert_eq!(daemon.answers("INVALID_ARGUMENT"), 3);
    assert!(is_served(&daemon));
}

#[test]
fn half_a_request_is_given_up_and_takes_no_memory_of_others() {
    let pause = ConnectionLimits { body_pause: Duration::from_millis(100), ..ConnectionLimits::default() };
    let daemon = daemon(|options| options.connections = Some(pause));
    let whole = message(0, &request("").encode_to_vec());
    for half in [&[][..], &whole[..3], &whole[..whole.len() - 1]] {
        says(&call(&daemon, &[], half, false), Code::DeadlineExceeded, &["paused for 0.1 seconds"]);
    }
    // The request is complete with its message, although the body has not ended.
    says(&call(&daemon, &[], &whole, false), Code::Ok, &[]);
    for half in [&whole[..3], &whole[..whole.len() - 1]] {
        says(&call(&daemon, &[], half, true), Code::InvalidArgument, &["ended within a message"]);
    }
    assert!(is_served(&daemon));
}

#[test]
fn streams_that_are_opened_and_reset_rapidly_leave_nothing_behind() {
    let daemon = Daemon::start();
    daemon.engine.behave(Behaviour::Hold);
    let body = message(0, &request("").encode_to_vec());
    let mut connection = open(daemon.grpc);
    for number in 0..5_000 {
        let stream = 2 * number + 1;
        let open = frame(HEADERS, END_HEADERS, stream, &headers(&[]));
        let ask = frame(DATA, END_STREAM, stream, &body);
        let reset = frame(RESET, 0, stream, &8_u32.to_be_bytes());
        if !connection.try_send_raw(&[open, ask, reset].concat()) {
            break;
        }
    }
    daemon.engine.behave(Behaviour::Echo);
    assert!(is_served(&daemon));
    drop(connection);
    eventually(|| daemon.engine.cancelled() == daemon.engine.held());
    assert!(is_served(&daemon));
}

#[test]
fn headers_without_an_end_close_the_connection() {
    let daemon = Daemon::start();
    let mut connection = open(daemon.grpc);
    connection.send_raw(&frame(HEADERS, 0, 1, &headers(&[])));
    let more = headers(&[("x", &"y".repeat(100))]);
    while connection.try_send_raw(&frame(CONTINUATION, 0, 1, &more)) {}
    assert!(is_served(&daemon));
}

#[test]
fn a_connection_with_requests_is_not_idle_and_one_without_is_closed() {
    let idle = ConnectionLimits { idle_timeout: Duration::from_millis(300), ..ConnectionLimits::default() };
    let daemon = daemon(|options| options.connections = Some(idle));
    daemon.engine.behave(Behaviour::Hold);
    let mut client = daemon.client();
    let busy = daemon.spawn(async move { client.model_infer(request("busy")).await });
    eventually(|| daemon.engine.held() == 1);
    let mut silent = open(daemon.grpc);
    silent.closed();
    eventually(|| daemon.metric("atoll_connections_closed_total{reason=\"idle\"}") > 0);
    daemon.engine.answer_all();
    assert_eq!(daemon.block_on(busy).unwrap().unwrap().into_inner().id, "busy");
}
