//! Resampling along one axis of known size by a table: for each output position, the input
//! positions that it reads and their weights.

use super::super::error::{LowerError, LowerResult};
use super::super::lowering::Lowering;
use crate::nest::{NestArg, NestBuilder};
use crate::resample;
use crate::size::elements;
use crate::tensor::{Tensor, is_float};
use crate::tensor_graph::{CoordinateMode, Op, PointOp, ResizeMode, ValueId};
use atoll_kgraph::{DType, Expr};

/// How a value between positions is interpolated.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Interpolation {
    /// Nearest position, or linear between two.
    Simple(ResizeMode),
    /// A cubic polynomial through four positions.
    Cubic {
        /// ONNX's `cubic_coeff_a`.
        a: f64,
    },
}

/// How an output position maps to an input coordinate.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Coordinates {
    Plain(CoordinateMode),
    HalfPixelSymmetric,
    /// Maps to a region of the input, given per axis.
    TfCropAndResize,
}

/// Settings that apply to all axes.
#[derive(Clone, Copy)]
pub(super) struct Sampling {
    pub(super) interpolation: Interpolation,
    pub(super) coordinates: Coordinates,
    /// Whether downsampling averages over the skipped positions.
    pub(super) antialias: bool,
    /// Whether positions outside the input have weight 0, instead of the value at the edge.
    pub(super) exclude_outside: bool,
    /// The value outside the input, for regions that extend beyond it.
    pub(super) extrapolation: f64,
}

/// An axis that is resampled.
#[derive(Clone, Copy)]
pub(super) struct ResampledAxis {
    pub(super) axis: usize,
    /// Scale (output / input), as in the model.
    pub(super) scale: f32,
    pub(super) from: usize,
    pub(super) to: usize,
    /// Start and end of the region, as fractions of the input.
    pub(super) region: [f32; 2],
}

/// Resamples along one axis.
pub(super) fn along(
    lowering: &mut Lowering,
    name: &str,
    x: ValueId,
    line: ResampledAxis,
    sampling: &Sampling,
) -> LowerResult<ValueId> {
    let rows: Vec<Vec<(usize, f64)>> = (0..line.to).map(|at| line.row(sampling, at)).collect();
    let outside: Vec<bool> = (0..line.to).map(|at| line.is_outside(sampling, at)).collect();
    if let (Interpolation::Simple(mode), false) = (sampling.interpolation, outside.contains(&true))
        && mode != ResizeMode::Linear
    {
        return gather(lowering, name, x, line, &rows);
    }
    let dtype = lowering.dtype(x);
    if sampling.antialias && !is_float(dtype) {
        return Err(LowerError::Unsupported(format!(
            "antialias = 1 with elements of type {dtype:?}; only floats are averaged"
        )));
    }
    let ty = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let wide = lowering.cast(&format!("{name}.wide"), x, ty)?;
    let y = weighted(
        lowering,
        name,
        wide,
        line,
        &rows,
        outside.contains(&true).then_some((&outside, sampling.extrapolation)),
    )?;
    lowering.cast(&format!("{name}.y"), y, dtype)
}

impl ResampledAxis {
    fn coordinate(&self, sampling: &Sampling, at: usize) -> f32 {
        let (from, to) = (self.from as f32, self.to as f32);
        match sampling.coordinates {
            Coordinates::Plain(mode) => resample::coordinate(mode, self.scale, at, self.from, self.to),
            Coordinates::HalfPixelSymmetric => {
                // The output size is not exactly the scaled one; its centre stays that of the
                // input.
                let adjustment = to / (self.scale * from);
                let offset = from / 2.0 * (1.0 - adjustment);
                offset + (at as f32 + 0.5) / self.scale - 0.5
            }
            Coordinates::TfCropAndResize => {
                let [start, end] = self.region;
                match self.to {
                    0 | 1 => 0.5 * (start + end) * (from - 1.0),
                    _ => start * (from - 1.0) + at as f32 * (end - start) * (from - 1.0) / (to - 1.0),
                }
            }
        }
    }

    fn is_outside(&self, sampling: &Sampling, at: usize) -> bool {
        let coordinate = self.coordinate(sampling, at);
        sampling.coordinates == Coordinates::TfCropAndResize && !(0.0..=self.from as f32 - 1.0).contains(&coordinate)
    }

    /// The positions inside the input that an output position reads, with their weights.
    fn row(&self, sampling: &Sampling, at: usize) -> Vec<(usize, f64)> {
        let coordinate = self.coordinate(sampling, at);
        let taps = match sampling.interpolation {
            Interpolation::Simple(ResizeMode::Linear) => self.taps(sampling, coordinate, 1, &|x| (1.0 - x).max(0.0)),
            Interpolation::Simple(mode) => return resample::neighbours(mode, coordinate, self.from),
            Interpolation::Cubic { a } => self.taps(sampling, coordinate, 2, &|x| cubic(a, x)),
        };
        let is_inside = |position: &i64| (0..self.from as i64).contains(position);
        let counted = |position: &i64| !sampling.exclude_outside || is_inside(position);
        let total: f64 = taps.iter().filter(|(position, _)| counted(position)).map(|(_, weight)| weight).sum();
        let weight = |position: &i64, weight: f64| if counted(position) { weight / total } else { 0.0 };
        taps.iter()
            .map(|(position, w)| ((*position).clamp(0, self.from as i64 - 1) as usize, weight(position, *w)))
            .collect()
    }

    /// The positions within `reach` of a coordinate, with their weights by the kernel. Antialiasing
    /// stretches the kernel.
    fn taps(&self, sampling: &Sampling, coordinate: f32, reach: i64, kernel: &dyn Fn(f64) -> f64) -> Vec<(i64, f64)> {
        let stretch = if sampling.antialias { f64::from(self.scale).min(1.0) } else { 1.0 };
        let reach = (reach as f64 / stretch).ceil() as i64;
        let floor = f64::from(coordinate).floor();
        let part = f64::from(coordinate) - floor;
        (1 - reach..=reach).map(|tap| (floor as i64 + tap, kernel(((tap as f64 - part) * stretch).abs()))).collect()
    }
}

/// Keys' cubic convolution kernel at distance `x`.
fn cubic(a: f64, x: f64) -> f64 {
    match x {
        ..=1.0 => ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0,
        ..2.0 => ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a,
        _ => 0.0,
    }
}

/// Each output position reads one input position, so nothing is computed and any type works.
fn gather(
    lowering: &mut Lowering,
    name: &str,
    x: ValueId,
    line: ResampledAxis,
    rows: &[Vec<(usize, f64)>],
) -> LowerResult<ValueId> {
    let positions = rows.iter().filter_map(|row| row.first()).map(|(position, _)| *position as i64);
    let positions =
        lowering.constant(&format!("{name}.positions"), &Tensor::ints(DType::I64, vec![line.to], positions));
    let mut shape = lowering.shape(x).to_vec();
    shape[line.axis] = Expr::Const(line.to as i64);
    lowering.emit_one(name, Op::Gather { axis: line.axis }, &[x, positions], lowering.dtype(x), shape)
}

/// Sums of weighted elements; positions in `outside` have a fixed value instead.
fn weighted(
    lowering: &mut Lowering,
    name: &str,
    x: ValueId,
    line: ResampledAxis,
    rows: &[Vec<(usize, f64)>],
    outside: Option<(&Vec<bool>, f64)>,
) -> LowerResult<ValueId> {
    let ty = lowering.dtype(x);
    let mut shape = lowering.shape(x).to_vec();
    let [outer, inner] = [&shape[..line.axis], &shape[line.axis + 1..]].map(elements);
    let view = [outer.clone(), Expr::Const(line.from as i64), inner.clone()];
    let result = [outer, Expr::Const(line.to as i64), inner];
    shape[line.axis] = Expr::Const(line.to as i64);

    let taps = rows.iter().map(Vec::len).max().unwrap_or(0);
    let entries = || rows.iter().flat_map(|row| (0..taps).map(|tap| row.get(tap).copied().unwrap_or((0, 0.0))));
    let positions = Tensor::ints(DType::I32, vec![line.to, taps], entries().map(|(position, _)| position as i64));
    let weights = Tensor::floats(ty, vec![line.to, taps], entries().map(|(_, weight)| weight));
    let mut operands = vec![
        x,
        lowering.constant(&format!("{name}.positions"), &positions),
        lowering.constant(&format!("{name}.weights"), &weights),
    ];

    let mut nest = NestBuilder::new("resample", result.to_vec());
    let point = nest.point();
    let first = nest.mul(&point[1], &NestArg::from(taps as i64));
    let sum = nest.variable(ty, &NestArg::Const(0.0));
    nest.count(&0.into(), &NestArg::from(taps as i64), |nest, tap| {
        let entry = nest.add(&first, tap);
        let position = nest.load(1, DType::I32, &entry);
        let weight = nest.load(2, ty, &entry);
        let at = nest.offset(&view, &[point[0].clone(), position, point[2].clone()]);
        let value = nest.load(0, ty, &at);
        let product = nest.step(PointOp::Mul, ty, &[value, weight]);
        nest.accumulate(&sum, PointOp::Add, &product);
    });
    let mut value = sum;
    if let Some((outside, extrapolation)) = outside {
        let outside = Tensor::ints(DType::Bool, vec![line.to], outside.iter().map(|outside| i64::from(*outside)));
        operands.push(lowering.constant(&format!("{name}.outside"), &outside));
        let is_outside = nest.load(3, DType::Bool, &point[1]);
        value = nest.select(ty, &is_outside, &NestArg::Const(extrapolation), &value);
    }
    let at = nest.offset(&result, &point);
    nest.store(0, &at, &value);
    lowering.emit_one(name, Op::Nest(nest.finish()), &operands, ty, shape)
}
