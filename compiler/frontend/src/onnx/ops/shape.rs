//! Operators on shapes: what they compute is known at compile time, what they do to data is a [`Op::Reshape`](crate::tensor_graph::Op::Reshape) or nothing.

use super::super::call::{Call, axes_of, axis_of};
use super::super::error::{LowerError, LowerResult, invalid, unsupported};
use super::super::lowering::{Lowering, shape_text};
use crate::size::{divide_exact, elements};
use crate::tensor_graph::ValueId;
use atoll_kgraph::{DType, Expr};

type Results = LowerResult<Vec<ValueId>>;

pub(super) fn shape(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let shape = lowering.shape(call.input(0)?).to_vec();
    let rank = shape.len() as i64;
    let clamp = |axis: i64| (if axis < 0 { axis + rank } else { axis }).clamp(0, rank) as usize;
    let (start, end) = (clamp(call.int("start", 0)?), clamp(call.int("end", rank)?));
    let part = if start < end { shape[start..end].to_vec() } else { Vec::new() };
    Ok(vec![lowering.add_sizes(&call.name, DType::I64, vec![part.len()], part)])
}

pub(super) fn size(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let count = elements(lowering.shape(call.input(0)?));
    Ok(vec![lowering.add_sizes(&call.name, DType::I64, vec![], vec![count])])
}

/// A 0 keeps the input's dimension, one -1 takes what is left.
pub(super) fn reshape(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = call.input(0)?;
    let wanted = lowering.require_known(call.input(1)?, "shape")?;
    let allow_zero = call.flag("allowzero", false)?;
    let mut shape = Vec::with_capacity(wanted.len());
    let mut rest = None;
    for (axis, dim) in wanted.into_iter().enumerate() {
        match dim.as_const() {
            Some(0) if !allow_zero => match lowering.shape(x).get(axis) {
                Some(dim) => shape.push(dim.clone()),
                None => return invalid(format!("the shape keeps dimension {axis}, the input has {}", lowering.rank(x))),
            },
            Some(-1) if rest.replace(axis).is_some() => return invalid("the shape has two -1"),
            Some(-1) => shape.push(Expr::Const(1)),
            Some(negative) if negative < 0 => return invalid(format!("dimension {negative}")),
            _ => shape.push(dim),
        }
    }
    if let Some(axis) = rest {
        shape[axis] = rest_of(&elements(lowering.shape(x)), &elements(&shape))?;
    }
    Ok(vec![lowering.reshape(&call.name, x, shape)?])
}

/// The dimension that -1 stands for.
fn rest_of(all: &Expr, others: &Expr) -> LowerResult<Expr> {
    match (all.as_const(), others.as_const()) {
        (Some(0), Some(0)) => Ok(Expr::Const(0)),
        _ => divide_exact(all, others).ok_or_else(|| {
            let text = format!("{all} elements do not divide into {others}");
            if all.as_const().is_some() && others.as_const().is_some() { LowerError::Invalid(text) } else { LowerError::Unsupported(text) }
        }),
    }
}

pub(super) fn flatten(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = call.input(0)?;
    let shape = lowering.shape(x).to_vec();
    let axis = match call.int("axis", 1)? {
        axis if axis == shape.len() as i64 => shape.len(),
        axis => axis_of(axis, shape.len())?,
    };
    Ok(vec![lowering.reshape(&call.name, x, vec![elements(&shape[..axis]), elements(&shape[axis..])])?])
}

/// Axes are an attribute before opset 13 and an operand from there on.
fn read_axes(lowering: &Lowering, call: &Call<'_>) -> LowerResult<Option<Vec<i64>>> {
    match call.optional(1) {
        Some(axes) => lowering.require_ints(axes, "list of axes").map(Some),
        None => call.ints("axes"),
    }
}

pub(super) fn squeeze(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = call.input(0)?;
    let shape = lowering.shape(x).to_vec();
    let axes = match read_axes(lowering, call)? {
        Some(axes) => axes_of(&axes, shape.len())?,
        None if shape.iter().any(|d| d.as_const().is_none()) => return unsupported("no axes and a symbolic dimension"),
        None => (0..shape.len()).filter(|i| shape[*i] == Expr::Const(1)).collect(),
    };
    if let Some(axis) = axes.iter().find(|axis| shape[**axis] != Expr::Const(1)) {
        return invalid(format!("dimension {axis} of {} is not 1", shape_text(&shape)));
    }
    let kept = shape.into_iter().enumerate().filter(|(i, _)| !axes.contains(i)).map(|(_, d)| d).collect();
    Ok(vec![lowering.reshape(&call.name, x, kept)?])
}

pub(super) fn unsqueeze(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = call.input(0)?;
    let axes = read_axes(lowering, call)?.ok_or_else(|| LowerError::Invalid("the axes are missing".into()))?;
    let mut shape = lowering.shape(x).to_vec();
    for axis in axes_of(&axes, shape.len() + axes.len())? {
        shape.insert(axis, Expr::Const(1));
    }
    Ok(vec![lowering.reshape(&call.name, x, shape)?])
}

/// Both ways: a dimension of 1 in the wanted shape keeps the input's.
pub(super) fn expand(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = call.input(0)?;
    let wanted = lowering.require_known(call.input(1)?, "shape")?;
    let shape = lowering.broadcast_shapes(lowering.shape(x), &wanted)?;
    Ok(vec![lowering.expand(&call.name, x, shape)?])
}
