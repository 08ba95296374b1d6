//! Clients that hold on to shared resources (connections, memory for bodies), and checks of the
//! `Host` header.

use crate::support::{Behaviour, Connection, Daemon, Options, eventually, write_bundle};
use atoll_server::ConnectionLimits;
use std::time::Duration;

const ASK: &[u8] = br#"{"inputs":[{"name":"in","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]}"#;

fn daemon(connections: ConnectionLimits) -> Daemon {
    let options = Options { connections: Some(connections), ..Options::default() };
    Daemon::with(options, |repository| write_bundle(&repository.join("toy.kg")))
}

fn is_alive(connection: &mut Connection) -> bool {
    connection.request("GET", "/v2/health/live", &[], b"").status == 200
}

#[test]
fn the_connection_idle_for_longest_makes_room_and_a_busy_one_does_not() {
    let daemon = daemon(ConnectionLimits { most: 3, ..ConnectionLimits::default() });
    daemon.engine.behave(Behaviour::Hold);
    let mut busy = Connection::open(daemon.http);
    busy.send("POST", "/v2/models/toy/infer", &[], ASK);
    eventually(|| daemon.engine.held() == 1);
    let mut oldest = Connection::open(daemon.http);
    assert!(is_alive(&mut oldest));
    std::thread::sleep(Duration::from_millis(20));
    let mut newer = Connection::open(daemon.http);
    assert!(is_alive(&mut newer));
    let mut newest = Connection::open(daemon.http);
    assert!(is_alive(&mut newest));
    oldest.closed();
    assert!(is_alive(&mut newer), "only one connection was closed");
    daemon.engine.answer_all();
    assert_eq!(busy.receive().status, 200);
    let metrics = daemon.metrics();
    assert!(metrics.contains("atoll_connections_closed_total{reason=\"made_room\"} 1\n"), "{metrics}");
}

#[test]
fn the_port_of_metrics_has_places_of_its_own() {
    let daemon = daemon(ConnectionLimits { most: 2, ..ConnectionLimits::default() });
    let mut open: Vec<Connection> = (0..4).map(|_| Connection::open(daemon.metrics)).collect();
    assert!(open.iter_mut().all(is_alive));
    let metrics = daemon.metrics();
    assert!(metrics.contains("atoll_connections_closed_total{reason=\"made_room\"} 0\n"), "{metrics}");
    assert!(open.iter_mut().all(is_alive));
}

#[test]
fn a_head_that_does_not_end_is_cut_off_and_an_idle_connection_is_not() {
    let daemon = daemon(ConnectionLimits { head_timeout: Duration::from_millis(200), ..ConnectionLimits::default() });
    let mut idle = Connection::open(daemon.http);
    assert!(is_alive(&mut idle));
    let mut first = Connection::open(daemon.http);
    first.send_raw(b"GET /v2 HTTP/1.1\r\nHost: loc");
    let mut later = Connection::open(daemon.http);
    assert!(is_alive(&mut later));
    later.send_raw(b"G");
    first.closed();
    later.closed();
    assert!(is_alive(&mut idle));
    let metrics = daemon.metrics();
    assert!(metrics.contains("atoll_connections_closed_total{reason=\"slow_head\"} 2\n"), "{metrics}");
}

#[test]
fn an_idle_connection_is_closed_in_the_end() {
    let daemon = daemon(ConnectionLimits { idle_timeout: Duration::from_millis(200), ..ConnectionLimits::default() });
    let mut idle = Connection::open(daemon.http);
    assert!(is_alive(&mut idle));
    idle.closed();
    let metrics = daemon.metrics();
    assert!(metrics.contains("reason=\"idle\"} 1\n"), "{metrics}");
}

#[test]
fn a_body_that_pauses_is_refused() {
    let daemon = daemon(ConnectionLimits { body_pause: Duration::from_millis(200), ..ConnectionLimits::default() });
    let mut connection = Connection::open(daemon.http);
    connection.send_raw(b"POST /v2/models/toy/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{");
    let answer = connection.receive();
    assert_eq!(answer.status, 408, "{}", answer.text());
    assert!(answer.error().contains("paused for 0.2 seconds"), "{}", answer.text());
}

#[test]
fn bodies_that_are_announced_and_not_sent_take_nothing_from_others() {
    let daemon = Daemon::start();
    let head =
        format!("POST /v2/models/toy/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n", 128 << 20);
    let silent: Vec<Connection> = (0..32)
        .map(|_| {
            let mut connection = Connection::open(daemon.http);
            connection.send_raw(head.as_bytes());
            connection
        })
        .collect();
    let mut connection = Connection::open(daemon.http);
    for _ in 0..10 {
        let answer = connection.request("POST", "/v2/models/toy/infer", &[], ASK);
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    drop(silent);
}

#[test]
fn requests_whose_bodies_arrive_too_slowly_make_room() {
    let daemon = daemon(ConnectionLimits { most: 2, ..ConnectionLimits::default() });
    let head = b"POST /v2/models/toy/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n";
    let mut slow = Connection::open(daemon.http);
    slow.send_raw(&[head.as_slice(), b"{"].concat());
    let mut fast = Connection::open(daemon.http);
    fast.send_raw(head.trim_ascii_end());
    fast.send_raw(b"\r\nExpect: 100-continue\r\n\r\n");
    // Once the daemon has read the head of the request, the connection no longer counts as idle.
    fast.receive_until(|answer| answer.ends_with("\r\n\r\n"));
    fast.send_raw(&[b' '; 50_000]);
    let mut other = Connection::open(daemon.http);
    assert!(is_alive(&mut other));
    slow.closed();
    fast.send_raw(&[b' '; 50_000]);
    assert_eq!(fast.receive().status, 400, "it kept its place");
    let metrics = daemon.metrics();
    assert!(metrics.contains("atoll_connections_closed_total{reason=\"made_room\"} 1\n"), "{metrics}");
}

#[test]
fn web_pages_of_others_are_refused_on_both_ports() {
    let daemon = Daemon::start();
    for (address, path) in
        [(daemon.http, "/v2/health/live"), (daemon.metrics, "/metrics"), (daemon.metrics, "/v2/health/ready")]
    {
        let mut connection = Connection::open(address);
        assert_eq!(connection.request("GET", path, &[], b"").status, 200, "{path}");
        let answer = connection.request("GET", path, &[("Origin", "https://evil.example")], b"");
        assert_eq!(answer.status, 403, "{path}");
        assert!(answer.error().contains("--allow-origin"), "{}", answer.text());
        connection.send_raw(format!("GET {path} HTTP/1.1\r\nHost: evil.example\r\n\r\n").as_bytes());
        let answer = connection.receive();
        assert_eq!(answer.status, 403, "{path}");
        assert!(answer.error().contains("--allow-host"), "{}", answer.text());
    }
}

#[test]
fn a_client_that_does_not_read_its_answers_loses_its_connection() {
    let limits = ConnectionLimits { write_pause: Duration::from_millis(200), ..ConnectionLimits::default() };
    let daemon = daemon(limits);
    let mut silent = Connection::open(daemon.http);
    // 1,000 answers of at least 10 KB each, more than the buffers of a local connection hold.
    for _ in 0..1_000 {
        silent.send("GET", "/ui/dashboard.js", &[], b"");
    }
    eventually(|| daemon.metrics().contains("atoll_connections_closed_total{reason=\"not_reading\"} 1\n"));
    silent.closed();
}
