//! Passes from PTX to PTX that make ordinary kernels preemptible, fenced, and suitable for padding.
//!
//! Start at [`PASSES`], which lists all passes in their order, and at [`transform_with`], which
//! runs them. Each pass has one file, named by a verb. [`analyze_idempotence()`] and
//! [`analyze_effects`] are analyses of untransformed kernels that other crates use too.
//!
//! Invariants:
//! - The module is verified before the first pass and after each pass, so an invalid module is
//!   reported as a bug of the pass that ran last.
//! - A kernel that a pass cannot handle safely is left unchanged, with the reason in the report.
//!
//! This crate does not allocate hardware registers, does not generate machine code, and never edits
//! PTX as text.

mod analyze_idempotence;
mod check_in_loops;
mod code;
mod counted_loops;
mod effects;
mod epoch;
mod error;
mod exit_on_trap;
mod fence_memory;
mod inject_preempt_flag;
mod module_facts;
mod options;
mod outline_kernel_body;
mod preemptible;
mod reduce_divisions;
mod remove_dead_registers;
mod remove_unreachable_code;
mod report;
mod shared_error;
mod shared_survey;
mod shared_to_dynamic;
mod surplus_lanes;
mod threads;
mod unstable;
mod virtual_registers;
mod virtualize_block_index;

pub use analyze_idempotence::{NotRerunnable, Rerun, analyze_idempotence};
pub use check_in_loops::{LoopDecision, LoopOutcome, LoopSkipped};
pub use effects::{KernelEffects, Root, analyze_effects};
pub use error::PassError;
pub use fence_memory::{Fencing, NotFenced};
pub use inject_preempt_flag::{Completion, Preemption};
pub use options::{FenceForm, PassOptions};
pub use outline_kernel_body::{NotOutlined, Outlining};
pub use preemptible::NotPreemptible;
pub use report::{KernelReport, TransformReport};
pub use shared_error::SharedError;
pub use shared_to_dynamic::DYNAMIC_SHARED;
pub use surplus_lanes::Obstacle;
pub use virtualize_block_index::{NotVirtualized, VirtualLaunch, Virtualization};

use atoll_ptx::{Module, verify};

/// A pass from PTX to PTX.
#[derive(Debug)]
pub struct Pass {
    /// Its name, a verb.
    pub name: &'static str,
    /// What it does, in one line.
    pub doc: &'static str,
    run: fn(&mut Module, &PassOptions, &mut TransformReport) -> Result<(), PassError>,
}

/// Every pass, in the order of execution.
///
/// The order follows from these dependencies:
/// - `remove_unreachable_code` is first, because the analyses of the other passes count unreachable
///   code too.
/// - `fence_memory` precedes the passes that add accesses to memory of the runtime, which must not
///   be bounded.
/// - `check_in_loops` precedes `inject_preempt_flag`, which chooses a [`Completion`] that is
///   correct for the barriers of the checks.
/// - `inject_preempt_flag` precedes `shared_to_dynamic`, because its counter is a shared variable,
///   and `virtualize_block_index`, because the flag must read virtual indices too.
/// - `virtualize_block_index` precedes `outline_kernel_body`, so that the outlined body reads
///   virtual indices.
/// - `reduce_divisions` follows the passes that emit divisions or make divisors constant. It
///   precedes `outline_kernel_body`, because reports count the divisions of each kernel.
/// - `exit_on_trap` follows the passes that count threads or analyse traps: threads that it ends are
///   not counted as finished.
/// - `remove_dead_registers` is last.
pub const PASSES: &[Pass] = &[
    Pass {
        name: "remove_unreachable_code",
        doc: "removes unreachable code",
        run: |module, _, report| {
            let counts = remove_unreachable_code::remove_unreachable_code(module)?;
            report.record(counts, |kernel, count| kernel.unreachable_statements = count);
            Ok(())
        },
    },
    Pass {
        name: "fence_memory",
        doc: "bounds every access to the memory of one tenant",
        run: |module, options, report| {
            let outcomes = fence_memory::fence_memory(module, options.fence_form)?;
            report.record(outcomes, |kernel, outcome| kernel.fencing = outcome);
            Ok(())
        },
    },
    Pass {
        name: "check_in_loops",
        doc: "checks the epoch in long loops of kernels whose blocks may run again",
        run: |module, options, report| {
            let outcomes = check_in_loops::check_in_loops(module, options)?;
            report.record(outcomes, |kernel, outcome| {
                kernel.preempt_params = kernel.preempt_params.or(outcome.params_offset);
                kernel.loops = outcome.loops;
            });
            Ok(())
        },
    },
    Pass {
        name: "inject_preempt_flag",
        doc: "checks the epoch at block entry and records finished blocks",
        run: |module, _, report| {
            let outcomes = inject_preempt_flag::inject_preempt_flag(module)?;
            report.record(outcomes, |kernel, outcome| {
                if let Preemption::Injected { offset, .. } = outcome {
                    kernel.preempt_params = Some(offset);
                }
                kernel.preemption = outcome;
            });
            Ok(())
        },
    },
    Pass {
        name: "shared_to_dynamic",
        doc: "moves static shared memory into one dynamic array",
        run: |module, _, report| {
            let uses = shared_to_dynamic::shared_to_dynamic(module)?;
            report.record(uses, |kernel, shared| {
                kernel.shared_bytes = shared.bytes;
                kernel.has_dynamic_shared = shared.has_dynamic;
                kernel.kept_shared = shared.kept;
            });
            Ok(())
        },
    },
    Pass {
        name: "virtualize_block_index",
        doc: "computes virtual thread and block indices, so that several kernels can share a launch",
        run: |module, options, report| {
            let outcomes = virtualize_block_index::virtualize_block_index(module, options)?;
            report.record(outcomes, |kernel, outcome| kernel.virtualization = outcome);
            Ok(())
        },
    },
    Pass {
        name: "reduce_divisions",
        doc: "replaces integer divisions by constants",
        run: |module, _, report| {
            let counts = reduce_divisions::reduce_divisions(module)?;
            report.record(counts, |kernel, count| kernel.reduced_divisions = count);
            Ok(())
        },
    },
    Pass {
        name: "outline_kernel_body",
        doc: "moves the body to a device function that the entry calls",
        run: |module, _, report| {
            report
                .record(outline_kernel_body::outline_kernel_body(module), |kernel, outcome| kernel.outlining = outcome);
            Ok(())
        },
    },
    Pass {
        name: "exit_on_trap",
        doc: "ends a thread where it would trap, and tells the launch (form `exit` of the fence)",
        run: |module, _, _| {
            exit_on_trap::exit_on_trap(module);
            Ok(())
        },
    },
    Pass {
        name: "remove_dead_registers",
        doc: "removes instructions whose results are never read",
        run: |module, _, report| {
            let counts = remove_dead_registers::remove_dead_registers(module)?;
            report.record(counts, |kernel, count| kernel.dead_instructions = count);
            Ok(())
        },
    },
];

/// The passes that turn a kernel into a candidate, which can share a launch with other kernels.
pub const CANDIDATE_PASSES: &[&str] =
    &["shared_to_dynamic", "virtualize_block_index", "reduce_divisions", "outline_kernel_body"];

/// Selects the passes that models are compiled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransformOptions {
    /// Make kernels preemptible.
    pub inject_preempt_flag: bool,
    /// Move static shared memory to the dynamic array.
    pub shared_to_dynamic: bool,
    /// Replace divisions by constants; for targets whose assembler does not do it.
    pub reduce_divisions: bool,
}

impl Default for TransformOptions {
    fn default() -> TransformOptions {
        TransformOptions { inject_preempt_flag: true, shared_to_dynamic: true, reduce_divisions: true }
    }
}

impl TransformOptions {
    /// No pass: kernels stay as they were generated.
    pub const NONE: TransformOptions =
        TransformOptions { inject_preempt_flag: false, shared_to_dynamic: false, reduce_divisions: false };

    /// The selected passes, in the order of [`PASSES`].
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let choices = [
            ("inject_preempt_flag", self.inject_preempt_flag),
            ("shared_to_dynamic", self.shared_to_dynamic),
            ("reduce_divisions", self.reduce_divisions),
        ];
        choices.into_iter().filter(|(_, wanted)| *wanted).map(|(name, _)| name)
    }
}

/// Runs the passes that models are compiled with. `after_pass` is called with the name of each pass
/// and the verified module after it, for instance to dump it.
///
/// # Errors
/// As [`transform_with`].
pub fn transform(
    module: &mut Module,
    options: &TransformOptions,
    after_pass: &mut dyn FnMut(&str, &Module),
) -> Result<TransformReport, PassError> {
    transform_with(module, &options.names().collect::<Vec<_>>(), &PassOptions::default(), after_pass)
}

/// Runs the named passes on a module, each once, in the order of [`PASSES`]. `after_pass` is called
/// with the name of each pass and the verified module after it.
///
/// # Errors
/// [`PassError`] for an unknown name, a module that is invalid or was already transformed, or a bug
/// in a pass. A kernel that a pass must leave unchanged is not an error but a reason in the report.
pub fn transform_with(
    module: &mut Module,
    names: &[&str],
    options: &PassOptions,
    after_pass: &mut dyn FnMut(&str, &Module),
) -> Result<TransformReport, PassError> {
    if let Some(unknown) = names.iter().find(|name| PASSES.iter().all(|pass| pass.name != **name)) {
        let known = PASSES.iter().map(|pass| pass.name).collect::<Vec<_>>().join(", ");
        return Err(PassError::UnknownPass { name: (*unknown).to_owned(), known });
    }
    verify(module).map_err(PassError::InvalidInput)?;
    let mut report = TransformReport::untransformed(module);
    for pass in PASSES.iter().filter(|pass| names.contains(&pass.name)) {
        (pass.run)(module, options, &mut report)?;
        verify(module).map_err(|faults| PassError::InvalidOutput { pass: pass.name, faults })?;
        after_pass(pass.name, module);
    }
    for (kernel, facts) in module.kernels().zip(&mut report.kernels) {
        // A parameter list to which parameters were appended is limited to 32 KiB; a longer one
        // without appended parameters is left to the assembler to reject.
        facts.params_bytes = u32::try_from(module_facts::params_bytes(kernel)).unwrap_or(u32::MAX);
    }
    Ok(report)
}
