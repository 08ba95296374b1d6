//! Padding and cropping.

use super::super::call::{Call, axis_of};
use super::super::error::{LowerResult, invalid, unsupported};
use super::super::lowering::Lowering;
use super::super::options::DIMENSION_MAX;
use crate::size::{canonical, larger};
use crate::tensor::is_float;
use crate::tensor_graph::{Op, PadMode, ValueId};
use atoll_kgraph::{DType, Expr};

type Results = LowerResult<Vec<ValueId>>;

/// Largest integer fill value: fill values are stored as `f64`.
const FILL_MAX: f64 = (1i64 << 53) as f64;

/// Padding at the beginning and the end of each axis; a negative value crops.
#[derive(Clone)]
pub(super) struct Margins {
    pub(super) before: Vec<Expr>,
    pub(super) after: Vec<Expr>,
}

impl Margins {
    pub(super) fn none(rank: usize) -> Margins {
        Margins { before: vec![Expr::Const(0); rank], after: vec![Expr::Const(0); rank] }
    }
}

/// Pads are an attribute before opset 11 and an operand from opset 11 on; axes are an operand since
/// opset 18.
pub(super) fn pad(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = call.input(0)?;
    let rank = lowering.rank(x);
    let (pads, fill) = if call.opset < 11 {
        let pads = call.required_ints("pads")?.into_iter().map(Expr::Const).collect();
        (pads, f64::from(call.float("value", 0.0)?))
    } else {
        let fill = call.optional(2).map(|id| lowering.require_floats(id, "fill value")).transpose()?;
        (lowering.require_known(call.input(1)?, "list of pads")?, fill.and_then(|v| v.first().copied()).unwrap_or(0.0))
    };
    let axes = match call.optional(3) {
        Some(axes) => axes_in_order(&lowering.require_ints(axes, "list of axes")?, rank)?,
        None => (0..rank).collect(),
    };
    let mode = match call.string("mode", "constant")?.as_str() {
        "constant" => PadMode::Constant(checked_fill(lowering.dtype(x), fill)?),
        "reflect" => PadMode::Reflect,
        "edge" => PadMode::Edge,
        "wrap" => PadMode::Wrap,
        other => return invalid(format!("its attribute mode is {other:?}, which ONNX does not define")),
    };
    let is_far = |pad: &Expr| pad.as_const().is_some_and(|pad| pad.abs() > DIMENSION_MAX);
    if pads.len() != 2 * axes.len() || pads.iter().any(is_far) {
        return invalid(format!("its pads {} do not match {} axes", lowering.shape_text(&pads), axes.len()));
    }
    let mut margins = Margins::none(rank);
    for (index, axis) in axes.iter().enumerate() {
        (margins.before[*axis], margins.after[*axis]) = (pads[index].clone(), pads[index + axes.len()].clone());
    }
    Ok(vec![apply(lowering, &call.name, x, margins, mode)?])
}

/// Axes in `0..rank`, in the given order.
pub(super) fn axes_in_order(axes: &[i64], rank: usize) -> LowerResult<Vec<usize>> {
    let resolved = axes.iter().map(|axis| axis_of(*axis, rank)).collect::<LowerResult<Vec<usize>>>()?;
    match resolved.iter().enumerate().find(|(i, axis)| resolved[..*i].contains(axis)) {
        Some((_, axis)) => invalid(format!("its axes contain {axis} twice")),
        None => Ok(resolved),
    }
}

fn checked_fill(dtype: DType, fill: f64) -> LowerResult<f64> {
    if !is_float(dtype) && fill.abs() > FILL_MAX {
        return unsupported(format!("a fill value of {fill}; integers up to {FILL_MAX} are supported"));
    }
    Ok(fill)
}

/// Crops first, then pads.
pub(super) fn apply(
    lowering: &mut Lowering,
    name: &str,
    x: ValueId,
    margins: Margins,
    mode: PadMode,
) -> LowerResult<ValueId> {
    let shape = lowering.shape(x).to_vec();
    let zero = Expr::Const(0);
    let mut cropped = shape.clone();
    let mut starts = vec![zero.clone(); shape.len()];
    let mut padded = Margins::none(shape.len());
    for axis in 0..shape.len() {
        let (before, before_crop) = parts(lowering, &margins.before[axis]);
        let (after, after_crop) = parts(lowering, &margins.after[axis]);
        cropped[axis] = canonical(&(shape[axis].clone() - before_crop.clone() - after_crop));
        (starts[axis], padded.before[axis], padded.after[axis]) = (before_crop, before, after);
    }
    let x = crop(lowering, &format!("{name}.cropped"), x, starts, cropped.clone())?;
    if padded.before.iter().chain(&padded.after).all(|pad| *pad == zero) {
        return Ok(x);
    }
    if !matches!(mode, PadMode::Constant(_)) && cropped.contains(&zero) {
        return invalid("its operand has no elements that padding could repeat");
    }
    for axis in (0..shape.len()).filter(|_| !matches!(mode, PadMode::Constant(_))) {
        if [&padded.before[axis], &padded.after[axis]].iter().any(|pad| **pad != zero) {
            lowering.require_at_least(&cropped[axis], &Expr::Const(1))?;
        }
    }
    let total =
        |axis: usize| canonical(&(padded.before[axis].clone() + cropped[axis].clone() + padded.after[axis].clone()));
    let result = (0..shape.len()).map(total).collect();
    lowering.emit_one(name, Op::Pad { before: padded.before, mode }, &[x], lowering.dtype(x), result)
}

/// The parts of a margin that pad and that crop.
fn parts(lowering: &Lowering, margin: &Expr) -> (Expr, Expr) {
    let zero = Expr::Const(0);
    let part = |size: Expr| larger(canonical(&size), zero.clone(), &lowering.graph.symbols);
    (part(margin.clone()), part(zero.clone() - margin.clone()))
}

/// Crops to `size` elements from `starts` along every axis.
pub(super) fn crop(
    lowering: &mut Lowering,
    name: &str,
    x: ValueId,
    starts: Vec<Expr>,
    size: Vec<Expr>,
) -> LowerResult<ValueId> {
    if crate::size::same_shape(lowering.shape(x), &size) {
        return Ok(x);
    }
    let steps = vec![1; size.len()];
    lowering.emit_one(name, Op::Slice { starts, steps }, &[x], lowering.dtype(x), size)
}

/// `CenterCropPad`: crops or pads each axis to the wanted size, symmetrically.
pub(super) fn center_crop_pad(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = call.input(0)?;
    let shape = lowering.shape(x).to_vec();
    let wanted = lowering.require_known(call.input(1)?, "shape")?;
    let axes = match call.ints("axes")? {
        Some(axes) => axes_in_order(&axes, shape.len())?,
        None => (0..shape.len()).collect(),
    };
    if wanted.len() != axes.len() {
        return invalid(format!("it has {} sizes for {} axes", wanted.len(), axes.len()));
    }
    let mut margins = Margins::none(shape.len());
    for (axis, size) in axes.into_iter().zip(wanted) {
        let (pad, crop) = parts(lowering, &(size - shape[axis].clone()));
        // If the number is odd, the extra element is at the end.
        let half = |e: &Expr| e.clone().floor_div(2);
        margins.before[axis] = canonical(&(half(&pad) - half(&crop)));
        margins.after[axis] = canonical(&(pad.clone() - half(&pad) - (crop.clone() - half(&crop))));
    }
    Ok(vec![apply(lowering, &call.name, x, margins, PadMode::Constant(0.0))?])
}
