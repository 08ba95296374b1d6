//! The target-independent part of a compiled model: symbols, buffers, nodes and memory plan.

use crate::batch::BatchAxis;
use crate::check::Check;
use crate::condition::{Condition, InputElement};
pub use crate::dtype::DType;
use crate::expr::{Expr, SymbolId};
use crate::segment::{Scalar, Segment};
use crate::session::Session;
use crate::strings::format::Strings;
use serde::{Deserialize, Serialize};

/// The format version that this crate writes, and the newest that it reads.
pub const FORMAT_VERSION: u32 = 2;

/// The oldest format version that it reads. Format 1 has no [`crate::Feature`].
pub const FORMAT_VERSION_MIN: u32 = 1;

/// Alignment of every buffer and weight in bytes: at least a cache line of every device, and enough
/// for vector loads.
pub const BUFFER_ALIGN: u64 = 256;

/// A compiled model without its code.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelGraph {
    /// [`FORMAT_VERSION`] of the writer.
    pub format: u32,
    /// Name of the model.
    pub name: String,
    /// Symbols used in size expressions.
    pub symbols: Vec<SymbolSpec>,
    /// Buffers; [`BufferId`] indexes them.
    pub buffers: Vec<BufferSpec>,
    /// Nodes in an order that respects every dependency; [`NodeId`] indexes them.
    pub nodes: Vec<Node>,
    /// Placement of temporary and state buffers.
    pub plan: MemoryPlan,
    /// The batch axis, if an analysis proved the rows independent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<BatchAxis>,
    /// Symbols whose values nodes compute, ordered by node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub read_backs: Vec<ReadBack>,
    /// Control flow: conditions and loops over nodes. If empty, all nodes run in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub segments: Vec<Segment>,
    /// Symbols whose values are elements of inputs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub elements: Vec<InputElement>,
    /// Conditions on sizes beyond the ranges of the symbols.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Runtime checks of kernels; [`crate::Argument::Check`] refers to them by index.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<Check>,
    /// The state that a session keeps between invocations; empty if there are no state buffers.
    #[serde(default, skip_serializing_if = "Session::is_empty")]
    pub session: Session,
    /// Strings that the model names, and the steps that compute inputs from strings.
    #[serde(default, skip_serializing_if = "Strings::is_empty")]
    pub strings: Strings,
}

/// A symbol whose value is read from the device after a node, such as the number of elements that a
/// selection kept.
///
/// Memory is laid out for the largest value of the symbol; launches after the node use the value
/// that was read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReadBack {
    /// The symbol. No shape of an input or of a state buffer depends on it.
    pub symbol: SymbolId,
    /// The node that computes the value.
    pub after: NodeId,
    /// Location of the value. A value outside the symbol's range, or above `most`, fails the
    /// invocation.
    pub value: Scalar,
    /// A tighter upper bound for the current invocation, over symbols that are known earlier.
    /// Memory is laid out for it. If absent, the symbol's maximum applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most: Option<Expr>,
}

/// A named size that is known only when the function is invoked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SymbolSpec {
    /// The name in the model (`batch`, `sequence_length`).
    pub name: String,
    /// Smallest allowed value; negative only for an element of an input.
    pub min: i64,
    /// Largest allowed value.
    pub max: i64,
    /// The origin of the range, for messages: an option, or a node of the model. Empty for the
    /// default range.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

impl SymbolSpec {
    /// A symbol with a range and no reason.
    pub fn new(name: impl Into<String>, min: i64, max: i64) -> SymbolSpec {
        SymbolSpec { name: name.into(), min, max, reason: String::new() }
    }

    /// The range and its reason, for messages: `` `seq` is 1 to 512 (node slice needs it) ``.
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

/// Origin and lifetime of a buffer's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BufferKind {
    /// Given by the client.
    Input,
    /// Returned to the client.
    Output,
    /// Constant: weights.
    Const,
    /// Lives within one invocation.
    Temp,
    /// Lives as long as a session: an invocation finds what the previous one left. Zeroed when the
    /// session opens.
    State,
}

/// A buffer: its type, size and lifetime, but no address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BufferSpec {
    /// The tensor's name for inputs and outputs, a unique name otherwise.
    pub name: String,
    /// Origin and lifetime.
    pub kind: BufferKind,
    /// Element type.
    pub dtype: DType,
    /// Dimensions, outermost first.
    pub shape: Vec<Expr>,
    /// Offset of a constant in the weights, in bytes, a multiple of [`BUFFER_ALIGN`]; `None` for
    /// all other kinds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights_offset: Option<u64>,
}

impl BufferSpec {
    /// Size in bytes, without alignment.
    pub fn bytes(&self) -> Expr {
        Expr::product(&self.shape) * self.dtype.bytes() as i64
    }
}

/// A node of the graph: one kernel, copy or fill.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// Unique, readable name: the model's node name, or one derived from it.
    pub name: String,
    /// The operation.
    pub kind: NodeKind,
    /// Buffers that it reads.
    pub reads: Vec<BufferId>,
    /// Buffers that it writes.
    pub writes: Vec<BufferId>,
    /// Nodes that must complete before this one starts.
    pub after: Vec<NodeId>,
}

/// The kinds of nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum NodeKind {
    /// A kernel. The target's [`crate::LaunchSpec`] with the same index describes the launch.
    Kernel,
    /// A copy of `bytes` between two buffers, or between two disjoint ranges of one buffer.
    ///
    /// If the target has a launch for the node, a kernel does the copy in the device queue,
    /// preemptible like any other. Otherwise the host copies, after everything before it has
    /// completed.
    Copy {
        /// Source.
        from: BufferId,
        /// Offset in the source, in bytes.
        #[serde(default = "zero", skip_serializing_if = "is_zero")]
        from_offset: Expr,
        /// Destination.
        to: BufferId,
        /// Offset in the destination, in bytes.
        #[serde(default = "zero", skip_serializing_if = "is_zero")]
        to_offset: Expr,
        /// Number of bytes.
        bytes: Expr,
    },
    /// Fills `bytes` of a buffer with a repeated pattern. Executed like a copy.
    Fill {
        /// The buffer.
        to: BufferId,
        /// Offset in the buffer, in bytes.
        #[serde(default = "zero", skip_serializing_if = "is_zero")]
        offset: Expr,
        /// Number of bytes, a multiple of the pattern's length.
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

/// Placement of temporary buffers: offsets in an arena that belongs to one invocation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryPlan {
    /// Size of the arena in bytes.
    pub arena_bytes: Option<Expr>,
    /// Offset in bytes of every temporary buffer.
    pub temps: Vec<TempPlacement>,
    /// For node `i`, the earliest node from which the graph can run again after node `i` has
    /// started (*safe restore point*): all inputs of the nodes from there on still have their
    /// values. `i + 1` if node `i` overwrites its own input and therefore must finish.
    pub restore_points: Vec<NodeId>,
    /// Bytes of all temporary buffers without memory reuse, for comparison.
    pub unshared_bytes: Option<Expr>,
    /// Size in bytes of a session's memory for state buffers. The symbols that it depends on are
    /// fixed when the session opens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_bytes: Option<Expr>,
    /// Offset in bytes of every state buffer in the session's memory. They do not overlap.
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
    /// The read-back that gives a symbol its value.
    pub fn read_back_of(&self, symbol: SymbolId) -> Option<&ReadBack> {
        self.read_backs.iter().find(|read_back| read_back.symbol == symbol)
    }

    /// The inputs that clients give: all but those that the host computes from strings.
    pub fn client_inputs(&self) -> impl Iterator<Item = (BufferId, &BufferSpec)> {
        let all = self.buffers_of(BufferKind::Input).count();
        self.buffers_of(BufferKind::Input).take(all.saturating_sub(self.strings.computed_inputs()))
    }

    /// Buffers of a kind, in order of their ids.
    pub fn buffers_of(&self, kind: BufferKind) -> impl Iterator<Item = (BufferId, &BufferSpec)> {
        self.buffers.iter().enumerate().filter(move |(_, b)| b.kind == kind).map(|(i, b)| (BufferId(i as u32), b))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_narrow_type_is_a_byte_of_which_some_bits_count() {
        for dtype in DType::NARROW {
            assert_eq!(serde_json::to_string(&dtype).expect("a name"), format!("\"{dtype}\""));
            assert!(dtype.bytes() == 1 && dtype.bits() <= 8 && !dtype.carrier().is_narrow(), "{dtype}");
            assert!(dtype.to_string()[1..].starts_with(&dtype.bits().to_string()), "{dtype}");
        }
        assert!(!DType::U8.is_narrow() && DType::F16.carrier() == DType::F16 && DType::I4.carrier() == DType::I8);
        assert_eq!([DType::Bool, DType::F16, DType::I64].map(DType::bits), [8, 16, 64]);
    }
}
