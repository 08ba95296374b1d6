//! The tensor graph: a model as a small, closed set of operators over typed values with symbolic
//! shapes.
//!
//! What ONNX spells in 190 operators arrives here as a few: everything pointwise is one
//! [`Op::Pointwise`] program, 1-D convolutions are 2-D with height 1, batch normalisation is folded
//! into the convolution before it or is pointwise, `Gemm` is a [`Op::MatMul`] with an epilogue,
//! shapes are computed at compile time.
//!
//! Invariants (checked by [`TensorGraph::verify`]): nodes are in topological order; every value has
//! at most one producer; a value is constant, an input, or produced; shapes fit the operator.

use crate::nest::Nest;
use crate::size::Facts;
use atoll_kgraph::{Condition, DType, Expr, InputElement, SymbolId, SymbolSpec};
use std::sync::Arc;

/// What is wrong with an index outside of its axis; its numbers are the smallest and the largest
/// that are possible.
pub const INDEX_OUTSIDE: &str = "an index is outside of {} to {}";

/// Index of a value in [`TensorGraph::values`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub u32);

/// A whole model.
#[derive(Clone, Debug, Default)]
pub struct TensorGraph {
    /// Name of the model.
    pub name: String,
    /// Symbols of the shapes.
    pub symbols: Vec<SymbolSpec>,
    /// Symbols that are elements of inputs.
    pub elements: Vec<InputElement>,
    /// What an invocation is checked for, and the operators may take for granted.
    pub conditions: Vec<Condition>,
    /// Every tensor.
    pub values: Vec<Value>,
    /// Operators in topological order.
    pub nodes: Vec<TensorNode>,
    /// Values the client gives, in the model's order.
    pub inputs: Vec<ValueId>,
    /// Values the client gets, in the model's order.
    pub outputs: Vec<ValueId>,
    /// Symbols whose values nodes compute.
    pub run_time_sizes: Vec<RunTimeSize>,
    /// Inputs and outputs that are states: a session keeps them, and its client neither gives nor
    /// gets them.
    pub states: Vec<State>,
}

/// An input and an output that are one state. Passes change neither list, so that places in them
/// name a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// Place in [`TensorGraph::inputs`].
    pub input: usize,
    /// Place in [`TensorGraph::outputs`].
    pub output: usize,
    /// How it grows; `None` where a step replaces it by as much.
    pub growth: Option<Growth>,
}

/// A state to which each step adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Growth {
    /// The axis that grows.
    pub axis: usize,
    /// The input's extent on it, which a session begins with 0.
    pub past: SymbolId,
    /// Its largest extent.
    pub capacity: i64,
}

/// A symbol whose value a node computes: how many elements a selection leaves. Memory is laid out
/// for the largest value.
#[derive(Clone, Debug, PartialEq)]
pub struct RunTimeSize {
    /// The symbol. Only shapes of results behind the node depend on it.
    pub symbol: SymbolId,
    /// The value, a scalar of integers; it is no constant and no input.
    pub value: ValueId,
    /// The largest value that is possible, over symbols that are known before.
    pub most: Expr,
}

/// One tensor.
#[derive(Clone, Debug)]
pub struct Value {
    /// The model's name for inputs and outputs, a unique one made from the model's otherwise.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Dimensions, outermost first; a scalar has none.
    pub shape: Vec<Expr>,
    /// Little-endian content of a constant.
    pub constant: Option<Arc<[u8]>>,
}

/// One operator application.
#[derive(Clone, Debug)]
pub struct TensorNode {
    /// Unique, readable: the model's node name or one made from it.
    pub name: String,
    /// What it computes.
    pub op: Op,
    /// Its operands; what each is, the operator says.
    pub inputs: Vec<ValueId>,
    /// Its results.
    pub outputs: Vec<ValueId>,
}

/// The operators.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// A scalar program applied to every element. Inputs are broadcast to the output's shape by
    /// NumPy's rule; that shape may be larger than all of them (a broadcast), and there may be
    /// no input at all (a fill).
    Pointwise(PointProgram),
    /// Inputs `x [N, C, H, W]`, `w [M, C/group, KH, KW]`, then the epilogue's extra inputs. Output
    /// `[N, M, OH, OW]`. With three spatial dimensions the depth stands before the height in
    /// all of them.
    Conv(Conv),
    /// Inputs `a [..., M, K]`, `b [..., K, N]` (before transposition), then the epilogue's extra
    /// inputs. Leading dimensions broadcast.
    MatMul(MatMul),
    /// Input `x [N, C, H, W]`, output `[N, C, OH, OW]`.
    Pool(Pool),
    /// One input; reduces `axes`. Output keeps them as 1 where `keep_dims`.
    Reduce(Reduce),
    /// One input, normalised along one axis.
    Softmax {
        /// The axis, from 0.
        axis: usize,
        /// Natural logarithm of the result.
        log: bool,
    },
    /// Inputs `x`, `scale`, optionally `bias`; normalises over `axis..`. Scale and bias have the
    /// shape of those dimensions.
    LayerNorm {
        /// First normalised axis.
        axis: usize,
        /// Added to the variance.
        epsilon: f32,
    },
    /// Inputs `data`, `indices` (I32 or I64; negative counts from the end). Output `data[..axis] ++
    /// indices ++ data[axis+1..]`.
    Gather {
        /// The indexed axis.
        axis: usize,
    },
    /// Output dimension `i` is input dimension `permutation[i]`.
    Transpose {
        /// The permutation.
        permutation: Vec<usize>,
    },
    /// The same elements in the same order under another shape. Costs nothing where the buffers can
    /// be one.
    Reshape,
    /// `output[i] = input[start + i * step]` on every axis; one entry per axis, steps may be
    /// negative.
    Slice {
        /// First element per axis.
        starts: Vec<Expr>,
        /// Step per axis, not zero.
        steps: Vec<i64>,
    },
    /// Inputs one after the other along an axis.
    Concat {
        /// The axis.
        axis: usize,
    },
    /// Pads in front; the output's shape says how much follows.
    Pad {
        /// Elements in front per axis; negative crops.
        before: Vec<Expr>,
        /// What the new elements are.
        mode: PadMode,
    },
    /// Input `x [N, C, H, W]`, output `[N, C, OH, OW]`.
    Resize(Resize),
    /// Inputs `x [T, B, I]`, `w [D, G H, I]`, `r [D, G H, H]`, `bias [D, 2 G H]`, `h0 [D, B, H]`,
    /// and `c0 [D, B, H]` where the cell keeps one; G gates in ONNX's order. Outputs
    /// `y [T, D, B, H]`, `h [D, B, H]`, and `c [D, B, H]` where the cell keeps one.
    Recurrent {
        /// What a step computes.
        cell: Cell,
        /// H.
        hidden: usize,
        /// Which way it runs; D is 2 for `Bidirectional`, else 1.
        direction: Direction,
    },
    /// Loops over scalars, for what none of the others expresses; operands and results are what the
    /// body says.
    Nest(Nest),
}

/// A recurrent cell with ONNX's default activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell {
    /// `tanh` of one gate.
    Rnn,
    /// Gates update, reset, hidden. The reset gate applies to the product of the state
    /// (`linear_before_reset`).
    Gru,
    /// Gates input, output, forget, cell; keeps a second state.
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

    /// States that go from step to step.
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
    /// In front of each spatial dimension, then behind each.
    pub pads: Vec<u32>,
    /// One per spatial dimension.
    pub dilations: Vec<u32>,
    /// Number of groups; depthwise where it equals the channels.
    pub groups: u32,
    /// What happens to each accumulated element before it is stored.
    pub epilogue: PointProgram,
}

/// A (batched) matrix product.
#[derive(Clone, Debug, PartialEq)]
pub struct MatMul {
    /// `a` is stored as `[..., K, M]`.
    pub transpose_a: bool,
    /// `b` is stored as `[..., N, K]`.
    pub transpose_b: bool,
    /// What happens to each accumulated element before it is stored.
    pub epilogue: PointProgram,
}

/// A 2-D pooling.
#[derive(Clone, Debug, PartialEq)]
pub struct Pool {
    /// Maximum, sum or average.
    pub kind: PoolKind,
    /// Height and width of the window.
    pub window: [u32; 2],
    /// Height and width.
    pub strides: [u32; 2],
    /// Top, left, bottom, right. A ceil-mode output may reach beyond them; such elements count as
    /// padding.
    pub pads: [u32; 4],
    /// Height and width.
    pub dilations: [u32; 2],
}

/// What a pooling computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolKind {
    /// Maximum; padding counts as the smallest number.
    Max,
    /// Sum.
    Sum,
    /// Average.
    Average {
        /// Padding inside `pads` counts as zeros in the divisor.
        count_include_pad: bool,
    },
}

/// A reduction.
#[derive(Clone, Debug, PartialEq)]
pub struct Reduce {
    /// What it computes.
    pub kind: ReduceKind,
    /// Reduced axes, ascending.
    pub axes: Vec<usize>,
    /// Whether they stay as 1.
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

/// What padding is filled with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PadMode {
    /// A number.
    Constant(f64),
    /// Mirrored without repeating the edge.
    Reflect,
    /// The edge repeated.
    Edge,
    /// What is at the other end, as if the tensor were a ring.
    Wrap,
}

/// Resampling of the two innermost axes.
#[derive(Clone, Debug, PartialEq)]
pub struct Resize {
    /// Interpolation.
    pub mode: ResizeMode,
    /// How an output coordinate maps to an input coordinate.
    pub coordinates: CoordinateMode,
    /// Scale (output / input) in height and width as the model gives it.
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

/// A straight-line scalar program. Its result is the last step, or input 0 where there is none. In
/// an epilogue, input 0 is the accumulated element and inputs `1..` are the node's extra inputs,
/// broadcast to the output's shape.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PointProgram {
    /// Steps in order.
    pub steps: Vec<PointStep>,
}

/// One step of a scalar program. Operand and result types: `ty` is the type the step computes in;
/// comparisons and logic give `Bool`.
#[derive(Clone, Debug, PartialEq)]
pub struct PointStep {
    /// What it computes.
    pub op: PointOp,
    /// The type of its operands (for `Cast` the type of the result).
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
    /// `args = [x, low, high]`; `high` where `low` is larger.
    Clip,
    BitAnd,
    BitOr,
    BitXor,
    BitNot,
    /// Of an unsigned integer; 0 where the shift is the type's width or more.
    ShiftLeft,
    /// Of an unsigned integer; 0 where the shift is the type's width or more.
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
    /// `args = [condition, then, else]`; the type is that of `then` and `else`, the condition is
    /// `Bool`.
    Where,
    /// Result type is the step's `ty`. A float is truncated to an integer; where that does not fit,
    /// and for NaN, the result is the smallest integer of 32 bits (of 64 for the types that
    /// need them), cut to the type: what x86 instructions and so ONNX Runtime give.
    Cast,
    /// The operand's bits, read as the step's `ty`, which has as many.
    BitCast,
}

impl TensorGraph {
    /// The value of an id.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.0 as usize]
    }

    /// What may be taken for granted about sizes.
    pub fn facts(&self) -> Facts<'_> {
        Facts { symbols: &self.symbols, conditions: &self.conditions }
    }

    /// Adds a value.
    pub fn add_value(&mut self, value: Value) -> ValueId {
        self.values.push(value);
        ValueId(self.values.len() as u32 - 1)
    }
}

impl PointProgram {
    /// Whether it is the identity on input 0.
    pub fn is_identity(&self) -> bool {
        self.steps.is_empty()
    }
}
