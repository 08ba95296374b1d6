//! A minimal gRPC client: one request at a time, on one connection without TLS.
//!
//! It speaks as much HTTP/2 (RFC 9113) as a request without compression needs. Headers of answers
//! are not decoded: an answer without a message is an error.

use anyhow::{Context, Result, bail, ensure};
use atoll_protocol::Tensor;
use std::io::{BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// What a client sends first.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Longest payload of a frame without another setting.
const FRAME_BYTES_MAX: usize = 16_384;

/// Longest wait for an answer.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Types of frames.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;

/// Flags of frames. For SETTINGS and PING, the first is an acknowledgement.
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;

/// The method that is called.
const PATH: &str = "/inference.GRPCInferenceService/ModelInfer";

/// A connection to a daemon's gRPC port.
pub(super) struct Grpc {
    stream: TcpStream,
    answers: BufReader<TcpStream>,
    headers: Vec<u8>,
    /// The number of the next request's stream: odd, ascending.
    next: u32,
}

struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

impl Grpc {
    /// Connects.
    pub(super) fn connect(address: SocketAddr) -> Result<Grpc> {
        let mut stream = TcpStream::connect(address).context("cannot connect to the gRPC port")?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TIME_LIMIT))?;
        let mut hello = PREFACE.to_vec();
        push_frame(&mut hello, SETTINGS, 0, 0, &[]);
        stream.write_all(&hello)?;
        let answers = BufReader::new(stream.try_clone()?);
        Ok(Grpc { stream, answers, headers: headers(&address.to_string()), next: 1 })
    }

    /// Makes a real-time request.
    pub(super) fn infer(&mut self, model: &str, inputs: &[Tensor]) -> Result<()> {
        let message = infer_request(model, inputs);
        let mut body = vec![0];
        body.extend(u32::try_from(message.len())?.to_be_bytes());
        body.extend(message);
        ensure!(body.len() <= FRAME_BYTES_MAX, "a request of {} bytes; at most {FRAME_BYTES_MAX}", body.len());
        let number = self.next;
        self.next += 2;
        let mut request = Vec::new();
        push_frame(&mut request, HEADERS, END_HEADERS, number, &self.headers);
        push_frame(&mut request, DATA, END_STREAM, number, &body);
        self.stream.write_all(&request)?;
        let answer = self.answer(number)?;
        // A message begins with five bytes, and an answer has outputs.
        ensure!(answer.len() > 5, "the daemon refused a gRPC request");
        Ok(())
    }

    /// The data of an answer.
    fn answer(&mut self, number: u32) -> Result<Vec<u8>> {
        let mut data = Vec::new();
        loop {
            let Frame { kind, flags, stream, payload } = self.read_frame()?;
            let mut reply = Vec::new();
            match kind {
                DATA if flags & PADDED != 0 => bail!("the daemon pads its answers"),
                DATA if !payload.is_empty() => {
                    push_frame(&mut reply, WINDOW_UPDATE, 0, 0, &u32::try_from(payload.len())?.to_be_bytes());
                    data.extend(payload);
                }
                SETTINGS if flags & ACK == 0 => push_frame(&mut reply, SETTINGS, ACK, 0, &[]),
                PING if flags & ACK == 0 => push_frame(&mut reply, PING, ACK, 0, &payload),
                GOAWAY | RST_STREAM => bail!("the daemon ended the gRPC connection or request"),
                _ => {}
            }
            if !reply.is_empty() {
                self.stream.write_all(&reply)?;
            }
            if matches!(kind, DATA | HEADERS) && stream == number && flags & END_STREAM != 0 {
                return Ok(data);
            }
        }
    }

    fn read_frame(&mut self) -> Result<Frame> {
        let mut head = [0; 9];
        self.answers.read_exact(&mut head).context("no answer over gRPC")?;
        let [a, b, c, kind, flags, stream @ ..] = head;
        let length = u32::from_be_bytes([0, a, b, c]) as usize;
        ensure!(length <= FRAME_BYTES_MAX, "the daemon sent a frame of {length} bytes");
        let mut payload = vec![0; length];
        self.answers.read_exact(&mut payload).context("no whole answer over gRPC")?;
        Ok(Frame { kind, flags, stream: u32::from_be_bytes(stream) & !(1 << 31), payload })
    }
}

fn push_frame(to: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    to.extend(&(payload.len() as u32).to_be_bytes()[1..]);
    to.extend([kind, flags]);
    to.extend(stream.to_be_bytes());
    to.extend(payload);
}

/// The headers of every request in HPACK (RFC 7541), without additions to the dynamic table.
fn headers(authority: &str) -> Vec<u8> {
    // `:method: POST` and `:scheme: http` of the static table.
    let mut block = vec![0x83, 0x86];
    // `:path`, `:authority` and `content-type` are names 4, 1 and 31 of it.
    for (name, value) in [(&[0x04][..], PATH), (&[0x01], authority), (&[0x0f, 0x10], "application/grpc")] {
        block.extend(name);
        push_text(&mut block, value);
    }
    block.push(0x00);
    push_text(&mut block, "te");
    push_text(&mut block, "trailers");
    block
}

/// A text of less than 127 bytes.
fn push_text(to: &mut Vec<u8>, text: &str) {
    to.push(text.len() as u8);
    to.extend(text.as_bytes());
}

/// A `ModelInferRequest` with priority 1.
fn infer_request(model: &str, inputs: &[Tensor]) -> Vec<u8> {
    let mut message = Vec::new();
    push_field(&mut message, 1, model.as_bytes());
    let mut priority = Vec::new();
    push_field(&mut priority, 1, b"priority");
    // `int64_param` (2) is 1.
    push_field(&mut priority, 2, &[0x10, 0x01]);
    push_field(&mut message, 4, &priority);
    for tensor in inputs {
        let mut input = Vec::new();
        push_field(&mut input, 1, tensor.name.as_bytes());
        push_field(&mut input, 2, tensor.datatype.name().as_bytes());
        let mut shape = Vec::new();
        tensor.shape.iter().for_each(|extent| push_number(&mut shape, *extent as u64));
        push_field(&mut input, 3, &shape);
        push_field(&mut message, 5, &input);
    }
    inputs.iter().for_each(|tensor| push_field(&mut message, 7, &tensor.bytes));
    message
}

/// A field of bytes in a protocol buffer.
fn push_field(to: &mut Vec<u8>, number: u8, bytes: &[u8]) {
    to.push(number << 3 | 2);
    push_number(to, bytes.len() as u64);
    to.extend(bytes);
}

/// A number of a protocol buffer: seven bits a byte, the lowest first.
fn push_number(to: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        to.push(number as u8 | 0x80);
        number >>= 7;
    }
    to.push(number as u8);
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_protocol::DataType;

    #[test]
    fn requests_are_protocol_buffers() {
        let tensor = Tensor::new("x", DataType::Uint8, vec![1, 200], vec![7; 200]).unwrap();
        let message = infer_request("m", &[tensor]);
        let (before, after) = message.split_at(message.len() - 203);
        assert_eq!(after[..3], [7 << 3 | 2, 0xc8, 0x01], "200 bytes in two digits");
        let expected: &[u8] =
            b"\x0a\x01m\x22\x0e\x0a\x08priority\x12\x02\x10\x01\x2a\x0f\x0a\x01x\x12\x05UINT8\x1a\x03\x01\xc8\x01";
        assert_eq!(before, expected);
    }

    #[test]
    fn frames_have_their_length_first() {
        let mut frame = Vec::new();
        push_frame(&mut frame, DATA, END_STREAM, 3, &[9; 300]);
        assert_eq!(frame[..9], [0, 1, 44, 0, 1, 0, 0, 0, 3]);
        assert_eq!(frame.len(), 309);
    }
}
