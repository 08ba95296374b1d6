//! Captures: the work that a program gives to a stream becomes nodes of a graph.
//!
//! A capture begins in one stream. Another stream joins it by waiting for an event that was recorded
//! in a captured stream. For each stream the capture knows the nodes on which the stream's next work
//! depends. When the capture ends, the work of the streams that have joined must have come back to
//! the first one.

use super::{Graphs, Holder, Task};
use crate::code::Code;
use std::collections::{BTreeMap, BTreeSet};

/// Which calls a capture forbids, and in which threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureMode {
    /// Calls that cannot be captured, in all threads.
    Global,
    /// The same calls, only in the thread that began the capture.
    ThreadLocal,
    /// None.
    Relaxed,
}

/// Whether a stream is captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureStatus {
    /// It is not.
    None,
    /// It is, by the capture with this number.
    Active(u32),
    /// It is, but a call was forbidden: the capture can only end, with an error.
    Invalidated(u32),
}

#[derive(Clone, Debug)]
struct Capture {
    /// The stream in which it began.
    origin: u32,
    mode: CaptureMode,
    /// The thread that began it.
    thread: u64,
    graph: u32,
    is_valid: bool,
    /// The nodes on which the next work of each stream depends.
    tips: BTreeMap<u32, BTreeSet<u32>>,
}

/// The captures in progress.
#[derive(Clone, Debug, Default)]
pub(super) struct Captures {
    captures: BTreeMap<u32, Capture>,
    /// The captures of captured streams.
    streams: BTreeMap<u32, u32>,
    /// Events that were last recorded in a captured stream: the capture, and the nodes that they
    /// stand for.
    events: BTreeMap<u32, (u32, BTreeSet<u32>)>,
}

impl Captures {
    fn of_stream(&mut self, stream: u32) -> Option<(u32, &mut Capture)> {
        let number = *self.streams.get(&stream)?;
        Some((number, self.captures.get_mut(&number)?))
    }

    /// The capture of a stream that is valid.
    fn valid(&mut self, stream: u32) -> Result<Option<(u32, &mut Capture)>, Code> {
        match self.of_stream(stream) {
            Some((_, capture)) if !capture.is_valid => Err(Code::STREAM_CAPTURE_INVALIDATED),
            found => Ok(found),
        }
    }

    fn end(&mut self, number: u32) -> Option<Capture> {
        self.streams.retain(|_, capture| *capture != number);
        self.captures.remove(&number)
    }
}

impl<W: Clone> Graphs<W> {
    /// Whether any stream is captured. If not, no other question about captures needs to be asked.
    pub fn is_capturing(&self) -> bool {
        !self.captures.captures.is_empty()
    }

    /// Whether a stream is captured.
    pub fn capture_status(&self, stream: u32) -> CaptureStatus {
        let captures = &self.captures;
        let Some(number) = captures.streams.get(&stream) else { return CaptureStatus::None };
        let is_valid = captures.captures.get(number).is_some_and(|capture| capture.is_valid);
        if is_valid { CaptureStatus::Active(*number) } else { CaptureStatus::Invalidated(*number) }
    }

    /// The streams that are captured.
    pub fn captured_streams(&self) -> Vec<u32> {
        self.captures.streams.keys().copied().collect()
    }

    /// Whether an event was last recorded in a captured stream: the program cannot wait for it.
    pub fn is_captured(&self, event: u32) -> bool {
        self.captures.events.contains_key(&event)
    }

    /// Begins to capture a stream. `thread` is a number of the calling thread.
    ///
    /// # Errors
    /// If the stream is captured already.
    pub fn begin_capture(&mut self, stream: u32, mode: CaptureMode, thread: u64) -> Result<(), Code> {
        if self.captures.streams.contains_key(&stream) {
            return Err(Code::ILLEGAL_STATE);
        }
        let graph = self.new_graph(Holder::Capture)?;
        let number = self.number()?;
        let tips = BTreeMap::from([(stream, BTreeSet::new())]);
        let capture = Capture { origin: stream, mode, thread, graph, is_valid: true, tips };
        self.captures.captures.insert(number, capture);
        self.captures.streams.insert(stream, number);
        Ok(())
    }

    /// Ends the capture that began in a stream, and returns its graph.
    ///
    /// # Errors
    /// If no capture began in the stream, another thread began it, a call was forbidden, or a stream
    /// that joined has work that the first stream does not wait for. In the last two cases the
    /// capture has ended.
    pub fn end_capture(&mut self, stream: u32, thread: u64) -> Result<u32, Code> {
        let Some((number, capture)) = self.captures.of_stream(stream) else { return Err(Code::ILLEGAL_STATE) };
        if capture.origin != stream {
            capture.is_valid = false;
            return Err(Code::STREAM_CAPTURE_UNMATCHED);
        }
        if capture.mode != CaptureMode::Relaxed && capture.thread != thread {
            return Err(Code::STREAM_CAPTURE_WRONG_THREAD);
        }
        let Some(capture) = self.captures.end(number) else { return Err(Code::ILLEGAL_STATE) };
        let invalid = (!capture.is_valid).then_some(Code::STREAM_CAPTURE_INVALIDATED);
        let why = invalid.or_else(|| self.is_unjoined(&capture).then_some(Code::STREAM_CAPTURE_UNJOINED));
        if let Some(code) = why {
            self.drop_graph(capture.graph);
            return Err(code);
        }
        self.graphs.entry(capture.graph).and_modify(|graph| graph.holder = Holder::Program);
        Ok(capture.graph)
    }

    /// Adds work to the capture of a stream; `None` for an empty node. Returns the node.
    ///
    /// # Errors
    /// If the stream is not captured, its capture is invalid, or there are too many nodes.
    pub fn capture(&mut self, stream: u32, work: Option<W>) -> Result<u32, Code> {
        let (number, graph, before) = self.next(stream)?;
        let node = self.new_node(graph, before, work.map_or(Task::Empty, Task::Work), 0)?;
        self.advance(number, stream, node);
        Ok(node)
    }

    /// Adds the launch of an executable graph to the capture of a stream.
    ///
    /// # Errors
    /// As for [`Graphs::capture`], and if the executable graph does not exist.
    pub fn capture_launch(&mut self, stream: u32, executable: u32) -> Result<u32, Code> {
        let (number, graph, before) = self.next(stream)?;
        let child = self.graph_of(executable)?;
        let depth = self.graph(child)?.depth + 1;
        let node = match self.admit_depth(graph, depth) {
            Ok(()) => self.new_child(graph, before, child)?,
            Err(code) => {
                self.drop_graph(child);
                return Err(code);
            }
        };
        self.advance(number, stream, node);
        Ok(node)
    }

    /// Records an event. In a captured stream it stands for the stream's nodes.
    ///
    /// Returns whether the stream is captured.
    ///
    /// # Errors
    /// If the capture of the stream is invalid.
    pub fn capture_event(&mut self, event: u32, stream: u32) -> Result<bool, Code> {
        let place = self.captures.valid(stream)?.map(|(number, capture)| {
            let tips = capture.tips.get(&stream).cloned().unwrap_or_default();
            (number, tips)
        });
        let Some(place) = place else {
            self.captures.events.remove(&event);
            return Ok(false);
        };
        self.captures.events.insert(event, place);
        Ok(true)
    }

    /// Makes a stream wait for an event. A stream that waits for a captured event joins the capture.
    ///
    /// Returns whether that is all; otherwise the event and the stream are not captured.
    ///
    /// # Errors
    /// If the event or the stream belongs to a capture to which the other one cannot belong, or the
    /// event's capture has ended. The captures become invalid.
    pub fn capture_wait(&mut self, stream: u32, event: u32) -> Result<bool, Code> {
        let captures = &mut self.captures;
        let current = captures.valid(stream)?.map(|(number, _)| number);
        let Some((theirs, nodes)) = captures.events.get(&event).cloned() else {
            let Some((_, capture)) = captures.of_stream(stream) else { return Ok(false) };
            // Work outside the capture cannot become part of a graph.
            capture.is_valid = false;
            return Err(Code::STREAM_CAPTURE_ISOLATION);
        };
        if !captures.captures.contains_key(&theirs) {
            if let Some((_, capture)) = captures.of_stream(stream) {
                capture.is_valid = false;
            }
            return Err(Code::CAPTURED_EVENT);
        }
        if current.is_some_and(|current| current != theirs) {
            for number in current.into_iter().chain([theirs]) {
                captures.captures.entry(number).and_modify(|capture| capture.is_valid = false);
            }
            return Err(Code::STREAM_CAPTURE_MERGE);
        }
        let is_valid = captures.captures.get(&theirs).is_some_and(|capture| capture.is_valid);
        if !is_valid {
            return Err(Code::STREAM_CAPTURE_INVALIDATED);
        }
        captures.streams.insert(stream, theirs);
        captures.captures.entry(theirs).and_modify(|capture| capture.tips.entry(stream).or_default().extend(nodes));
        Ok(true)
    }

    /// The graph of the capture of a stream, and the nodes on which the stream's next work depends.
    pub fn capture_place(&self, stream: u32) -> Option<(u32, Vec<u32>)> {
        let capture = self.captures.captures.get(self.captures.streams.get(&stream)?)?;
        let tips = capture.tips.get(&stream).into_iter().flatten().copied().collect();
        Some((capture.graph, tips))
    }

    /// Replaces or extends the nodes on which the next work of a captured stream depends.
    ///
    /// # Errors
    /// If the stream is not captured, its capture is invalid, or a node is not of its graph.
    pub fn set_capture_place(&mut self, stream: u32, nodes: &[u32], replaces: bool) -> Result<(), Code> {
        let (number, graph, before) = self.next(stream)?;
        let nodes = self.dependencies(graph, nodes)?;
        let tips = if replaces { nodes } else { before.into_iter().chain(nodes).collect() };
        self.captures.captures.entry(number).and_modify(|capture| {
            capture.tips.insert(stream, tips);
        });
        Ok(())
    }

    /// Invalidates the capture of a stream. Returns false if the stream is not captured.
    pub fn invalidate(&mut self, stream: u32) -> bool {
        let found = self.captures.of_stream(stream);
        found.map(|(_, capture)| capture.is_valid = false).is_some()
    }

    /// Invalidates the captures that one of these streams takes part in. Returns whether there are
    /// any.
    pub fn invalidate_if(&mut self, is_meant: impl Fn(u32) -> bool) -> bool {
        let streams: Vec<u32> = self.captures.streams.keys().copied().filter(|stream| is_meant(*stream)).collect();
        streams.into_iter().fold(false, |any, stream| self.invalidate(stream) | any)
    }

    /// Invalidates the captures that forbid a call that cannot be captured to a thread, which itself
    /// has a mode. Returns whether there are any.
    pub fn forbid(&mut self, mode: CaptureMode, thread: u64) -> bool {
        let mut is_forbidden = false;
        for capture in self.captures.captures.values_mut() {
            let forbids = match (mode, capture.mode) {
                (CaptureMode::Relaxed, _) | (_, CaptureMode::Relaxed) => false,
                (CaptureMode::Global, CaptureMode::Global) => true,
                _ => capture.thread == thread,
            };
            capture.is_valid &= !forbids;
            is_forbidden |= forbids;
        }
        is_forbidden
    }

    /// A stream no longer exists. A capture that began in it ends; one that it joined becomes
    /// invalid.
    pub fn forget_stream(&mut self, stream: u32) {
        let Some((number, capture)) = self.captures.of_stream(stream) else { return };
        capture.is_valid = false;
        capture.tips.remove(&stream);
        let is_origin = capture.origin == stream;
        self.captures.streams.remove(&stream);
        if is_origin && let Some(ended) = self.captures.end(number) {
            self.drop_graph(ended.graph);
        }
    }

    /// An event no longer exists.
    pub fn forget_event(&mut self, event: u32) {
        self.captures.events.remove(&event);
    }

    /// The capture of a stream, its graph, and the nodes on which the stream's next work depends.
    fn next(&mut self, stream: u32) -> Result<(u32, u32, BTreeSet<u32>), Code> {
        let (number, capture) = self.captures.valid(stream)?.ok_or(Code::ILLEGAL_STATE)?;
        let nodes = capture.tips.get(&stream).cloned().unwrap_or_default();
        Ok((number, capture.graph, nodes))
    }

    fn advance(&mut self, capture: u32, stream: u32, node: u32) {
        self.captures.captures.entry(capture).and_modify(|capture| {
            capture.tips.insert(stream, BTreeSet::from([node]));
        });
    }

    /// Whether a stream that joined has work that the first stream does not wait for.
    fn is_unjoined(&self, capture: &Capture) -> bool {
        let mut reached: BTreeSet<u32> = BTreeSet::new();
        let mut open: Vec<u32> = capture.tips.get(&capture.origin).into_iter().flatten().copied().collect();
        while let Some(node) = open.pop() {
            if reached.insert(node) {
                open.extend(self.before(node).unwrap_or_default());
            }
        }
        capture.tips.values().flatten().any(|tip| !reached.contains(tip))
    }
}
