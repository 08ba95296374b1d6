//! Results of the passes, and the requirements of a launch.

use crate::check_in_loops::LoopOutcome;
use crate::fence_memory::Fencing;
use crate::inject_preempt_flag::Preemption;
use crate::outline_kernel_body::Outlining;
use crate::shared_error::SharedError;
use crate::virtualize_block_index::Virtualization;
use atoll_ptx::{Function, Module};

/// Results of the passes, and the requirements of a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransformReport {
    /// One for each kernel with a body, in the order of the module.
    pub kernels: Vec<KernelReport>,
}

/// One kernel after the passes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelReport {
    /// The kernel's name.
    pub name: String,
    /// Bytes of its parameter block, appended parameters included.
    pub params_bytes: u32,
    /// Bytes of dynamic shared memory that a launch must provide for variables that were static,
    /// and for the passes.
    pub shared_bytes: u32,
    /// Whether the kernel used dynamic shared memory before: a launch then provides those bytes in
    /// addition to [`KernelReport::shared_bytes`].
    pub has_dynamic_shared: bool,
    /// Static shared variables that the kernel can reach and that could not be moved, each with the
    /// reason.
    pub kept_shared: Vec<SharedError>,
    /// Whether all its accesses are bounded to its tenant's memory, or why not.
    pub fencing: Fencing,
    /// Whether it is preemptible at entry, or why not.
    pub preemption: Preemption,
    /// Byte offset of the appended [`atoll_kgraph::preempt_params`], if one of the passes appended
    /// them.
    pub preempt_params: Option<u32>,
    /// The loops that `check_in_loops` examined, in source order.
    pub loops: Vec<LoopOutcome>,
    /// Whether its thread and block indices are virtual, or why not.
    pub virtualization: Virtualization,
    /// Whether its body is a device function, or why not.
    pub outlining: Outlining,
    /// Number of unreachable statements removed.
    pub unreachable_statements: u32,
    /// Number of divisions and remainders by constants that were replaced.
    pub reduced_divisions: u32,
    /// Number of instructions removed because their results are never read.
    pub dead_instructions: u32,
}

impl TransformReport {
    /// The report of a module that no pass has seen yet.
    pub(crate) fn untransformed(module: &Module) -> TransformReport {
        TransformReport { kernels: module.kernels().map(KernelReport::untransformed).collect() }
    }

    /// Stores the outcome of a pass for each kernel in the kernel's report.
    pub(crate) fn record<T>(
        &mut self,
        outcomes: impl IntoIterator<Item = T>,
        mut note: impl FnMut(&mut KernelReport, T),
    ) {
        self.kernels.iter_mut().zip(outcomes).for_each(|(kernel, outcome)| note(kernel, outcome));
    }
}

impl KernelReport {
    fn untransformed(kernel: &Function) -> KernelReport {
        KernelReport {
            name: kernel.name.to_string(),
            params_bytes: 0,
            shared_bytes: 0,
            has_dynamic_shared: false,
            kept_shared: Vec::new(),
            fencing: Fencing::NotAsked,
            preemption: Preemption::NotAsked,
            preempt_params: None,
            loops: Vec::new(),
            virtualization: Virtualization::NotAsked,
            outlining: Outlining::NotAsked,
            unreachable_statements: 0,
            reduced_divisions: 0,
            dead_instructions: 0,
        }
    }

    /// Byte offset of the appended [`atoll_kgraph::fence_params`]; `None` if the kernel does not
    /// have them.
    pub fn fence_offset(&self) -> Option<u32> {
        match self.fencing {
            Fencing::Fenced { offset } => Some(offset),
            Fencing::NotAsked | Fencing::Refused(_) => None,
        }
    }

    /// Byte offset of the appended [`atoll_kgraph::preempt_params`]; `None` if the kernel does not
    /// have them.
    pub fn preempt_offset(&self) -> Option<u32> {
        self.preempt_params
    }

    /// Whether its blocks record in the progress map that they ran. If not, an evicted launch runs
    /// again as a whole, which kernels that only have checks in loops allow.
    pub fn keeps_progress(&self) -> bool {
        matches!(self.preemption, Preemption::Injected { .. })
    }
}
