//! Resampling along one axis of symbolic size: each output element computes its own coordinate, and
//! the weights of the elements that it reads.

use super::super::error::{LowerError, LowerResult};
use super::super::lowering::Lowering;
use super::resample::{Coordinates, Interpolation, Sampling};
use crate::nest::{NestArg, NestBuilder};
use crate::size::elements;
use crate::tensor::is_float;
use crate::tensor_graph::{CoordinateMode, Op, PointOp, ResizeMode, ValueId};
use atoll_kgraph::{DType, Expr};

/// An axis that is resampled.
#[derive(Clone)]
pub(super) struct SymbolicAxis {
    pub(super) axis: usize,
    /// Scale (output / input); `None` means the quotient of the sizes.
    pub(super) scale: Option<f32>,
    pub(super) to: Expr,
    /// Start and end of the region, as fractions of the input.
    pub(super) region: [f32; 2],
}

/// The type of coordinates: f32, as in ONNX Runtime.
const COORDINATE: DType = DType::F32;

/// Resamples along one axis.
pub(super) fn along(
    lowering: &mut Lowering,
    name: &str,
    x: ValueId,
    line: &SymbolicAxis,
    sampling: &Sampling,
) -> LowerResult<ValueId> {
    let dtype = lowering.dtype(x);
    let nearest = match sampling.interpolation {
        Interpolation::Simple(ResizeMode::Linear) | Interpolation::Cubic { .. } => None,
        Interpolation::Simple(mode) => Some(mode),
    };
    if sampling.antialias && !is_float(dtype) {
        return Err(LowerError::Unsupported(format!(
            "antialias = 1 with elements of type {dtype:?}; only floats are averaged"
        )));
    }
    let ty = match dtype {
        DType::F64 => DType::F64,
        _ if nearest.is_some() => dtype,
        _ => DType::F32,
    };
    let wide = lowering.cast(&format!("{name}.wide"), x, ty)?;
    let mut shape = lowering.shape(x).to_vec();
    let from = shape[line.axis].clone();
    let [outer, inner] = [&shape[..line.axis], &shape[line.axis + 1..]].map(elements);
    let view = [outer.clone(), from.clone(), inner.clone()];
    let result = [outer, line.to.clone(), inner];
    shape[line.axis] = line.to.clone();
    let mut nest = NestBuilder::new("resample", result.to_vec());
    let point = nest.point();
    let axis = Axis::new(&mut nest, &from, line);
    let coordinate = axis.coordinate(&mut nest, &point[1], line, sampling.coordinates);
    let load = |nest: &mut NestBuilder, position: &NestArg| {
        let at = nest.offset(&view, &[point[0].clone(), position.clone(), point[2].clone()]);
        nest.load(0, ty, &at)
    };
    let mut value = match nearest {
        Some(mode) => {
            let position = axis.nearest(&mut nest, mode, &coordinate);
            load(&mut nest, &position)
        }
        None => axis.weighted(&mut nest, &coordinate, sampling, ty, load),
    };
    if sampling.coordinates == Coordinates::TfCropAndResize {
        let below = nest.compare(PointOp::Less, COORDINATE, &coordinate, &0.into());
        let above = nest.compare(PointOp::Greater, COORDINATE, &coordinate, &axis.last);
        let is_outside = nest.step(PointOp::Or, DType::Bool, &[below, above]);
        value = nest.select(ty, &is_outside, &NestArg::Const(sampling.extrapolation), &value);
    }
    let at = nest.offset(&result, &point);
    nest.store(0, &at, &value);
    let y = lowering.emit_one(name, Op::Nest(nest.finish()), &[wide], ty, shape)?;
    lowering.cast(&format!("{name}.y"), y, dtype)
}

/// The sizes of an axis, in the type of coordinates.
struct Axis {
    from: Expr,
    input: NestArg,
    output: NestArg,
    /// Scale (output / input).
    scale: NestArg,
    /// Last position of the input.
    last: NestArg,
}

fn step(nest: &mut NestBuilder, op: PointOp, a: &NestArg, b: &NestArg) -> NestArg {
    nest.step(op, COORDINATE, &[a.clone(), b.clone()])
}

impl Axis {
    fn new(nest: &mut NestBuilder, from: &Expr, line: &SymbolicAxis) -> Axis {
        let input = nest.cast(&NestArg::from(from), COORDINATE);
        let output = nest.cast(&NestArg::from(&line.to), COORDINATE);
        let scale = match line.scale {
            Some(scale) => NestArg::Const(scale.into()),
            None => step(nest, PointOp::Div, &output, &input),
        };
        let last = step(nest, PointOp::Sub, &input, &1.into());
        Axis { from: from.clone(), input, output, scale, last }
    }

    /// The input coordinate of an output position.
    fn coordinate(
        &self,
        nest: &mut NestBuilder,
        at: &NestArg,
        line: &SymbolicAxis,
        coordinates: Coordinates,
    ) -> NestArg {
        let at = nest.cast(at, COORDINATE);
        let half = NestArg::Const(0.5);
        let centred = |nest: &mut NestBuilder| {
            let centre = step(nest, PointOp::Add, &at, &half);
            step(nest, PointOp::Div, &centre, &self.scale)
        };
        let several = |nest: &mut NestBuilder, value: &NestArg, otherwise: &NestArg| {
            let is_one = nest.compare(PointOp::LessOrEqual, COORDINATE, &self.output, &1.into());
            nest.select(COORDINATE, &is_one, otherwise, value)
        };
        match coordinates {
            Coordinates::Plain(CoordinateMode::Asymmetric) => step(nest, PointOp::Div, &at, &self.scale),
            Coordinates::Plain(CoordinateMode::HalfPixel) => {
                let centre = centred(nest);
                step(nest, PointOp::Sub, &centre, &half)
            }
            Coordinates::Plain(CoordinateMode::PytorchHalfPixel) => {
                let centre = centred(nest);
                let value = step(nest, PointOp::Sub, &centre, &half);
                several(nest, &value, &0.into())
            }
            Coordinates::Plain(CoordinateMode::AlignCorners) => {
                let along = step(nest, PointOp::Mul, &at, &self.last);
                let steps = step(nest, PointOp::Sub, &self.output, &1.into());
                let value = step(nest, PointOp::Div, &along, &steps);
                several(nest, &value, &0.into())
            }
            Coordinates::HalfPixelSymmetric => {
                let wanted = step(nest, PointOp::Mul, &self.scale, &self.input);
                let adjustment = step(nest, PointOp::Div, &self.output, &wanted);
                let middle = step(nest, PointOp::Div, &self.input, &2.into());
                let rest = step(nest, PointOp::Sub, &1.into(), &adjustment);
                let offset = step(nest, PointOp::Mul, &middle, &rest);
                let centre = centred(nest);
                let sum = step(nest, PointOp::Add, &offset, &centre);
                step(nest, PointOp::Sub, &sum, &half)
            }
            Coordinates::TfCropAndResize => {
                let [start, end] = line.region.map(|part| NestArg::Const(part.into()));
                let first = step(nest, PointOp::Mul, &start, &self.last);
                let width = NestArg::Const(f64::from(line.region[1] - line.region[0]));
                let along = step(nest, PointOp::Mul, &at, &width);
                let along = step(nest, PointOp::Mul, &along, &self.last);
                let steps = step(nest, PointOp::Sub, &self.output, &1.into());
                let along = step(nest, PointOp::Div, &along, &steps);
                let value = step(nest, PointOp::Add, &first, &along);
                let sum = step(nest, PointOp::Add, &start, &end);
                let middle = step(nest, PointOp::Mul, &sum, &half);
                let middle = step(nest, PointOp::Mul, &middle, &self.last);
                several(nest, &value, &middle)
            }
        }
    }

    /// The position nearest to a coordinate, inside the input.
    fn nearest(&self, nest: &mut NestBuilder, mode: ResizeMode, coordinate: &NestArg) -> NestArg {
        let half = NestArg::Const(0.5);
        let (value, op) = match mode {
            ResizeMode::NearestCeil => (coordinate.clone(), PointOp::Ceil),
            ResizeMode::NearestRoundPreferFloor => (step(nest, PointOp::Sub, coordinate, &half), PointOp::Ceil),
            ResizeMode::NearestRoundPreferCeil => (step(nest, PointOp::Add, coordinate, &half), PointOp::Floor),
            ResizeMode::NearestFloor | ResizeMode::Linear => (coordinate.clone(), PointOp::Floor),
        };
        let whole = nest.step(op, COORDINATE, &[value]);
        let inside = nest.step(PointOp::Clip, COORDINATE, &[whole, 0.into(), self.last.clone()]);
        nest.cast(&inside, DType::I32)
    }

    /// The weighted mean of the elements around a coordinate. Elements outside the input are
    /// clamped to the edge, or have weight 0. Antialiasing stretches the kernel.
    fn weighted(
        &self,
        nest: &mut NestBuilder,
        coordinate: &NestArg,
        sampling: &Sampling,
        ty: DType,
        load: impl Fn(&mut NestBuilder, &NestArg) -> NestArg,
    ) -> NestArg {
        let reach = if matches!(sampling.interpolation, Interpolation::Cubic { .. }) { 2 } else { 1 };
        let stretch = sampling.antialias.then(|| step(nest, PointOp::Min, &self.scale, &1.into()));
        let reach = match &stretch {
            Some(stretch) => {
                let reach = step(nest, PointOp::Div, &reach.into(), stretch);
                let reach = nest.step(PointOp::Ceil, COORDINATE, &[reach]);
                nest.cast(&reach, DType::I32)
            }
            None => NestArg::from(reach),
        };
        let floor = nest.step(PointOp::Floor, COORDINATE, std::slice::from_ref(coordinate));
        let part = step(nest, PointOp::Sub, coordinate, &floor);
        let base = nest.cast(&floor, DType::I32);
        let last = nest.sub(&NestArg::from(&self.from), &1.into());
        let (sum, total) = (nest.variable(ty, &NestArg::Const(0.0)), nest.variable(ty, &NestArg::Const(0.0)));
        let (first, end) = (nest.sub(&1.into(), &reach), nest.add(&reach, &1.into()));
        nest.count(&first, &end, |nest, tap| {
            let position = nest.add(&base, tap);
            let distance = nest.cast(tap, COORDINATE);
            let distance = step(nest, PointOp::Sub, &distance, &part);
            let distance = match &stretch {
                Some(stretch) => step(nest, PointOp::Mul, &distance, stretch),
                None => distance,
            };
            let distance = nest.step(PointOp::Abs, COORDINATE, &[distance]);
            let distance = if ty == COORDINATE { distance } else { nest.cast(&distance, ty) };
            let mut weight = kernel(nest, sampling.interpolation, ty, &distance);
            if sampling.exclude_outside {
                let is_inside = nest.inside(&position, &NestArg::from(&self.from));
                weight = nest.select(ty, &is_inside, &weight, &NestArg::Const(0.0));
            }
            let inside = nest.step(PointOp::Clip, DType::I32, &[position, 0.into(), last.clone()]);
            let value = load(nest, &inside);
            let product = nest.step(PointOp::Mul, ty, &[value, weight.clone()]);
            nest.accumulate(&sum, PointOp::Add, &product);
            nest.accumulate(&total, PointOp::Add, &weight);
        });
        nest.step(PointOp::Div, ty, &[sum, total])
    }
}

/// The kernel's weight at distance `x`.
fn kernel(nest: &mut NestBuilder, interpolation: Interpolation, ty: DType, x: &NestArg) -> NestArg {
    let horner = |nest: &mut NestBuilder, coefficients: [f64; 4]| {
        let [first, rest @ ..] = coefficients;
        rest.into_iter().fold(NestArg::Const(first), |sum, coefficient| {
            let product = nest.step(PointOp::Mul, ty, &[sum, x.clone()]);
            nest.step(PointOp::Add, ty, &[product, NestArg::Const(coefficient)])
        })
    };
    match interpolation {
        Interpolation::Simple(_) => {
            let rest = nest.step(PointOp::Sub, ty, &[NestArg::Const(1.0), x.clone()]);
            nest.step(PointOp::Max, ty, &[rest, NestArg::Const(0.0)])
        }
        Interpolation::Cubic { a } => {
            let near = horner(nest, [a + 2.0, -(a + 3.0), 0.0, 1.0]);
            let far = horner(nest, [a, -5.0 * a, 8.0 * a, -4.0 * a]);
            let is_near = nest.compare(PointOp::LessOrEqual, ty, x, &1.into());
            let is_far = nest.compare(PointOp::Less, ty, x, &2.into());
            let far = nest.select(ty, &is_far, &far, &NestArg::Const(0.0));
            nest.select(ty, &is_near, &near, &far)
        }
    }
}
