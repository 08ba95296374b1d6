//! NumPy's `.npy` files, versions 1 to 3: little-endian, C order. `npyz` parses the headers; this
//! module checks the arrays. Strings are arrays of the types `S` and `U`.

use atoll_protocol::{DataType, Tensor, strings};
use npyz::{DType, NpyHeader, Order, WriteOptions, WriterBuilder};
use std::borrow::Cow;
use std::path::Path;

/// Maximum length of a header; headers of numeric arrays are shorter. NumPy's own limit is 10,000.
const HEADER_BYTES_MAX: usize = 4096;
/// Maximum number of brackets. A numeric array has two: around the dictionary and around the shape.
/// Arrays of records have more, but simple ones are parsed so that the error can name their type.
const BRACKETS_MAX: usize = 4;
/// Maximum size of an array of strings, in which each takes as much as the longest.
const STRINGS_BYTES_MAX: usize = 1 << 30;
/// Offset of the data in files with few dimensions.
const DATA_OFFSET: usize = 128;

/// Why a file is not a usable array.
#[derive(Debug, thiserror::Error)]
pub enum NpyError {
    /// The file cannot be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: String,
        /// The error of the system.
        source: std::io::Error,
    },
    /// The file is not a supported array, or the tensor cannot be stored in this format.
    #[error("{path}: {reason}")]
    Format {
        /// The file.
        path: String,
        /// The reason.
        reason: String,
    },
}

/// NumPy's names of element types, little-endian. BF16 has none.
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

/// Reads a file as a tensor with the given name.
pub fn read(path: &Path, name: &str) -> Result<Tensor, NpyError> {
    let bytes = std::fs::read(path).map_err(|source| NpyError::Io { path: path.display().to_string(), source })?;
    decode(&bytes, name).map_err(|reason| NpyError::Format { path: path.display().to_string(), reason })
}

/// Writes a tensor. Types without a NumPy equivalent are refused.
pub fn write(path: &Path, tensor: &Tensor) -> Result<(), NpyError> {
    let bytes = encode(tensor).map_err(|reason| NpyError::Format { path: path.display().to_string(), reason })?;
    std::fs::write(path, bytes).map_err(|source| NpyError::Io { path: path.display().to_string(), source })
}

fn decode(bytes: &[u8], name: &str) -> Result<Tensor, String> {
    bound(bytes)?;
    let mut data = bytes;
    // Syntax errors have several lines, of which the first names the error.
    let header =
        NpyHeader::from_reader(&mut data).map_err(|e| e.to_string().lines().next().unwrap_or_default().to_owned())?;
    let strings = StringType::of(&header.dtype());
    let datatype = match strings {
        Some(_) => DataType::Bytes,
        None => datatype(&header.dtype()).ok_or_else(|| format!("type {} is not supported", header.dtype().descr()))?,
    };
    if header.order() != Order::C {
        return Err("the array is in Fortran order; convert it with numpy.ascontiguousarray".into());
    }
    let shape: Result<_, _> = header.shape().iter().map(|&dimension| i64::try_from(dimension)).collect();
    let shape = shape.map_err(|_| format!("a dimension of {:?} is too large", header.shape()))?;
    let data = match strings {
        Some(strings) => strings.read(data)?,
        None => data.to_vec(),
    };
    Tensor::new(name, datatype, shape, data).map_err(|e| e.to_string())
}

/// NumPy's types of strings: each element has the same number of characters, filled up with zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StringType {
    /// `S`: bytes.
    Bytes(usize),
    /// `U`: code points of 4 bytes, little-endian.
    Text(usize),
}

impl StringType {
    fn of(dtype: &DType) -> Option<StringType> {
        let DType::Plain(dtype) = dtype else { return None };
        let text = dtype.to_string();
        let (kind, size) = text.get(1..)?.split_at_checked(1)?;
        let size = size.parse().ok().filter(|size| *size > 0)?;
        match (&text[..1], kind) {
            (_, "S") => Some(StringType::Bytes(size)),
            ("<", "U") => Some(StringType::Text(size)),
            _ => None,
        }
    }

    /// The name in a header.
    fn descr(self) -> String {
        match self {
            StringType::Bytes(size) => format!("|S{size}"),
            StringType::Text(size) => format!("<U{size}"),
        }
    }

    /// The elements as those of a BYTES tensor.
    fn read(self, data: &[u8]) -> Result<Vec<u8>, String> {
        let element = match self {
            StringType::Bytes(size) => Some(size),
            StringType::Text(size) => size.checked_mul(4),
        };
        let element = element.filter(|element| data.len().is_multiple_of(*element));
        let element = element.ok_or_else(|| format!("its data is no list of strings of type {}", self.descr()))?;
        let mut texts: Vec<Vec<u8>> = Vec::with_capacity(data.len() / element);
        for text in data.chunks_exact(element) {
            let mut text = match self {
                StringType::Bytes(_) => text.to_vec(),
                StringType::Text(_) => {
                    let points = text.as_chunks::<4>().0.iter().map(|point| u32::from_le_bytes(*point));
                    let text: Option<String> = points.map(char::from_u32).collect();
                    text.ok_or("one of its strings is not Unicode")?.into_bytes()
                }
            };
            text.truncate(text.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1));
            texts.push(text);
        }
        Ok(Tensor::string_bytes(texts.iter().map(Vec::as_slice)))
    }

    /// The type that holds the strings of a tensor, and the elements: text if all are UTF-8.
    ///
    /// # Errors
    /// A string ends in a zero, which NumPy would drop, or the array would be too large.
    fn written(tensor: &Tensor) -> Result<(StringType, Vec<u8>), String> {
        let texts: Vec<&[u8]> = strings(&tensor.bytes).flatten().collect();
        if texts.iter().any(|text| text.ends_with(&[0])) {
            return Err("a string ends in a zero, which NumPy's arrays of strings do not keep".into());
        }
        let check = |size: usize| match size.checked_mul(texts.len()).filter(|bytes| *bytes <= STRINGS_BYTES_MAX) {
            Some(_) => Ok(()),
            None => Err(format!("{} strings of up to {size} bytes each are too large for an array", texts.len())),
        };
        let longest = |lengths: &mut dyn Iterator<Item = usize>| lengths.max().unwrap_or(0).max(1);
        let unicode: Result<Vec<&str>, _> = texts.iter().map(|text| std::str::from_utf8(text)).collect();
        let Ok(unicode) = unicode else {
            let size = longest(&mut texts.iter().map(|text| text.len()));
            check(size)?;
            let filled = texts.iter().flat_map(|text| text.iter().copied().chain(zeros(size - text.len())));
            return Ok((StringType::Bytes(size), filled.collect()));
        };
        let size = longest(&mut unicode.iter().map(|text| text.chars().count()));
        check(4 * size)?;
        let points = unicode.iter().flat_map(|text| {
            let points = text.chars().flat_map(|point| u32::from(point).to_le_bytes());
            points.chain(zeros(4 * (size - text.chars().count())))
        });
        Ok((StringType::Text(size), points.collect()))
    }
}

fn zeros(count: usize) -> impl Iterator<Item = u8> {
    std::iter::repeat_n(0, count)
}

/// Refuses headers that would cost the library too much time or memory. The library allocates the
/// announced length of the header, and its grammar of Python literals needs two to three times as
/// long for each level of nesting.
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
        return Err("its header has too many brackets for a numeric array".into());
    }
    Ok(())
}

fn datatype(dtype: &DType) -> Option<DataType> {
    let DType::Plain(dtype) = dtype else { return None };
    let text = dtype.to_string();
    // One-byte types have no byte order: NumPy writes |, others write <.
    let (order, rest) = text.split_at(1);
    TYPES.iter().find(|(_, numpy)| order != ">" && numpy[1..] == *rest).map(|(datatype, _)| *datatype)
}

fn encode(tensor: &Tensor) -> Result<Vec<u8>, String> {
    let (descr, data) = match tensor.datatype {
        DataType::Bytes => {
            let (strings, data) = StringType::written(tensor)?;
            (strings.descr(), Cow::Owned(data))
        }
        _ => {
            let descr = TYPES.iter().find(|(datatype, _)| *datatype == tensor.datatype);
            let descr = descr.ok_or_else(|| format!("NumPy has no type for {}", tensor.datatype))?.1;
            (descr.to_owned(), Cow::Borrowed(&tensor.bytes[..]))
        }
    };
    let dtype = DType::new_scalar(descr.parse().map_err(|e| format!("{descr}: {e}"))?);
    let shape: Result<Vec<u64>, _> = tensor.shape.iter().map(|&dimension| u64::try_from(dimension)).collect();
    let shape = shape.map_err(|_| format!("a shape of {:?} has no size", tensor.shape))?;
    let mut bytes = Vec::with_capacity(DATA_OFFSET + data.len());
    WriteOptions::new_header_only()
        .dtype(dtype)
        .shape(&shape)
        .writer(&mut bytes)
        .write_header_only()
        .map_err(|e| e.to_string())?;
    bytes.extend_from_slice(&data);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Output of `numpy.save` for `numpy.array([1, 2], dtype="i4")`.
    const NUMPY: &[u8] = b"\x93NUMPY\x01\x00v\x00{'descr': '<i4', 'fortran_order': False, 'shape': (2,), \
        }                                                            \n\x01\x00\x00\x00\x02\x00\x00\x00";

    /// A file of this version with this header and two i4 elements.
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
    fn strings_are_written_and_read() {
        let tensor = |texts: &[&[u8]]| {
            let shape = vec![1, texts.len() as i64];
            Tensor::new("t", DataType::Bytes, shape, Tensor::string_bytes(texts.iter().copied())).unwrap()
        };
        for (texts, descr) in [
            (&[&b"setosa"[..], b"", "gr\u{fc}n".as_bytes()][..], "'<U6'"),
            (&[b"\xff\x00a", b"b"], "'|S3'"),
            (&[b""], "'<U1'"),
            (&[], "'<U1'"),
        ] {
            let encoded = encode(&tensor(texts)).unwrap();
            assert!(String::from_utf8_lossy(&encoded[..DATA_OFFSET]).contains(descr), "{descr}");
            assert_eq!(decode(&encoded, "t"), Ok(tensor(texts)));
        }
        assert!(encode(&tensor(&[b"a\0"])).unwrap_err().contains("ends in a zero"));
        let (long, none) = (vec![b'a'; 1 << 20], &b""[..]);
        let uneven: Vec<&[u8]> = std::iter::once(&long[..]).chain([none; 300]).collect();
        assert!(encode(&tensor(&uneven)).unwrap_err().contains("301 strings of up to 4194304 bytes each"));
        let header = std::str::from_utf8(&NUMPY[10..128]).unwrap();
        refused(&file(1, &header.replace("<i4", "<U3")), "no list of strings of type <U3");
        refused(&file(1, &header.replace("<i4", ">U1")), "type '>U1'");
        let too_large = file(1, &header.replace("<i4", "<U1").replace("(2,)", "(3,)"));
        refused(&too_large, "2 strings, but its shape needs 3");
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
            ("<i4", "<u1", "needs 2 bytes"),
            ("<i4", ">u1", "type '>u1'"),
            ("<i4", "<c8", "type '<c8'"),
            ("'<i4'", "[('a', '<i4')]", "type [('a', '<i4'), ]"),
            ("<i4", "|O", "type '|O'"),
            ("<i4", "", "type string"),
            ("False", "True", "Fortran"),
            ("(2,)", "(3,)", "needs 12 bytes"),
            ("(2,)", "(1,)", "needs 4 bytes"),
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
        // Sizes that overflow, even if a later dimension is 0, or if the product wraps around to
        // the actual size.
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
        // An announced length beyond the end of the file allocates nothing.
        refused(b"\x93NUMPY\x02\x00\xff\xff\xff\xff{", "longer than 4096 bytes");
        assert!(decode(b"\x93NUMPY\x02\x00\xff\x0f\x00\x00{", "x").is_err());
    }
}
