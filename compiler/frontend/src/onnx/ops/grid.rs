//! `GridSample` and `AffineGrid`: sampling at the points of a grid, and the grid of an affine
//! transformation.

use super::super::call::Call;
use super::super::error::{LowerResult, invalid, unsupported};
use super::super::lowering::Lowering;
use super::real::{Real, index_clamp, number};
use crate::nest::{NestArg, NestBuilder};
use crate::tensor::{Tensor, is_float};
use crate::tensor_graph::{Op, PointOp, Reduce, ReduceKind, ValueId};
use atoll_kgraph::{DType, Expr};

type Results = LowerResult<Vec<ValueId>>;

/// Largest number of spatial dimensions.
const SPATIAL_MAX: usize = 3;
/// A distance outside the image that no tap reaches across. Coordinates are clamped to it, so that
/// they fit into indices.
const FAR_OUTSIDE: f64 = 8.0;

#[derive(Clone, Copy, PartialEq)]
enum Mode {
    Nearest,
    Linear,
    Cubic,
}

#[derive(Clone, Copy, PartialEq)]
enum Padding {
    Zeros,
    Border,
    Reflection,
}

/// The position and weight of a tap along one axis.
struct Tap {
    position: NestArg,
    /// `None` means 1.
    weight: Option<NestArg>,
    /// Whether the position is in the image; `None` means always.
    inside: Option<NestArg>,
}

/// One spatial axis of the image.
struct Axis {
    extent: NestArg,
    mode: Mode,
    padding: Padding,
    align_corners: bool,
    real: Real,
}

/// Operands `x [N, C, spatial…]` and `grid [N, output…, coordinates]`. Coordinates range from -1 to
/// 1, that of the innermost axis first.
pub(super) fn grid_sample(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let (x, grid) = (call.input(0)?, call.input(1)?);
    let (image, points) = (lowering.shape(x).to_vec(), lowering.shape(grid).to_vec());
    let spatial = image.len().saturating_sub(2);
    if !(1..=SPATIAL_MAX).contains(&spatial) || points.len() != spatial + 2 {
        return invalid(format!("its image has {} dimensions and its grid {}", image.len(), points.len()));
    }
    lowering.equal_dims(points[spatial + 1].clone(), Expr::Const(spatial as i64))?;
    let mode = match call.string("mode", "linear")?.as_str() {
        "nearest" => Mode::Nearest,
        "linear" | "bilinear" => Mode::Linear,
        "cubic" | "bicubic" => Mode::Cubic,
        other => return invalid(format!("its attribute mode is {other:?}, which ONNX does not define")),
    };
    let padding = match call.string("padding_mode", "zeros")?.as_str() {
        "zeros" => Padding::Zeros,
        "border" => Padding::Border,
        "reflection" => Padding::Reflection,
        other => return invalid(format!("its attribute padding_mode is {other:?}, which ONNX does not define")),
    };
    let dtype = lowering.dtype(x);
    let real = Real::of(if is_float(dtype) { dtype } else { lowering.dtype(grid) });
    // Nearest sampling copies elements, so it works in any type.
    let held = if mode == Mode::Nearest { dtype } else { real.0 };
    if mode != Mode::Nearest && !is_float(dtype) {
        return unsupported(format!("interpolation of elements of type {dtype:?}; only floats are interpolated"));
    }
    let operands = [
        lowering.cast(&format!("{}.wide", call.name), x, held)?,
        real.wide(lowering, &format!("{}.grid", call.name), grid)?,
    ];
    let align_corners = call.flag("align_corners", false)?;
    let axes: Vec<Axis> =
        image[2..].iter().map(|dim| Axis { extent: NestArg::from(dim), mode, padding, align_corners, real }).collect();

    let mut nest = NestBuilder::new("grid_sample", points[..=spatial].to_vec());
    nest.by_rows(2);
    let point = nest.point();
    let first = nest.offset(&points, &[&point[..], &[0.into()]].concat());
    let mut taps = Vec::with_capacity(spatial);
    for (i, axis) in axes.iter().enumerate() {
        let at = nest.add(&first, &((spatial - 1 - i) as i64).into());
        let normalised = nest.load(1, real.0, &at);
        taps.push(axis.taps(&mut nest, &normalised));
    }
    let result: Vec<Expr> = [&image[..2], &points[1..=spatial]].concat();
    nest.count(&0.into(), &NestArg::from(&image[1]), |nest, channel| {
        let plane = [point[0].clone(), channel.clone()];
        let value = sample(nest, real, held, &image, &plane, &taps);
        let at = nest.offset(&result, &[&plane[..], &point[1..]].concat());
        nest.store(0, &at, &value);
    });
    let y = lowering.emit_one(&call.name, Op::Nest(nest.finish()), &operands, held, result)?;
    Ok(vec![lowering.cast(&format!("{}.y", call.name), y, dtype)?])
}

/// The weighted sum over the taps of all axes.
fn sample(
    nest: &mut NestBuilder,
    real: Real,
    held: DType,
    image: &[Expr],
    plane: &[NestArg],
    taps: &[Vec<Tap>],
) -> NestArg {
    let mut total: Option<NestArg> = None;
    let combinations: usize = taps.iter().map(Vec::len).product();
    for mut number in 0..combinations {
        let (mut indices, mut weight, mut inside) = (plane.to_vec(), None, None);
        for of_axis in taps.iter().rev() {
            let tap = &of_axis[number % of_axis.len()];
            number /= of_axis.len();
            indices.insert(plane.len(), tap.position.clone());
            weight = product(nest, |nest, a, b| real.mul(nest, a, b), weight, tap.weight.as_ref());
            inside = product(nest, NestBuilder::both, inside, tap.inside.as_ref());
        }
        let at = nest.offset(image, &indices);
        let mut value = nest.load(0, held, &at);
        if let Some(inside) = inside {
            value = nest.select(held, &inside, &value, &NestArg::Const(0.0));
        }
        if let Some(weight) = weight {
            value = real.mul(nest, &value, &weight);
        }
        total = Some(total.map_or(value.clone(), |total| real.add(nest, &total, &value)));
    }
    total.unwrap_or(NestArg::Const(0.0))
}

/// The conjunction or product of two optional values.
fn product(
    nest: &mut NestBuilder,
    join: impl FnOnce(&mut NestBuilder, &NestArg, &NestArg) -> NestArg,
    a: Option<NestArg>,
    b: Option<&NestArg>,
) -> Option<NestArg> {
    match (a, b) {
        (Some(a), Some(b)) => Some(join(nest, &a, b)),
        (a, b) => a.or_else(|| b.cloned()),
    }
}

impl Axis {
    fn taps(&self, nest: &mut NestBuilder, normalised: &NestArg) -> Vec<Tap> {
        let real = self.real;
        let x = self.denormalised(nest, normalised);
        let x = if self.mode == Mode::Nearest { real.step(nest, PointOp::Round, &[&x]) } else { x };
        let x = self.padded_position(nest, &x);
        let extent = real.of_index(nest, &self.extent);
        let far = real.add(nest, &extent, &number(FAR_OUTSIDE));
        let x = real.clamp(nest, &x, &number(-FAR_OUTSIDE), &far);
        let floor = real.floor(nest, &x);
        let part = real.sub(nest, &x, &floor);
        let first = real.to_index(nest, &floor);
        let (range, weights) = match self.mode {
            Mode::Nearest => (0..1, vec![None]),
            Mode::Linear => {
                let rest = real.sub(nest, &number(1.0), &part);
                (0..2, vec![Some(rest), Some(part)])
            }
            Mode::Cubic => (-1..3, cubic_weights(nest, real, &part).into_iter().map(Some).collect()),
        };
        range.zip(weights).map(|(step, weight)| self.tap(nest, &first, step, weight)).collect()
    }

    /// Maps a coordinate in -1..1 to a position.
    fn denormalised(&self, nest: &mut NestBuilder, x: &NestArg) -> NestArg {
        let real = self.real;
        let extent = real.of_index(nest, &self.extent);
        let moved = real.add(nest, x, &number(1.0));
        if self.align_corners {
            let last = real.sub(nest, &extent, &number(1.0));
            let half = real.div(nest, &moved, &number(2.0));
            return real.mul(nest, &half, &last);
        }
        let scaled = real.mul(nest, &moved, &extent);
        let scaled = real.sub(nest, &scaled, &number(1.0));
        real.div(nest, &scaled, &number(2.0))
    }

    /// The first and the last position of the image; without `align_corners`, half an element
    /// further out.
    fn borders(&self, nest: &mut NestBuilder) -> (NestArg, NestArg) {
        let extent = self.real.of_index(nest, &self.extent);
        let out = if self.align_corners { 0.0 } else { 0.5 };
        (number(-out), self.real.sub(nest, &extent, &number(1.0 - out)))
    }

    /// Applies the padding mode to a position outside the borders.
    fn padded_position(&self, nest: &mut NestBuilder, x: &NestArg) -> NestArg {
        let real = self.real;
        match self.padding {
            Padding::Zeros => x.clone(),
            // Cubic interpolation clamps its four positions separately instead, as ONNX Runtime and
            // PyTorch do.
            Padding::Border if self.mode == Mode::Cubic => x.clone(),
            Padding::Reflection => self.reflected(nest, x),
            Padding::Border => {
                let (low, high) = self.borders(nest);
                let extent = real.of_index(nest, &self.extent);
                let last = real.sub(nest, &extent, &number(1.0));
                let clamped = real.clamp(nest, x, &number(0.0), &last);
                let (below, above) = (real.less(nest, x, &low), real.less(nest, &high, x));
                let is_outside = nest.step(PointOp::Or, DType::Bool, &[below, above]);
                real.select(nest, &is_outside, &clamped, x)
            }
        }
    }

    /// Mirrors a position at the borders, repeatedly if necessary.
    fn reflected(&self, nest: &mut NestBuilder, x: &NestArg) -> NestArg {
        let real = self.real;
        let (low, high) = self.borders(nest);
        let range = real.sub(nest, &high, &low);
        // With a single element the borders coincide; a range of 1 avoids a division by zero.
        let range = real.max(nest, &range, &number(1.0));
        let is_below = real.less(nest, x, &low);
        let is_above = real.less(nest, &high, x);
        let (under, over) = (real.sub(nest, &low, x), real.sub(nest, x, &high));
        let distance = real.select(nest, &is_below, &under, &over);
        let quotient = real.div(nest, &distance, &range);
        let turns = real.floor(nest, &quotient);
        let whole = real.mul(nest, &turns, &range);
        let rest = real.sub(nest, &distance, &whole);
        let half = real.mul(nest, &turns, &number(0.5));
        let half_floor = real.floor(nest, &half);
        let is_even = nest.compare(PointOp::Equal, real.0, &half, &half_floor);
        // Measured from the lower border after an even number of reflections below it, or an odd
        // number above it.
        let from_low = nest.step(PointOp::Equal, DType::Bool, &[is_even, is_below.clone()]);
        let (up, down) = (real.add(nest, &low, &rest), real.sub(nest, &high, &rest));
        let mirrored = real.select(nest, &from_low, &up, &down);
        let is_outside = nest.step(PointOp::Or, DType::Bool, &[is_below, is_above]);
        real.select(nest, &is_outside, &mirrored, x)
    }

    fn tap(&self, nest: &mut NestBuilder, first: &NestArg, step: i64, weight: Option<NestArg>) -> Tap {
        let at = nest.add(first, &step.into());
        let inside = (self.padding == Padding::Zeros).then(|| nest.inside(&at, &self.extent));
        let at = if self.padding == Padding::Reflection {
            let x = self.real.of_index(nest, &at);
            let x = self.reflected(nest, &x);
            self.real.to_index(nest, &x)
        } else {
            at
        };
        Tap { position: index_clamp(nest, &at, &self.extent), weight, inside }
    }
}

/// Keys' cubic convolution weights of the four positions around a fraction, with a = -0.75.
fn cubic_weights(nest: &mut NestBuilder, real: Real, part: &NestArg) -> [NestArg; 4] {
    const A: f64 = -0.75;
    let polynomial = |nest: &mut NestBuilder, x: &NestArg, coefficients: [f64; 4]| {
        let mut value = number(coefficients[0]);
        for coefficient in &coefficients[1..] {
            let raised = real.mul(nest, &value, x);
            value = real.add(nest, &raised, &number(*coefficient));
        }
        value
    };
    let (near, far) = ([A + 2.0, -(A + 3.0), 0.0, 1.0], [A, -5.0 * A, 8.0 * A, -4.0 * A]);
    let rest = real.sub(nest, &number(1.0), part);
    let (beyond, behind) = (real.add(nest, part, &number(1.0)), real.add(nest, &rest, &number(1.0)));
    [
        polynomial(nest, &beyond, far),
        polynomial(nest, part, near),
        polynomial(nest, &rest, near),
        polynomial(nest, &behind, far),
    ]
}

/// Operands `theta [N, d, d + 1]` and the size `[N, C, spatial…]` of the image. The result is the
/// grid `[N, spatial…, d]`.
pub(super) fn affine_grid(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let theta = call.input(0)?;
    let size = lowering.require_ints(call.input(1)?, "size")?;
    let spatial = size.len().saturating_sub(2);
    let (ty, shape) = (lowering.dtype(theta), lowering.shape(theta).to_vec());
    let expected = [spatial as i64, spatial as i64 + 1].map(Expr::Const);
    if !(2..=SPATIAL_MAX).contains(&spatial) || shape.len() != 3 || size[2..].iter().any(|d| *d < 0) {
        return invalid(format!(
            "its transformation has shape {} and its image size {size:?}",
            lowering.shape_text(&shape)
        ));
    }
    for (dim, number) in shape[1..].iter().zip(&expected) {
        lowering.equal_dims(dim.clone(), number.clone())?;
    }
    let points: i64 = size[2..].iter().product();
    if points.checked_mul(spatial as i64 + 1).is_none_or(|count| count > i64::from(i32::MAX)) {
        return invalid(format!("its image size is {size:?}"));
    }
    let base = base_grid(&size[2..], call.flag("align_corners", false)?);
    let base = Tensor::floats(ty, vec![1, points as usize, 1, spatial + 1], base);
    let base = lowering.constant(&format!("{}.base", call.name), &base);
    let [rows, columns] = expected;
    let lines = lowering.reshape(
        &format!("{}.theta", call.name),
        theta,
        vec![shape[0].clone(), Expr::Const(1), rows.clone(), columns],
    )?;
    let products = lowering.pointwise(&format!("{}.products", call.name), &[lines, base], ty, |p, x| {
        p.step(PointOp::Mul, ty, x);
    })?;
    let sum = Op::Reduce(Reduce { kind: ReduceKind::Sum, axes: vec![3], keep_dims: false });
    let flat = vec![shape[0].clone(), Expr::Const(points), rows.clone()];
    let grid = lowering.emit_one(&format!("{}.sum", call.name), sum, &[products], ty, flat)?;
    let result =
        [shape[0].clone()].into_iter().chain(size[2..].iter().map(|d| Expr::Const(*d))).chain([rows]).collect();
    Ok(vec![lowering.reshape(&call.name, grid, result)?])
}

/// The coordinates of every element in -1..1, that of the innermost axis first, followed by a 1.
fn base_grid(extents: &[i64], align_corners: bool) -> Vec<f64> {
    let along = |extent: i64, at: i64| match (align_corners, extent) {
        (true, ..=1) => 0.0,
        (true, _) => 2.0 * at as f64 / (extent - 1) as f64 - 1.0,
        (false, _) => (2 * at + 1) as f64 / extent as f64 - 1.0,
    };
    let count: i64 = extents.iter().product();
    let mut values = Vec::with_capacity(count as usize * (extents.len() + 1));
    for point in 0..count {
        let mut rest = point;
        for extent in extents.iter().rev() {
            values.push(along(*extent, rest % extent));
            rest /= extent;
        }
        values.push(1.0);
    }
    values
}
