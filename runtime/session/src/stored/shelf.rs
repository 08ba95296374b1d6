//! The functions that a server has for a session.

use crate::refused::Refused;
use crate::stored::layout::{Places, digest};
use crate::stored::offer::{KnownShape, Offer};
use std::collections::HashMap;

/// A stored function: the records of its last run.
#[derive(Debug)]
struct Function {
    records: Vec<u8>,
    inputs: Places,
}

/// The stored functions of a session.
#[derive(Debug, Default)]
pub(crate) struct Shelf {
    functions_max: u32,
    bytes_max: u64,
    bytes: u64,
    functions: HashMap<u32, Function>,
}

impl Shelf {
    /// Allows as much as an offer.
    pub(crate) fn allow(&mut self, offer: &Offer) {
        (self.functions_max, self.bytes_max) = (offer.functions, offer.bytes);
    }

    /// Number and bytes of the functions.
    pub(crate) fn size(&self) -> (u64, u64) {
        (self.functions.len() as u64, self.bytes)
    }

    /// Stores a function. Returns its shape.
    pub(crate) fn store(&mut self, function: u32, inputs: &[u8], records: &[u8]) -> Result<KnownShape, Refused> {
        let refused = |why| Refused::Stored { function, why };
        let inputs = Places::read(inputs, records.len()).ok_or(refused("has places of inputs that are not valid"))?;
        if self.functions.contains_key(&function) {
            return Err(refused("is stored already"));
        }
        let bytes = self.bytes.saturating_add(inputs.bytes_of_function(records) as u64);
        if self.functions.len() as u64 >= self.functions_max.into() || bytes > self.bytes_max {
            return Err(refused("is more than the session may have"));
        }
        self.bytes = bytes;
        let shape = KnownShape { digest: digest(records), inputs: inputs.clone() };
        self.functions.insert(function, Function { records: records.to_vec(), inputs });
        Ok(shape)
    }

    /// Takes the records of a function, with these contents of its inputs.
    pub(crate) fn take(&mut self, function: u32, inputs: &[u8]) -> Result<Vec<u8>, Refused> {
        let refused = |why| Refused::Stored { function, why };
        let stored = self.functions.get_mut(&function).ok_or(refused("is not stored"))?;
        if !stored.inputs.put(inputs, &mut stored.records) {
            return Err(refused("is called with inputs of another size"));
        }
        Ok(std::mem::take(&mut stored.records))
    }

    /// Puts the records of a function back.
    pub(crate) fn put_back(&mut self, function: u32, records: Vec<u8>) {
        if let Some(stored) = self.functions.get_mut(&function) {
            stored.records = records;
        }
    }

    /// Drops a function.
    pub(crate) fn remove(&mut self, function: u32) -> Result<(), Refused> {
        let dropped = self.functions.remove(&function);
        let dropped = dropped.ok_or(Refused::Stored { function, why: "is dropped and not stored" })?;
        self.bytes -= dropped.inputs.bytes_of_function(&dropped.records) as u64;
        Ok(())
    }
}
