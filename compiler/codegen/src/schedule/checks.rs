//! What kernels check while they run ([`atoll_kgraph::Check`]).

use super::WorkKind;
use crate::schedule::Tensor;
use atoll_frontend::tensor_graph::{INDEX_OUTSIDE, Op};
use atoll_kgraph::Expr;

/// The kernel's number of the check that no integer is divided by zero, in every kernel.
pub(crate) const DIVISION: u32 = 0;
/// The number of the first check that is an operator's own.
pub(crate) const FIRST_OWN: u32 = 1;

/// A check of a kernel.
pub(super) struct OwnCheck {
    /// The kernel's number for it.
    pub(super) number: u32,
    /// As in [`atoll_kgraph::Check`].
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

/// An index of an axis, which may be negative and then counts from the end.
fn outside(extent: &Expr) -> OwnCheck {
    let values = vec![Expr::Const(0) - extent.clone(), extent.clone() - 1];
    OwnCheck { number: FIRST_OWN, text: INDEX_OUTSIDE.into(), values }
}
