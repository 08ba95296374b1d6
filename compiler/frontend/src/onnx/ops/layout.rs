//! Operators that move elements.

use super::super::call::{Call, axis_of};
use super::super::error::{LowerResult, invalid};
use super::super::lowering::Lowering;
use crate::size::canonical;
use crate::tensor_graph::{Op, ValueId};
use atoll_kgraph::Expr;

type Results = LowerResult<Vec<ValueId>>;

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
        return invalid(format!("its perm {permutation:?} is not a permutation of {rank} dimensions"));
    }
    Ok(vec![lowering.transpose(&call.name, x, permutation)?])
}

pub(super) fn concat(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let inputs = call.all_inputs()?;
    let axis = axis_of(call.int("axis", 1)?, lowering.rank(inputs[0]))?;
    Ok(vec![join(lowering, &call.name, &inputs, axis)?])
}

/// The sizes are an attribute before opset 13 and an operand from opset 13 on. If they are omitted,
/// the parts are equal.
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
        None => equal_parts(
            lowering,
            &shape[axis],
            call.int("num_outputs", call.node.output.len() as i64)?,
            call.has("num_outputs"),
        )?,
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

/// A slice of `size` elements from `start` along an axis.
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

/// The element at `index` of an axis; the axis is removed.
pub(in super::super) fn element(
    lowering: &mut Lowering,
    name: &str,
    x: ValueId,
    axis: usize,
    index: i64,
) -> LowerResult<ValueId> {
    let part = part(lowering, name, x, axis, Expr::Const(index), Expr::Const(1))?;
    let mut shape = lowering.shape(part).to_vec();
    shape.remove(axis);
    lowering.reshape(name, part, shape)
}

/// Stacks tensors of one shape along a new axis.
pub(in super::super) fn stack(
    lowering: &mut Lowering,
    name: &str,
    parts: &[ValueId],
    axis: usize,
) -> LowerResult<ValueId> {
    let mut rows = Vec::with_capacity(parts.len());
    for part in parts {
        let mut shape = lowering.shape(*part).to_vec();
        shape.insert(axis, Expr::Const(1));
        rows.push(lowering.reshape(name, *part, shape)?);
    }
    join(lowering, name, &rows, axis)
}

/// Concatenates tensors along an axis.
pub(in super::super) fn join(
    lowering: &mut Lowering,
    name: &str,
    parts: &[ValueId],
    axis: usize,
) -> LowerResult<ValueId> {
    let [first, others @ ..] = parts else { return invalid("it has no tensors to concatenate") };
    let (dtype, mut shape) = (lowering.dtype(*first), lowering.shape(*first).to_vec());
    for id in others {
        let other = lowering.shape(*id);
        if other.len() != shape.len() || lowering.dtype(*id) != dtype {
            return invalid("its operands have different types or numbers of dimensions");
        }
        for (i, dim) in other.iter().enumerate() {
            shape[i] = if i == axis {
                shape[i].clone() + dim.clone()
            } else {
                lowering.equal_dims(shape[i].clone(), dim.clone())?
            };
        }
    }
    match others {
        [] => Ok(*first),
        _ => lowering.emit_one(name, Op::Concat { axis }, parts, dtype, shape),
    }
}

/// Sizes of equal parts. With `uneven` (`num_outputs` is given), the last part may be smaller.
fn equal_parts(lowering: &Lowering, dim: &Expr, count: i64, uneven: bool) -> LowerResult<Vec<Expr>> {
    if !(1..=1 << 16).contains(&count) {
        return invalid(format!("it splits into {count} parts; 1 to 65536 are supported"));
    }
    if !uneven {
        return Ok(vec![lowering.divided(dim, &Expr::Const(count))?; count as usize]);
    }
    let part = dim.clone().ceil_div(count);
    let last = canonical(&(dim.clone() - part.clone() * (count - 1)));
    lowering.require_at_least(&last, &Expr::Const(0))?;
    Ok((0..count).map(|i| if i + 1 < count { part.clone() } else { last.clone() }).collect())
}

/// `Tile`: inserts a new axis before each repeated axis, expands it, and merges the two.
pub(super) fn tile(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = call.input(0)?;
    let shape = lowering.shape(x).to_vec();
    let repeats = lowering.require_known(call.input(1)?, "list of repeats")?;
    if repeats.len() != shape.len() {
        return invalid(format!("it has {} repeats for {} dimensions", repeats.len(), shape.len()));
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

/// Splits dimensions, transposes, and merges dimensions again.
fn rearrange(
    lowering: &mut Lowering,
    call: &Call<'_>,
    split: Vec<Expr>,
    permutation: Vec<usize>,
    join: Vec<Expr>,
) -> Results {
    let split = lowering.reshape(&format!("{}.split", call.name), call.input(0)?, split)?;
    let moved = lowering.transpose(&format!("{}.moved", call.name), split, permutation)?;
    Ok(vec![lowering.reshape(&call.name, moved, join)?])
}

/// `[N, C, H, W]` and the block size, validated.
fn blocks(lowering: &Lowering, call: &Call<'_>) -> LowerResult<([Expr; 4], i64)> {
    let shape = lowering.shape(call.input(0)?);
    let block = call.int("blocksize", 0)?;
    match shape {
        [n, c, h, w] if (1..=1 << 16).contains(&block) => Ok(([n.clone(), c.clone(), h.clone(), w.clone()], block)),
        _ => invalid(format!(
            "its operand has {} dimensions and its blocksize is {block}; it needs 4 dimensions and a positive \
             blocksize",
            shape.len()
        )),
    }
}

pub(super) fn depth_to_space(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let ([n, c, h, w], block) = blocks(lowering, call)?;
    let depth = lowering.divided(&c, &Expr::Const(block * block))?;
    let b = Expr::Const(block);
    let join = vec![n.clone(), depth.clone(), h.clone() * block, w.clone() * block];
    match call.string("mode", "DCR")?.as_str() {
        "DCR" => rearrange(lowering, call, vec![n, b.clone(), b, depth, h, w], vec![0, 3, 4, 1, 5, 2], join),
        "CRD" => rearrange(lowering, call, vec![n, depth, b.clone(), b, h, w], vec![0, 1, 4, 2, 5, 3], join),
        other => invalid(format!("its attribute mode is {other:?}, which ONNX does not define")),
    }
}

pub(super) fn space_to_depth(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let ([n, c, h, w], block) = blocks(lowering, call)?;
    let b = Expr::Const(block);
    let (h, w) = (lowering.divided(&h, &b)?, lowering.divided(&w, &b)?);
    let split = vec![n.clone(), c.clone(), h.clone(), b.clone(), w.clone(), b];
    rearrange(lowering, call, split, vec![0, 3, 5, 1, 2, 4], vec![n, c * (block * block), h, w])
}
