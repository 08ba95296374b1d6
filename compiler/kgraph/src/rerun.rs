//! May a block of a node be run again after it was stopped midway (design D5 f)?
//!
//! The compiler proves a fact about each kernel, [`RerunFact`]; what it means for a node depends on
//! the buffers that are bound to the kernel's parameters.

use crate::graph::{BufferId, BufferKind, KernelGraph};
use crate::layout::{InvocationLayout, Place};
use crate::target::{Argument, KernelId, LaunchSpec, TargetImage};
use serde::{Deserialize, Serialize};

/// Whether a block of a kernel may be run again from its start, after it was stopped anywhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RerunFact {
    /// Yes, whatever it is launched on.
    Always,
    /// Yes, if in each pair what the read parameter points to does not overlap what the written one
    /// does.
    IfDisjoint(Vec<DisjointPair>),
    /// No, or not as far as could be proven; with the reason.
    Never(String),
}

/// Two parameters whose buffers must not overlap, by position in the kernel's parameter list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DisjointPair {
    /// What the kernel reads through.
    pub read: u32,
    /// What it writes through.
    pub written: u32,
}

/// Why a node may not be run again midway.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAgain {
    /// The compiler recorded nothing: the bundle is older than the fact.
    #[error("nothing is known about running the kernel again")]
    Unknown,
    /// The kernel may not, on whatever buffers.
    #[error("{0}")]
    Kernel(String),
    /// The node binds one memory to two parameters.
    #[error("parameters {read} and {written} share memory, and the kernel reads the one and writes the other")]
    Overlap {
        /// The parameter that is read.
        read: u32,
        /// The parameter that is written.
        written: u32,
    },
    /// The kernel uses something as an address that the node gives it as a number.
    #[error("parameter {0} is used as an address and is no buffer")]
    NoBuffer(u32),
}

impl RerunFact {
    /// Applies the fact to one launch; `overlap` says whether two buffers share memory. The word of
    /// a check is no buffer's.
    fn bind(&self, launch: &LaunchSpec, overlap: impl Fn(BufferId, BufferId) -> bool) -> Result<(), NotAgain> {
        let pairs = match self {
            RerunFact::Always => return Ok(()),
            RerunFact::Never(reason) => return Err(NotAgain::Kernel(reason.clone())),
            RerunFact::IfDisjoint(pairs) => pairs,
        };
        let buffer = |param: u32| match launch.args.get(param as usize) {
            Some(Argument::Buffer { buffer, .. }) => Ok(Some(*buffer)),
            Some(Argument::Check { .. }) => Ok(None),
            // The addresses in a structure are not told apart.
            _ => Err(NotAgain::NoBuffer(param)),
        };
        for &DisjointPair { read, written } in pairs {
            let shared = match (buffer(read)?, buffer(written)?) {
                (Some(a), Some(b)) => overlap(a, b),
                // One that is read through as well is not written alone.
                (None, None) => launch.args.get(read as usize) == launch.args.get(written as usize),
                _ => false,
            };
            if shared {
                return Err(NotAgain::Overlap { read, written });
            }
        }
        Ok(())
    }
}

fn fact(target: &TargetImage, kernel: KernelId) -> Result<&RerunFact, NotAgain> {
    target.kernels[kernel.0 as usize].rerun.as_ref().ok_or(NotAgain::Unknown)
}

/// Whether the blocks of a node may be run again in an invocation with this layout. Nodes that
/// launch no kernel may.
pub fn node_may_run_again(
    graph: &KernelGraph,
    target: &TargetImage,
    layout: &InvocationLayout,
    node: usize,
) -> Result<(), NotAgain> {
    let (Some(spec), Some(chosen)) = (&target.launches[node], layout.launches[node]) else { return Ok(()) };
    let launch = spec.variant(chosen.variant);
    fact(target, launch.kernel)?.bind(launch, |a, b| {
        // Weights and state lie in allocations of their own.
        let memory = |id: BufferId| match graph.buffers[id.0 as usize].kind {
            BufferKind::Const => 0,
            BufferKind::State => 1,
            BufferKind::Input | BufferKind::Output | BufferKind::Temp => 2,
        };
        memory(a) == memory(b) && overlap(layout.buffer(a), layout.buffer(b))
    })
}

/// Whether a kernel may be run again on every node that launches it, whatever the symbols are: the
/// memory plan gives no two buffers that live at once the same memory, so different buffers are
/// enough.
pub fn kernel_may_run_again(target: &TargetImage, kernel: KernelId) -> Result<(), NotAgain> {
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
