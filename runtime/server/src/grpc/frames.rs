//! The messages of a request, checked before tonic decodes them: their size as sent and
//! decompressed, the memory of all messages together, and the time that they take to arrive.
//!
//! A message on the wire is one byte that says whether it is compressed, its length as a 32-bit
//! number, and its bytes. It is passed on decompressed, once it is complete.

use super::bounds::{decoded_bytes, load_bytes};
use crate::app::App;
use crate::bodies::BodyRoom;
use crate::limits::{BODY_TIMEOUT, DECODE_INLINE_BYTES_MAX, SMALL_BODY_BYTES_MAX};
use crate::progress::Progress;
use crate::requests::error::{Kind, RequestError};
use crate::requests::memory::{Encoding, decompress, reserve, too_large, too_slow};
use crate::shutdown::stopped;
use crate::threads::for_client;
use atoll_engine::Class;
use axum::body::{Body, Bytes};
use futures_util::stream::unfold;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};
use tonic::Status;

/// Bytes of the header in front of a message.
const HEADER_BYTES: usize = 5;

/// Highest compression ratio of deflate and gzip, rounded down.
const INFLATION_MAX: usize = 1024;

/// The number and the kind of messages of an RPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// One inference request.
    Infer,
    /// Any number of inference requests.
    InferStream,
    /// One small message.
    Small,
    /// Any number of small messages.
    SmallStream,
    /// One load of a model, perhaps with its files.
    Load,
}

impl Rule {
    /// Whether messages may be as large as those with tensors.
    fn is_large(self) -> bool {
        matches!(self, Rule::Infer | Rule::InferStream | Rule::Load)
    }

    /// Whether the client may send any number of messages, with pauses of any length between them.
    pub(super) fn is_stream(self) -> bool {
        matches!(self, Rule::InferStream | Rule::SmallStream)
    }

    fn bytes_max(self, app: &App) -> usize {
        if self.is_large() { app.body_bytes_max } else { app.body_bytes_max.min(SMALL_BODY_BYTES_MAX) }
    }
}

/// Memory reservations of the messages that were passed on, in their order. A handler takes the
/// reservation of its message and keeps it until the answer is made.
#[derive(Clone, Debug, Default)]
pub(super) struct Rooms(Arc<Mutex<VecDeque<BodyRoom>>>);

impl Rooms {
    pub(super) fn take(&self) -> Option<BodyRoom> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    fn put(&self, room: BodyRoom) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push_back(room);
    }
}

/// The messages of a request's body.
pub(super) struct Frames {
    pub(super) app: Arc<App>,
    pub(super) body: Body,
    pub(super) encoding: Encoding,
    pub(super) rule: Rule,
    /// The highest class that its tenant may have.
    pub(super) class: Class,
    pub(super) rooms: Rooms,
    /// Tracks which messages of a stream arrive. For other RPCs, the request body reports this.
    pub(super) progress: Arc<Progress>,
    /// Turns true when the server stops: streams then end between two messages.
    pub(super) stop: watch::Receiver<bool>,
}

impl Frames {
    /// A body with the messages, checked.
    pub(super) fn into_body(self) -> Body {
        let held = self.app.bodies.room(self.class);
        let reader = Reader { frames: self, rest: Bytes::new(), held };
        let messages = unfold(Some(reader), |reader| async move {
            let mut reader = reader?;
            match reader.message().await {
                Ok(Some(message)) => {
                    // Ends the body after a single message: otherwise tonic would continue to read.
                    let reader = reader.frames.rule.is_stream().then_some(reader);
                    Some((Ok(Frame::data(message)), reader))
                }
                Ok(None) => None,
                Err(error) => Some((Err(Status::from(error)), None)),
            }
        });
        Body::new(StreamBody::new(Box::pin(messages)))
    }
}

struct Reader {
    frames: Frames,
    /// Bytes that arrived after the last message.
    rest: Bytes,
    /// Reservation that a stream keeps until it ends: tonic's buffer keeps the size of the largest
    /// message.
    held: BodyRoom,
}

impl Reader {
    /// The next message with its header; `None` at the end.
    async fn message(&mut self) -> Result<Option<Bytes>, RequestError> {
        let Some(is_compressed) = self.begin().await? else { return Ok(None) };
        if self.frames.rule.is_stream() {
            self.frames.progress.begin_arriving(1 + self.rest.len());
        }
        let deadline = Instant::now() + BODY_TIMEOUT;
        let mut message = Vec::new();
        self.fill(&mut message, HEADER_BYTES - 1, deadline, None).await?;
        let length = message.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
        let bytes_max = self.frames.rule.bytes_max(&self.frames.app);
        if length > bytes_max {
            return Err(too_large(bytes_max));
        }
        let mut room = self.frames.app.bodies.room(self.frames.class);
        if is_compressed {
            message.clear();
            self.fill(&mut message, length, deadline, Some(&mut room)).await?;
            (message, room) = unpack(message, self.frames.encoding, room, bytes_max).await?;
        } else {
            message.insert(0, 0);
            self.fill(&mut message, HEADER_BYTES + length, deadline, Some(&mut room)).await?;
        }
        if self.frames.rule.is_large() {
            let message_of = &message[HEADER_BYTES..];
            let is_load = self.frames.rule == Rule::Load;
            let decoded = if is_load { load_bytes(message_of)? } else { decoded_bytes(message_of)? };
            reserve(&mut room, message.len() + decoded)?;
            // Only handlers of inference requests and loads take a reservation; that of a small
            // message is released immediately.
            self.frames.rooms.put(room);
        }
        if self.frames.rule.is_stream() {
            self.frames.progress.end_arriving();
            reserve(&mut self.held, message.len())?;
        }
        Ok(Some(message.into()))
    }

    /// Waits for the first byte of a message. Returns whether the message is compressed; `None` at
    /// the end.
    async fn begin(&mut self) -> Result<Option<bool>, RequestError> {
        while self.rest.is_empty() {
            let patience = if self.frames.rule.is_stream() { None } else { Some(self.frames.app.body_pause) };
            let mut stop = self.frames.stop.clone();
            let more = tokio::select! {
                biased;
                more = within(patience, part(&mut self.frames.body)) => more?,
                () = stopped(&mut stop), if self.frames.rule.is_stream() => {
                    return Err(RequestError::new(Kind::Unavailable, "the server is stopping"));
                }
            };
            match more {
                Some(part) => self.rest = part,
                None => return Ok(None),
            }
        }
        match (self.rest.split_to(1)[0], self.frames.encoding) {
            (0, _) => Ok(Some(false)),
            (1, Encoding::Gzip | Encoding::Deflate) => Ok(Some(true)),
            (1, Encoding::Identity) => {
                Err(RequestError::bad_request("a message is compressed, but the request has no grpc-encoding"))
            }
            (flag, _) => {
                Err(RequestError::bad_request(format!("a message begins with {flag}; it must begin with 0 or 1")))
            }
        }
    }

    /// Reads until `message` has `length` bytes. Reserves memory only for bytes that have arrived.
    async fn fill(
        &mut self,
        message: &mut Vec<u8>,
        length: usize,
        deadline: Instant,
        mut room: Option<&mut BodyRoom>,
    ) -> Result<(), RequestError> {
        while message.len() < length {
            if self.rest.is_empty() {
                let part = within(Some(self.frames.app.body_pause), part(&mut self.frames.body));
                let late = |_| too_slow(format!("did not arrive within {} seconds", BODY_TIMEOUT.as_secs()));
                let more = timeout_at(deadline, part).await.map_err(late)??;
                self.rest = more.ok_or_else(|| RequestError::bad_request("the request ended within a message"))?;
            }
            let count = self.rest.len().min(length - message.len());
            if let Some(room) = &mut room {
                reserve(room, message.len() + count)?;
            }
            message.extend_from_slice(&self.rest.split_to(count));
        }
        Ok(())
    }
}

/// Decompresses a message and puts a header in front of it.
async fn unpack(
    packed: Vec<u8>,
    encoding: Encoding,
    mut room: BodyRoom,
    bytes_max: usize,
) -> Result<(Vec<u8>, BodyRoom), RequestError> {
    let is_short = packed.len() <= DECODE_INLINE_BYTES_MAX / INFLATION_MAX;
    let unpack = move || {
        let bytes = decompress(&packed, encoding, bytes_max, &mut room)?;
        // The length is at most `bytes_max`, which is far below 4 GiB.
        let length = u32::try_from(bytes.len()).map_err(|_| too_large(bytes_max))?;
        let message = [&[0], &length.to_be_bytes()[..], &bytes].concat();
        Ok((message, room))
    };
    if is_short { unpack() } else { for_client(unpack).await.ok_or_else(RequestError::panicked)? }
}

/// The next bytes of a body; `None` at its end.
async fn part(body: &mut Body) -> Result<Option<Bytes>, RequestError> {
    while let Some(frame) = body.frame().await {
        let cut = |error| RequestError::bad_request(format!("the connection ended within the request: {error}"));
        if let Ok(part) = frame.map_err(cut)?.into_data() {
            return Ok(Some(part));
        }
    }
    Ok(None)
}

async fn within(
    pause: Option<Duration>,
    part: impl Future<Output = Result<Option<Bytes>, RequestError>>,
) -> Result<Option<Bytes>, RequestError> {
    let Some(pause) = pause else { return part.await };
    let paused = |_| too_slow(format!("paused for {} seconds", pause.as_secs_f64()));
    timeout(pause, part).await.map_err(paused)?
}
