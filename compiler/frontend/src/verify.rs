//! The invariants of a tensor graph, and the check for them.
//!
//! - Every id is in range; inputs and outputs are values; the byte count of a constant matches its
//!   shape.
//! - A value is a constant, an input, or produced by exactly one node, and is read only after that.
//! - Node names are unique.
//! - Operands and results of each node fit its operator in number, type and shape, for all symbol
//!   values.
//! - Scalar programs read only inputs and earlier steps that exist.

mod control;

use crate::size::{Facts, canonical, elements, static_shape};
use crate::tensor_graph::{
    Cell, Conv, Direction, MatMul, Op, PointArg, PointOp, PointProgram, RunTimeSize, TensorGraph, TensorNode, Value,
    ValueId,
};
use atoll_kgraph::{DType, Expr};
use std::collections::HashSet;
use std::fmt;

/// All violations found in a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifyErrors(pub Vec<VerifyError>);

/// One violation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {reason}")]
pub struct VerifyError {
    /// Node or value.
    pub place: String,
    /// What is wrong.
    pub reason: String,
}

impl std::error::Error for VerifyErrors {}

impl fmt::Display for VerifyErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let faults: Vec<String> = self.0.iter().map(VerifyError::to_string).collect();
        f.write_str(&faults.join("; "))
    }
}

type Check = Result<(), String>;

fn ensure(holds: bool, reason: impl FnOnce() -> String) -> Check {
    if holds { Ok(()) } else { Err(reason()) }
}

impl TensorGraph {
    /// Checks every invariant; returns all violations.
    pub fn verify(&self) -> Result<(), VerifyErrors> {
        // Other checks index by id, so ids are checked first.
        self.check_ids().map_err(|reason| VerifyErrors(vec![VerifyError { place: "graph".into(), reason }]))?;
        let mut faults = Vec::new();
        self.check_values(&mut |place, check| {
            if let Err(reason) = check {
                faults.push(VerifyError { place: place.into(), reason });
            }
        });
        if faults.is_empty() { Ok(()) } else { Err(VerifyErrors(faults)) }
    }

    fn check_ids(&self) -> Check {
        let of_nodes = self.nodes.iter().flat_map(|n| n.inputs.iter().chain(&n.outputs));
        let of_sizes = self.run_time_sizes.iter().map(|size| &size.value);
        let mut all = self.inputs.iter().chain(&self.outputs).chain(of_nodes).chain(of_sizes);
        ensure(all.all(|id| (id.0 as usize) < self.values.len()), || "a value id is out of range".into())
    }

    fn check_values(&self, note: &mut dyn FnMut(&str, Check)) {
        let mut defined: Vec<bool> = self.values.iter().map(|v| v.constant.is_some()).collect();
        for value in &self.values {
            note(&value.name, check_constant(value));
        }
        for id in &self.inputs {
            let twice = std::mem::replace(&mut defined[id.0 as usize], true);
            note(
                &self.value(*id).name,
                ensure(!twice, || "it is listed twice as an input, or is an input and a constant".into()),
            );
        }
        let mut names = HashSet::new();
        for node in &self.nodes {
            note(&node.name, ensure(names.insert(&node.name), || "two nodes have this name".into()));
            for id in &node.inputs {
                let name = &self.value(*id).name;
                note(&node.name, ensure(defined[id.0 as usize], || format!("{name} is read before it is produced")));
            }
            for id in &node.outputs {
                let name = &self.value(*id).name;
                let twice = std::mem::replace(&mut defined[id.0 as usize], true);
                note(&node.name, ensure(!twice, || format!("{name} has two producers")));
            }
            note(&node.name, self.check_node(node));
        }
        for id in &self.outputs {
            note(&self.value(*id).name, ensure(defined[id.0 as usize], || "an output is never produced".into()));
        }
        for size in &self.run_time_sizes {
            note(&self.value(size.value).name, self.check_run_time_size(size));
        }
    }

    /// A run-time size is a scalar that a node computes, and nothing before that node depends on
    /// it.
    fn check_run_time_size(&self, size: &RunTimeSize) -> Check {
        let value = self.value(size.value);
        ensure((size.symbol.0 as usize) < self.symbols.len(), || {
            "it is the value of a symbol that is not in the graph".into()
        })?;
        ensure(matches!(value.dtype, DType::I32 | DType::I64) && value.shape.is_empty(), || {
            "it is a run-time size but not an I32 or I64 scalar".into()
        })?;
        let producer = self.nodes.iter().position(|node| node.outputs.contains(&size.value));
        let producer = producer.ok_or("it is a run-time size but no node computes it")?;
        let depends = |id: &ValueId| self.value(*id).shape.iter().any(|dim| dim.depends_on(size.symbol));
        let early = self.nodes[..=producer].iter().find(|node| node.outputs.iter().any(depends));
        ensure(early.is_none() && !self.inputs.iter().any(depends), || {
            format!(
                "{} depends on its symbol before it is computed",
                early.map_or("an input", |node| node.name.as_str())
            )
        })
    }

    fn check_node(&self, node: &TensorNode) -> Check {
        let inputs: Vec<&Value> = node.inputs.iter().map(|id| self.value(*id)).collect();
        let outputs: Vec<&Value> = node.outputs.iter().map(|id| self.value(*id)).collect();
        let results = match node.op {
            Op::Recurrent { cell, .. } => 1 + cell.states()..=1 + cell.states(),
            Op::Nest(_) | Op::If { .. } | Op::Loop { .. } => 1..=usize::MAX,
            _ => 1..=1,
        };
        ensure(results.contains(&outputs.len()), || {
            format!("it has {} results; the operator has {}", outputs.len(), results.start())
        })?;
        ensure(inputs.len() >= node.op.operands_min(), || {
            format!("it has {} operands, which are too few for the operator", inputs.len())
        })?;
        check_op(self.facts(), &node.op, &inputs, &outputs)
    }

    /// Index of the node that produces each value; `None` for inputs and constants.
    pub fn producers(&self) -> Vec<Option<usize>> {
        let mut producers = vec![None; self.values.len()];
        for (index, node) in self.nodes.iter().enumerate() {
            node.outputs.iter().for_each(|id| producers[id.0 as usize] = Some(index));
        }
        producers
    }

    /// How often each value is read: by nodes, as an output of the graph, and as a run-time size.
    pub fn use_counts(&self) -> Vec<usize> {
        let mut counts = vec![0; self.values.len()];
        let of_sizes = self.run_time_sizes.iter().map(|size| &size.value);
        let read = self.nodes.iter().flat_map(|n| &n.inputs).chain(&self.outputs).chain(of_sizes);
        read.for_each(|id: &ValueId| counts[id.0 as usize] += 1);
        counts
    }
}

fn check_constant(value: &Value) -> Check {
    let Some(bytes) = &value.constant else { return Ok(()) };
    let shape = static_shape(&value.shape).ok_or("it is a constant with a symbolic shape")?;
    let expected = shape.iter().product::<usize>() as u64 * value.dtype.bytes();
    ensure(bytes.len() as u64 == expected, || format!("it has {} bytes; its shape needs {expected}", bytes.len()))
}

impl Op {
    /// The least number of operands.
    fn operands_min(&self) -> usize {
        match self {
            Op::Pointwise(_) | Op::Nest(_) | Op::Loop { .. } => 0,
            Op::Conv(_) | Op::MatMul(_) | Op::LayerNorm { .. } | Op::Gather { .. } => 2,
            Op::Recurrent { cell, .. } => 4 + cell.states(),
            _ => 1,
        }
    }

    /// The operator's name in printed graphs.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Pointwise(_) => "pointwise",
            Op::Conv(_) => "conv",
            Op::MatMul(_) => "matmul",
            Op::Pool(_) => "pool",
            Op::Reduce(_) => "reduce",
            Op::Softmax { .. } => "softmax",
            Op::LayerNorm { .. } => "layer_norm",
            Op::Gather { .. } => "gather",
            Op::Transpose { .. } => "transpose",
            Op::Reshape => "reshape",
            Op::Slice { .. } => "slice",
            Op::Concat { .. } => "concat",
            Op::Pad { .. } => "pad",
            Op::Resize(_) => "resize",
            Op::Recurrent { cell: Cell::Rnn, .. } => "rnn",
            Op::Recurrent { cell: Cell::Gru, .. } => "gru",
            Op::Recurrent { cell: Cell::Lstm, .. } => "lstm",
            Op::Nest(_) => "nest",
            Op::If { .. } => "if",
            Op::Loop { .. } => "loop",
        }
    }
}

fn rank(value: &Value, rank: usize) -> Check {
    ensure(value.shape.len() == rank, || {
        format!("{} has {} dimensions instead of {rank}", value.name, value.shape.len())
    })
}

fn shape(facts: Facts<'_>, value: &Value, expected: &[Expr]) -> Check {
    ensure(facts.same_shape(&value.shape, expected), || {
        format!("{} has shape {:?} instead of {expected:?}", value.name, value.shape)
    })
}

fn check_op(facts: Facts<'_>, op: &Op, inputs: &[&Value], outputs: &[&Value]) -> Check {
    let out = outputs[0];
    let same_type = |values: &[&Value]| {
        ensure(values.iter().all(|v| v.dtype == out.dtype), || "operands and result have different types".into())
    };
    match op {
        Op::Pointwise(program) => {
            check_broadcast(facts, inputs, out)?;
            check_program(program, inputs, None, out)
        }
        Op::Conv(conv) => check_conv(facts, conv, inputs, out),
        Op::MatMul(matmul) => check_matmul(facts, matmul, inputs, out),
        Op::Pool(_) | Op::Resize(_) => {
            rank(inputs[0], 4)?;
            rank(out, 4)?;
            same_type(inputs)?;
            ensure(facts.same_shape(&inputs[0].shape[..2], &out.shape[..2]), || {
                "input and output differ in batch or channels".into()
            })
        }
        Op::Reduce(reduce) => {
            ensure(
                reduce.axes.is_sorted_by(|a, b| a < b) && reduce.axes.iter().all(|a| *a < inputs[0].shape.len()),
                || format!("axes {:?} are not ascending axes of the operand", reduce.axes),
            )?;
            let dims = inputs[0].shape.iter().enumerate().map(|(i, d)| (reduce.axes.contains(&i), d.clone()));
            let expected: Vec<Expr> = match reduce.keep_dims {
                true => dims.map(|(reduced, d)| if reduced { Expr::Const(1) } else { d }).collect(),
                false => dims.filter(|(reduced, _)| !reduced).map(|(_, d)| d).collect(),
            };
            same_type(inputs)?;
            shape(facts, out, &expected)
        }
        Op::Softmax { axis, .. } => {
            ensure(*axis < out.shape.len(), || format!("axis {axis} is out of range"))?;
            same_type(inputs)?;
            shape(facts, out, &inputs[0].shape)
        }
        Op::LayerNorm { axis, .. } => {
            ensure(*axis < out.shape.len() && inputs.len() <= 3, || {
                format!("axis {axis} is out of range, or there are {} operands instead of at most 3", inputs.len())
            })?;
            inputs[1..].iter().try_for_each(|v| shape(facts, v, &out.shape[*axis..]))?;
            same_type(inputs)?;
            shape(facts, out, &inputs[0].shape)
        }
        Op::Nest(nest) => nest.check(inputs, outputs),
        Op::If { then, otherwise } => control::choice(facts, [then, otherwise], inputs, outputs),
        Op::Loop { body, spec } => control::repetition(facts, body, spec, inputs, outputs),
        Op::Recurrent { cell, hidden, direction } => {
            check_recurrent(facts, *cell, *hidden as i64, *direction, inputs, outputs)
        }
        _ => check_movement(facts, op, inputs, out),
    }
}

fn check_movement(facts: Facts<'_>, op: &Op, inputs: &[&Value], out: &Value) -> Check {
    let x = inputs[0];
    ensure(x.dtype == out.dtype, || "operand and result have different types".into())?;
    match op {
        Op::Gather { axis } => {
            ensure(*axis < x.shape.len(), || format!("axis {axis} is out of range"))?;
            ensure(matches!(inputs[1].dtype, DType::I32 | DType::I64), || "the indices are not I32 or I64".into())?;
            shape(facts, out, &[&x.shape[..*axis], &inputs[1].shape, &x.shape[axis + 1..]].concat())
        }
        Op::Transpose { permutation } => {
            let mut sorted = permutation.clone();
            sorted.sort_unstable();
            ensure(sorted.into_iter().eq(0..x.shape.len()), || format!("{permutation:?} is not a permutation"))?;
            shape(facts, out, &permutation.iter().map(|p| x.shape[*p].clone()).collect::<Vec<_>>())
        }
        Op::Reshape => ensure(facts.same(&elements(&x.shape), &elements(&out.shape)), || {
            "operand and result have different numbers of elements".into()
        }),
        Op::Slice { starts, steps } => {
            rank(out, x.shape.len())?;
            ensure(starts.len() == x.shape.len() && steps.len() == x.shape.len() && !steps.contains(&0), || {
                "it needs one start and one nonzero step per axis".into()
            })
        }
        Op::Concat { axis } => {
            ensure(*axis < out.shape.len() && inputs.iter().all(|v| v.dtype == out.dtype), || {
                "the axis is out of range, or operands and result have different types".into()
            })?;
            inputs.iter().try_for_each(|v| rank(v, out.shape.len()))?;
            let total = inputs.iter().fold(Expr::Const(0), |sum, v| sum + v.shape[*axis].clone());
            let mut expected = x.shape.clone();
            expected[*axis] = canonical(&total);
            shape(facts, out, &expected)
        }
        Op::Pad { before, .. } => {
            rank(out, x.shape.len())?;
            ensure(before.len() == x.shape.len(), || "it needs one pad per axis".into())
        }
        _ => Ok(()),
    }
}

/// Checks that every operand broadcasts to the result's shape.
fn check_broadcast(facts: Facts<'_>, inputs: &[&Value], out: &Value) -> Check {
    inputs.iter().try_for_each(|value| {
        let fits = value.shape.len() <= out.shape.len()
            && value.shape.iter().rev().zip(out.shape.iter().rev()).all(|(d, o)| facts.broadcasts(d, o));
        ensure(fits, || format!("{} {:?} does not broadcast to {:?}", value.name, value.shape, out.shape))
    })
}

/// Checks a scalar program. `accumulated` is the type of input 0 of an epilogue, whose other inputs
/// are `inputs`.
fn check_program(program: &PointProgram, inputs: &[&Value], accumulated: Option<DType>, out: &Value) -> Check {
    let types: Vec<DType> = accumulated.into_iter().chain(inputs.iter().map(|v| v.dtype)).collect();
    let mut results: Vec<DType> = Vec::new();
    for (index, step) in program.steps.iter().enumerate() {
        let arity = step.op.arity();
        ensure(step.args.len() == arity, || {
            format!("step {index} has {} operands; {:?} takes {arity}", step.args.len(), step.op)
        })?;
        for (position, arg) in step.args.iter().enumerate() {
            let found = match arg {
                PointArg::Input(i) => types.get(*i as usize),
                PointArg::Step(i) => results.get(*i as usize),
                PointArg::Const(_) => continue,
            };
            let found = *found.ok_or_else(|| format!("step {index} reads an input or step that does not exist"))?;
            let wanted = match step.op {
                PointOp::BitCast if found.bits() != step.ty.bits() => {
                    return Err(format!("step {index} reads the bits of {found:?} as {:?}", step.ty));
                }
                PointOp::Cast | PointOp::BitCast => continue,
                PointOp::Where if position == 0 => DType::Bool,
                _ => step.ty,
            };
            ensure(found == wanted, || format!("step {index} ({:?}) reads {found:?} as {wanted:?}", step.op))?;
        }
        results.push(step.result_type());
    }
    let result = results.last().or(types.first());
    ensure(result == Some(&out.dtype), || {
        format!("the program returns {result:?}; the result has type {:?}", out.dtype)
    })
}

impl PointOp {
    /// Number of operands.
    pub fn arity(self) -> usize {
        match self {
            PointOp::Clip | PointOp::Where => 3,
            PointOp::Add
            | PointOp::Sub
            | PointOp::Mul
            | PointOp::Div
            | PointOp::Pow
            | PointOp::Min
            | PointOp::Max
            | PointOp::Mod => 2,
            PointOp::Equal | PointOp::Less | PointOp::LessOrEqual | PointOp::Greater | PointOp::GreaterOrEqual => 2,
            PointOp::And | PointOp::Or | PointOp::Xor => 2,
            PointOp::BitAnd | PointOp::BitOr | PointOp::BitXor | PointOp::ShiftLeft | PointOp::ShiftRight => 2,
            _ => 1,
        }
    }
}

fn check_conv(facts: Facts<'_>, conv: &Conv, inputs: &[&Value], out: &Value) -> Check {
    let [x, w] = [inputs[0], inputs[1]];
    let spatial = conv.strides.len();
    ensure((2..=3).contains(&spatial) && conv.dilations.len() == spatial && conv.pads.len() == 2 * spatial, || {
        "it needs a stride, a dilation and two pads for each of 2 or 3 spatial dimensions".into()
    })?;
    [x, w, out].into_iter().try_for_each(|v| rank(v, spatial + 2))?;
    let groups = i64::from(conv.groups);
    ensure(groups > 0 && facts.same(&x.shape[1], &(w.shape[1].clone() * groups)), || {
        "the input's channels are not the weights' channels times the groups".into()
    })?;
    ensure(w.shape[0].as_const().is_some_and(|m| m % groups == 0), || {
        "the number of filters is not a multiple of the groups".into()
    })?;
    ensure(facts.same(&out.shape[0], &x.shape[0]) && facts.same(&out.shape[1], &w.shape[0]), || {
        "the result's batch or channels do not match the input and the filters".into()
    })?;
    ensure(x.dtype == w.dtype, || "the operands have different types".into())?;
    check_broadcast(facts, &inputs[2..], out)?;
    check_program(&conv.epilogue, &inputs[2..], Some(x.dtype), out)
}

fn check_matmul(facts: Facts<'_>, matmul: &MatMul, inputs: &[&Value], out: &Value) -> Check {
    let [a, b] = [inputs[0], inputs[1]];
    ensure([a, b, out].iter().all(|v| v.shape.len() >= 2), || {
        "an operand or the result has fewer than 2 dimensions".into()
    })?;
    let matrix = |v: &Value, transposed: bool| {
        let [rows, columns] = [v.shape[v.shape.len() - 2].clone(), v.shape[v.shape.len() - 1].clone()];
        if transposed { [columns, rows] } else { [rows, columns] }
    };
    let ([m, k], [k2, n], [rows, columns]) =
        (matrix(a, matmul.transpose_a), matrix(b, matmul.transpose_b), matrix(out, false));
    ensure(facts.same(&m, &rows) && facts.same(&k, &k2) && facts.same(&n, &columns), || {
        format!("{m}x{k} times {k2}x{n} does not give {rows}x{columns}")
    })?;
    let lead = |v: &Value| Value { shape: v.shape[..v.shape.len() - 2].to_vec(), ..v.clone() };
    check_broadcast(facts, &[&lead(a), &lead(b)], &lead(out))?;
    ensure(a.dtype == b.dtype, || "the operands have different types".into())?;
    check_broadcast(facts, &inputs[2..], out)?;
    check_program(&matmul.epilogue, &inputs[2..], Some(a.dtype), out)
}

fn check_recurrent(
    facts: Facts<'_>,
    cell: Cell,
    hidden: i64,
    direction: Direction,
    inputs: &[&Value],
    outputs: &[&Value],
) -> Check {
    let [x, w, r, bias, states @ ..] = inputs else {
        return Err("a recurrent cell needs at least four operands".into());
    };
    ensure(states.len() == cell.states(), || {
        format!("it has {} initial states instead of {}", states.len(), cell.states())
    })?;
    rank(x, 3)?;
    let d = Expr::Const(if direction == Direction::Bidirectional { 2 } else { 1 });
    let [steps, batch, width] = [0, 1, 2].map(|i| x.shape[i].clone());
    let h = Expr::Const(hidden);
    let gates = cell.gates() as i64 * hidden;
    shape(facts, w, &[d.clone(), gates.into(), width])?;
    shape(facts, r, &[d.clone(), gates.into(), h.clone()])?;
    shape(facts, bias, &[d.clone(), Expr::Const(2 * gates)])?;
    let state = [d.clone(), batch.clone(), h.clone()];
    states.iter().chain(&outputs[1..]).try_for_each(|v| shape(facts, v, &state))?;
    shape(facts, outputs[0], &[steps, d, batch, h])
}
