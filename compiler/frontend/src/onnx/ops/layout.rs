//! Operators that move elements.

use super::super::call::{Call, axis_of};
use super::super::error::{LowerError, LowerResult, invalid, unsupported};
use super::super::lowering::Lowering;
use crate::size::{at_least, bounds, canonical, smaller};
use crate::tensor_graph::{Op, ValueId};
use atoll_kgraph::Expr;

type Results = LowerResult<Vec<ValueId>>;

/// Does nothing at inference; the mask is not computed.
pub(super) fn dropout(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    if let Some(training) = call.optional(2)
        && lowering.require_ints(training, "training_mode")?.first() != Some(&0)
    {
        return unsupported("training_mode = 1; export the model in evaluation mode");
    }
    Ok(vec![call.input(0)?])
}

pub(super) fn transpose(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = call.input(0)?;
    let rank = lowering.rank(x);
    let permutation = match call.ints("perm")? {
        Some(permutation) => permutation.iter().map(|p| axis_of(*p, rank)).collect::<LowerResult<Vec<usize>>>()?,
        None => (0..rank).rev().collect(),
    };
    let mut sorted = permutation.clone();
    sorted.sort_unstable();
    if !sorted.into_iter().eq(0..rank) {
        return invalid(format!("perm {permutation:?} of {rank} dimensions"));
    }
    Ok(vec![lowering.transpose(&call.name, x, permutation)?])
}

pub(super) fn concat(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let inputs = call.all_inputs()?;
    let axis = axis_of(call.int("axis", 1)?, lowering.rank(inputs[0]))?;
    Ok(vec![join(lowering, &call.name, &inputs, axis)?])
}

/// Sizes are an attribute before opset 13, an operand from there on, and may be left out for equal parts.
pub(super) fn split(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = call.input(0)?;
    let shape = lowering.shape(x).to_vec();
    let axis = axis_of(call.int("axis", 0)?, shape.len())?;
    let given = match call.optional(1) {
        Some(sizes) => Some(lowering.require_known(sizes, "list of sizes")?),
        None => call.ints("split")?.map(|sizes| sizes.into_iter().map(Expr::Const).collect()),
    };
    let sizes = match given {
        Some(sizes) => sizes,
        None => equal_parts(&shape[axis], call.int("num_outputs", call.node.output.len() as i64)?, call.has("num_outputs"))?,
    };
    let total = sizes.iter().cloned().fold(Expr::Const(0), |a, b| a + b);
    lowering.equal_dims(shape[axis].clone(), total)?;
    let mut start = Expr::Const(0);
    let mut parts = Vec::with_capacity(sizes.len());
    for (index, size) in sizes.into_iter().enumerate() {
        let end = canonical(&(start.clone() + size.clone()));
        let start = std::mem::replace(&mut start, end);
        parts.push(part(lowering, &format!("{}.{index}", call.name), x, axis, start, size)?);
    }
    Ok(parts)
}

/// The elements from `start` along an axis, `size` of them.
pub(in super::super) fn part(
    lowering: &mut Lowering,
    name: &str,
    x: ValueId,
    axis: usize,
    start: Expr,
    size: Expr,
) -> LowerResult<ValueId> {
    let mut shape = lowering.shape(x).to_vec();
    let mut starts = vec![Expr::Const(0); shape.len()];
    starts[axis] = start;
    shape[axis] = size;
    let op = Op::Slice { starts, steps: vec![1; shape.len()] };
    lowering.emit_one(name, op, &[x], lowering.dtype(x), shape)
}

/// The element at `index` of an axis, without that axis.
pub(in super::super) fn element(lowering: &mut Lowering, name: &str, x: ValueId, axis: usize, index: i64) -> LowerResult<ValueId> {
    let part = part(lowering, name, x, axis, Expr::Const(index), Expr::Const(1))?;
    let mut shape = lowering.shape(part).to_vec();
    shape.remove(axis);
    lowering.reshape(name, part, shape)
}

/// Tensors of one shape, one after the other along a new axis.
pub(in super::super) fn stack(lowering: &mut Lowering, name: &str, parts: &[ValueId], axis: usize) -> LowerResult<ValueId> {
    let mut rows = Vec::with_capacity(parts.len());
    for part in parts {
        let mut shape = lowering.shape(*part).to_vec();
        shape.insert(axis, Expr::Const(1));
        rows.push(lowering.reshape(name, *part, shape)?);
    }
    join(lowering, name, &rows, axis)
}

/// Tensors one after the other along an axis.
pub(in super::super) fn join(lowering: &mut Lowering, name: &str, parts: &[ValueId], axis: usize) -> LowerResult<ValueId> {
    let [first, others @ ..] = parts else { return invalid("no tensors to put one after the other") };
    let (dtype, mut shape) = (lowering.dtype(*first), lowering.shape(*first).to_vec());
    for id in others {
        let other = lowering.shape(*id);
        if other.len() != shape.len() || lowering.dtype(*id) != dtype {
            return invalid("operands of different types or numbers of dimensions");
        }
        for (i, dim) in other.iter().enumerate() {
            shape[i] = if i == axis { shape[i].clone() + dim.clone() } else { lowering.equal_dims(shape[i].clone(), dim.clone())? };
        }
    }
    match others {
        [] => Ok(*first),
        _ => lowering.emit_one(name, Op::Concat { axis }, parts, dtype, shape),
    }
}

/// Without `num_outputs` the parts must be equal; with it the last may be smaller.
fn equal_parts(dim: &Expr, count: i64, uneven: bool) -> LowerResult<Vec<Expr>> {
    if !(1..=1 << 16).contains(&count) {
        return invalid(format!("{count} parts"));
    }
    if let Some(part) = crate::size::divide_exact(dim, &Expr::Const(count)) {
        return Ok(vec![part; count as usize]);
    }
    let Some(dim) = dim.as_const().filter(|_| uneven) else { return invalid(format!("{dim} elements in {count} equal parts")) };
    let part = (dim + count - 1) / count;
    let last = dim - part * (count - 1);
    if last < 0 {
        return invalid(format!("{dim} elements in {count} parts"));
    }
    Ok((0..count).map(|i| Expr::Const(if i + 1 < count { part } else { last })).collect())
}

/// Starts, ends, axes and steps are attributes before opset 10 and operands from there on.
pub(super) fn slice(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = call.input(0)?;
    let shape = lowering.shape(x).to_vec();
    let numbers = |values: Vec<i64>| values.into_iter().map(Expr::Const).collect::<Vec<Expr>>();
    let (from, to, axes, by);
    if call.opset < 10 {
        (from, to) = (numbers(call.required_ints("starts")?), numbers(call.required_ints("ends")?));
        (axes, by) = (call.ints("axes")?, None);
    } else {
        from = lowering.require_known(call.input(1)?, "list of starts")?;
        to = lowering.require_known(call.input(2)?, "list of ends")?;
        axes = call.optional(3).map(|id| lowering.require_ints(id, "list of axes")).transpose()?;
        by = call.optional(4).map(|id| lowering.require_ints(id, "list of steps")).transpose()?;
    }
    let axes = axes.unwrap_or_else(|| (0..from.len() as i64).collect());
    let by = by.unwrap_or_else(|| vec![1; from.len()]);
    if [to.len(), axes.len(), by.len()] != [from.len(); 3] {
        return invalid("starts, ends, axes and steps of different lengths");
    }
    let mut starts = vec![Expr::Const(0); shape.len()];
    let mut steps = vec![1; shape.len()];
    let mut result = shape.clone();
    for (index, axis) in axes.iter().enumerate() {
        let axis = axis_of(*axis, shape.len())?;
        let range = Range::resolve(lowering, &shape[axis], &from[index], &to[index], by[index])?;
        (starts[axis], steps[axis], result[axis]) = (range.start, by[index], range.count);
    }
    if result == shape && steps.iter().all(|s| *s == 1) {
        return Ok(vec![x]);
    }
    Ok(vec![lowering.emit_one(&call.name, Op::Slice { starts, steps }, &[x], lowering.dtype(x), result)?])
}

/// A resolved slice of one axis.
struct Range {
    start: Expr,
    count: Expr,
}

impl Range {
    /// NumPy's rules: negative counts from the end, both ends are clamped.
    fn resolve(lowering: &Lowering, dim: &Expr, from: &Expr, to: &Expr, step: i64) -> LowerResult<Range> {
        let symbols = &lowering.graph.symbols;
        let undecided =
            || LowerError::Unsupported(format!("a slice {from}:{to} of a dimension {dim}, which cannot be resolved for all sizes"));
        let from_end = |e: &Expr| match bounds(e, symbols) {
            Some((low, _)) if low >= 0 => Ok(e.clone()),
            Some((_, high)) if high < 0 => Ok(canonical(&(e.clone() + dim.clone()))),
            _ => Err(undecided()),
        };
        let zero = Expr::Const(0);
        let not_negative = |e: Expr| if at_least(&e, &zero, symbols) { e } else { e.max(0) };
        if step > 0 {
            let start = smaller(not_negative(from_end(from)?), dim.clone(), symbols);
            // "To the end" is written as some huge number.
            let end = match to.as_const() {
                Some(to) if to > super::super::DIMENSION_MAX => dim.clone(),
                _ => smaller(not_negative(from_end(to)?), dim.clone(), symbols),
            };
            let span = not_negative(canonical(&(end - start.clone())));
            return Ok(Range { start, count: canonical(&span.ceil_div(step)) });
        }
        if step == 0 || step == i64::MIN {
            return invalid(format!("a step of {step}"));
        }
        let last = canonical(&(dim.clone() - 1));
        let start = match from.as_const() {
            Some(from) if from > super::super::DIMENSION_MAX => last,
            _ => smaller(from_end(from)?, last, symbols),
        };
        // An end below -dim means: up to and with the first element.
        let end = match to.as_const() {
            Some(to) if to < -super::super::DIMENSION_MAX => Expr::Const(-1),
            _ => {
                let end = from_end(to)?;
                if at_least(&end, &Expr::Const(-1), symbols) { end } else { end.max(-1) }
            }
        };
        let span = not_negative(canonical(&(start.clone() - end)));
        Ok(Range { start, count: canonical(&span.ceil_div(-step)) })
    }
}

/// Repeats along each axis: a new axis before it, expanded, and both made one.
pub(super) fn tile(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = call.input(0)?;
    let shape = lowering.shape(x).to_vec();
    let repeats = lowering.require_known(call.input(1)?, "list of repeats")?;
    if repeats.len() != shape.len() {
        return invalid(format!("{} repeats for {} dimensions", repeats.len(), shape.len()));
    }
    let (mut unrolled, mut expanded, mut result) = (Vec::new(), Vec::new(), Vec::new());
    for (dim, repeat) in shape.iter().zip(&repeats) {
        if *repeat != Expr::Const(1) {
            unrolled.push(Expr::Const(1));
            expanded.push(repeat.clone());
        }
        unrolled.push(dim.clone());
        expanded.push(dim.clone());
        result.push(dim.clone() * repeat.clone());
    }
    let unrolled = lowering.reshape(&format!("{}.unrolled", call.name), x, unrolled)?;
    let expanded = lowering.expand(&format!("{}.expanded", call.name), unrolled, expanded)?;
    Ok(vec![lowering.reshape(&call.name, expanded, result)?])
}

/// Splits dimensions, transposes, and joins them again.
fn rearrange(lowering: &mut Lowering, call: &Call<'_>, split: Vec<Expr>, permutation: Vec<usize>, join: Vec<Expr>) -> Results {
    let split = lowering.reshape(&format!("{}.split", call.name), call.input(0)?, split)?;
    let moved = lowering.transpose(&format!("{}.moved", call.name), split, permutation)?;
    Ok(vec![lowering.reshape(&call.name, moved, join)?])
}

/// `[N, C, H, W]` and the block size, both checked.
fn blocks(lowering: &Lowering, call: &Call<'_>) -> LowerResult<([Expr; 4], i64)> {
    let shape = lowering.shape(call.input(0)?);
    let block = call.int("blocksize", 0)?;
    match shape {
        [n, c, h, w] if (1..=1 << 16).contains(&block) => Ok(([n.clone(), c.clone(), h.clone(), w.clone()], block)),
        _ => invalid(format!("{} dimensions, blocks of {block}", shape.len())),
    }
}

fn divided(dim: &Expr, by: i64) -> LowerResult<Expr> {
    crate::size::divide_exact(dim, &Expr::Const(by)).ok_or_else(|| LowerError::Invalid(format!("{dim} does not divide by {by}")))
}

pub(super) fn depth_to_space(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let ([n, c, h, w], block) = blocks(lowering, call)?;
    let depth = divided(&c, block * block)?;
    let b = Expr::Const(block);
    let join = vec![n.clone(), depth.clone(), h.clone() * block, w.clone() * block];
    match call.string("mode", "DCR")?.as_str() {
        "DCR" => rearrange(lowering, call, vec![n, b.clone(), b, depth, h, w], vec![0, 3, 4, 1, 5, 2], join),
        "CRD" => rearrange(lowering, call, vec![n, depth, b.clone(), b, h, w], vec![0, 1, 4, 2, 5, 3], join),
        other => invalid(format!("mode = {other:?}")),
    }
}

pub(super) fn space_to_depth(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let ([n, c, h, w], block) = blocks(lowering, call)?;
    let (h, w) = (divided(&h, block)?, divided(&w, block)?);
    let b = Expr::Const(block);
    let split = vec![n.clone(), c.clone(), h.clone(), b.clone(), w.clone(), b];
    rearrange(lowering, call, split, vec![0, 3, 5, 1, 2, 4], vec![n, c * (block * block), h, w])
}
