//! Operands whose elements a node needs at compile time, and the errors if they are not known then.

use super::error::{LowerError, LowerResult, SizeFact};
use super::lowering::{Lowering, SIZES_MAX};
use crate::size::static_shape;
use crate::tensor::{Data, is_float};
use crate::tensor_graph::ValueId;
use atoll_kgraph::{Expr, SymbolId};

/// Largest number of elements of an input whose elements are sizes; each becomes a symbol.
const INPUT_SIZES_MAX: usize = 64;

impl Lowering {
    /// The elements of a small tensor of integers (or of floats with integer values), if known at
    /// compile time.
    pub(crate) fn known(&self, id: ValueId) -> Option<Vec<Expr>> {
        if let Some(sizes) = self.sizes.get(&id) {
            return Some(sizes.clone());
        }
        static_shape(self.shape(id)).filter(|shape| shape.iter().product::<usize>() <= SIZES_MAX)?;
        match self.tensor(id)?.data {
            Data::Int(values) => Some(values.into_iter().map(Expr::Const).collect()),
            Data::Float(values) => values
                .into_iter()
                .map(|v| (v == v.trunc() && v.abs() < 9e15).then_some(Expr::Const(v as i64)))
                .collect(),
        }
    }

    /// As [`Lowering::known`], but an error if they are not known. The elements of an input become
    /// symbols when they are first required.
    pub(crate) fn require_known(&self, id: ValueId, what: &str) -> LowerResult<Vec<Expr>> {
        self.known(id).ok_or_else(|| {
            let count = static_shape(self.shape(id)).map(|shape| shape.iter().product::<usize>());
            let is_short = count.is_some_and(|count| count <= INPUT_SIZES_MAX) && !is_float(self.dtype(id));
            match self.graph.inputs.contains(&id) && is_short {
                true => LowerError::Restart(SizeFact::Elements(id)),
                false => run_time_only(what),
            }
        })
    }

    /// Elements that are plain numbers at compile time.
    pub(crate) fn require_ints(&self, id: ValueId, what: &str) -> LowerResult<Vec<i64>> {
        let known = self.known(id).ok_or_else(|| run_time_only(what))?;
        known.iter().map(|e| e.as_const().ok_or_else(|| self.open_size(&format!("its {what}"), e))).collect()
    }

    /// The error for `what`, which must be a number but is a size that the model leaves open.
    pub(crate) fn open_size(&self, what: &str, size: &Expr) -> LowerError {
        let symbols = self.graph.symbols.iter().zip((0..).map(SymbolId));
        let is_dimension =
            |id: SymbolId| !self.graph.elements.iter().any(|element| element.symbol == id) && !self.is_run_time(id);
        let fixed: Vec<String> = symbols
            .filter(|(_, id)| size.depends_on(*id) && is_dimension(*id))
            .map(|(symbol, _)| format!("`--fix {}=SIZE`", symbol.name))
            .collect();
        let hint = if fixed.is_empty() { String::new() } else { format!("; fix it with {}", fixed.join(" ")) };
        LowerError::Unsupported(format!(
            "{what} is {}, which is a symbolic size and must be a number{hint}",
            size.named(&self.graph.symbols)
        ))
    }

    fn is_run_time(&self, id: SymbolId) -> bool {
        self.graph.run_time_sizes.iter().any(|size| size.symbol == id)
    }

    /// The content of a constant as floats.
    pub(crate) fn require_floats(&self, id: ValueId, what: &str) -> LowerResult<Vec<f64>> {
        self.tensor(id).map(|t| t.to_f64()).ok_or_else(|| run_time_only(what))
    }
}

/// The error for an operand that must be known at compile time and is not.
fn run_time_only(what: &str) -> LowerError {
    LowerError::Unsupported(format!(
        "its {what} is known only at run time; it must be a constant, or computed from shapes"
    ))
}
