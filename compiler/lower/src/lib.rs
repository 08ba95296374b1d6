//! The target-independent half of lowering: turns a PTX kernel into typed basic blocks and analyses
//! their structure for a target.
//!
//! Start at [`Kernel::of`], which runs these steps:
//! - [`read`] turns a kernel into basic blocks ([`program`]).
//! - `webs` splits its registers into independent values.
//! - [`bounds`] recognises address checks.
//! - [`loops`] finds the loops, and `spins` those that wait for other threads.
//! - [`analysis`] and [`shape`] find registers that are uniform, or an arithmetic progression over
//!   lanes, and branches that diverge.
//!
//! [`alignment`], [`flushed`] and [`loads`] each answer one question that a target has while it
//! generates code.
//!
//! Invariants:
//! - The facts hold for every grid and all parameter values; they depend on the block shape.
//! - A construct that cannot be lowered is an error here, with its line and the name of the target.
//! - Time and memory are bounded for every kernel (`limits`): PTX is untrusted input.
//!
//! This crate generates no code and does not change PTX.

pub mod alignment;
pub mod analysis;
pub mod bounds;
pub mod elem;
mod error;
mod fixpoint;
pub mod flushed;
pub mod forms;
pub mod graph;
mod joins;
mod limits;
pub mod live;
pub mod loads;
pub mod loops;
pub mod program;
pub mod read;
pub mod shape;
mod spins;
pub mod variables;
mod webs;

pub use error::LowerError;
pub use limits::TooLarge;

#[cfg(test)]
mod tests;

use analysis::Analysis;
use atoll_ptx::{Function, Module};
use limits::{Budget, MAX_STEPS};
use program::Program;
use shape::BlockShape;
use spins::Spinning;

/// A kernel that is ready for code generation.
#[derive(Debug)]
pub struct Kernel {
    /// Its basic blocks; registers are webs.
    pub program: Program,
    /// Facts about its control flow and registers.
    pub analysis: Analysis,
}

impl Kernel {
    /// Reads and analyses a kernel of a module for a block shape. `target` is the name of the
    /// target in errors.
    ///
    /// # Errors
    /// [`LowerError`] with the line, if the kernel is malformed or uses something that the targets
    /// do not support.
    pub fn of(
        module: &Module,
        function: &Function,
        block: BlockShape,
        target: &'static str,
    ) -> Result<Kernel, LowerError> {
        Kernel::within(module, function, block, target, &mut Budget::new(MAX_STEPS))
    }

    /// Like [`Kernel::of`], with the steps that the analyses may take.
    fn within(
        module: &Module,
        function: &Function,
        block: BlockShape,
        target: &'static str,
        budget: &mut Budget,
    ) -> Result<Kernel, LowerError> {
        let one_warp = block.warps() == 1;
        let mut program = read::read_kernel(module, function, one_warp, target)?;
        let graph = graph::Graph::new(program.successors());
        let too_large = |error: TooLarge| LowerError::too_large(target, &function.name, error);
        let phis = webs::split_into_webs(&mut program, &graph).map_err(too_large)?;
        bounds::join(&mut program);
        if !Spinning::of(&program, budget).map_err(too_large)?.is_empty() {
            spins::isolate_convergent(&mut program);
        }
        let analysis = analysis::analyse(&program, &phis, block, budget).map_err(too_large)?;
        Ok(Kernel { program, analysis })
    }
}
