//! A corpus of kernels: a folder with `cases.toml`, and `ptx/FILE.COMPILER.ptx` for each source
//! file and compiler.
//!
//! The corpus of this project is `tests/kernels`; its `cases.toml` describes the format.

use crate::compare::Agreement;
use crate::launch::{Arg, Buffer, Inputs, Launch};
use crate::random::Random;
use atoll_kgraph::DType;
use serde::Deserialize;
use serde::de::value::{Error as TypeError, StrDeserializer};
use std::path::{Path, PathBuf};

/// Largest argument in bytes; a larger one is probably a mistyped shape.
const ARGUMENT_BYTES_MAX: u64 = 1 << 30;

/// Why a folder is not a valid corpus.
#[derive(Debug, thiserror::Error)]
pub enum CorpusError {
    /// A file or folder cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
    /// The list of cases is not valid.
    #[error("{path}")]
    Cases {
        /// The file.
        path: PathBuf,
        /// The error.
        source: toml::de::Error,
    },
    /// A case has an invalid argument.
    #[error("case {case}: `{argument}`: {reason}")]
    Argument {
        /// The case.
        case: String,
        /// The argument as written.
        argument: String,
        /// The reason.
        reason: String,
    },
}

/// The kernels of a folder.
#[derive(Clone, Debug)]
pub struct Corpus {
    /// In the order of the file.
    pub cases: Vec<Case>,
    /// All PTX files, by name.
    pub ptx: Vec<PathBuf>,
}

/// A kernel with its arguments and launch shapes.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// The kernel.
    pub name: String,
    /// The source file, without its extension.
    pub file: String,
    /// Dynamic shared memory in bytes.
    #[serde(default)]
    pub shared: u32,
    /// Grid and block of each launch.
    pub launches: Vec<[Vec<u32>; 2]>,
    args: Vec<String>,
    /// Allowed difference from the reference.
    pub tolerance: Tolerance,
    /// Function of the reference that normalizes results, if they depend on the order of blocks.
    #[serde(default)]
    pub compare: Option<String>,
    /// Expected output of `printf`.
    #[serde(default)]
    pub printed: String,
    /// The PTX files that contain it.
    #[serde(skip)]
    pub ptx: Vec<PathBuf>,
}

/// Allowed difference from the reference.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum Tolerance {
    /// |a − b| ≤ this · max(1, |b|).
    Within(f64),
    /// `exact`: equal bits.
    Exact(String),
}

/// A parsed argument.
#[derive(Clone, Debug, PartialEq)]
pub enum Argument {
    /// A number.
    Literal {
        /// Its type.
        ty: DType,
        /// Its value.
        value: f64,
    },
    /// A buffer.
    Memory {
        /// `in`, `inout` or `out`.
        usage: String,
        /// Type of its elements.
        ty: DType,
        /// Its shape.
        shape: Vec<usize>,
        /// Initial content: a word, followed by numbers.
        content: Vec<String>,
    },
}

impl Corpus {
    /// Reads the cases of a folder and finds their PTX.
    pub fn open(folder: &Path) -> Result<Corpus, CorpusError> {
        #[derive(Deserialize)]
        struct File {
            case: Vec<Case>,
        }
        let path = folder.join("cases.toml");
        let text = std::fs::read_to_string(&path).map_err(|source| CorpusError::Read { path: path.clone(), source })?;
        let mut cases = toml::from_str::<File>(&text).map_err(|source| CorpusError::Cases { path, source })?.case;
        let ptx = list(&folder.join("ptx"))?;
        for case in &mut cases {
            let begin = format!("{}.", case.file);
            let is_of_case =
                |path: &&PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&begin));
            case.ptx = ptx.iter().filter(is_of_case).cloned().collect();
        }
        Ok(Corpus { cases, ptx })
    }
}

fn list(folder: &Path) -> Result<Vec<PathBuf>, CorpusError> {
    let failed = |source| CorpusError::Read { path: folder.to_owned(), source };
    let entries = std::fs::read_dir(folder).map_err(failed)?;
    let mut paths = entries.map(|entry| Ok(entry.map_err(failed)?.path())).collect::<Result<Vec<_>, _>>()?;
    paths.sort();
    Ok(paths)
}

impl Case {
    /// Its arguments.
    pub fn arguments(&self) -> Result<Vec<Argument>, CorpusError> {
        self.args.iter().map(|text| Argument::parse(text).map_err(|reason| self.wrong(text, reason))).collect()
    }

    fn wrong(&self, argument: &str, reason: String) -> CorpusError {
        CorpusError::Argument { case: self.name.clone(), argument: argument.to_owned(), reason }
    }

    /// The deterministic inputs of the launch with this index.
    pub fn inputs(&self, launch: usize) -> Result<Inputs, CorpusError> {
        let [grid, block] = &self.launches[launch];
        let (mut args, mut buffers, mut elements) = (Vec::new(), Vec::new(), Vec::new());
        for (index, (argument, text)) in self.arguments()?.into_iter().zip(&self.args).enumerate() {
            match argument {
                Argument::Literal { ty, value } => args.push(Arg::Value(element(ty, value))),
                Argument::Memory { usage, ty, shape, content } => {
                    let mut random = Random::of(&format!("{} {index}", self.name));
                    let bytes = fill(ty, shape.iter().product(), &content, &mut random)
                        .map_err(|reason| self.wrong(text, reason))?;
                    args.push(Arg::buffer(buffers.len()));
                    buffers.push(Buffer { name: format!("argument {index}"), bytes, writable: usage != "in" });
                    elements.push(ty);
                }
            }
        }
        let launch = Launch { grid: three(grid), shared_bytes: self.shared, args };
        Ok(Inputs { launch, block: three(block), buffers, elements, agreement: self.agreement() })
    }

    /// How closely devices have to agree on its results.
    fn agreement(&self) -> Agreement {
        match self.tolerance {
            _ if self.compare.is_some() => Agreement::Unordered,
            Tolerance::Within(bound) => Agreement::Within(bound),
            Tolerance::Exact(_) => Agreement::Exact,
        }
    }
}

fn three(sizes: &[u32]) -> [u32; 3] {
    [0, 1, 2].map(|axis| sizes.get(axis).copied().unwrap_or(1))
}

impl Argument {
    /// Parses `i32 5` or `in f32 20x30 normal`.
    fn parse(text: &str) -> Result<Argument, String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        match words.as_slice() {
            [usage @ ("in" | "inout" | "out"), ty, shape, content @ ..] => {
                if content.is_empty() != (*usage == "out") {
                    return Err("in and inout need a content, and out has none".to_owned());
                }
                let (ty, shape) = (element_type(ty)?, sizes(shape)?);
                let bytes = shape.iter().try_fold(ty.bytes(), |bytes, size| bytes.checked_mul(*size as u64));
                bytes.filter(|bytes| *bytes <= ARGUMENT_BYTES_MAX).ok_or("it is too large")?;
                let content = content.iter().map(|w| (*w).to_owned()).collect();
                Ok(Argument::Memory { usage: (*usage).to_owned(), ty, shape, content })
            }
            [ty, value] => Ok(Argument::Literal { ty: element_type(ty)?, value: number(value)? }),
            _ => Err("expected a literal or memory".to_owned()),
        }
    }
}

fn element_type(name: &str) -> Result<DType, String> {
    DType::deserialize(StrDeserializer::<TypeError>::new(name)).map_err(|error| error.to_string())
}

fn sizes(text: &str) -> Result<Vec<usize>, String> {
    text.split('x').map(|size| size.parse().map_err(|_| format!("`{text}` is not a shape"))).collect()
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("`{text}` is not a number"))
}

fn fill(ty: DType, count: usize, content: &[String], random: &mut Random) -> Result<Vec<u8>, String> {
    let word = |at: usize| content.get(at).ok_or("a number is missing");
    let bounds = || -> Result<(i128, i128), String> {
        let (low, high) = (number(word(1)?)?, number(word(2)?)?);
        if low < high { Ok((low, high)) } else { Err(format!("the range {low}..{high} is empty")) }
    };
    let each = |make: &mut dyn FnMut(usize) -> Vec<u8>| (0..count).flat_map(make).collect();
    let side = (count as f64).sqrt() as usize;
    Ok(match content.first().map_or("zero", String::as_str) {
        "zero" => each(&mut |_| element(ty, 0.0)),
        "fill" => {
            let value = number(word(1)?)?;
            each(&mut |_| element(ty, value))
        }
        "arange" => each(&mut |i| element(ty, i as f64)),
        "normal" => each(&mut |_| element(ty, random.normal())),
        "uniform" => {
            let (low, high) = (number::<f64>(word(1)?)?, number::<f64>(word(2)?)?);
            each(&mut |_| element(ty, low + (high - low) * random.unit()))
        }
        "int" => {
            let (low, high) = bounds()?;
            each(&mut |_| random.within(low, high).to_le_bytes()[..ty.bytes() as usize].to_vec())
        }
        "sorted" => {
            let (low, high) = bounds()?;
            let mut numbers: Vec<i128> = (0..count).map(|_| random.within(low, high)).collect();
            numbers.sort_unstable();
            each(&mut |i| numbers[i].to_le_bytes()[..ty.bytes() as usize].to_vec())
        }
        // A matrix that is suitable for elimination without pivoting.
        "diagonal" => each(&mut |i| element(ty, random.normal() + if i % (side + 1) == 0 { 20.0 } else { 0.0 })),
        // Zero on the diagonal: the distance of each node to itself.
        "distances" => each(&mut |i| element(ty, if i % (side + 1) == 0 { 0.0 } else { random.within(1, 100) as f64 })),
        // Offsets of each node's edges, with the same degree for all nodes.
        "graph" => {
            let degree: f64 = number(word(1)?)?;
            each(&mut |i| element(ty, i as f64 * degree))
        }
        // Depths in a breadth-first search: 0, 1, and -1 for unreached nodes.
        "levels" => each(&mut |i| element(ty, [0.0, 1.0, -1.0, -1.0, 1.0, -1.0][i % 6])),
        other => return Err(format!("unknown content `{other}`")),
    })
}

/// The bytes of one element.
fn element(ty: DType, value: f64) -> Vec<u8> {
    match ty {
        DType::F16 => half::f16::from_f64(value).to_le_bytes().to_vec(),
        DType::Bf16 => half::bf16::from_f64(value).to_le_bytes().to_vec(),
        DType::F32 => (value as f32).to_le_bytes().to_vec(),
        DType::F64 => value.to_le_bytes().to_vec(),
        _ => (value as i128).to_le_bytes()[..ty.bytes() as usize].to_vec(),
    }
}
