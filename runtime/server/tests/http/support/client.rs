//! A minimal HTTP/1.1 client.

use serde_json::Value;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

pub(crate) struct Connection {
    stream: TcpStream,
}

/// An answer.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
    /// Number of bytes of the first read.
    pub(crate) first_read_bytes: usize,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The message of an error answer.
    pub(crate) fn error(&self) -> String {
        assert!(self.status >= 400, "{}: {}", self.status, self.text());
        self.json()["error"].as_str().expect("an error body").to_string()
    }

    pub(crate) fn header(&self, name: &str) -> Option<String> {
        self.head
            .lines()
            .find_map(|line| line.to_ascii_lowercase().strip_prefix(&format!("{name}: ")).map(String::from))
    }
}

impl Connection {
    pub(crate) fn open(address: SocketAddr) -> Connection {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Connection { stream }
    }

    pub(crate) fn request(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        self.send(method, path, headers, body);
        self.receive()
    }

    /// Sends a request without a body; `None` if the server has closed the connection.
    pub(crate) fn try_request(&mut self, method: &str, path: &str) -> Option<Answer> {
        let request = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        if self.try_send_raw(request.as_bytes()) { self.try_receive() } else { None }
    }

    pub(crate) fn send(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) {
        let mut request = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n", body.len());
        for (name, value) in headers {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        request.push_str("\r\n");
        let request = [request.as_bytes(), body].concat();
        self.stream.write_all(&request).unwrap();
    }

    /// Sends bytes as they are.
    pub(crate) fn send_raw(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Sends bytes as they are, unless the server has closed the connection.
    pub(crate) fn try_send_raw(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).is_ok()
    }

    /// Waits until the server closes the connection. Discards what it sends before.
    pub(crate) fn closed(&mut self) {
        let mut chunk = [0; 4096];
        while matches!(self.read(&mut chunk), Ok(1..)) {}
    }

    /// Reads once. Repeats a read that a signal interrupted.
    fn read(&mut self, chunk: &mut [u8]) -> std::io::Result<usize> {
        loop {
            match self.stream.read(chunk) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                read => return read,
            }
        }
    }

    /// Reads until what has arrived is enough.
    pub(crate) fn receive_until(&mut self, is_enough: impl Fn(&str) -> bool) -> String {
        let mut received = Vec::new();
        while !is_enough(&String::from_utf8_lossy(&received)) {
            let mut chunk = [0; 65536];
            let count = self.read(&mut chunk).unwrap();
            assert!(count > 0, "the connection was closed after {:?}", String::from_utf8_lossy(&received));
            received.extend_from_slice(&chunk[..count]);
        }
        String::from_utf8_lossy(&received).into_owned()
    }

    pub(crate) fn receive(&mut self) -> Answer {
        self.try_receive().expect("an answer before the connection is closed")
    }

    /// Receives an answer; `None` if the server has closed the connection.
    fn try_receive(&mut self) -> Option<Answer> {
        let mut received = Vec::new();
        let mut first_read_bytes = 0;
        loop {
            if let Some(answer) = parse(&received, first_read_bytes) {
                return Some(answer);
            }
            let mut chunk = [0; 65536];
            let count = match self.read(&mut chunk) {
                Ok(count) => count,
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => 0,
                Err(error) => panic!("{error} after {:?}", String::from_utf8_lossy(&received)),
            };
            if count == 0 {
                assert!(
                    received.is_empty(),
                    "the connection was closed after {:?}",
                    String::from_utf8_lossy(&received)
                );
                return None;
            }
            received.extend_from_slice(&chunk[..count]);
            if first_read_bytes == 0 {
                first_read_bytes = count;
            }
        }
    }
}

fn parse(received: &[u8], first_read_bytes: usize) -> Option<Answer> {
    let end = received.windows(4).position(|w| w == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&received[..end]).into_owned();
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let mut answer = Answer { status, head, body: received[end + 4..].to_vec(), first_read_bytes };
    let length: usize = answer.header("content-length").unwrap_or("0".into()).parse().ok()?;
    if answer.body.len() < length {
        return None;
    }
    answer.body.truncate(length);
    Some(answer)
}
