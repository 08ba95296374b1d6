//! Connections that are held open.

use crate::connect;
use crate::http1::read_answer;
use std::io::{self, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// A request for the state of the server, without a body.
pub const HEALTH: &[u8] = b"GET /v2/health/ready HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// Opens connections, and sends the same bytes on each.
///
/// # Errors
/// If a connection is refused.
pub fn open(address: &str, count: usize, bytes: &[u8]) -> io::Result<Vec<TcpStream>> {
    let one = |_| {
        let mut stream = connect(address)?;
        stream.write_all(bytes)?;
        Ok(stream)
    };
    (0..count).map(one).collect()
}

/// The head of a request that declares this many bytes of body, and the first byte.
pub fn body_that_does_not_end(path: &str, bytes: u64) -> Vec<u8> {
    format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {bytes}\r\n\r\n{{").into_bytes()
}

/// Sends one more byte on each connection that is still open.
pub fn trickle(connections: &mut Vec<TcpStream>) {
    connections.retain_mut(|stream| stream.write_all(b" ").is_ok());
}

/// The beginning of a head.
pub const HALF_A_HEAD: &[u8] = b"GET /v2 HTTP/1.1\r\nHost: loc";

/// The answers of [`keep_alive`].
#[derive(Clone, Debug, Default)]
pub struct Answers {
    /// Requests that were answered with 200.
    pub answered: usize,
    /// How the other requests ended.
    pub failures: Vec<String>,
    /// Time of each request.
    pub times: Vec<Duration>,
}

/// Well-behaved clients: each keeps one connection, and sends a request in each round. A client
/// whose connection was closed between two requests opens another one, as client libraries do.
pub fn keep_alive(address: &str, clients: usize, rounds: usize, request: &[u8]) -> Answers {
    let mut answers = Answers::default();
    let mut connections: Vec<Option<TcpStream>> = (0..clients).map(|_| None).collect();
    for _ in 0..rounds {
        for connection in &mut connections {
            let start = Instant::now();
            let kept = connection.take();
            let first = kept.ok_or_else(|| io::ErrorKind::NotConnected.into()).and_then(|kept| ask(kept, request));
            let asked = first.or_else(|_| ask(connect(address)?, request));
            answers.times.push(start.elapsed());
            match asked {
                Ok((stream, 200)) => {
                    answers.answered += 1;
                    *connection = Some(stream);
                }
                Ok((_, status)) => answers.failures.push(format!("status {status}")),
                Err(error) => answers.failures.push(error.to_string()),
            }
        }
    }
    answers
}

fn ask(mut stream: TcpStream, request: &[u8]) -> io::Result<(TcpStream, u16)> {
    stream.write_all(request)?;
    let status = read_answer(&mut stream)?;
    Ok((stream, status))
}
