//! Bodies of requests: bounded in size, time and number, unpacked if they are compressed.

use super::error::ApiError;
use crate::app::App;
use crate::limits::{BODY_TIMEOUT, SMALL_BODY_BYTES_MAX};
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, StatusCode, header};
use flate2::read::{MultiGzDecoder, ZlibDecoder};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::DeserializeOwned;
use std::io::Read;
use tokio::sync::OwnedSemaphorePermit;

/// A body and its share of the bytes that may be in flight.
pub(super) struct Received {
    pub(super) bytes: Bytes,
    pub(super) permit: OwnedSemaphorePermit,
}

/// Reads the body of an inference request.
pub(super) async fn receive(app: &App, headers: &HeaderMap, body: Body) -> Result<Received, ApiError> {
    let bytes_max = app.body_bytes_max;
    let encoding = encoding(headers)?;
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<usize>().ok());
    if announced.is_some_and(|bytes| bytes > bytes_max) {
        return Err(too_large(bytes_max));
    }
    // What is unpacked, or comes in chunks, may turn out as large as is allowed.
    let reserved = announced.filter(|_| encoding == Encoding::Identity).unwrap_or(bytes_max);
    let permit = app.reserve_body(reserved).ok_or_else(|| {
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "the requests in flight take all the memory that bodies may take; try again later")
    })?;
    let packed = read(body, bytes_max).await?;
    let bytes = match encoding {
        Encoding::Identity => packed,
        encoding => crate::inference::blocking(move || unpack(&packed, encoding, bytes_max)).await.ok_or_else(ApiError::panicked)??,
    };
    Ok(Received { bytes, permit })
}

/// Reads a body that carries no tensors; an empty one is as good as `{}`.
pub(super) async fn small_json<T: DeserializeOwned + Default>(body: Body) -> Result<T, ApiError> {
    let bytes = read(body, SMALL_BODY_BYTES_MAX).await?;
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Ok(T::default());
    }
    serde_json::from_slice(&bytes).map_err(|e| ApiError::bad_request(format!("the JSON of the body cannot be read: {e}")))
}

async fn read(body: Body, bytes_max: usize) -> Result<Bytes, ApiError> {
    let collected = tokio::time::timeout(BODY_TIMEOUT, Limited::new(body, bytes_max).collect()).await;
    let collected = collected.map_err(|_| {
        ApiError::new(StatusCode::REQUEST_TIMEOUT, format!("the body did not arrive within {} seconds", BODY_TIMEOUT.as_secs()))
    })?;
    match collected {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(too_large(bytes_max)),
        Err(error) => Err(ApiError::bad_request(format!("the body broke off: {error}"))),
    }
}

fn too_large(bytes_max: usize) -> ApiError {
    ApiError::new(
        StatusCode::PAYLOAD_TOO_LARGE,
        format!("the body is larger than {bytes_max} bytes; send smaller batches, or start the daemon with a larger --body-bytes-max"),
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
            let text = format!("content encoding {} is not supported; gzip and deflate are", String::from_utf8_lossy(other));
            Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, text))
        }
    }
}

fn unpack(packed: &[u8], encoding: Encoding, bytes_max: usize) -> Result<Bytes, ApiError> {
    let mut bytes = Vec::new();
    let mut read = |reader: &mut dyn Read| reader.take(bytes_max as u64 + 1).read_to_end(&mut bytes);
    let count = match encoding {
        Encoding::Identity => read(&mut &*packed),
        Encoding::Gzip => read(&mut MultiGzDecoder::new(packed)),
        Encoding::Deflate => read(&mut ZlibDecoder::new(packed)),
    };
    match count {
        Ok(count) if count > bytes_max => Err(too_large(bytes_max)),
        Ok(_) => Ok(bytes.into()),
        Err(error) => Err(ApiError::bad_request(format!("the body cannot be unpacked: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use std::io::Write;

    #[test]
    fn a_small_body_that_unpacks_to_a_large_one_is_refused() {
        let mut packer = GzEncoder::new(Vec::new(), Compression::best());
        packer.write_all(&vec![0; 1 << 20]).unwrap();
        let packed = packer.finish().unwrap();
        assert!(packed.len() < 4096);
        assert_eq!(unpack(&packed, Encoding::Gzip, 1 << 20).unwrap().len(), 1 << 20);
        assert_eq!(unpack(&packed, Encoding::Gzip, (1 << 20) - 1).unwrap_err().status, StatusCode::PAYLOAD_TOO_LARGE);
        assert_eq!(unpack(&packed[..20], Encoding::Gzip, 1 << 20).unwrap_err().status, StatusCode::BAD_REQUEST);
        assert_eq!(unpack(b"plain", Encoding::Deflate, 1 << 20).unwrap_err().status, StatusCode::BAD_REQUEST);
    }
}
