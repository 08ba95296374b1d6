//! The client's side: carries out the calls of a program, and decides which have to wait for the
//! server.

mod memory;
mod module;
mod stream;

use crate::arena::Arena;
use crate::code::Code;
use crate::facts::DeviceFacts;
use crate::field::WireError;
use crate::frame::{ANSWER_BYTES, Answer, Hello, Kind, WELCOME_BYTES, Welcome};
use crate::limits::{TERMS_BYTES_MAX, VERSION};
use crate::ranges::{Ranges, Span};
use crate::record::Record;
use crate::recorder::Recorder;
use crate::stored::{Offer, Repeats};
use crate::terms::Terms;
use crate::transport::{Lost, Transport};
use std::collections::{BTreeMap, HashMap, HashSet};

pub use memory::{HostCopy, MemoryKind};
pub use module::LoadError;

/// A recorded call that failed; for the log in the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cause {
    /// The entry point of the driver.
    pub call: &'static str,
    /// The number of the recorded call in the session, from 0.
    pub number: u64,
    /// Its error.
    pub code: Code,
}

/// The last work that a stream got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Busy {
    Work,
    /// A copy to the host. Once it is complete, so is all work that the stream got earlier.
    CopyBack,
}

/// The program's side of a session. Contexts are numbers of the caller; they all share the
/// session's one context on the server.
#[derive(Debug)]
pub struct Client<T> {
    transport: T,
    facts: DeviceFacts,
    memory: Span,
    recorder: Recorder,
    /// The runs of the program, if it has stored functions.
    repeats: Option<Repeats>,
    arena: Arena,
    ranges: Ranges<memory::Owner>,
    /// Copies to the host whose records are in the buffer, in the order of the records.
    copies: Vec<HostCopy>,
    copies_bytes: u64,
    streams: BTreeMap<u32, stream::Stream>,
    events: BTreeMap<u32, stream::Event>,
    modules: BTreeMap<u32, module::Module>,
    kernels: BTreeMap<u32, module::Kernel>,
    /// The server's answers about kernels, by image and name.
    known_kernels: HashMap<([u8; 32], String), module::KnownKernel>,
    /// Images that the server has accepted and keeps.
    images: HashSet<[u8; 32]>,
    /// The last number that an object got.
    last_number: u32,
    /// Streams with work that the client has not waited for.
    busy: BTreeMap<u32, Busy>,
    /// An error of the session as a whole: every call returns it.
    broken: Option<Code>,
    cause: Option<Cause>,
    lost: Option<Lost>,
}

impl<T: Transport> Client<T> {
    /// Begins a session. The error has a text for the log in the program.
    pub fn open(transport: T, memory_bytes: u64) -> Result<Client<T>, (Code, String)> {
        Client::open_with(transport, memory_bytes, "")
    }

    /// Begins a session with terms ([`crate::Terms`]). Of these, the client interprets only
    /// `stored_functions`.
    pub fn open_with(mut transport: T, memory_bytes: u64, terms: &str) -> Result<Client<T>, (Code, String)> {
        let lost = |lost: Lost| (Code::DEVICE_UNAVAILABLE, lost.to_string());
        let wire = |error: WireError| (Code::DEVICE_UNAVAILABLE, format!("not a session server: {error}"));
        let terms_bytes = u32::try_from(terms.len()).unwrap_or(u32::MAX);
        if terms_bytes > TERMS_BYTES_MAX {
            return Err((Code::INVALID_VALUE, format!("the terms have more than {TERMS_BYTES_MAX} bytes")));
        }
        let mut hello = Hello { version: VERSION, memory_bytes, terms_bytes }.write();
        hello.extend_from_slice(terms.as_bytes());
        transport.send(&hello).map_err(lost)?;
        let mut bytes = [0; WELCOME_BYTES];
        transport.receive(&mut bytes).map_err(lost)?;
        let welcome = Welcome::read(&bytes).map_err(wire)?;
        let mut facts = vec![0; welcome.facts_bytes as usize];
        transport.receive(&mut facts).map_err(lost)?;
        let mut offer = vec![0; welcome.offer_bytes as usize];
        transport.receive(&mut offer).map_err(lost)?;
        if welcome.version != VERSION {
            let text = format!("the server speaks version {} of the session protocol, not {VERSION}", welcome.version);
            return Err((Code::SYSTEM_DRIVER_MISMATCH, text));
        }
        if let Some(code) = welcome.refusal {
            return Err((code, format!("the server refuses the session: {}", String::from_utf8_lossy(&facts))));
        }
        let facts = DeviceFacts::read(&facts).map_err(wire)?;
        let memory = Span { at: welcome.memory_at, bytes: welcome.memory_bytes };
        // The server has refused terms that are not valid.
        let after = Terms::read(terms).ok().and_then(|terms| terms.stored_functions).filter(|_| !offer.is_empty());
        let repeats = match after {
            Some(after) => Repeats::new(after, &Offer::read(&offer).map_err(wire)?),
            None => None,
        };
        if after.is_some() && repeats.is_none() {
            transport.note(
                "no work is stored: the tenant's functions and its other sessions have all of its quota `functions`, \
                 or all memory for stored functions; end some of them, or raise the quota",
            );
        }
        Ok(Client {
            transport,
            facts,
            memory,
            recorder: Recorder::default(),
            repeats,
            arena: Arena::new(memory),
            ranges: Ranges::default(),
            copies: Vec::new(),
            copies_bytes: 0,
            streams: BTreeMap::new(),
            events: BTreeMap::new(),
            modules: BTreeMap::new(),
            kernels: BTreeMap::new(),
            known_kernels: HashMap::new(),
            images: HashSet::new(),
            last_number: 0,
            busy: BTreeMap::new(),
            broken: None,
            cause: None,
            lost: None,
        })
    }

    /// The session's memory on the device.
    pub fn memory(&self) -> Span {
        self.memory
    }

    /// Facts about the device.
    pub fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    /// Takes the recorded call that caused the error of the last call; for the log.
    pub fn take_cause(&mut self) -> Option<Cause> {
        self.cause.take()
    }

    /// Takes the reason why the connection ended; for the log.
    pub fn take_lost(&mut self) -> Option<Lost> {
        self.lost.take()
    }

    /// Returns the error that every call returns, if the session is broken.
    pub fn check(&self) -> Result<(), Code> {
        self.broken.map_or(Ok(()), Err)
    }

    /// Waits for all work.
    pub fn synchronize(&mut self) -> Result<(), Code> {
        self.check()?;
        if self.busy.is_empty() && self.recorder.is_empty() {
            return Ok(());
        }
        self.ask(&Record::Synchronize {})?;
        self.busy.clear();
        Ok(())
    }

    /// Destroys everything that belongs to a context once its work is done. It waits because the
    /// program may free memory that copies to the host still write into.
    pub fn destroy_context(&mut self, context: u32) -> Result<(), Code> {
        let worked = self.synchronize();
        let kernels = self.modules.iter().filter(|(_, module)| module.context == context);
        for module in kernels.map(|(number, _)| *number).collect::<Vec<u32>>() {
            self.unload(module)?;
        }
        let events = self.events.iter().filter(|(_, event)| event.context == context);
        for event in events.map(|(number, _)| *number).collect::<Vec<u32>>() {
            self.destroy_event(event)?;
        }
        let streams = self.streams.iter().filter(|(_, stream)| stream.context == context);
        for stream in streams.map(|(number, _)| *number).collect::<Vec<u32>>() {
            self.destroy_stream(stream)?;
        }
        self.ranges
            .starts(|owner| *owner == memory::Owner::Allocation { context })
            .into_iter()
            .try_for_each(|at| self.free(at))?;
        worked
    }

    /// A number for a new object.
    fn number(&mut self) -> Result<u32, Code> {
        self.last_number = self.last_number.checked_add(1).ok_or(Code::OUT_OF_MEMORY)?;
        Ok(self.last_number)
    }

    /// Records a call.
    fn push(&mut self, record: &Record<'_>) -> Result<(), Code> {
        self.check()?;
        self.recorder.push(record);
        if let Some(stream) = record.stream() {
            self.busy.insert(stream, Busy::Work);
        }
        if self.recorder.is_full() && !self.copies.is_empty() {
            // The server must answer a message that has copies to the host.
            self.complete_copies()?;
        } else if self.recorder.is_full() {
            self.shorten();
            let sent = self.transport.send(self.recorder.message(Kind::Post));
            self.recorder.sent();
            sent.map_err(|lost| self.lose(lost))?;
        }
        Ok(())
    }

    /// Records a call and waits for its answer.
    fn ask(&mut self, record: &Record<'_>) -> Result<Vec<u8>, Code> {
        self.ask_with_log(record).map_err(|(code, _)| code)
    }

    /// Like `ask`; the error comes with the server's log.
    fn ask_with_log(&mut self, record: &Record<'_>) -> Result<Vec<u8>, (Code, Vec<u8>)> {
        self.check().map_err(|code| (code, Vec::new()))?;
        self.recorder.push(record);
        self.exchange_checked()
    }

    fn exchange_checked(&mut self) -> Result<Vec<u8>, (Code, Vec<u8>)> {
        let (answer, bytes) = self.exchange().map_err(|lost| (self.lose(lost), Vec::new()))?;
        if let Some(code) = answer.earlier {
            let call = Record::call_of(answer.earlier_record);
            self.cause = Some(Cause { call, number: answer.earlier_call, code });
        }
        let first = answer.earlier.or(answer.error);
        self.broken = [answer.earlier, answer.error].into_iter().flatten().find(|code| code.is_sticky());
        match (self.broken.or(first), answer.earlier) {
            (None, _) => Ok(bytes),
            (Some(code), None) => Err((code, bytes)),
            // The log belongs to this message's last call, whose error is not the one returned.
            (Some(code), Some(_)) => Err((code, Vec::new())),
        }
    }

    /// Turns the buffer into a call of a stored function, if it has the same calls.
    fn shorten(&mut self) {
        let Some(repeats) = &mut self.repeats else { return };
        self.recorder.reform(repeats.form_of(self.recorder.records()));
        repeats.take_notes().iter().for_each(|note| self.transport.note(note));
    }

    /// Sends the buffer and receives the answer.
    fn exchange(&mut self) -> Result<(Answer, Vec<u8>), Lost> {
        self.shorten();
        let sent = self.transport.send(self.recorder.message(Kind::Call));
        let sequence = self.recorder.sent();
        self.copies_bytes = 0;
        let copies = std::mem::take(&mut self.copies);
        sent?;
        for copy in copies {
            let mut size = [0; 8];
            self.transport.receive(&mut size)?;
            match u64::from_le_bytes(size) {
                0 => {}
                bytes if bytes == copy.bytes => self.transport.receive_to(copy.to, bytes)?,
                bytes => return Err(Lost(format!("the server sends {bytes} bytes for a copy of {}", copy.bytes))),
            }
        }
        let mut bytes = [0; ANSWER_BYTES];
        self.transport.receive(&mut bytes)?;
        let answer = Answer::read(&bytes).map_err(|error| Lost(error.to_string()))?;
        if answer.sequence != sequence {
            return Err(Lost(format!("the server answers message {} instead of {sequence}", answer.sequence)));
        }
        let mut bytes = vec![0; answer.bytes as usize];
        self.transport.receive(&mut bytes)?;
        self.busy.retain(|_, last| *last != Busy::CopyBack);
        Ok((answer, bytes))
    }

    fn lose(&mut self, lost: Lost) -> Code {
        self.lost = Some(lost);
        self.broken = Some(Code::DEVICE_UNAVAILABLE);
        Code::DEVICE_UNAVAILABLE
    }
}
