//! Sliding windows as loop nests: for types that the convolution and pooling kernels do not
//! support, and for operators that need the position of an element.

use super::super::error::LowerResult;
use super::super::lowering::Lowering;
use super::conv::Convolution;
use super::window::Window;
use crate::nest::{NestArg, NestBuilder};
use crate::tensor_graph::{Op, PointOp, ValueId};
use atoll_kgraph::{DType, Expr};

/// The window of a point.
pub(super) struct Taps<'a> {
    pub(super) size: Vec<i64>,
    pub(super) strides: &'a [u32],
    /// Padding before each axis.
    pub(super) before: &'a [u32],
    pub(super) dilations: &'a [u32],
    /// Spatial dimensions of the input.
    pub(super) extents: &'a [Expr],
}

/// Called for each tap with its position in the input and its index in the window, per axis.
type Visit<'v> = &'v mut dyn FnMut(&mut NestBuilder, &[NestArg], &[NestArg]);

impl<'a> Taps<'a> {
    pub(super) fn of_window(window: &'a Window, extents: &'a [Expr]) -> Taps<'a> {
        let size = window.size.iter().map(|size| i64::from(*size)).collect();
        Taps {
            size,
            strides: &window.strides,
            before: &window.pads[..extents.len()],
            dilations: &window.dilations,
            extents,
        }
    }

    /// Loops over the taps that are inside the input. `pixel` are the spatial coordinates of the
    /// output element.
    pub(super) fn visit(&self, nest: &mut NestBuilder, pixel: &[NestArg], visit: Visit<'_>) {
        self.visit_axis(nest, pixel, &[], &[], visit);
    }

    fn visit_axis(
        &self,
        nest: &mut NestBuilder,
        pixel: &[NestArg],
        positions: &[NestArg],
        taps: &[NestArg],
        visit: Visit<'_>,
    ) {
        let axis = positions.len();
        if axis == self.size.len() {
            return visit(nest, positions, taps);
        }
        let start = self.start(nest, pixel, axis);
        nest.count(&0.into(), &self.size[axis].into(), |nest, tap| {
            let step = nest.mul(tap, &i64::from(self.dilations[axis]).into());
            let at = nest.add(&start, &step);
            let inside = nest.inside(&at, &NestArg::from(&self.extents[axis]));
            nest.when(&inside, |nest| {
                let positions = [positions, std::slice::from_ref(&at)].concat();
                self.visit_axis(nest, pixel, &positions, &[taps, std::slice::from_ref(tap)].concat(), visit);
            });
        });
    }

    /// Position of the first tap; negative if it is in the padding.
    fn start(&self, nest: &mut NestBuilder, pixel: &[NestArg], axis: usize) -> NestArg {
        let start = nest.mul(&pixel[axis], &i64::from(self.strides[axis]).into());
        nest.sub(&start, &i64::from(self.before[axis]).into())
    }

    /// Number of taps before the end of the trailing padding, whose width is `after`.
    fn with_padding(&self, nest: &mut NestBuilder, pixel: &[NestArg], after: &[u32]) -> NestArg {
        let mut count = NestArg::from(1);
        for (axis, after) in after.iter().enumerate() {
            let start = self.start(nest, pixel, axis);
            let end = nest.add(&NestArg::from(&self.extents[axis]), &i64::from(*after).into());
            let distance = nest.sub(&end, &start);
            let dilation = i64::from(self.dilations[axis]);
            let distance = nest.add(&distance, &(dilation - 1).into());
            let taps = nest.div(&distance, &dilation.into());
            let taps = nest.step(PointOp::Min, DType::I32, &[taps, self.size[axis].into()]);
            count = nest.mul(&count, &taps);
        }
        count
    }
}

/// A convolution without bias.
pub(super) fn convolve(lowering: &mut Lowering, name: &str, convolution: &Convolution) -> LowerResult<ValueId> {
    let Convolution { x, weights, .. } = *convolution;
    let (ty, image, factors) = (lowering.dtype(x), lowering.shape(x).to_vec(), lowering.shape(weights).to_vec());
    let size = factors[2..].iter().filter_map(Expr::as_const).collect();
    let spatial = convolution.output.len();
    let taps = Taps {
        size,
        strides: &convolution.strides,
        before: &convolution.pads[..spatial],
        dilations: &convolution.dilations,
        extents: &image[2..],
    };
    let result: Vec<Expr> =
        [image[0].clone(), factors[0].clone()].into_iter().chain(convolution.output.iter().cloned()).collect();
    let mut nest = NestBuilder::new("conv_nest", result.clone());
    nest.by_rows(1);
    let point = nest.point();
    let filters = crate::size::canonical(&factors[0].clone().floor_div(i64::from(convolution.groups)));
    let group = nest.div(&point[1], &NestArg::from(&filters));
    let first = nest.mul(&group, &NestArg::from(&factors[1]));
    let sum = nest.variable(ty, &NestArg::Const(0.0));
    nest.count(&0.into(), &NestArg::from(&factors[1]), |nest, channel| {
        let source = nest.add(&first, channel);
        taps.visit(nest, &point[2..], &mut |nest, positions, taps| {
            let at = nest.offset(&image, &[&[point[0].clone(), source.clone()], positions].concat());
            let value = nest.load(0, ty, &at);
            let at = nest.offset(&factors, &[&[point[1].clone(), channel.clone()], taps].concat());
            let factor = nest.load(1, ty, &at);
            let product = nest.step(PointOp::Mul, ty, &[value, factor]);
            nest.accumulate(&sum, PointOp::Add, &product);
        });
    });
    let at = nest.offset(&result, &point);
    nest.store(0, &at, &sum);
    lowering.emit_one(name, Op::Nest(nest.finish()), &[x, weights], ty, result)
}

/// The divisor of a sum.
#[derive(Clone, Copy)]
pub(super) enum Divisor {
    One,
    /// The number of taps inside the input or, with `count_include_pad`, also in the padding.
    Taps {
        count_include_pad: bool,
    },
}

/// The sum of every window, divided.
pub(super) fn pool(
    lowering: &mut Lowering,
    name: &str,
    divisor: Divisor,
    window: &Window,
    x: ValueId,
) -> LowerResult<ValueId> {
    let (ty, shape) = (lowering.dtype(x), lowering.shape(x).to_vec());
    let result: Vec<Expr> = shape[..2].iter().cloned().chain(window.output(lowering, &shape[2..])?).collect();
    let taps = Taps::of_window(window, &shape[2..]);
    let mut nest = NestBuilder::new("pool_nest", result.clone());
    nest.by_rows(1);
    let point = nest.point();
    let sum = nest.variable(ty, &NestArg::Const(0.0));
    let inside = nest.variable(DType::I32, &0.into());
    taps.visit(&mut nest, &point[2..], &mut |nest, positions, _| {
        let at = nest.offset(&shape, &[&point[..2], positions].concat());
        let value = nest.load(0, ty, &at);
        nest.accumulate(&sum, PointOp::Add, &value);
        nest.accumulate(&inside, PointOp::Add, &1.into());
    });
    let value = match divisor {
        Divisor::One => sum,
        Divisor::Taps { count_include_pad } => {
            let count = match count_include_pad {
                true => taps.with_padding(&mut nest, &point[2..], &window.pads[shape.len() - 2..]),
                false => inside,
            };
            let count = nest.cast(&count, ty);
            nest.step(PointOp::Div, ty, &[sum, count])
        }
    };
    let at = nest.offset(&result, &point);
    nest.store(0, &at, &value);
    lowering.emit_one(name, Op::Nest(nest.finish()), &[x], ty, result)
}
