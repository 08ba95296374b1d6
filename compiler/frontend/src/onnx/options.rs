//! What the user decides about an import, and the limits of one.

use super::error::ImportError;
use super::proto::NodeProto;
use atoll_kgraph::{SizeRanges, States};

/// Oldest operator set that is read: the first with today's broadcasting.
pub const OPSET_MIN: i64 = 7;
/// Newest operator set whose changes were read and followed.
pub const OPSET_MAX: i64 = 27;
/// Most nodes of a graph, with functions inlined and loops unrolled; the largest known models have
/// a few ten thousand.
pub const NODES_MAX: usize = 1 << 18;
/// Largest dimension that an input may have: sizes then stay far from overflowing.
pub const DIMENSION_MAX: i64 = (1 << 31) - 1;
/// Largest value of a symbol unless the options or the model say otherwise.
pub const SYMBOL_MAX: i64 = 65_536;

/// What the user decides about an import.
#[derive(Clone, Debug)]
pub struct ImportOptions {
    /// Ranges of named dimensions (`dim_param`, or `<input>_dim_<axis>` where the model gives no
    /// name). The others are `1..=symbol_max`, or what of it the model allows.
    pub symbols: SizeRanges,
    /// The same for names that the model need not have.
    pub common: SizeRanges,
    /// Largest value of a dimension that `symbols` does not name.
    pub symbol_max: i64,
    /// Which inputs and outputs are states.
    pub states: States,
}

impl Default for ImportOptions {
    fn default() -> ImportOptions {
        ImportOptions {
            symbols: SizeRanges::new(),
            common: SizeRanges::new(),
            symbol_max: SYMBOL_MAX,
            states: States::None,
        }
    }
}

/// Operators that mean in operator sets 1 to 6 what they mean in 7, but for attributes that were
/// hints.
const UNCHANGED: [&str; 40] = [
    "Abs",
    "Ceil",
    "Constant",
    "Conv",
    "ConvTranspose",
    "DepthToSpace",
    "Elu",
    "Exp",
    "Flatten",
    "Floor",
    "Gather",
    "GlobalAveragePool",
    "GlobalMaxPool",
    "HardSigmoid",
    "Identity",
    "LRN",
    "LeakyRelu",
    "Log",
    "LogSoftmax",
    "Neg",
    "Not",
    "Reciprocal",
    "ReduceL1",
    "ReduceL2",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceProd",
    "ReduceSum",
    "Relu",
    "Selu",
    "Shape",
    "Sigmoid",
    "Slice",
    "Softmax",
    "Softplus",
    "Sqrt",
    "Squeeze",
    "Tanh",
    "Transpose",
];

/// Refuses operator sets that were not read. Of those before [`OPSET_MIN`] models of operators that
/// did not change are read.
pub(super) fn check_opset(version: i64, nodes: &[NodeProto]) -> Result<(), ImportError> {
    let is_unchanged = || nodes.iter().all(|node| UNCHANGED.contains(&node.op_type.as_str()));
    if (OPSET_MIN..=OPSET_MAX).contains(&version) || ((1..OPSET_MIN).contains(&version) && is_unchanged()) {
        return Ok(());
    }
    Err(ImportError::Opset { version, min: OPSET_MIN, max: OPSET_MAX })
}

/// Whether a domain is that of the standard operators.
pub(super) fn is_default_domain(domain: &str) -> bool {
    domain.is_empty() || domain == "ai.onnx"
}

/// The node's name, or its operator and place.
pub(super) fn node_name(node: &NodeProto, index: usize) -> String {
    if node.name.is_empty() { format!("{}_{index}", node.op_type) } else { node.name.clone() }
}
