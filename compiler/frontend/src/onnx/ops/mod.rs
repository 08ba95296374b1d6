//! The table of ONNX operators, and the lowering of each to operators of the tensor graph. One file
//! per family.

mod activation;
mod attention;
mod batch_norm;
mod builder;
mod cells;
mod col2im;
mod constant;
mod contrib;
mod contrib_attention;
mod conv;
mod conv_transpose;
mod deform;
mod det;
mod dft;
mod dropout;
mod einsum;
mod filter;
mod flex_attention;
mod gather;
mod grid;
pub(super) mod layout;
mod loss;
mod matmul;
mod ml;
pub(super) mod narrow;
mod ngrams;
mod norm;
mod order;
mod packed;
mod pad;
mod pieces;
mod pointwise;
mod pool;
mod quantize;
mod random;
mod range;
mod real;
mod recurrent;
mod reduce;
mod resample;
mod resize;
mod roi;
mod sampling;
mod scan;
mod scatter;
mod select;
mod shape;
mod signal;
mod slice;
mod softmax;
mod state_space;
pub(super) mod strings;
mod suppression;
mod taps;
mod unique;
mod unpool;
mod window;

use super::call::Call;
use super::error::LowerResult;
use super::failure::Failure;
use super::import::Import;
use super::lowering::Lowering;
use super::options::is_default_domain;
use super::scope::Item;
use super::{sequence, subgraph};
use crate::tensor_graph::ValueId;

/// Lowers one node; returns its results in ONNX's order. Trailing results that no node reads may be
/// omitted.
pub(super) type Lower = fn(&mut Lowering, &Call<'_>) -> LowerResult<Vec<ValueId>>;

/// Lowers one node with subgraphs, sequences or optionals. It gets the whole import, so that it can
/// lower other nodes.
pub(super) type LowerItems = for<'m> fn(&mut Import<'m>, &Call<'m>) -> Result<Vec<Item>, Failure>;

/// How an operator is lowered.
#[derive(Clone, Copy)]
pub(super) enum Operator {
    Tensors(Lower),
    Items(LowerItems),
}

/// Operators with subgraphs, and operators on sequences and optionals; sorted by name.
static ITEM_OPERATORS: &[(&str, LowerItems)] = &[
    ("ConcatFromSequence", sequence::concat_from_sequence),
    ("Identity", sequence::identity),
    ("If", subgraph::if_),
    ("Loop", subgraph::loop_),
    ("Optional", sequence::identity),
    ("OptionalGetElement", sequence::optional_get_element),
    ("OptionalHasElement", sequence::optional_has_element),
    ("Scan", subgraph::scan),
    ("SequenceAt", sequence::sequence_at),
    ("SequenceConstruct", sequence::sequence_construct),
    ("SequenceEmpty", sequence::sequence_empty),
    ("SequenceErase", sequence::sequence_erase),
    ("SequenceInsert", sequence::sequence_insert),
    ("SequenceLength", sequence::sequence_length),
    ("SequenceMap", sequence::sequence_map),
    ("SplitToSequence", sequence::split_to_sequence),
    ("ai.onnx.preview.FlexAttention", flex_attention::flex_attention),
];

/// Operators on tensors, sorted by name. The name of an operator outside the default domain is
/// prefixed with its domain, as in ONNX's text format.
static OPERATORS: &[(&str, Lower)] = &[
    ("Abs", pointwise::unary),
    ("Acos", pointwise::unary),
    ("Acosh", pointwise::unary),
    ("Add", pointwise::binary),
    ("AffineGrid", grid::affine_grid),
    ("And", pointwise::binary),
    ("ArgMax", order::arg_extreme),
    ("ArgMin", order::arg_extreme),
    ("Asin", pointwise::unary),
    ("Asinh", pointwise::unary),
    ("Atan", pointwise::unary),
    ("Atanh", pointwise::unary),
    ("Attention", attention::attention),
    ("AveragePool", pool::average_pool),
    ("BatchNormalization", batch_norm::batch_normalization),
    ("Bernoulli", random::bernoulli),
    ("BitCast", pointwise::bit_cast),
    ("BitShift", pointwise::bit_shift),
    ("BitwiseAnd", pointwise::binary),
    ("BitwiseNot", pointwise::unary),
    ("BitwiseOr", pointwise::binary),
    ("BitwiseXor", pointwise::binary),
    ("BlackmanWindow", signal::window),
    ("Cast", pointwise::cast),
    ("CastLike", pointwise::cast_like),
    ("CausalConvWithState", state_space::causal_conv_with_state),
    ("Ceil", pointwise::unary),
    ("Celu", activation::celu),
    ("CenterCropPad", pad::center_crop_pad),
    ("Clip", pointwise::clip),
    ("Col2Im", col2im::col2im),
    ("Compress", filter::compress),
    ("Concat", layout::concat),
    ("Constant", constant::constant),
    ("ConstantOfShape", constant::constant_of_shape),
    ("Conv", conv::conv),
    ("ConvInteger", quantize::conv_integer),
    ("ConvTranspose", conv_transpose::conv_transpose),
    ("Cos", pointwise::unary),
    ("Cosh", pointwise::unary),
    ("CumProd", scan::cumulate),
    ("CumSum", scan::cumulate),
    ("DFT", dft::dft),
    ("DeformConv", deform::deform_conv),
    ("DepthToSpace", layout::depth_to_space),
    ("DequantizeLinear", quantize::dequantize_linear),
    ("Det", det::det),
    ("Div", pointwise::binary),
    ("Dropout", dropout::dropout),
    ("DynamicQuantizeLinear", quantize::dynamic_quantize_linear),
    ("Einsum", einsum::einsum),
    ("Elu", activation::elu),
    ("Equal", pointwise::binary),
    ("Erf", pointwise::unary),
    ("Exp", pointwise::unary),
    ("Expand", shape::expand),
    ("EyeLike", constant::eye_like),
    ("Flatten", shape::flatten),
    ("Floor", pointwise::unary),
    ("GRU", recurrent::gru),
    ("Gather", gather::gather),
    ("GatherElements", gather::gather_elements),
    ("GatherND", gather::gather_nd),
    ("Gelu", activation::gelu),
    ("Gemm", matmul::gemm),
    ("GlobalAveragePool", pool::global_pool),
    ("GlobalLpPool", pool::global_pool),
    ("GlobalMaxPool", pool::global_pool),
    ("Greater", pointwise::binary),
    ("GreaterOrEqual", pointwise::binary),
    ("GridSample", grid::grid_sample),
    ("GroupNormalization", norm::group_normalization),
    ("HammingWindow", signal::window),
    ("HannWindow", signal::window),
    ("HardSigmoid", activation::hard_sigmoid),
    ("HardSwish", activation::hard_swish),
    ("Hardmax", softmax::hardmax),
    ("InstanceNormalization", norm::instance_normalization),
    ("IsInf", pointwise::is_inf),
    ("IsNaN", pointwise::is_nan),
    ("LRN", norm::local_response_normalization),
    ("LSTM", recurrent::lstm),
    ("LayerNormalization", norm::layer_normalization),
    ("LeakyRelu", activation::leaky_relu),
    ("Less", pointwise::binary),
    ("LessOrEqual", pointwise::binary),
    ("LinearAttention", state_space::linear_attention),
    ("Log", pointwise::unary),
    ("LogSoftmax", softmax::softmax),
    ("LpNormalization", norm::lp_normalization),
    ("LpPool", pool::lp_pool),
    ("MatMul", matmul::matmul),
    ("MatMulInteger", quantize::matmul_integer),
    ("Max", pointwise::variadic),
    ("MaxPool", pool::max_pool),
    ("MaxRoiPool", roi::max_roi_pool),
    ("MaxUnpool", unpool::max_unpool),
    ("Mean", pointwise::variadic),
    ("MeanVarianceNormalization", norm::mean_variance_normalization),
    ("MelWeightMatrix", signal::mel_weight_matrix),
    ("Min", pointwise::variadic),
    ("Mish", activation::mish),
    ("Mod", pointwise::modulo),
    ("Mul", pointwise::binary),
    ("Multinomial", random::multinomial),
    ("Neg", pointwise::unary),
    ("NegativeLogLikelihoodLoss", loss::negative_log_likelihood),
    ("NonMaxSuppression", suppression::non_max_suppression),
    ("NonZero", filter::non_zero),
    ("Not", pointwise::unary),
    ("OneHot", select::one_hot),
    ("Or", pointwise::binary),
    ("PRelu", pointwise::prelu),
    ("Pad", pad::pad),
    ("Pow", pointwise::pow),
    ("QLinearConv", quantize::qlinear_conv),
    ("QLinearMatMul", quantize::qlinear_matmul),
    ("QuantizeLinear", quantize::quantize_linear),
    ("RMSNormalization", norm::rms_normalization),
    ("RNN", recurrent::rnn),
    ("RandomNormal", random::random),
    ("RandomNormalLike", random::random),
    ("RandomUniform", random::random),
    ("RandomUniformLike", random::random),
    ("Range", range::range),
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
    ("RegexFullMatch", strings::regex_full_match),
    ("Relu", pointwise::unary),
    ("Reshape", shape::reshape),
    ("Resize", resize::resize),
    ("ReverseSequence", scan::reverse_sequence),
    ("RoiAlign", roi::roi_align),
    ("RotaryEmbedding", attention::rotary_embedding),
    ("Round", pointwise::unary),
    ("STFT", signal::stft),
    ("Scatter", scatter::scatter_elements),
    ("ScatterElements", scatter::scatter_elements),
    ("ScatterND", scatter::scatter_nd),
    ("Selu", activation::selu),
    ("Shape", shape::shape),
    ("Shrink", activation::shrink),
    ("Sigmoid", pointwise::unary),
    ("Sign", pointwise::unary),
    ("SimplifiedLayerNormalization", contrib::simplified_layer_normalization),
    ("Sin", pointwise::unary),
    ("Sinh", pointwise::unary),
    ("Size", shape::size),
    ("Slice", slice::slice),
    ("Softmax", softmax::softmax),
    ("SoftmaxCrossEntropyLoss", loss::softmax_cross_entropy),
    ("Softplus", pointwise::unary),
    ("Softsign", activation::softsign),
    ("SpaceToDepth", layout::space_to_depth),
    ("Split", layout::split),
    ("Sqrt", pointwise::unary),
    ("Squeeze", shape::squeeze),
    ("StringConcat", strings::string_concat),
    ("StringNormalizer", strings::string_normalizer),
    ("StringSplit", strings::string_split),
    ("Sub", pointwise::binary),
    ("Sum", pointwise::variadic),
    ("Swish", activation::swish),
    ("Tan", activation::tan),
    ("Tanh", pointwise::unary),
    ("TensorScatter", scatter::tensor_scatter),
    ("TfIdfVectorizer", ngrams::tf_idf_vectorizer),
    ("ThresholdedRelu", activation::thresholded_relu),
    ("Tile", layout::tile),
    ("TopK", scan::top_k),
    ("Transpose", layout::transpose),
    ("Trilu", select::trilu),
    ("Unique", unique::unique),
    ("Unsqueeze", shape::unsqueeze),
    ("Upsample", resize::upsample),
    ("Where", pointwise::select),
    ("Xor", pointwise::binary),
    ("ai.onnx.ml.ArrayFeatureExtractor", ml::array_feature_extractor),
    ("ai.onnx.ml.Binarizer", ml::binarizer),
    ("ai.onnx.ml.CategoryMapper", ml::category_mapper),
    ("ai.onnx.ml.FeatureVectorizer", ml::feature_vectorizer),
    ("ai.onnx.ml.Imputer", ml::imputer),
    ("ai.onnx.ml.LabelEncoder", ml::label_encoder),
    ("ai.onnx.ml.LinearClassifier", ml::linear_classifier),
    ("ai.onnx.ml.LinearRegressor", ml::linear_regressor),
    ("ai.onnx.ml.Normalizer", ml::normalizer),
    ("ai.onnx.ml.OneHotEncoder", ml::one_hot_encoder),
    ("ai.onnx.ml.SVMClassifier", ml::svm_classifier),
    ("ai.onnx.ml.SVMRegressor", ml::svm_regressor),
    ("ai.onnx.ml.Scaler", ml::scaler),
    ("ai.onnx.ml.TreeEnsemble", ml::tree_ensemble),
    ("ai.onnx.ml.TreeEnsembleClassifier", ml::tree_ensemble_classifier),
    ("ai.onnx.ml.TreeEnsembleRegressor", ml::tree_ensemble_regressor),
    ("ai.onnx.ml.ZipMap", ml::zip_map),
    ("com.microsoft.Attention", contrib_attention::attention),
    ("com.microsoft.BiasGelu", contrib::gelu),
    ("com.microsoft.DynamicQuantizeLSTM", contrib::requantized),
    ("com.microsoft.EmbedLayerNormalization", contrib::embed_layer_normalization),
    ("com.microsoft.FastGelu", contrib::fast_gelu),
    ("com.microsoft.FusedMatMul", contrib::fused_matmul),
    ("com.microsoft.Gelu", contrib::gelu),
    ("com.microsoft.GroupQueryAttention", contrib_attention::group_query_attention),
    ("com.microsoft.MatMulNBits", contrib::matmul_n_bits),
    ("com.microsoft.MultiHeadAttention", contrib_attention::multi_head_attention),
    ("com.microsoft.QAttention", contrib::requantized),
    ("com.microsoft.QuickGelu", contrib::quick_gelu),
    ("com.microsoft.RotaryEmbedding", contrib_attention::rotary_embedding),
    ("com.microsoft.SkipLayerNormalization", contrib::skip_layer_normalization),
    ("com.microsoft.SkipSimplifiedLayerNormalization", contrib::skip_simplified_layer_normalization),
    ("com.microsoft.Tokenizer", strings::tokenizer),
];

/// Names of all supported operators.
pub fn supported_operators() -> impl Iterator<Item = &'static str> {
    OPERATORS.iter().map(|(name, _)| *name).chain(ITEM_OPERATORS.iter().map(|(name, _)| *name))
}

pub(super) fn find(domain: &str, operator: &str) -> Option<Operator> {
    let name = if is_default_domain(domain) { operator.to_owned() } else { format!("{domain}.{operator}") };
    let of_tensors = OPERATORS
        .binary_search_by_key(&name.as_str(), |(name, _)| name)
        .ok()
        .map(|i| Operator::Tensors(OPERATORS[i].1));
    let of_items = || {
        ITEM_OPERATORS
            .binary_search_by_key(&name.as_str(), |(name, _)| name)
            .ok()
            .map(|i| Operator::Items(ITEM_OPERATORS[i].1))
    };
    of_tensors.or_else(of_items)
}

/// The supported operator with the most similar name, if one is similar: one name begins with the
/// words of the other, or few letters differ.
pub(super) fn nearest(operator: &str) -> Option<&'static str> {
    let distance = |name: &'static str| {
        let short = name.rsplit('.').next().unwrap_or(name);
        let letters = edit_distance(short, operator);
        let is_near = begins_with_words_of(operator, short)
            || begins_with_words_of(short, operator)
            || letters * 3 <= operator.len();
        // A common beginning weighs more than a common ending: ConvTranspose is a kind of Conv.
        let common = short.bytes().zip(operator.bytes()).take_while(|(a, b)| a == b).count();
        is_near.then_some((operator.len() + short.len() - 2 * common + letters, name))
    };
    supported_operators().filter_map(distance).min().map(|(_, name)| name)
}

/// Whether `name` is `beginning` followed by more words.
fn begins_with_words_of(name: &str, beginning: &str) -> bool {
    name.strip_prefix(beginning)
        .is_some_and(|rest| beginning.len() > 1 && rest.starts_with(|c: char| !c.is_lowercase()))
}

/// The edit distance: letters to insert, delete or replace.
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
    fn the_tables_are_sorted_and_every_row_is_found() {
        assert!(OPERATORS.is_sorted_by(|a, b| a.0 < b.0) && ITEM_OPERATORS.is_sorted_by(|a, b| a.0 < b.0));
        for name in supported_operators() {
            let (domain, operator) = name.rsplit_once('.').unwrap_or(("", name));
            assert!(find(domain, operator).is_some(), "{name}");
        }
        assert!(
            find("", "NoSuchOperator").is_none()
                && find("com.example", "Relu").is_none()
                && find("ai.onnx", "Relu").is_some()
        );
    }

    #[test]
    fn only_similar_names_are_near() {
        assert_eq!(nearest("ReduceMedian"), Some("ReduceMean"));
        assert_eq!(nearest("Relux"), Some("Relu"));
        assert!(nearest("ConvTransposeBackward").is_some_and(|name| name.starts_with("Conv")));
        assert_eq!(nearest("Quaternion"), None);
    }
}
