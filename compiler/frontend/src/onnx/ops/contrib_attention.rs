//! The attention operators of domain `com.microsoft`.

use super::super::call::Call;
use super::super::error::{LowerResult, invalid, unsupported};
use super::super::lowering::Lowering;
use super::attention::{
    self, Attention, Mask, Scale, angles, attend, causal, default_scale, embed, first_columns, join_heads, split_heads,
};
use super::builder::Builder;
use super::contrib::known;
use crate::size::{at_least, same};
use crate::tensor_graph::{PointArg, PointOp, ValueId};
use atoll_kgraph::{DType, Expr};

type Results = LowerResult<Vec<ValueId>>;

/// Default value that is added to masked scores.
const MASK_FILTER_VALUE: f32 = -10_000.0;

/// Query, key and value, each `[batch, heads, sequence, size]`.
type Heads = [ValueId; 3];

fn scale(call: &Call<'_>, size: &Expr) -> LowerResult<Scale> {
    match call.float("scale", 0.0)? {
        0.0 => default_scale(size),
        scale => Ok(Scale::Number(scale.into())),
    }
}

fn heads_of(call: &Call<'_>) -> LowerResult<i64> {
    match call.int("num_heads", 0)? {
        heads if heads > 0 => Ok(heads),
        heads => invalid(format!("its num_heads is {heads}; it must be at least 1")),
    }
}

/// A mask that is `filter` where a mask of integers is 0, and 0 elsewhere; it is added to
/// `[batch, heads, rows, columns]`.
fn padding(b: &mut Builder<'_>, call: &Call<'_>, mask: ValueId, q: ValueId, columns: &Expr) -> LowerResult<Mask> {
    let filter = f64::from(call.float("mask_filter_value", MASK_FILTER_VALUE)?);
    let batch = b.shape(q)[0].clone();
    let shape = b.shape(mask);
    let kept = match &shape[..] {
        [rows] if same(rows, &batch) => first_columns(b, mask, columns)?,
        [rows, total] if same(total, columns) => {
            b.reshape("mask", mask, vec![rows.clone(), 1.into(), 1.into(), total.clone()])?
        }
        [rows, between, total] if same(total, columns) => {
            b.reshape("mask", mask, vec![rows.clone(), 1.into(), between.clone(), total.clone()])?
        }
        _ => {
            let (batch, columns) = (b.lowering.text(&batch), b.lowering.text(columns));
            return unsupported(format!(
                "a mask of shape {} for a batch of {batch} with {columns} keys",
                b.lowering.shape_text(&shape)
            ));
        }
    };
    let (of_mask, ty) = (b.dtype(kept), b.dtype(q));
    Ok(Mask::Add(b.program("penalty", &[kept], ty, |p, kept| {
        let kept = if of_mask == DType::Bool {
            kept[0]
        } else {
            p.step(PointOp::Greater, of_mask, &[kept[0], PointArg::Const(0.0)])
        };
        p.step(PointOp::Where, ty, &[kept, PointArg::Const(0.0), PointArg::Const(filter)]);
    })?))
}

/// The common part of `Attention` and `MultiHeadAttention`, after the operands are split into
/// heads. [`finish`] returns the result, and the keys and values including the past.
struct Common {
    heads: Heads,
    past: Option<[ValueId; 2]>,
    padding: Option<ValueId>,
    bias: Option<ValueId>,
}

fn finish(b: &mut Builder<'_>, call: &Call<'_>, common: Common) -> LowerResult<[ValueId; 4]> {
    let [q, mut k, mut v] = common.heads;
    let mut past = Expr::Const(0);
    if let Some([past_k, past_v]) = common.past {
        past = b.dims::<4>("the past", past_k)?[2].clone();
        k = b.join("present_key", &[past_k, k], 2)?;
        v = b.join("present_value", &[past_v, v], 2)?;
    }
    let [_, _, rows, size] = b.dims("the query", q)?;
    let columns = b.dims::<4>("the key", k)?[2].clone();
    let mut masks = Vec::new();
    if call.flag("unidirectional", false)? {
        masks.push(Mask::Keep(causal(b, &rows, &columns, &past)?, f64::NEG_INFINITY));
    }
    if let Some(mask) = common.padding {
        masks.push(padding(b, call, mask, q, &columns)?);
    }
    masks.extend(common.bias.map(Mask::Add));
    let attention = Attention { q, k, v, scale: scale(call, &size)?, softcap: 0.0, masks, precision: b.dtype(q) };
    let attended = attend(b, &attention)?;
    Ok([join_heads(b, attended.y)?, k, v, attended.scores])
}

fn refuse(call: &Call<'_>, attributes: &[&str]) -> LowerResult<()> {
    match attributes.iter().find(|name| call.int(name, 0).is_ok_and(|value| value != 0)) {
        Some(name) => unsupported(format!("its attribute {name} is not 0")),
        None => Ok(()),
    }
}

/// Operands: input, weights, bias, mask, past `[2, batch, heads, past, size]`, attention bias. The
/// projections are part of the operator.
pub(super) fn attention(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    refuse(call, &["do_rotary", "past_present_share_buffer"])?;
    let b = &mut Builder::new(lowering, &call.name);
    let heads = heads_of(call)?;
    let mut all = b.matmul("projected", call.input(0)?, call.input(1)?, false)?;
    if let Some(bias) = call.optional(2) {
        all = b.add("biased", all, bias)?;
    }
    let width = known("size of the projections", &b.dims::<3>("the projections", all)?[2])?;
    let sizes = call.ints("qkv_hidden_sizes")?.filter(|sizes| !sizes.is_empty()).unwrap_or_else(|| vec![width / 3; 3]);
    if sizes.len() != 3 || sizes.iter().sum::<i64>() != width {
        return invalid(format!("its qkv_hidden_sizes {sizes:?} do not match the {width} columns of its weights"));
    }
    let mut part = |what: &str, start: i64, size: i64| {
        let part = b.part(what, all, 2, start, size)?;
        split_heads(b, what, part, heads)
    };
    let heads = [part("q", 0, sizes[0])?, part("k", sizes[0], sizes[1])?, part("v", sizes[0] + sizes[1], sizes[2])?];
    let past = match call.optional(4) {
        Some(past) => Some([b.element("past_key", past, 0, 0)?, b.element("past_value", past, 0, 1)?]),
        None => None,
    };
    let [y, k, v, _] = finish(b, call, Common { heads, past, padding: call.optional(3), bias: call.optional(5) })?;
    if call.node.output.get(1).is_none_or(String::is_empty) {
        return Ok(vec![y]);
    }
    Ok(vec![y, b.stack("present", &[k, v], 0)?])
}

/// Operands: query, key, value, bias, padding mask, attention bias, past key, past value. Keys and
/// values may be packed with the query or with each other, or be split into heads already.
pub(super) fn multi_head_attention(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    if call.optional(8).is_some() || call.optional(9).is_some() {
        return unsupported("its operands past_sequence_length and cache_indirection");
    }
    let b = &mut Builder::new(lowering, &call.name);
    let heads = multi_heads(b, call, heads_of(call)?)?;
    let past = match (call.optional(6), call.optional(7)) {
        (Some(k), Some(v)) => Some([k, v]),
        (None, None) => None,
        _ => return invalid("it has only one of past_key and past_value; it needs both or neither"),
    };
    let common = Common { heads, past, padding: call.optional(4), bias: call.optional(5) };
    Ok(finish(b, call, common)?.to_vec())
}

fn multi_heads(b: &mut Builder<'_>, call: &Call<'_>, heads: i64) -> LowerResult<Heads> {
    let query = call.input(0)?;
    let (key, value) = (call.optional(1), call.optional(2));
    let ranks = [Some(query), key, value].map(|id| id.map(|id| b.lowering.rank(id)));
    match (ranks, call.optional(3)) {
        // `[batch, sequence, heads, 3, size]`
        ([Some(5), None, None], None) => packed_heads(b, query, 3).map(|parts| [parts[0], parts[1], parts[2]]),
        // `[batch, sequence, heads, 2, size]`
        ([Some(3), Some(5), None], None) => {
            let parts = packed_heads(b, call.input(1)?, 2)?;
            Ok([split_heads(b, "q", query, heads)?, parts[0], parts[1]])
        }
        ([Some(3), Some(rank @ (3 | 4)), Some(other)], bias) if rank == other => {
            let (key, value) = (call.input(1)?, call.input(2)?);
            let sizes = [query, key, value].map(|id| b.shape(id)[2].clone());
            let q = biased(b, "q", query, bias, Expr::Const(0), &sizes[0])?;
            let q = split_heads(b, "q", q, heads)?;
            if rank == 4 {
                return Ok([q, key, value]);
            }
            let k = biased(b, "k", key, bias, sizes[0].clone(), &sizes[1])?;
            let v = biased(b, "v", value, bias, sizes[0].clone() + sizes[1].clone(), &sizes[2])?;
            Ok([q, split_heads(b, "k", k, heads)?, split_heads(b, "v", v, heads)?])
        }
        (ranks, bias) => {
            let with = if bias.is_some() { "with" } else { "without" };
            unsupported(format!("its query, key and value have {ranks:?} dimensions, {with} a bias"))
        }
    }
}

/// An operand plus its part of the bias.
fn biased(
    b: &mut Builder<'_>,
    what: &str,
    x: ValueId,
    bias: Option<ValueId>,
    start: Expr,
    size: &Expr,
) -> LowerResult<ValueId> {
    let Some(bias) = bias else { return Ok(x) };
    let part = b.part(&format!("{what}.bias"), bias, 0, start, size.clone())?;
    b.add(&format!("{what}.biased"), x, part)
}

/// `[batch, sequence, heads, count, size]` as `count` times `[batch, heads, sequence, size]`.
fn packed_heads(b: &mut Builder<'_>, x: ValueId, count: i64) -> LowerResult<Vec<ValueId>> {
    (0..count)
        .map(|index| {
            let part = b.element("unpacked", x, 3, index)?;
            b.transpose("heads", part, &[0, 2, 1, 3])
        })
        .collect()
}

/// Operands: x, positions, cosines, sines.
pub(super) fn rotary_embedding(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    refuse(call, &["is_packed_batching"])?;
    if call.float("scale", 1.0)? != 1.0 {
        return unsupported("its attribute scale is not 1");
    }
    let b = &mut Builder::new(lowering, &call.name);
    let (x, mut positions) = (call.input(0)?, call.input(1)?);
    if b.lowering.rank(positions) == 1 {
        // One number is the position at which the sequence begins.
        let sequence = if b.lowering.rank(x) == 4 { b.shape(x)[2].clone() } else { b.shape(x)[1].clone() };
        let numbers = b.positions("steps", &sequence, &Expr::Const(0))?;
        let moved = b.add("positions", numbers, positions)?;
        positions = b.reshape("positions", moved, vec![1.into(), sequence])?;
    }
    let cos = angles(b, "cos", call.input(2)?, Some(positions))?;
    let sin = angles(b, "sin", call.input(3)?, Some(positions))?;
    embed(b, call, x, cos, sin)
}

/// Operands: query, key, value, past key, past value, lengths, total length, cosines, sines,
/// positions, attention bias. The new keys of each sequence are placed after its own past,
/// independent of the other sequences.
pub(super) fn group_query_attention(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    refuse(call, &["smooth_softmax", "qk_output"])?;
    if call.optional(11).is_some() {
        return unsupported("its operand head_sink");
    }
    let (heads, key_heads) = (heads_of(call)?, call.int("kv_num_heads", 0)?);
    let total = lowering.require_known(call.input(6)?, "total_sequence_length")?;
    let [total] = &total[..] else { return invalid("its total_sequence_length is not a scalar") };
    let b = &mut Builder::new(lowering, &call.name);
    let [mut q, mut k, v] = query_key_value(b, call, heads, key_heads)?;
    let [batch, _, rows, size] = b.dims("the query", q)?;
    let before = lengths_before(b, call.input(5)?, &batch, &rows)?;
    let row = b.positions("rows", &rows, &Expr::Const(0))?;
    let places = b.add("places", row, before)?;
    if call.flag("do_rotary", false)? {
        let positions = call.optional(9).unwrap_or(places);
        let (cos, sin) =
            (angles(b, "cos", call.input(7)?, Some(positions))?, angles(b, "sin", call.input(8)?, Some(positions))?);
        let turned = b.shape(cos)[3].clone() * 2;
        let rotation = attention::Rotation { interleaved: call.flag("rotary_interleaved", false)?, turned };
        q = attention::rotate(b, "q", q, cos, sin, &rotation)?;
        k = attention::rotate(b, "k", k, cos, sin, &rotation)?;
    }
    let columns = match call.optional(3) {
        Some(past) => {
            let past = b.dims::<4>("past_key", past)?[2].clone();
            if at_least(total, &past, &b.lowering.graph.symbols) { total.clone() } else { total.clone().max(past) }
        }
        None => total.clone(),
    };
    let k = b.placed("present_key", call.optional(3), k, before, &columns)?;
    let v = b.placed("present_value", call.optional(4), v, before, &columns)?;
    let mut masks = vec![Mask::Keep(window(b, call, places, &columns)?, f64::NEG_INFINITY)];
    masks.extend(call.optional(10).map(Mask::Add));
    let softcap = call.float("softcap", 0.0)?.into();
    let attended =
        attend(b, &Attention { q, k, v, scale: scale(call, &size)?, softcap, masks, precision: b.dtype(q) })?;
    Ok(vec![join_heads(b, attended.y)?, k, v])
}

fn query_key_value(b: &mut Builder<'_>, call: &Call<'_>, heads: i64, key_heads: i64) -> LowerResult<Heads> {
    let query = call.input(0)?;
    if let (Some(key), Some(value)) = (call.optional(1), call.optional(2)) {
        return Ok([
            split_heads(b, "q", query, heads)?,
            split_heads(b, "k", key, key_heads)?,
            split_heads(b, "v", value, key_heads)?,
        ]);
    }
    // Query, key and value are packed, one after the other.
    let all = split_heads(b, "packed", query, heads + 2 * key_heads)?;
    Ok([
        b.part("q", all, 1, 0, heads)?,
        b.part("k", all, 1, heads, key_heads)?,
        b.part("v", all, 1, heads + key_heads, key_heads)?,
    ])
}

/// The number of past keys of each sequence, `[batch, 1]`. The operand is the total number of keys
/// minus 1.
fn lengths_before(b: &mut Builder<'_>, lengths: ValueId, batch: &Expr, rows: &Expr) -> LowerResult<ValueId> {
    let wide = b.cast("lengths", lengths, DType::I64)?;
    let wide = b.reshape("lengths", wide, vec![batch.clone(), 1.into()])?;
    // length + 1 - rows, but at least 0.
    let last = b.positions("last_row", &Expr::Const(1), &(rows.clone() - 1))?;
    let before = b.point("before", PointOp::Sub, &[wide, last])?;
    b.with_number("before", PointOp::Max, before, 0.0)
}

/// Whether a row attends to a column: the column is not after the row, and not before its local
/// window.
fn window(b: &mut Builder<'_>, call: &Call<'_>, places: ValueId, columns: &Expr) -> LowerResult<ValueId> {
    let [batch, rows] = b.dims("the places", places)?;
    let place = b.reshape("place", places, vec![batch, 1.into(), rows, 1.into()])?;
    let column = b.positions("columns", columns, &Expr::Const(0))?;
    let length = call.int("local_window_size", -1)?;
    b.program("window", &[column, place], DType::Bool, |p, x| {
        let seen = p.step(PointOp::LessOrEqual, DType::I64, x);
        if length > 0 {
            let first = p.step(PointOp::Sub, DType::I64, &[x[1], PointArg::Const(length as f64)]);
            let near = p.step(PointOp::Greater, DType::I64, &[x[0], first]);
            p.step(PointOp::And, DType::Bool, &[seen, near]);
        }
    })
}
