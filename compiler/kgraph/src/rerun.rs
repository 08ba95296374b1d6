//! Whether a block of a node may be run again after it was stopped midway.
//!
//! The compiler proves a [`RerunFact`] about each kernel. Whether it holds for a node depends on
//! the buffers bound to the kernel's parameters.

use crate::graph::{BufferId, BufferKind, KernelGraph};
use crate::layout::{InvocationLayout, Place};
use crate::target::{Argument, KernelId, LaunchSpec, TargetImage};
use serde::{Deserialize, Serialize};

/// Whether a block of a kernel may be run again from its start after it was stopped at any point.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RerunFact {
    /// Yes, with any arguments.
    Always,
    /// Yes, if in each pair the memory of the read parameter does not overlap that of the written
    /// one.
    IfDisjoint(Vec<DisjointPair>),
    /// No, or not proven; with the reason.
    Never(String),
}

/// Two parameters whose buffers must not overlap, by position in the kernel's parameter list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DisjointPair {
    /// The parameter that the kernel reads through.
    pub read: u32,
    /// The parameter that the kernel writes through.
    pub written: u32,
}

/// Why a node may not be run again after it was stopped midway.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotRerunnable {
    /// The bundle has no fact about the kernel: it is older than this analysis.
    #[error("it is not known whether the kernel may be run again")]
    Unknown,
    /// The kernel may not be run again with any arguments.
    #[error("{0}")]
    Kernel(String),
    /// The node binds overlapping memory to two parameters.
    #[error("parameters {read} and {written} share memory; the kernel reads one and writes the other")]
    Overlap {
        /// The parameter that is read.
        read: u32,
        /// The parameter that is written.
        written: u32,
    },
    /// The kernel uses a parameter as an address, but the node passes a number.
    #[error("parameter {0} is used as an address but is not a buffer")]
    NoBuffer(u32),
}

impl RerunFact {
    /// Applies the fact to one launch; `overlap` tells whether two buffers share memory. The word
    /// of a check is not in any buffer.
    fn bind(&self, launch: &LaunchSpec, overlap: impl Fn(BufferId, BufferId) -> bool) -> Result<(), NotRerunnable> {
        let pairs = match self {
            RerunFact::Always => return Ok(()),
            RerunFact::Never(reason) => return Err(NotRerunnable::Kernel(reason.clone())),
            RerunFact::IfDisjoint(pairs) => pairs,
        };
        let buffer = |param: u32| match launch.args.get(param as usize) {
            Some(Argument::Buffer { buffer, .. }) => Ok(Some(*buffer)),
            Some(Argument::Check { .. }) => Ok(None),
            // Addresses inside a structure are not distinguished.
            _ => Err(NotRerunnable::NoBuffer(param)),
        };
        for &DisjointPair { read, written } in pairs {
            let shared = match (buffer(read)?, buffer(written)?) {
                (Some(a), Some(b)) => overlap(a, b),
                // Two check words overlap only if they are the same word.
                (None, None) => launch.args.get(read as usize) == launch.args.get(written as usize),
                _ => false,
            };
            if shared {
                return Err(NotRerunnable::Overlap { read, written });
            }
        }
        Ok(())
    }
}

fn fact(target: &TargetImage, kernel: KernelId) -> Result<&RerunFact, NotRerunnable> {
    target.kernels[kernel.0 as usize].rerun.as_ref().ok_or(NotRerunnable::Unknown)
}

/// Whether the blocks of a node may be run again in an invocation with this layout. A node without
/// a kernel may always be run again.
pub fn node_may_run_again(
    graph: &KernelGraph,
    target: &TargetImage,
    layout: &InvocationLayout,
    node: usize,
) -> Result<(), NotRerunnable> {
    let (Some(spec), Some(chosen)) = (&target.launches[node], layout.launches[node]) else { return Ok(()) };
    let launch = spec.variant(chosen.variant);
    fact(target, launch.kernel)?.bind(launch, |a, b| {
        // Weights and state have their own allocations.
        let memory = |id: BufferId| match graph.buffers[id.0 as usize].kind {
            BufferKind::Const => 0,
            BufferKind::State => 1,
            BufferKind::Input | BufferKind::Output | BufferKind::Temp => 2,
        };
        memory(a) == memory(b) && overlap(layout.buffer(a), layout.buffer(b))
    })
}

/// Whether a kernel may be run again on every node that launches it, for all values of the symbols.
/// The memory plan never gives two live buffers the same memory, so it is enough that the buffers
/// differ.
pub fn kernel_may_run_again(target: &TargetImage, kernel: KernelId) -> Result<(), NotRerunnable> {
    let fact = fact(target, kernel)?;
    target
        .launches
        .iter()
        .flatten()
        .flat_map(LaunchSpec::all)
        .filter(|launch| launch.kernel == kernel)
        .try_for_each(|launch| fact.bind(launch, |a, b| a == b))
}

fn overlap(a: Place, b: Place) -> bool {
    a.bytes > 0 && b.bytes > 0 && a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes
}
