//! The front half of lowering: a kernel in PTX as typed basic blocks, with what a target has to
//! know of its structure.
//!
//! [`Kernel::of`] is the way through the crate: [`read`] turns a kernel into basic blocks
//! ([`program`]); `webs` splits its registers; [`bounds`] joins tests of addresses; [`analysis`]
//! with [`shape`] finds out which registers are the same in all lanes or step evenly, and which
//! branches part lanes; `spins` finds loops that wait for other threads. [`alignment`], [`flushed`]
//! and [`loads`] answer single questions that a target asks while it writes code.
//!
//! Invariants:
//! - the facts are right for every grid and all parameters; they depend on the block shape;
//! - what is not supported is refused here, with the line and the target's name.
//!
//! What it is not: it writes no code, and it changes no PTX.

pub mod alignment;
pub mod analysis;
pub mod bounds;
pub mod elem;
mod error;
pub mod flushed;
pub mod forms;
pub mod graph;
mod joins;
pub mod live;
pub mod loads;
pub mod program;
pub mod read;
pub mod shape;
mod spins;
pub mod variables;
mod webs;

pub use error::LowerError;

#[cfg(test)]
mod tests;

use analysis::Analysis;
use atoll_ptx::{Function, Module};
use live::TooLarge;
use program::Program;
use shape::BlockShape;

/// A kernel, ready for a target to write code of.
#[derive(Debug)]
pub struct Kernel {
    /// Its basic blocks; registers are webs.
    pub program: Program,
    /// What is known of its control flow and registers.
    pub analysis: Analysis,
}

impl Kernel {
    /// Reads and analyses a kernel of a module for a block shape. `target` is the name of the
    /// target in errors.
    ///
    /// # Errors
    /// What is no PTX, or none that the targets support, with its line.
    pub fn of(
        module: &Module,
        function: &Function,
        block: BlockShape,
        target: &'static str,
    ) -> Result<Kernel, LowerError> {
        let one_warp = block.warps() == 1;
        let mut program = read::read_kernel(module, function, one_warp, target)?;
        let graph = graph::Graph::new(program.successors());
        let too_large = |error: TooLarge| LowerError::too_large(target, &function.name, error);
        let phis = webs::split_into_webs(&mut program, &graph).map_err(too_large)?;
        bounds::join(&mut program);
        if !analysis::spinning_loops(&program).is_empty() {
            spins::isolate_meetings(&mut program);
        }
        let analysis = analysis::analyse(&program, &phis, block).map_err(too_large)?;
        Ok(Kernel { program, analysis })
    }
}
