//! The target-independent skeleton: symbols, buffers, nodes, memory plan.

use crate::expr::Expr;
use serde::{Deserialize, Serialize};

/// Version of the graph format this crate writes. A reader refuses a newer one.
pub const FORMAT_VERSION: u32 = 1;

/// Alignment of every buffer and weight in bytes: a cache line of every device, and what vector loads want.
pub const BUFFER_ALIGN: u64 = 256;

/// A compiled model without its code.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
    /// Where temporary buffers live.
    pub plan: MemoryPlan,
}

/// A named size that is known only when the function is invoked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SymbolSpec {
    /// The model's own name for it (`batch`, `sequence_length`).
    pub name: String,
    /// Smallest legal value.
    pub min: i64,
    /// Largest legal value.
    pub max: i64,
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
pub struct BufferSpec {
    /// The tensor's name for inputs and outputs, a unique name otherwise.
    pub name: String,
    /// Owner and lifetime.
    pub kind: BufferKind,
    /// Element type.
    pub dtype: DType,
    /// Dimensions, outermost first.
    pub shape: Vec<Expr>,
    /// Offset of a constant in the weights, in bytes, a multiple of [`BUFFER_ALIGN`]; `None` for every other kind.
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
#[serde(rename_all = "snake_case")]
pub enum NodeKind {
    /// A kernel, launched as the target's [`crate::LaunchSpec`] of the same index says.
    Kernel,
    /// A copy of `bytes` between two buffers.
    Copy {
        /// Source.
        from: BufferId,
        /// Destination.
        to: BufferId,
        /// How many bytes.
        bytes: Expr,
    },
}

/// Where temporary buffers live: offsets in one arena that every invocation gets for itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryPlan {
    /// Size of the arena in bytes.
    pub arena_bytes: Option<Expr>,
    /// Offset in bytes of every temporary buffer.
    pub temps: Vec<TempPlacement>,
    /// For node `i`, the earliest node from which the graph may be run again after node `i` has started (a *safe restore
    /// point*, design D5 g): every input of the window still holds what it held. `i + 1` where node `i` overwrites its own
    /// input and so must be left to finish.
    pub restore_points: Vec<NodeId>,
    /// Bytes of all temporary buffers if none shared memory, for comparison.
    pub unshared_bytes: Option<Expr>,
}

/// The place of one temporary buffer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TempPlacement {
    /// The buffer.
    pub buffer: BufferId,
    /// Offset in the arena, in bytes.
    pub offset: Expr,
}

impl KernelGraph {
    /// Buffers of a kind, in order.
    pub fn buffers_of(&self, kind: BufferKind) -> impl Iterator<Item = (BufferId, &BufferSpec)> {
        self.buffers.iter().enumerate().filter(move |(_, b)| b.kind == kind).map(|(i, b)| (BufferId(i as u32), b))
    }
}
