//! Floods of HTTP/2 frames, written by hand: client libraries do not send them.

use crate::connect;
use std::io::{self, Read, Write};
use std::net::TcpStream;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Types of frames.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;

const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// Error codes.
const CANCEL: u32 = 8;

/// What a client sends until the server ends the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flood {
    /// Opens streams and resets each at once.
    RapidReset,
    /// Pings.
    Pings,
    /// Settings.
    Settings,
    /// A head that does not end.
    Continuations,
    /// Empty parts of one body.
    EmptyData,
}

impl Flood {
    /// All floods.
    pub const ALL: [Flood; 5] =
        [Flood::RapidReset, Flood::Pings, Flood::Settings, Flood::Continuations, Flood::EmptyData];

    /// Sends this many frames, or pairs of frames, on a new connection. Another thread reads the
    /// answers, so that the server can always write.
    ///
    /// # Errors
    /// If there is no server.
    pub fn run(self, address: &str, frames: u32) -> io::Result<End> {
        let mut stream = connect(address)?;
        stream.write_all(PREFACE)?;
        stream.write_all(&frame(SETTINGS, 0, 0, &[]))?;
        let reading = stream.try_clone()?;
        let reader = std::thread::spawn(move || read_to_end(reading));
        if matches!(self, Flood::Continuations) {
            stream.write_all(&frame(HEADERS, 0, 1, &head()))?;
        } else if matches!(self, Flood::EmptyData) {
            stream.write_all(&frame(HEADERS, END_HEADERS, 1, &head()))?;
        }
        let mut sent = 0;
        while sent < frames {
            let batch: Vec<u8> = (sent..(sent + 64).min(frames)).flat_map(|index| self.part(index)).collect();
            // The server may have ended the connection.
            if stream.write_all(&batch).is_err() {
                break;
            }
            sent = (sent + 64).min(frames);
        }
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let goaway = reader.join().unwrap_or(None);
        Ok(End { sent, goaway })
    }

    fn part(self, index: u32) -> Vec<u8> {
        match self {
            Flood::RapidReset => {
                let stream = 2 * index + 1;
                let open = frame(HEADERS, END_HEADERS | END_STREAM, stream, &head());
                [open, frame(RST_STREAM, 0, stream, &CANCEL.to_be_bytes())].concat()
            }
            Flood::Pings => frame(PING, 0, 0, &[0; 8]),
            Flood::Settings => frame(SETTINGS, 0, 0, &[]),
            Flood::Continuations => frame(CONTINUATION, 0, 1, &header("x-more", &"y".repeat(100))),
            Flood::EmptyData => frame(DATA, 0, 1, &[]),
        }
    }
}

/// How a flood ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// Frames, or pairs of frames, that could be sent.
    pub sent: u32,
    /// The error code with which the server ended the connection, if it named one.
    pub goaway: Option<u32>,
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A header as HPACK writes it without tables.
fn header(name: &str, value: &str) -> Vec<u8> {
    let text = |text: &str| [&[text.len() as u8], text.as_bytes()].concat();
    [vec![0], text(name), text(value)].concat()
}

/// The head of a gRPC request.
fn head() -> Vec<u8> {
    [
        header(":method", "POST"),
        header(":scheme", "http"),
        header(":path", "/inference.GRPCInferenceService/ServerLive"),
        header(":authority", "localhost"),
        header("content-type", "application/grpc"),
        header("te", "trailers"),
    ]
    .concat()
}

/// Reads frames until the connection ends. Returns the code of the last GOAWAY.
fn read_to_end(mut stream: TcpStream) -> Option<u32> {
    let mut code = None;
    loop {
        let mut head = [0; 9];
        if stream.read_exact(&mut head).is_err() {
            return code;
        }
        let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        let mut payload = vec![0; length];
        if stream.read_exact(&mut payload).is_err() {
            return code;
        }
        if head[3] == GOAWAY
            && let Some(bytes) = payload.get(4..8)
        {
            code = bytes.try_into().ok().map(u32::from_be_bytes);
        }
        if head[3] == SETTINGS && head[4] & ACK == 0 {
            let _ = stream.write_all(&frame(SETTINGS, ACK, 0, &[]));
        }
    }
}
