//! Translation between strings and codes.

use super::format::{StringError, StringStep, Strings};
use super::pattern::Pattern;
use crate::graph::{BufferKind, DType, KernelGraph};
use crate::limits::{
    INVOCATION_MATCHED_BYTES_MAX, INVOCATION_STRING_BYTES_MAX, INVOCATION_STRING_WORK_MAX, INVOCATION_STRINGS_MAX,
    STRING_ELEMENT_WORK,
};
use std::collections::HashMap;
use std::sync::Arc;

/// Bytes of a code.
pub(super) const CODE_BYTES: usize = 4;

/// The strings of a graph, prepared for invocations.
#[derive(Debug)]
pub struct Vocabulary {
    pub(super) strings: Strings,
    /// The code of each string of the table.
    codes: HashMap<Box<[u8]>, u32>,
    /// The compiled expressions of each step.
    pub(super) patterns: Vec<Vec<Pattern>>,
    /// Names of the client's inputs, and whether they have strings.
    pub(super) inputs: Vec<(String, bool)>,
    /// Whether each output has strings.
    outputs: Vec<bool>,
}

impl Vocabulary {
    /// The vocabulary of a valid graph; `None` if neither inputs nor outputs have strings.
    pub fn of(graph: &KernelGraph) -> Option<Vocabulary> {
        let has_strings = |dtype: DType| dtype == DType::Strings;
        let inputs: Vec<(String, bool)> =
            graph.client_inputs().map(|(_, input)| (input.name.clone(), has_strings(input.dtype))).collect();
        let outputs: Vec<bool> =
            graph.buffers_of(BufferKind::Output).map(|(_, output)| has_strings(output.dtype)).collect();
        let strings = &graph.strings;
        if strings.steps.is_empty() && !inputs.iter().any(|(_, strings)| *strings) && !outputs.contains(&true) {
            return None;
        }
        let code = |(code, text): (usize, &String)| (Box::<[u8]>::from(text.as_bytes()), code as u32);
        // A bundle with an invalid expression is refused when it is opened.
        let compiled = |step: &StringStep| step.op.patterns().unwrap_or_default();
        Some(Vocabulary {
            codes: strings.table.iter().enumerate().map(code).collect(),
            patterns: strings.steps.iter().map(compiled).collect(),
            strings: strings.clone(),
            inputs,
            outputs,
        })
    }

    /// Whether an input of the client has strings.
    pub fn is_input(&self, index: usize) -> bool {
        self.inputs.get(index).is_some_and(|(_, strings)| *strings)
    }

    /// Whether an output has strings.
    pub fn is_output(&self, index: usize) -> bool {
        self.outputs.get(index) == Some(&true)
    }

    /// Number of inputs that clients give.
    pub fn client_inputs(&self) -> usize {
        self.inputs.len()
    }
}

/// The strings of one invocation.
#[derive(Debug)]
pub struct Interned {
    pub(super) vocabulary: Arc<Vocabulary>,
    /// Strings that are not in the graph's table, in the order of their codes.
    others: Vec<Arc<[u8]>>,
    codes: HashMap<Arc<[u8]>, u32>,
    /// Bytes of `others`.
    bytes: usize,
    /// Work so far: [`STRING_ELEMENT_WORK`] for each element that was read or written, and its bytes.
    worked: usize,
    /// Bytes that regular expressions have read so far.
    matched: usize,
}

impl Interned {
    /// Begins with only the strings of the graph.
    pub fn new(vocabulary: Arc<Vocabulary>) -> Interned {
        Interned { vocabulary, others: Vec::new(), codes: HashMap::new(), bytes: 0, worked: 0, matched: 0 }
    }

    /// Counts the strings of an operand.
    ///
    /// # Errors
    /// A code has no string, or [`INVOCATION_STRING_WORK_MAX`] is exceeded.
    pub(super) fn note_operand(&mut self, codes: &[u32]) -> Result<(), StringError> {
        let mut bytes = 0_usize;
        for code in codes {
            bytes = bytes.saturating_add(self.text(*code)?.len());
        }
        self.note_work(codes.len(), bytes)
    }

    /// Counts bytes that expressions have read.
    ///
    /// # Errors
    /// [`INVOCATION_MATCHED_BYTES_MAX`] is exceeded.
    pub(super) fn note_matched(&mut self, bytes: usize) -> Result<(), StringError> {
        self.matched = self.matched.saturating_add(bytes);
        if self.matched > INVOCATION_MATCHED_BYTES_MAX {
            let what = "bytes that regular expressions read, with repetitions";
            return Err(StringError::TooLarge { what, most: INVOCATION_MATCHED_BYTES_MAX });
        }
        Ok(())
    }

    /// Counts elements that are read or written, and the bytes of their strings.
    ///
    /// # Errors
    /// [`INVOCATION_STRING_WORK_MAX`] is exceeded.
    pub(super) fn note_work(&mut self, elements: usize, bytes: usize) -> Result<(), StringError> {
        let work = elements.saturating_mul(STRING_ELEMENT_WORK).saturating_add(bytes);
        self.worked = self.worked.saturating_add(work);
        if self.worked > INVOCATION_STRING_WORK_MAX {
            let what = "bytes that operators on strings read and write, with repetitions";
            return Err(StringError::TooLarge { what, most: INVOCATION_STRING_WORK_MAX });
        }
        Ok(())
    }

    /// The code of a string; a new one if it has none.
    ///
    /// # Errors
    /// The strings of the invocation exceed [`INVOCATION_STRING_BYTES_MAX`],
    /// [`INVOCATION_STRINGS_MAX`] or [`INVOCATION_STRING_WORK_MAX`].
    pub(super) fn code(&mut self, text: &[u8]) -> Result<u32, StringError> {
        self.note_work(1, text.len())?;
        if let Some(code) = self.vocabulary.codes.get(text).or_else(|| self.codes.get(text)) {
            return Ok(*code);
        }
        self.bytes += text.len();
        if self.bytes > INVOCATION_STRING_BYTES_MAX {
            return Err(StringError::TooLarge { what: "bytes of all strings", most: INVOCATION_STRING_BYTES_MAX });
        }
        if self.others.len() >= INVOCATION_STRINGS_MAX {
            return Err(StringError::TooLarge { what: "different strings", most: INVOCATION_STRINGS_MAX });
        }
        let code = (self.vocabulary.strings.table.len() + self.others.len()) as u32;
        let text: Arc<[u8]> = text.into();
        self.others.push(Arc::clone(&text));
        self.codes.insert(text, code);
        Ok(code)
    }

    /// The string of a code.
    pub(super) fn text(&self, code: u32) -> Result<&[u8], StringError> {
        let (code, table) = (code as usize, &self.vocabulary.strings.table);
        let text = match table.get(code) {
            Some(text) => Some(text.as_bytes()),
            None => self.others.get(code - table.len()).map(|text| &**text),
        };
        text.ok_or(StringError::UnknownCode)
    }

    /// The codes of an input of the client, little-endian.
    ///
    /// # Errors
    /// The bytes are not strings, or the strings of the invocation are too large.
    pub fn encode(&mut self, input: usize, bytes: &[u8]) -> Result<Vec<u8>, StringError> {
        let mut codes = Vec::with_capacity(bytes.len() / 2);
        let mut rest = bytes;
        while !rest.is_empty() {
            let split = rest
                .split_first_chunk::<4>()
                .and_then(|(length, tail)| tail.split_at_checked(u32::from_le_bytes(*length) as usize));
            let Some((text, tail)) = split else {
                let name = self.vocabulary.inputs.get(input).map_or("an input", |(name, _)| name.as_str());
                return Err(StringError::Malformed(format!("input `{name}`")));
            };
            codes.extend_from_slice(&self.code(text)?.to_le_bytes());
            rest = tail;
        }
        Ok(codes)
    }

    /// The strings of an output, each preceded by its length.
    ///
    /// # Errors
    /// A code has no string, or the strings exceed [`INVOCATION_STRING_BYTES_MAX`].
    pub fn decode(&self, codes: &[u8]) -> Result<Vec<u8>, StringError> {
        let mut bytes = Vec::with_capacity(codes.len() * 2);
        for code in codes.as_chunks::<CODE_BYTES>().0 {
            let text = self.text(u32::from_le_bytes(*code))?;
            // Inputs, tables and results are limited far below 4 GiB.
            bytes.extend_from_slice(&(text.len() as u32).to_le_bytes());
            bytes.extend_from_slice(text);
            if bytes.len() > INVOCATION_STRING_BYTES_MAX {
                return Err(StringError::TooLarge { what: "bytes of an output", most: INVOCATION_STRING_BYTES_MAX });
            }
        }
        Ok(bytes)
    }

    /// Bytes of the strings of an output with their lengths; `None` if there are more than `most`.
    pub fn decoded_bytes(&self, codes: &[u8], most: usize) -> Option<usize> {
        let mut bytes = 0;
        for code in codes.as_chunks::<CODE_BYTES>().0 {
            // A code without a string is an error when it is decoded.
            bytes += 4 + self.text(u32::from_le_bytes(*code)).map_or(0, <[u8]>::len);
            if bytes > most {
                return None;
            }
        }
        Some(bytes)
    }

    /// The vocabulary of the function.
    pub fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }
}
