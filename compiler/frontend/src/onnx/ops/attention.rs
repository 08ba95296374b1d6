//! Attention: `softmax(q k' + masks) v`, composed of matrix products and pointwise operators.
//!
//! Each operator of the family converts its operands to heads `[batch, heads, sequence, size]` and
//! its masks to [`Mask`]s, and then calls [`attend`].

use super::super::call::Call;
use super::super::error::{LowerError, LowerResult, invalid};
use super::super::lowering::Lowering;
use super::super::read::dtype_of;
use super::builder::Builder;
use crate::size::{divide_exact, same};
use crate::tensor_graph::{PointOp, ValueId};
use atoll_kgraph::{DType, Expr};

type Results = LowerResult<Vec<ValueId>>;

/// A modification of the scores; its shape broadcasts to `[batch, heads, rows, columns]`.
pub(super) enum Mask {
    /// A value that is added to the scores.
    Add(ValueId),
    /// A Bool; where it is false, the score is replaced by the number.
    Keep(ValueId, f64),
}

/// The factor of the scores.
#[derive(Clone)]
pub(super) enum Scale {
    Number(f64),
    /// The inverse square root of a size.
    RootOf(Expr),
}

impl Scale {
    /// Multiplies `x` by this factor.
    pub(super) fn apply(&self, b: &mut Builder<'_>, x: ValueId) -> LowerResult<ValueId> {
        let size = match self {
            Scale::Number(number) => return b.with_number("scaled", PointOp::Mul, x, *number),
            Scale::RootOf(size) => size.clone(),
        };
        let ty = DType::F32;
        let size = b.lowering.add_sizes("size_of_heads", ty, Vec::new(), vec![size]);
        let factor = b.program("scale", &[size], ty, |p, args| {
            let root = p.step(PointOp::Sqrt, ty, args);
            p.step(PointOp::Reciprocal, ty, &[root]);
        })?;
        let factor = b.cast("scale_of_type", factor, b.dtype(x))?;
        b.mul("scaled", x, factor)
    }
}

/// The operands of an attention.
pub(super) struct Attention {
    /// `[batch, heads, rows, size]`
    pub(super) q: ValueId,
    /// `[batch, key heads, columns, size]`; the number of key heads divides the number of heads.
    pub(super) k: ValueId,
    /// `[batch, key heads, columns, value size]`
    pub(super) v: ValueId,
    pub(super) scale: Scale,
    /// Scores become `cap * tanh(score / cap)`; 0 disables this.
    pub(super) softcap: f64,
    pub(super) masks: Vec<Mask>,
    /// The type in which the softmax is computed.
    pub(super) precision: DType,
}

/// The result and the intermediate values, all `[batch, heads, rows, ...]`.
pub(super) struct Attended {
    pub(super) y: ValueId,
    pub(super) scores: ValueId,
    pub(super) capped: ValueId,
    pub(super) masked: ValueId,
    pub(super) weights: ValueId,
}

pub(super) fn attend(b: &mut Builder<'_>, attention: &Attention) -> LowerResult<Attended> {
    let Attention { q, k, v, ref scale, softcap, ref masks, precision } = *attention;
    let dtype = b.dtype(q);
    let scores = scores_of(b, q, k, scale)?;
    let capped = if softcap > 0.0 {
        let x = b.with_number("uncapped", PointOp::Div, scores, softcap)?;
        let x = b.point("bent", PointOp::Tanh, &[x])?;
        b.with_number("capped", PointOp::Mul, x, softcap)?
    } else {
        scores
    };
    let mut masked = capped;
    for mask in masks {
        masked = match *mask {
            Mask::Add(bias) => b.add("masked", masked, bias)?,
            Mask::Keep(keep, number) => b.select_or("masked", keep, masked, number)?,
        };
    }
    let weights = b.cast("precise", masked, precision)?;
    let weights = b.softmax("weights", weights)?;
    let weights = b.cast("rounded", weights, dtype)?;
    let y = weighted(b, weights, v)?;
    Ok(Attended { y, scores, capped, masked, weights })
}

/// Number of heads that share a key. These heads become rows of one group, so that no key is
/// copied.
fn group_of(b: &Builder<'_>, heads: &Expr, key_heads: &Expr) -> LowerResult<Expr> {
    b.lowering.divided(heads, key_heads)
}

/// `scale * q k'`, `[batch, heads, rows, columns]`.
pub(super) fn scores_of(b: &mut Builder<'_>, q: ValueId, k: ValueId, scale: &Scale) -> LowerResult<ValueId> {
    let [batch, heads, rows, size] = b.dims("the query", q)?;
    let [_, key_heads, columns, _] = b.dims("the key", k)?;
    let group = group_of(b, &heads, &key_heads)?;
    let q = scale.apply(b, q)?;
    let q = b.reshape("groups", q, vec![batch.clone(), key_heads, group * rows.clone(), size])?;
    let scores = b.matmul("scores", q, k, true)?;
    b.reshape("scores_of_heads", scores, vec![batch, heads, rows, columns])
}

/// `weights v`, `[batch, heads, rows, value size]`.
pub(super) fn weighted(b: &mut Builder<'_>, weights: ValueId, v: ValueId) -> LowerResult<ValueId> {
    let [batch, heads, rows, columns] = b.dims("the weights", weights)?;
    let [_, key_heads, _, size] = b.dims("the value", v)?;
    let group = group_of(b, &heads, &key_heads)?;
    let weights =
        b.reshape("weights_of_groups", weights, vec![batch.clone(), key_heads, group * rows.clone(), columns])?;
    let y = b.matmul("attended", weights, v, false)?;
    b.reshape("attended_of_heads", y, vec![batch, heads, rows, size])
}

/// `[batch, sequence, heads * size]` as `[batch, heads, sequence, size]`.
pub(super) fn split_heads(b: &mut Builder<'_>, what: &str, x: ValueId, heads: i64) -> LowerResult<ValueId> {
    let [batch, sequence, hidden] = b.dims(what, x)?;
    if heads < 1 {
        let hidden = b.lowering.text(&hidden);
        return invalid(format!("its {what} has {hidden} elements, which cannot be divided into {heads} heads"));
    }
    let size = b.lowering.divided(&hidden, &Expr::Const(heads))?;
    let x = b.reshape(&format!("{what}.split"), x, vec![batch, sequence, heads.into(), size])?;
    b.transpose(&format!("{what}.heads"), x, &[0, 2, 1, 3])
}

/// `[batch, heads, sequence, size]` as `[batch, sequence, heads * size]`.
pub(super) fn join_heads(b: &mut Builder<'_>, x: ValueId) -> LowerResult<ValueId> {
    let [batch, heads, sequence, size] = b.dims("the result", x)?;
    let x = b.transpose("rows", x, &[0, 2, 1, 3])?;
    b.reshape("joined", x, vec![batch, sequence, heads * size])
}

/// Whether row `i`, at position `past + i`, attends to column `j`: `j <= past + i`. Shape
/// `[rows, columns]`.
pub(super) fn causal(b: &mut Builder<'_>, rows: &Expr, columns: &Expr, past: &Expr) -> LowerResult<ValueId> {
    let column = b.positions("columns", columns, &Expr::Const(0))?;
    let row = b.positions("rows", rows, past)?;
    let row = b.reshape("row", row, vec![rows.clone(), 1.into()])?;
    b.point("causal", PointOp::LessOrEqual, &[column, row])
}

/// Whether column `j` is one of the first `counts[batch]` columns. Shape `[batch, 1, 1, columns]`.
pub(super) fn first_columns(b: &mut Builder<'_>, counts: ValueId, columns: &Expr) -> LowerResult<ValueId> {
    let [batch] = b.dims("the lengths", counts)?;
    let counts = b.cast("lengths", counts, DType::I64)?;
    let counts = b.reshape("length", counts, vec![batch, 1.into(), 1.into(), 1.into()])?;
    let column = b.positions("columns", columns, &Expr::Const(0))?;
    b.point("inside", PointOp::Less, &[column, counts])
}

/// ONNX `Attention`, from opset 23.
pub(super) fn attention(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let b = &mut Builder::new(lowering, &call.name);
    let (q, k, v) = (call.input(0)?, call.input(1)?, call.input(2)?);
    let is_flat = b.lowering.rank(q) == 3;
    let (heads, key_heads) = (call.int("q_num_heads", 0)?, call.int("kv_num_heads", 0)?);
    let [q, k, v] = if is_flat {
        [split_heads(b, "q", q, heads)?, split_heads(b, "k", k, key_heads)?, split_heads(b, "v", v, key_heads)?]
    } else {
        [q, k, v]
    };
    let [_, _, rows, size] = b.dims("Q", q)?;
    let past = match call.optional(4) {
        Some(past) => b.dims::<4>("past_key", past)?[2].clone(),
        None => Expr::Const(0),
    };
    let (k, v) = match (call.optional(4), call.optional(5)) {
        (Some(past_k), Some(past_v)) => {
            (b.join("present_key", &[past_k, k], 2)?, b.join("present_value", &[past_v, v], 2)?)
        }
        (None, None) => (k, v),
        _ => return invalid("it has only one of past_key and past_value; it needs both or neither"),
    };
    let columns = b.dims::<4>("K", k)?[2].clone();
    let scale = match call.has("scale") {
        true => Scale::Number(call.float("scale", 0.0)?.into()),
        false => default_scale(&size)?,
    };
    let mut masks = Vec::new();
    if let Some(mask) = call.optional(3) {
        masks.push(given_mask(b, mask, &columns)?);
    }
    if call.flag("is_causal", false)? {
        masks.push(Mask::Keep(causal(b, &rows, &columns, &past)?, f64::NEG_INFINITY));
    }
    if let Some(counts) = call.optional(6) {
        masks.push(Mask::Keep(first_columns(b, counts, &columns)?, f64::NEG_INFINITY));
    }
    let precision = match call.int("softmax_precision", 0)? as i32 {
        0 => b.dtype(q),
        number => dtype_of(number)
            .ok_or_else(|| LowerError::Unsupported(format!("its softmax_precision is type number {number}")))?,
    };
    let softcap = call.float("softcap", 0.0)?.into();
    let attended = attend(b, &Attention { q, k, v, scale, softcap, masks, precision })?;
    let y = if is_flat { join_heads(b, attended.y)? } else { attended.y };
    let shown = match call.int("qk_matmul_output_mode", 0)? {
        0 => attended.scores,
        1 => attended.capped,
        2 => attended.masked,
        3 => attended.weights,
        mode => return invalid(format!("its qk_matmul_output_mode is {mode}, which ONNX does not define")),
    };
    Ok(vec![y, k, v, shown])
}

/// `1 / sqrt(size)`
pub(super) fn default_scale(size: &Expr) -> LowerResult<Scale> {
    match size.as_const() {
        Some(size) if size > 0 => Ok(Scale::Number(1.0 / (size as f64).sqrt())),
        Some(size) => invalid(format!("its heads have {size} elements")),
        None => Ok(Scale::RootOf(size.clone())),
    }
}

/// A mask from the model: Bool, or added to the scores. If it has fewer columns than the keys, the
/// last columns are masked out.
fn given_mask(b: &mut Builder<'_>, mask: ValueId, columns: &Expr) -> LowerResult<Mask> {
    let is_bool = b.dtype(mask) == DType::Bool;
    let mut shape = b.shape(mask);
    let Some(last) = shape.last().cloned() else { return invalid("its mask is a scalar") };
    let mask = if last.as_const() == Some(1) || same(&last, columns) {
        mask
    } else {
        let axis = shape.len() - 1;
        shape[axis] = columns.clone() - last;
        let fill = if is_bool { 0.0 } else { f64::NEG_INFINITY };
        let more = b.fill("unseen", b.dtype(mask), shape, fill)?;
        b.join("mask", &[mask, more], axis)?
    };
    Ok(if is_bool { Mask::Keep(mask, f64::NEG_INFINITY) } else { Mask::Add(mask) })
}

/// Parameters of a rotary embedding.
pub(super) struct Rotation {
    /// Whether the elements of a pair are adjacent, instead of half a head apart.
    pub(super) interleaved: bool,
    /// Number of elements at the beginning of a head that are rotated.
    pub(super) turned: Expr,
}

/// Rotates `x [batch, heads, sequence, size]` by the angles of `cos` and `sin`, which broadcast to
/// `[batch, heads, sequence, turned / 2]`.
pub(super) fn rotate(
    b: &mut Builder<'_>,
    what: &str,
    x: ValueId,
    cos: ValueId,
    sin: ValueId,
    rotation: &Rotation,
) -> LowerResult<ValueId> {
    let [batch, heads, sequence, size] = b.dims(what, x)?;
    let Rotation { interleaved, ref turned } = *rotation;
    let half = divide_exact(turned, &Expr::Const(2)).ok_or_else(|| {
        LowerError::Invalid(format!("it rotates {turned} elements in pairs, so their number must be even"))
    })?;
    let name = |part: &str| format!("{what}.{part}");
    let front = b.part(&name("turned"), x, 3, 0, turned.clone())?;
    let lead = [batch, heads, sequence];
    let shape = |inner: &[Expr]| [&lead[..], inner].concat();
    let (first, second) = if interleaved {
        let pairs = b.reshape(&name("pairs"), front, shape(&[half.clone(), 2.into()]))?;
        let mut side = |part: &str, at: i64| {
            let side = b.part(&name(part), pairs, 4, at, 1)?;
            b.reshape(&name(part), side, shape(std::slice::from_ref(&half)))
        };
        (side("first", 0)?, side("second", 1)?)
    } else {
        (
            b.part(&name("first"), front, 3, 0, half.clone())?,
            b.part(&name("second"), front, 3, half.clone(), half.clone())?,
        )
    };
    let mut product = |part: &str, x: ValueId, y: ValueId| b.mul(&name(part), x, y);
    let (first_cos, second_sin) = (product("first_cos", first, cos)?, product("second_sin", second, sin)?);
    let (first_sin, second_cos) = (product("first_sin", first, sin)?, product("second_cos", second, cos)?);
    let real = b.point(&name("real"), PointOp::Sub, &[first_cos, second_sin])?;
    let imaginary = b.add(&name("imaginary"), first_sin, second_cos)?;
    let front = if interleaved {
        let pairs = b.stack(&name("pairs"), &[real, imaginary], 4)?;
        b.reshape(&name("front"), pairs, shape(std::slice::from_ref(turned)))?
    } else {
        b.join(&name("front"), &[real, imaginary], 3)?
    };
    if same(turned, &size) {
        return Ok(front);
    }
    let rest = b.part(&name("rest"), x, 3, turned.clone(), size - turned.clone())?;
    b.join(what, &[front, rest], 3)
}

/// Rows of a cache of angles, `[batch, 1, sequence, turned / 2]`: those of the given positions, or
/// the whole cache.
pub(super) fn angles(
    b: &mut Builder<'_>,
    what: &str,
    cache: ValueId,
    positions: Option<ValueId>,
) -> LowerResult<ValueId> {
    let rows = match positions {
        Some(positions) => b.gather(&format!("{what}.rows"), cache, positions, 0)?,
        None => cache,
    };
    let [batch, sequence, half] = b.dims(what, rows)?;
    b.reshape(what, rows, vec![batch, 1.into(), sequence, half])
}

/// ONNX `RotaryEmbedding`. Operands: x, cosines, sines, positions.
pub(super) fn rotary_embedding(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let b = &mut Builder::new(lowering, &call.name);
    let (cos, sin) = (call.input(1)?, call.input(2)?);
    let (cos, sin) = (angles(b, "cos", cos, call.optional(3))?, angles(b, "sin", sin, call.optional(3))?);
    embed(b, call, call.input(0)?, cos, sin)
}

/// Rotates an operand of three or four dimensions.
pub(super) fn embed(b: &mut Builder<'_>, call: &Call<'_>, x: ValueId, cos: ValueId, sin: ValueId) -> Results {
    let is_flat = b.lowering.rank(x) == 3;
    let half = b.dims::<4>("the cosines", cos)?[3].clone();
    let heads = match call.int("num_heads", 0)? {
        0 if is_flat => {
            // The size of a head is the number of rotated elements.
            let hidden = b.shape(x)[2].clone();
            let heads = divide_exact(&hidden, &(half.clone() * 2)).and_then(|heads| heads.as_const());
            heads.ok_or_else(|| {
                let (hidden, half) = (b.lowering.text(&hidden), b.lowering.text(&half));
                LowerError::Invalid(format!(
                    "its num_heads is missing, and {hidden} elements cannot be divided into heads of 2 * {half}"
                ))
            })?
        }
        heads => heads,
    };
    let heads_of_x = if is_flat { split_heads(b, "x", x, heads)? } else { x };
    let rotation = Rotation { interleaved: call.flag("interleaved", false)?, turned: half * 2 };
    let y = rotate(b, "y", heads_of_x, cos, sin, &rotation)?;
    Ok(vec![if is_flat { join_heads(b, y)? } else { y }])
}
