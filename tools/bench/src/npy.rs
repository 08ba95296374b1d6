//! NumPy's `.npy` files, version 1 to 3: little-endian, C order.

use atoll_protocol::{DataType, Tensor};
use std::path::Path;

const MAGIC: &[u8] = b"\x93NUMPY";
/// The data of a file starts at a multiple of this, as NumPy writes it.
const DATA_ALIGN: usize = 64;

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
    let reason = || format!("NumPy has no type for {}", tensor.datatype);
    let bytes = encode(tensor).ok_or_else(|| NpyError::Format { path: path.display().to_string(), reason: reason() })?;
    std::fs::write(path, bytes).map_err(|source| NpyError::Io { path: path.display().to_string(), source })
}

fn decode(bytes: &[u8], name: &str) -> Result<Tensor, String> {
    let rest = bytes.strip_prefix(MAGIC).ok_or("it is no .npy file")?;
    let (&version, rest) = rest.split_first_chunk::<2>().ok_or("it breaks off")?;
    let (header, data) = match version[0] {
        1 => rest.split_first_chunk::<2>().and_then(|(n, rest)| rest.split_at_checked(u16::from_le_bytes(*n).into())),
        2 | 3 => rest.split_first_chunk::<4>().and_then(|(n, rest)| rest.split_at_checked(u32::from_le_bytes(*n) as usize)),
        other => return Err(format!("version {other} is not known")),
    }
    .ok_or("its header breaks off")?;
    let header = std::str::from_utf8(header).map_err(|_| "its header is no text")?;
    let descr = value(header, "descr").ok_or("its header names no type")?.trim_matches(['\'', '"']);
    let order = value(header, "fortran_order").ok_or("its header names no order")?;
    if order != "False" {
        return Err("it is in Fortran order; save it with numpy.ascontiguousarray".into());
    }
    // One-byte types have no order; NumPy writes |, others write < or =.
    let datatype = TYPES.iter().find(|(_, numpy)| *numpy == descr || numpy[1..] == descr[1.min(descr.len())..] && !descr.starts_with('>'));
    let (datatype, _) = datatype.ok_or_else(|| format!("type {descr} is not supported"))?;
    let shape = shape(header).ok_or("its header names no shape")?;
    Tensor::new(name, *datatype, shape, data.to_vec()).map_err(|e| e.to_string())
}

/// The text of a value in the header, a Python dictionary as NumPy writes it.
fn value<'a>(header: &'a str, key: &str) -> Option<&'a str> {
    let (_, rest) = header.split_once(&format!("'{key}':"))?;
    rest.split([',', '}']).next().map(str::trim)
}

fn shape(header: &str) -> Option<Vec<i64>> {
    let (_, rest) = header.split_once("'shape':")?;
    let (inner, _) = rest.trim_start().strip_prefix('(')?.split_once(')')?;
    inner.split(',').map(str::trim).filter(|text| !text.is_empty()).map(|text| text.parse().ok()).collect()
}

fn encode(tensor: &Tensor) -> Option<Vec<u8>> {
    let (_, descr) = TYPES.iter().find(|(datatype, _)| *datatype == tensor.datatype)?;
    let dimensions: Vec<String> = tensor.shape.iter().map(i64::to_string).collect();
    let comma = if dimensions.len() == 1 { "," } else { "" };
    let mut header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({}{comma}), }}", dimensions.join(", "));
    while !(MAGIC.len() + 4 + header.len() + 1).is_multiple_of(DATA_ALIGN) {
        header.push(' ');
    }
    header.push('\n');
    let length = u16::try_from(header.len()).ok()?;
    Some([MAGIC, &[1, 0], &length.to_le_bytes(), header.as_bytes(), &tensor.bytes].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for (shape, bytes) in [(vec![2, 3], 24), (vec![6], 24), (vec![], 4), (vec![0, 5], 0)] {
            let tensor = Tensor::new("t", DataType::Fp32, shape, (0..bytes).collect()).unwrap();
            let encoded = encode(&tensor).unwrap();
            assert!((encoded.len() - usize::from(bytes)).is_multiple_of(DATA_ALIGN));
            assert_eq!(decode(&encoded, "t"), Ok(tensor));
        }
    }

    #[test]
    fn a_file_of_numpy_is_read_and_others_are_refused() {
        let numpy = b"\x93NUMPY\x01\x00v\x00{'descr': '<i4', 'fortran_order': False, 'shape': (2,), }                                                            \n\x01\x00\x00\x00\x02\x00\x00\x00";
        let tensor = decode(numpy, "x").unwrap();
        assert_eq!((tensor.datatype, tensor.shape.as_slice(), tensor.bytes.len()), (DataType::Int32, &[2][..], 8));
        let text = |bytes: &[u8], from: &str, to: &str| String::from_utf8_lossy(bytes).replace(from, to).into_bytes();
        let damage = |from: &str, to: &str| {
            let header = text(&numpy[10..128], from, to);
            decode(&[b"\x93NUMPY\x01\x00", &(header.len() as u16).to_le_bytes()[..], &header, &numpy[128..]].concat(), "x").unwrap_err()
        };
        for (from, to, expected) in [
            ("<i4", ">i4", "type >i4"),
            ("<i4", "<c8", "type <c8"),
            ("False", "True", "Fortran"),
            ("(2,)", "(3,)", "takes 12 bytes"),
            ("(2,)", "(x,)", "shape"),
            ("descr", "desc", "no type"),
        ] {
            let message = damage(from, to);
            assert!(message.contains(expected), "{message}");
        }
        for cut in [0, 5, 7, 9, 50] {
            assert!(decode(&numpy[..cut], "x").is_err());
        }
    }
}
