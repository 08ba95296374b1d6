//! A folder of kernels with what to run them on: `cases.toml`, and below `ptx/` what compilers made
//! of the kernels of each source file, as `FILE.COMPILER.ptx`.
//!
//! The one of the project is `tests/kernels`; its cases say how they are written.

use crate::compare::Agreement;
use crate::launch::{Arg, Buffer, Inputs, Launch};
use crate::random::Random;
use atoll_kgraph::DType;
use serde::Deserialize;
use serde::de::value::{Error as TypeError, StrDeserializer};
use std::path::{Path, PathBuf};

/// Bytes of one argument; more is a mistyped shape.
const ARGUMENT_BYTES_MAX: u64 = 1 << 30;

/// Why a folder is no corpus.
#[derive(Debug, thiserror::Error)]
pub enum CorpusError {
    /// A file or a folder cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The list of cases is none.
    #[error("{path}")]
    Cases {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: toml::de::Error,
    },
    /// A case asks for what there is not.
    #[error("case {case}: `{argument}`: {reason}")]
    Argument {
        /// The case.
        case: String,
        /// The argument, as it is written.
        argument: String,
        /// What is wrong with it.
        reason: String,
    },
}

/// The kernels of a folder.
#[derive(Clone, Debug)]
pub struct Corpus {
    /// In the order of the file.
    pub cases: Vec<Case>,
    /// All PTX, by name.
    pub ptx: Vec<PathBuf>,
}

/// One kernel with its arguments and the launch shapes it is run with.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// The kernel.
    pub name: String,
    /// The source file, without its ending.
    pub file: String,
    /// Dynamic shared memory in bytes.
    #[serde(default)]
    pub shared: u32,
    /// Grids and blocks.
    pub launches: Vec<[Vec<u32>; 2]>,
    args: Vec<String>,
    /// How far results may be from the reference.
    pub tolerance: Tolerance,
    /// What makes results comparable that depend on the order of blocks: a function of the
    /// reference that they go through.
    #[serde(default)]
    pub compare: Option<String>,
    /// What the kernel prints.
    #[serde(default)]
    pub printed: String,
    /// The PTX that compilers made of it.
    #[serde(skip)]
    pub ptx: Vec<PathBuf>,
}

/// How far results may be from the reference.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum Tolerance {
    /// |a − b| ≤ this · max(1, |b|).
    Within(f64),
    /// `exact`: the bits are equal.
    Exact(String),
}

/// An argument as the cases write it.
#[derive(Clone, Debug, PartialEq)]
pub enum Argument {
    /// A number.
    Literal {
        /// Its type.
        ty: DType,
        /// Its value.
        value: f64,
    },
    /// Memory.
    Memory {
        /// `in`, `inout` or `out`.
        usage: String,
        /// The type of its elements.
        ty: DType,
        /// Its shape.
        shape: Vec<usize>,
        /// What is in it: a word and numbers.
        content: Vec<String>,
    },
}

impl Corpus {
    /// Reads the cases of a folder, and finds their PTX.
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

    /// What its launch of an index takes; the same every time.
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

    /// How well devices have to agree on it.
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
    /// `i32 5`, `in f32 20x30 normal`.
    fn parse(text: &str) -> Result<Argument, String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        match words.as_slice() {
            [usage @ ("in" | "inout" | "out"), ty, shape, content @ ..] => {
                if content.is_empty() != (*usage == "out") {
                    return Err("outputs begin as zero, other memory says what is in it".to_owned());
                }
                let (ty, shape) = (element_type(ty)?, sizes(shape)?);
                let bytes = shape.iter().try_fold(ty.bytes(), |bytes, size| bytes.checked_mul(*size as u64));
                bytes.filter(|bytes| *bytes <= ARGUMENT_BYTES_MAX).ok_or("it is larger than any argument of a test")?;
                let content = content.iter().map(|w| (*w).to_owned()).collect();
                Ok(Argument::Memory { usage: (*usage).to_owned(), ty, shape, content })
            }
            [ty, value] => Ok(Argument::Literal { ty: element_type(ty)?, value: number(value)? }),
            _ => Err("neither a literal nor memory".to_owned()),
        }
    }
}

fn element_type(name: &str) -> Result<DType, String> {
    DType::deserialize(StrDeserializer::<TypeError>::new(name)).map_err(|error| error.to_string())
}

fn sizes(text: &str) -> Result<Vec<usize>, String> {
    text.split('x').map(|size| size.parse().map_err(|_| format!("`{text}` is no shape"))).collect()
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("`{text}` is no number"))
}

fn fill(ty: DType, count: usize, content: &[String], random: &mut Random) -> Result<Vec<u8>, String> {
    let word = |at: usize| content.get(at).ok_or("a number is missing");
    let bounds = || -> Result<(i128, i128), String> {
        let (low, high) = (number(word(1)?)?, number(word(2)?)?);
        if low < high { Ok((low, high)) } else { Err(format!("there is no number from {low} on and below {high}")) }
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
        // A matrix that elimination without pivots can take.
        "diagonal" => each(&mut |i| element(ty, random.normal() + if i % (side + 1) == 0 { 20.0 } else { 0.0 })),
        // Zero from each node to itself.
        "distances" => each(&mut |i| element(ty, if i % (side + 1) == 0 { 0.0 } else { random.within(1, 100) as f64 })),
        // Where the edges of each node begin, as many for each.
        "graph" => {
            let degree: f64 = number(word(1)?)?;
            each(&mut |i| element(ty, i as f64 * degree))
        }
        // Depths of a search under way: 0, 1, and nodes that were not reached.
        "levels" => each(&mut |i| element(ty, [0.0, 1.0, -1.0, -1.0, 1.0, -1.0][i % 6])),
        other => return Err(format!("there is no content `{other}`")),
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
