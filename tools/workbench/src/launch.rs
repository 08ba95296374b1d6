//! Kernels and launches as every device takes them.

use crate::compare::Agreement;
use crate::error::BenchError;
use atoll_kgraph::DType;
use atoll_passes::KernelReport;
use atoll_ptx::{FunctionKind, ItemKind, Module};
use std::time::Duration;

/// Most times one launch is repeated; a limit on what a mistyped number costs.
pub const REPEAT_MAX: u32 = 1_000_000;

/// A kernel to load.
#[derive(Clone, Copy, Debug)]
pub struct Kernel<'a> {
    /// The module, as it shall run: passes that are wanted have run.
    pub module: &'a Module,
    /// The entry's name.
    pub entry: &'a str,
    /// What the passes did to it, where some ran: they append parameters and move shared memory,
    /// which a launch must supply.
    pub report: Option<&'a KernelReport>,
    /// Threads of a block in x, y, z.
    pub block: [u32; 3],
}

/// One launch.
#[derive(Clone, Debug, PartialEq)]
pub struct Launch {
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Dynamic shared memory in bytes, as a CUDA launch gives it.
    pub shared_bytes: u32,
    /// Arguments in the order of the kernel's own parameters.
    pub args: Vec<Arg>,
}

/// An argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Arg {
    /// A value: its bytes, as long as the parameter.
    Value(Vec<u8>),
    /// The address of a buffer plus an offset in bytes.
    Buffer {
        /// Index of the buffer.
        index: usize,
        /// Offset in bytes.
        offset: u64,
    },
    /// A struct with addresses in it.
    Struct {
        /// Its bytes; where an address belongs, whatever stands there is overwritten.
        bytes: Vec<u8>,
        /// Byte offset in the struct, index of the buffer, offset in the buffer.
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
    /// Its name in messages.
    pub name: String,
    /// Its content, before and after.
    pub bytes: Vec<u8>,
    /// Whether the kernel may write it. Devices that can hold it to that, do.
    pub writable: bool,
}

/// What a launch takes, and what may be asked of its results.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// Grid, shared memory, arguments.
    pub launch: Launch,
    /// Threads of a block.
    pub block: [u32; 3],
    /// Memory.
    pub buffers: Vec<Buffer>,
    /// What the elements of each buffer are.
    pub elements: Vec<DType>,
    /// How well devices have to agree on what the buffers hold afterwards.
    pub agreement: Agreement,
}

impl Inputs {
    /// A launch on buffers of which nothing is known but their bytes.
    pub fn bytes(launch: Launch, block: [u32; 3], buffers: Vec<Buffer>) -> Inputs {
        let elements = vec![DType::U8; buffers.len()];
        Inputs { launch, block, buffers, elements, agreement: Agreement::Exact }
    }
}

/// What a launch did besides writing buffers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// How long each repetition took on the device.
    pub times: Vec<Duration>,
    /// What the kernel printed.
    pub printed: String,
    /// Bytes it printed beyond what devices keep.
    pub printed_lost_bytes: u64,
    /// How often it was evicted and resumed.
    pub evictions: u32,
}

/// A device that runs single kernels.
pub trait KernelDevice {
    /// A loaded kernel.
    type Loaded;

    /// Compiles and loads a kernel.
    fn load(&mut self, kernel: &Kernel<'_>) -> Result<Self::Loaded, BenchError>;

    /// Launches it `repeat` times. Buffers come back as the first launch left them; the others are
    /// for their times.
    fn launch(
        &mut self,
        kernel: &Self::Loaded,
        launch: &Launch,
        buffers: &mut [Buffer],
        repeat: u32,
    ) -> Result<Outcome, BenchError>;

    /// Forgets a kernel.
    fn unload(&mut self, kernel: Self::Loaded);

    /// Whether what kernels print comes back with the outcome. The driver of a GPU writes it to
    /// standard output.
    fn hears(&self) -> bool {
        true
    }
}

/// A module without its kernels but one: on a device that compiles whole modules, what one costs.
pub fn without_others(module: &Module, entry: &str) -> Module {
    let mut alone = module.clone();
    alone.items.retain(
        |item| !matches!(&item.kind, ItemKind::Function(f) if f.kind == FunctionKind::Entry && f.name != entry),
    );
    alone
}
