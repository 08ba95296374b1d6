//! What a server tells a client about stored functions, after the facts about the device.

use crate::field::{Field, Reader, WireError};
use crate::limits::{OFFER_BYTES_MAX, SHAPE_BYTES_MAX, STORED_BYTES_MAX, STORED_FUNCTIONS_MAX};
use crate::stored::layout::Places;
use std::sync::Arc;

/// The shape of a stored function, which a server keeps for later sessions of the same owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownShape {
    /// SHA-256 of the kinds and sizes of its records.
    pub digest: [u8; 32],
    /// Its inputs.
    pub inputs: Places,
}

/// The stored functions that a session may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Their number.
    pub functions: u32,
    /// Their bytes: of the records, and of the places of the inputs.
    pub bytes: u64,
    /// The shapes of earlier functions, the most recent one first.
    pub shapes: Vec<Arc<KnownShape>>,
}

impl Default for Offer {
    fn default() -> Offer {
        Offer { functions: STORED_FUNCTIONS_MAX, bytes: STORED_BYTES_MAX, shapes: Vec::new() }
    }
}

impl Offer {
    /// Encodes the offer, with as many shapes as there is room for.
    pub fn write(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.functions.write(&mut bytes);
        self.bytes.write(&mut bytes);
        for shape in &self.shapes {
            let inputs = shape.inputs.write();
            let room = OFFER_BYTES_MAX as usize - bytes.len();
            if inputs.len() <= SHAPE_BYTES_MAX && shape.digest.len() + size_of::<u64>() + inputs.len() <= room {
                shape.digest.write(&mut bytes);
                inputs.as_slice().write(&mut bytes);
            }
        }
        bytes
    }

    /// Decodes an offer. Numbers above the limits of the protocol become these limits.
    pub fn read(bytes: &[u8]) -> Result<Offer, WireError> {
        let mut reader = Reader::new(bytes);
        let functions = reader.get::<u32>()?.min(STORED_FUNCTIONS_MAX);
        let bytes = reader.get::<u64>()?.min(STORED_BYTES_MAX);
        let mut shapes = Vec::new();
        while reader.left() > 0 {
            let digest = reader.get()?;
            let inputs = reader.get::<&[u8]>()?;
            let wrong = WireError::Value { what: "the size of the inputs of a shape", value: inputs.len() as u64 };
            let inputs = Places::read(inputs, usize::MAX).ok_or(wrong)?;
            shapes.push(Arc::new(KnownShape { digest, inputs }));
        }
        Ok(Offer { functions, bytes, shapes })
    }
}
