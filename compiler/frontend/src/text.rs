//! Prints a tensor graph as text, for `--emit graph`, golden files and bug reports.

use crate::control::LoopSpec;
use crate::tensor_graph::{Op, PointArg, PointOp, PointProgram, TensorGraph, TensorNode, Value, ValueId};
use atoll_kgraph::{DType, Expr};
use std::fmt;

/// Constants with at most this many elements are printed in full.
const PRINTED_ELEMENTS_MAX: usize = 4;

impl fmt::Display for TensorGraph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "graph {:?} {{", self.name)?;
        for (index, symbol) in self.symbols.iter().enumerate() {
            writeln!(f, "  size s{index} = {:?} in {}..={}", symbol.name, symbol.min, symbol.max)?;
        }
        for element in &self.elements {
            writeln!(f, "  size s{} is element {} of input {}", element.symbol.0, element.index, element.input)?;
        }
        for condition in &self.conditions {
            writeln!(f, "  check {}  // {}", condition.text(&self.symbols), condition.place)?;
        }
        for size in &self.run_time_sizes {
            writeln!(f, "  size s{} = {} at most {}", size.symbol.0, Id(size.value), size.most)?;
        }
        for id in &self.inputs {
            writeln!(f, "  input {} {:?}: {}", Id(*id), self.value(*id).name, Type(self.value(*id)))?;
        }
        for (index, value) in self.values.iter().enumerate() {
            if value.constant.is_some() {
                write_constant(f, ValueId(index as u32), value)?;
            }
        }
        for node in &self.nodes {
            self.write_node(f, node)?;
        }
        for state in &self.states {
            let growth = state
                .growth
                .map_or(String::new(), |growth| format!(", growing on axis {} to {}", growth.axis, growth.capacity));
            writeln!(f, "  state {} -> {}{growth}", Id(self.inputs[state.input]), Id(self.outputs[state.output]))?;
        }
        for id in &self.outputs {
            writeln!(f, "  output {} {:?}", Id(*id), self.value(*id).name)?;
        }
        writeln!(f, "}}")
    }
}

impl TensorGraph {
    fn write_node(&self, f: &mut fmt::Formatter<'_>, node: &TensorNode) -> fmt::Result {
        let results: Vec<String> =
            node.outputs.iter().map(|id| format!("{}: {}", Id(*id), Type(self.value(*id)))).collect();
        let operands: Vec<String> = node.inputs.iter().map(|id| Id(*id).to_string()).collect();
        write!(f, "  {} = {}({})", results.join(", "), node.op.name(), operands.join(", "))?;
        write_attributes(f, &node.op)?;
        writeln!(f, "  // {}", node.name)
    }
}

struct Id(ValueId);

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.0.0)
    }
}

struct Type<'a>(&'a Value);

impl fmt::Display for Type<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]", dtype(self.0.dtype), list(&self.0.shape))
    }
}

fn dtype(dtype: DType) -> String {
    format!("{dtype:?}").to_lowercase()
}

fn list<T: fmt::Display>(items: &[T]) -> String {
    items.iter().map(T::to_string).collect::<Vec<_>>().join(", ")
}

fn write_constant(f: &mut fmt::Formatter<'_>, id: ValueId, value: &Value) -> fmt::Result {
    write!(f, "  const {} {:?}: {}", Id(id), value.name, Type(value))?;
    let shape = crate::size::static_shape(&value.shape).unwrap_or_default();
    let tensor =
        value.constant.as_ref().and_then(|bytes| crate::tensor::Tensor::from_bytes(value.dtype, &shape, bytes));
    match tensor.filter(|t| t.len() <= PRINTED_ELEMENTS_MAX) {
        Some(tensor) => writeln!(f, " = [{}]", list(&tensor.to_f64())),
        None => writeln!(f),
    }
}

fn write_attributes(f: &mut fmt::Formatter<'_>, op: &Op) -> fmt::Result {
    match op {
        Op::Pointwise(program) => write!(f, " {program}"),
        Op::Conv(conv) => {
            write!(
                f,
                " strides={:?} pads={:?} dilations={:?} groups={}",
                conv.strides, conv.pads, conv.dilations, conv.groups
            )?;
            write_epilogue(f, &conv.epilogue)
        }
        Op::MatMul(matmul) => {
            if matmul.transpose_a {
                write!(f, " transpose_a")?;
            }
            if matmul.transpose_b {
                write!(f, " transpose_b")?;
            }
            write_epilogue(f, &matmul.epilogue)
        }
        Op::Pool(pool) => {
            write!(
                f,
                " {:?} window={:?} strides={:?} pads={:?} dilations={:?}",
                pool.kind, pool.window, pool.strides, pool.pads, pool.dilations
            )
        }
        Op::Reduce(reduce) => write!(f, " {:?} axes={:?} keep_dims={}", reduce.kind, reduce.axes, reduce.keep_dims),
        Op::Softmax { axis, log } => write!(f, " axis={axis} log={log}"),
        Op::LayerNorm { axis, epsilon } => write!(f, " axis={axis} epsilon={epsilon}"),
        Op::Gather { axis } | Op::Concat { axis } => write!(f, " axis={axis}"),
        Op::Transpose { permutation } => write!(f, " {permutation:?}"),
        Op::Reshape => Ok(()),
        Op::Slice { starts, steps } => write!(f, " starts=[{}] steps={steps:?}", list::<Expr>(starts)),
        Op::Pad { before, mode } => write!(f, " before=[{}] {mode:?}", list::<Expr>(before)),
        Op::Resize(resize) => write!(f, " {:?} {:?} scales={:?}", resize.mode, resize.coordinates, resize.scales),
        Op::Nest(nest) => write!(f, " {nest}"),
        Op::If { then, otherwise } => write!(f, " then {}otherwise {}", &**then, &**otherwise),
        Op::Loop { body, spec: LoopSpec { trips, states, trips_max, .. } } => {
            let trips = trips.as_ref().map_or(String::new(), |trips| format!(" trips={trips}"));
            write!(f, "{trips} states={states} trips_max={trips_max} body {}", &**body)
        }
        Op::Recurrent { hidden, direction, .. } => write!(f, " hidden={hidden} {direction:?}"),
    }
}

fn write_epilogue(f: &mut fmt::Formatter<'_>, epilogue: &PointProgram) -> fmt::Result {
    if epilogue.is_identity() { Ok(()) } else { write!(f, " epilogue {epilogue}") }
}

impl fmt::Display for PointProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_identity() {
            return f.write_str("{ x0 }");
        }
        let steps: Vec<String> = self
            .steps
            .iter()
            .enumerate()
            .map(|(index, step)| {
                let args: Vec<String> = step.args.iter().map(PointArg::to_string).collect();
                format!("t{index} = {}.{} {}", op_name(step.op), dtype(step.ty), args.join(", "))
            })
            .collect();
        write!(f, "{{ {} }}", steps.join("; "))
    }
}

fn op_name(op: PointOp) -> String {
    format!("{op:?}").to_lowercase()
}

impl fmt::Display for PointArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PointArg::Input(index) => write!(f, "x{index}"),
            PointArg::Step(index) => write!(f, "t{index}"),
            PointArg::Const(number) => write!(f, "{number}"),
        }
    }
}
