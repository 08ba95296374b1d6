//! Parses the arguments of a kernel (`--arg`).
//!
//! ```text
//! TYPE:NUMBER                    a literal:                        u32:1000   f32:-0.5   u64:0xffff
//! bytes:FILE                     a struct parameter, from a file
//! in:[TYPE:]CONTENT              memory that is read:              in:a.npy   in:f32:a.bin   in:f32:64x64:random
//! inout:[TYPE:]CONTENT[:FILE]    memory that is read and written; its final content goes to FILE
//! out:TYPE:SHAPE[:FILE]          memory that is written; initially zero
//! ```
//!
//! CONTENT is a file (`.npy`, or raw elements), or SHAPE:random, SHAPE:arange or SHAPE:NUMBER.

use crate::failure::{OrUserError, user_error};
use crate::npy;
use crate::random::Random;
use anyhow::{Context, Result};
use atoll_protocol::{DataType, Tensor};
use atoll_workbench::{Arg, Buffer};
use std::path::{Path, PathBuf};

/// Largest buffer in bytes; a larger one is probably a mistyped shape.
const BUFFER_BYTES_MAX: u64 = 16 << 30;

/// Element types by their PTX-like names.
const TYPES: [(&str, DataType); 13] = [
    ("i8", DataType::Int8),
    ("i16", DataType::Int16),
    ("i32", DataType::Int32),
    ("i64", DataType::Int64),
    ("u8", DataType::Uint8),
    ("u16", DataType::Uint16),
    ("u32", DataType::Uint32),
    ("u64", DataType::Uint64),
    ("f16", DataType::Fp16),
    ("bf16", DataType::Bf16),
    ("f32", DataType::Fp32),
    ("f64", DataType::Fp64),
    ("bool", DataType::Bool),
];

/// How a kernel uses a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    In,
    InOut,
    Out,
}

/// A buffer from the command line.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Memory {
    pub(crate) index: usize,
    pub(crate) usage: Use,
    pub(crate) datatype: DataType,
    pub(crate) shape: Vec<i64>,
    /// File for its content after the launch.
    pub(crate) file: Option<PathBuf>,
}

/// All arguments of a launch.
#[derive(Clone, Debug, Default)]
pub(crate) struct Arguments {
    pub(crate) args: Vec<Arg>,
    pub(crate) buffers: Vec<Buffer>,
    pub(crate) memory: Vec<Memory>,
}

impl Arguments {
    /// Parses all `--arg` flags. Random content is generated from the seed.
    pub(crate) fn parse(texts: &[String], seed: u64) -> Result<Arguments> {
        let mut arguments = Arguments::default();
        let mut random = Random::new(seed);
        for text in texts {
            arguments.push(text, &mut random).with_context(|| format!("--arg {text}")).or_user_error()?;
        }
        Ok(arguments)
    }

    fn push(&mut self, text: &str, random: &mut Random) -> Result<()> {
        let (head, rest) = text.split_once(':').context("expected TYPE:NUMBER, in:…, inout:…, out:… or bytes:FILE")?;
        match head {
            "in" => self.push_memory(text, Use::In, rest, random),
            "inout" => self.push_memory(text, Use::InOut, rest, random),
            "out" => self.push_memory(text, Use::Out, rest, random),
            "bytes" => {
                self.args.push(Arg::Value(std::fs::read(rest).with_context(|| rest.to_owned())?));
                Ok(())
            }
            _ => {
                self.args.push(Arg::Value(literal(datatype(head)?, rest)?));
                Ok(())
            }
        }
    }

    fn push_memory(&mut self, text: &str, usage: Use, rest: &str, random: &mut Random) -> Result<()> {
        let mut parts: Vec<&str> = rest.split(':').collect();
        let datatype = TYPES.iter().find(|(name, _)| Some(name) == parts.first()).map(|t| t.1);
        if datatype.is_some() {
            parts.remove(0);
        }
        let (tensor, file) = content(usage, datatype, &parts, random)?;
        let index = self.buffers.len();
        let file = file.map(PathBuf::from);
        self.memory.push(Memory { index, usage, datatype: tensor.datatype, shape: tensor.shape, file });
        self.buffers.push(Buffer { name: text.to_owned(), bytes: tensor.bytes, writable: usage != Use::In });
        self.args.push(Arg::buffer(index));
        Ok(())
    }
}

impl Memory {
    /// Its content after the launch.
    pub(crate) fn tensor(&self, buffers: &[Buffer]) -> Result<Tensor> {
        let name = format!("buffer {}", self.index);
        Ok(Tensor::new(name, self.datatype, self.shape.clone(), buffers[self.index].bytes.clone())?)
    }

    /// Writes its content to its file: in NumPy's format if the extension is `.npy`, otherwise raw.
    pub(crate) fn save(&self, tensor: &Tensor) -> Result<()> {
        let Some(path) = &self.file else { return Ok(()) };
        match is_npy(path) {
            true => Ok(npy::write(path, tensor).or_user_error()?),
            false => std::fs::write(path, &tensor.bytes).with_context(|| path.display().to_string()),
        }
    }
}

/// Parses the initial content and the output file of a buffer.
fn content<'t>(
    usage: Use,
    datatype: Option<DataType>,
    parts: &[&'t str],
    random: &mut Random,
) -> Result<(Tensor, Option<&'t str>)> {
    let wanted = || datatype.context("the element type is missing; write it as in out:f32:1024");
    match (usage, parts) {
        (Use::Out, [shape]) => Ok((made(wanted()?, shape, "0", random)?, None)),
        (Use::Out, [shape, file]) => Ok((made(wanted()?, shape, "0", random)?, Some(file))),
        (Use::In, [path]) | (Use::InOut, [path]) => Ok((from_file(Path::new(path), datatype)?, None)),
        (Use::In, [shape, how]) => Ok((made(wanted()?, shape, how, random)?, None)),
        (Use::InOut, [first, second]) => match datatype {
            Some(datatype) if is_shape(first) => Ok((made(datatype, first, second, random)?, None)),
            _ => Ok((from_file(Path::new(first), datatype)?, Some(second))),
        },
        (Use::InOut, [shape, how, file]) => Ok((made(wanted()?, shape, how, random)?, Some(file))),
        _ => Err(user_error("wrong number of parts; see `atoll kernel run --help` for the syntax")),
    }
}

fn is_shape(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit() || b == b'x')
}

fn is_npy(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "npy")
}

fn from_file(path: &Path, datatype: Option<DataType>) -> Result<Tensor> {
    if is_npy(path) {
        let tensor = npy::read(path, "buffer")?;
        return match datatype {
            // NumPy has no bf16; it is stored as 16-bit integers.
            Some(DataType::Bf16) if tensor.datatype == DataType::Uint16 => {
                Ok(Tensor { datatype: DataType::Bf16, ..tensor })
            }
            Some(wanted) if wanted != tensor.datatype => {
                Err(user_error(format!("its elements are {}, not {wanted}", tensor.datatype)))
            }
            _ => Ok(tensor),
        };
    }
    let datatype =
        datatype.context("only .npy files contain an element type; for other files, write it as in in:f32:a.bin")?;
    let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
    let size = bytes_of(datatype);
    if bytes.len() % size != 0 {
        return Err(user_error(format!("{} bytes are not a multiple of the size of {datatype}", bytes.len())));
    }
    let count = (bytes.len() / size) as i64;
    Ok(Tensor::new("buffer", datatype, vec![count], bytes)?)
}

/// Generates elements: random, arange, or a constant.
fn made(datatype: DataType, shape: &str, how: &str, random: &mut Random) -> Result<Tensor> {
    let shape: Option<Vec<i64>> = shape.split('x').map(|size| size.parse().ok().filter(|n| *n >= 0)).collect();
    let shape = shape.context("expected sizes, as in f32:1024 or f32:64x64")?;
    let count = shape.iter().try_fold(1u64, |n, size| n.checked_mul(*size as u64));
    let fits = |n: &u64| n.checked_mul(bytes_of(datatype) as u64).is_some_and(|bytes| bytes <= BUFFER_BYTES_MAX);
    let count =
        count.filter(fits).with_context(|| format!("shape {shape:?} is larger than {BUFFER_BYTES_MAX} bytes"))?;
    let is_float = matches!(datatype, DataType::Fp16 | DataType::Bf16 | DataType::Fp32 | DataType::Fp64);
    let mut element = |index: u64| -> Result<Vec<u8>> {
        match how {
            "random" if is_float => number(datatype, random.normal()),
            "random" => Ok(random.next_u64().to_le_bytes()[..bytes_of(datatype)].to_vec()),
            "arange" if is_float => number(datatype, index as f64),
            "arange" => Ok(index.to_le_bytes()[..bytes_of(datatype)].to_vec()),
            value => literal(datatype, value).context("expected content: random, arange or a number"),
        }
    };
    let bytes = match how {
        "random" | "arange" => (0..count).map(&mut element).collect::<Result<Vec<_>>>()?.concat(),
        _ => element(0)?.repeat(count as usize),
    };
    Ok(Tensor::new("buffer", datatype, shape, bytes)?)
}

fn datatype(name: &str) -> Result<DataType> {
    let names = || TYPES.map(|t| t.0).join(", ");
    TYPES
        .iter()
        .find(|t| t.0 == name)
        .map(|t| t.1)
        .with_context(|| format!("unknown type `{name}`; the types are {}", names()))
}

fn bytes_of(datatype: DataType) -> usize {
    datatype.element_bytes().unwrap_or(1)
}

/// The bytes of one number.
fn literal(datatype: DataType, text: &str) -> Result<Vec<u8>> {
    if matches!(datatype, DataType::Fp16 | DataType::Bf16 | DataType::Fp32 | DataType::Fp64) {
        return number(datatype, text.parse().with_context(|| format!("`{text}` is not a number"))?);
    }
    let (negative, digits) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
    let parsed = match digits.strip_prefix("0x") {
        Some(hex) => i128::from_str_radix(hex, 16),
        None => digits.parse(),
    };
    let value =
        parsed.map(|v| if negative { -v } else { v }).with_context(|| format!("`{text}` is not a whole number"))?;
    let size = bytes_of(datatype);
    let bits = 8 * size as u32;
    // Signed types also accept the unsigned notation of their bits, as in i32:0xffffffff.
    if value < -(1i128 << (bits - 1))
        || value >= 1i128 << bits
        || (negative && TYPES.iter().any(|t| t.1 == datatype && t.0.starts_with('u')))
    {
        return Err(user_error(format!("{text} is out of range for {datatype}")));
    }
    Ok(value.to_le_bytes()[..size].to_vec())
}

fn number(datatype: DataType, value: f64) -> Result<Vec<u8>> {
    Ok(Tensor::from_f64("number", datatype, vec![1], &[value])?.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Arguments> {
        Arguments::parse(&[text.to_owned()], 1)
    }

    fn value(text: &str) -> Vec<u8> {
        match parse(text).unwrap().args.remove(0) {
            Arg::Value(bytes) => bytes,
            other => panic!("{text}: expected a value, got {other:?}"),
        }
    }

    #[test]
    fn literals_have_the_bytes_of_their_type() {
        assert_eq!(value("i32:-5"), (-5i32).to_le_bytes());
        assert_eq!(value("u64:0xffffffffffffffff"), [0xff; 8]);
        assert_eq!(value("f32:0.5"), 0.5f32.to_le_bytes());
        assert_eq!(value("f16:1"), [0x00, 0x3c]);
        for text in ["u8:256", "u8:-1", "i8:-129", "i32:x", "f32:", "q7:1", "5"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn memory_comes_from_rules_and_files_and_goes_to_files() {
        let folder = tempfile::tempdir().unwrap();
        let (raw, npy) = (folder.path().join("a.bin"), folder.path().join("b.npy"));
        std::fs::write(&raw, [1, 0, 0, 0, 2, 0, 0, 0]).unwrap();
        let read = parse(&format!("inout:u32:{}:{}", raw.display(), npy.display())).unwrap();
        assert_eq!((read.memory[0].shape.as_slice(), read.memory[0].usage), (&[2][..], Use::InOut));
        read.memory[0].save(&read.memory[0].tensor(&read.buffers).unwrap()).unwrap();
        let again = parse(&format!("in:{}", npy.display())).unwrap();
        assert_eq!((again.buffers[0].bytes.len(), again.buffers[0].writable), (8, false));

        let other_type = parse(&format!("in:f32:{}", npy.display())).unwrap_err();
        assert!(format!("{other_type:#}").contains("its elements are UINT32, not FP32"), "{other_type:#}");

        assert_eq!(parse("in:u16:3:arange").unwrap().buffers[0].bytes, [0, 0, 1, 0, 2, 0]);
        assert_eq!(parse("in:u8:2x2:7").unwrap().buffers[0].bytes, [7; 4]);
        assert_eq!(parse("out:f32:2x8").unwrap().memory[0].shape, [2, 8]);
        assert_eq!(parse("in:f32:4:random").unwrap().buffers, parse("in:f32:4:random").unwrap().buffers);
        for text in ["out:1024", "out:f32:99999999999", "in:f32:4:x", "in:nowhere.npy", "in:f32", "inout:f32:1:2:3:4"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
