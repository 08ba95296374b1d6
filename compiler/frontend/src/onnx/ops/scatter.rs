//! Operators that write elements at the positions in an index tensor.
//!
//! The data is copied first. Then the thread that owns a line applies the updates of that line in
//! their order: of two updates of one element the later one wins, as in a sequential loop, and
//! running a block again gives the same result.

use super::super::call::{Call, axis_of};
use super::super::error::{LowerResult, invalid, unsupported};
use super::super::lowering::Lowering;
use super::gather::{check_within, index_type, index_width, position, row_of_positions};
use crate::nest::{NestArg, NestBuilder};
use crate::size::{elements, static_shape};
use crate::tensor_graph::{Op, PointOp, ValueId};
use atoll_kgraph::{DType, Expr};

type Results = LowerResult<Vec<ValueId>>;

/// Largest number of parts into which the rows of a `ScatterND` are divided.
const PARTS_MAX: usize = 256;

/// How an update is combined with the element; `None` replaces it.
fn reduction(call: &Call<'_>, dtype: DType) -> LowerResult<Option<PointOp>> {
    let op = match call.string("reduction", "none")?.as_str() {
        "none" => return Ok(None),
        "add" => PointOp::Add,
        "mul" => PointOp::Mul,
        "max" => PointOp::Max,
        "min" => PointOp::Min,
        other => return invalid(format!("its attribute reduction is {other:?}, which ONNX does not define")),
    };
    if dtype == DType::Bool { unsupported("a reduction of booleans") } else { Ok(Some(op)) }
}

/// The types of an update, and how it is applied.
struct Update {
    dtype: DType,
    index_ty: DType,
    reduction: Option<PointOp>,
}

impl Update {
    /// Operands: data, indices, updates.
    fn of(lowering: &Lowering, call: &Call<'_>) -> LowerResult<(Update, [ValueId; 3])> {
        let [data, indices, updates] = [call.input(0)?, call.input(1)?, call.input(2)?];
        let dtype = lowering.dtype(data);
        if lowering.dtype(updates) != dtype {
            return invalid(format!("its updates have type {:?} and its data type {dtype:?}", lowering.dtype(updates)));
        }
        let update = Update { dtype, index_ty: index_type(lowering, indices)?, reduction: reduction(call, dtype)? };
        Ok((update, [data, indices, updates]))
    }

    fn copy(&self, nest: &mut NestBuilder, at: &NestArg) {
        let value = nest.load(0, self.dtype, at);
        nest.store(0, at, &value);
    }

    /// Applies the update at `from` to the element at `to`.
    fn apply(&self, nest: &mut NestBuilder, from: &NestArg, to: &NestArg) {
        let update = nest.load(2, self.dtype, from);
        let value = match self.reduction {
            None => update,
            Some(op) => {
                let before = nest.load_result(0, self.dtype, to);
                nest.step(op, self.dtype, &[before, update])
            }
        };
        nest.store(0, to, &value);
    }
}

/// Requires two tensors to have the same shape.
fn same_shapes(lowering: &Lowering, a: ValueId, b: ValueId) -> LowerResult<()> {
    let (left, right) = (lowering.shape(a), lowering.shape(b));
    if left.len() != right.len() {
        return invalid(format!(
            "its indices have shape {} and its updates shape {}; they must have the same shape",
            lowering.shape_text(left),
            lowering.shape_text(right)
        ));
    }
    left.iter().zip(right).try_for_each(|(a, b)| lowering.equal_dims(a.clone(), b.clone()).map(drop))
}

/// `Scatter` and `ScatterElements`: each update has its own coordinates on all axes but one. One
/// thread per line along that axis.
pub(super) fn scatter_elements(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let (update, [data, indices, updates]) = Update::of(lowering, call)?;
    let (shape, index_shape) = (lowering.shape(data).to_vec(), lowering.shape(indices).to_vec());
    let axis = axis_of(call.int("axis", 0)?, shape.len())?;
    check_within(lowering, &index_shape, &shape, axis)?;
    same_shapes(lowering, indices, updates)?;
    let lines: Vec<Expr> = shape.iter().enumerate().filter(|(i, _)| *i != axis).map(|(_, d)| d.clone()).collect();
    let mut nest = NestBuilder::new("scatter_elements", lines);
    let mut place = nest.point();
    place.insert(axis, 0.into());
    nest.count(&0.into(), &NestArg::from(&shape[axis]), |nest, i| {
        let at = along(nest, &shape, &place, axis, i);
        update.copy(nest, &at);
    });
    let apply = |nest: &mut NestBuilder| {
        nest.count(&0.into(), &NestArg::from(&index_shape[axis]), |nest, i| {
            let from = along(nest, &index_shape, &place, axis, i);
            let target = position(nest, 1, update.index_ty, &from, &shape[axis]);
            let to = along(nest, &shape, &place, axis, &target);
            update.apply(nest, &from, &to);
        });
    };
    // Lines outside the indices are only copied.
    let shorter: Vec<usize> = (0..shape.len()).filter(|i| *i != axis && index_shape[*i] != shape[*i]).collect();
    let mut has_updates = None;
    for i in shorter {
        let inside = nest.inside(&place[i], &NestArg::from(&index_shape[i]));
        has_updates = Some(match has_updates {
            Some(others) => nest.both(&others, &inside),
            None => inside,
        });
    }
    match has_updates {
        Some(condition) => nest.when(&condition, apply),
        None => apply(&mut nest),
    }
    Ok(vec![lowering.emit_one(&call.name, Op::Nest(nest.finish()), &[data, indices, updates], update.dtype, shape)?])
}

/// The row-major offset of `place`, with its coordinate on `axis` replaced by `i`.
fn along(nest: &mut NestBuilder, shape: &[Expr], place: &[NestArg], axis: usize, i: &NestArg) -> NestArg {
    let mut place = place.to_vec();
    place[axis] = i.clone();
    nest.offset(shape, &place)
}

/// `ScatterND`: each update is a slice of the data, selected by a row of indices. The data is
/// viewed as a matrix of slices; a thread owns a column of it, or a part of a column.
pub(super) fn scatter_nd(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let (update, [data, indices, updates]) = Update::of(lowering, call)?;
    let (shape, index_shape) = (lowering.shape(data).to_vec(), lowering.shape(indices).to_vec());
    let width = index_width(&index_shape)?;
    if width > shape.len() {
        return invalid(format!(
            "its rows of {width} indices are too long for data of shape {}",
            lowering.shape_text(&shape)
        ));
    }
    let leading = &index_shape[..index_shape.len() - 1];
    let wanted = [leading, &shape[width..]].concat();
    if wanted.len() != lowering.rank(updates) {
        return invalid(format!(
            "its updates have shape {} instead of {}",
            lowering.shape_text(lowering.shape(updates)),
            lowering.shape_text(&wanted)
        ));
    }
    for (a, b) in wanted.iter().zip(lowering.shape(updates)) {
        lowering.equal_dims(a.clone(), b.clone())?;
    }
    let (rows, columns, count) = (elements(&shape[..width]), elements(&shape[width..]), elements(leading));
    let (matrix, update_matrix, index_matrix) =
        ([rows.clone(), columns.clone()], [count.clone(), columns.clone()], [count.clone(), (width as i64).into()]);
    let (parts, part_rows) = share(&rows, &count);
    let mut nest = NestBuilder::new("scatter_nd", vec![parts, columns]);
    let [part, column] = <[NestArg; 2]>::try_from(nest.point()).unwrap_or_else(|_| [0.into(), 0.into()]);
    let first = nest.mul(&part, &NestArg::from(&part_rows));
    let end = nest.add(&first, &NestArg::from(&part_rows));
    let end = nest.step(PointOp::Min, DType::I32, &[end, NestArg::from(&rows)]);
    nest.count(&first, &end, |nest, row| {
        let at = nest.offset(&matrix, &[row.clone(), column.clone()]);
        update.copy(nest, &at);
    });
    nest.count(&0.into(), &NestArg::from(&count), |nest, i| {
        let place = row_of_positions(nest, 1, update.index_ty, &index_matrix, std::slice::from_ref(i), &shape[..width]);
        let row = nest.offset(&shape[..width], &place);
        let from_first = nest.compare(PointOp::GreaterOrEqual, DType::I32, &row, &first);
        let before_end = nest.compare(PointOp::Less, DType::I32, &row, &end);
        let is_mine = nest.both(&from_first, &before_end);
        nest.when(&is_mine, |nest| {
            let from = nest.offset(&update_matrix, &[i.clone(), column.clone()]);
            let to = nest.offset(&matrix, &[row, column.clone()]);
            update.apply(nest, &from, &to);
        });
    });
    Ok(vec![lowering.emit_one(&call.name, Op::Nest(nest.finish()), &[data, indices, updates], update.dtype, shape)?])
}

/// The number of parts into which the rows are divided, and the rows of a part. Every part reads
/// all indices, so the rows are divided only if they are many more than the updates.
fn share(rows: &Expr, count: &Expr) -> (Expr, Expr) {
    let known = static_shape(&[rows.clone(), count.clone()]);
    let parts = known.map_or(1, |sizes| (sizes[0] / (8 * sizes[1].max(1))).clamp(1, PARTS_MAX));
    match (parts, rows.as_const()) {
        (2.., Some(rows)) => {
            let part_rows = (rows as usize).div_ceil(parts);
            (((rows as usize).div_ceil(part_rows) as i64).into(), (part_rows as i64).into())
        }
        _ => (1.into(), rows.clone()),
    }
}

/// `TensorScatter`: replaces a range of each line of the cache; an operand gives its start for each
/// element of the batch.
pub(super) fn tensor_scatter(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let (cache, update) = (call.input(0)?, call.input(1)?);
    let (shape, update_shape) = (lowering.shape(cache).to_vec(), lowering.shape(update).to_vec());
    let axis = axis_of(call.int("axis", -2)?, shape.len())?;
    let (dtype, ty) = (lowering.dtype(cache), DType::I32);
    if axis == 0 || update_shape.len() != shape.len() || lowering.dtype(update) != dtype {
        return invalid(format!(
            "its update of shape {} does not match a cache of shape {} on axis {axis}",
            lowering.shape_text(&update_shape),
            lowering.shape_text(&shape)
        ));
    }
    for i in (0..shape.len()).filter(|i| *i != axis) {
        lowering.equal_dims(shape[i].clone(), update_shape[i].clone())?;
    }
    let circular = match call.string("mode", "linear")?.as_str() {
        "linear" => false,
        "circular" => true,
        other => return invalid(format!("its attribute mode is {other:?}, which ONNX does not define")),
    };
    let mut inputs = vec![cache, update];
    let mut nest = NestBuilder::new("tensor_scatter", shape.clone());
    let mut place = nest.point();
    let at = nest.offset(&shape, &place);
    if let Some(starts) = call.optional(2) {
        let start_ty = index_type(lowering, starts)?;
        match lowering.shape(starts) {
            [count] => lowering.equal_dims(shape[0].clone(), count.clone())?,
            other => {
                return invalid(format!(
                    "its write_indices have shape {}; it needs one per sequence",
                    lowering.shape_text(other)
                ));
            }
        };
        inputs.push(starts);
        let start = nest.load(2, start_ty, &place[0]);
        let start = if start_ty == ty { start } else { nest.cast(&start, ty) };
        place[axis] = nest.sub(&place[axis], &start);
        if circular {
            place[axis] = nest.step(PointOp::Mod, ty, &[place[axis].clone(), NestArg::from(&shape[axis])]);
        }
    }
    let value = nest.load(0, dtype, &at);
    let value = nest.variable(dtype, &value);
    let is_updated = nest.inside(&place[axis], &NestArg::from(&update_shape[axis]));
    nest.when(&is_updated, |nest| {
        let from = nest.offset(&update_shape, &place);
        let new = nest.load(1, dtype, &from);
        nest.set(&value, &new);
    });
    nest.store(0, &at, &value);
    Ok(vec![lowering.emit_one(&call.name, Op::Nest(nest.finish()), &inputs, dtype, shape)?])
}
