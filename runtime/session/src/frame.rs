//! Frames: the credentials of a client of the network, the greetings of client and server, the head
//! of a message, and the end of an answer. Each has a fixed size.

use crate::code::Code;
use crate::field::{Field, Reader, WireError};
use crate::limits::{
    ANSWER_BYTES_MAX, FACTS_BYTES_MAX, MESSAGE_BYTES_MAX, OFFER_BYTES_MAX, TERMS_BYTES_MAX, TOKEN_BYTES_MAX, VERSION,
};

/// First bytes of both greetings.
pub const MAGIC: [u8; 8] = *b"ATOLLSES";
/// First bytes of [`Entry`].
const ENTRY_MAGIC: [u8; 8] = *b"ATOLLNET";
/// First bytes of the end of an answer.
const ANSWER_MAGIC: u32 = u32::from_le_bytes(*b"ANSR");

/// Size of [`Entry`] in bytes, without the token that follows.
pub const ENTRY_BYTES: usize = 16;
/// Size of [`Hello`] in bytes.
pub const HELLO_BYTES: usize = 24;
/// Size of [`Welcome`] in bytes, without the facts that follow.
pub const WELCOME_BYTES: usize = 40;
/// Size of [`Frame`] in bytes.
pub const FRAME_BYTES: usize = 16;
/// Size of [`Answer`] in bytes, without the bytes that follow.
pub const ANSWER_BYTES: usize = 36;

/// What a client sends before its greeting on a connection over the network. Its token follows. A
/// server of another version reads no further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The version of the client's protocol.
    pub version: u32,
    /// Bytes of the token that follows, as a text; 0 without a token.
    pub token_bytes: u32,
}

impl Entry {
    /// Encodes the entry.
    pub fn write(&self) -> Vec<u8> {
        let mut bytes = ENTRY_MAGIC.to_vec();
        self.version.write(&mut bytes);
        self.token_bytes.write(&mut bytes);
        bytes
    }

    /// Decodes an entry. Of another version, only the version is checked.
    pub fn read(bytes: &[u8; ENTRY_BYTES]) -> Result<Entry, WireError> {
        let mut reader = Reader::new(bytes);
        check_magic(reader.get()?, ENTRY_MAGIC)?;
        let (version, token_bytes) = (reader.get()?, reader.get()?);
        if version == VERSION {
            within("the size of a token", token_bytes, TOKEN_BYTES_MAX)?;
        }
        Ok(Entry { version, token_bytes })
    }
}

/// The client's greeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The version of the client's protocol.
    pub version: u32,
    /// The device memory that the client asks for, in bytes; 0 if the server chooses.
    pub memory_bytes: u64,
    /// Bytes of the terms that follow, as a text ([`crate::Terms`]).
    pub terms_bytes: u32,
}

impl Hello {
    /// Encodes the greeting.
    pub fn write(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        self.version.write(&mut bytes);
        self.terms_bytes.write(&mut bytes);
        self.memory_bytes.write(&mut bytes);
        bytes
    }

    /// Decodes a greeting.
    pub fn read(bytes: &[u8; HELLO_BYTES]) -> Result<Hello, WireError> {
        let mut reader = Reader::new(bytes);
        check_magic(reader.get()?, MAGIC)?;
        let version = reader.get()?;
        let terms_bytes = reader.get()?;
        within("the size of terms", terms_bytes, TERMS_BYTES_MAX)?;
        Ok(Hello { version, memory_bytes: reader.get()?, terms_bytes })
    }
}

/// The server's greeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// The version of the server's protocol.
    pub version: u32,
    /// The error with which the server refuses the session.
    pub refusal: Option<Code>,
    /// The first address of the session's memory.
    pub memory_at: u64,
    /// The size of the session's memory in bytes.
    pub memory_bytes: u64,
    /// Bytes that follow: facts about the device, or the reason of a refusal as text.
    pub facts_bytes: u32,
    /// Bytes that follow these: what the session may store ([`crate::Offer`]); 0 if it stores
    /// nothing.
    pub offer_bytes: u32,
}

impl Welcome {
    /// Encodes the greeting.
    pub fn write(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        self.version.write(&mut bytes);
        self.refusal.map_or(0, |code| code.0).write(&mut bytes);
        self.memory_at.write(&mut bytes);
        self.memory_bytes.write(&mut bytes);
        self.facts_bytes.write(&mut bytes);
        self.offer_bytes.write(&mut bytes);
        bytes
    }

    /// Encodes a refusal with its reason, which is cut at [`FACTS_BYTES_MAX`].
    pub fn refusal(code: Code, why: &str) -> Vec<u8> {
        let why = &why.as_bytes()[..why.len().min(FACTS_BYTES_MAX as usize)];
        let facts_bytes = why.len() as u32;
        let refusal = Some(code);
        let welcome = Welcome { version: VERSION, refusal, memory_at: 0, memory_bytes: 0, facts_bytes, offer_bytes: 0 };
        [welcome.write().as_slice(), why].concat()
    }

    /// Decodes a greeting.
    pub fn read(bytes: &[u8; WELCOME_BYTES]) -> Result<Welcome, WireError> {
        let mut reader = Reader::new(bytes);
        check_magic(reader.get()?, MAGIC)?;
        let version = reader.get()?;
        let refusal = optional(reader.get()?);
        let (memory_at, memory_bytes, facts_bytes) = (reader.get()?, reader.get()?, reader.get()?);
        within("the size of facts", facts_bytes, FACTS_BYTES_MAX)?;
        let offer_bytes = reader.get()?;
        within("the size of an offer", offer_bytes, OFFER_BYTES_MAX)?;
        Ok(Welcome { version, refusal, memory_at, memory_bytes, facts_bytes, offer_bytes })
    }
}

/// Whether the server answers a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// No answer; more messages follow.
    Post,
    /// The client waits for an answer.
    Call,
}

/// The head of a message from a client. The records follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Whether the server answers it.
    pub kind: Kind,
    /// Its number in the session, from 0.
    pub sequence: u32,
    /// Size of the records in bytes.
    pub bytes: u64,
}

impl Frame {
    /// Encodes the head.
    pub fn write(&self) -> [u8; FRAME_BYTES] {
        let mut bytes = [0; FRAME_BYTES];
        bytes[..4].copy_from_slice(&(self.kind as u32).to_le_bytes());
        bytes[4..8].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[8..].copy_from_slice(&self.bytes.to_le_bytes());
        bytes
    }

    /// Decodes a head.
    pub fn read(bytes: &[u8; FRAME_BYTES]) -> Result<Frame, WireError> {
        let mut reader = Reader::new(bytes);
        let kind = match reader.get::<u32>()? {
            0 => Kind::Post,
            1 => Kind::Call,
            other => return Err(WireError::Value { what: "the kind of a message", value: other.into() }),
        };
        let (sequence, bytes) = (reader.get()?, reader.get()?);
        if bytes > MESSAGE_BYTES_MAX {
            return Err(WireError::Value { what: "the size of a message", value: bytes });
        }
        Ok(Frame { kind, sequence, bytes })
    }
}

/// The end of an answer. The result of the last record follows it. Copies to the host precede it,
/// each with its size as 8 bytes: the size that was asked for, or 0 if the copy failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The number of the message that it answers.
    pub sequence: u32,
    /// The first error of a recorded call since the last answer.
    pub earlier: Option<Code>,
    /// The record number of that call.
    pub earlier_record: u16,
    /// That call's number in the session, from 0.
    pub earlier_call: u64,
    /// The error of the last record.
    pub error: Option<Code>,
    /// Size in bytes of the result that follows.
    pub bytes: u32,
}

impl Answer {
    /// Encodes the end of an answer.
    pub fn write(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(ANSWER_BYTES);
        ANSWER_MAGIC.write(&mut bytes);
        self.sequence.write(&mut bytes);
        self.earlier.map_or(0, |code| code.0).write(&mut bytes);
        u32::from(self.earlier_record).write(&mut bytes);
        self.earlier_call.write(&mut bytes);
        self.error.map_or(0, |code| code.0).write(&mut bytes);
        self.bytes.write(&mut bytes);
        0u32.write(&mut bytes);
        bytes
    }

    /// Decodes the end of an answer.
    pub fn read(bytes: &[u8; ANSWER_BYTES]) -> Result<Answer, WireError> {
        let mut reader = Reader::new(bytes);
        let magic = reader.get::<u32>()?;
        if magic != ANSWER_MAGIC {
            return Err(WireError::Value { what: "the first word of an answer", value: magic.into() });
        }
        let (sequence, earlier) = (reader.get()?, optional(reader.get()?));
        let earlier_record = reader.get::<u32>()? as u16;
        let (earlier_call, error, bytes) = (reader.get()?, optional(reader.get()?), reader.get()?);
        within("the size of an answer", bytes, ANSWER_BYTES_MAX)?;
        Ok(Answer { sequence, earlier, earlier_record, earlier_call, error, bytes })
    }
}

fn optional(code: i32) -> Option<Code> {
    (code != 0).then_some(Code(code))
}

pub(crate) fn check_magic(magic: [u8; 8], expected: [u8; 8]) -> Result<(), WireError> {
    if magic == expected {
        return Ok(());
    }
    Err(WireError::Value { what: "the first word of the greeting", value: u64::from_le_bytes(magic) })
}

fn within(what: &'static str, value: u32, most: u32) -> Result<(), WireError> {
    if value > most { Err(WireError::Value { what, value: value.into() }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_have_their_sizes_and_are_read_as_written() {
        let entry = Entry { version: VERSION, token_bytes: 9 };
        assert_eq!(Entry::read(&entry.write().try_into().expect("its size")), Ok(entry));
        let hello = Hello { version: 3, memory_bytes: 5, terms_bytes: 7 };
        assert_eq!(Hello::read(&hello.write().try_into().expect("its size")), Ok(hello));
        let welcome = Welcome {
            version: 1,
            refusal: Some(Code::NO_DEVICE),
            memory_at: 1 << 40,
            memory_bytes: 1 << 30,
            facts_bytes: 17,
            offer_bytes: 19,
        };
        assert_eq!(Welcome::read(&welcome.write().try_into().expect("its size")), Ok(welcome));
        let frame = Frame { kind: Kind::Call, sequence: 9, bytes: 80 };
        assert_eq!(Frame::read(&frame.write()), Ok(frame));
        let answer = Answer {
            sequence: 9,
            earlier: Some(Code::ILLEGAL_ADDRESS),
            earlier_record: 7,
            earlier_call: 1 << 33,
            error: None,
            bytes: 3,
        };
        assert_eq!(Answer::read(&answer.write().try_into().expect("its size")), Ok(answer));
    }

    #[test]
    fn wrong_frames_are_refused() {
        assert!(Entry::read(&[0; ENTRY_BYTES]).is_err());
        let entry = |version| Entry { version, token_bytes: TOKEN_BYTES_MAX + 1 };
        let read = |entry: Entry| Entry::read(&entry.write().try_into().expect("its size"));
        assert!(matches!(read(entry(VERSION)), Err(WireError::Value { what: "the size of a token", .. })));
        assert_eq!(read(entry(VERSION + 1)), Ok(entry(VERSION + 1)), "the server answers with its version");
        let refusal = Welcome::refusal(Code::NOT_PERMITTED, &"x".repeat(FACTS_BYTES_MAX as usize + 1));
        let (head, why) = refusal.split_at(WELCOME_BYTES);
        let welcome = Welcome::read(head.try_into().expect("its size")).expect("a welcome");
        assert_eq!(welcome.refusal, Some(Code::NOT_PERMITTED));
        assert_eq!((why.len(), welcome.facts_bytes), (FACTS_BYTES_MAX as usize, FACTS_BYTES_MAX));
        assert!(Hello::read(&[0; HELLO_BYTES]).is_err());
        let hello = Hello { version: 3, memory_bytes: 5, terms_bytes: TERMS_BYTES_MAX + 1 };
        assert!(Hello::read(&hello.write().try_into().expect("its size")).is_err());
        assert!(Welcome::read(&[0; WELCOME_BYTES]).is_err());
        assert!(Answer::read(&[0; ANSWER_BYTES]).is_err());
        let mut bytes = Frame { kind: Kind::Post, sequence: 0, bytes: MESSAGE_BYTES_MAX + 1 }.write();
        assert!(matches!(Frame::read(&bytes), Err(WireError::Value { what: "the size of a message", .. })));
        bytes[0] = 2;
        assert!(matches!(Frame::read(&bytes), Err(WireError::Value { what: "the kind of a message", .. })));
    }
}
