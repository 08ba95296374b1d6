//! The work of a recording. Addresses are replaced by buffers and offsets, handles by what they
//! name. Streams and events are left out: the order of the calls is a valid order of the work.

use crate::code::Code;
use crate::facts::KernelFacts;
use crate::field::Reader;
use crate::limits::COPY_BYTES_MAX;
use crate::ranges::{Ranges, Span};
use crate::record::Record;
use crate::recording::format::{Call, Recording};
use crate::recording::unstorable::Unstorable;
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Size of an address in bytes.
const ADDRESS_BYTES: usize = 8;

/// A position in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// Index of the buffer.
    pub buffer: usize,
    /// Offset in the buffer in bytes; its size for an address just behind it.
    pub offset: u64,
}

/// A kernel of a module.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Kernel {
    /// SHA-256 of the module's image.
    pub image: [u8; 32],
    /// Its name.
    pub name: String,
    /// Offset and size in bytes of each parameter in the parameter block.
    pub params: Vec<(u32, u32)>,
}

/// The value of a kernel's parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Param {
    /// Its bytes, with zeros in place of addresses.
    pub bytes: Vec<u8>,
    /// Addresses of device memory: offset in the parameter in bytes, and the place.
    pub addresses: Vec<(usize, Place)>,
}

/// Work on the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action<'a> {
    /// A copy to the device.
    Upload {
        /// Where to.
        to: Place,
        /// The data.
        bytes: Cow<'a, [u8]>,
    },
    /// A copy to the host.
    Download {
        /// Where from.
        from: Place,
        /// The data that came back.
        bytes: Cow<'a, [u8]>,
    },
    /// A copy on the device.
    Copy {
        /// Where to.
        to: Place,
        /// Where from.
        from: Place,
        /// Number of bytes.
        bytes: u64,
    },
    /// A fill of rows with one element.
    Fill {
        /// The first row.
        to: Place,
        /// Bytes from one row to the next, elements of a row, and number of rows.
        rows: (u64, u64, u64),
        /// The bytes of the element: 1, 2 or 4.
        element: Vec<u8>,
    },
    /// A launch.
    Launch {
        /// The kernel.
        kernel: Arc<Kernel>,
        /// Blocks.
        grid: [u32; 3],
        /// Threads of a block.
        block: [u32; 3],
        /// Dynamic shared memory of a block in bytes.
        shared_bytes: u32,
        /// The parameters.
        params: Vec<Param>,
    },
}

impl Action<'_> {
    /// The kernel of a launch.
    pub fn kernel(&self) -> Option<&Arc<Kernel>> {
        match self {
            Action::Launch { kernel, .. } => Some(kernel),
            _ => None,
        }
    }
}

/// One piece of work, and the call that asked for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step<'a> {
    /// The number of the call in the session, from 0.
    pub call: u64,
    /// The work.
    pub action: Action<'a>,
}

/// The work of a session.
#[derive(Clone, Debug, Default)]
pub struct Steps<'a> {
    /// In the order of the calls.
    pub steps: Vec<Step<'a>>,
    /// The size in bytes of each allocation.
    pub buffers: Vec<u64>,
    /// Images of modules by their SHA-256.
    pub images: BTreeMap<[u8; 32], &'a [u8]>,
}

impl<'a> Steps<'a> {
    /// The work of a recording.
    ///
    /// # Errors
    /// A call failed, or is one that a function cannot have.
    pub fn of(recording: Recording<'a>) -> Result<Steps<'a>, Unstorable> {
        let mut replay = Replay::new(recording.memory);
        for call in recording.calls {
            let (number, name) = (call.number, Record::call_of(call.record.number()));
            replay.call(call).map_err(|why| Unstorable::Call { number, call: name, why })?;
        }
        Ok(replay.out)
    }
}

/// The state of a session at a call.
struct Replay<'a> {
    memory: Span,
    /// Allocations, with the index of their buffer.
    live: Ranges<usize>,
    /// Variables of modules, with the module and their names.
    variables: Ranges<(u32, String)>,
    modules: HashMap<u32, [u8; 32]>,
    kernels: HashMap<u32, Arc<Kernel>>,
    /// The stream and the end of a copy of which the next record may be another part.
    open_copy: Option<(u32, u64)>,
    out: Steps<'a>,
}

impl<'a> Replay<'a> {
    fn new(memory: Span) -> Replay<'a> {
        Replay {
            memory,
            live: Ranges::default(),
            variables: Ranges::default(),
            modules: HashMap::new(),
            kernels: HashMap::new(),
            open_copy: None,
            out: Steps::default(),
        }
    }

    fn call(&mut self, call: Call<'a>) -> Result<(), String> {
        let open_copy = self.open_copy.take();
        let answer = match call.result {
            Ok(answer) => answer,
            Err(_) if is_question(&call.record) => return Ok(()),
            Err(code) => return Err(format!("failed: {code}")),
        };
        let action = match call.record {
            Record::Allocate { at, bytes } => {
                self.live.insert(Span { at, bytes }, self.out.buffers.len()).map_err(damaged)?;
                self.out.buffers.push(bytes);
                return Ok(());
            }
            Record::Free { at } => {
                self.live.remove(at);
                return Ok(());
            }
            Record::LoadModule { module, digest, image } => {
                self.modules.insert(module, digest);
                if !image.is_empty() {
                    self.out.images.insert(digest, image);
                }
                return Ok(());
            }
            Record::UnloadModule { module } => {
                for at in self.variables.starts(|(of, _)| *of == module) {
                    self.variables.remove(at);
                }
                return Ok(());
            }
            Record::GetKernel { kernel, module, name } => return self.kernel(kernel, module, name, answer),
            Record::GetVariable { module, name } => return self.variable(module, name, answer),
            Record::CopyIn { stream, to, bytes } => return self.upload(call.number, (stream, to, bytes), open_copy),
            Record::CopyOut { bytes: 0, .. } | Record::CopyWithin { bytes: 0, .. } => return Ok(()),
            Record::CopyOut { from, bytes, .. } if bytes == call.data.len() as u64 => {
                Action::Download { from: self.place(from, bytes)?, bytes: Cow::Owned(call.data) }
            }
            Record::CopyOut { bytes, .. } => {
                return Err(format!("copies {bytes} bytes; the recording has {}", call.data.len()));
            }
            Record::CopyWithin { to, from, bytes, .. } => {
                Action::Copy { to: self.place(to, bytes)?, from: self.place(from, bytes)?, bytes }
            }
            Record::Fill { width: 0, .. } | Record::Fill { height: 0, .. } => return Ok(()),
            Record::Fill { to, pitch, width, height, value, size, .. } => {
                let element = value.to_le_bytes().get(..size as usize).unwrap_or_default().to_vec();
                let apart = if height == 1 { Some(0) } else { pitch.checked_mul(height - 1) };
                let row = width.checked_mul(size.into());
                let bytes = apart.zip(row).and_then(|(apart, row)| apart.checked_add(row));
                let bytes = bytes.filter(|_| !element.is_empty()).ok_or("has sizes that do not fit")?;
                Action::Fill { to: self.place(to, bytes)?, rows: (pitch, width, height), element }
            }
            Record::Launch { cooperative: 1.., .. } => return Err("is a cooperative launch".to_owned()),
            Record::Launch { kernel, grid, block, shared_bytes, params, .. } => {
                let kernel = self.kernels.get(&kernel).ok_or("launches a kernel that was not looked up")?.clone();
                let params = self.params(&kernel, params)?;
                Action::Launch { kernel, grid, block, shared_bytes, params }
            }
            _ => return Ok(()),
        };
        self.out.steps.push(Step { call: call.number, action });
        Ok(())
    }

    fn kernel(&mut self, number: u32, module: u32, name: &str, answer: &[u8]) -> Result<(), String> {
        let facts = KernelFacts::read(answer).map_err(|error| format!("has a damaged answer: {error}"))?;
        let image = *self.modules.get(&module).ok_or("names a module that was not loaded")?;
        self.kernels.insert(number, Arc::new(Kernel { image, name: name.to_owned(), params: facts.params }));
        Ok(())
    }

    fn variable(&mut self, module: u32, name: &str, answer: &[u8]) -> Result<(), String> {
        let mut reader = Reader::new(answer);
        let wire = |error| format!("has a damaged answer: {error}");
        let span = Span { at: reader.get().map_err(wire)?, bytes: reader.get().map_err(wire)? };
        if self.variables.find(span.at).is_none() {
            self.variables.insert(span, (module, name.to_owned())).map_err(damaged)?;
        }
        Ok(())
    }

    fn upload(
        &mut self,
        call: u64,
        (stream, at, bytes): (u32, u64, &'a [u8]),
        open_copy: Option<(u32, u64)>,
    ) -> Result<(), String> {
        if bytes.is_empty() {
            return Ok(());
        }
        let to = self.place(at, bytes.len() as u64)?;
        self.check_data(at, bytes)?;
        self.open_copy = (bytes.len() == COPY_BYTES_MAX).then(|| (stream, at + bytes.len() as u64));
        if open_copy == Some((stream, at))
            && let Some(Step { action: Action::Upload { to: first, bytes: data }, .. }) = self.out.steps.last_mut()
            && first.buffer == to.buffer
        {
            data.to_mut().extend_from_slice(bytes);
            return Ok(());
        }
        self.out.steps.push(Step { call, action: Action::Upload { to, bytes: Cow::Borrowed(bytes) } });
        Ok(())
    }

    /// Refuses data with addresses: the function's memory is elsewhere, and the addresses in data
    /// are not known to be all.
    fn check_data(&self, at: u64, bytes: &[u8]) -> Result<(), String> {
        let skipped = at.next_multiple_of(ADDRESS_BYTES as u64) - at;
        let words = bytes.get(skipped as usize..).unwrap_or_default().as_chunks::<ADDRESS_BYTES>().0;
        let is_address =
            |word: u64| self.memory.contains(Span { at: word, bytes: 1 }) && self.live.find(word).is_some();
        match words.iter().map(|word| u64::from_le_bytes(*word)).position(is_address) {
            Some(index) => Err(format!(
                "copies an address of device memory to the device (byte {} of the data); pass addresses as parameters",
                skipped as usize + index * ADDRESS_BYTES
            )),
            None => Ok(()),
        }
    }

    /// The buffer and the offset of a range.
    fn place(&self, at: u64, bytes: u64) -> Result<Place, String> {
        match self.live.find(at) {
            Some((span, buffer)) if span.contains(Span { at, bytes }) => {
                Ok(Place { buffer: *buffer, offset: at - span.at })
            }
            _ => match self.variables.find(at) {
                Some((_, (_, name))) => {
                    Err(format!("uses `{name}`, a variable of a module, which outlives a function"))
                }
                None => Err(format!("uses {bytes} bytes at {at:#x}, which are not allocated")),
            },
        }
    }

    /// Cuts a parameter block into parameters, and finds the addresses in them: aligned words whose
    /// value is in the session's memory.
    fn params(&self, kernel: &Kernel, block: &[u8]) -> Result<Vec<Param>, String> {
        let cut = |(index, &(at, size)): (usize, &(u32, u32))| -> Result<Param, String> {
            let (at, size) = (at as usize, size as usize);
            let bytes = block.get(at..at + size).ok_or("has too short a parameter block")?;
            let mut param = Param { bytes: bytes.to_vec(), addresses: Vec::new() };
            let mut offset = at.next_multiple_of(ADDRESS_BYTES) - at;
            while let Some(word) = param.bytes.get_mut(offset..offset + ADDRESS_BYTES) {
                let value = word.iter().rev().fold(0, |value, byte| (value << 8) | u64::from(*byte));
                if let Some(place) = self.address(value).map_err(|why| format!("has a parameter ({index}) {why}"))? {
                    word.fill(0);
                    param.addresses.push((offset, place));
                }
                offset += ADDRESS_BYTES;
            }
            Ok(param)
        };
        kernel.params.iter().enumerate().map(cut).collect()
    }

    /// The place at an address; `None` if a value is not an address of the session.
    fn address(&self, value: u64) -> Result<Option<Place>, String> {
        if let Some((span, buffer)) = self.live.find(value) {
            return Ok(Some(Place { buffer: *buffer, offset: value - span.at }));
        }
        if let Some((_, (_, name))) = self.variables.find(value) {
            return Err(format!("with the address of `{name}`, a variable of a module"));
        }
        // An address just behind an allocation marks an end.
        if let Some((span, buffer)) = value.checked_sub(1).and_then(|last| self.live.find(last)) {
            return Ok(Some(Place { buffer: *buffer, offset: span.bytes }));
        }
        match self.memory.contains(Span { at: value, bytes: 1 }) {
            true => Err(format!("with the address {value:#x}, which is not allocated")),
            false => Ok(None),
        }
    }
}

/// Whether a program may go on as usual after the call has failed.
fn is_question(record: &Record<'_>) -> bool {
    matches!(
        record,
        Record::LoadModule { .. }
            | Record::GetKernel { .. }
            | Record::GetVariable { .. }
            | Record::SetAttribute { .. }
            | Record::QueryStream { .. }
            | Record::QueryEvent { .. }
            | Record::Elapsed { .. }
    )
}

fn damaged(_: Code) -> String {
    "overlaps memory that exists: the recording is damaged".to_owned()
}
