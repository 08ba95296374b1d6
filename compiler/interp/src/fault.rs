//! What ends a launch before its time.

use std::fmt;
use thiserror::Error;

/// A thread did what it must not, or the launch could not go on.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{kind} in kernel `{kernel}`, block {block:?}, thread {thread:?}, line {line}")]
pub struct Fault {
    /// What happened.
    pub kind: FaultKind,
    /// The kernel launched.
    pub kernel: String,
    /// The block.
    pub block: [u32; 3],
    /// The thread in its block.
    pub thread: [u32; 3],
    /// Line of the PTX text; 0 for a statement that a pass built.
    pub line: u32,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FaultKind {
    /// An access that does not lie in one buffer as a whole; at null, too.
    #[error("access of {bytes} bytes at {address:#x}, outside of every buffer{}", beside(.near))]
    OutOfBounds {
        /// The address, generic.
        address: u64,
        /// Size of the access.
        bytes: u32,
        /// The buffer it may have been meant for.
        near: Option<Near>,
    },
    /// An address that is not a multiple of the access size.
    #[error("access of {bytes} bytes at {address:#x}, which is not aligned")]
    Misaligned {
        /// The address.
        address: u64,
        /// Size of the access.
        bytes: u32,
    },
    /// A write to what may only be read.
    #[error("write of {bytes} bytes at {address:#x}, which may only be read{}", beside(.near))]
    ReadOnly {
        /// The address.
        address: u64,
        /// Size of the access.
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
    /// More calls inside each other than [`crate::Options`] allows for.
    #[error("more than {0} calls inside each other")]
    CallDepth(usize),
    /// An indirect call of an address that is no function, or one with other parameters.
    #[error("indirect call of {0:#x}, which is no function of this signature")]
    CallTarget(u64),
    /// `brx.idx` beyond its table.
    #[error("index {index} of a branch table of {count}")]
    BranchIndex {
        /// The index.
        index: u64,
        /// Entries of the table.
        count: usize,
    },
    /// An operand out of its range.
    #[error("{0}")]
    Operand(String),
    /// A format string of `printf` that cannot be read.
    #[error("printf: {0}")]
    Print(String),
    /// More instructions than allowed.
    #[error("more than {0} instructions")]
    StepLimit(u64),
    /// All threads that are left wait.
    #[error("deadlock: {}", waiting(.0))]
    Deadlock(Vec<Waiting>),
}

/// The buffer next to an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Near {
    /// Its name.
    pub name: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// Where the address lies from its begin.
    pub offset: i64,
}

/// Threads that wait at one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Line of the PTX text.
    pub line: u32,
    /// Number of the barrier, `None` for an instruction of a warp.
    pub barrier: Option<u32>,
    /// How many threads wait there.
    pub threads: u32,
    /// The first of them.
    pub first: [u32; 3],
}

fn beside(near: &Option<Near>) -> String {
    near.as_ref().map_or(String::new(), |n| format!(" (byte {} of `{}`, which has {})", n.offset, n.name, n.bytes))
}

fn waiting(list: &[Waiting]) -> String {
    let texts: Vec<String> = list.iter().map(ToString::to_string).collect();
    texts.join("; ")
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Waiting { line, threads, first, .. } = self;
        match self.barrier {
            Some(number) => write!(f, "{threads} threads from {first:?} on wait at line {line} for barrier {number}"),
            None => write!(f, "{threads} threads from {first:?} on wait at line {line} for other lanes of their warps"),
        }
    }
}
