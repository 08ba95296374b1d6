//! Descriptors of cuBLASLt. A program has them in its own memory, or has this library allocate them.
//!
//! A descriptor is an array of words: the first says what it is, and each of the others holds an
//! attribute.

use crate::checks::{self, refused};
use crate::gemm::{Activation, Matrix};
use crate::number::{Types, number_of};
use atoll_cuda_api::types::c_int;
use atoll_cuda_library::{At, Number, Status};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Words of the descriptors. A program's own ones have 8, 23 or more, and 8 or more words since CUDA
/// 11.8; those of operations have fewer in some older versions, where initializing one is an error.
pub(crate) type Layout = [u64; 8];
pub(crate) type Operation = [u64; 14];
pub(crate) type Preference = [u64; 8];

/// The first words of the descriptors, in which each byte is a letter.
const LAYOUT: u64 = u64::from_le_bytes(*b"layout  ");
const OPERATION: u64 = u64::from_le_bytes(*b"matmul  ");
const PREFERENCE: u64 = u64::from_le_bytes(*b"prefer  ");

/// The longest attribute in bytes.
const ATTRIBUTE_BYTES_MAX: usize = 8;

/// An attribute of a descriptor.
pub(crate) struct Attribute {
    /// Its number in the header.
    number: c_int,
    /// Its size in bytes.
    bytes: usize,
    place: Place,
}

enum Place {
    /// A word of the descriptor.
    Word(usize),
    /// Only this value is supported.
    Fixed(i64),
    /// Every value is accepted, and none has an effect.
    Ignored,
}

const fn row(number: c_int, bytes: usize, place: Place) -> Attribute {
    Attribute { number, bytes, place }
}

/// What a kind of descriptor is.
pub(crate) struct Kind {
    first: u64,
    attributes: &'static [Attribute],
}

/// Layouts: type, order, rows, columns, leading dimension, count and distance of a batch; distance of
/// planes, mode of batches.
pub(crate) const OF_LAYOUT: Kind = Kind {
    first: LAYOUT,
    attributes: &[
        row(0, 4, Place::Word(1)),
        row(1, 4, Place::Word(7)),
        row(2, 8, Place::Word(2)),
        row(3, 8, Place::Word(3)),
        row(4, 8, Place::Word(4)),
        row(5, 4, Place::Word(5)),
        row(6, 8, Place::Word(6)),
        row(7, 8, Place::Fixed(0)),
        row(8, 4, Place::Fixed(0)),
    ],
};

/// Operations, in the order of the header. Those without a word are vectors of factors, auxiliary
/// outputs, and factors of narrow types.
pub(crate) const OF_OPERATION: Kind = Kind {
    first: OPERATION,
    attributes: &[
        row(0, 4, Place::Word(1)),
        row(1, 4, Place::Word(2)),
        row(2, 4, Place::Word(3)),
        row(3, 4, Place::Word(4)),
        row(4, 4, Place::Word(5)),
        row(5, 4, Place::Word(6)),
        row(6, 4, Place::Word(7)),
        row(7, 4, Place::Word(8)),
        row(8, 8, Place::Word(9)),
        row(10, 8, Place::Word(10)),
        row(11, 8, Place::Fixed(0)),
        row(12, 8, Place::Fixed(0)),
        row(13, 8, Place::Fixed(0)),
        row(14, 8, Place::Fixed(0)),
        row(15, 4, Place::Word(11)),
        row(17, 8, Place::Fixed(0)),
        row(18, 8, Place::Fixed(0)),
        row(19, 8, Place::Fixed(0)),
        row(20, 8, Place::Fixed(0)),
        row(21, 8, Place::Fixed(0)),
        row(22, 4, Place::Fixed(-1)),
        row(23, 8, Place::Fixed(0)),
        row(24, 8, Place::Fixed(0)),
        row(25, 1, Place::Word(13)),
        row(26, 4, Place::Word(12)),
        row(31, 4, Place::Fixed(0)),
        row(32, 4, Place::Fixed(0)),
        row(33, 4, Place::Fixed(0)),
        row(34, 4, Place::Fixed(0)),
        row(35, 4, Place::Fixed(0)),
        row(36, 8, Place::Fixed(0)),
        row(37, 4, Place::Fixed(0)),
    ],
};

/// Preferences: there is one algorithm, which needs no workspace, so they have no effect.
pub(crate) const OF_PREFERENCE: Kind = Kind {
    first: PREFERENCE,
    attributes: &[
        row(0, 4, Place::Word(1)),
        row(1, 8, Place::Word(2)),
        row(2, 4, Place::Ignored),
        row(3, 4, Place::Word(3)),
        row(4, 4, Place::Ignored),
        row(5, 4, Place::Word(4)),
        row(6, 4, Place::Word(5)),
        row(7, 4, Place::Word(6)),
        row(8, 4, Place::Word(7)),
        row(9, 4, Place::Ignored),
        row(10, 4, Place::Ignored),
        row(11, 4, Place::Ignored),
        row(12, 8, Place::Ignored),
        row(13, 4, Place::Ignored),
    ],
};

/// `CUBLAS_FILL_MODE_FULL` and `CUBLASLT_EPILOGUE_DEFAULT`.
const FILL_FULL: u64 = 2;
const EPILOGUE_DEFAULT: u64 = 1;

/// The bias has the type of D.
const TYPE_OF_D: c_int = -1;

/// A layout in order of columns.
pub(crate) fn layout(data_type: c_int, rows: u64, columns: u64, ld: i64) -> Layout {
    [LAYOUT, bits(data_type), rows, columns, ld as u64, 1, 0, 0]
}

/// An operation without transposition and epilogue.
pub(crate) fn operation(compute: c_int, scale: c_int) -> Operation {
    let mut words = [0; 14];
    words[0] = OPERATION;
    words[1] = bits(compute);
    words[2] = bits(scale);
    words[7] = FILL_FULL;
    words[8] = EPILOGUE_DEFAULT;
    words[12] = bits(TYPE_OF_D);
    words
}

/// A preference without wishes.
pub(crate) fn preference() -> Preference {
    [PREFERENCE, 0, 0, u64::from(u32::MAX), 256, 256, 256, 256]
}

fn bits(number: c_int) -> u64 {
    number.cast_unsigned().into()
}

/// The descriptors that this library has allocated, by address.
static ALLOCATED: Mutex<BTreeMap<u64, Box<[u64]>>> = Mutex::new(BTreeMap::new());

/// Allocates a descriptor for the program.
pub(crate) fn allocate(words: &[u64]) -> u64 {
    let words: Box<[u64]> = words.into();
    let address = words.as_ptr().expose_provenance() as u64;
    ALLOCATED.lock().unwrap_or_else(PoisonError::into_inner).insert(address, words);
    address
}

/// Frees a descriptor that [`allocate`] returned.
pub(crate) fn free(address: u64) -> Result<(), Status> {
    let words = ALLOCATED.lock().unwrap_or_else(PoisonError::into_inner).remove(&address);
    words.map(drop).ok_or(Status::InvalidValue)
}

/// Initializes a descriptor in the program's memory, of `bytes` bytes.
pub(crate) fn initialize<const N: usize>(at: At<[u64; N]>, bytes: usize, words: [u64; N]) -> Result<(), Status> {
    if bytes < size_of::<[u64; N]>() {
        return Err(Status::InvalidValue);
    }
    at.set(words)
}

impl Kind {
    /// Reads a descriptor; its first word first, since descriptors of other kinds are shorter.
    fn read<const N: usize>(&self, at: At<[u64; N]>) -> Result<[u64; N], Status> {
        if at.cast::<u64>().get()? == self.first { at.get() } else { Err(Status::InvalidValue) }
    }

    fn attribute(&self, number: c_int) -> Result<&'static Attribute, Status> {
        self.attributes.iter().find(|attribute| attribute.number == number).ok_or(Status::InvalidValue)
    }

    /// Sets an attribute; `name` is that of the entry point.
    pub(crate) fn set<const N: usize>(
        &self,
        name: &'static str,
        at: At<[u64; N]>,
        number: c_int,
        (buffer, bytes): (At<u8>, usize),
    ) -> Result<(), Status> {
        let mut words = self.read(at)?;
        let attribute = self.attribute(number)?;
        if bytes != attribute.bytes {
            return Err(Status::InvalidValue);
        }
        let mut value = [0; ATTRIBUTE_BYTES_MAX];
        buffer.read_into(&mut value[..bytes])?;
        match attribute.place {
            Place::Word(index) => {
                words[index] = u64::from_le_bytes(value);
                at.set(words)
            }
            Place::Fixed(only) if value[..bytes] != only.to_le_bytes()[..bytes] => {
                Err(refused(name, &format!("other values of attribute {number} than {only}")))
            }
            Place::Fixed(_) | Place::Ignored => Ok(()),
        }
    }

    /// Gets an attribute. With 0 bytes of room, only its size.
    pub(crate) fn get<const N: usize>(
        &self,
        at: At<[u64; N]>,
        number: c_int,
        (buffer, bytes): (At<u8>, usize),
        written: At<usize>,
    ) -> Result<(), Status> {
        let words = self.read(at)?;
        let attribute = self.attribute(number)?;
        if bytes == 0 {
            return written.set(attribute.bytes);
        }
        if bytes < attribute.bytes {
            return Err(Status::InvalidValue);
        }
        let value = match attribute.place {
            Place::Word(index) => words[index],
            Place::Fixed(only) => only as u64,
            Place::Ignored => 0,
        };
        buffer.write_from(&value.to_le_bytes()[..attribute.bytes])?;
        if written.is_null() { Ok(()) } else { written.set(attribute.bytes) }
    }
}

/// A product that descriptors describe.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) types: Types,
    /// m, n, k and the number of matrices.
    pub(crate) sizes: [i64; 4],
    /// A and B after transposition, C and D, without addresses.
    pub(crate) matrices: [Matrix; 4],
    pub(crate) on_device: bool,
    pub(crate) epilogue: PlannedEpilogue,
}

/// The epilogue of a plan.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlannedEpilogue {
    /// Whether there is any.
    pub(crate) is_there: bool,
    /// Whether it adds a bias.
    pub(crate) has_bias: bool,
    /// The address of the bias, or 0. A plan needs none; a product does.
    pub(crate) bias: u64,
    /// Elements from the bias of one matrix to the next.
    pub(crate) bias_batch: i64,
    pub(crate) activation: Activation,
}

/// Checks descriptors: of the operation, and of A, B, C and D. `name` is that of the entry point.
pub(crate) fn plan(name: &'static str, operation: At<Operation>, layouts: [At<Layout>; 4]) -> Result<Plan, Status> {
    let operation = OF_OPERATION.read(operation)?;
    let mut read = [[0; 8]; 4];
    for (words, at) in read.iter_mut().zip(layouts) {
        *words = OF_LAYOUT.read(at)?;
    }
    let number = |word: u64| word as u32 as c_int;
    let data_types = read.map(|words| number(words[1]));
    let types = Types::of(number(operation[1]), [data_types[0], data_types[1], data_types[3]]);
    let has_types = data_types[2] == data_types[3];
    let types = types.filter(|types| has_types && number_of(number(operation[2])) == Some(types.scale));
    let Some(types) = types else {
        let [compute, scale] = [number(operation[1]), number(operation[2])];
        return Err(refused(name, &format!("types {data_types:?} with computation {compute} and factors {scale}")));
    };
    let on_device = match operation[3] {
        0 => false,
        1 => true,
        _ => return Err(refused(name, "vectors of factors")),
    };
    if operation[6] != 0 || operation[7] != FILL_FULL {
        return Err(refused(name, "transposed or triangular results"));
    }
    let transposed = [is_transposed(operation[4])?, is_transposed(operation[5])?, false, false];
    let numbers = [types.input, types.input, types.output, types.output];
    let mut shapes = [[0; 2]; 4];
    let mut matrices = [Matrix { at: 0, row: 0, column: 0, batch: 0 }; 4];
    for (index, words) in read.iter().enumerate() {
        let (shape, matrix) = matrix(name, words, numbers[index])?;
        shapes[index] = if transposed[index] { [shape[1], shape[0]] } else { shape };
        matrices[index] = matrix.transposed_if(transposed[index]);
    }
    let [[m, k], [b_rows, n], c, d] = shapes;
    let counts = read.map(|words| number(words[5]));
    if b_rows != k || c != d || d != [m, n] || counts.iter().any(|count| *count != counts[3]) {
        return Err(Status::InvalidValue);
    }
    let epilogue = epilogue(name, &operation, types, data_types[3])?;
    Ok(Plan { types, sizes: [m, n, k, counts[3].into()], matrices, on_device, epilogue })
}

fn is_transposed(word: u64) -> Result<bool, Status> {
    checks::is_transposed(word as u32 as c_int)
}

/// Rows and columns of a layout, and its strides in bytes.
fn matrix(name: &'static str, words: &Layout, number: Number) -> Result<([i64; 2], Matrix), Status> {
    let size = |word: u64| i64::try_from(word).map_err(|_| Status::InvalidValue);
    let (rows, columns, ld) = (size(words[2])?, size(words[3])?, words[4] as i64);
    let bytes = number.bytes();
    let (length, far) = match words[7] {
        0 => (rows, ld.wrapping_mul(bytes)),
        1 => (columns, ld.wrapping_mul(bytes)),
        _ => return Err(refused(name, "other orders than of columns and rows")),
    };
    if ld < length.max(1) || (words[5] as u32 as c_int) < 0 {
        return Err(Status::InvalidValue);
    }
    let batch = (words[6] as i64).wrapping_mul(bytes);
    let by_columns = Matrix { at: 0, row: bytes, column: far, batch };
    Ok(([rows, columns], by_columns.transposed_if(words[7] == 1)))
}

fn epilogue(
    name: &'static str,
    operation: &Operation,
    types: Types,
    data_type: c_int,
) -> Result<PlannedEpilogue, Status> {
    let (has_bias, activation) = match operation[8] {
        1 => (false, Activation::None),
        2 => (false, Activation::Relu),
        4 => (true, Activation::None),
        6 => (true, Activation::Relu),
        32 => (false, Activation::Gelu),
        36 => (true, Activation::Gelu),
        other => return Err(refused(name, &format!("epilogues such as {other}"))),
    };
    let is_there = has_bias || activation != Activation::None;
    if is_there && types.sum != Number::F32 {
        return Err(refused(name, "epilogues of f64 and integers"));
    }
    let bias_type = operation[12] as u32 as c_int;
    if has_bias && bias_type != TYPE_OF_D && bias_type != data_type {
        return Err(refused(name, "types of the bias other than that of D"));
    }
    let bias = if has_bias { operation[9] } else { 0 };
    Ok(PlannedEpilogue { is_there, has_bias, bias, bias_batch: operation[10] as i64, activation })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_have_words_of_their_own() {
        for kind in [OF_LAYOUT, OF_OPERATION, OF_PREFERENCE] {
            let mut words: Vec<usize> = Vec::new();
            for attribute in kind.attributes {
                assert!(attribute.bytes <= ATTRIBUTE_BYTES_MAX);
                if let Place::Word(index) = attribute.place {
                    assert!(index > 0 && !words.contains(&index), "attribute {}", attribute.number);
                    words.push(index);
                }
            }
        }
    }

    #[test]
    fn only_descriptors_of_this_library_are_freed() {
        let address = allocate(&layout(0, 2, 3, 2));
        assert_eq!(free(address + 8), Err(Status::InvalidValue));
        assert_eq!(free(address), Ok(()));
        assert_eq!(free(address), Err(Status::InvalidValue));
    }
}
