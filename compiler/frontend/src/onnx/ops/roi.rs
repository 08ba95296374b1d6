//! Region pooling: a box in the image becomes an output of fixed size.

use super::super::call::Call;
use super::super::error::{LowerResult, invalid};
use super::super::lowering::Lowering;
use super::real::{Real, index_clamp, index_max, index_min, number};
use crate::nest::{NestArg, NestBuilder};
use crate::tensor::is_float;
use crate::tensor_graph::{Op, PointOp, ValueId};
use atoll_kgraph::{DType, Expr};

type Results = LowerResult<Vec<ValueId>>;

/// Largest number of samples per bin and axis when it depends on the size of the region. Real
/// models use fewer; the limit bounds hostile inputs.
const SAMPLES_MAX: i64 = 4096;

/// Shapes of the image, the regions and the result, for both operators.
struct Regions {
    image: Vec<Expr>,
    regions: Vec<Expr>,
    result: Vec<Expr>,
    real: Real,
    scale: f64,
}

impl Regions {
    fn read(lowering: &Lowering, call: &Call<'_>, pooled: [i64; 2], columns: i64) -> LowerResult<Regions> {
        let (x, rois) = (call.input(0)?, call.input(1)?);
        let (image, regions) = (lowering.shape(x).to_vec(), lowering.shape(rois).to_vec());
        let dtype = lowering.dtype(x);
        if image.len() != 4 || regions.len() != 2 || !is_float(dtype) {
            return invalid(format!(
                "its image has {} dimensions of type {dtype:?}, and its regions have {} dimensions",
                image.len(),
                regions.len()
            ));
        }
        lowering.equal_dims(regions[1].clone(), columns.into())?;
        if pooled.iter().any(|size| !(1..=1 << 16).contains(size)) {
            return invalid(format!("its output size is {pooled:?}"));
        }
        let result = vec![regions[0].clone(), image[1].clone(), Expr::Const(pooled[0]), Expr::Const(pooled[1])];
        Ok(Regions { image, regions, result, real: Real::of(dtype), scale: call.float("spatial_scale", 1.0)?.into() })
    }

    /// Loads a number of the point's region.
    fn load(&self, nest: &mut NestBuilder, region: &NestArg, column: i64) -> NestArg {
        let at = nest.offset(&self.regions, &[region.clone(), column.into()]);
        nest.load(1, self.real.0, &at)
    }
}

/// Operands `x [N, C, H, W]`, `rois [R, 4]` (x1, y1, x2, y2) and `batch_indices [R]`. Each bin is
/// the mean or the maximum of interpolated samples.
pub(super) fn roi_align(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let pooled = [call.int("output_height", 1)?, call.int("output_width", 1)?];
    let regions = Regions::read(lowering, call, pooled, 4)?;
    let batches = call.input(2)?;
    let index_type = lowering.dtype(batches);
    if lowering.shape(batches) != &regions.regions[..1] || !matches!(index_type, DType::I32 | DType::I64) {
        return invalid(format!(
            "its batch indices have type {index_type:?} and {} dimensions",
            lowering.rank(batches)
        ));
    }
    let default = if call.opset < 16 { "output_half_pixel" } else { "half_pixel" };
    let half_pixel = match call.string("coordinate_transformation_mode", default)?.as_str() {
        "half_pixel" => true,
        "output_half_pixel" => false,
        other => {
            return invalid(format!(
                "its attribute coordinate_transformation_mode is {other:?}, which ONNX does not define"
            ));
        }
    };
    let is_max = match call.string("mode", "avg")?.as_str() {
        "avg" => false,
        "max" => true,
        other => return invalid(format!("its attribute mode is {other:?}, which ONNX does not define")),
    };
    let sampling_ratio = call.int("sampling_ratio", 0)?.clamp(0, SAMPLES_MAX);

    let real = regions.real;
    let (x, rois) = (call.input(0)?, call.input(1)?);
    let operands =
        [real.wide(lowering, &call.name, x)?, real.wide(lowering, &format!("{}.rois", call.name), rois)?, batches];
    let mut nest = NestBuilder::new("roi_align", regions.result.clone());
    let point = nest.point();
    let batch = nest.load(2, index_type, &point[0]);
    let batch = nest.cast(&batch, DType::I32);
    let batch = index_clamp(&mut nest, &batch, &NestArg::from(&regions.image[0]));
    let plane = [batch, point[1].clone()];
    let bins = [0, 1].map(|axis| {
        let bounds = [1 - axis, 3 - axis].map(|column| regions.load(&mut nest, &point[0], column as i64));
        Bin::new(&mut nest, &regions, bounds, &point[2 + axis], pooled[axis], sampling_ratio, half_pixel)
    });
    let first = if is_max { f64::NEG_INFINITY } else { 0.0 };
    let total = nest.variable(real.0, &number(first));
    nest.count(&0.into(), &bins[0].samples, |nest, row| {
        nest.count(&0.into(), &bins[1].samples, |nest, column| {
            let [y, x] = [bins[0].sample(nest, real, row), bins[1].sample(nest, real, column)];
            let value = regions.sampled(nest, &plane, [y, x], is_max);
            nest.accumulate(&total, if is_max { PointOp::Max } else { PointOp::Add }, &value);
        });
    });
    let value = if is_max {
        // A bin without samples is 0.
        let samples = nest.mul(&bins[0].samples, &bins[1].samples);
        let is_empty = nest.compare(PointOp::Less, DType::I32, &samples, &1.into());
        real.select(&mut nest, &is_empty, &number(0.0), &total)
    } else {
        let [rows, columns] = bins.each_ref().map(|bin| real.of_index(&mut nest, &bin.samples));
        let count = real.mul(&mut nest, &rows, &columns);
        let count = real.max(&mut nest, &count, &number(1.0));
        real.div(&mut nest, &total, &count)
    };
    let at = nest.offset(&regions.result, &point);
    nest.store(0, &at, &value);
    let y = lowering.emit_one(&call.name, Op::Nest(nest.finish()), &operands, real.0, regions.result)?;
    let dtype = lowering.dtype(x);
    Ok(vec![lowering.cast(&format!("{}.y", call.name), y, dtype)?])
}

/// The bin of the point along one axis.
struct Bin {
    start: NestArg,
    /// Distance between samples.
    step: NestArg,
    samples: NestArg,
}

impl Bin {
    fn new(
        nest: &mut NestBuilder,
        regions: &Regions,
        [low, high]: [NestArg; 2],
        at: &NestArg,
        pooled: i64,
        sampling_ratio: i64,
        half_pixel: bool,
    ) -> Bin {
        let real = regions.real;
        let scaled = |nest: &mut NestBuilder, bound: &NestArg| {
            let scaled = real.mul(nest, bound, &number(regions.scale));
            if half_pixel { real.sub(nest, &scaled, &number(0.5)) } else { scaled }
        };
        let (low, high) = (scaled(nest, &low), scaled(nest, &high));
        let size = real.sub(nest, &high, &low);
        // Without the half-pixel offset, an empty region counts as one element.
        let size = if half_pixel { size } else { real.max(nest, &size, &number(1.0)) };
        let bin = real.div(nest, &size, &number(pooled as f64));
        let samples = if sampling_ratio > 0 {
            NestArg::from(sampling_ratio)
        } else {
            let ceiled = real.step(nest, PointOp::Ceil, &[&bin]);
            let bounded = real.clamp(nest, &ceiled, &number(0.0), &number(SAMPLES_MAX as f64));
            real.to_index(nest, &bounded)
        };
        let count = real.of_index(nest, &samples);
        let at = real.of_index(nest, at);
        let offset = real.mul(nest, &at, &bin);
        Bin { start: real.add(nest, &low, &offset), step: real.div(nest, &bin, &count), samples }
    }

    fn sample(&self, nest: &mut NestBuilder, real: Real, number_of: &NestArg) -> NestArg {
        let at = real.of_index(nest, number_of);
        let at = real.add(nest, &at, &number(0.5));
        let along = real.mul(nest, &at, &self.step);
        real.add(nest, &self.start, &along)
    }
}

/// The position of a sample along one axis.
struct Position {
    low: NestArg,
    high: NestArg,
    /// Weight of the higher element.
    part: NestArg,
    inside: NestArg,
}

impl Regions {
    fn position(&self, nest: &mut NestBuilder, x: &NestArg, extent: &Expr) -> Position {
        let real = self.real;
        let extent = NestArg::from(extent);
        let size = real.of_index(nest, &extent);
        let above = nest.compare(PointOp::GreaterOrEqual, real.0, x, &number(-1.0));
        let below = nest.compare(PointOp::LessOrEqual, real.0, x, &size);
        let inside = nest.both(&above, &below);
        let last = real.sub(nest, &size, &number(1.0));
        let x = real.clamp(nest, x, &number(0.0), &last);
        let floor = real.floor(nest, &x);
        let part = real.sub(nest, &x, &floor);
        let low = real.to_index(nest, &floor);
        let next = nest.add(&low, &1.into());
        Position { high: index_clamp(nest, &next, &extent), low: index_clamp(nest, &low, &extent), part, inside }
    }

    /// The bilinear interpolation of four elements; for a maximum, the largest of the four weighted
    /// elements.
    fn sampled(&self, nest: &mut NestBuilder, plane: &[NestArg; 2], [y, x]: [NestArg; 2], is_max: bool) -> NestArg {
        let real = self.real;
        let (y, x) = (self.position(nest, &y, &self.image[2]), self.position(nest, &x, &self.image[3]));
        let weights = |nest: &mut NestBuilder, p: &Position| [real.sub(nest, &number(1.0), &p.part), p.part.clone()];
        let (rows, columns) = (weights(nest, &y), weights(nest, &x));
        let mut total: Option<NestArg> = None;
        for (row, row_weight) in [&y.low, &y.high].into_iter().zip(&rows) {
            for (column, column_weight) in [&x.low, &x.high].into_iter().zip(&columns) {
                let at = nest.offset(&self.image, &[plane[0].clone(), plane[1].clone(), row.clone(), column.clone()]);
                let element = nest.load(0, real.0, &at);
                let weight = real.mul(nest, row_weight, column_weight);
                let weighted = real.mul(nest, &weight, &element);
                let join = if is_max { PointOp::Max } else { PointOp::Add };
                total = Some(total.map_or(weighted.clone(), |total| real.step(nest, join, &[&total, &weighted])));
            }
        }
        let inside = nest.both(&y.inside, &x.inside);
        real.select(nest, &inside, &total.unwrap_or(number(0.0)), &number(0.0))
    }
}

/// Operands `x [N, C, H, W]` and `rois [R, 5]` (batch, x1, y1, x2, y2). Each bin is the maximum of
/// whole elements.
pub(super) fn max_roi_pool(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let [height, width] = call.required_ints("pooled_shape")?[..] else {
        return invalid("its pooled_shape does not have 2 entries");
    };
    let regions = Regions::read(lowering, call, [height, width], 5)?;
    let real = regions.real;
    let (x, rois) = (call.input(0)?, call.input(1)?);
    let operands = [real.wide(lowering, &call.name, x)?, real.wide(lowering, &format!("{}.rois", call.name), rois)?];
    let mut nest = NestBuilder::new("max_roi_pool", regions.result.clone());
    let point = nest.point();
    let batch = regions.load(&mut nest, &point[0], 0);
    let batch = real.to_index(&mut nest, &batch);
    let batch = index_clamp(&mut nest, &batch, &NestArg::from(&regions.image[0]));
    let [rows, columns] = [0, 1].map(|axis| {
        let bounds = [2 - axis, 4 - axis].map(|column| regions.load(&mut nest, &point[0], column as i64));
        regions.whole_bin(&mut nest, bounds, &point[2 + axis], [height, width][axis], &regions.image[2 + axis])
    });
    let best = nest.variable(real.0, &number(f64::NEG_INFINITY));
    let any = nest.variable(DType::Bool, &number(0.0));
    nest.count(&rows[0], &rows[1], |nest, row| {
        nest.count(&columns[0], &columns[1], |nest, column| {
            let at = nest.offset(&regions.image, &[batch.clone(), point[1].clone(), row.clone(), column.clone()]);
            let value = nest.load(0, real.0, &at);
            nest.accumulate(&best, PointOp::Max, &value);
            nest.set(&any, &number(1.0));
        });
    });
    let value = real.select(&mut nest, &any, &best, &number(0.0));
    let at = nest.offset(&regions.result, &point);
    nest.store(0, &at, &value);
    let y = lowering.emit_one(&call.name, Op::Nest(nest.finish()), &operands, real.0, regions.result)?;
    let dtype = lowering.dtype(x);
    Ok(vec![lowering.cast(&format!("{}.y", call.name), y, dtype)?])
}

impl Regions {
    /// The first element of a bin, and the one after its last, along one axis.
    fn whole_bin(
        &self,
        nest: &mut NestBuilder,
        bounds: [NestArg; 2],
        at: &NestArg,
        pooled: i64,
        extent: &Expr,
    ) -> [NestArg; 2] {
        let real = self.real;
        let extent = NestArg::from(extent);
        let size = real.of_index(nest, &extent);
        let [low, high] = bounds.map(|bound| {
            let scaled = real.mul(nest, &bound, &number(self.scale));
            // Halves are rounded away from zero.
            let distance = real.step(nest, PointOp::Abs, &[&scaled]);
            let distance = real.add(nest, &distance, &number(0.5));
            let rounded = real.floor(nest, &distance);
            let sign = real.step(nest, PointOp::Sign, &[&scaled]);
            real.mul(nest, &rounded, &sign)
        });
        let length = real.sub(nest, &high, &low);
        let length = real.add(nest, &length, &number(1.0));
        let length = real.max(nest, &length, &number(1.0));
        let bin = real.div(nest, &length, &number(pooled as f64));
        let at = real.of_index(nest, at);
        let next = real.add(nest, &at, &number(1.0));
        let bound = |nest: &mut NestBuilder, at: &NestArg, rounding: PointOp| {
            let along = real.mul(nest, at, &bin);
            let along = real.step(nest, rounding, &[&along]);
            let position = real.add(nest, &low, &along);
            let position = real.clamp(nest, &position, &number(0.0), &size);
            let index = real.to_index(nest, &position);
            let index = index_max(nest, &index, &0.into());
            index_min(nest, &index, &extent)
        };
        [bound(nest, &at, PointOp::Floor), bound(nest, &next, PointOp::Ceil)]
    }
}
