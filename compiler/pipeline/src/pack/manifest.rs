//! The manifest of a packed function, in TOML or JSON.

use super::PackError;
use atoll_kgraph::DType;
use indexmap::IndexMap;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Largest manifest in bytes: enough for hundreds of thousands of steps.
pub(super) const MANIFEST_BYTES_MAX: u64 = 16 << 20;

/// The format version that this crate reads.
const FORMAT: u32 = 1;

/// A manifest.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Manifest {
    /// Format version.
    #[serde(default = "format")]
    format: u32,
    /// Program that wrote the manifest; not used.
    #[serde(default, rename = "producer")]
    _producer: String,
    /// Name of the function.
    pub(super) name: String,
    /// PTX files with its kernels, relative to the manifest.
    pub(super) ptx: Vec<PathBuf>,
    /// Aliases for kernels whose name several files define.
    #[serde(default)]
    pub(super) kernels: BTreeMap<String, Entry>,
    /// Sizes that are known only when the function is invoked.
    #[serde(default)]
    pub(super) symbols: BTreeMap<String, Range>,
    /// The buffers of the kernels. In JSON, inputs and outputs of the function have the order of
    /// the file; in TOML, the order of their names.
    pub(super) buffers: IndexMap<String, Buffer>,
    /// The steps, in order.
    #[serde(rename = "step", alias = "steps")]
    pub(super) steps: Vec<Step>,
}

fn format() -> u32 {
    FORMAT
}

impl Manifest {
    /// Parses a manifest: JSON if the file name ends in `.json`, otherwise TOML.
    pub(super) fn parse(path: &Path, text: &str) -> Result<Manifest, PackError> {
        let is_json = path.extension().is_some_and(|extension| extension == "json");
        let manifest: Manifest = match is_json {
            true => serde_json::from_str(text).map_err(|e| PackError::at(path.display(), e))?,
            false => toml::from_str(text).map_err(|e| PackError::at(path.display(), e))?,
        };
        match manifest.format {
            FORMAT => Ok(manifest),
            other => Err(PackError::at(
                path.display(),
                format!("it has format {other}, this Atoll reads only format {FORMAT}"),
            )),
        }
    }
}

/// A kernel of one file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Entry {
    /// The file, as `ptx` lists it.
    pub(super) ptx: PathBuf,
    /// Its name in the file [default: the key in `kernels`].
    pub(super) entry: Option<String>,
}

/// The range of a symbol.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Range {
    #[serde(default = "one")]
    pub(super) min: i64,
    pub(super) max: i64,
}

fn one() -> i64 {
    1
}

/// Origin and lifetime of a buffer's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    Input,
    Output,
    Const,
    Temp,
}

/// A buffer.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Buffer {
    pub(super) kind: Kind,
    pub(super) dtype: DType,
    #[serde(default)]
    pub(super) shape: Vec<Value>,
    /// Content of a constant: a safetensors file, or raw little-endian elements.
    pub(super) file: Option<PathBuf>,
    /// Name of the tensor in a safetensors file [default: the buffer's name].
    pub(super) tensor: Option<String>,
}

/// A number, or an expression over symbols.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Value {
    Integer(i64),
    Float(f64),
    Text(String),
}

/// An argument: a value, the name of a buffer, a buffer with a byte offset, or the raw bytes of a
/// parameter.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Arg {
    Value(Value),
    Part(Part),
    Raw(Raw),
}

/// The raw bytes of a parameter of any type.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Raw {
    /// Two hexadecimal digits per byte.
    pub(super) bytes: String,
    /// Addresses of buffers in the parameter. Each replaces eight of the bytes.
    #[serde(default)]
    pub(super) addresses: Vec<Address>,
}

/// The address of a buffer in a parameter.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Address {
    /// Offset in the parameter in bytes, a multiple of 8 in the parameter block.
    pub(super) at: u32,
    /// The buffer.
    pub(super) buffer: String,
    /// Offset in the buffer in bytes.
    pub(super) offset: Value,
}

/// A buffer with a byte offset.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Part {
    pub(super) buffer: String,
    pub(super) offset: Value,
}

/// One step: exactly one of a kernel, a copy, a fill, or steps to repeat.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Step {
    /// Kernel to launch.
    pub(super) kernel: Option<String>,
    /// Blocks in x, y, z.
    #[serde(default)]
    pub(super) grid: Vec<Value>,
    /// Threads of a block in x, y, z.
    #[serde(default)]
    pub(super) block: Vec<u32>,
    /// Dynamic shared memory in bytes.
    #[serde(default)]
    pub(super) shared: u32,
    /// One argument per parameter of the kernel.
    #[serde(default)]
    pub(super) args: Vec<Arg>,
    /// Buffers that the kernel reads and writes, if the analysis cannot follow all of its
    /// addresses. The lists must include all buffers that the analysis found.
    pub(super) reads: Option<Vec<String>>,
    pub(super) writes: Option<Vec<String>>,

    /// A copy between buffers.
    pub(super) copy: Option<Copy>,
    /// A fill of a buffer.
    pub(super) fill: Option<Fill>,

    /// Number of repetitions of `steps`.
    pub(super) repeat: Option<u32>,
    #[serde(default)]
    pub(super) steps: Vec<Step>,
}

/// A copy of a whole buffer to another of the same size, or of a range of bytes.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Copy {
    pub(super) from: String,
    pub(super) from_offset: Option<Value>,
    pub(super) to: String,
    pub(super) to_offset: Option<Value>,
    /// Number of bytes [default: the size of both buffers].
    pub(super) bytes: Option<Value>,
}

/// A fill of a whole buffer, or of a range of its bytes, with one value.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Fill {
    pub(super) to: String,
    pub(super) offset: Option<Value>,
    /// Number of bytes [default: the size of the buffer].
    pub(super) bytes: Option<Value>,
    pub(super) value: Value,
}
