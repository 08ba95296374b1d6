//! What stands in the manifest of a packed function, which is TOML or JSON.

use super::PackError;
use atoll_kgraph::DType;
use indexmap::IndexMap;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Largest manifest in bytes: hundreds of thousands of steps, written out.
pub(super) const MANIFEST_BYTES_MAX: u64 = 16 << 20;

/// The format that this crate reads.
const FORMAT: u32 = 1;

/// The whole file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Manifest {
    /// Version of the format.
    #[serde(default = "format")]
    format: u32,
    /// What wrote the manifest, for whoever reads it.
    #[serde(default, rename = "producer")]
    _producer: String,
    /// Name of the function.
    pub(super) name: String,
    /// Files with its kernels, relative to this one.
    pub(super) ptx: Vec<PathBuf>,
    /// Other names for kernels, where several files have a kernel of one name.
    #[serde(default)]
    pub(super) kernels: BTreeMap<String, Entry>,
    /// Sizes that are known only when the function is invoked.
    #[serde(default)]
    pub(super) symbols: BTreeMap<String, Range>,
    /// What kernels work on. Inputs and outputs of the function have the order of a JSON file, and
    /// that of their names in a TOML file.
    pub(super) buffers: IndexMap<String, Buffer>,
    /// What is done, in order.
    #[serde(rename = "step", alias = "steps")]
    pub(super) steps: Vec<Step>,
}

fn format() -> u32 {
    FORMAT
}

impl Manifest {
    /// Reads the text of a file, which is JSON if the file's name ends so.
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
                format!("it has format {other}, and format {FORMAT} is the only one so far"),
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
    /// Its name there [default: the kernel's name here].
    pub(super) entry: Option<String>,
}

/// Values a symbol may have.
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

/// Who owns a buffer's content.
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
    /// Content of a constant: a safetensors file, or the bare little-endian elements.
    pub(super) file: Option<PathBuf>,
    /// Which tensor of a safetensors file [default: the buffer's name].
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

/// An argument: a value, the name of a buffer, a buffer from an offset in bytes on, or a
/// parameter's very bytes.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Arg {
    Value(Value),
    Part(Part),
    Raw(Raw),
}

/// The bytes of a parameter of any type.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Raw {
    /// Two hexadecimal digits each.
    pub(super) bytes: String,
}

/// A buffer from an offset on.
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
    /// One for each parameter of the kernel.
    #[serde(default)]
    pub(super) args: Vec<Arg>,
    /// Buffers it reads and writes, where that cannot be found out from the kernel. Must name all
    /// that were found out.
    pub(super) reads: Option<Vec<String>>,
    pub(super) writes: Option<Vec<String>>,

    /// Copy a whole buffer.
    pub(super) copy: Option<Copy>,
    /// Give every element of a buffer a value.
    pub(super) fill: Option<Fill>,

    /// How often to do `steps`.
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
    /// How many [default: all of the two buffers].
    pub(super) bytes: Option<Value>,
}

/// A value for every element of a buffer, or of a range of its bytes.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Fill {
    pub(super) to: String,
    pub(super) offset: Option<Value>,
    /// How many [default: all of the buffer].
    pub(super) bytes: Option<Value>,
    pub(super) value: Value,
}
