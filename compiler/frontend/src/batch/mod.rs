//! The batch axis: proves that the rows of a batch are independent of each other.
//!
//! A symbol `n` counts rows if every input and output has exactly one dimension that is `n`, and
//! row `i` of every value depends only on row `i` of the inputs. The analysis visits the nodes once
//! and records for each value the dimension of its rows (`Rows`). A rule per operator, in `rules`,
//! derives the dimension of the rows of each result. The analysis is conservative: if no rule
//! covers an operator or a shape, the graph has no batch axis, which costs speed and never gives a
//! wrong answer.

mod rules;

use crate::tensor_graph::{TensorGraph, TensorNode, ValueId};
use atoll_kgraph::{Expr, SymbolId};
use std::collections::HashMap;
use std::fmt;

/// Name of this analysis in bundles. It changes whenever the rules prove something different.
pub const PROOF: &str = "rows_of_tensor_graph_1";

/// A proven batch axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The number of rows.
    pub symbol: SymbolId,
    /// Per value, the dimension of the rows; `None` if the value is the same for all rows.
    pub axes: Vec<Option<usize>>,
}

/// The dimension of a value along which its rows lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rows {
    /// None: the value is the same for all rows.
    Same,
    /// This dimension.
    Axis(usize),
}

/// Why a symbol is not a batch axis.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{symbol}: {place}: {reason}")]
pub struct NoBatch {
    /// Name of the symbol.
    pub symbol: String,
    /// The value or node for which the proof fails.
    pub place: String,
    /// Why it fails there.
    pub reason: String,
}

/// The batch axis of a verified graph, or for each of its symbols the reason why it is not one. If
/// several symbols qualify, the result is the one whose dimensions are outermost in the inputs.
pub fn analyse(graph: &TensorGraph) -> Result<Batch, Vec<NoBatch>> {
    let mut candidates: Vec<SymbolId> = (0..graph.symbols.len() as u32).map(SymbolId).collect();
    let position = |symbol: &SymbolId| -> usize {
        let of_input = |id: &ValueId| {
            graph.value(*id).shape.iter().position(|dim| *dim == Expr::Symbol(*symbol)).unwrap_or(usize::MAX / 4096)
        };
        graph.inputs.iter().map(of_input).fold(0, usize::saturating_add)
    };
    candidates.sort_by_key(position);
    let mut refusals = Vec::new();
    for symbol in candidates {
        match prove(graph, symbol) {
            Ok(axes) => return Ok(Batch { symbol, axes }),
            Err((place, reason)) => {
                refusals.push(NoBatch { symbol: graph.symbols[symbol.0 as usize].name.clone(), place, reason })
            }
        }
    }
    Err(refusals)
}

/// Place and reason of a refusal.
type Refusal = (String, String);

/// The dimension of the rows per value, if the rows that the symbol counts are independent.
fn prove(graph: &TensorGraph, symbol: SymbolId) -> Result<Vec<Option<usize>>, Refusal> {
    let at = |id: ValueId, reason: &str| (graph.value(id).name.clone(), reason.to_owned());
    let mut rows: HashMap<ValueId, Rows> = HashMap::new();
    for (index, value) in graph.values.iter().enumerate().filter(|(_, value)| value.constant.is_some()) {
        let id = ValueId(index as u32);
        if value.shape.iter().any(|dim| dim.depends_on(symbol)) {
            return Err(at(id, "the shape of a constant depends on it"));
        }
        rows.insert(id, Rows::Same);
    }
    if graph.inputs.is_empty() || graph.outputs.is_empty() {
        return Err((graph.name.clone(), "the model has no input or no output".into()));
    }
    if let Some(step) = graph.strings.steps.first() {
        return Err((step.name.clone(), "the host computes it from the strings of one request".into()));
    }
    let conditioned = graph
        .conditions
        .iter()
        .find(|condition| condition.left.depends_on(symbol) || condition.right.depends_on(symbol));
    if let Some(condition) = conditioned {
        return Err((condition.place.clone(), "it has a condition on the number of rows".into()));
    }
    for &id in &graph.inputs {
        let axis = axis_of(&graph.value(id).shape, symbol)
            .ok_or_else(|| at(id, "the input does not have exactly one dimension that is this size"))?;
        rows.insert(id, Rows::Axis(axis));
    }
    for node in &graph.nodes {
        let found = rules::apply(&Application { graph, node, symbol, rows: &rows })
            .map_err(|reason| (node.name.clone(), reason.to_string()))?;
        for (&output, found) in node.outputs.iter().zip(found) {
            check(&graph.value(output).shape, symbol, found).map_err(|reason| (node.name.clone(), reason))?;
            rows.insert(output, found);
        }
    }
    if let Some(&id) = graph.outputs.iter().find(|id| !matches!(rows.get(id), Some(Rows::Axis(_)))) {
        return Err(at(id, "the output is the same for all rows"));
    }
    let axis = |index: usize| match rows.get(&ValueId(index as u32)) {
        Some(Rows::Axis(axis)) => Some(*axis),
        _ => None,
    };
    Ok((0..graph.values.len()).map(axis).collect())
}

/// A node, and the rows of the values before it.
struct Application<'a> {
    graph: &'a TensorGraph,
    node: &'a TensorNode,
    symbol: SymbolId,
    rows: &'a HashMap<ValueId, Rows>,
}

/// Why a rule does not apply.
#[derive(Debug)]
enum Dependence {
    /// The operator combines rows, or values that depend on them.
    Mixes(&'static str),
    /// An operand is not produced by an earlier node.
    Unknown,
}

impl fmt::Display for Dependence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dependence::Mixes(what) => f.write_str(what),
            Dependence::Unknown => f.write_str("an operand is not produced by an earlier node"),
        }
    }
}

/// Checks the result of a rule: the dimension of the rows is the symbol, and no other dimension
/// depends on it.
fn check(shape: &[Expr], symbol: SymbolId, rows: Rows) -> Result<(), String> {
    let right = match rows {
        Rows::Same => shape.iter().all(|dim| !dim.depends_on(symbol)),
        Rows::Axis(axis) => axis_of(shape, symbol) == Some(axis),
    };
    right.then_some(()).ok_or_else(|| "the shape of its result depends on the number of rows in another way".into())
}

/// The only dimension that depends on the symbol, if it is exactly the symbol.
fn axis_of(shape: &[Expr], symbol: SymbolId) -> Option<usize> {
    let mut depending = shape.iter().enumerate().filter(|(_, dim)| dim.depends_on(symbol));
    let (axis, dim) = depending.next()?;
    (*dim == Expr::Symbol(symbol) && depending.next().is_none()).then_some(axis)
}
