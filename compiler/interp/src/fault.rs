//! Faults that end a launch early.

use std::fmt;
use thiserror::Error;

/// A thread did something invalid, or the launch could not continue.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{kind} in kernel `{kernel}`, block {block:?}, thread {thread:?}, line {line}")]
pub struct Fault {
    /// The kind of fault.
    pub kind: FaultKind,
    /// The launched kernel.
    pub kernel: String,
    /// The block.
    pub block: [u32; 3],
    /// Index of the thread in its block.
    pub thread: [u32; 3],
    /// Line of the PTX text; 0 for a statement built by a pass.
    pub line: u32,
}

/// The kinds of faults.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FaultKind {
    /// An access that is not inside one buffer, including null.
    #[error("access of {bytes} bytes at {address:#x}, outside of every buffer{}", beside(.near))]
    OutOfBounds {
        /// The generic address.
        address: u64,
        /// Size of the access in bytes.
        bytes: u32,
        /// The buffer that was probably meant: the one closest to the address.
        near: Option<Near>,
    },
    /// An address that is not a multiple of the access size.
    #[error("access of {bytes} bytes at {address:#x}, which is not aligned")]
    Misaligned {
        /// The address.
        address: u64,
        /// Size of the access in bytes.
        bytes: u32,
    },
    /// A write to read-only memory.
    #[error("write of {bytes} bytes at {address:#x}, which is read-only{}", beside(.near))]
    ReadOnly {
        /// The address.
        address: u64,
        /// Size of the access in bytes.
        bytes: u32,
        /// The buffer.
        near: Option<Near>,
    },
    /// `trap`.
    #[error("trap")]
    Trap,
    /// A failed assertion of the kernel.
    #[error("assertion failed: {0}")]
    Assert(String),
    /// Calls are nested deeper than [`crate::Options::call_depth`].
    #[error("more than {0} nested calls")]
    CallDepth(usize),
    /// An indirect call to an address that is not a function with matching parameters.
    #[error("indirect call of {0:#x}, which is not a function of this signature")]
    CallTarget(u64),
    /// The index of `brx.idx` exceeds its table.
    #[error("index {index} exceeds a branch table of {count} entries")]
    BranchIndex {
        /// The index.
        index: u64,
        /// Number of entries in the table.
        count: usize,
    },
    /// An invalid operand value.
    #[error("{0}")]
    Operand(String),
    /// A malformed or unsupported `printf`.
    #[error("printf: {0}")]
    Print(String),
    /// The step limit is exceeded.
    #[error("more than {0} instructions")]
    StepLimit(u64),
    /// All remaining threads wait.
    #[error("deadlock: {}", waiting(.0))]
    Deadlock(Vec<Waiting>),
}

/// The buffer closest to an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Near {
    /// Its name.
    pub name: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// Offset of the address from the start of the buffer.
    pub offset: i64,
}

/// Threads that wait at the same instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Line of the PTX text.
    pub line: u32,
    /// Number of the barrier; `None` for a warp instruction.
    pub barrier: Option<u32>,
    /// Number of waiting threads.
    pub threads: u32,
    /// Index of the first waiting thread.
    pub first: [u32; 3],
}

fn beside(near: &Option<Near>) -> String {
    near.as_ref()
        .map_or(String::new(), |n| format!(" (byte {} of `{}`, which has {} bytes)", n.offset, n.name, n.bytes))
}

fn waiting(list: &[Waiting]) -> String {
    let texts: Vec<String> = list.iter().map(ToString::to_string).collect();
    texts.join("; ")
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Waiting { line, threads, first, .. } = self;
        match self.barrier {
            Some(number) => {
                write!(f, "{threads} threads, the first of them {first:?}, wait at line {line} for barrier {number}")
            }
            None => write!(
                f,
                "{threads} threads, the first of them {first:?}, wait at line {line} for lanes of their warps"
            ),
        }
    }
}
