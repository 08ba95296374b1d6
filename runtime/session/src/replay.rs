//! The server's side: checks records against the state of their session and carries them out.

mod module;

use crate::backend::{Backend, Launch};
use crate::code::Code;
use crate::field::Reader;
use crate::frame::{Answer, Frame, Kind};
use crate::limits::{
    ALLOCATIONS_MAX, ANSWER_BYTES_MAX, EVENTS_MAX, OUTPUT_BYTES, PARAMS_BYTES_MAX, ROWS_MAX, STREAMS_MAX,
};
use crate::ranges::{Ranges, Span};
use crate::record::{OF_STORED, Record, records};
use crate::refused::{Output, Refused};
use crate::report::Report;
use crate::stored::Shelf;
use crate::transport::Lost;
use atoll_cuda_api::constants::CU_STREAM_NON_BLOCKING;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// The owner of a range of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Allocation,
    /// A variable of a module.
    Module(u32),
}

#[derive(Debug)]
struct Kernel<K> {
    kernel: K,
    module: u32,
    params_bytes: usize,
}

/// The first error of a recorded call since the last answer.
#[derive(Clone, Copy, Debug)]
struct Earlier {
    code: Code,
    record: u16,
    call: u64,
}

/// The record that an error of collected work names. The failed call is not known; most often it is
/// a launch.
const FLUSH_RECORD: u16 = 7;

/// The state of a session.
#[derive(Debug)]
pub struct Replayer<B: Backend> {
    kernels: HashMap<u32, Kernel<B::Kernel>>,
    modules: HashMap<u32, B::Module>,
    events: HashMap<u32, B::Event>,
    streams: HashMap<u32, B::Stream>,
    /// Non-blocking streams, which do not wait for the default stream.
    unordered: HashSet<u32>,
    backend: B,
    memory: Span,
    ranges: Ranges<Owner>,
    images: HashMap<[u8; 32], Arc<[u8]>>,
    images_bytes: u64,
    /// Whether memory was freed since the session last waited for all work: work may still use it.
    has_freed: bool,
    /// Whether a copy to the device in the default stream may be incomplete.
    has_copied_in: bool,
    earlier: Option<Earlier>,
    sequence: u32,
    shelf: Shelf,
    report: Report,
}

impl<B: Backend> Replayer<B> {
    /// A session whose allocations lie in `memory`.
    pub fn new(backend: B, memory: Span) -> Replayer<B> {
        Replayer {
            kernels: HashMap::new(),
            modules: HashMap::new(),
            events: HashMap::new(),
            streams: HashMap::new(),
            unordered: HashSet::new(),
            backend,
            memory,
            ranges: Ranges::default(),
            images: HashMap::new(),
            images_bytes: 0,
            has_freed: false,
            has_copied_in: false,
            earlier: None,
            sequence: 0,
            shelf: Shelf::default(),
            report: Report::default(),
        }
    }

    /// Allows stored functions. Returns the encoded offer for the client's greeting.
    pub fn offer(&mut self) -> Vec<u8> {
        let offer = self.backend.offer();
        self.shelf.allow(&offer);
        offer.write()
    }

    /// What the session has done so far.
    pub fn report(&self) -> Report {
        self.report
    }

    /// Carries out a message, and answers it if the client waits. The answer has the result of the
    /// last record. The first error of the other records is in this answer, or in the next one if
    /// this message gets none.
    pub fn run(&mut self, frame: Frame, body: &[u8], output: &mut dyn Output) -> Result<(), Refused> {
        if frame.sequence != self.sequence {
            return Err(Refused::Sequence { expected: self.sequence, found: frame.sequence });
        }
        self.sequence = self.sequence.wrapping_add(1);
        self.report.messages += 1;
        self.report.record_bytes += body.len() as u64;
        let before = self.report.stored;
        let ran = self.run_stored(frame, body, output);
        (self.report.stored.functions, self.report.stored.bytes) = self.shelf.size();
        if before != self.report.stored {
            self.backend.observe_stored(self.report.stored);
        }
        ran
    }

    /// Carries out a message that may begin with records of stored functions.
    fn run_stored(&mut self, frame: Frame, body: &[u8], output: &mut dyn Output) -> Result<(), Refused> {
        let mut rest = body;
        while let Some((record, behind)) = first_of_stored(rest)? {
            self.report.records += 1;
            rest = behind;
            match record {
                Record::Store { function, inputs } => {
                    let shape = self.shelf.store(function, inputs, rest)?;
                    self.report.stored.stores += 1;
                    self.backend.keep_shape(shape);
                    break;
                }
                Record::Call { function, inputs } => {
                    if !rest.is_empty() {
                        return Err(Refused::Stored { function, why: "is called in front of other records" });
                    }
                    if self.backend.is_client_gone() {
                        return Err(Lost("the client has left".to_owned()).into());
                    }
                    self.report.stored.calls += 1;
                    let records = self.shelf.take(function, inputs)?;
                    let ran = self.run_calls(frame, &records, output);
                    self.shelf.put_back(function, records);
                    return ran;
                }
                Record::Drop { function } => self.shelf.remove(function)?,
                _ => self.report.stored.differences += 1,
            }
        }
        let before = self.report.calls;
        self.run_calls(frame, rest, output)?;
        self.report.records += self.report.calls - before;
        Ok(())
    }

    /// Carries out the calls of a message.
    fn run_calls(&mut self, frame: Frame, body: &[u8], output: &mut dyn Output) -> Result<(), Refused> {
        let mut last = Ok(Vec::new());
        let mut records = records(body).peekable();
        while let Some(record) = records.next() {
            let record = record?;
            let is_asked = frame.kind == Kind::Call && records.peek().is_none();
            let ordered = self.order_behind_copies(record.stream());
            let result = match record {
                Record::CopyOut { .. } if frame.kind == Kind::Post => return Err(Refused::CopyWithoutAnswer),
                Record::Store { function, .. }
                | Record::Call { function, .. }
                | Record::Differ { function }
                | Record::Drop { function } => {
                    return Err(Refused::Stored { function, why: "is not at the beginning of a message" });
                }
                Record::CopyOut { stream, from, bytes } => {
                    self.copy_out(stream, Span { at: from, bytes }, output)?.map(|()| Vec::new())
                }
                other => self.perform(other),
            };
            let call = self.report.calls;
            self.report.calls += 1;
            let result = ordered.map_err(Failed::from).and(result);
            self.backend.observe(&record, result.as_ref().map(Vec::as_slice).map_err(|failed| failed.0));
            match result {
                result if is_asked && record.wait().is_some() => last = result,
                Ok(_) => {}
                Err(code) => {
                    self.report.failures += 1;
                    self.earlier.get_or_insert(Earlier { code: code.0, record: record.number(), call });
                }
            }
        }
        if let Err(code) = self.backend.flush() {
            self.report.failures += 1;
            let (record, call) = (FLUSH_RECORD, self.report.calls.saturating_sub(1));
            self.earlier.get_or_insert(Earlier { code, record, call });
        }
        if frame.kind == Kind::Call { self.answer(frame.sequence, last, output) } else { Ok(()) }
    }

    /// Orders work of a non-blocking stream after copies to the device. To the program, a
    /// synchronous copy is complete when the call returns, so work that it gives to any stream
    /// afterwards sees the data. Here the copy is recorded in the default stream, for which a
    /// non-blocking stream does not wait.
    fn order_behind_copies(&mut self, stream: Option<u32>) -> Result<(), Code> {
        if self.has_copied_in && stream.is_some_and(|stream| self.unordered.contains(&stream)) {
            self.has_copied_in = false;
            self.backend.synchronize_stream(None)?;
        }
        Ok(())
    }

    fn answer(&mut self, sequence: u32, last: Result<Vec<u8>, Failed>, output: &mut dyn Output) -> Result<(), Refused> {
        self.report.answers += 1;
        let earlier = self.earlier.take();
        let (error, mut bytes) = match last {
            Ok(bytes) => (None, bytes),
            Err(Failed(code, log)) => (Some(code), log.into_bytes()),
        };
        bytes.truncate(ANSWER_BYTES_MAX as usize);
        let answer = Answer {
            sequence,
            earlier: earlier.map(|earlier| earlier.code),
            earlier_record: earlier.map_or(0, |earlier| earlier.record),
            earlier_call: earlier.map_or(0, |earlier| earlier.call),
            error,
            bytes: bytes.len() as u32,
        };
        output.write(&answer.write())?;
        Ok(output.write(&bytes)?)
    }

    fn perform(&mut self, record: Record<'_>) -> Result<Vec<u8>, Failed> {
        let done = |result: Result<(), Code>| result.map(|()| Vec::new()).map_err(Failed::from);
        match record {
            Record::Allocate { at, bytes } => done(self.allocate(Span { at, bytes })),
            Record::Free { at } => done(self.free(at)),
            Record::CopyIn { stream, to, bytes } => done(self.copy_in(stream, to, bytes)),
            Record::CopyWithin { stream, to, from, bytes } => {
                self.ranges.check(Span { at: to, bytes })?;
                self.ranges.check(Span { at: from, bytes })?;
                let stream = stream_of(&self.streams, stream)?;
                done(if bytes == 0 { Ok(()) } else { self.backend.copy_within(stream, to, from, bytes) })
            }
            Record::Fill { stream, to, pitch, width, height, value, size } => {
                done(self.fill(stream, to, (pitch, width, height), (value, size)))
            }
            Record::Launch { stream, kernel, grid, block, shared_bytes, cooperative, params } => {
                let launch = Launch { grid, block, shared_bytes, is_cooperative: cooperative != 0, params };
                done(self.launch(stream, kernel, launch))
            }
            Record::LoadModule { module, digest, image } => self.load(module, digest, image),
            Record::UnloadModule { module } => done(self.unload(module)),
            Record::GetKernel { kernel, module, name } => self.kernel(kernel, module, name),
            Record::GetVariable { module, name } => self.variable(module, name),
            Record::SetAttribute { kernel, attribute, value } => {
                let kernel = self.kernels.get(&kernel).ok_or(Code::INVALID_HANDLE)?;
                done(self.backend.set_attribute(&kernel.kernel, attribute, value))
            }
            Record::Elapsed { start, end } => {
                let (start, end) = (event_of(&self.events, start)?, event_of(&self.events, end)?);
                Ok(self.backend.elapsed(start, end)?.to_le_bytes().to_vec())
            }
            // The caller handles copies to the host, since it has the output.
            Record::CopyOut { .. } => Err(Code::UNKNOWN.into()),
            other => done(self.order(other)),
        }
    }

    /// Carries out records of streams, events and waits.
    fn order(&mut self, record: Record<'_>) -> Result<(), Code> {
        let backend = &mut self.backend;
        match record {
            Record::CreateStream { stream, flags, priority } => {
                admit(&self.streams, stream, STREAMS_MAX)?;
                self.streams.insert(stream, backend.stream(flags, priority)?);
                if flags & CU_STREAM_NON_BLOCKING != 0 {
                    self.unordered.insert(stream);
                }
            }
            Record::DestroyStream { stream } => {
                // The driver finishes the stream's work before it destroys the stream.
                self.streams.remove(&stream).ok_or(Code::INVALID_HANDLE)?;
                self.unordered.remove(&stream);
            }
            Record::CreateEvent { event, flags } => {
                admit(&self.events, event, EVENTS_MAX)?;
                self.events.insert(event, backend.event(flags)?);
            }
            Record::DestroyEvent { event } => {
                self.events.remove(&event).ok_or(Code::INVALID_HANDLE)?;
            }
            Record::RecordEvent { event, stream } => {
                backend.record(event_of(&self.events, event)?, stream_of(&self.streams, stream)?)?;
            }
            Record::WaitEvent { stream, event } => {
                backend.wait(stream_of(&self.streams, stream)?, event_of(&self.events, event)?)?;
            }
            Record::Synchronize {} => self.settle()?,
            Record::SynchronizeStream { stream } => {
                backend.synchronize_stream(stream_of(&self.streams, stream)?)?;
            }
            Record::SynchronizeEvent { event } => backend.synchronize_event(event_of(&self.events, event)?)?,
            Record::QueryStream { stream } => backend.query_stream(stream_of(&self.streams, stream)?)?,
            Record::QueryEvent { event } => backend.query_event(event_of(&self.events, event)?)?,
            _ => return Err(Code::UNKNOWN),
        }
        Ok(())
    }

    /// Waits for all work of the session.
    fn settle(&mut self) -> Result<(), Code> {
        self.backend.synchronize()?;
        (self.has_freed, self.has_copied_in) = (false, false);
        Ok(())
    }

    fn allocate(&mut self, span: Span) -> Result<(), Code> {
        if !self.memory.contains(span) {
            return Err(Code::INVALID_VALUE);
        }
        if self.ranges.len() >= ALLOCATIONS_MAX {
            return Err(Code::OUT_OF_MEMORY);
        }
        self.ranges.insert(span, Owner::Allocation)?;
        self.report.allocations += 1;
        // The memory may have been freed while work still used it. `cuMemFree` waits for that work;
        // here the wait is deferred until memory is allocated again.
        if self.has_freed { self.settle() } else { Ok(()) }
    }

    fn free(&mut self, at: u64) -> Result<(), Code> {
        match self.ranges.find(at) {
            Some((span, Owner::Allocation)) if span.at == at => {
                self.ranges.remove(at);
                self.has_freed = true;
                Ok(())
            }
            _ => Err(Code::INVALID_VALUE),
        }
    }

    fn copy_in(&mut self, stream: u32, to: u64, bytes: &[u8]) -> Result<(), Code> {
        self.ranges.check(Span { at: to, bytes: bytes.len() as u64 })?;
        self.has_copied_in |= stream == 0;
        let stream = stream_of(&self.streams, stream)?;
        self.report.copies_in += 1;
        self.report.bytes_in += bytes.len() as u64;
        if bytes.is_empty() { Ok(()) } else { self.backend.copy_in(stream, to, bytes) }
    }

    /// Sends the size of a copy to the host and its contents. The size is 0 if the copy fails at
    /// the beginning. If a later part fails, the rest is zeros.
    fn copy_out(&mut self, stream: u32, span: Span, output: &mut dyn Output) -> Result<Result<(), Failed>, Refused> {
        let streams = &self.streams;
        let stream = match self.ranges.check(span).and_then(|()| stream_of(streams, stream)) {
            Ok(stream) => stream,
            Err(code) => {
                output.write(&0u64.to_le_bytes())?;
                return Ok(Err(code.into()));
            }
        };
        self.report.copies_out += 1;
        self.report.bytes_out += span.bytes;
        let mut part = vec![0; OUTPUT_BYTES.min(span.bytes as usize)];
        let (mut at, mut result) = (0, Ok(()));
        while at < span.bytes {
            let part = &mut part[..OUTPUT_BYTES.min((span.bytes - at) as usize)];
            if result.is_ok() {
                result = self.backend.copy_out(stream, span.at + at, part);
            }
            match (&result, at) {
                (Err(_), 0) => break,
                (Err(_), _) => part.fill(0),
                (Ok(()), 0) => output.write(&span.bytes.to_le_bytes())?,
                (Ok(()), _) => {}
            }
            output.write(part)?;
            self.backend.observe_part(part);
            at += part.len() as u64;
        }
        if at == 0 {
            output.write(&0u64.to_le_bytes())?;
        }
        Ok(result.map_err(Failed::from))
    }

    fn fill(
        &mut self,
        stream: u32,
        to: u64,
        (pitch, width, height): (u64, u64, u64),
        (value, size): (u32, u32),
    ) -> Result<(), Code> {
        let stream = stream_of(&self.streams, stream)?;
        if ![1, 2, 4].contains(&size) || !to.is_multiple_of(size.into()) {
            return Err(Code::INVALID_VALUE);
        }
        if width == 0 || height == 0 {
            return Ok(());
        }
        let row = width.checked_mul(size.into()).ok_or(Code::INVALID_VALUE)?;
        let is_one = height == 1 || pitch == row;
        if !is_one && (pitch < row || !pitch.is_multiple_of(size.into())) {
            return Err(Code::INVALID_VALUE);
        }
        let before = if height == 1 { Some(0) } else { pitch.checked_mul(height - 1) };
        let bytes = before.and_then(|before| before.checked_add(row)).ok_or(Code::INVALID_VALUE)?;
        self.ranges.check(Span { at: to, bytes })?;
        if is_one {
            return self.backend.fill(stream, to, value, size, width * height);
        }
        if height > ROWS_MAX {
            return Err(Code::NOT_SUPPORTED);
        }
        (0..height).try_for_each(|index| self.backend.fill(stream, to + index * pitch, value, size, width))
    }

    fn launch(&mut self, stream: u32, kernel: u32, launch: Launch<'_>) -> Result<(), Code> {
        let kernel = self.kernels.get(&kernel).ok_or(Code::INVALID_HANDLE)?;
        let stream = stream_of(&self.streams, stream)?;
        let is_empty = launch.grid.iter().chain(&launch.block).any(|size| *size == 0);
        let params = launch.params.get(..kernel.params_bytes);
        let params = params.filter(|_| !is_empty && launch.params.len() <= PARAMS_BYTES_MAX);
        let launch = Launch { params: params.ok_or(Code::INVALID_VALUE)?, ..launch };
        self.report.launches += 1;
        self.backend.launch(stream, &kernel.kernel, launch)
    }
}

/// The error of a record, and a log.
struct Failed(Code, String);

impl From<Code> for Failed {
    fn from(code: Code) -> Failed {
        Failed(code, String::new())
    }
}

/// The first record of a message and the bytes behind it, if it is one of stored functions.
fn first_of_stored(body: &[u8]) -> Result<Option<(Record<'_>, &[u8])>, Refused> {
    let number = body.first_chunk().map(|number| u16::from_le_bytes(*number));
    if number.is_none_or(|number| !OF_STORED.contains(&number)) {
        return Ok(None);
    }
    let mut reader = Reader::new(body);
    let record = Record::read(&mut reader)?;
    Ok(Some((record, reader.rest())))
}

/// The stream with this number; `None` is the default stream.
fn stream_of<S>(streams: &HashMap<u32, S>, stream: u32) -> Result<Option<&S>, Code> {
    if stream == 0 { Ok(None) } else { streams.get(&stream).map(Some).ok_or(Code::INVALID_HANDLE) }
}

fn event_of<E>(events: &HashMap<u32, E>, event: u32) -> Result<&E, Code> {
    events.get(&event).ok_or(Code::INVALID_HANDLE)
}

/// Returns an error if the number is taken or 0, or if there are too many objects of this kind.
fn admit<T>(objects: &HashMap<u32, T>, number: u32, most: usize) -> Result<(), Code> {
    if number == 0 || objects.contains_key(&number) {
        return Err(Code::INVALID_HANDLE);
    }
    if objects.len() >= most { Err(Code::OUT_OF_MEMORY) } else { Ok(()) }
}
