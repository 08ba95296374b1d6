//! What stands in the TOML file of a packed function.

use atoll_kgraph::DType;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Largest manifest in bytes: hundreds of thousands of steps, written out.
pub(super) const MANIFEST_BYTES_MAX: u64 = 16 << 20;

/// The whole file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Manifest {
    /// Name of the function.
    pub(super) name: String,
    /// Files with its kernels, relative to this one.
    pub(super) ptx: Vec<PathBuf>,
    /// Sizes that are known only when the function is invoked.
    #[serde(default)]
    pub(super) symbols: BTreeMap<String, Range>,
    /// What kernels work on.
    pub(super) buffers: BTreeMap<String, Buffer>,
    /// What is done, in order.
    #[serde(rename = "step")]
    pub(super) steps: Vec<Step>,
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

/// An argument: a value, the name of a buffer, or a buffer from an offset in bytes on.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Arg {
    Value(Value),
    Part(Part),
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
    /// Buffers it reads and writes, where that cannot be found out from the kernel.
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

/// A copy of a whole buffer to another of the same size.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Copy {
    pub(super) from: String,
    pub(super) to: String,
}

/// A value for every element of a buffer.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Fill {
    pub(super) to: String,
    pub(super) value: Value,
}
