//! Messages over the pipes of a stage process.
//!
//! A message is the length of its head, the head in JSON, and bytes whose number follows from the
//! head. The daemon trusts nothing of an answer: lengths are checked before memory is allocated.

use crate::limits::{CALL_BYTES_MAX, PROGRAM_FILE_BYTES_MAX};
use crate::program::Program;
use crate::tensor::{Form, Tensor};
use atoll_protocol::check_bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{Read, Result, Write};

/// Largest head in bytes: the forms of the tensors of a call, or a text of [`REASON_CHARS_MAX`].
const HEAD_BYTES_MAX: u32 = 1 << 20;

/// Most tensors of a call: the limit of graphs.
const TENSORS_MAX: usize = 1024;

/// Bytes of an empty string.
const STRING_BYTES_MIN: usize = 4;

/// Longest cause of a failure, in characters.
pub(crate) const REASON_CHARS_MAX: usize = 4096;

/// What the daemon asks for.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Request {
    /// Keeps a program under a number. The bytes are its file.
    Prepare { id: u64, program: Program, file_bytes: usize },
    /// Forgets a program.
    Drop { id: u64 },
    /// Runs a program. The bytes are the elements of all inputs.
    Run { id: u64, inputs: Vec<Part> },
}

/// A tensor of a message: its form, and the number of its bytes, which is not known from the form
/// if its elements are strings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Part {
    pub(crate) form: Form,
    pub(crate) bytes: usize,
}

impl Part {
    /// The part of a tensor.
    pub(crate) fn of(tensor: &Tensor) -> Part {
        Part { form: tensor.form.clone(), bytes: tensor.bytes.len() }
    }

    /// The number of bytes, if the form may have so many.
    fn checked(&self) -> Option<usize> {
        let count = |count: usize, size: &i64| count.checked_mul(usize::try_from(*size).ok()?);
        let count = self.form.shape.iter().try_fold(1_usize, count)?;
        match self.form.datatype.element_bytes() {
            Some(element) => count.checked_mul(element).filter(|bytes| *bytes == self.bytes),
            // Each string begins with its length.
            None => count.checked_mul(STRING_BYTES_MIN).filter(|least| *least <= self.bytes).map(|_| self.bytes),
        }
    }
}

/// What the process answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    /// It is in its jail. These parts of the jail are not supported by this machine.
    Ready { lacks: Vec<String> },
    /// The program is kept, or dropped.
    Done,
    /// The program has run. The bytes are the elements of all outputs.
    Outputs(Vec<Part>),
    /// The cause of a failure.
    Failed(String),
}

fn invalid(reason: &str) -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::InvalidData, reason)
}

/// Writes a message.
pub(crate) fn write(to: &mut impl Write, head: &impl Serialize, parts: &[&[u8]]) -> Result<()> {
    let head = serde_json::to_vec(head)?;
    let length = u32::try_from(head.len()).ok().filter(|length| *length <= HEAD_BYTES_MAX);
    to.write_all(&length.ok_or_else(|| invalid("a head is too long"))?.to_le_bytes())?;
    to.write_all(&head)?;
    parts.iter().try_for_each(|part| to.write_all(part))?;
    to.flush()
}

/// Reads the head of a message.
pub(crate) fn read_head<T: DeserializeOwned>(from: &mut impl Read) -> Result<T> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length);
    if length > HEAD_BYTES_MAX {
        return Err(invalid("a head is too long"));
    }
    Ok(serde_json::from_slice(&read_bytes(from, length as usize)?)?)
}

/// Reads bytes. The caller has checked the number.
fn read_bytes(from: &mut impl Read, count: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; count];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Reads the file of a program.
pub(crate) fn read_file(from: &mut impl Read, count: usize) -> Result<Vec<u8>> {
    if count > PROGRAM_FILE_BYTES_MAX {
        return Err(invalid("a file is too large"));
    }
    read_bytes(from, count)
}

/// The bytes of all tensors together, if their forms are valid and within the limits.
pub(crate) fn bytes_of(parts: &[Part]) -> Option<usize> {
    let sum = parts.iter().try_fold(0_usize, |sum, part| sum.checked_add(part.checked()?));
    sum.filter(|sum| *sum <= CALL_BYTES_MAX && parts.len() <= TENSORS_MAX)
}

/// Reads the tensors of a message.
pub(crate) fn read_tensors(from: &mut impl Read, parts: Vec<Part>) -> Result<Vec<Tensor>> {
    bytes_of(&parts).ok_or_else(|| invalid("tensors are too large, or not valid"))?;
    let tensor = |Part { form, bytes }: Part| {
        let bytes = read_bytes(from, bytes)?;
        check_bytes("", form.datatype, &form.shape, &bytes).map_err(|_| invalid("strings do not match their shape"))?;
        Ok(Tensor { form, bytes })
    };
    parts.into_iter().map(tensor).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_protocol::DataType;

    #[test]
    fn messages_are_read_as_they_were_written() {
        let strings = Form { datatype: DataType::Bytes, shape: vec![2] };
        let strings = Tensor { form: strings, bytes: b"\x03\0\0\0abc\0\0\0\0".to_vec() };
        let tensors = [Tensor::of_floats(vec![2], &[1.0, 2.0]), Tensor::of_bytes(vec![0, 3], Vec::new()), strings];
        let parts: Vec<Part> = tensors.iter().map(Part::of).collect();
        let mut bytes = Vec::new();
        write(&mut bytes, &Answer::Outputs(parts), &tensors.each_ref().map(|tensor| &tensor.bytes[..])).unwrap();
        let mut from = &bytes[..];
        let Answer::Outputs(parts) = read_head(&mut from).unwrap() else { panic!("outputs") };
        assert_eq!(read_tensors(&mut from, parts).unwrap(), tensors);
        assert!(from.is_empty());
    }

    #[test]
    fn lengths_are_checked_before_anything_is_allocated() {
        let part = |datatype, shape: &[i64], bytes| Part { form: Form { datatype, shape: shape.to_vec() }, bytes };
        let numbers = |shape: &[i64], count: usize| part(DataType::Fp64, shape, count * 8);
        for parts in [
            vec![numbers(&[1 << 40], 1 << 40)],
            vec![numbers(&[-1], 1)],
            vec![numbers(&[3], 2)],
            vec![numbers(&[1 << 22], 1 << 22); 3],
            vec![numbers(&[0], 0); 2000],
            vec![part(DataType::Bytes, &[1 << 40], 4)],
            vec![part(DataType::Bytes, &[-1], 4)],
            vec![part(DataType::Bytes, &[1], 1 << 40)],
            // Two empty strings where one is announced.
            vec![part(DataType::Bytes, &[1], 8)],
        ] {
            assert!(read_tensors(&mut std::io::repeat(0), parts).is_err());
        }
        assert!(read_file(&mut std::io::repeat(0), 1 << 40).is_err());
        assert!(read_head::<Answer>(&mut std::io::repeat(0xff)).is_err());
        assert!(read_head::<Answer>(&mut &b"\x02\0\0\0{"[..]).is_err());
    }
}
