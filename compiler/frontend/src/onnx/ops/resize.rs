//! Resampling of the two innermost axes.

use super::super::call::{Call, axis_of};
use super::super::error::{LowerResult, invalid, unsupported};
use super::super::lowering::Lowering;
use crate::tensor_graph::{CoordinateMode, Op, Resize, ResizeMode, ValueId};
use atoll_kgraph::Expr;

type Results = LowerResult<Vec<ValueId>>;

/// `Upsample` (opset 7 to 9) and `Resize` of opset 10: scales only, coordinates divided by them.
pub(super) fn upsample(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let scales = match call.optional(1) {
        Some(scales) => lowering.require_floats(scales, "list of scales")?,
        None => call.floats("scales")?.unwrap_or_default().into_iter().map(f64::from).collect(),
    };
    let mode = match call.string("mode", "nearest")?.as_str() {
        "nearest" if scales.iter().all(|s| *s >= 1.0) => ResizeMode::NearestFloor,
        "nearest" => ResizeMode::NearestCeil,
        "linear" | "bilinear" => ResizeMode::Linear,
        other => return unsupported(format!("mode = {other:?}")),
    };
    let sizes = scaled_sizes(lowering, call.input(0)?, &scales)?;
    resample(lowering, call, mode, CoordinateMode::Asymmetric, &scales, sizes)
}

pub(super) fn resize(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    if call.opset < 11 {
        return upsample(lowering, call);
    }
    if call.flag("antialias", false)? {
        return unsupported("antialias = 1");
    }
    let policy = call.string("keep_aspect_ratio_policy", "stretch")?;
    if policy != "stretch" {
        return unsupported(format!("keep_aspect_ratio_policy = {policy:?}"));
    }
    let x = call.input(0)?;
    let axes = match call.ints("axes")? {
        Some(axes) => axes.iter().map(|axis| axis_of(*axis, lowering.rank(x))).collect::<LowerResult<Vec<usize>>>()?,
        None => (0..lowering.rank(x)).collect(),
    };
    let (scales, sizes) = read_target(lowering, call, x, &axes)?;
    resample(lowering, call, read_mode(call)?, read_coordinates(call)?, &scales, sizes)
}

/// Scale and size of every dimension, from `scales` or from `sizes`.
fn read_target(lowering: &Lowering, call: &Call<'_>, x: ValueId, axes: &[usize]) -> LowerResult<(Vec<f64>, Vec<Expr>)> {
    let shape = lowering.shape(x).to_vec();
    let on_all = |given: Vec<f64>| {
        let mut all = vec![1.0; shape.len()];
        axes.iter().zip(given).for_each(|(axis, value)| all[*axis] = value);
        all
    };
    // An empty list stands for an operand that is left out.
    let given = |index: usize| call.optional(index).filter(|id| lowering.shape(*id) != [Expr::Const(0)]);
    if let Some(scales) = given(2) {
        let scales = lowering.require_floats(scales, "list of scales")?;
        if scales.len() != axes.len() {
            return invalid(format!("{} scales for {} axes", scales.len(), axes.len()));
        }
        let scales = on_all(scales);
        let sizes = scaled_sizes(lowering, x, &scales)?;
        return Ok((scales, sizes));
    }
    let Some(sizes) = given(3) else { return invalid("neither scales nor sizes") };
    let sizes = lowering.require_known(sizes, "list of sizes")?;
    if sizes.len() != axes.len() {
        return invalid(format!("{} sizes for {} axes", sizes.len(), axes.len()));
    }
    let mut result = shape.clone();
    let mut scales = vec![1.0; shape.len()];
    for (axis, size) in axes.iter().zip(sizes) {
        scales[*axis] = ratio(&size, &shape[*axis])?;
        result[*axis] = size;
    }
    Ok((scales, result))
}

fn ratio(output: &Expr, input: &Expr) -> LowerResult<f64> {
    let exact = crate::size::divide_exact(output, input).and_then(|e| e.as_const());
    match (exact, output.as_const(), input.as_const()) {
        (Some(exact), _, _) => Ok(exact as f64),
        (None, Some(output), Some(input)) if input > 0 => Ok(output as f64 / input as f64),
        _ => unsupported(format!("a resize from {input} to {output}, whose scale depends on a symbolic size")),
    }
}

fn scaled_sizes(lowering: &Lowering, x: ValueId, scales: &[f64]) -> LowerResult<Vec<Expr>> {
    let shape = lowering.shape(x);
    if scales.len() != shape.len() {
        return invalid(format!("{} scales for {} dimensions", scales.len(), shape.len()));
    }
    let scaled = shape.iter().zip(scales).map(|(dim, scale)| match dim.as_const() {
        _ if !(scale.is_finite() && *scale > 0.0 && *scale < 65536.0) => invalid(format!("a scale of {scale}")),
        _ if scale.fract() == 0.0 => Ok(dim.clone() * *scale as i64),
        // Scales are floats in the model, so the product is one too.
        Some(dim) => Ok(Expr::Const((dim as f32 * *scale as f32).floor() as i64)),
        None => unsupported(format!("a scale of {scale} on a symbolic dimension")),
    });
    scaled.collect()
}

fn read_mode(call: &Call<'_>) -> LowerResult<ResizeMode> {
    match (call.string("mode", "nearest")?.as_str(), call.string("nearest_mode", "round_prefer_floor")?.as_str()) {
        ("linear", _) => Ok(ResizeMode::Linear),
        ("nearest", "round_prefer_floor") => Ok(ResizeMode::NearestRoundPreferFloor),
        ("nearest", "round_prefer_ceil") => Ok(ResizeMode::NearestRoundPreferCeil),
        ("nearest", "floor") => Ok(ResizeMode::NearestFloor),
        ("nearest", "ceil") => Ok(ResizeMode::NearestCeil),
        (mode, nearest) => unsupported(format!("mode = {mode:?}, nearest_mode = {nearest:?}")),
    }
}

fn read_coordinates(call: &Call<'_>) -> LowerResult<CoordinateMode> {
    match call.string("coordinate_transformation_mode", "half_pixel")?.as_str() {
        "half_pixel" => Ok(CoordinateMode::HalfPixel),
        "pytorch_half_pixel" => Ok(CoordinateMode::PytorchHalfPixel),
        "align_corners" => Ok(CoordinateMode::AlignCorners),
        "asymmetric" => Ok(CoordinateMode::Asymmetric),
        other => unsupported(format!("coordinate_transformation_mode = {other:?}")),
    }
}

/// Emits the resize over `[N, C, H, W]`; with one spatial dimension the height is 1, with fewer leading ones they are 1.
fn resample(
    lowering: &mut Lowering,
    call: &Call<'_>,
    mode: ResizeMode,
    coordinates: CoordinateMode,
    scales: &[f64],
    sizes: Vec<Expr>,
) -> Results {
    let x = call.input(0)?;
    let dtype = lowering.dtype(x);
    let rank = lowering.rank(x);
    if sizes == lowering.shape(x) && scales.iter().all(|s| *s == 1.0) {
        return Ok(vec![x]);
    }
    let spatial = match rank {
        2 | 3 if scales[0] == 1.0 && (rank == 2 || scales[1] == 1.0) => 1,
        2 => 2,
        4 if scales[..2] == [1.0, 1.0] => 2,
        _ => return unsupported(format!("scales {scales:?}: only the two innermost axes of at most four")),
    };
    let planar = |shape: &[Expr]| {
        let (lead, inner) = shape.split_at(rank - spatial);
        let mut planar = vec![Expr::Const(1); 2 - lead.len()];
        planar.extend_from_slice(lead);
        planar.extend(vec![Expr::Const(1); 2 - spatial]);
        planar.extend_from_slice(inner);
        planar
    };
    let (from, to) = (planar(lowering.shape(x)), planar(&sizes));
    let height_scale = if spatial == 2 { scales[rank - 2] } else { 1.0 };
    let x = lowering.reshape(&format!("{}.x", call.name), x, from)?;
    let op = Op::Resize(Resize { mode, coordinates, scales: [height_scale as f32, scales[rank - 1] as f32] });
    let y = lowering.emit_one(&call.name, op, &[x], dtype, to)?;
    let y = lowering.reshape(&format!("{}.y", call.name), y, sizes)?;
    Ok(vec![y])
}
