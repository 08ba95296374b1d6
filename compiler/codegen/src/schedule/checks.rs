//! The checks that kernels make at run time ([`atoll_kgraph::Check`]).

use super::WorkKind;
use crate::schedule::Tensor;
use atoll_frontend::tensor_graph::{INDEX_OUTSIDE, Op};
use atoll_kgraph::Expr;

/// Number of the check for an integer division by zero; the same in every kernel.
pub(crate) const DIVISION: u32 = 0;
/// Number of the first operator-specific check.
pub(crate) const FIRST_OWN: u32 = 1;

/// A check of a kernel, with the kernel's own number.
pub(super) struct OwnCheck {
    /// The kernel's own number.
    pub(super) number: u32,
    /// The message, as in [`atoll_kgraph::Check`].
    pub(super) text: String,
    pub(super) values: Vec<Expr>,
}

/// The checks of a kernel.
pub(super) fn of(kind: &WorkKind, inputs: &[Tensor]) -> Vec<OwnCheck> {
    let WorkKind::Op(op) = kind else { return Vec::new() };
    match op {
        Op::Gather { axis } => inputs.first().map(|data| outside(&data.shape[*axis])).into_iter().collect(),
        Op::Pointwise(program) if program.may_divide_by_zero() => {
            vec![OwnCheck { number: DIVISION, text: "an integer is divided by zero".into(), values: Vec::new() }]
        }
        Op::Nest(nest) => {
            let own = (FIRST_OWN..).zip(nest.refusals());
            own.map(|(number, (text, values))| OwnCheck { number, text: text.into(), values: values.to_vec() })
                .collect()
        }
        _ => Vec::new(),
    }
}

/// The check of an index into an axis; a negative index counts from the end.
fn outside(extent: &Expr) -> OwnCheck {
    let values = vec![Expr::Const(0) - extent.clone(), extent.clone() - 1];
    OwnCheck { number: FIRST_OWN, text: INDEX_OUTSIDE.into(), values }
}
