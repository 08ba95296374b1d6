//! The tensor graph: a model as a small, closed set of operators over typed values with symbolic
//! shapes.
//!
//! ONNX's nearly 200 operators are imported as these few: everything pointwise is one
//! [`Op::Pointwise`] program; 1-D convolutions are 2-D with height 1; batch normalisation is folded
//! into the preceding convolution or is pointwise; `Gemm` is a [`Op::MatMul`] with an epilogue;
//! shapes are computed at compile time.
//!
//! Invariants (checked by [`TensorGraph::verify`]): nodes are in topological order; every value has
//! at most one producer; a value is a constant, an input, or produced by a node; shapes fit the
//! operator.

use crate::control::{Body, LoopSpec};
use crate::nest::Nest;
use crate::size::Facts;
use atoll_kgraph::{Condition, DType, Expr, InputElement, SymbolId, SymbolSpec, strings::Strings};
use std::sync::Arc;

/// Text of the check of an index against its axis, with the smallest and the largest valid index.
pub const INDEX_OUTSIDE: &str = "an index is outside of {} to {}";

/// Index of a value in [`TensorGraph::values`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub u32);

/// A whole model.
#[derive(Clone, Debug, Default)]
pub struct TensorGraph {
    /// Name of the model.
    pub name: String,
    /// Symbols of the shapes: dimensions that the model leaves open.
    pub symbols: Vec<SymbolSpec>,
    /// Symbols whose values are elements of inputs.
    pub elements: Vec<InputElement>,
    /// Conditions on sizes that hold in every invocation: they are checked when inputs are bound,
    /// and operators rely on them.
    pub conditions: Vec<Condition>,
    /// Every tensor.
    pub values: Vec<Value>,
    /// Operators in topological order.
    pub nodes: Vec<TensorNode>,
    /// Values that the client sends, in the model's order; then those that the host computes.
    pub inputs: Vec<ValueId>,
    /// Values that the client receives, in the model's order.
    pub outputs: Vec<ValueId>,
    /// Symbols whose values are computed by nodes.
    pub run_time_sizes: Vec<RunTimeSize>,
    /// Inputs and outputs that are states: they are kept in a session, and the client neither sends
    /// nor receives them.
    pub states: Vec<State>,
    /// Strings that the model names, and the steps on the host whose results are the last inputs.
    pub strings: Strings,
}

/// An input and an output that are one state. Passes change neither `inputs` nor `outputs`, so an
/// index into them identifies a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// Index in [`TensorGraph::inputs`].
    pub input: usize,
    /// Index in [`TensorGraph::outputs`].
    pub output: usize,
    /// How the state grows; `None` if each step replaces it with one of the same shape.
    pub growth: Option<Growth>,
}

/// Growth of a state to which each step appends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Growth {
    /// The axis along which it grows.
    pub axis: usize,
    /// The input's extent on that axis; 0 when a session begins.
    pub past: SymbolId,
    /// Largest value of `past`.
    pub capacity: i64,
}

/// A symbol whose value a node computes, such as the number of nonzero elements. Memory is laid out
/// for its largest value.
#[derive(Clone, Debug, PartialEq)]
pub struct RunTimeSize {
    /// The symbol. Only shapes of results after the node depend on it.
    pub symbol: SymbolId,
    /// The value: an integer scalar, neither a constant nor an input.
    pub value: ValueId,
    /// An upper bound of the value, over symbols that are known earlier.
    pub most: Expr,
}

/// One tensor.
#[derive(Clone, Debug)]
pub struct Value {
    /// The model's name for an input or output; otherwise a unique name made from the model's.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Dimensions, outermost first; a scalar has none.
    pub shape: Vec<Expr>,
    /// Little-endian bytes of a constant; `None` if the value is not a constant.
    pub constant: Option<Arc<[u8]>>,
}

/// One operator application.
#[derive(Clone, Debug)]
pub struct TensorNode {
    /// Unique and readable: the model's node name, or a name made from it.
    pub name: String,
    /// What it computes.
    pub op: Op,
    /// Its operands; [`Op`] documents their order.
    pub inputs: Vec<ValueId>,
    /// Its results.
    pub outputs: Vec<ValueId>,
}

/// The operators.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// A scalar program applied to every element. Inputs are broadcast to the output's shape by
    /// NumPy's rule. The output may be larger than every input (a broadcast), and there may be no
    /// inputs (a fill).
    Pointwise(PointProgram),
    /// Inputs `x [N, C, H, W]`, `w [M, C/group, KH, KW]`, then the extra inputs of the epilogue.
    /// Output `[N, M, OH, OW]`. With three spatial dimensions, depth precedes height in each of
    /// these shapes.
    Conv(Conv),
    /// Inputs `a [..., M, K]`, `b [..., K, N]` (before transposition), then the extra inputs of the
    /// epilogue. Leading dimensions broadcast.
    MatMul(MatMul),
    /// Input `x [N, C, H, W]`, output `[N, C, OH, OW]`.
    Pool(Pool),
    /// One input, reduced over `axes`. With `keep_dims` the output keeps them with extent 1.
    Reduce(Reduce),
    /// One input, normalised along `axis`.
    Softmax {
        /// The axis, from 0.
        axis: usize,
        /// Natural logarithm of the result.
        log: bool,
    },
    /// Inputs `x`, `scale`, optionally `bias`; normalises over `axis..`. Scale and bias have the
    /// shape of the normalised dimensions.
    LayerNorm {
        /// First normalised axis.
        axis: usize,
        /// Added to the variance.
        epsilon: f32,
    },
    /// Inputs `data`, `indices` (I32 or I64; a negative index counts from the end). Output shape:
    /// `data[..axis] ++ indices ++ data[axis+1..]`.
    Gather {
        /// The indexed axis.
        axis: usize,
    },
    /// Output dimension `i` is input dimension `permutation[i]`.
    Transpose {
        /// The permutation.
        permutation: Vec<usize>,
    },
    /// The same elements in the same order with another shape. Free where input and output can
    /// share a buffer.
    Reshape,
    /// `output[i] = input[start + i * step]` on every axis; one start and one step per axis, steps
    /// may be negative.
    Slice {
        /// First element per axis.
        starts: Vec<Expr>,
        /// Step per axis, not zero.
        steps: Vec<i64>,
    },
    /// Concatenates the inputs along an axis.
    Concat {
        /// The axis.
        axis: usize,
    },
    /// Pads at the beginning of each axis; the output's shape determines the padding at the end.
    Pad {
        /// Elements before the input per axis; a negative number crops.
        before: Vec<Expr>,
        /// The value of the padding.
        mode: PadMode,
    },
    /// Input `x [N, C, H, W]`, output `[N, C, OH, OW]`.
    Resize(Resize),
    /// Inputs `x [T, B, I]`, `w [D, G*H, I]`, `r [D, G*H, H]`, `bias [D, 2*G*H]`, `h0 [D, B, H]`,
    /// and `c0 [D, B, H]` for LSTM; G gates in ONNX's order. Outputs `y [T, D, B, H]`, `h [D, B,
    /// H]`, and `c [D, B, H]` for LSTM.
    Recurrent {
        /// The kind of cell.
        cell: Cell,
        /// H: the size of the hidden state.
        hidden: usize,
        /// The direction; D is 2 for `Bidirectional`, else 1.
        direction: Direction,
    },
    /// A loop nest, for operators that no other variant expresses; its body defines what operands
    /// and results are.
    Nest(Nest),
    /// One of two graphs. Inputs: a Bool scalar, the operands of `then`, those of `otherwise`.
    /// Outputs: the results of the graph that ran.
    If {
        /// Runs if the condition is true.
        then: Body<TensorGraph>,
        /// Runs if it is false.
        otherwise: Body<TensorGraph>,
    },
    /// A graph that runs repeatedly; [`LoopSpec`] documents operands and results.
    Loop {
        /// The graph.
        body: Body<TensorGraph>,
        /// How often it runs.
        spec: LoopSpec,
    },
}

/// A recurrent cell with ONNX's default activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell {
    /// `tanh` of one gate.
    Rnn,
    /// Gates update, reset, hidden. The reset gate is applied after the product with the state
    /// (`linear_before_reset = 1`).
    Gru,
    /// Gates input, output, forget, cell; has a second state, the cell state.
    Lstm,
}

impl Cell {
    /// Number of gates.
    pub fn gates(self) -> usize {
        match self {
            Cell::Rnn => 1,
            Cell::Gru => 3,
            Cell::Lstm => 4,
        }
    }

    /// Number of states carried from step to step.
    pub fn states(self) -> usize {
        if self == Cell::Lstm { 2 } else { 1 }
    }
}

/// Direction of a recurrent cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "ONNX's own names")]
pub enum Direction {
    Forward,
    Reverse,
    Bidirectional,
}

/// A convolution over two or three spatial dimensions.
#[derive(Clone, Debug, PartialEq)]
pub struct Conv {
    /// One per spatial dimension, outermost first.
    pub strides: Vec<u32>,
    /// Padding before each spatial dimension, then after each.
    pub pads: Vec<u32>,
    /// One per spatial dimension.
    pub dilations: Vec<u32>,
    /// Number of groups; depthwise where it equals the channels.
    pub groups: u32,
    /// Program applied to each accumulated element before it is stored.
    pub epilogue: PointProgram,
}

/// A (batched) matrix product.
#[derive(Clone, Debug, PartialEq)]
pub struct MatMul {
    /// `a` is stored as `[..., K, M]`.
    pub transpose_a: bool,
    /// `b` is stored as `[..., N, K]`.
    pub transpose_b: bool,
    /// Program applied to each accumulated element before it is stored.
    pub epilogue: PointProgram,
}

/// A 2-D pooling.
#[derive(Clone, Debug, PartialEq)]
pub struct Pool {
    /// Maximum, sum or average.
    pub kind: PoolKind,
    /// Height and width of the window, in elements.
    pub window: [u32; 2],
    /// Strides of height and width.
    pub strides: [u32; 2],
    /// Top, left, bottom, right. With ceil mode a window may reach beyond them; elements there
    /// count as padding.
    pub pads: [u32; 4],
    /// Dilations of height and width.
    pub dilations: [u32; 2],
}

/// What a pooling computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolKind {
    /// Maximum; padding counts as the smallest value of the type.
    Max,
    /// Sum.
    Sum,
    /// Average.
    Average {
        /// Whether padding inside `pads` counts in the divisor.
        count_include_pad: bool,
    },
}

/// A reduction.
#[derive(Clone, Debug, PartialEq)]
pub struct Reduce {
    /// The kind of reduction.
    pub kind: ReduceKind,
    /// Reduced axes, ascending.
    pub axes: Vec<usize>,
    /// Whether the output keeps the reduced axes with extent 1.
    pub keep_dims: bool,
}

/// The kinds of reductions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the usual names")]
pub enum ReduceKind {
    Sum,
    Mean,
    Max,
    Min,
    Prod,
    SumSquare,
    L2,
}

/// The value of padding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PadMode {
    /// This number.
    Constant(f64),
    /// Elements mirrored at the edge; the edge itself is not repeated.
    Reflect,
    /// The edge element, repeated.
    Edge,
    /// Elements from the opposite end, as if the tensor were periodic.
    Wrap,
}

/// Resampling of the two innermost axes.
#[derive(Clone, Debug, PartialEq)]
pub struct Resize {
    /// Interpolation.
    pub mode: ResizeMode,
    /// How an output coordinate maps to an input coordinate.
    pub coordinates: CoordinateMode,
    /// Scale (output / input) of height and width, as in the model.
    pub scales: [f32; 2],
}

/// Interpolation of a resize.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "ONNX's own names")]
pub enum ResizeMode {
    NearestFloor,
    NearestCeil,
    NearestRoundPreferFloor,
    NearestRoundPreferCeil,
    Linear,
}

/// ONNX `coordinate_transformation_mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "ONNX's own names")]
pub enum CoordinateMode {
    HalfPixel,
    PytorchHalfPixel,
    AlignCorners,
    Asymmetric,
}

/// A straight-line scalar program. Its result is the result of its last step, or input 0 if there
/// are no steps. In an epilogue, input 0 is the accumulated element and inputs `1..` are the node's
/// extra inputs, broadcast to the output's shape.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PointProgram {
    /// Steps in order.
    pub steps: Vec<PointStep>,
}

/// One step of a scalar program. It computes in the type `ty`; comparisons and logic give `Bool`.
#[derive(Clone, Debug, PartialEq)]
pub struct PointStep {
    /// The operation.
    pub op: PointOp,
    /// The type of the operands (for `Cast`, of the result).
    pub ty: DType,
    /// One, two or three operands.
    pub args: Vec<PointArg>,
}

/// An operand of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PointArg {
    /// An input of the program.
    Input(u32),
    /// The result of an earlier step.
    Step(u32),
    /// A number of the step's type.
    Const(f64),
}

/// Scalar operations, with ONNX semantics.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(missing_docs, reason = "ONNX's own names")]
pub enum PointOp {
    Identity,
    Add,
    Sub,
    Mul,
    Div,
    Pow,
    Min,
    Max,
    Mod,
    Neg,
    Abs,
    Sign,
    Reciprocal,
    Sqrt,
    Exp,
    Log,
    Erf,
    Sin,
    Cos,
    Tanh,
    Asin,
    Acos,
    Atan,
    Sinh,
    Cosh,
    Asinh,
    Acosh,
    Atanh,
    Sigmoid,
    Relu,
    Floor,
    Ceil,
    Round,
    /// `x >= 0 ? x : alpha * x`
    LeakyRelu(f32),
    /// `x >= 0 ? x : alpha * (exp(x) - 1)`
    Elu(f32),
    /// `clamp(alpha * x + beta, 0, 1)`
    HardSigmoid(f32, f32),
    Softplus,
    /// `args = [x, low, high]`; gives `high` if `low > high`.
    Clip,
    BitAnd,
    BitOr,
    BitXor,
    BitNot,
    /// Shifts an unsigned integer; 0 if the shift is at least the width of the type.
    ShiftLeft,
    /// Shifts an unsigned integer; 0 if the shift is at least the width of the type.
    ShiftRight,
    Equal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    And,
    Or,
    Xor,
    Not,
    /// `args = [condition, then, else]`. `condition` is `Bool`; `then` and `else` have the step's
    /// `ty`.
    Where,
    /// Converts to the step's `ty`. A float is truncated towards zero. If it does not fit, or is
    /// NaN, the result is the smallest 32-bit integer (64-bit for the types that need it),
    /// truncated to the type: the result of the x86 instructions, and so of ONNX Runtime. For
    /// narrow floats see [`crate::narrow`].
    Cast,
    /// The operand's bits, read as the step's `ty`, which has the same width.
    BitCast,
}

impl TensorGraph {
    /// The value with this id.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.0 as usize]
    }

    /// What is known about sizes: ranges of symbols, and conditions.
    pub fn facts(&self) -> Facts<'_> {
        Facts { symbols: &self.symbols, conditions: &self.conditions }
    }

    /// Adds a value.
    pub fn add_value(&mut self, value: Value) -> ValueId {
        self.values.push(value);
        ValueId(self.values.len() as u32 - 1)
    }
}
