//! Options and limits of an import.

use super::error::ImportError;
use super::proto::NodeProto;
use atoll_kgraph::{SizeRanges, States};

/// The oldest supported operator set: the first one with NumPy's broadcasting.
pub const OPSET_MIN: i64 = 7;
/// The newest supported operator set.
pub const OPSET_MAX: i64 = 27;
/// Largest number of nodes of a graph, with functions inlined and loops unrolled. The largest known
/// models have a few ten thousand.
pub const NODES_MAX: usize = 1 << 18;
/// Largest dimension of an input, so that sizes computed from it do not overflow.
pub const DIMENSION_MAX: i64 = (1 << 31) - 1;
/// Largest value of a symbol, unless the options or the model narrow it.
pub const SYMBOL_MAX: i64 = 65_536;

/// Options of an import.
#[derive(Clone, Debug)]
pub struct ImportOptions {
    /// Ranges of named dimensions (`dim_param`, or `<input>_dim_<axis>` if the model gives no
    /// name). A symbol that is not listed ranges over `1..=symbol_max`, narrowed by what the model
    /// allows.
    pub symbols: SizeRanges,
    /// Further ranges; unlike `symbols`, they may name dimensions that the model does not have.
    pub common: SizeRanges,
    /// Largest value of a dimension that neither `symbols` nor `common` names.
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

/// Operators that have the same meaning in operator sets 1 to 6 as in operator set 7, except for
/// attributes that were hints.
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

/// Returns an error for an unsupported operator set. Operator sets before [`OPSET_MIN`] are
/// supported if all nodes are operators that did not change.
pub(super) fn check_opset(version: i64, nodes: &[NodeProto]) -> Result<(), ImportError> {
    let is_unchanged = || nodes.iter().all(|node| UNCHANGED.contains(&node.op_type.as_str()));
    if (OPSET_MIN..=OPSET_MAX).contains(&version) || ((1..OPSET_MIN).contains(&version) && is_unchanged()) {
        return Ok(());
    }
    Err(ImportError::Opset { version, min: OPSET_MIN, max: OPSET_MAX })
}

/// Whether a domain is the domain of the standard operators.
pub(super) fn is_default_domain(domain: &str) -> bool {
    domain.is_empty() || domain == "ai.onnx"
}

/// The node's name, or its operator and index if it has none.
pub(super) fn node_name(node: &NodeProto, index: usize) -> String {
    if node.name.is_empty() { format!("{}_{index}", node.op_type) } else { node.name.clone() }
}
