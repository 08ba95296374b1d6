//! Folds a pointwise operation on looked-up rows into the table.
//!
//! `f(gather(table, indices))` equals `gather(f(table), indices)` if `f` is pointwise and its other
//! operands are the same for every row. Then `f` is computed once per row of the table at compile
//! time, instead of once per lookup.

use super::uses::Uses;
use crate::reference;
use crate::size::static_shape;
use crate::tensor::Tensor;
use crate::tensor_graph::{Op, TensorGraph, TensorNode, Value, ValueId};
use atoll_kgraph::Expr;

/// Works from front to back, so that a whole chain is folded into the table.
pub fn fold_into_table(graph: &mut TensorGraph) {
    let mut uses = Uses::of(graph);
    for index in 0..graph.nodes.len() {
        let Some(node) = folded(graph, &uses, index) else { continue };
        graph.nodes[index] = node;
        uses = Uses::of(graph);
    }
}

/// The lookup that replaces the pointwise node at `index`.
fn folded(graph: &mut TensorGraph, uses: &Uses, index: usize) -> Option<TensorNode> {
    let node = graph.nodes[index].clone();
    let Op::Pointwise(program) = &node.op else { return None };
    let (looked_up, gather) = node.inputs.iter().find_map(|id| {
        let gather = &graph.nodes[uses.producer(*id).filter(|_| uses.is_single(*id))?];
        (gather.op == Op::Gather { axis: 0 }).then(|| (*id, gather.clone()))
    })?;
    let result = graph.value(node.outputs[0]).clone();
    if graph.value(looked_up).shape != result.shape {
        return None;
    }
    let table = reference::constant(graph, gather.inputs[0])?;
    // With fewer lookups than rows in the table, folding would compute more.
    let row: usize = table.shape[1..].iter().product();
    let lookups: Option<usize> = static_shape(&graph.value(gather.inputs[1]).shape).map(|s| s.iter().product());
    if row == 0 || lookups.is_some_and(|n| n < table.shape[0]) {
        return None;
    }
    let operands: Vec<Tensor> = node
        .inputs
        .iter()
        .map(|id| if *id == looked_up { Some(table.clone()) } else { row_constant(graph, *id, &table) })
        .collect::<Option<_>>()?;
    let outputs = [(result.dtype, table.shape.clone())];
    let folded =
        reference::evaluate(&Op::Pointwise(program.clone()), &operands.iter().collect::<Vec<_>>(), &outputs, &[])
            .ok()?;
    let folded = folded.first()?;
    let shape = folded.shape.iter().map(|d| Expr::Const(*d as i64)).collect();
    let value =
        Value { name: format!("{}.table", node.name), dtype: folded.dtype, shape, constant: Some(folded.to_bytes()) };
    let table = graph.add_value(value);
    Some(TensorNode { op: Op::Gather { axis: 0 }, inputs: vec![table, gather.inputs[1]], ..node })
}

/// A constant that is the same for every row of the table, without its leading dimensions of 1.
fn row_constant(graph: &TensorGraph, id: ValueId, table: &Tensor) -> Option<Tensor> {
    let tensor = reference::constant(graph, id)?;
    let ones = tensor.shape.iter().take_while(|d| **d == 1).count();
    let shape = tensor.shape[ones..].to_vec();
    (shape.len() < table.shape.len()).then(|| tensor.reshaped(shape))
}
