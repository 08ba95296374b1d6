//! Request bodies: limited in size, time and number; decompressed if necessary.

use crate::app::App;
use crate::bodies::BodyRoom;
use crate::identity::Principal;
use crate::limits::{BODY_TIMEOUT, SMALL_BODY_BYTES_MAX};
use crate::requests::error::RequestError;
use crate::requests::memory::{Encoding, decompress, reserve, too_large, too_slow};
use atoll_engine::Class;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, header};
use http_body_util::BodyExt;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, timeout, timeout_at};

/// A body and its reservation of memory.
pub(super) struct Received {
    pub(super) bytes: Bytes,
    pub(super) room: BodyRoom,
}

/// Reads the body of an inference request.
pub(super) async fn receive(
    app: &App,
    caller: &Principal,
    headers: &HeaderMap,
    body: Body,
) -> Result<Received, RequestError> {
    let bytes_max = app.body_bytes_max;
    let encoding = Encoding::of(headers.get(header::CONTENT_ENCODING).map_or(b"", |value| value.as_bytes()))?;
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<usize>().ok());
    if announced.is_some_and(|bytes| bytes > bytes_max) {
        return Err(too_large(bytes_max));
    }
    let Received { bytes, mut room } = read(app, caller.limits.class, body, bytes_max).await?;
    if encoding == Encoding::Identity {
        return Ok(Received { bytes, room });
    }
    let decompressed =
        move || decompress(&bytes, encoding, bytes_max, &mut room).map(|bytes| Received { bytes: bytes.into(), room });
    crate::threads::for_client(decompressed).await.ok_or_else(RequestError::panicked)?
}

/// Reads a JSON body without tensors; an empty body counts as `{}`.
pub(super) async fn small_json<T: DeserializeOwned + Default>(app: &App, body: Body) -> Result<T, RequestError> {
    let Received { bytes, room: _room } = read(app, Class::BestEffort, body, SMALL_BODY_BYTES_MAX).await?;
    parse(&bytes)
}

/// Parses JSON; an empty body counts as `{}`.
pub(super) fn parse<T: DeserializeOwned + Default>(bytes: &[u8]) -> Result<T, RequestError> {
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Ok(T::default());
    }
    serde_json::from_slice(bytes).map_err(|e| RequestError::bad_request(format!("the body is not valid JSON: {e}")))
}

async fn read(app: &App, class: Class, mut body: Body, bytes_max: usize) -> Result<Received, RequestError> {
    let deadline = Instant::now() + BODY_TIMEOUT;
    let (mut room, mut parts, mut bytes) = (app.bodies.room(class), Vec::new(), 0);
    loop {
        let frame = timeout_at(deadline, timeout(app.body_pause, body.frame())).await;
        let frame = frame.map_err(|_| too_slow(format!("did not arrive within {} seconds", BODY_TIMEOUT.as_secs())))?;
        let frame = frame.map_err(|_| too_slow(format!("paused for {} seconds", app.body_pause.as_secs_f64())))?;
        let Some(frame) = frame else { break };
        let frame = frame
            .map_err(|error| RequestError::bad_request(format!("the connection ended within the body: {error}")))?;
        let Ok(part) = frame.into_data() else { continue };
        bytes += part.len();
        if bytes > bytes_max {
            return Err(too_large(bytes_max));
        }
        reserve(&mut room, bytes)?;
        parts.push(part);
    }
    let bytes = if parts.len() == 1 { parts.remove(0) } else { parts.concat().into() };
    Ok(Received { bytes, room })
}
