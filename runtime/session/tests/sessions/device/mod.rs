//! The device of a session, in the memory of the test, and the connection of a client to it.

use atoll_session::{
    Answer, Backend, Client, Code, DeviceFacts, FRAME_BYTES, Frame, HELLO_BYTES, Item, KERNEL_ATTRIBUTES, KernelFacts,
    KnownShape, Launch, LoadFailure, Lost, Offer, Output, Record, Replayer, Report, Span, Transport, Welcome, limits,
    recording_head,
};
use sha2::Digest;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// The first address of the session's memory.
pub(crate) const BASE: u64 = 1 << 40;
/// The size of the session's memory in bytes.
pub(crate) const MEMORY: u64 = 32 << 20;

pub(crate) fn memory() -> Span {
    Span { at: BASE, bytes: MEMORY }
}

pub(crate) fn digest(image: &[u8]) -> [u8; 32] {
    sha2::Sha256::digest(image).into()
}

pub(crate) fn facts() -> DeviceFacts {
    let attributes = (1..=150).map(|number| (number == 1).then_some(1024)).collect();
    let name = "memory of the test".to_owned();
    DeviceFacts { name, uuid: [0; 16], pci_bus_id: String::new(), driver: 12040, priority: -1, attributes }
}

/// A device that carries out everything at once, except copies to the device in the default stream.
/// It delays those until that stream, or a stream that waits for it, gets other work or is waited
/// for. A launch of 999 blocks is refused. The kernel `fault` breaks the device.
#[derive(Debug)]
pub(crate) struct Device {
    /// Number of stored functions that the session may have.
    functions: u32,
    is_client_gone: bool,
    memory: Vec<u8>,
    is_broken: bool,
    /// Copies to the device that are delayed.
    copies: Vec<(u64, Vec<u8>)>,
}

impl Default for Device {
    fn default() -> Device {
        let functions = limits::STORED_FUNCTIONS_MAX;
        let (is_client_gone, is_broken) = (false, false);
        Device { functions, is_client_gone, memory: vec![0; MEMORY as usize], is_broken, copies: Vec::new() }
    }
}

impl Device {
    /// A device whose sessions may store nothing.
    pub(crate) fn without_functions() -> Device {
        Device { functions: 0, ..Device::default() }
    }

    /// The device of a session whose client has left.
    pub(crate) fn without_client() -> Device {
        Device { is_client_gone: true, ..Device::default() }
    }

    fn at(&mut self, at: u64, bytes: u64) -> &mut [u8] {
        let start = (at - BASE) as usize;
        &mut self.memory[start..start + bytes as usize]
    }

    /// Carries out delayed copies before the next work, unless the stream of that work does not
    /// wait for the default stream.
    fn order(&mut self, stream: Option<&u32>) {
        if stream.is_none_or(|flags| *flags == 0) {
            for (to, bytes) in std::mem::take(&mut self.copies) {
                self.at(to, bytes.len() as u64).copy_from_slice(&bytes);
            }
        }
    }

    fn check(&self) -> Result<(), Code> {
        if self.is_broken { Err(Code::ILLEGAL_ADDRESS) } else { Ok(()) }
    }
}

impl Backend for Device {
    /// The flags of the stream.
    type Stream = u32;
    type Event = ();
    type Module = ();
    type Kernel = String;

    fn stream(&mut self, flags: u32, _priority: i32) -> Result<u32, Code> {
        self.check().map(|()| flags)
    }

    fn event(&mut self, _flags: u32) -> Result<(), Code> {
        self.check()
    }

    fn load(&mut self, image: &[u8]) -> Result<(), LoadFailure> {
        let is_kept = || KEPT.with_borrow(|kept| kept.values().any(|one| **one == *image));
        let (code, log) = match image {
            _ if image.starts_with(b"image") => return Ok(()),
            // It loads once.
            _ if image.starts_with(b"once") && !is_kept() => return Ok(()),
            _ if image.starts_with(b"once") => (Code::OUT_OF_MEMORY, "no room"),
            _ => (Code::INVALID_IMAGE, "line 1: refused"),
        };
        Err(LoadFailure { code, log: log.to_owned() })
    }

    fn kept_image(&mut self, digest: &[u8; 32]) -> Option<Arc<[u8]>> {
        KEPT.with_borrow(|kept| kept.get(digest).cloned())
    }

    fn keep_image(&mut self, digest: [u8; 32], image: &Arc<[u8]>) {
        KEPT.with_borrow_mut(|kept| kept.insert(digest, image.clone()));
    }

    fn offer(&mut self) -> Offer {
        Offer { functions: self.functions, shapes: SHAPES.with_borrow(Clone::clone), ..Offer::default() }
    }

    fn is_client_gone(&mut self) -> bool {
        self.is_client_gone
    }

    fn keep_shape(&mut self, shape: KnownShape) {
        SHAPES.with_borrow_mut(|shapes| shapes.push(Arc::new(shape)));
    }

    fn observe(&mut self, record: &Record<'_>, result: Result<&[u8], Code>) {
        RECORDED.with_borrow_mut(|bytes| Item::Call(record, result).write(bytes));
    }

    fn observe_part(&mut self, part: &[u8]) {
        RECORDED.with_borrow_mut(|bytes| Item::Part(part).write(bytes));
    }

    fn unload(&mut self, _module: &()) {}

    fn kernel(&mut self, _module: &(), name: &str) -> Result<(String, KernelFacts), Code> {
        let params = match name {
            "add_one" => vec![(0, 8), (8, 4)],
            "fault" => Vec::new(),
            _ => return Err(Code::NOT_FOUND),
        };
        Ok((name.to_owned(), KernelFacts { params, attributes: [1024; KERNEL_ATTRIBUTES] }))
    }

    fn variable(&mut self, _module: &(), _name: &str) -> Result<Span, Code> {
        Err(Code::NOT_FOUND)
    }

    fn set_attribute(&mut self, _kernel: &String, _attribute: i32, _value: i32) -> Result<(), Code> {
        self.check()
    }

    fn copy_in(&mut self, stream: Option<&u32>, to: u64, bytes: &[u8]) -> Result<(), Code> {
        self.copies.push((to, bytes.to_vec()));
        if stream.is_some() {
            self.order(None);
        }
        self.check()
    }

    fn copy_out(&mut self, stream: Option<&u32>, from: u64, bytes: &mut [u8]) -> Result<(), Code> {
        self.order(stream);
        bytes.copy_from_slice(self.at(from, bytes.len() as u64));
        self.check()
    }

    fn copy_within(&mut self, stream: Option<&u32>, to: u64, from: u64, bytes: u64) -> Result<(), Code> {
        self.order(stream);
        let moved = self.at(from, bytes).to_vec();
        self.at(to, bytes).copy_from_slice(&moved);
        self.check()
    }

    fn fill(&mut self, stream: Option<&u32>, to: u64, value: u32, size: u32, count: u64) -> Result<(), Code> {
        self.order(stream);
        let element = &value.to_le_bytes()[..size as usize];
        self.at(to, count * u64::from(size)).chunks_mut(size as usize).for_each(|to| to.copy_from_slice(element));
        self.check()
    }

    fn launch(&mut self, stream: Option<&u32>, kernel: &String, launch: Launch<'_>) -> Result<(), Code> {
        self.order(stream);
        if launch.grid[0] == 999 {
            return Err(Code::LAUNCH_OUT_OF_RESOURCES);
        }
        if kernel == "fault" {
            self.is_broken = true;
            return Ok(());
        }
        let at = u64::from_le_bytes(launch.params[..8].try_into().expect("8 bytes"));
        let count = u32::from_le_bytes(launch.params[8..].try_into().expect("4 bytes"));
        if count > 0 {
            self.at(at, count.into()).iter_mut().for_each(|byte| *byte = byte.wrapping_add(1));
        }
        self.check()
    }

    fn record(&mut self, _event: &(), _stream: Option<&u32>) -> Result<(), Code> {
        self.check()
    }

    fn wait(&mut self, _stream: Option<&u32>, _event: &()) -> Result<(), Code> {
        self.check()
    }

    fn synchronize(&mut self) -> Result<(), Code> {
        self.order(None);
        self.check()
    }

    fn synchronize_stream(&mut self, stream: Option<&u32>) -> Result<(), Code> {
        self.order(stream);
        self.check()
    }

    fn synchronize_event(&mut self, _event: &()) -> Result<(), Code> {
        self.check()
    }

    fn query_stream(&mut self, _stream: Option<&u32>) -> Result<(), Code> {
        self.check()
    }

    fn query_event(&mut self, _event: &()) -> Result<(), Code> {
        self.check()
    }

    fn elapsed(&mut self, _start: &(), _end: &()) -> Result<f32, Code> {
        self.check().map(|()| 1.0)
    }
}

thread_local! {
    /// The session of the test's thread, and the memory of its program.
    static SESSION: RefCell<Option<Replayer<Device>>> = const { RefCell::new(None) };
    static HOST: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    /// The recording of the session.
    static RECORDED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    /// Shapes of functions that the sessions of the test's thread have stored.
    static SHAPES: RefCell<Vec<Arc<KnownShape>>> = const { RefCell::new(Vec::new()) };
    /// Lines for the user of the program.
    static NOTES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    /// Images that the sessions of the test's thread have loaded.
    static KEPT: RefCell<BTreeMap<[u8; 32], Arc<[u8]>>> = const { RefCell::new(BTreeMap::new()) };
}

/// A connection to the session of this thread.
#[derive(Debug, Default)]
pub(crate) struct Wire {
    answers: Answers,
    is_greeted: bool,
}

#[derive(Debug, Default)]
struct Answers(VecDeque<u8>);

impl Output for Answers {
    fn write(&mut self, bytes: &[u8]) -> Result<(), Lost> {
        self.0.extend(bytes);
        Ok(())
    }
}

impl Wire {
    /// What the session has done.
    pub(crate) fn report() -> Report {
        SESSION.with_borrow(|session| session.as_ref().expect("a session").report())
    }

    /// The recording of the session, which ends here.
    pub(crate) fn recording() -> Vec<u8> {
        let mut bytes = RECORDED.take();
        Item::End.write(&mut bytes);
        bytes
    }

    /// Takes the lines for the user of the program.
    pub(crate) fn notes() -> Vec<String> {
        NOTES.take()
    }

    /// Memory of the program.
    pub(crate) fn host(at: usize, bytes: usize) -> Vec<u8> {
        HOST.with_borrow(|host| host[at..at + bytes].to_vec())
    }
}

impl Transport for Wire {
    fn send(&mut self, bytes: &[u8]) -> Result<(), Lost> {
        if !std::mem::replace(&mut self.is_greeted, true) {
            let facts = facts().write();
            let facts_bytes = facts.len() as u32;
            let (memory_at, memory_bytes) = (BASE, MEMORY);
            // With terms, the client stores functions.
            let has_terms = bytes.len() > HELLO_BYTES;
            let offer = SESSION.with_borrow_mut(|session| {
                let session = session.as_mut().expect("a session");
                if has_terms { session.offer() } else { Vec::new() }
            });
            let offer_bytes = offer.len() as u32;
            let (version, refusal) = (limits::VERSION, None);
            let welcome = Welcome { version, refusal, memory_at, memory_bytes, facts_bytes, offer_bytes };
            self.answers.write(&[welcome.write(), facts, offer].concat())?;
            return Ok(());
        }
        let (head, body) = bytes.split_at(FRAME_BYTES);
        let frame = Frame::read(head.try_into().expect("its size")).expect("a frame");
        assert_eq!(frame.bytes, body.len() as u64);
        SESSION.with_borrow_mut(|session| {
            let session = session.as_mut().expect("a session");
            session.run(frame, body, &mut self.answers).map_err(|refused| Lost(refused.to_string()))
        })
    }

    fn receive(&mut self, bytes: &mut [u8]) -> Result<(), Lost> {
        if self.answers.0.len() < bytes.len() {
            return Err(Lost("there is no answer".to_owned()));
        }
        let count = bytes.len();
        bytes.iter_mut().zip(self.answers.0.drain(..count)).for_each(|(to, byte)| *to = byte);
        Ok(())
    }

    fn note(&mut self, line: &str) {
        NOTES.with_borrow_mut(|notes| notes.push(line.to_owned()));
    }

    fn receive_to(&mut self, address: u64, bytes: u64) -> Result<(), Lost> {
        let mut part = vec![0; bytes as usize];
        self.receive(&mut part)?;
        HOST.with_borrow_mut(|host| {
            host.resize(host.len().max((address + bytes) as usize), 0);
            host[address as usize..][..part.len()].copy_from_slice(&part);
        });
        Ok(())
    }
}

/// A client of a new session on this thread.
pub(crate) fn connect() -> Client<Wire> {
    connect_with("")
}

/// A client of a new session with these terms.
pub(crate) fn connect_with(terms: &str) -> Client<Wire> {
    connect_to(Device::default(), terms)
}

/// A client of a new session on a device with these terms.
pub(crate) fn connect_to(device: Device, terms: &str) -> Client<Wire> {
    SESSION.set(Some(Replayer::new(device, memory())));
    RECORDED.set(recording_head(memory()));
    Client::open_with(Wire::default(), 0, terms).expect("a session")
}

/// A server that refuses every session.
#[derive(Debug)]
pub(crate) struct Greeter(VecDeque<u8>);

impl Greeter {
    pub(crate) fn new(version: u32, code: Code) -> Greeter {
        let refusal = Some(code);
        let welcome = Welcome { version, refusal, memory_at: 0, memory_bytes: 0, facts_bytes: 3, offer_bytes: 0 };
        assert!(Answer::read(&[0; atoll_session::ANSWER_BYTES]).is_err());
        Greeter([welcome.write(), b"why".to_vec()].concat().into())
    }
}

impl Transport for Greeter {
    fn send(&mut self, _bytes: &[u8]) -> Result<(), Lost> {
        Ok(())
    }

    fn receive(&mut self, bytes: &mut [u8]) -> Result<(), Lost> {
        bytes.iter_mut().for_each(|byte| *byte = self.0.pop_front().expect("no more is asked for"));
        Ok(())
    }

    fn receive_to(&mut self, _address: u64, _bytes: u64) -> Result<(), Lost> {
        Err(Lost("nothing was copied".to_owned()))
    }
}
