//! Request bodies: limited in size, time and number; decompressed if necessary.
//!
//! Memory is reserved for bytes that have arrived, never for an announced length, so that
//! announcing a large body costs the server nothing.

use super::error::ApiError;
use crate::app::App;
use crate::bodies::BodyRoom;
use crate::limits::{BODY_TIMEOUT, SMALL_BODY_BYTES_MAX};
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, StatusCode, header};
use flate2::read::{MultiGzDecoder, ZlibDecoder};
use http_body_util::BodyExt;
use serde::de::DeserializeOwned;
use std::io::Read;
use tokio::time::{Instant, timeout, timeout_at};

/// Bytes that are decompressed between two reservations.
const DECOMPRESS_CHUNK_BYTES: usize = 256 << 10;

/// A body and its reservation of memory.
pub(super) struct Received {
    pub(super) bytes: Bytes,
    pub(super) room: BodyRoom,
}

/// Reads the body of an inference request.
pub(super) async fn receive(app: &App, headers: &HeaderMap, body: Body) -> Result<Received, ApiError> {
    let bytes_max = app.body_bytes_max;
    let encoding = encoding(headers)?;
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<usize>().ok());
    if announced.is_some_and(|bytes| bytes > bytes_max) {
        return Err(too_large(bytes_max));
    }
    let Received { bytes, mut room } = read(app, body, bytes_max).await?;
    if encoding == Encoding::Identity {
        return Ok(Received { bytes, room });
    }
    let decompressed = move || decompress(&bytes, encoding, bytes_max, &mut room).map(|bytes| Received { bytes, room });
    crate::inference::blocking(decompressed).await.ok_or_else(ApiError::panicked)?
}

/// Reads a JSON body without tensors; an empty body counts as `{}`.
pub(super) async fn small_json<T: DeserializeOwned + Default>(app: &App, body: Body) -> Result<T, ApiError> {
    let Received { bytes, room: _room } = read(app, body, SMALL_BODY_BYTES_MAX).await?;
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Ok(T::default());
    }
    serde_json::from_slice(&bytes).map_err(|e| ApiError::bad_request(format!("the body is not valid JSON: {e}")))
}

async fn read(app: &App, mut body: Body, bytes_max: usize) -> Result<Received, ApiError> {
    let deadline = Instant::now() + BODY_TIMEOUT;
    let (mut room, mut parts, mut bytes) = (app.bodies.room(), Vec::new(), 0);
    loop {
        let frame = timeout_at(deadline, timeout(app.body_pause, body.frame())).await;
        let frame = frame.map_err(|_| too_slow(format!("did not arrive within {} seconds", BODY_TIMEOUT.as_secs())))?;
        let frame = frame.map_err(|_| too_slow(format!("paused for {} seconds", app.body_pause.as_secs_f64())))?;
        let Some(frame) = frame else { break };
        let frame =
            frame.map_err(|error| ApiError::bad_request(format!("the connection ended within the body: {error}")))?;
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

fn reserve(room: &mut BodyRoom, bytes: usize) -> Result<(), ApiError> {
    let full = "the bodies of other requests take all memory reserved for bodies; try again later";
    if room.grow_to(bytes) { Ok(()) } else { Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, full)) }
}

fn too_slow(how: String) -> ApiError {
    ApiError::new(StatusCode::REQUEST_TIMEOUT, format!("the body {how}"))
}

fn too_large(bytes_max: usize) -> ApiError {
    ApiError::new(
        StatusCode::PAYLOAD_TOO_LARGE,
        format!(
            "the body is larger than {bytes_max} bytes; send smaller batches, or start the daemon with a larger \
            --body-bytes-max"
        ),
    )
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encoding {
    Identity,
    Gzip,
    Deflate,
}

fn encoding(headers: &HeaderMap) -> Result<Encoding, ApiError> {
    match headers.get(header::CONTENT_ENCODING).map_or(&b"identity"[..], |v| v.as_bytes()) {
        b"identity" | b"" => Ok(Encoding::Identity),
        b"gzip" => Ok(Encoding::Gzip),
        b"deflate" => Ok(Encoding::Deflate),
        other => {
            let text =
                format!("content encoding {} is not supported; use gzip or deflate", String::from_utf8_lossy(other));
            Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, text))
        }
    }
}

/// Decompresses a body. The memory of the compressed bytes is already reserved.
fn decompress(packed: &[u8], encoding: Encoding, bytes_max: usize, room: &mut BodyRoom) -> Result<Bytes, ApiError> {
    let mut reader: Box<dyn Read + '_> = match encoding {
        Encoding::Identity => Box::new(packed),
        Encoding::Gzip => Box::new(MultiGzDecoder::new(packed)),
        Encoding::Deflate => Box::new(ZlibDecoder::new(packed)),
    };
    let mut bytes = Vec::new();
    loop {
        reserve(room, packed.len() + bytes.len() + DECOMPRESS_CHUNK_BYTES)?;
        let read = reader.by_ref().take(DECOMPRESS_CHUNK_BYTES as u64).read_to_end(&mut bytes);
        match read {
            Ok(0) => return Ok(bytes.into()),
            Ok(_) if bytes.len() > bytes_max => return Err(too_large(bytes_max)),
            Ok(_) => {}
            Err(error) => return Err(ApiError::bad_request(format!("the body cannot be decompressed: {error}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bodies::Bodies;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use std::io::Write;

    #[test]
    fn a_small_body_that_decompresss_to_a_large_one_is_refused() {
        let mut packer = GzEncoder::new(Vec::new(), Compression::best());
        packer.write_all(&vec![0; 1 << 20]).unwrap();
        let packed = packer.finish().unwrap();
        assert!(packed.len() < 4096);
        let decompress = |packed: &[u8], encoding, most| decompress(packed, encoding, most, &mut Bodies::new().room());
        assert_eq!(decompress(&packed, Encoding::Gzip, 1 << 20).unwrap().len(), 1 << 20);
        assert_eq!(
            decompress(&packed, Encoding::Gzip, (1 << 20) - 1).unwrap_err().status,
            StatusCode::PAYLOAD_TOO_LARGE
        );
        assert_eq!(decompress(&packed[..20], Encoding::Gzip, 1 << 20).unwrap_err().status, StatusCode::BAD_REQUEST);
        assert_eq!(decompress(b"plain", Encoding::Deflate, 1 << 20).unwrap_err().status, StatusCode::BAD_REQUEST);
    }
}
