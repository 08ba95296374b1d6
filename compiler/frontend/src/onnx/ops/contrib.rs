//! Operators of domain `com.microsoft` that exporters and ONNX Runtime's optimiser write: fused
//! activations, products and normalisations.

use super::super::call::Call;
use super::super::error::{LowerResult, invalid, unsupported};
use super::super::lowering::Lowering;
use super::builder::Builder;
use crate::program::ProgramBuilder;
use crate::tensor_graph::{PointArg, PointOp, ReduceKind, ValueId};
use atoll_kgraph::{DType, Expr};

type Results = LowerResult<Vec<ValueId>>;

/// `x / 2 * (1 + erf(x / sqrt(2)))`
fn exact_gelu(p: &mut ProgramBuilder, ty: DType, x: PointArg) {
    let scaled = p.step(PointOp::Mul, ty, &[x, PointArg::Const(std::f64::consts::FRAC_1_SQRT_2)]);
    let bell = p.step(PointOp::Erf, ty, &[scaled]);
    gelu_of_bell(p, ty, x, bell);
}

/// The `tanh` approximation of [`exact_gelu`].
fn fast_gelu_of(p: &mut ProgramBuilder, ty: DType, x: PointArg) {
    let number = PointArg::Const;
    let square = p.step(PointOp::Mul, ty, &[x, x]);
    let cube = p.step(PointOp::Mul, ty, &[square, x]);
    let bent = p.step(PointOp::Mul, ty, &[cube, number(0.044_715)]);
    let sum = p.step(PointOp::Add, ty, &[x, bent]);
    let scaled = p.step(PointOp::Mul, ty, &[sum, number((2.0 / std::f64::consts::PI).sqrt())]);
    let bell = p.step(PointOp::Tanh, ty, &[scaled]);
    gelu_of_bell(p, ty, x, bell);
}

fn gelu_of_bell(p: &mut ProgramBuilder, ty: DType, x: PointArg, bell: PointArg) {
    let raised = p.step(PointOp::Add, ty, &[bell, PointArg::Const(1.0)]);
    let half = p.step(PointOp::Mul, ty, &[x, PointArg::Const(0.5)]);
    p.step(PointOp::Mul, ty, &[half, raised]);
}

/// An activation of x plus an optional bias.
fn with_bias(
    lowering: &mut Lowering,
    call: &Call<'_>,
    activation: fn(&mut ProgramBuilder, DType, PointArg),
) -> Results {
    let b = &mut Builder::new(lowering, &call.name);
    let mut x = call.input(0)?;
    if let Some(bias) = call.optional(1) {
        x = b.add("biased", x, bias)?;
    }
    let ty = b.dtype(x);
    Ok(vec![b.program("activated", &[x], ty, |p, x| activation(p, ty, x[0]))?])
}

/// `Gelu` and `BiasGelu`.
pub(super) fn gelu(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    with_bias(lowering, call, exact_gelu)
}

pub(super) fn fast_gelu(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    with_bias(lowering, call, fast_gelu_of)
}

/// `x * sigmoid(alpha * x)`
pub(super) fn quick_gelu(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let alpha = call.float("alpha", 1.702)?;
    let b = &mut Builder::new(lowering, &call.name);
    let x = call.input(0)?;
    let ty = b.dtype(x);
    let y = b.program("activated", &[x], ty, |p, x| {
        let scaled = p.step(PointOp::Mul, ty, &[x[0], PointArg::Const(alpha.into())]);
        let gate = p.step(PointOp::Sigmoid, ty, &[scaled]);
        p.step(PointOp::Mul, ty, &[x[0], gate]);
    })?;
    Ok(vec![y])
}

/// `alpha * a * b`, with either operand optionally transposed.
pub(super) fn fused_matmul(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    if call.flag("transBatchA", false)? || call.flag("transBatchB", false)? {
        return unsupported("transBatchA = 1 or transBatchB = 1; transpose the operands in the model");
    }
    let b = &mut Builder::new(lowering, &call.name);
    let mut matrix = |index: usize, turn: bool| {
        let x = call.input(index)?;
        let rank = b.lowering.rank(x);
        if rank < 2 {
            return unsupported("an operand that is a vector; reshape it to a matrix");
        }
        let mut permutation: Vec<usize> = (0..rank).collect();
        if turn {
            permutation.swap(rank - 2, rank - 1);
        }
        b.transpose("turned", x, &permutation)
    };
    let a = matrix(0, call.flag("transA", false)?)?;
    let transpose_b = call.flag("transB", false)?;
    let second = matrix(1, false)?;
    let product = b.matmul("product", a, second, transpose_b)?;
    match call.float("alpha", 1.0)? {
        1.0 => Ok(vec![product]),
        alpha => Ok(vec![b.with_number("scaled", PointOp::Mul, product, alpha.into())?]),
    }
}

/// Layer normalisation of `x`. Results: y, mean, inverse standard deviation, `x` itself.
fn layer_norm(b: &mut Builder<'_>, call: &Call<'_>, x: ValueId, scale: ValueId, bias: Option<ValueId>) -> Results {
    let epsilon = call.float("epsilon", 1e-12)?;
    let y = b.layer_norm("y", x, scale, bias, epsilon)?;
    let mean = b.reduce_last("mean", ReduceKind::Mean, x)?;
    let centred = b.point("centred", PointOp::Sub, &[x, mean])?;
    let square = b.mul("square", centred, centred)?;
    let inverse = b.inverse_root("inverse", square, epsilon)?;
    Ok(vec![y, mean, inverse, x])
}

/// `x / sqrt(mean(x^2) + epsilon) * scale`. Results: y, and the inverse root.
fn rms_norm(b: &mut Builder<'_>, call: &Call<'_>, x: ValueId, scale: ValueId) -> LowerResult<(ValueId, ValueId)> {
    let epsilon = call.float("epsilon", 1e-5)?;
    let dtype = b.dtype(x);
    let wide = b.cast("wide", x, if dtype == DType::F64 { dtype } else { DType::F32 })?;
    let square = b.mul("square", wide, wide)?;
    let inverse = b.inverse_root("inverse", square, epsilon)?;
    let normal = b.mul("normal", wide, inverse)?;
    let normal = b.cast("narrow", normal, dtype)?;
    Ok((b.mul("y", normal, scale)?, inverse))
}

/// The sum of input, skip and an optional bias.
fn skip_sum(b: &mut Builder<'_>, call: &Call<'_>, bias: usize) -> LowerResult<ValueId> {
    let sum = b.add("skipped", call.input(0)?, call.input(1)?)?;
    match call.optional(bias) {
        Some(bias) => b.add("biased", sum, bias),
        None => Ok(sum),
    }
}

/// Operands: input, skip, gamma, beta, bias.
pub(super) fn skip_layer_normalization(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let b = &mut Builder::new(lowering, &call.name);
    let sum = skip_sum(b, call, 4)?;
    layer_norm(b, call, sum, call.input(2)?, call.optional(3))
}

/// Operands: input, skip, gamma, bias. There is no mean; ONNX Runtime leaves that result empty.
pub(super) fn skip_simplified_layer_normalization(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let b = &mut Builder::new(lowering, &call.name);
    let sum = skip_sum(b, call, 3)?;
    if [1, 2].iter().any(|index| call.node.output.get(*index).is_some_and(|name| !name.is_empty())) {
        return unsupported("the results mean and inv_std_var, which ONNX Runtime does not compute either");
    }
    let (y, inverse) = rms_norm(b, call, sum, call.input(2)?)?;
    Ok(vec![y, inverse, inverse, sum])
}

/// Operands: x, scale. Normalises the last axis.
pub(super) fn simplified_layer_normalization(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = call.input(0)?;
    let axis = call.int("axis", -1)?;
    if axis != -1 && axis != lowering.rank(x) as i64 - 1 {
        return unsupported(format!("axis = {axis}; only the last axis is supported"));
    }
    let b = &mut Builder::new(lowering, &call.name);
    let (y, inverse) = rms_norm(b, call, x, call.input(1)?)?;
    Ok(vec![y, inverse])
}

/// The normalised sum of three embeddings. Operands: ids, segments, words, positions, segment
/// embedding, gamma, beta, mask, position ids.
pub(super) fn embed_layer_normalization(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let b = &mut Builder::new(lowering, &call.name);
    let ids = call.input(0)?;
    let [batch, sequence] = b.dims("input_ids", ids)?;
    let mut sum = b.gather("words", call.input(2)?, ids, 0)?;
    let positions = match call.optional(8) {
        Some(positions) => b.gather("positions", call.input(3)?, positions, 0)?,
        None => b.part("positions", call.input(3)?, 0, 0, sequence)?,
    };
    sum = b.add("placed", sum, positions)?;
    match (call.optional(1), call.optional(4)) {
        (Some(segments), Some(table)) => {
            let segments = b.gather("segments", table, segments, 0)?;
            sum = b.add("embedded", sum, segments)?;
        }
        (None, None) => {}
        _ => return invalid("it has only one of segment_ids and segment_embedding; it needs both or neither"),
    }
    let y = layer_norm(b, call, sum, call.input(5)?, call.optional(6))?[0];
    // Number of unmasked elements of each row; 0 without a mask.
    let count = match call.optional(7) {
        Some(mask) => {
            let counts = b.reduce_last("counts", ReduceKind::Sum, mask)?;
            b.reshape("mask_index", counts, vec![batch])?
        }
        None => b.fill("mask_index", DType::I32, vec![batch], 0.0)?,
    };
    Ok(vec![y, count, sum])
}

/// `MatMulNBits`: a product with a matrix `[N, K]` of narrow integers with a scale per block. The
/// matrix must be constant; it is dequantised at compile time.
pub(super) fn matmul_n_bits(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let (a, packed, scales) = (call.input(0)?, call.input(1)?, call.input(2)?);
    let (k, n) = (call.int("K", 0)?, call.int("N", 0)?);
    let (bits, block) = (call.int("bits", 4)?, call.int("block_size", 32)?);
    if ![2, 4, 8].contains(&bits) || !(16..=1 << 16).contains(&block) || k < 1 || n < 1 {
        return unsupported(format!(
            "a {n} by {k} matrix of {bits}-bit elements in blocks of {block}; 2, 4 or 8 bits in blocks of 16 to 65536 \
             are supported"
        ));
    }
    if call.optional(4).is_some() {
        return unsupported("its operand g_idx; quantise the weights without reordering");
    }
    let dtype = lowering.dtype(a);
    let weights = super::packed::dequantize(
        lowering,
        &super::packed::Packed { packed, scales, zeros: call.optional(3), n, k, bits, block },
    )?;
    let b = &mut Builder::new(lowering, &call.name);
    let weights = b.constant("weights", &weights);
    let weights = b.cast("weights", weights, dtype)?;
    let product = b.matmul("product", a, weights, true)?;
    match call.optional(5) {
        Some(bias) => Ok(vec![b.add("biased", product, bias)?]),
        None => Ok(vec![product]),
    }
}

/// Rejects an operator that is known but not supported, and says what to do instead.
pub(super) fn requantized(_: &mut Lowering, _: &Call<'_>) -> Results {
    unsupported(
        "it quantises its operands at run time, which only ONNX Runtime supports; export the model without dynamic \
         quantisation",
    )
}

/// A size that must be a number; `what` names it in the error.
pub(super) fn known(what: &str, size: &Expr) -> LowerResult<i64> {
    match size.as_const() {
        Some(size) => Ok(size),
        None => unsupported(format!("a symbolic {what}, {size}; fix it with `--fix NAME=SIZE`")),
    }
}
