//! Passes from PTX to PTX (design D1): what makes an ordinary kernel one that Atoll can preempt and pad.
//!
//! One file per pass, one verb per pass; `PIPELINE` is the order. [`transform`] verifies the module before the first pass and after each one, so a fault in
//! between is a bug of the pass that ran last and is reported as that.
//!
//! What it is not: it allocates no registers, chooses no target and changes no text by pattern. A kernel that a pass cannot handle
//! safely is left as it was, with the reason in the report.

mod code;
mod cuttable;
mod error;
mod inject_preempt_flag;
mod module_facts;
mod shared_to_dynamic;
mod threads;

pub use cuttable::NotCut;
pub use error::PassError;
pub use inject_preempt_flag::{Completion, Preemption};
pub use shared_to_dynamic::{DYNAMIC_SHARED, SharedError};

use atoll_ptx::{Module, verify};

/// Which passes run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransformOptions {
    /// Make kernels preemptible.
    pub inject_preempt_flag: bool,
    /// Move static shared memory into the dynamic array.
    pub shared_to_dynamic: bool,
}

impl Default for TransformOptions {
    fn default() -> TransformOptions {
        TransformOptions { inject_preempt_flag: true, shared_to_dynamic: true }
    }
}

/// What the passes did, and what a launch must know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransformReport {
    /// One for each kernel with a body, in the order of the module.
    pub kernels: Vec<KernelReport>,
}

/// One kernel after the passes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelReport {
    /// Its name.
    pub name: String,
    /// Bytes of its parameter block, appended parameters included.
    pub params_bytes: u32,
    /// Dynamic shared memory a launch must give for what the kernel declared statically, and for the passes.
    pub shared_bytes: u32,
    /// Whether the kernel used dynamic shared memory before: a launch then gives those bytes in addition to [`KernelReport::shared_bytes`].
    pub has_dynamic_shared: bool,
    /// Whether it is preemptible, and why not.
    pub preemption: Preemption,
}

impl KernelReport {
    /// Byte offset of the appended [`atoll_kgraph::preempt_params`]; `None` for a kernel that does not have them.
    pub fn preempt_offset(&self) -> Option<u32> {
        match self.preemption {
            Preemption::Injected { offset, .. } => Some(offset),
            Preemption::NotAsked | Preemption::NotCut(_) => None,
        }
    }
}

/// A pass: its name, whether it was asked for, and what runs it.
struct Pass {
    name: &'static str,
    wanted: fn(&TransformOptions) -> bool,
    run: fn(&mut Module, &mut TransformReport) -> Result<(), PassError>,
}

/// The passes in order. The preemption flag may need shared memory of its own, so it comes before shared memory is laid out.
const PIPELINE: [Pass; 2] = [
    Pass {
        name: "inject_preempt_flag",
        wanted: |options| options.inject_preempt_flag,
        run: |module, report| {
            let outcomes = inject_preempt_flag::inject_preempt_flag(module)?;
            report.kernels.iter_mut().zip(outcomes).for_each(|(kernel, outcome)| kernel.preemption = outcome);
            Ok(())
        },
    },
    Pass {
        name: "shared_to_dynamic",
        wanted: |options| options.shared_to_dynamic,
        run: |module, report| {
            let uses = shared_to_dynamic::shared_to_dynamic(module)?;
            for (kernel, shared) in report.kernels.iter_mut().zip(uses) {
                kernel.shared_bytes = shared.bytes;
                kernel.has_dynamic_shared = shared.has_dynamic;
            }
            Ok(())
        },
    },
];

/// Runs the passes over a module. `after_pass` sees the name of each pass that ran and the verified module behind it, to dump it for instance.
pub fn transform(
    module: &mut Module,
    options: &TransformOptions,
    after_pass: &mut dyn FnMut(&str, &Module),
) -> Result<TransformReport, PassError> {
    verify(module).map_err(PassError::InvalidInput)?;
    let mut report = TransformReport { kernels: module.kernels().map(untransformed).collect() };
    for pass in PIPELINE.iter().filter(|pass| (pass.wanted)(options)) {
        (pass.run)(module, &mut report)?;
        verify(module).map_err(|faults| PassError::InvalidOutput { pass: pass.name, faults })?;
        after_pass(pass.name, module);
    }
    for (kernel, facts) in module.kernels().zip(&mut report.kernels) {
        // A parameter list is limited to 32 KiB where the flag was injected; where not, a longer one is the assembler's to refuse.
        facts.params_bytes = u32::try_from(module_facts::params_bytes(kernel)).unwrap_or(u32::MAX);
    }
    Ok(report)
}

fn untransformed(kernel: &atoll_ptx::Function) -> KernelReport {
    KernelReport {
        name: kernel.name.to_string(),
        params_bytes: 0,
        shared_bytes: 0,
        has_dynamic_shared: false,
        preemption: Preemption::NotAsked,
    }
}
