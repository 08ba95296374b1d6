//! Validates symbols, elements of inputs, and conditions.

use super::{Invalid, expression, invalid};
use crate::expr::Expr;
use crate::graph::{BufferKind, DType, KernelGraph};
use std::collections::HashSet;

/// Every symbol has a nonempty range, every element symbol refers to one existing element, and
/// conditions use only symbols of the graph that are known when inputs are bound.
pub(super) fn check(graph: &KernelGraph) -> Result<(), Invalid> {
    let elements = elements(graph)?;
    for (id, symbol) in graph.symbols.iter().enumerate() {
        let may_be_negative = elements.contains(&id);
        if symbol.max < symbol.min || (symbol.min < 0 && !may_be_negative) {
            return Err(invalid(&symbol.name, "a symbol's range is empty or negative"));
        }
    }
    for condition in &graph.conditions {
        expression(graph, &condition.place, &condition.left)?;
        expression(graph, &condition.place, &condition.right)?;
        let depends = |side: &Expr| graph.read_backs.iter().any(|read_back| side.depends_on(read_back.symbol));
        if depends(&condition.left) || depends(&condition.right) {
            return Err(invalid(
                &condition.place,
                "a condition on a size that is read back cannot be checked when inputs are bound",
            ));
        }
    }
    Ok(())
}

/// Indices of the symbols that are elements of inputs.
fn elements(graph: &KernelGraph) -> Result<HashSet<usize>, Invalid> {
    let inputs: Vec<_> = graph.buffers_of(BufferKind::Input).map(|(_, buffer)| buffer).collect();
    let mut symbols = HashSet::new();
    for element in &graph.elements {
        let place = "an element of an input";
        let id = element.symbol.0 as usize;
        if id >= graph.symbols.len() || !symbols.insert(id) {
            return Err(invalid(place, format!("symbol {id} does not exist or is bound to two elements")));
        }
        let Some(input) = inputs.get(element.input as usize) else {
            return Err(invalid(place, format!("input {} does not exist", element.input)));
        };
        let count = input.shape.iter().try_fold(1_i64, |count, dim| count.checked_mul(dim.as_const()?));
        if count.is_none_or(|count| i64::from(element.index) >= count) {
            return Err(invalid(
                &input.name,
                format!("its shape must be constant and contain element {}", element.index),
            ));
        }
        if input.dtype.is_float() || input.dtype == DType::Strings {
            return Err(invalid(&input.name, "its elements must be integers, because one gives a size"));
        }
    }
    Ok(symbols)
}
