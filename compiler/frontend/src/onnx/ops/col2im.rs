//! `Col2Im`: each element of the image is the sum of the window elements that cover it.

use super::super::call::Call;
use super::super::error::{LowerResult, invalid};
use super::super::lowering::Lowering;
use super::real::Real;
use super::window::per_dimension;
use crate::nest::{NestArg, NestBuilder};
use crate::size::{canonical, same};
use crate::tensor::is_float;
use crate::tensor_graph::{Op, PointOp, ValueId};
use atoll_kgraph::{DType, Expr};

type Results = LowerResult<Vec<ValueId>>;

/// One spatial axis.
struct Axis {
    stride: i64,
    dilation: i64,
    before: i64,
    window: i64,
    /// Number of windows along the axis.
    count: Expr,
}

/// Operands `x [N, C * window…, windows]`, the spatial dimensions of the image, and those of a
/// window.
pub(super) fn col2im(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = call.input(0)?;
    let image = lowering.require_known(call.input(1)?, "image_shape")?;
    let window = lowering.require_ints(call.input(2)?, "block_shape")?;
    let (dtype, shape) = (lowering.dtype(x), lowering.shape(x).to_vec());
    let spatial = image.len();
    if shape.len() != 3
        || spatial == 0
        || window.len() != spatial
        || window.iter().any(|w| !(1..=1 << 16).contains(w))
        || dtype == DType::Bool
    {
        return invalid(format!(
            "its operand has {} dimensions of type {dtype:?}, its windows are {window:?}",
            shape.len()
        ));
    }
    let axes = read_axes(call, &image, &window)?;
    let taps: i64 = window.iter().product();
    let Some(channels) = crate::size::divide_exact(&shape[1], &Expr::Const(taps)) else {
        return invalid(format!(
            "its operand has {} rows, which is not a multiple of the {taps} elements of a window",
            shape[1]
        ));
    };
    let counts: Vec<Expr> = axes.iter().map(|axis| axis.count.clone()).collect();
    if !same(&canonical(&Expr::product(&counts)), &shape[2]) {
        return invalid(format!(
            "its operand has {} columns, but the image has windows {}",
            shape[2],
            lowering.shape_text(&counts)
        ));
    }
    // Integers are summed in their own type.
    let held = if is_float(dtype) { Real::of(dtype).0 } else { dtype };
    let operand = lowering.cast(&format!("{}.wide", call.name), x, held)?;
    let split: Vec<Expr> = [shape[0].clone(), channels.clone()]
        .into_iter()
        .chain(window.iter().map(|w| Expr::Const(*w)))
        .chain(counts)
        .collect();
    let result: Vec<Expr> = [shape[0].clone(), channels].into_iter().chain(image).collect();
    let mut nest = NestBuilder::new("col2im", result.clone());
    let point = nest.point();
    let sum = nest.variable(held, &NestArg::Const(0.0));
    let mut found =
        TapLoops { split, point: point.clone(), sum: sum.clone(), held, taps: Vec::new(), windows: Vec::new() };
    found.axis(&mut nest, &axes);
    let at = nest.offset(&result, &point);
    nest.store(0, &at, &sum);
    let y = lowering.emit_one(&call.name, Op::Nest(nest.finish()), &[operand], held, result)?;
    Ok(vec![lowering.cast(&format!("{}.y", call.name), y, dtype)?])
}

fn read_axes(call: &Call<'_>, image: &[Expr], window: &[i64]) -> LowerResult<Vec<Axis>> {
    let spatial = image.len();
    let strides = per_dimension(call, "strides", spatial, 1, 1)?;
    let dilations = per_dimension(call, "dilations", spatial, 1, 1)?;
    let pads = per_dimension(call, "pads", 2 * spatial, 0, 0)?;
    let axis = |i: usize| {
        let (stride, dilation) = (i64::from(strides[i]), i64::from(dilations[i]));
        let padded = image[i].clone() + i64::from(pads[i]) + i64::from(pads[i + spatial]);
        let count = canonical(&((padded - (dilation * (window[i] - 1) + 1)).floor_div(stride) + 1));
        Axis { stride, dilation, before: pads[i].into(), window: window[i], count }
    };
    Ok((0..spatial).map(axis).collect())
}

/// The loops over the taps: the taps chosen on the axes so far, and for each the window whose tap
/// covers the point's element.
struct TapLoops {
    split: Vec<Expr>,
    point: Vec<NestArg>,
    sum: NestArg,
    held: DType,
    taps: Vec<NestArg>,
    windows: Vec<NestArg>,
}

impl TapLoops {
    /// Loops over the taps of the next axis; after the last axis, adds the element.
    fn axis(&mut self, nest: &mut NestBuilder, axes: &[Axis]) {
        let Some((axis, rest)) = axes.split_first() else {
            let indices = [&self.point[..2], &self.taps, &self.windows].concat();
            let at = nest.offset(&self.split, &indices);
            let value = nest.load(0, self.held, &at);
            return nest.accumulate(&self.sum, PointOp::Add, &value);
        };
        let at = nest.add(&self.point[2 + self.taps.len()], &axis.before.into());
        nest.count(&0.into(), &axis.window.into(), |nest, tap| {
            let back = nest.mul(tap, &axis.dilation.into());
            let start = nest.sub(&at, &back);
            let window = nest.div(&start, &axis.stride.into());
            let whole = nest.mul(&window, &axis.stride.into());
            let is_start = nest.compare(PointOp::Equal, DType::I32, &whole, &start);
            // Rounding towards zero maps a start of -1 to window 0, so negative starts are excluded
            // separately.
            let exists = nest.inside(&window, &NestArg::from(&axis.count));
            let not_before = nest.compare(PointOp::GreaterOrEqual, DType::I32, &start, &0.into());
            let exists = nest.both(&exists, &not_before);
            let exists = nest.both(&exists, &is_start);
            nest.when(&exists, |nest| {
                self.taps.push(tap.clone());
                self.windows.push(window.clone());
                self.axis(nest, rest);
                self.taps.pop();
                self.windows.pop();
            });
        });
    }
}
