//! NumPy's `.npy` files, version 1 to 3: little-endian, C order. `npyz` reads and writes their
//! headers; what a tensor may be is checked here.

use atoll_protocol::{DataType, Tensor};
use npyz::{DType, NpyHeader, Order, WriteOptions, WriterBuilder};
use std::path::Path;

/// Headers of arrays of numbers are shorter. NumPy's own limit is 10,000.
const HEADER_BYTES_MAX: usize = 4096;
/// A header has two, around the dictionary and around the shape; one of an array of records has
/// more, whose type is told where these suffice.
const BRACKETS_MAX: usize = 4;
/// Where the data begins in files of few dimensions.
const DATA_OFFSET: usize = 128;

/// Why a file is no usable array.
#[derive(Debug, thiserror::Error)]
pub enum NpyError {
    /// The file cannot be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: String,
        /// The system's answer.
        source: std::io::Error,
    },
    /// It holds nothing that can be used, or the tensor cannot be written in this format.
    #[error("{path}: {reason}")]
    Format {
        /// The file.
        path: String,
        /// What is wrong.
        reason: String,
    },
}

/// NumPy's names of element types, little-endian. It has none for BF16.
const TYPES: [(DataType, &str); 12] = [
    (DataType::Bool, "|b1"),
    (DataType::Uint8, "|u1"),
    (DataType::Int8, "|i1"),
    (DataType::Uint16, "<u2"),
    (DataType::Int16, "<i2"),
    (DataType::Uint32, "<u4"),
    (DataType::Int32, "<i4"),
    (DataType::Uint64, "<u8"),
    (DataType::Int64, "<i8"),
    (DataType::Fp16, "<f2"),
    (DataType::Fp32, "<f4"),
    (DataType::Fp64, "<f8"),
];

/// Reads a file as a tensor of the given name.
pub fn read(path: &Path, name: &str) -> Result<Tensor, NpyError> {
    let bytes = std::fs::read(path).map_err(|source| NpyError::Io { path: path.display().to_string(), source })?;
    decode(&bytes, name).map_err(|reason| NpyError::Format { path: path.display().to_string(), reason })
}

/// Writes a tensor. What NumPy has no type for is refused.
pub fn write(path: &Path, tensor: &Tensor) -> Result<(), NpyError> {
    let bytes = encode(tensor).map_err(|reason| NpyError::Format { path: path.display().to_string(), reason })?;
    std::fs::write(path, bytes).map_err(|source| NpyError::Io { path: path.display().to_string(), source })
}

fn decode(bytes: &[u8], name: &str) -> Result<Tensor, String> {
    bound(bytes)?;
    let mut data = bytes;
    // A fault in the text of the header is told over several lines, of which the first says what it is.
    let header =
        NpyHeader::from_reader(&mut data).map_err(|e| e.to_string().lines().next().unwrap_or_default().to_owned())?;
    let datatype =
        datatype(&header.dtype()).ok_or_else(|| format!("type {} is not supported", header.dtype().descr()))?;
    if header.order() != Order::C {
        return Err("it is in Fortran order; save it with numpy.ascontiguousarray".into());
    }
    let shape: Result<_, _> = header.shape().iter().map(|&dimension| i64::try_from(dimension)).collect();
    let shape = shape.map_err(|_| format!("a dimension of {:?} is too large", header.shape()))?;
    Tensor::new(name, datatype, shape, data.to_vec()).map_err(|e| e.to_string())
}

/// Refuses headers that the library would take too long or too much memory for. It takes as much
/// memory as the file says that the header is long, and its grammar of Python's literals
/// takes twice to three times as long for each level of nesting.
fn bound(bytes: &[u8]) -> Result<(), String> {
    let Some((start, rest)) = bytes.split_first_chunk::<8>() else { return Ok(()) };
    let (length, rest) = match start[6] {
        1 => rest.split_first_chunk().map(|(length, rest)| (usize::from(u16::from_le_bytes(*length)), rest)),
        2 | 3 => rest.split_first_chunk().map(|(length, rest)| (u32::from_le_bytes(*length) as usize, rest)),
        _ => None,
    }
    .unwrap_or((0, rest));
    if length > HEADER_BYTES_MAX {
        return Err(format!("its header is longer than {HEADER_BYTES_MAX} bytes"));
    }
    let header = &rest[..length.min(rest.len())];
    if header.iter().filter(|byte| b"([{".contains(byte)).count() > BRACKETS_MAX {
        return Err("its header has more brackets than that of an array of numbers".into());
    }
    Ok(())
}

fn datatype(dtype: &DType) -> Option<DataType> {
    let DType::Plain(dtype) = dtype else { return None };
    let text = dtype.to_string();
    // One-byte types have no order; NumPy writes |, others write <.
    let (order, rest) = text.split_at(1);
    TYPES.iter().find(|(_, numpy)| order != ">" && numpy[1..] == *rest).map(|(datatype, _)| *datatype)
}

fn encode(tensor: &Tensor) -> Result<Vec<u8>, String> {
    let descr = TYPES.iter().find(|(datatype, _)| *datatype == tensor.datatype).map(|(_, descr)| descr);
    let descr = descr.ok_or_else(|| format!("NumPy has no type for {}", tensor.datatype))?;
    let dtype = DType::new_scalar(descr.parse().map_err(|e| format!("{descr}: {e}"))?);
    let shape: Result<Vec<u64>, _> = tensor.shape.iter().map(|&dimension| u64::try_from(dimension)).collect();
    let shape = shape.map_err(|_| format!("a shape of {:?} has no size", tensor.shape))?;
    let mut bytes = Vec::with_capacity(DATA_OFFSET + tensor.bytes.len());
    WriteOptions::new_header_only()
        .dtype(dtype)
        .shape(&shape)
        .writer(&mut bytes)
        .write_header_only()
        .map_err(|e| e.to_string())?;
    bytes.extend_from_slice(&tensor.bytes);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The file of `numpy.save` for `numpy.array([1, 2], dtype="i4")`.
    const NUMPY: &[u8] = b"\x93NUMPY\x01\x00v\x00{'descr': '<i4', 'fortran_order': False, 'shape': (2,), }                                                            \n\x01\x00\x00\x00\x02\x00\x00\x00";

    /// A file of this version with this header and two i4.
    fn file(version: u8, header: &str) -> Vec<u8> {
        let length = match version {
            1 => (header.len() as u16).to_le_bytes().to_vec(),
            _ => (header.len() as u32).to_le_bytes().to_vec(),
        };
        [b"\x93NUMPY", &[version, 0][..], &length, header.as_bytes(), &NUMPY[128..]].concat()
    }

    fn refused(bytes: &[u8], expected: &str) {
        let message = decode(bytes, "x").unwrap_err();
        assert!(message.contains(expected) && !message.contains('\n'), "{message}");
    }

    #[test]
    fn what_is_written_is_read() {
        for (shape, bytes) in [(vec![2, 3], 24), (vec![6], 24), (vec![], 4), (vec![0, 5], 0)] {
            let tensor = Tensor::new("t", DataType::Fp32, shape, (0..bytes).collect()).unwrap();
            let encoded = encode(&tensor).unwrap();
            assert!((encoded.len() - usize::from(bytes)).is_multiple_of(64), "NumPy maps files whose data is aligned");
            assert_eq!(decode(&encoded, "t"), Ok(tensor));
        }
        for (datatype, _) in TYPES {
            let tensor = Tensor::new("t", datatype, vec![1], vec![1; datatype.element_bytes().unwrap()]).unwrap();
            assert_eq!(decode(&encode(&tensor).unwrap(), "t"), Ok(tensor));
        }
        let tensor = Tensor::new("t", DataType::Bf16, vec![1], vec![0; 2]).unwrap();
        assert_eq!(encode(&tensor).unwrap_err(), "NumPy has no type for BF16");
    }

    #[test]
    fn a_file_of_numpy_is_read_and_others_are_refused() {
        let tensor = decode(NUMPY, "x").unwrap();
        assert_eq!((tensor.datatype, tensor.shape.as_slice(), tensor.bytes.len()), (DataType::Int32, &[2][..], 8));
        let header = std::str::from_utf8(&NUMPY[10..128]).unwrap();
        assert_eq!(decode(&file(2, header), "x"), Ok(tensor.clone()));
        assert_eq!(decode(&file(3, header), "x"), Ok(tensor));
        for (from, to, expected) in [
            ("<i4", ">i4", "type '>i4'"),
            ("<i4", "=i4", "type-string"),
            ("<i4", "<u1", "takes 2 bytes"),
            ("<i4", ">u1", "type '>u1'"),
            ("<i4", "<c8", "type '<c8'"),
            ("'<i4'", "[('a', '<i4')]", "type [('a', '<i4'), ]"),
            ("<i4", "|O", "type '|O'"),
            ("<i4", "", "type string"),
            ("False", "True", "Fortran"),
            ("(2,)", "(3,)", "takes 12 bytes"),
            ("(2,)", "(1,)", "takes 4 bytes"),
            ("(2,)", "(-2,)", "negative"),
            ("(2,)", "2", "shape"),
            ("(2,)", "(x,)", "syntax error"),
            ("descr", "desc", "missing key 'descr'"),
        ] {
            refused(&file(1, &header.replace(from, to)), expected);
        }
        refused(b"PK\x03\x04 something else", "magic");
        refused(&file(4, header), "version");
        for cut in [0, 5, 7, 9, 50, 127, 129] {
            assert!(decode(&NUMPY[..cut], "x").is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn hostile_headers_are_refused() {
        let header = |shape: &str| format!("{{'descr': '<i4', 'fortran_order': False, 'shape': {shape}, }}");
        // Products that do not fit, also where a later dimension is 0 or they wrap around to what the file
        // holds.
        for shape in [
            "(4294967296, 4294967296)",
            "(4294967296, 4294967296, 0)",
            "(9223372036854775809, 2)",
            "(18446744073709551616,)",
            "(4611686018427387905, 2)",
        ] {
            assert!(decode(&file(1, &header(shape)), "x").is_err(), "{shape}");
        }
        for (open, close) in [("(", ")"), ("[", "]"), ("{1:", "}"), ("(", "")] {
            let nested = |depth: usize| file(2, &header(&format!("{}1{}", open.repeat(depth), close.repeat(depth))));
            refused(&nested(30), "brackets");
            assert!(decode(&nested(3), "x").is_err(), "3 times {open}");
            refused(&nested(100_000), "longer than 4096 bytes");
        }
        // A length that the file does not have costs no memory.
        refused(b"\x93NUMPY\x02\x00\xff\xff\xff\xff{", "longer than 4096 bytes");
        assert!(decode(b"\x93NUMPY\x02\x00\xff\x0f\x00\x00{", "x").is_err());
    }
}
