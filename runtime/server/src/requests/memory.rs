//! Memory of request bodies: bounded reservations and bounded decompression.
//!
//! Memory is reserved for bytes that have arrived, never for an announced length, so a client that
//! only announces a large body reserves nothing.

use super::error::{Kind, RequestError};
use crate::bodies::BodyRoom;
use flate2::read::{MultiGzDecoder, ZlibDecoder};
use std::io::Read;

/// Bytes that are decompressed between two reservations.
const DECOMPRESS_CHUNK_BYTES: usize = 256 << 10;

/// Grows a reservation, or refuses the request.
pub(crate) fn reserve(room: &mut BodyRoom, bytes: usize) -> Result<(), RequestError> {
    let full = "the bodies of other requests take all memory reserved for bodies; try again later";
    if room.grow_to(bytes) { Ok(()) } else { Err(RequestError::new(Kind::Exhausted, full)) }
}

/// The answer to a body that does not arrive in time.
pub(crate) fn too_slow(how: String) -> RequestError {
    RequestError::new(Kind::TooSlow, format!("the body {how}"))
}

/// The answer to a body above the limit.
pub(crate) fn too_large(bytes_max: usize) -> RequestError {
    RequestError::new(
        Kind::TooLarge,
        format!(
            "the body is larger than {bytes_max} bytes; send smaller batches, or start the daemon with a larger \
            --body-bytes-max"
        ),
    )
}

/// How a body is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoding {
    Identity,
    Gzip,
    Deflate,
}

impl Encoding {
    /// Parses the value of the header `Content-Encoding` or `grpc-encoding`.
    pub(crate) fn of(name: &[u8]) -> Result<Encoding, RequestError> {
        match name {
            b"identity" | b"" => Ok(Encoding::Identity),
            b"gzip" => Ok(Encoding::Gzip),
            b"deflate" => Ok(Encoding::Deflate),
            other => {
                let text = format!(
                    "content encoding {} is not supported; use gzip or deflate",
                    String::from_utf8_lossy(other)
                );
                Err(RequestError::new(Kind::UnknownEncoding, text))
            }
        }
    }
}

/// Decompresses a body. The memory of the compressed bytes is already reserved.
pub(crate) fn decompress(
    packed: &[u8],
    encoding: Encoding,
    bytes_max: usize,
    room: &mut BodyRoom,
) -> Result<Vec<u8>, RequestError> {
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
            Ok(0) => return Ok(bytes),
            Ok(_) if bytes.len() > bytes_max => return Err(too_large(bytes_max)),
            Ok(_) => {}
            Err(error) => return Err(RequestError::bad_request(format!("the body cannot be decompressed: {error}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bodies::Bodies;
    use atoll_engine::Class;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use std::io::Write;

    #[test]
    fn a_small_body_that_decompresses_to_a_large_one_is_refused() {
        let mut packer = GzEncoder::new(Vec::new(), Compression::best());
        packer.write_all(&vec![0; 1 << 20]).unwrap();
        let packed = packer.finish().unwrap();
        assert!(packed.len() < 4096);
        let decompress = |packed: &[u8], encoding, most| {
            decompress(packed, encoding, most, &mut Bodies::new().room(Class::RealTime))
        };
        assert_eq!(decompress(&packed, Encoding::Gzip, 1 << 20).unwrap().len(), 1 << 20);
        assert_eq!(decompress(&packed, Encoding::Gzip, (1 << 20) - 1).unwrap_err().kind, Kind::TooLarge);
        assert_eq!(decompress(&packed[..20], Encoding::Gzip, 1 << 20).unwrap_err().kind, Kind::BadRequest);
        assert_eq!(decompress(b"plain", Encoding::Deflate, 1 << 20).unwrap_err().kind, Kind::BadRequest);
    }
}
