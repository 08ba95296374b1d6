//! The target-independent skeleton: symbols, buffers, nodes, memory plan.

use crate::batch::BatchAxis;
use crate::check::Check;
use crate::condition::{Condition, InputElement};
use crate::expr::{Expr, SymbolId};
use crate::segment::{Scalar, Segment};
use crate::session::Session;
use serde::{Deserialize, Serialize};

/// Version of the format that this crate writes, and the newest that it reads.
pub const FORMAT_VERSION: u32 = 2;

/// The oldest format that is read. Format 1 has no [`crate::Feature`].
pub const FORMAT_VERSION_MIN: u32 = 1;

/// Alignment of every buffer and weight in bytes: a cache line of every device, and what vector
/// loads want.
pub const BUFFER_ALIGN: u64 = 256;

/// A compiled model without its code.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelGraph {
    /// [`FORMAT_VERSION`] of the writer.
    pub format: u32,
    /// Name of the model.
    pub name: String,
    /// Symbols that sizes are expressed in.
    pub symbols: Vec<SymbolSpec>,
    /// Buffers; [`BufferId`] indexes them.
    pub buffers: Vec<BufferSpec>,
    /// Nodes in an order that respects every dependency; [`NodeId`] indexes them.
    pub nodes: Vec<Node>,
    /// Where temporary and state buffers live.
    pub plan: MemoryPlan,
    /// Where the rows of a batch lie, where an analysis proved them independent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<BatchAxis>,
    /// Symbols whose values nodes compute, in the order of these nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub read_backs: Vec<ReadBack>,
    /// Which nodes run, by conditions and in loops. Without any, all nodes run in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub segments: Vec<Segment>,
    /// Symbols whose values are elements of inputs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub elements: Vec<InputElement>,
    /// What sizes must satisfy beyond the ranges of the symbols.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// What kernels check while they run; [`crate::Argument::Check`] names them by index.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<Check>,
    /// What a session keeps from one invocation to the next, where there are state buffers.
    #[serde(default, skip_serializing_if = "Session::is_empty")]
    pub session: Session,
}

/// A symbol whose value is read from the device when a node is complete, as the number of elements
/// that a selection left.
///
/// Memory is laid out for the largest value of the symbol; launches behind the node are made with
/// the value that was read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReadBack {
    /// The symbol. No shape of an input or of a state buffer depends on it.
    pub symbol: SymbolId,
    /// The node that writes the value.
    pub after: NodeId,
    /// Where the value lies. One outside of the symbol's range, or above `most`, fails the
    /// invocation.
    pub value: Scalar,
    /// The largest value for an invocation, where that is less than the symbol's largest; over
    /// symbols that are known before. Memory is laid out for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most: Option<Expr>,
}

/// A named size that is known only when the function is invoked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SymbolSpec {
    /// The model's own name for it (`batch`, `sequence_length`).
    pub name: String,
    /// Smallest legal value; negative only for an element of an input.
    pub min: i64,
    /// Largest legal value.
    pub max: i64,
    /// What set the range, for messages: an option, or a node of the model. Empty for the usual
    /// range.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

impl SymbolSpec {
    /// A symbol with a range that nothing in particular set.
    pub fn new(name: impl Into<String>, min: i64, max: i64) -> SymbolSpec {
        SymbolSpec { name: name.into(), min, max, reason: String::new() }
    }

    /// Its range, and what set it: `` `seq` is 1 to 512 (node slice needs it) ``.
    pub fn range_text(&self) -> String {
        let reason = if self.reason.is_empty() { String::new() } else { format!(" ({})", self.reason) };
        match self.min == self.max {
            true => format!("`{}` is {}{reason}", self.name, self.min),
            false => format!("`{}` is {} to {}{reason}", self.name, self.min, self.max),
        }
    }
}

/// Index of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BufferId(pub u32);

/// Index of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeId(pub u32);

/// Who owns a buffer's content and how long it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BufferKind {
    /// From the client.
    Input,
    /// To the client.
    Output,
    /// Never changes: weights.
    Const,
    /// Alive within one invocation.
    Temp,
    /// Alive as long as a session: what one invocation leaves in it the next one finds. Zeroed when
    /// the session opens.
    State,
}

/// Element type of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the variants are the type names of every framework")]
pub enum DType {
    Bool,
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    U64,
    I64,
    F16,
    Bf16,
    F32,
    F64,
}

impl DType {
    /// Size of one element in bytes.
    pub fn bytes(self) -> u64 {
        match self {
            DType::Bool | DType::U8 | DType::I8 => 1,
            DType::U16 | DType::I16 | DType::F16 | DType::Bf16 => 2,
            DType::U32 | DType::I32 | DType::F32 => 4,
            DType::U64 | DType::I64 | DType::F64 => 8,
        }
    }
}

/// The name that graphs have it under: `f32`.
impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            DType::Bool => "bool",
            DType::U8 => "u8",
            DType::I8 => "i8",
            DType::U16 => "u16",
            DType::I16 => "i16",
            DType::U32 => "u32",
            DType::I32 => "i32",
            DType::U64 => "u64",
            DType::I64 => "i64",
            DType::F16 => "f16",
            DType::Bf16 => "bf16",
            DType::F32 => "f32",
            DType::F64 => "f64",
        })
    }
}

/// A buffer: what it is, never where it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BufferSpec {
    /// The tensor's name for inputs and outputs, a unique name otherwise.
    pub name: String,
    /// Owner and lifetime.
    pub kind: BufferKind,
    /// Element type.
    pub dtype: DType,
    /// Dimensions, outermost first.
    pub shape: Vec<Expr>,
    /// Offset of a constant in the weights, in bytes, a multiple of [`BUFFER_ALIGN`]; `None` for
    /// every other kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights_offset: Option<u64>,
}

impl BufferSpec {
    /// Size in bytes, unaligned.
    pub fn bytes(&self) -> Expr {
        Expr::product(&self.shape) * self.dtype.bytes() as i64
    }
}

/// One step of the graph.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// Unique, readable: the model's node name or one made from it.
    pub name: String,
    /// What it does.
    pub kind: NodeKind,
    /// Buffers read.
    pub reads: Vec<BufferId>,
    /// Buffers written.
    pub writes: Vec<BufferId>,
    /// Nodes that must be complete before this one starts.
    pub after: Vec<NodeId>,
}

/// The kinds of nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum NodeKind {
    /// A kernel, launched as the target's [`crate::LaunchSpec`] of the same index says.
    Kernel,
    /// A copy of `bytes` between two buffers, or two ranges of one that do not overlap.
    ///
    /// Where the target has a launch for the node, that kernel copies, in the device queue and
    /// preemptible like any other. Otherwise the host copies, once everything before it is
    /// complete.
    Copy {
        /// Source.
        from: BufferId,
        /// Where in the source, in bytes.
        #[serde(default = "zero", skip_serializing_if = "is_zero")]
        from_offset: Expr,
        /// Destination.
        to: BufferId,
        /// Where in the destination, in bytes.
        #[serde(default = "zero", skip_serializing_if = "is_zero")]
        to_offset: Expr,
        /// How many bytes.
        bytes: Expr,
    },
    /// `bytes` of a buffer get a repeated pattern. Done as a copy is.
    Fill {
        /// The buffer.
        to: BufferId,
        /// Where in the buffer, in bytes.
        #[serde(default = "zero", skip_serializing_if = "is_zero")]
        offset: Expr,
        /// How many bytes: a multiple of the pattern's.
        bytes: Expr,
        /// 1, 2, 4 or 8 bytes.
        pattern: Vec<u8>,
    },
}

impl NodeKind {
    /// A copy from the start of one buffer to the start of another.
    pub fn copy(from: BufferId, to: BufferId, bytes: Expr) -> NodeKind {
        NodeKind::Copy { from, from_offset: zero(), to, to_offset: zero(), bytes }
    }
}

pub(crate) fn zero() -> Expr {
    Expr::Const(0)
}

fn is_zero(expr: &Expr) -> bool {
    expr.as_const() == Some(0)
}

/// Where temporary buffers live: offsets in one arena that every invocation gets for itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryPlan {
    /// Size of the arena in bytes.
    pub arena_bytes: Option<Expr>,
    /// Offset in bytes of every temporary buffer.
    pub temps: Vec<TempPlacement>,
    /// For node `i`, the earliest node from which the graph may be run again after node `i` has
    /// started (a *safe restore point*, design D5 g): every input of the window still holds
    /// what it held. `i + 1` where node `i` overwrites its own input and so must be left to
    /// finish.
    pub restore_points: Vec<NodeId>,
    /// Bytes of all temporary buffers if none shared memory, for comparison.
    pub unshared_bytes: Option<Expr>,
    /// Size in bytes of the memory that a session has for state buffers. Symbols that it depends on
    /// are fixed when the session opens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_bytes: Option<Expr>,
    /// Offset in bytes of every state buffer in that memory. They do not overlap.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub states: Vec<TempPlacement>,
}

/// The place of one temporary or state buffer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TempPlacement {
    /// The buffer.
    pub buffer: BufferId,
    /// Offset in the arena, or in the session's memory, in bytes.
    pub offset: Expr,
}

impl KernelGraph {
    /// The size that is read back as the value of a symbol.
    pub fn read_back_of(&self, symbol: SymbolId) -> Option<&ReadBack> {
        self.read_backs.iter().find(|read_back| read_back.symbol == symbol)
    }

    /// Buffers of a kind, in order.
    pub fn buffers_of(&self, kind: BufferKind) -> impl Iterator<Item = (BufferId, &BufferSpec)> {
        self.buffers.iter().enumerate().filter(move |(_, b)| b.kind == kind).map(|(i, b)| (BufferId(i as u32), b))
    }
}
