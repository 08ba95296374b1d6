//! Bare HTTP/2 frames, for requests that no client library sends.

use super::Connection;
use std::net::SocketAddr;

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RESET: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const CONTINUATION: u8 = 9;

pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

/// A frame.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes()[..], payload].concat()
}

/// The headers of a call of `ModelInfer`, with additional ones.
pub(crate) fn headers(more: &[(&str, &str)]) -> Vec<u8> {
    let path = "/inference.GRPCInferenceService/ModelInfer";
    let fixed = [(":method", "POST"), (":scheme", "http"), (":authority", "localhost"), (":path", path)];
    let fixed = fixed.into_iter().chain([("content-type", "application/grpc"), ("te", "trailers")]);
    // Literals without indexing (RFC 7541 §6.2.2), of names and values below 127 bytes.
    let literal = |(name, value): (&str, &str)| {
        [&[0, name.len() as u8], name.as_bytes(), &[value.len() as u8], value.as_bytes()].concat()
    };
    fixed.chain(more.iter().copied()).flat_map(literal).collect()
}

/// A message in the form of gRPC.
pub(crate) fn message(flag: u8, bytes: &[u8]) -> Vec<u8> {
    [&[flag], &u32::try_from(bytes.len()).unwrap().to_be_bytes()[..], bytes].concat()
}

/// A connection that has sent its preface and empty settings.
pub(crate) fn open(address: SocketAddr) -> Connection {
    let mut connection = Connection::open(address);
    connection.send_raw(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    connection.send_raw(&frame(SETTINGS, 0, 0, &[]));
    connection
}
