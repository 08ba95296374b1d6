//! A minimal HTTP client for tests.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

/// Timeout of an answer.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Sends a request without waiting for the answer.
pub fn send(address: &str, method: &str, path: &str, body: &str) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    )?;
    Ok(stream)
}

/// Reads the answer to a request, including its head.
pub fn answer(mut stream: TcpStream) -> io::Result<String> {
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

/// Status and body of the answer to a request.
pub fn ask(address: &str, method: &str, path: &str, body: &str) -> io::Result<(u16, String)> {
    let text = answer(send(address, method, path, body)?)?;
    let incomplete = || io::Error::new(io::ErrorKind::UnexpectedEof, "an answer without an end");
    let status = text.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(incomplete)?;
    let (head, body) = text.split_once("\r\n\r\n").ok_or_else(incomplete)?;
    let lengths = head
        .lines()
        .filter_map(|line| line.to_ascii_lowercase().strip_prefix("content-length:")?.trim().parse::<usize>().ok());
    // A body that is shorter than its announced length was cut off.
    if lengths.into_iter().any(|length| body.len() < length) {
        return Err(incomplete());
    }
    Ok((status, body.to_owned()))
}
