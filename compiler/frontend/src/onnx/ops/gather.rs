//! Operators that read elements at the positions in an index tensor.

use super::super::call::{Call, axis_of};
use super::super::error::{LowerError, LowerResult, invalid};
use super::super::lowering::Lowering;
use crate::nest::{NestArg, NestBuilder};
use crate::size::at_least;
use crate::tensor_graph::{Op, ValueId};
use atoll_kgraph::{DType, Expr};

type Results = LowerResult<Vec<ValueId>>;

/// Slices of the data along an axis.
pub(super) fn gather(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let (data, indices) = (call.input(0)?, call.input(1)?);
    let shape = lowering.shape(data);
    let axis = axis_of(call.int("axis", 0)?, shape.len())?;
    index_type(lowering, indices)?;
    let shape = [&shape[..axis], lowering.shape(indices), &shape[axis + 1..]].concat();
    Ok(vec![lowering.emit_one(&call.name, Op::Gather { axis }, &[data, indices], lowering.dtype(data), shape)?])
}

/// One element of the data per index: its coordinate on `axis` is the index, the others are those
/// of the index itself.
pub(super) fn gather_elements(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let (data, indices) = (call.input(0)?, call.input(1)?);
    let (data_shape, shape) = (lowering.shape(data).to_vec(), lowering.shape(indices).to_vec());
    let axis = axis_of(call.int("axis", 0)?, data_shape.len())?;
    let (dtype, index_ty) = (lowering.dtype(data), index_type(lowering, indices)?);
    check_within(lowering, &shape, &data_shape, axis)?;
    let mut nest = NestBuilder::new("gather_elements", shape.clone());
    nest.by_rows(if axis > 0 { 2 } else { 0 });
    let mut place = nest.point();
    let at = nest.offset(&shape, &place);
    place[axis] = position(&mut nest, 1, index_ty, &at, &data_shape[axis]);
    let from = nest.offset(&data_shape, &place);
    let value = nest.load(0, dtype, &from);
    nest.store(0, &at, &value);
    Ok(vec![lowering.emit_one(&call.name, Op::Nest(nest.finish()), &[data, indices], dtype, shape)?])
}

/// Slices of the data; each row of indices selects one.
pub(super) fn gather_nd(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let (data, indices) = (call.input(0)?, call.input(1)?);
    let (data_shape, index_shape) = (lowering.shape(data).to_vec(), lowering.shape(indices).to_vec());
    let batch = usize::try_from(call.int("batch_dims", 0)?).unwrap_or(usize::MAX);
    let width = index_width(&index_shape)?;
    if batch >= index_shape.len() || batch + width > data_shape.len() {
        let (data, indices) = (lowering.shape_text(&data_shape), lowering.shape_text(&index_shape));
        return invalid(format!(
            "its indices have shape {indices}, its data shape {data}, with {batch} batch dimensions"
        ));
    }
    for axis in 0..batch {
        lowering.equal_dims(data_shape[axis].clone(), index_shape[axis].clone())?;
    }
    let (dtype, index_ty) = (lowering.dtype(data), index_type(lowering, indices)?);
    let rows = index_shape.len() - 1;
    let shape = [&index_shape[..rows], &data_shape[batch + width..]].concat();
    let mut nest = NestBuilder::new("gather_nd", shape.clone());
    let point = nest.point();
    let mut place = point[..batch].to_vec();
    place.extend(row_of_positions(
        &mut nest,
        1,
        index_ty,
        &index_shape,
        &point[..rows],
        &data_shape[batch..batch + width],
    ));
    place.extend_from_slice(&point[rows..]);
    let from = nest.offset(&data_shape, &place);
    let value = nest.load(0, dtype, &from);
    let at = nest.offset(&shape, &point);
    nest.store(0, &at, &value);
    Ok(vec![lowering.emit_one(&call.name, Op::Nest(nest.finish()), &[data, indices], dtype, shape)?])
}

/// The type of an index tensor: I32 or I64.
pub(super) fn index_type(lowering: &Lowering, indices: ValueId) -> LowerResult<DType> {
    match lowering.dtype(indices) {
        ty @ (DType::I32 | DType::I64) => Ok(ty),
        other => invalid(format!("its indices have type {other:?}; they must be I32 or I64")),
    }
}

/// Number of axes that a row of indices selects: the last dimension of the index tensor.
pub(super) fn index_width(shape: &[Expr]) -> LowerResult<usize> {
    let Some(last) = shape.last() else { return invalid("its indices are a scalar") };
    let width = last.as_const().ok_or_else(|| {
        LowerError::Unsupported(format!(
            "the rows of its indices have the symbolic length {last}; export the model with a fixed length"
        ))
    })?;
    usize::try_from(width).ok().filter(|width| *width > 0).ok_or_else(|| {
        LowerError::Invalid(format!("the rows of its indices have length {width}; they must not be empty"))
    })
}

/// Requires each dimension of the indices, except on `axis`, to be at most that of the data.
pub(super) fn check_within(lowering: &Lowering, indices: &[Expr], data: &[Expr], axis: usize) -> LowerResult<()> {
    if indices.len() != data.len() {
        return invalid(format!(
            "its indices have shape {}, its data shape {}; they must have the same number of dimensions",
            lowering.shape_text(indices),
            lowering.shape_text(data)
        ));
    }
    let others = indices.iter().zip(data).enumerate().filter(|(i, _)| *i != axis);
    for (_, (index, data)) in others {
        if at_least(data, index, &lowering.graph.symbols) {
            continue;
        }
        // An open size of the indices may be anything up to a fixed size of the data. It would be
        // fixed if the two had to be equal, and then the model would have no batch axis.
        let most = if data.as_const().is_some() { index.clone().min(data.clone()) } else { data.clone() };
        lowering.equal_dims(index.clone(), most)?;
    }
    Ok(())
}

/// The positions that a row of indices selects on axes of the data. `row` are the coordinates of
/// that row in the index tensor.
pub(super) fn row_of_positions(
    nest: &mut NestBuilder,
    operand: u32,
    ty: DType,
    shape: &[Expr],
    row: &[NestArg],
    extents: &[Expr],
) -> Vec<NestArg> {
    let mut place = row.to_vec();
    place.push(0.into());
    let first = nest.offset(shape, &place);
    let mut positions = Vec::with_capacity(extents.len());
    for (column, extent) in extents.iter().enumerate() {
        let at = nest.add(&first, &(column as i64).into());
        positions.push(position(nest, operand, ty, &at, extent));
    }
    positions
}

/// Loads the index at `at` of an operand as a position on an axis of `extent` elements. A negative
/// index counts from the end; an index outside the axis fails the invocation.
pub(super) fn position(nest: &mut NestBuilder, operand: u32, ty: DType, at: &NestArg, extent: &Expr) -> NestArg {
    let index = nest.load(operand, ty, at);
    nest.checked_index(&index, ty, extent)
}
