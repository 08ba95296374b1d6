//! Kernels and launches, independent of the device.

use crate::compare::Agreement;
use crate::error::BenchError;
use atoll_kgraph::DType;
use atoll_passes::KernelReport;
use atoll_ptx::{FunctionKind, ItemKind, Module};
use std::time::Duration;

/// Maximum number of repetitions of a launch, in case of a mistyped number.
pub const REPEAT_MAX: u32 = 1_000_000;

/// A kernel to load.
#[derive(Clone, Copy, Debug)]
pub struct Kernel<'a> {
    /// The module, after all requested passes.
    pub module: &'a Module,
    /// Name of the entry.
    pub entry: &'a str,
    /// Report of the passes, if there were any: they append parameters and move shared memory,
    /// which a launch must supply.
    pub report: Option<&'a KernelReport>,
    /// Threads per block in x, y, z.
    pub block: [u32; 3],
}

/// One launch.
#[derive(Clone, Debug, PartialEq)]
pub struct Launch {
    /// Number of blocks in x, y, z.
    pub grid: [u32; 3],
    /// Dynamic shared memory in bytes, as in a CUDA launch.
    pub shared_bytes: u32,
    /// Arguments of the kernel's own parameters, in order.
    pub args: Vec<Arg>,
}

/// An argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Arg {
    /// A value: as many bytes as the parameter.
    Value(Vec<u8>),
    /// The address of a buffer, plus an offset in bytes.
    Buffer {
        /// Index of the buffer.
        index: usize,
        /// Offset in bytes.
        offset: u64,
    },
    /// A struct that contains addresses.
    Struct {
        /// Its bytes; bytes of addresses are overwritten.
        bytes: Vec<u8>,
        /// Addresses: byte offset in the struct, index of the buffer, offset in the buffer.
        addresses: Vec<(usize, usize, u64)>,
    },
}

impl Arg {
    /// The address of a buffer.
    pub fn buffer(index: usize) -> Arg {
        Arg::Buffer { index, offset: 0 }
    }
}

/// Memory that a launch reads and writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Name in messages.
    pub name: String,
    /// Content, before and after the launch.
    pub bytes: Vec<u8>,
    /// Whether the kernel may write it. Devices enforce this if they can.
    pub writable: bool,
}

/// A launch with its memory, and how to compare its results.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// Grid, shared memory and arguments.
    pub launch: Launch,
    /// Threads per block.
    pub block: [u32; 3],
    /// The buffers.
    pub buffers: Vec<Buffer>,
    /// Element type of each buffer.
    pub elements: Vec<DType>,
    /// How closely devices have to agree on the final contents of the buffers.
    pub agreement: Agreement,
}

impl Inputs {
    /// A launch on buffers of bytes, to be compared exactly.
    pub fn bytes(launch: Launch, block: [u32; 3], buffers: Vec<Buffer>) -> Inputs {
        let elements = vec![DType::U8; buffers.len()];
        Inputs { launch, block, buffers, elements, agreement: Agreement::Exact }
    }
}

/// Results of a launch, besides the buffers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Duration of each repetition on the device.
    pub times: Vec<Duration>,
    /// Output of `printf`.
    pub printed: String,
    /// Printed bytes that exceeded the device's buffer.
    pub printed_lost_bytes: u64,
    /// Number of evictions, each followed by a resume.
    pub evictions: u32,
}

/// A device that runs single kernels.
pub trait KernelDevice {
    /// A loaded kernel.
    type Loaded;

    /// Compiles and loads a kernel.
    fn load(&mut self, kernel: &Kernel<'_>) -> Result<Self::Loaded, BenchError>;

    /// Launches it `repeat` times. The buffers contain the results of the first launch; the others
    /// are only timed.
    fn launch(
        &mut self,
        kernel: &Self::Loaded,
        launch: &Launch,
        buffers: &mut [Buffer],
        repeat: u32,
    ) -> Result<Outcome, BenchError>;

    /// Unloads a kernel.
    fn unload(&mut self, kernel: Self::Loaded);

    /// Whether the outcome contains the output of `printf`. The driver of a GPU writes it to
    /// standard output instead.
    fn captures_output(&self) -> bool {
        true
    }
}

/// A module with only one of its kernels: for devices that compile whole modules.
pub fn without_others(module: &Module, entry: &str) -> Module {
    let mut alone = module.clone();
    alone.items.retain(
        |item| !matches!(&item.kind, ItemKind::Function(f) if f.kind == FunctionKind::Entry && f.name != entry),
    );
    alone
}
