//! `Resize` and `Upsample`. Resizing the two innermost axes of floats is one kernel that computes
//! coordinates. Everything else is resampled axis by axis: with tables for known sizes, with
//! formulas for symbolic sizes.

use super::super::call::Call;
use super::super::error::{LowerError, LowerResult, invalid, unsupported};
use super::super::lowering::Lowering;
use super::pad::axes_in_order;
use super::resample::{self, Coordinates, Interpolation, ResampledAxis, Sampling};
use super::sampling::{self, SymbolicAxis};
use crate::size::{canonical, elements, same};
use crate::tensor::is_float;
use crate::tensor_graph::{CoordinateMode, Op, Resize, ResizeMode, ValueId};
use atoll_kgraph::{DType, Expr};

type Results = LowerResult<Vec<ValueId>>;

/// The target of every dimension.
struct Target {
    /// Scale (output / input), as in the model. `None` means the quotient of the sizes, which is
    /// symbolic.
    scales: Vec<Option<f64>>,
    sizes: Vec<Expr>,
    /// Start and end of the region, as fractions of the input.
    regions: Vec<[f32; 2]>,
}

/// `Upsample` (opset 7 to 9) and `Resize` of opset 10: only scales; coordinates are divided by
/// them.
pub(super) fn upsample(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let scales = match call.optional(1) {
        Some(scales) => lowering.require_floats(scales, "list of scales")?,
        None => call.floats("scales")?.unwrap_or_default().into_iter().map(f64::from).collect(),
    };
    let mode = match call.string("mode", "nearest")?.as_str() {
        "nearest" if scales.iter().all(|s| *s >= 1.0) => ResizeMode::NearestFloor,
        "nearest" => ResizeMode::NearestCeil,
        "linear" | "bilinear" => ResizeMode::Linear,
        other => return invalid(format!("its attribute mode is {other:?}, which ONNX does not define")),
    };
    let x = call.input(0)?;
    let sizes = scaled_sizes(lowering, x, &scales)?;
    let sampling = Sampling {
        interpolation: Interpolation::Simple(mode),
        coordinates: Coordinates::Plain(CoordinateMode::Asymmetric),
        antialias: false,
        exclude_outside: false,
        extrapolation: 0.0,
    };
    let regions = vec![[0.0, 1.0]; scales.len()];
    let scales = scales.into_iter().map(Some).collect();
    resize_to(lowering, call, x, &Target { scales, sizes, regions }, sampling)
}

pub(super) fn resize(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    if call.opset < 11 {
        return upsample(lowering, call);
    }
    let x = call.input(0)?;
    let axes = match call.ints("axes")? {
        Some(axes) => axes_in_order(&axes, lowering.rank(x))?,
        None => (0..lowering.rank(x)).collect(),
    };
    let sampling = Sampling {
        interpolation: read_interpolation(call)?,
        coordinates: read_coordinates(call)?,
        antialias: call.flag("antialias", false)?,
        exclude_outside: call.flag("exclude_outside", false)?,
        extrapolation: call.float("extrapolation_value", 0.0)?.into(),
    };
    let target = read_target(lowering, call, x, &axes, sampling.coordinates)?;
    resize_to(lowering, call, x, &target, sampling)
}

/// The scale and size of every dimension, from `scales` or from `sizes`.
fn read_target(
    lowering: &Lowering,
    call: &Call<'_>,
    x: ValueId,
    axes: &[usize],
    coordinates: Coordinates,
) -> LowerResult<Target> {
    let shape = lowering.shape(x).to_vec();
    // An empty list means that the operand is omitted.
    let given = |index: usize| call.optional(index).filter(|id| lowering.shape(*id) != [Expr::Const(0)]);
    let mut scales = vec![Some(1.0); shape.len()];
    let mut sizes = shape.clone();
    if let Some(id) = given(2) {
        let list = lowering.require_floats(id, "list of scales")?;
        if list.len() != axes.len() {
            return invalid(format!("it has {} scales for {} axes", list.len(), axes.len()));
        }
        let mut all = vec![1.0; shape.len()];
        axes.iter().zip(list).for_each(|(axis, scale)| all[*axis] = scale);
        sizes = scaled_sizes(lowering, x, &all)?;
        scales = all.into_iter().map(Some).collect();
    } else if let Some(id) = given(3) {
        let list = lowering.require_known(id, "list of sizes")?;
        if list.len() != axes.len() {
            return invalid(format!("it has {} sizes for {} axes", list.len(), axes.len()));
        }
        for (axis, size) in axes.iter().zip(list) {
            scales[*axis] = ratio(&size, &shape[*axis]);
            sizes[*axis] = size;
        }
        keep_aspect_ratio(call, &shape, axes, &mut scales, &mut sizes)?;
    } else {
        return invalid("it has neither scales nor sizes");
    }
    let mut regions = vec![[0.0, 1.0]; shape.len()];
    if coordinates == Coordinates::TfCropAndResize {
        let roi =
            given(1).ok_or_else(|| LowerError::Invalid("it has no roi, which tf_crop_and_resize needs".into()))?;
        let roi = lowering.require_floats(roi, "region")?;
        if roi.len() != 2 * axes.len() {
            return invalid(format!("its roi has {} numbers for {} axes", roi.len(), axes.len()));
        }
        axes.iter().enumerate().for_each(|(i, axis)| regions[*axis] = [roi[i] as f32, roi[i + axes.len()] as f32]);
    }
    Ok(Target { scales, sizes, regions })
}

/// Replaces all scales by the smallest or the largest one.
fn keep_aspect_ratio(
    call: &Call<'_>,
    shape: &[Expr],
    axes: &[usize],
    scales: &mut [Option<f64>],
    sizes: &mut [Expr],
) -> LowerResult<()> {
    let all = axes.iter().map(|axis| scales[*axis]).collect::<Option<Vec<f64>>>();
    let choose = match call.string("keep_aspect_ratio_policy", "stretch")?.as_str() {
        "stretch" => return Ok(()),
        "not_larger" => f64::min,
        "not_smaller" => f64::max,
        other => {
            return invalid(format!("its attribute keep_aspect_ratio_policy is {other:?}, which ONNX does not define"));
        }
    };
    let scale = all.and_then(|all| all.into_iter().reduce(choose));
    for axis in axes {
        let (Some(dim), Some(scale)) = (shape[*axis].as_const(), scale) else {
            return unsupported(
                "keep_aspect_ratio_policy on a symbolic dimension; fix the dimension with `--fix NAME=SIZE`",
            );
        };
        scales[*axis] = Some(scale);
        sizes[*axis] = Expr::Const((scale * dim as f64 + 0.5).floor() as i64);
    }
    Ok(())
}

/// Scale (output / input), if it is a number.
fn ratio(output: &Expr, input: &Expr) -> Option<f64> {
    let exact = crate::size::divide_exact(output, input).and_then(|e| e.as_const());
    match (exact, output.as_const(), input.as_const()) {
        (Some(exact), _, _) => Some(exact as f64),
        (None, Some(output), Some(input)) if input > 0 => Some(output as f64 / input as f64),
        _ => None,
    }
}

/// The scale as a numerator and a power of two as denominator, if its product with every valid size
/// is exact in f32.
fn exact_fraction(scale: f64) -> Option<(i64, i64)> {
    let denominator =
        (0..8).map(|bits| 1_i64 << bits).find(|denominator| (scale * *denominator as f64).fract() == 0.0)?;
    let numerator = scale * denominator as f64;
    (numerator < 256.0).then_some((numerator as i64, denominator))
}

fn scaled_sizes(lowering: &Lowering, x: ValueId, scales: &[f64]) -> LowerResult<Vec<Expr>> {
    let shape = lowering.shape(x);
    if scales.len() != shape.len() {
        return invalid(format!("it has {} scales for {} dimensions", scales.len(), shape.len()));
    }
    let scaled = shape.iter().zip(scales).map(|(dim, scale)| match dim.as_const() {
        _ if !(scale.is_finite() && *scale > 0.0 && *scale < 65536.0) => {
            invalid(format!("its scale {scale} is not between 0 and 65536"))
        }
        _ if scale.fract() == 0.0 => Ok(dim.clone() * *scale as i64),
        // Scales are f32 in the model, so the product is computed in f32.
        Some(dim) => Ok(Expr::Const((dim as f32 * *scale as f32).floor() as i64)),
        None => match exact_fraction(*scale) {
            Some((numerator, denominator)) => Ok((dim.clone() * numerator).floor_div(denominator)),
            None => unsupported(format!(
                "a scale of {scale} on a symbolic dimension: the size is exact only for a fraction of a small power \
                 of two; fix the dimension with `--fix NAME=SIZE`"
            )),
        },
    });
    scaled.collect()
}

fn read_interpolation(call: &Call<'_>) -> LowerResult<Interpolation> {
    let simple =
        match (call.string("mode", "nearest")?.as_str(), call.string("nearest_mode", "round_prefer_floor")?.as_str()) {
            ("cubic", _) => return Ok(Interpolation::Cubic { a: call.float("cubic_coeff_a", -0.75)?.into() }),
            ("linear", _) => ResizeMode::Linear,
            ("nearest", "round_prefer_floor") => ResizeMode::NearestRoundPreferFloor,
            ("nearest", "round_prefer_ceil") => ResizeMode::NearestRoundPreferCeil,
            ("nearest", "floor") => ResizeMode::NearestFloor,
            ("nearest", "ceil") => ResizeMode::NearestCeil,
            (mode, nearest) => {
                return invalid(format!(
                    "its mode is {mode:?} and its nearest_mode {nearest:?}, which ONNX does not define"
                ));
            }
        };
    Ok(Interpolation::Simple(simple))
}

fn read_coordinates(call: &Call<'_>) -> LowerResult<Coordinates> {
    Ok(Coordinates::Plain(match call.string("coordinate_transformation_mode", "half_pixel")?.as_str() {
        "half_pixel" => CoordinateMode::HalfPixel,
        "pytorch_half_pixel" => CoordinateMode::PytorchHalfPixel,
        "align_corners" => CoordinateMode::AlignCorners,
        "asymmetric" => CoordinateMode::Asymmetric,
        "half_pixel_symmetric" => return Ok(Coordinates::HalfPixelSymmetric),
        "tf_crop_and_resize" => return Ok(Coordinates::TfCropAndResize),
        other => {
            return invalid(format!(
                "its attribute coordinate_transformation_mode is {other:?}, which ONNX does not define"
            ));
        }
    }))
}

/// Resizes with the kernel that computes coordinates if possible, otherwise axis by axis.
fn resize_to(lowering: &mut Lowering, call: &Call<'_>, x: ValueId, target: &Target, sampling: Sampling) -> Results {
    let shape = lowering.shape(x).to_vec();
    let mut sampling = sampling;
    if sampling.coordinates == Coordinates::HalfPixelSymmetric && is_whole(&shape, target) {
        sampling.coordinates = Coordinates::Plain(CoordinateMode::HalfPixel);
    }
    let is_crop =
        |axis: usize| sampling.coordinates == Coordinates::TfCropAndResize && target.regions[axis] != [0.0, 1.0];
    let changes =
        |axis: usize| !same(&shape[axis], &target.sizes[axis]) || target.scales[axis] != Some(1.0) || is_crop(axis);
    let axes: Vec<usize> = (0..shape.len()).filter(|axis| changes(*axis)).collect();
    if axes.is_empty() {
        return Ok(vec![x]);
    }
    let by_formula = match (sampling.interpolation, sampling.coordinates) {
        (Interpolation::Simple(mode), Coordinates::Plain(coordinates)) if !sampling.antialias => {
            Some((mode, coordinates))
        }
        _ => None,
    };
    let is_planar = matches!(axes[..], [_]) || (axes.len() == 2 && axes[0] + 2 == shape.len());
    let has_scales = axes.iter().all(|axis| target.scales[*axis].is_some());
    if let Some((mode, coordinates)) =
        by_formula.filter(|_| is_planar && has_scales && is_small_float(lowering.dtype(x)))
    {
        return Ok(vec![resize_plane(lowering, &call.name, x, mode, coordinates, &axes, target)?]);
    }
    let mut done = x;
    for axis in &axes {
        let name = format!("{}.axis{axis}", call.name);
        let line = shape[*axis].as_const().zip(target.sizes[*axis].as_const());
        let region = target.regions[*axis];
        let scale = target.scales[*axis].map(|scale| scale as f32);
        done = match (line, scale, by_formula) {
            (Some((from @ 1.., to)), Some(scale), _) => {
                let line = ResampledAxis { axis: *axis, scale, from: from as usize, to: to as usize, region };
                resample::along(lowering, &name, done, line, &sampling)?
            }
            (None, Some(_), Some((mode, coordinates))) if is_small_float(lowering.dtype(x)) => {
                resize_plane(lowering, &name, done, mode, coordinates, &[*axis], target)?
            }
            _ => {
                let line = SymbolicAxis { axis: *axis, scale, to: target.sizes[*axis].clone(), region };
                sampling::along(lowering, &name, done, &line, &sampling)?
            }
        };
    }
    Ok(vec![done])
}

/// Whether f32 coordinates and arithmetic are exact enough for the type.
fn is_small_float(dtype: DType) -> bool {
    is_float(dtype) && dtype != DType::F64
}

/// Whether every output size is exactly the scaled input size.
fn is_whole(shape: &[Expr], target: &Target) -> bool {
    shape.iter().zip(&target.sizes).zip(&target.scales).all(|((from, to), scale)| {
        match (from.as_const(), to.as_const(), scale) {
            (_, _, None) => true,
            (Some(from), Some(to), Some(scale)) => from as f32 * *scale as f32 == to as f32,
            (_, _, Some(scale)) => scale.fract() == 0.0 && same(&canonical(&(from.clone() * *scale as i64)), to),
        }
    })
}

/// Resizes one axis or the two innermost ones. The other dimensions are merged into planes, or into
/// columns.
fn resize_plane(
    lowering: &mut Lowering,
    name: &str,
    x: ValueId,
    mode: ResizeMode,
    coordinates: CoordinateMode,
    axes: &[usize],
    target: &Target,
) -> LowerResult<ValueId> {
    let shape = lowering.shape(x).to_vec();
    let mut result = shape.clone();
    axes.iter().for_each(|axis| result[*axis] = target.sizes[*axis].clone());
    let scale = |axis: usize| target.scales[axis].unwrap_or(1.0) as f32;
    let first = axes[0];
    let is_last = first + 1 == shape.len();
    let scales = match axes {
        [a, b] => [scale(*a), scale(*b)],
        _ if is_last => [1.0, scale(first)],
        _ => [scale(first), 1.0],
    };
    let planar = |shape: &[Expr]| {
        let batch = if first == 0 { Expr::Const(1) } else { shape[0].clone() };
        let channels = elements(&shape[first.min(1)..first]);
        match is_last {
            true => vec![batch, channels, Expr::Const(1), shape[first].clone()],
            false => vec![batch, channels, shape[first].clone(), elements(&shape[first + 1..])],
        }
    };
    let x = lowering.reshape(&format!("{name}.x"), x, planar(&shape))?;
    let op = Op::Resize(Resize { mode, coordinates, scales });
    let y = lowering.emit_one(name, op, &[x], lowering.dtype(x), planar(&result))?;
    lowering.reshape(&format!("{name}.y"), y, result)
}
