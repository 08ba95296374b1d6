//! Clients, valid and broken ones, on a real socket of a server on the stand-in driver.

#![cfg(target_arch = "x86_64")]

use atoll_cuda::Driver;
use atoll_session::{
    Client, Code, FRAME_BYTES, Frame, Hello, HostCopy, Kind, Lost, Record, Transport, WELCOME_BYTES, Welcome, limits,
};
use atoll_session_server::{Options, Server};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::Duration;
use tempfile::TempDir;

/// Time limit of a test that waits.
const PATIENCE: Duration = Duration::from_secs(60);

const SESSION_BYTES: u64 = 16 << 20;

struct Sessions {
    server: Server,
    path: PathBuf,
    _folder: TempDir,
}

fn options(sessions_max: usize) -> Options {
    let test = std::env::current_exe().expect("a test has a path");
    let library = test.ancestors().nth(1).expect("target/<profile>/deps").join("libatoll_stand_in_cuda.so");
    let driver = Driver::load_from(&library).expect("the stand-in driver");
    Options {
        gpu: driver.gpu(0).expect("its device"),
        session_bytes: Some(SESSION_BYTES),
        sessions_max,
        recordings: None,
    }
}

impl Sessions {
    fn start(sessions_max: usize) -> Sessions {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("sessions.sock");
        let server = Server::start(options(sessions_max), &path).expect("a server");
        Sessions { server, path, _folder: folder }
    }

    fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(&self.path).expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        stream
    }

    /// A connection that has exchanged greetings.
    fn greeted(&self) -> UnixStream {
        let mut stream = self.connect();
        stream.write_all(&Hello { version: limits::VERSION, memory_bytes: 0, terms_bytes: 0 }.write()).expect("sent");
        let mut bytes = [0; WELCOME_BYTES];
        stream.read_exact(&mut bytes).expect("a welcome");
        let welcome = Welcome::read(&bytes).expect("a welcome");
        assert_eq!((welcome.refusal, welcome.memory_bytes), (None, SESSION_BYTES));
        stream.read_exact(&mut vec![0; welcome.facts_bytes as usize]).expect("facts");
        stream
    }

    /// Why the sessions ended, in the order in which they ended.
    fn ends(&self, count: u64) -> Vec<Option<String>> {
        let ended = self.server.wait_ended(count, PATIENCE);
        assert_eq!(ended.len() as u64, count);
        ended.into_iter().map(|end| end.why).collect()
    }
}

/// The client's side of a socket. The program's memory is a buffer.
#[derive(Debug)]
struct Socket(UnixStream, Vec<u8>);

impl Transport for Socket {
    fn send(&mut self, bytes: &[u8]) -> Result<(), Lost> {
        self.0.write_all(bytes).map_err(|error| Lost(error.to_string()))
    }

    fn receive(&mut self, bytes: &mut [u8]) -> Result<(), Lost> {
        self.0.read_exact(bytes).map_err(|error| Lost(error.to_string()))
    }

    fn receive_to(&mut self, address: u64, bytes: u64) -> Result<(), Lost> {
        self.1.resize((address + bytes) as usize, 0);
        self.0.read_exact(&mut self.1[address as usize..]).map_err(|error| Lost(error.to_string()))
    }
}

/// A session that works.
fn work(sessions: &Sessions) {
    let mut client = Client::open(Socket(sessions.connect(), Vec::new()), 0).expect("a session");
    let at = client.allocate(1, 3 << 20).expect("room");
    client.fill(0, at, (0, 3 << 18, 1), (0x0403_0201, 4)).expect("a fill");
    client.copy_out(0, HostCopy { to: 0, bytes: 3 << 20 }, at).expect("a copy");
    client.complete_copies().expect("no error");
    assert_eq!(client.memory_bytes().1, SESSION_BYTES);
}

#[test]
fn bytes_that_are_no_session_end_it() {
    let sessions = Sessions::start(8);
    let mut count = 0;
    let mut end = |mut stream: UnixStream, bytes: &[u8], expected: &str| {
        // The server may have closed the connection before it has read all bytes.
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(Shutdown::Write);
        count += 1;
        let why = sessions.ends(count).pop().flatten().unwrap_or_default();
        assert!(why.contains(expected), "{why}");
    };
    let frame = |sequence, bytes| Frame { kind: Kind::Call, sequence, bytes }.write();
    end(sessions.connect(), b"", "no greeting came");
    end(sessions.connect(), b"ATOLLSES", "no greeting came");
    end(sessions.connect(), &[0xff; 4096], "not a session client");
    end(sessions.connect(), b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "not a session client");
    let other = Hello { version: 99, memory_bytes: 0, terms_bytes: 0 };
    end(sessions.connect(), &other.write(), "client speaks version 99, the server 5");
    end(sessions.greeted(), &frame(0, 0)[..FRAME_BYTES - 1], "the client left after 15 bytes");
    end(sessions.greeted(), &frame(0, u64::MAX), "the size of a message is 18446744073709551615");
    end(sessions.greeted(), &frame(0, limits::MESSAGE_BYTES_MAX), "the client left after 0 of 134217728 bytes");
    end(sessions.greeted(), &frame(7, 0), "the client sent message 7 instead of 0");
    end(sessions.greeted(), &[frame(0, 8).as_slice(), &[0xff; 8]].concat(), "the client sent invalid records");
    end(sessions.greeted(), &[0xee; 64], "the kind of a message");
    work(&sessions);
    assert_eq!(sessions.ends(count + 1).last(), Some(&None), "others are not disturbed");
}

#[test]
fn a_client_that_does_not_read_is_left() {
    let sessions = Sessions::start(8);
    let mut stream = sessions.greeted();
    let mut records = Vec::new();
    Record::Synchronize {}.write(&mut records);
    let message = |sequence| Frame { kind: Kind::Call, sequence, bytes: records.len() as u64 }.write();
    stream.set_nonblocking(true).expect("a socket");
    // Sends until the server waits for this client, or has written all its answers into the
    // socket's buffer.
    let send = |stream: &mut UnixStream, sequence| stream.write_all(&[message(sequence).as_slice(), &records].concat());
    let _sent = (0..100_000).take_while(|sequence| send(&mut stream, *sequence).is_ok()).count();
    work(&sessions);
    drop(stream);
    assert_eq!(sessions.ends(2).len(), 2);
}

#[test]
fn sessions_beyond_the_limit_are_refused_and_come_later() {
    let sessions = Sessions::start(2);
    let open = [sessions.greeted(), sessions.greeted()];
    let (code, why) = Client::open(Socket(sessions.connect(), Vec::new()), 0).expect_err("a refusal");
    assert_eq!(code, Code::DEVICE_UNAVAILABLE);
    assert!(why.contains("all 2 sessions are taken"), "{why}");
    drop(open);
    sessions.ends(3);
    work(&sessions);
}

#[test]
fn a_session_sees_nothing_of_the_one_before() {
    let sessions = Sessions::start(1);
    for round in 1..=3 {
        let mut client = Client::open(Socket(sessions.connect(), Vec::new()), 0).expect("a session");
        let bytes = SESSION_BYTES;
        let at = client.allocate(1, bytes).expect("all of it");
        client.copy_out(0, HostCopy { to: 0, bytes }, at).expect("a copy");
        client.fill(0, at, (0, bytes, 1), (0xab, 1)).expect("a fill");
        client.synchronize().expect("no error");
        drop(client);
        sessions.ends(round);
    }
}

#[test]
fn a_socket_that_was_left_is_replaced_and_one_in_use_is_not() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("sessions.sock");
    drop(UnixListener::bind(&path).expect("a socket"));
    let server = Server::start(options(1), &path).expect("a server");
    let refused = Server::start(options(1), &path).expect_err("in use");
    assert!(refused.to_string().contains("Address already in use"), "{refused}");
    drop(server);
    assert!(!path.exists());
    let refused = Server::start(options(1), "/nowhere/sessions.sock".as_ref()).expect_err("no folder");
    assert!(refused.to_string().starts_with("cannot listen on unix:/nowhere/sessions.sock"), "{refused}");
}
