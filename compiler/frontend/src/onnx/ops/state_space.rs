//! `LinearAttention` and `CausalConvWithState`: layers that carry a state through a sequence,
//! without gates that depend on the state.

use super::super::call::Call;
use super::super::error::{LowerError, LowerResult, invalid, unsupported};
use super::super::lowering::Lowering;
use super::attention::{Scale, default_scale, join_heads, split_heads};
use super::builder::Builder;
use super::conv::{self, Convolution};
use crate::size::divide_exact;
use crate::tensor_graph::{PointArg, PointOp, ValueId};
use atoll_kgraph::DType;

type Results = LowerResult<Vec<ValueId>>;

/// Largest number of steps of a linear attention, which is unrolled.
const STEPS_MAX: i64 = 1 << 9;

/// A convolution of every channel with its past; the state is the last elements of the past.
pub(super) fn causal_conv_with_state(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let b = &mut Builder::new(lowering, &call.name);
    let (x, weights) = (call.input(0)?, call.input(1)?);
    let [batch, channels, length] = b.dims("the input", x)?;
    let [_, _, kernel] = b.dims("the weight", weights)?;
    let (Some(count), Some(kernel)) = (channels.as_const(), kernel.as_const()) else {
        return unsupported("a symbolic number of channels or a symbolic kernel size; fix it with `--fix NAME=SIZE`");
    };
    let before = kernel - 1;
    let past = match call.optional(3) {
        Some(past) => Some(past),
        None if before > 0 => Some(b.fill("no_past", b.dtype(x), vec![batch, channels, before.into()], 0.0)?),
        None => None,
    };
    let all = match past.filter(|_| before > 0) {
        Some(past) => b.join("all", &[past, x], 2)?,
        None => x,
    };
    let state = b.part("present_state", all, 2, length.clone(), before)?;
    let convolution = Convolution {
        x: conv::with_height(b.lowering, &format!("{}.rows", call.name), all)?,
        weights: conv::with_height(b.lowering, &format!("{}.weights", call.name), weights)?,
        bias: call.optional(2),
        strides: vec![1; 2],
        pads: vec![0; 4],
        dilations: vec![1; 2],
        groups: count as u32,
        output: vec![1.into(), length],
    };
    let y = conv::emit(b.lowering, &format!("{}.conv", call.name), convolution)?;
    let y = conv::without_height(b.lowering, &format!("{}.y", call.name), y)?;
    let y = match call.string("activation", "none")?.as_str() {
        "none" => y,
        "silu" | "swish" => swish(b, y)?,
        other => return invalid(format!("its activation is {other:?}, which ONNX does not define")),
    };
    Ok(vec![y, state])
}

/// `x * sigmoid(x)`, computed at least in F32.
fn swish(b: &mut Builder<'_>, x: ValueId) -> LowerResult<ValueId> {
    let dtype = b.dtype(x);
    let wide = b.cast("wide", x, computed_in(dtype))?;
    let ty = b.dtype(wide);
    let y = b.program("activated", &[wide], ty, |p, x| {
        let gate = p.step(PointOp::Sigmoid, ty, &[x[0]]);
        p.step(PointOp::Mul, ty, &[x[0], gate]);
    })?;
    b.cast("narrow", y, dtype)
}

fn computed_in(dtype: DType) -> DType {
    if dtype == DType::F64 { dtype } else { DType::F32 }
}

/// How the state of a linear attention is updated.
struct Rule {
    /// The state decays before each step.
    gated: bool,
    /// A step adds the difference between the value and what the state predicts.
    delta: bool,
}

/// Operands per step: `[batch, heads, steps, size]` each.
struct Steps {
    q: ValueId,
    k: ValueId,
    v: ValueId,
    decay: Option<ValueId>,
    beta: Option<ValueId>,
}

/// Operands: query, key, value, past state, decay, beta; as defined in opset 27.
pub(super) fn linear_attention(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let b = &mut Builder::new(lowering, &call.name);
    let rule = match call.string("update_rule", "gated_delta")?.as_str() {
        "linear" => Rule { gated: false, delta: false },
        "gated" => Rule { gated: true, delta: false },
        "delta" => Rule { gated: false, delta: true },
        "gated_delta" => Rule { gated: true, delta: true },
        other => return invalid(format!("its update_rule is {other:?}, which ONNX does not define")),
    };
    if call.optional(4).is_some() != rule.gated || call.optional(5).is_some() != rule.delta {
        return invalid("its operands decay and beta do not match its update rule");
    }
    let (heads, key_heads) = (call.int("q_num_heads", 0)?, call.int("kv_num_heads", 0)?);
    let dtype = b.dtype(call.input(0)?);
    let ty = computed_in(dtype);
    let mut steps_of = |what: &str, index: usize, heads: i64| {
        let x = b.cast(what, call.input(index)?, ty)?;
        split_heads(b, what, x, heads)
    };
    let (q, k, v) = (steps_of("q", 0, heads)?, steps_of("k", 1, key_heads)?, steps_of("v", 2, key_heads)?);
    let decay = if rule.gated { Some(steps_of("decay", 4, key_heads)?) } else { None };
    let beta = match call.optional(5) {
        Some(beta) => {
            let of_one = b.dims::<3>("beta", beta)?[2].as_const() == Some(1);
            let beta = b.cast("beta", beta, ty)?;
            Some(split_heads(b, "beta", beta, if of_one { 1 } else { key_heads })?)
        }
        None => None,
    };
    let [batch, _, _, size] = b.dims("the key", k)?;
    let value_size = b.dims::<4>("the value", v)?[3].clone();
    let past = match call.optional(3) {
        Some(past) => b.cast("past_state", past, ty)?,
        None => b.fill("no_past", ty, vec![batch, key_heads.into(), size.clone(), value_size], 0.0)?,
    };
    let scale = match call.float("scale", 0.0)? {
        0.0 => default_scale(&size)?,
        scale => Scale::Number(scale.into()),
    };
    let (rows, state) = run(b, &Steps { q, k, v, decay, beta }, past)?;
    let y = scale.apply(b, rows)?;
    let y = join_heads(b, y)?;
    let state_type = call.optional(3).map_or(dtype, |past| b.dtype(past));
    Ok(vec![b.cast("y", y, dtype)?, b.cast("present_state", state, state_type)?])
}

/// Lowers all steps. Returns the rows `[batch, heads, steps, value size]` and the last state
/// `[batch, key heads, size, value size]`.
fn run(b: &mut Builder<'_>, steps: &Steps, past: ValueId) -> LowerResult<(ValueId, ValueId)> {
    let [batch, heads, length, size] = b.dims("the query", steps.q)?;
    let [_, key_heads, _, value_size] = b.dims("the value", steps.v)?;
    let group = divide_exact(&heads, &key_heads)
        .ok_or_else(|| LowerError::Invalid(format!("its {heads} heads cannot share {key_heads} states")))?;
    let count = match length.as_const() {
        Some(count) if count <= STEPS_MAX => count,
        Some(count) => {
            return Err(LowerError::TooLarge {
                what: "the number of steps".into(),
                found: count.to_string(),
                limit: STEPS_MAX.to_string(),
            });
        }
        None => return Err(b.lowering.open_size("its number of steps", &length)),
    };
    let mut state = past;
    let mut rows = Vec::with_capacity(count as usize);
    for t in 0..count {
        state = advance(b, steps, state, t)?;
        // Heads that share a state are rows of one product.
        let q = b.part("q", steps.q, 2, t, 1)?;
        let q = b.reshape("query", q, vec![batch.clone(), key_heads.clone(), group.clone(), size.clone()])?;
        let row = b.matmul("row", q, state, false)?;
        rows.push(b.reshape("row", row, vec![batch.clone(), heads.clone(), 1.into(), value_size.clone()])?);
    }
    Ok((b.join("rows", &rows, 2)?, state))
}

/// Updates the state by one step.
fn advance(b: &mut Builder<'_>, steps: &Steps, state: ValueId, t: i64) -> LowerResult<ValueId> {
    // A column and a row, whose product is a matrix.
    let column = |b: &mut Builder<'_>, what: &str, x: ValueId| {
        let x = b.part(what, x, 2, t, 1)?;
        b.transpose(what, x, &[0, 1, 3, 2])
    };
    let mut state = state;
    if let Some(decay) = steps.decay {
        let decay = column(b, "decay", decay)?;
        let ty = b.dtype(state);
        state = b.program("decayed", &[state, decay], ty, |p, x| {
            let factor = p.step(PointOp::Exp, ty, &[x[1]]);
            p.step(PointOp::Mul, ty, &[x[0], factor]);
        })?;
    }
    let mut v = b.part("v", steps.v, 2, t, 1)?;
    if let Some(beta) = steps.beta {
        let k = b.part("k", steps.k, 2, t, 1)?;
        let known = b.matmul("known", k, state, false)?;
        let beta = b.part("beta", beta, 2, t, 1)?;
        let ty = b.dtype(v);
        v = b.program("lacking", &[v, known, beta], ty, |p, x: &[PointArg]| {
            let lacking = p.step(PointOp::Sub, ty, &x[..2]);
            p.step(PointOp::Mul, ty, &[lacking, x[2]]);
        })?;
    }
    let k = column(b, "key", steps.k)?;
    let written = b.mul("written", k, v)?;
    b.add("state", state, written)
}
