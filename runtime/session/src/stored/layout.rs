//! Shapes of messages, and places of fields in them.

use crate::field::{Field, Reader};
use crate::limits::STORED_INPUTS_MAX;
use crate::record::{HEAD_BYTES, OF_MODULES, Record};
use sha2::{Digest, Sha256};
use std::hash::{DefaultHasher, Hasher};
use std::ops::Range;

/// The records of a message: the number and the place of each. Ends before bytes that are no record.
pub(super) fn heads(message: &[u8]) -> impl Iterator<Item = (u16, Range<usize>)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let mut reader = Reader::new(message.get(at..)?);
        let number = reader.get::<u16>().ok()?;
        reader.get::<u16>().ok()?;
        let bytes = reader.get::<u32>().ok().filter(|bytes| *bytes >= HEAD_BYTES)?;
        let place = at..at.checked_add(bytes as usize).filter(|end| *end <= message.len())?;
        at = place.end;
        Some((number, place))
    })
}

/// The shape of a message as a hash, and the number of its calls. `None` if it loads or looks up
/// modules, which a program does when it begins and not in each run.
pub(super) fn shape(message: &[u8]) -> Option<(u64, usize)> {
    let (mut hasher, mut calls) = (DefaultHasher::new(), 0);
    for (number, place) in heads(message) {
        if OF_MODULES.contains(&number) {
            return None;
        }
        hasher.write_u16(number);
        hasher.write_usize(place.len());
        calls += 1;
    }
    Some((hasher.finish(), calls))
}

/// The shape of a message for other processes.
pub(super) fn digest(message: &[u8]) -> [u8; 32] {
    let mut digest = Sha256::new_with_prefix(b"calls\0");
    for (number, place) in heads(message) {
        digest.update(number.to_le_bytes());
        digest.update((place.len() as u32).to_le_bytes());
    }
    digest.finalize().into()
}

/// The fields that differ between two messages. `None` if their shapes differ.
pub(super) fn differing(one: &[u8], two: &[u8]) -> Option<Places> {
    if one.len() != two.len() {
        return None;
    }
    let (mut found, mut fields) = (Vec::new(), Vec::new());
    let mut rest = 0;
    for (_, place) in heads(one) {
        let (before, after) = (&one[place.clone()], &two[place.clone()]);
        rest = place.end;
        if before == after {
            continue;
        }
        let mut at = 0;
        Record::contents(before, &mut fields).ok()?;
        for field in &fields {
            // The head, and sizes in front of contents.
            if before[at..field.start] != after[at..field.start] {
                return None;
            }
            if before[field.clone()] != after[field.clone()] {
                found.push(((place.start + field.start) as u32, (place.start + field.end) as u32));
            }
            at = field.end;
        }
        if before[at..] != after[at..] {
            return None;
        }
    }
    (rest == one.len()).then_some(Places(found))
}

/// The number of the call at a place of a message, from 1, and its entry point; for the log.
pub(super) fn call_at(message: &[u8], at: u32) -> (usize, &'static str) {
    let found = heads(message).enumerate().find(|(_, (_, place))| place.contains(&(at as usize)));
    found.map_or((0, Record::call_of(0)), |(index, (number, _))| (index + 1, Record::call_of(number)))
}

/// Places in a message: the first byte of each, and the byte after it. They ascend and do not
/// overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places(Vec<(u32, u32)>);

impl Places {
    /// Decodes places in a message of this many bytes. `None` if they are not valid, or more than
    /// [`STORED_INPUTS_MAX`].
    pub fn read(bytes: &[u8], message_bytes: usize) -> Option<Places> {
        if !bytes.len().is_multiple_of(8) || bytes.len() / 8 > STORED_INPUTS_MAX {
            return None;
        }
        let mut reader = Reader::new(bytes);
        let mut places: Vec<(u32, u32)> = Vec::with_capacity(bytes.len() / 8);
        while reader.left() > 0 {
            let (start, end) = (reader.get::<u32>().ok()?, reader.get::<u32>().ok()?);
            if start >= end || places.last().is_some_and(|(_, before)| start < *before) {
                return None;
            }
            places.push((start, end));
        }
        let places = Places(places);
        places.fit(message_bytes).then_some(places)
    }

    /// Encodes the places.
    pub fn write(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(8 * self.0.len());
        for (start, end) in &self.0 {
            start.write(&mut bytes);
            end.write(&mut bytes);
        }
        bytes
    }

    /// Number of places.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Bytes that a stored function with these inputs takes, with its records.
    pub(super) fn bytes_of_function(&self, records: &[u8]) -> usize {
        records.len() + size_of::<(u32, u32)>() * self.count()
    }

    /// Bytes at all places.
    pub fn bytes(&self) -> usize {
        self.ranges().map(|place| place.len()).sum()
    }

    /// Whether each of them is a field of a record of a message.
    pub(super) fn are_fields_of(&self, message: &[u8]) -> bool {
        let (mut places, mut fields) = (self.ranges().peekable(), Vec::new());
        for (_, record) in heads(message) {
            if Record::contents(&message[record.clone()], &mut fields).is_err() {
                return false;
            }
            for field in &fields {
                places.next_if(|place| *place == (record.start + field.start..record.start + field.end));
            }
        }
        places.next().is_none()
    }

    /// Whether they lie in a message of this many bytes.
    fn fit(&self, message_bytes: usize) -> bool {
        self.0.last().is_none_or(|(_, end)| *end as usize <= message_bytes)
    }

    fn ranges(&self) -> impl Iterator<Item = Range<usize>> {
        self.0.iter().map(|(start, end)| *start as usize..*end as usize)
    }

    /// Adds places, which are fields of messages of the same shape as the present ones. Returns the
    /// first new one.
    pub(super) fn join(&mut self, others: &Places) -> Option<u32> {
        let new = others.0.iter().filter(|place| self.0.binary_search(place).is_err());
        let new: Vec<(u32, u32)> = new.copied().collect();
        let first = new.first().map(|(start, _)| *start);
        self.0.extend(new);
        self.0.sort_unstable();
        first
    }

    /// Whether two messages of the same size are equal outside these places.
    pub(super) fn are_all_that_differs(&self, one: &[u8], two: &[u8]) -> bool {
        let mut at = 0;
        let mut is_equal = one.len() == two.len();
        for place in self.ranges() {
            is_equal = is_equal && one[at..place.start] == two[at..place.start];
            at = place.end;
        }
        is_equal && one[at..] == two[at..]
    }

    /// The contents of the places in a message, one after the other.
    pub(super) fn take(&self, message: &[u8]) -> Vec<u8> {
        let mut contents = Vec::with_capacity(self.bytes());
        self.ranges().for_each(|place| contents.extend_from_slice(&message[place]));
        contents
    }

    /// Replaces the contents of the places in a message, in which they lie. Returns false if there
    /// are not as many bytes.
    pub(super) fn put(&self, mut contents: &[u8], message: &mut [u8]) -> bool {
        if contents.len() != self.bytes() {
            return false;
        }
        for place in self.ranges() {
            let (these, rest) = contents.split_at(place.len());
            message[place].copy_from_slice(these);
            contents = rest;
        }
        true
    }
}
