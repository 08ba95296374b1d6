//! What a client has sent, and in which form it sends the next message.

use crate::limits::{STORED_CALLS_MIN, STORED_INPUTS_MAX, STORED_NOTES_MAX, STORED_SHAPES_MAX};
use crate::record::Record;
use crate::recorder::Form;
use crate::stored::layout::{Places, call_at, differing, digest, shape};
use crate::stored::offer::Offer;
use std::collections::HashMap;

/// Maximum number of runs between a difference and the next attempt to store the function.
const PAUSE_MAX: u64 = 1024;

/// The runs of a shape.
#[derive(Debug)]
struct Runs {
    /// The records of the first run.
    records: Vec<u8>,
    /// The fields that differed between runs.
    inputs: Places,
    /// Number of runs.
    count: u64,
    /// The number of runs after which one without new inputs is stored.
    stored_after: u64,
    /// Number of runs that are recorded after the next difference.
    pause: u64,
    /// The number of the function, if it is stored.
    function: Option<u32>,
    /// When the last run was sent.
    used: u64,
}

/// What a run becomes.
enum Step {
    /// Its calls.
    Record,
    /// Its calls, which are stored.
    Store,
    /// A call of a function with these inputs.
    Call(u32, Vec<u8>),
    /// Its calls, which differ from a function at this place.
    Differ(u32, u32),
}

impl Runs {
    fn step(&mut self, records: &[u8], now: u64) -> Step {
        self.used = now;
        self.count += 1;
        if let Some(function) = self.function
            && self.inputs.are_all_that_differs(&self.records, records)
        {
            return Step::Call(function, self.inputs.take(records));
        }
        // Another shape may have the same hash.
        let Some(found) = differing(&self.records, records) else { return Step::Record };
        match (self.inputs.join(&found), self.function.take()) {
            (Some(at), Some(function)) => {
                self.pause();
                Step::Differ(function, at)
            }
            (None, None) if self.count > self.stored_after && self.inputs.count() <= STORED_INPUTS_MAX => Step::Store,
            _ => Step::Record,
        }
    }

    /// Bytes that a function with these runs takes on the server.
    fn bytes(&self) -> usize {
        self.inputs.bytes_of_function(&self.records)
    }

    /// Stores no function for some time; each time it is longer.
    fn pause(&mut self) {
        self.stored_after = self.count + self.pause;
        self.pause = (2 * self.pause).min(PAUSE_MAX);
    }
}

/// The runs of a program, and its stored functions.
#[derive(Debug)]
pub(crate) struct Repeats {
    /// Number of runs that are recorded before one is stored.
    after: u64,
    /// By the hash of their shape.
    runs: HashMap<u64, Runs>,
    /// Bytes of the first run of each shape, and their limit, which is that of the server's
    /// functions, too.
    bytes: usize,
    bytes_max: usize,
    /// Inputs of the functions of earlier sessions, by the digest of their shape.
    offered: HashMap<[u8; 32], Places>,
    /// Numbers that no function has.
    free: Vec<u32>,
    /// The function that was called by the last run.
    called: Option<u32>,
    /// Number of runs so far.
    now: u64,
    /// The records that are sent in front of a run or instead of it.
    out: Vec<u8>,
    notes: Vec<String>,
    notes_left: usize,
}

impl Repeats {
    /// Stores a function after this many equal runs. `None` if the server allows no functions.
    pub(crate) fn new(after: u32, offer: &Offer) -> Option<Repeats> {
        let bytes_max = usize::try_from(offer.bytes).unwrap_or(usize::MAX);
        if offer.functions == 0 || bytes_max == 0 {
            return None;
        }
        let offered = offer.shapes.iter().map(|shape| (shape.digest, shape.inputs.clone())).collect();
        Some(Repeats {
            after: after.into(),
            runs: HashMap::new(),
            bytes: 0,
            bytes_max,
            offered,
            free: (1..=offer.functions).rev().collect(),
            called: None,
            now: 0,
            out: Vec::new(),
            notes: Vec::new(),
            notes_left: STORED_NOTES_MAX,
        })
    }

    /// Takes lines for the user.
    pub(crate) fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    /// The form in which the next message is sent. It is sent in any case.
    pub(crate) fn form_of(&mut self, records: &[u8]) -> Form<'_> {
        self.out.clear();
        let Some((shape, calls)) = shape(records) else { return Form::Calls };
        if calls < STORED_CALLS_MIN || records.len() > self.bytes_max {
            return Form::Calls;
        }
        let called = self.called.take();
        let is_new = !self.runs.contains_key(&shape);
        if is_new {
            self.begin(shape, records);
        }
        self.now += 1;
        let step = self.runs.get_mut(&shape).map_or(Step::Record, |runs| runs.step(records, self.now));
        match step {
            Step::Call(function, inputs) => {
                Record::Call { function, inputs: &inputs }.write(&mut self.out);
                self.called = Some(function);
                return Form::Instead(&self.out);
            }
            Step::Store => self.store(shape, calls),
            Step::Differ(function, at) => {
                Record::Differ { function }.write(&mut self.out);
                self.release(function);
                let (number, name) = call_at(records, at);
                self.note(format!(
                    "a run differs from stored function {function} in {name}, call {number} of the run; it is sent as \
                     {calls} calls"
                ));
            }
            Step::Record => {
                if let Some(function) = called.filter(|_| is_new) {
                    Record::Differ { function }.write(&mut self.out);
                    self.note(format!(
                        "a run has other calls than stored function {function}; it is sent as {calls} calls"
                    ));
                }
            }
        }
        if self.out.is_empty() { Form::Calls } else { Form::Behind(&self.out) }
    }

    /// Begins to remember the runs of a shape. Forgets those that were sent least recently.
    fn begin(&mut self, shape: u64, records: &[u8]) {
        while self.runs.len() >= STORED_SHAPES_MAX || self.bytes + records.len() > self.bytes_max {
            let oldest = self.runs.iter().min_by_key(|(_, runs)| runs.used).map(|(shape, _)| *shape);
            let Some(forgotten) = oldest.and_then(|shape| self.runs.remove(&shape)) else { break };
            self.bytes -= forgotten.records.len();
            if let Some(function) = forgotten.function {
                self.release(function);
            }
        }
        // Most programs have none, and need no digest.
        let offered = if self.offered.is_empty() { None } else { self.offered.remove(&digest(records)) };
        let (inputs, stored_after) = match offered.filter(|inputs| inputs.are_fields_of(records)) {
            Some(inputs) => (inputs, 0),
            None => (Places::default(), self.after),
        };
        self.bytes += records.len();
        let (records, pause) = (records.to_vec(), 2 * self.after);
        self.runs
            .insert(shape, Runs { records, inputs, count: 0, stored_after, pause, function: None, used: self.now });
    }

    /// Stores the runs of a shape. Without a free number or enough memory on the server, the functions
    /// that were called least recently are dropped.
    fn store(&mut self, shape: u64, calls: usize) {
        let Some(runs) = self.runs.get_mut(&shape) else { return };
        let wanted = runs.bytes();
        if wanted > self.bytes_max {
            return runs.pause();
        }
        while self.free.is_empty() || self.stored_bytes() + wanted > self.bytes_max {
            let stored = self.runs.values_mut().filter(|runs| runs.function.is_some());
            let dropped = stored.min_by_key(|runs| runs.used).and_then(|runs| {
                runs.pause();
                runs.function.take()
            });
            let Some(function) = dropped else { return };
            self.release(function);
        }
        let Some((runs, function)) = self.runs.get_mut(&shape).zip(self.free.pop()) else { return };
        runs.function = Some(function);
        Record::Store { function, inputs: &runs.inputs.write() }.write(&mut self.out);
        let bytes = runs.inputs.bytes();
        self.note(format!("{calls} calls are stored function {function} from now on, with {bytes} bytes of input"));
    }

    /// Bytes that all functions take on the server.
    fn stored_bytes(&self) -> usize {
        self.runs.values().filter(|runs| runs.function.is_some()).map(Runs::bytes).sum()
    }

    /// Makes the server drop a function.
    fn release(&mut self, function: u32) {
        Record::Drop { function }.write(&mut self.out);
        self.free.push(function);
    }

    fn note(&mut self, note: String) {
        if self.notes_left > 0 {
            self.notes_left -= 1;
            self.notes.push(note);
        }
    }
}
