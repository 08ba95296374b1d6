//! Requests that last because of their client: they give their places to others.

use crate::support::frames::*;
use crate::support::grpc::proto::ModelInferRequest;
use crate::support::grpc::{Client, refused, request};
use crate::support::{Behaviour, Connection, Daemon, Options, eventually, write_bundle};
use atoll_server::ConnectionLimits;
use prost::Message;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;

const MADE_ROOM: &str = "atoll_connections_closed_total{reason=\"made_room\"}";

fn daemon(connections: ConnectionLimits) -> Daemon {
    let options = Options { connections: Some(connections), ..Options::default() };
    Daemon::with(options, |repository| write_bundle(&repository.join("toy.kg")))
}

/// A port with two places.
fn two_places() -> ConnectionLimits {
    ConnectionLimits { most: 2, ..ConnectionLimits::default() }
}

fn is_served(daemon: &Daemon) -> bool {
    daemon.block_on(daemon.client().model_infer(request(""))).is_ok()
}

/// A connection with a request whose message begins with these bytes. The daemon has read them.
fn beginning(daemon: &Daemon, message: &[u8]) -> Connection {
    let mut connection = open(daemon.grpc);
    connection.send_raw(&frame(HEADERS, END_HEADERS, 1, &headers(&[])));
    message.chunks(16_000).for_each(|part| connection.send_raw(&frame(DATA, 0, 1, part)));
    connection.send_raw(&frame(PING, 0, 0, b"all read"));
    connection.receive_until(|frames| frames.contains("all read"));
    connection
}

#[test]
fn requests_whose_messages_arrive_too_slowly_make_room() {
    let daemon = daemon(two_places());
    let whole = message(0, &[0xff; 60_000]);
    let mut slow = beginning(&daemon, &whole[..6]);
    let mut fast = beginning(&daemon, &whole[..48_000]);
    assert!(is_served(&daemon));
    slow.closed();
    fast.send_raw(&frame(DATA, END_STREAM, 1, &whole[48_000..]));
    // Bytes that are no request, and the slow one's incomplete message.
    eventually(|| daemon.answers("INVALID_ARGUMENT") == 2);
    fast.send_raw(&frame(PING, 0, 0, b"kept one"));
    fast.receive_until(|frames| frames.contains("kept one"));
    assert_eq!(daemon.metric(MADE_ROOM), 1, "the fast one kept its place");
}

#[test]
fn a_connection_with_another_request_that_runs_keeps_its_place() {
    let daemon = daemon(two_places());
    daemon.engine.behave(Behaviour::Hold);
    let whole = message(0, &request("").encode_to_vec());
    let mut both = beginning(&daemon, &whole[..6]);
    let ask = [frame(HEADERS, END_HEADERS, 3, &headers(&[])), frame(DATA, END_STREAM, 3, &whole)].concat();
    both.send_raw(&ask);
    eventually(|| daemon.engine.held() == 1);
    let mut slow = beginning(&daemon, &whole[..6]);
    daemon.engine.behave(Behaviour::Echo);
    assert!(is_served(&daemon));
    slow.closed();
    both.send_raw(&frame(DATA, END_STREAM, 1, &whole[6..]));
    eventually(|| daemon.answers("OK") == 2);
    daemon.engine.answer_all();
    eventually(|| daemon.answers("OK") == 3);
    assert_eq!(daemon.metric(MADE_ROOM), 1);
}

#[test]
fn a_stream_that_is_silent_for_long_makes_room_and_one_whose_request_runs_does_not() {
    let daemon = daemon(ConnectionLimits { stream_pause: Duration::from_millis(100), ..two_places() });
    let stream = || {
        let (requests, messages) = mpsc::channel::<ModelInferRequest>(1);
        let mut client = daemon.client();
        let answers = daemon.block_on(client.model_stream_infer(ReceiverStream::new(messages))).unwrap().into_inner();
        requests.try_send(request("first")).unwrap();
        (requests, answers)
    };
    let (_silent, mut answers) = stream();
    assert!(daemon.block_on(answers.message()).unwrap().is_some());
    daemon.engine.behave(Behaviour::Hold);
    let (_busy, mut later) = stream();
    eventually(|| daemon.engine.held() == 1);
    daemon.engine.behave(Behaviour::Echo);
    assert!(is_served(&daemon));
    assert!(daemon.block_on(answers.message()).is_err(), "its connection was closed");
    daemon.engine.answer_all();
    assert!(daemon.block_on(later.message()).unwrap().is_some(), "its connection was not");
    assert_eq!(daemon.metric(MADE_ROOM), 1);
}

#[test]
fn a_connection_beyond_its_share_is_refused_while_the_port_has_too_many_requests() {
    let daemon = daemon(ConnectionLimits { requests: 10, ..ConnectionLimits::default() });
    let mut many = open(daemon.grpc);
    let begin = |connection: &mut Connection, number: u32| {
        connection.send_raw(&frame(HEADERS, END_HEADERS, 2 * number + 1, &headers(&[])));
    };
    (0..10).for_each(|number| begin(&mut many, number));
    many.send_raw(&frame(PING, 0, 0, b"all read"));
    many.receive_until(|frames| frames.contains("all read"));
    assert_eq!(daemon.metric("atoll_denied_requests_total{reason=\"streams\"}"), 0);
    begin(&mut many, 10);
    eventually(|| daemon.metric("atoll_denied_requests_total{reason=\"streams\"}") == 1);
    assert_eq!(daemon.answers("RESOURCE_EXHAUSTED"), 1);
    // Another connection may have four.
    daemon.engine.behave(Behaviour::Hold);
    let client = daemon.client();
    let ask = |client: &Client| {
        let mut client = client.clone();
        daemon.spawn(async move { client.model_infer(request("")).await })
    };
    let four: Vec<_> = (0..4).map(|_| ask(&client)).collect();
    eventually(|| daemon.engine.held() == 4);
    let fifth = daemon.block_on(ask(&client)).unwrap();
    refused(fifth, Code::ResourceExhausted, &["more than 4 of them"]);
    // With fewer requests on the port, it may have more.
    drop(many);
    daemon.engine.behave(Behaviour::Echo);
    eventually(|| daemon.block_on(ask(&client)).unwrap().is_ok());
    daemon.engine.answer_all();
    for answered in four {
        assert!(daemon.block_on(answered).unwrap().is_ok());
    }
}

#[test]
fn a_client_that_opens_no_window_for_its_answer_loses_its_connection() {
    let limits = ConnectionLimits { write_pause: Duration::from_millis(200), ..ConnectionLimits::default() };
    let daemon = daemon(limits);
    // It reads its socket, so the daemon can write all but the answer.
    let mut silent = Connection::open(daemon.grpc);
    silent.send_raw(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    let no_window = [&4_u16.to_be_bytes()[..], &0_u32.to_be_bytes()].concat();
    silent.send_raw(&frame(SETTINGS, 0, 0, &no_window));
    silent.send_raw(&frame(HEADERS, END_HEADERS, 1, &headers(&[])));
    silent.send_raw(&frame(DATA, END_STREAM, 1, &message(0, &request("").encode_to_vec())));
    silent.closed();
    assert_eq!(daemon.metric("atoll_connections_closed_total{reason=\"not_reading\"}"), 1);
    assert!(is_served(&daemon));
}
