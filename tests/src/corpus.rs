//! The kernels of `tests/kernels`: what to run them on, in plain bytes, for any device.

use anyhow::{Context, Result, bail, ensure};
use atoll_workbench::{Arg, Buffer, Launch};
use serde::Deserialize;
use std::path::PathBuf;

/// One kernel with its arguments and the launch shapes it is run with.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// The kernel, and the function of `reference.py`.
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
    /// A function of `reference.py` that results go through before they are compared.
    #[serde(default)]
    pub compare: Option<String>,
    /// What the kernel prints.
    #[serde(default)]
    pub printed: String,
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

/// What a launch of a case takes.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// Grid, shared memory, arguments.
    pub launch: Launch,
    /// Threads of a block.
    pub block: [u32; 3],
    /// Memory.
    pub buffers: Vec<Buffer>,
}

/// An argument as the cases write it.
#[derive(Clone, Debug, PartialEq)]
pub enum Argument {
    /// A number.
    Literal {
        /// Its type.
        ty: String,
        /// Its value.
        value: f64,
    },
    /// Memory.
    Memory {
        /// `in`, `inout` or `out`.
        usage: String,
        /// The type of its elements.
        ty: String,
        /// Its shape.
        shape: Vec<usize>,
        /// What is in it: a word and numbers.
        content: Vec<String>,
    },
}

/// Where the corpus is.
pub fn folder() -> PathBuf {
    crate::root().join("tests/kernels")
}

/// Every case, in the order of the file.
pub fn cases() -> Result<Vec<Case>> {
    #[derive(Deserialize)]
    struct File {
        case: Vec<Case>,
    }
    let path = folder().join("cases.toml");
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    Ok(toml::from_str::<File>(&text)?.case)
}

/// All PTX of the corpus.
pub fn ptx_files() -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder().join("ptx"))?;
    let mut paths: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    paths.sort();
    Ok(paths)
}

impl Case {
    /// The PTX that compilers made of it.
    pub fn ptx_files(&self) -> Result<Vec<PathBuf>> {
        let starts = |path: &PathBuf| path.file_name().is_some_and(|n| n.to_string_lossy().starts_with(&format!("{}.", self.file)));
        Ok(ptx_files()?.into_iter().filter(starts).collect())
    }

    /// Its arguments.
    pub fn arguments(&self) -> Result<Vec<Argument>> {
        self.args.iter().map(|text| Argument::parse(text).with_context(|| format!("{}: {text}", self.name))).collect()
    }

    /// What its launch of an index takes; the same every time.
    pub fn inputs(&self, launch: usize) -> Result<Inputs> {
        let [grid, block] = &self.launches[launch];
        let mut buffers = Vec::new();
        let mut args = Vec::new();
        for (index, argument) in self.arguments()?.into_iter().enumerate() {
            match argument {
                Argument::Literal { ty, value } => args.push(Arg::Value(element(&ty, value))),
                Argument::Memory { usage, ty, shape, content } => {
                    let mut random = Random::new(&format!("{} {index}", self.name));
                    let bytes = fill(&ty, shape.iter().product(), &content, &mut random)?;
                    args.push(Arg::buffer(buffers.len()));
                    buffers.push(Buffer { name: format!("argument {index}"), bytes, writable: usage != "in" });
                }
            }
        }
        let launch = Launch { grid: three(grid), shared_bytes: self.shared, args };
        Ok(Inputs { launch, block: three(block), buffers })
    }
}

fn three(sizes: &[u32]) -> [u32; 3] {
    [0, 1, 2].map(|axis| sizes.get(axis).copied().unwrap_or(1))
}

impl Argument {
    /// `i32 5`, `in f32 20x30 normal`.
    fn parse(text: &str) -> Result<Argument> {
        let words: Vec<&str> = text.split_whitespace().collect();
        match words.as_slice() {
            [usage @ ("in" | "inout" | "out"), ty, shape, content @ ..] => {
                ensure!(content.is_empty() == (*usage == "out"), "outputs begin as zero, other memory says what is in it");
                let shape = shape.split('x').map(str::parse).collect::<Result<_, _>>()?;
                let content = content.iter().map(|w| (*w).to_owned()).collect();
                Ok(Argument::Memory { usage: (*usage).to_owned(), ty: (*ty).to_owned(), shape, content })
            }
            [ty, value] => Ok(Argument::Literal { ty: (*ty).to_owned(), value: value.parse()? }),
            _ => bail!("neither a literal nor memory"),
        }
    }
}

/// A seeded generator (SplitMix64).
struct Random(u64);

impl Random {
    /// Seeded by a text (FNV-1a).
    fn new(text: &str) -> Random {
        Random(text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In (0, 1].
    fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    fn normal(&mut self) -> f64 {
        (-2.0 * self.unit().ln()).sqrt() * (std::f64::consts::TAU * self.unit()).cos()
    }

    fn below(&mut self, low: i128, high: i128) -> i128 {
        low + i128::from(self.next()).rem_euclid(high - low)
    }
}

fn fill(ty: &str, count: usize, content: &[String], random: &mut Random) -> Result<Vec<u8>> {
    let number = |at: usize| -> Result<f64> { Ok(content.get(at).context("a number is missing")?.parse()?) };
    let whole = |at: usize| -> Result<i128> { Ok(content.get(at).context("a number is missing")?.parse()?) };
    let each = |make: &mut dyn FnMut(usize) -> Vec<u8>| (0..count).flat_map(make).collect();
    let side = (count as f64).sqrt() as usize;
    Ok(match content.first().map_or("zero", String::as_str) {
        "zero" => each(&mut |_| element(ty, 0.0)),
        "fill" => {
            let value = number(1)?;
            each(&mut |_| element(ty, value))
        }
        "arange" => each(&mut |i| element(ty, i as f64)),
        "normal" => each(&mut |_| element(ty, random.normal())),
        "uniform" => {
            let (low, high) = (number(1)?, number(2)?);
            each(&mut |_| element(ty, low + (high - low) * random.unit()))
        }
        "int" => {
            let (low, high) = (whole(1)?, whole(2)?);
            each(&mut |_| random.below(low, high).to_le_bytes()[..bytes_of(ty)].to_vec())
        }
        "sorted" => {
            let (low, high) = (whole(1)?, whole(2)?);
            let mut numbers: Vec<i128> = (0..count).map(|_| random.below(low, high)).collect();
            numbers.sort_unstable();
            each(&mut |i| numbers[i].to_le_bytes()[..bytes_of(ty)].to_vec())
        }
        // A matrix that elimination without pivots can take.
        "diagonal" => each(&mut |i| element(ty, random.normal() + if i % (side + 1) == 0 { 20.0 } else { 0.0 })),
        // Zero from each node to itself.
        "distances" => each(&mut |i| element(ty, if i % (side + 1) == 0 { 0.0 } else { random.below(1, 100) as f64 })),
        // Where the edges of each node begin, as many for each.
        "graph" => {
            let degree = number(1)?;
            each(&mut |i| element(ty, i as f64 * degree))
        }
        // Depths of a search under way: 0, 1, and nodes that were not reached.
        "levels" => each(&mut |i| element(ty, [0.0, 1.0, -1.0, -1.0, 1.0, -1.0][i % 6])),
        other => bail!("there is no content `{other}`"),
    })
}

fn bytes_of(ty: &str) -> usize {
    ty.trim_start_matches(|c: char| !c.is_ascii_digit()).parse::<usize>().map_or(4, |bits| bits / 8)
}

/// The bytes of one element.
fn element(ty: &str, value: f64) -> Vec<u8> {
    match ty {
        "f16" => half::f16::from_f64(value).to_le_bytes().to_vec(),
        "bf16" => half::bf16::from_f64(value).to_le_bytes().to_vec(),
        "f32" => (value as f32).to_le_bytes().to_vec(),
        "f64" => value.to_le_bytes().to_vec(),
        _ => (value as i128).to_le_bytes()[..bytes_of(ty)].to_vec(),
    }
}
