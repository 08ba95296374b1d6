//! The table of ONNX operators and how each becomes operators of the tensor graph. One file per family.

mod constant;
mod conv;
mod layout;
mod matmul;
mod norm;
mod pointwise;
mod recurrent;
mod reduce;
mod resize;
mod shape;

use super::call::Call;
use super::error::LowerResult;
use super::lowering::Lowering;
use crate::tensor_graph::ValueId;

/// Lowers one node; gives the values of its results in ONNX's order. Results that nobody reads may be left out.
pub(super) type Lower = fn(&mut Lowering, &Call<'_>) -> LowerResult<Vec<ValueId>>;

/// All operators by name, sorted.
static OPERATORS: &[(&str, Lower)] = &[
    ("Abs", pointwise::unary),
    ("Add", pointwise::binary),
    ("And", pointwise::binary),
    ("AveragePool", conv::average_pool),
    ("BatchNormalization", norm::batch_normalization),
    ("Cast", pointwise::cast),
    ("CastLike", pointwise::cast_like),
    ("Ceil", pointwise::unary),
    ("Celu", pointwise::celu),
    ("Clip", pointwise::clip),
    ("Concat", layout::concat),
    ("Constant", constant::constant),
    ("ConstantOfShape", constant::constant_of_shape),
    ("Conv", conv::conv),
    ("Cos", pointwise::unary),
    ("DepthToSpace", layout::depth_to_space),
    ("Div", pointwise::binary),
    ("Dropout", layout::dropout),
    ("Elu", pointwise::elu),
    ("Equal", pointwise::binary),
    ("Erf", pointwise::unary),
    ("Exp", pointwise::unary),
    ("Expand", shape::expand),
    ("EyeLike", constant::eye_like),
    ("Flatten", shape::flatten),
    ("Floor", pointwise::unary),
    ("Gather", layout::gather),
    ("Gelu", pointwise::gelu),
    ("Gemm", matmul::gemm),
    ("GlobalAveragePool", conv::global_pool),
    ("GlobalMaxPool", conv::global_pool),
    ("Greater", pointwise::binary),
    ("GreaterOrEqual", pointwise::binary),
    ("GroupNormalization", norm::group_normalization),
    ("HardSigmoid", pointwise::hard_sigmoid),
    ("HardSwish", pointwise::hard_swish),
    ("Identity", layout::identity),
    ("InstanceNormalization", norm::instance_normalization),
    ("IsNaN", pointwise::is_nan),
    ("LRN", norm::local_response_normalization),
    ("LSTM", recurrent::lstm),
    ("LayerNormalization", norm::layer_normalization),
    ("LeakyRelu", pointwise::leaky_relu),
    ("Less", pointwise::binary),
    ("LessOrEqual", pointwise::binary),
    ("Log", pointwise::unary),
    ("LogSoftmax", norm::softmax),
    ("LpNormalization", norm::lp_normalization),
    ("MatMul", matmul::matmul),
    ("Max", pointwise::variadic),
    ("MaxPool", conv::max_pool),
    ("Mean", pointwise::variadic),
    ("Min", pointwise::variadic),
    ("Mish", pointwise::mish),
    ("Mod", pointwise::modulo),
    ("Mul", pointwise::binary),
    ("Neg", pointwise::unary),
    ("Not", pointwise::unary),
    ("OneHot", layout::one_hot),
    ("Or", pointwise::binary),
    ("PRelu", pointwise::prelu),
    ("Pad", layout::pad),
    ("Pow", pointwise::pow),
    ("Range", constant::range),
    ("Reciprocal", pointwise::unary),
    ("ReduceL1", reduce::reduce),
    ("ReduceL2", reduce::reduce),
    ("ReduceLogSum", reduce::reduce),
    ("ReduceLogSumExp", reduce::reduce),
    ("ReduceMax", reduce::reduce),
    ("ReduceMean", reduce::reduce),
    ("ReduceMin", reduce::reduce),
    ("ReduceProd", reduce::reduce),
    ("ReduceSum", reduce::reduce),
    ("ReduceSumSquare", reduce::reduce),
    ("Relu", pointwise::unary),
    ("Reshape", shape::reshape),
    ("Resize", resize::resize),
    ("Round", pointwise::unary),
    ("Selu", pointwise::selu),
    ("Shape", shape::shape),
    ("Sigmoid", pointwise::unary),
    ("Sign", pointwise::unary),
    ("Sin", pointwise::unary),
    ("Size", shape::size),
    ("Slice", layout::slice),
    ("Softmax", norm::softmax),
    ("Softplus", pointwise::unary),
    ("Softsign", pointwise::softsign),
    ("SpaceToDepth", layout::space_to_depth),
    ("Split", layout::split),
    ("Sqrt", pointwise::unary),
    ("Squeeze", shape::squeeze),
    ("Sub", pointwise::binary),
    ("Sum", pointwise::variadic),
    ("Tan", pointwise::tan),
    ("Tanh", pointwise::unary),
    ("ThresholdedRelu", pointwise::thresholded_relu),
    ("Tile", layout::tile),
    ("Transpose", layout::transpose),
    ("Unsqueeze", shape::unsqueeze),
    ("Upsample", resize::upsample),
    ("Where", pointwise::select),
    ("Xor", pointwise::binary),
];

/// Names of all operators that can be imported.
pub fn supported_operators() -> impl Iterator<Item = &'static str> {
    OPERATORS.iter().map(|(name, _)| *name)
}

pub(super) fn find(operator: &str) -> Option<Lower> {
    OPERATORS.binary_search_by_key(&operator, |(name, _)| name).ok().map(|i| OPERATORS[i].1)
}

/// The operator with the most similar name.
pub(super) fn nearest(operator: &str) -> &'static str {
    supported_operators().min_by_key(|name| edit_distance(name, operator)).unwrap_or("Identity")
}

/// Letters to insert, delete or replace to make one name the other.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().take(64).collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_and_finds_similar_names() {
        assert!(OPERATORS.is_sorted_by(|a, b| a.0 < b.0));
        assert!(OPERATORS.iter().all(|(name, _)| find(name).is_some()));
        assert_eq!(nearest("ConvTranspose"), "Transpose");
        assert_eq!(nearest("ReduceMedian"), "ReduceMean");
        assert!(find("NoSuchOperator").is_none());
    }
}
