//! Variables and their initial values.

use super::{FaultKind, Verifier};
use crate::ast::*;
use crate::limits::{MAX_CONST_BYTES, MAX_GLOBAL_BYTES, MAX_LOCAL_BYTES, MAX_PARAMETER_BYTES, MAX_SHARED_BYTES};
use crate::types::StateSpace;

/// Maximum size in bytes of a variable, or of all variables of a function, in a state space.
pub(super) fn limit(space: StateSpace) -> u64 {
    match space {
        StateSpace::Shared => MAX_SHARED_BYTES,
        StateSpace::Local => MAX_LOCAL_BYTES,
        StateSpace::Param => MAX_PARAMETER_BYTES,
        StateSpace::Const => MAX_CONST_BYTES,
        StateSpace::Global | StateSpace::Reg | StateSpace::Sreg | StateSpace::Tex => MAX_GLOBAL_BYTES,
    }
}

impl Verifier<'_> {
    /// Checks a variable of the module or of a function.
    pub(super) fn variable(&mut self, variable: &Variable) {
        let is_sized = variable.dimensions.iter().all(Option::is_some);
        if !is_sized && variable.linkage != Linkage::Extern && variable.initializer.is_none() {
            self.fault(FaultKind::Unsized(variable.name.clone()));
        }
        self.layout(variable);
        if let Some(initializer) = &variable.initializer {
            self.initializer(variable, initializer);
        }
    }

    /// Checks size and alignment of a variable or parameter.
    pub(super) fn layout(&mut self, variable: &Variable) {
        let limit = limit(variable.space);
        let bytes = variable.bytes().unwrap_or(u64::MAX);
        if bytes > limit {
            self.fault(FaultKind::TooLarge { space: variable.space, bytes, limit });
        }
        let alignments = [variable.align, variable.pointer.and_then(|p| p.align)];
        for align in alignments.into_iter().flatten().filter(|align| !align.is_power_of_two()) {
            self.fault(FaultKind::Alignment(align));
        }
    }

    fn initializer(&mut self, variable: &Variable, initializer: &Initializer) {
        let why = |why| FaultKind::Initializer { name: variable.name.clone(), why };
        if !matches!(variable.space, StateSpace::Global | StateSpace::Const) || variable.linkage == Linkage::Extern {
            self.fault(why("is not allowed here"));
        }
        let mut extents: Vec<Option<u64>> = variable.dimensions.clone();
        extents.extend(variable.vector.map(|width| Some(width.into())));
        if !fits(initializer, &extents) {
            self.fault(why("has more values than the variable"));
        }
        self.initializer_symbols(initializer);
    }

    fn initializer_symbols(&mut self, initializer: &Initializer) {
        match initializer {
            Initializer::Immediate(_) => {}
            Initializer::Symbol { name, .. } => {
                if self.symbol(name).is_none() {
                    self.fault(FaultKind::Undeclared(name.clone()));
                }
            }
            Initializer::List(items) => items.iter().for_each(|item| self.initializer_symbols(item)),
        }
    }
}

/// Whether every list is at most as long as its dimension.
fn fits(initializer: &Initializer, extents: &[Option<u64>]) -> bool {
    match (initializer, extents) {
        (Initializer::List(items), [extent, rest @ ..]) => {
            extent.is_none_or(|extent| items.len() as u64 <= extent) && items.iter().all(|item| fits(item, rest))
        }
        // `{1}` is allowed for a scalar.
        (Initializer::List(items), []) => items.len() <= 1,
        _ => true,
    }
}
