//! The messages of requests and answers, and their bytes.
//!
//! Numbers are little-endian. A text is its length (u16) and its bytes in UTF-8; a list is its
//! length (u16) and its elements. A tensor is its name, the index of its datatype in
//! [`DataType::ALL`] (u8), its rank (u8), its dimensions (i64), and the offset and size of its
//! elements in the arena (u64 each).

use crate::limits::MESSAGE_BYTES_MAX;
use atoll_control::RefusalKind;
use atoll_protocol::DataType;

const PING: u64 = 1;
const CALL: u64 = 2;
const PONG: u64 = 3;
const DONE: u64 = 4;
const FAILED: u64 = 5;

/// The kinds of failures; their indices are on the wire.
const KINDS: [RefusalKind; 8] = [
    RefusalKind::BadRequest,
    RefusalKind::NotFound,
    RefusalKind::Denied,
    RefusalKind::Quota,
    RefusalKind::Busy,
    RefusalKind::Deadline,
    RefusalKind::Function,
    RefusalKind::Daemon,
];

/// A part of the arena.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// Offset of its first byte; a multiple of 8.
    pub at: u64,
    /// Number of bytes.
    pub bytes: u64,
}

/// A tensor whose elements are in the arena.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its name in the model.
    pub name: String,
    /// Type of its elements.
    pub datatype: DataType,
    /// Dimensions, outermost first.
    pub shape: Vec<i64>,
    /// Where its elements are.
    pub span: Span,
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Is answered at once, with [`Reply::Pong`].
    Ping,
    /// An inference request.
    Call(Call),
}

/// An inference request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// Name of the model, as over HTTP; also a private function of the tenant.
    pub model: String,
    /// Its version; empty for the newest.
    pub version: String,
    /// Id of the request; may be empty.
    pub id: String,
    /// Parameters as over HTTP, a JSON object; empty for none.
    pub parameters: String,
    /// The inputs.
    pub inputs: Vec<Place>,
    /// The requested outputs; empty for all.
    pub outputs: Vec<String>,
    /// Where the elements of outputs go.
    pub window: Span,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The answer to [`Request::Ping`].
    Pong,
    /// The result of an inference request.
    Done(Done),
    /// The request was refused, or failed.
    Failed(Failure),
}

/// The result of an inference request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// The version of the model.
    pub version: String,
    /// Parameters of the answer, a JSON object; empty for none.
    pub parameters: String,
    /// The outputs.
    pub outputs: Vec<Place>,
}

/// Why a request has no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Its kind, as over the control socket.
    pub kind: RefusalKind,
    /// The message for the user. One that is too long for a slot is cut.
    pub message: String,
}

/// A message that is not valid, or does not fit a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadMessage {
    /// More bytes than a slot holds.
    #[error("the message of the ring has {0} bytes; the limit is {MESSAGE_BYTES_MAX}")]
    TooLong(u64),
    /// The bytes end within an element.
    #[error("the message ends early")]
    Short,
    /// There are bytes after the last element.
    #[error("the message has {0} bytes after its end")]
    Rest(usize),
    /// A text is not UTF-8.
    #[error("a text is not valid UTF-8")]
    Text,
    /// A datatype or a kind of record is unknown.
    #[error("{what} {code} is unknown; use a client and a daemon of the same release")]
    Unknown {
        /// The kind of code.
        what: &'static str,
        /// Its value.
        code: u64,
    },
}

impl Request {
    /// The kind of the record, and its message.
    pub(crate) fn encode(&self) -> Result<(u64, Vec<u8>), BadMessage> {
        let Request::Call(call) = self else { return Ok((PING, Vec::new())) };
        let mut out = Writer::default();
        for text in [&call.model, &call.version, &call.id, &call.parameters] {
            out.text(text);
        }
        out.list(&call.inputs, Writer::place);
        out.list(&call.outputs, |out, name| out.text(name));
        out.span(call.window);
        Ok((CALL, out.finish()?))
    }

    pub(crate) fn decode(kind: u64, message: &[u8]) -> Result<Request, BadMessage> {
        let mut bytes = Reader(message);
        let request = match kind {
            PING => Request::Ping,
            CALL => Request::Call(Call {
                model: bytes.text()?,
                version: bytes.text()?,
                id: bytes.text()?,
                parameters: bytes.text()?,
                inputs: bytes.list(Reader::place)?,
                outputs: bytes.list(Reader::text)?,
                window: bytes.span()?,
            }),
            code => return Err(BadMessage::Unknown { what: "the kind of a request", code }),
        };
        bytes.finish(request)
    }
}

impl Reply {
    /// The kind of the record, and its message. A result that does not fit becomes a failure.
    pub(crate) fn encode(&self) -> (u64, Vec<u8>) {
        match self {
            Reply::Pong => (PONG, Vec::new()),
            Reply::Failed(failure) => (FAILED, failure.encode()),
            Reply::Done(done) => {
                let mut out = Writer::default();
                out.text(&done.version);
                out.text(&done.parameters);
                out.list(&done.outputs, Writer::place);
                match out.finish() {
                    Ok(message) => (DONE, message),
                    Err(error) => {
                        let message = format!("the answer cannot be described: {error}; request fewer outputs");
                        (FAILED, Failure { kind: RefusalKind::BadRequest, message }.encode())
                    }
                }
            }
        }
    }

    pub(crate) fn decode(kind: u64, message: &[u8]) -> Result<Reply, BadMessage> {
        let mut bytes = Reader(message);
        let reply = match kind {
            PONG => Reply::Pong,
            DONE => Reply::Done(Done {
                version: bytes.text()?,
                parameters: bytes.text()?,
                outputs: bytes.list(Reader::place)?,
            }),
            FAILED => {
                let code = bytes.byte()?;
                let unknown = BadMessage::Unknown { what: "the kind of a failure", code: code.into() };
                let kind = *KINDS.get(usize::from(code)).ok_or(unknown)?;
                Reply::Failed(Failure { kind, message: bytes.text()? })
            }
            code => return Err(BadMessage::Unknown { what: "the kind of an answer", code }),
        };
        bytes.finish(reply)
    }
}

impl Failure {
    fn encode(&self) -> Vec<u8> {
        let mut end = self.message.len().min(MESSAGE_BYTES_MAX - 3);
        while !self.message.is_char_boundary(end) {
            end -= 1;
        }
        let code = KINDS.iter().position(|kind| *kind == self.kind).unwrap_or(KINDS.len() - 1);
        let mut out = Writer { bytes: vec![code as u8] };
        out.text(&self.message[..end]);
        out.bytes
    }
}

/// Writes a message. Lengths that do not fit their field make the message longer than a slot, which
/// [`Writer::finish`] refuses.
#[derive(Default)]
struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    fn text(&mut self, text: &str) {
        self.bytes.extend((text.len() as u16).to_le_bytes());
        self.bytes.extend(text.as_bytes());
    }

    fn list<T>(&mut self, items: &[T], each: impl Fn(&mut Writer, &T)) {
        self.bytes.extend((items.len() as u16).to_le_bytes());
        items.iter().for_each(|item| each(self, item));
    }

    fn span(&mut self, span: Span) {
        self.bytes.extend(span.at.to_le_bytes());
        self.bytes.extend(span.bytes.to_le_bytes());
    }

    fn place(&mut self, place: &Place) {
        self.text(&place.name);
        let code =
            DataType::ALL.iter().position(|datatype| *datatype == place.datatype).unwrap_or(usize::from(u8::MAX));
        self.bytes.push(code as u8);
        match u8::try_from(place.shape.len()) {
            Ok(rank) => self.bytes.push(rank),
            Err(_) => self.bytes.resize(MESSAGE_BYTES_MAX + 1, 0),
        }
        place.shape.iter().for_each(|size| self.bytes.extend(size.to_le_bytes()));
        self.span(place.span);
    }

    fn finish(self) -> Result<Vec<u8>, BadMessage> {
        let bytes = self.bytes.len();
        if bytes > MESSAGE_BYTES_MAX { Err(BadMessage::TooLong(bytes as u64)) } else { Ok(self.bytes) }
    }
}

/// The rest of a message.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const COUNT: usize>(&mut self) -> Result<[u8; COUNT], BadMessage> {
        let (first, rest) = self.0.split_first_chunk().ok_or(BadMessage::Short)?;
        self.0 = rest;
        Ok(*first)
    }

    fn byte(&mut self) -> Result<u8, BadMessage> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn length(&mut self) -> Result<usize, BadMessage> {
        Ok(u16::from_le_bytes(self.take()?).into())
    }

    fn text(&mut self) -> Result<String, BadMessage> {
        let length = self.length()?;
        let (text, rest) = self.0.split_at_checked(length).ok_or(BadMessage::Short)?;
        self.0 = rest;
        String::from_utf8(text.into()).map_err(|_| BadMessage::Text)
    }

    /// Memory grows with the elements that are present, not with the stated length.
    fn list<T>(&mut self, each: impl Fn(&mut Self) -> Result<T, BadMessage>) -> Result<Vec<T>, BadMessage> {
        let length = self.length()?;
        let mut items = Vec::new();
        for _ in 0..length {
            items.push(each(self)?);
        }
        Ok(items)
    }

    fn span(&mut self) -> Result<Span, BadMessage> {
        Ok(Span { at: u64::from_le_bytes(self.take()?), bytes: u64::from_le_bytes(self.take()?) })
    }

    fn place(&mut self) -> Result<Place, BadMessage> {
        let (name, code, rank) = (self.text()?, self.byte()?, self.byte()?);
        let unknown = BadMessage::Unknown { what: "datatype", code: code.into() };
        let datatype = *DataType::ALL.get(usize::from(code)).ok_or(unknown)?;
        let shape = (0..rank).map(|_| Ok(i64::from_le_bytes(self.take()?))).collect::<Result<_, BadMessage>>()?;
        Ok(Place { name, datatype, shape, span: self.span()? })
    }

    fn finish<T>(self, value: T) -> Result<T, BadMessage> {
        if self.0.is_empty() { Ok(value) } else { Err(BadMessage::Rest(self.0.len())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn span() -> impl Strategy<Value = Span> {
        (any::<u64>(), any::<u64>()).prop_map(|(at, bytes)| Span { at, bytes })
    }

    fn place() -> impl Strategy<Value = Place> {
        (".{0,20}", 0..DataType::ALL.len(), vec(any::<i64>(), 0..5), span())
            .prop_map(|(name, datatype, shape, span)| Place { name, datatype: DataType::ALL[datatype], shape, span })
    }

    fn call() -> impl Strategy<Value = Call> {
        let texts = (".{0,20}", ".{0,5}", ".{0,20}", ".{0,40}");
        (texts, vec(place(), 0..6), vec(".{0,12}", 0..6), span()).prop_map(
            |((model, version, id, parameters), inputs, outputs, window)| Call {
                model,
                version,
                id,
                parameters,
                inputs,
                outputs,
                window,
            },
        )
    }

    fn reply() -> impl Strategy<Value = Reply> {
        let done = (".{0,5}", ".{0,20}", vec(place(), 0..6))
            .prop_map(|(version, parameters, outputs)| Reply::Done(Done { version, parameters, outputs }));
        let failed = (0..KINDS.len(), ".{0,100}")
            .prop_map(|(kind, message)| Reply::Failed(Failure { kind: KINDS[kind], message }));
        prop_oneof![Just(Reply::Pong), done, failed]
    }

    proptest! {
        #[test]
        fn messages_survive_their_bytes(call in call(), reply in reply()) {
            let request = Request::Call(call);
            let (kind, message) = request.encode().unwrap();
            prop_assert_eq!(Request::decode(kind, &message), Ok(request));
            let (kind, message) = reply.encode();
            prop_assert_eq!(Reply::decode(kind, &message), Ok(reply));
        }

        #[test]
        fn no_bytes_are_harmful(kind in 0_u64..7, bytes in vec(any::<u8>(), 0..300)) {
            let _ = (Request::decode(kind, &bytes), Reply::decode(kind, &bytes));
        }

        #[test]
        fn changed_bytes_are_refused_or_read_as_they_are(call in call(), at: prop::sample::Index, byte: u8) {
            let (kind, mut message) = Request::Call(call).encode().unwrap();
            let at = at.index(message.len());
            message[at] = byte;
            if let Ok(request) = Request::decode(kind, &message) {
                prop_assert_eq!(request.encode(), Ok((kind, message)));
            }
        }

        #[test]
        fn a_message_that_is_cut_is_refused(call in call(), at: prop::sample::Index) {
            let (kind, message) = Request::Call(call).encode().unwrap();
            let cut = at.index(message.len());
            prop_assert!(Request::decode(kind, &message[..cut]).is_err());
        }
    }

    #[test]
    fn what_does_not_fit_a_slot_is_not_sent() {
        let long = |model: usize, rank: usize, count: usize| {
            let place =
                Place { name: "x".into(), datatype: DataType::Fp32, shape: vec![1; rank], span: Span::default() };
            Request::Call(Call { model: "m".repeat(model), inputs: vec![place; count], ..Call::default() }).encode()
        };
        assert!(long(10, 4, 50).is_ok());
        for (model, rank, count) in [(5000, 1, 1), (1 << 16, 1, 1), (10, 256, 1), (10, 1, 200)] {
            assert!(matches!(long(model, rank, count), Err(BadMessage::TooLong(_))), "{model} {rank} {count}");
        }
        let place = Place { name: "y".repeat(100), datatype: DataType::Int8, shape: vec![1], span: Span::default() };
        let (kind, message) = Reply::Done(Done { outputs: vec![place; 50], ..Done::default() }).encode();
        let Ok(Reply::Failed(failure)) = Reply::decode(kind, &message) else { panic!("it is not a failure") };
        assert!(failure.message.contains("request fewer outputs"), "{failure:?}");
    }

    #[test]
    fn a_long_reason_is_cut_between_characters() {
        let (kind, message) = Reply::Failed(Failure { kind: RefusalKind::Daemon, message: "ü".repeat(5000) }).encode();
        assert!(message.len() <= MESSAGE_BYTES_MAX);
        let Ok(Reply::Failed(failure)) = Reply::decode(kind, &message) else { panic!("it is not a failure") };
        assert!(failure.message.len() > 4000 && failure.message.chars().all(|letter| letter == 'ü'));
    }
}
