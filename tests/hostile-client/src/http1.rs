//! Requests of HTTP/1 that servers read differently.

use crate::connect;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

/// How long [`answers`] waits for a further answer.
const PAUSE: Duration = Duration::from_secs(2);

/// Reads one answer with a `Content-Length`. Returns its status.
///
/// # Errors
/// If the connection ends within the answer, or the answer is not HTTP.
pub fn read_answer(stream: &mut TcpStream) -> io::Result<u16> {
    let invalid = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
        if head.len() > 64 << 10 {
            return Err(invalid("a head without an end"));
        }
    }
    let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body)?;
    head.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(|| invalid("no status"))
}

/// Bytes that hold one request for some servers and two for others.
#[derive(Clone, Debug)]
pub struct Smuggled {
    /// What is wrong with them.
    pub name: &'static str,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// Ambiguous requests for `path`, each with a request for `hidden` that no server may answer.
pub fn smuggled(path: &str, hidden: &str) -> Vec<Smuggled> {
    let second = format!("GET {hidden} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let length = second.len();
    let all = format!("0\r\n\r\n{second}").len();
    let with = |name, headers: String, body: String| Smuggled {
        name,
        bytes: format!("POST {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n\r\n{body}").into_bytes(),
    };
    let chunked = format!("0\r\n\r\n{second}");
    vec![
        with("two lengths", format!("Content-Length: 0\r\nContent-Length: {length}"), second.clone()),
        with("a list of lengths", format!("Content-Length: 0, {length}"), second.clone()),
        with("a length with a sign", "Content-Length: +0".into(), second.clone()),
        with("a length and chunks", format!("Content-Length: {all}\r\nTransfer-Encoding: chunked"), chunked.clone()),
        with("chunks and a length", format!("Transfer-Encoding: chunked\r\nContent-Length: {all}"), chunked.clone()),
        with("chunks within", "Transfer-Encoding: chunked, identity".into(), chunked.clone()),
        with("an unknown coding", "Transfer-Encoding: xchunked".into(), chunked.clone()),
        with(
            "a space before the colon",
            format!("Content-Length: {all}\r\nTransfer-Encoding : chunked"),
            chunked.clone(),
        ),
        with("a folded header", "Transfer-Encoding:\r\n chunked".into(), chunked.clone()),
        with("a chunk with a sign", "Transfer-Encoding: chunked".into(), format!("-0\r\n\r\n{second}")),
        with("a chunk of 2^64 bytes", "Transfer-Encoding: chunked".into(), format!("10000000000000000\r\n{second}")),
        with("a bare line feed", format!("X: y\nContent-Length: {length}\r\nContent-Length: 0"), second),
        Smuggled {
            name: "chunks in HTTP/1.0",
            bytes: format!("POST {path} HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n{chunked}").into_bytes(),
        },
    ]
}

/// Sends bytes, and returns the statuses of all answers until the server closes the connection, or
/// sends nothing more for two seconds.
///
/// # Errors
/// If there is no server, or it answers in another protocol.
pub fn answers(address: &str, bytes: &[u8]) -> io::Result<Vec<u16>> {
    let mut stream = connect(address)?;
    // The server may refuse the head and close before it has read all.
    let _ = stream.write_all(bytes);
    let mut statuses = Vec::new();
    loop {
        match read_answer(&mut stream) {
            Ok(status) => statuses.push(status),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => return Err(error),
            Err(_) => return Ok(statuses),
        }
        // The first answer may take longer.
        stream.set_read_timeout(Some(PAUSE))?;
    }
}

/// Sends a request and closes its own half of the connection. Returns the status of the answer.
///
/// # Errors
/// If the server does not answer.
pub fn half_closed(address: &str, bytes: &[u8]) -> io::Result<u16> {
    let mut stream = connect(address)?;
    stream.write_all(bytes)?;
    stream.shutdown(Shutdown::Write)?;
    read_answer(&mut stream)
}
