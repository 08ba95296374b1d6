//! Deformable convolution: gathers the taps at learned positions, then multiplies them as a
//! convolution with one tap.

use super::super::call::Call;
use super::super::error::{LowerResult, invalid, unsupported};
use super::super::lowering::Lowering;
use super::conv::{self, Convolution, channels, kernel_shape};
use super::real::{Real, index_clamp, number};
use super::window::Window;
use crate::nest::{NestArg, NestBuilder};
use crate::tensor::is_float;
use crate::tensor_graph::{Op, ValueId};
use atoll_kgraph::Expr;

type Results = LowerResult<Vec<ValueId>>;

/// A distance outside the image that no tap reaches across. Coordinates are clamped to it.
const FAR_OUTSIDE: f64 = 8.0;

/// Operands `x [N, C, H, W]`, `w [M, C/group, KH, KW]`,
/// `offset [N, offset groups * KH * KW * 2, OH, OW]`, optionally a bias and
/// `mask [N, offset groups * KH * KW, OH, OW]`.
pub(super) fn deform_conv(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let (x, w, offset) = (call.input(0)?, call.input(1)?, call.input(2)?);
    let kernel = kernel_shape(lowering, call, w)?;
    let dtype = lowering.dtype(x);
    if kernel.len() != 2 || !is_float(dtype) {
        return unsupported(format!(
            "a deformable convolution of type {dtype:?} with {} spatial dimensions; 2 of a float type are supported",
            kernel.len()
        ));
    }
    let window = Window::read(lowering, call, x, &kernel)?;
    let output = window.output(lowering, &lowering.shape(x)[2..])?;
    let (groups, offset_groups) = (call.int("group", 1)?, call.int("offset_group", 1)?);
    let (input, per_group, filters) = (channels(lowering, x, 1)?, channels(lowering, w, 1)?, channels(lowering, w, 0)?);
    let fits = groups > 0 && offset_groups > 0 && per_group.checked_mul(groups) == Some(input) && filters % groups == 0;
    if !fits || input % offset_groups != 0 {
        return invalid(format!(
            "its {input} channels, {filters} filters of {per_group} channels, {groups} groups and {offset_groups} \
             offset groups do not match"
        ));
    }
    let taps = kernel[0] * kernel[1];
    let batch = lowering.shape(x)[0].clone();
    let per_tap = |numbers: i64| {
        [batch.clone(), Expr::Const(offset_groups * taps * numbers)]
            .into_iter()
            .chain(output.iter().cloned())
            .collect::<Vec<Expr>>()
    };
    let mask = call.optional(4);
    let is_right = |id: ValueId, numbers: i64| crate::size::same_shape(lowering.shape(id), &per_tap(numbers));
    if !is_right(offset, 2) || mask.is_some_and(|mask| !is_right(mask, 1)) {
        return invalid("its offsets or mask do not have the shape that its window, offset groups and output need");
    }
    let real = Real::of(dtype);
    let mut operands =
        vec![real.wide(lowering, &call.name, x)?, real.wide(lowering, &format!("{}.offset", call.name), offset)?];
    if let Some(mask) = mask {
        operands.push(real.wide(lowering, &format!("{}.mask", call.name), mask)?);
    }
    let deformed = Deformed { image: lowering.shape(x).to_vec(), offsets: per_tap(2), masks: per_tap(1), real };
    let per_offset_group = input / offset_groups;
    let columns = deformed.columns(lowering, &call.name, &operands, &window, [input, per_offset_group], &output)?;
    let columns = lowering.cast(&format!("{}.columns", call.name), columns, dtype)?;
    let weights = [filters, per_group * taps, 1, 1].map(Expr::Const).to_vec();
    let weights = lowering.reshape(&format!("{}.weights", call.name), w, weights)?;
    let convolution = Convolution {
        x: columns,
        weights,
        bias: call.optional(3),
        strides: vec![1; 2],
        pads: vec![0; 4],
        dilations: vec![1; 2],
        groups: groups as u32,
        output,
    };
    Ok(vec![conv::emit(lowering, &call.name, convolution)?])
}

struct Deformed {
    image: Vec<Expr>,
    offsets: Vec<Expr>,
    masks: Vec<Expr>,
    real: Real,
}

impl Deformed {
    /// The gathered elements of every tap: `[N, C * KH * KW, OH, OW]`.
    fn columns(
        &self,
        lowering: &mut Lowering,
        name: &str,
        operands: &[ValueId],
        window: &Window,
        [input, per_offset_group]: [i64; 2],
        output: &[Expr],
    ) -> LowerResult<ValueId> {
        let real = self.real;
        let [height, width] = [i64::from(window.size[0]), i64::from(window.size[1])];
        let taps = [input, height, width].map(Expr::Const);
        let domain: Vec<Expr> = [&self.image[..1], &taps, output].concat();
        let result: Vec<Expr> = [&self.image[..1], &[Expr::Const(input * height * width)], output].concat();
        let mut nest = NestBuilder::new("deform_columns", domain.clone());
        let point = nest.point();
        let [image, channel, row, column] = [0, 1, 2, 3].map(|i| point[i].clone());
        let pixel = &point[4..];
        // The index of the tap among those of all offset groups.
        let group = nest.div(&channel, &per_offset_group.into());
        let line = nest.mul(&group, &height.into());
        let line = nest.add(&line, &row);
        let tap = nest.mul(&line, &width.into());
        let tap = nest.add(&tap, &column);
        let first = nest.mul(&tap, &2.into());
        let mut positions = Vec::new();
        for (axis, at) in [&row, &column].into_iter().enumerate() {
            let number_of = nest.add(&first, &(axis as i64).into());
            let from = nest.offset(&self.offsets, &[&[image.clone(), number_of], pixel].concat());
            let offset = nest.load(1, real.0, &from);
            let start = nest.mul(&pixel[axis], &i64::from(window.strides[axis]).into());
            let start = nest.sub(&start, &i64::from(window.pads[axis]).into());
            let step = nest.mul(at, &i64::from(window.dilations[axis]).into());
            let whole = nest.add(&start, &step);
            let whole = real.of_index(&mut nest, &whole);
            positions.push(real.add(&mut nest, &whole, &offset));
        }
        let mut value = self.between(&mut nest, &[image.clone(), channel], &positions);
        if operands.len() > 2 {
            let from = nest.offset(&self.masks, &[&[image, tap], pixel].concat());
            let factor = nest.load(2, real.0, &from);
            value = real.mul(&mut nest, &value, &factor);
        }
        let at = nest.offset(&domain, &point);
        nest.store(0, &at, &value);
        lowering.emit_one(&format!("{name}.gathered"), Op::Nest(nest.finish()), operands, real.0, result)
    }

    /// Bilinear interpolation between four elements; elements outside the image are 0.
    fn between(&self, nest: &mut NestBuilder, plane: &[NestArg; 2], positions: &[NestArg]) -> NestArg {
        let real = self.real;
        let mut axes = Vec::new();
        for (position, extent) in positions.iter().zip(&self.image[2..]) {
            let extent = NestArg::from(extent);
            let size = real.of_index(nest, &extent);
            let far = real.add(nest, &size, &number(FAR_OUTSIDE));
            let position = real.clamp(nest, position, &number(-FAR_OUTSIDE), &far);
            let floor = real.floor(nest, &position);
            let part = real.sub(nest, &position, &floor);
            let low = real.to_index(nest, &floor);
            let high = nest.add(&low, &1.into());
            let ends = [low, high].map(|at| (nest.inside(&at, &extent), index_clamp(nest, &at, &extent)));
            axes.push((ends, part));
        }
        let [(rows, down), (columns, right)] = &axes[..] else { return number(0.0) };
        let lines: Vec<NestArg> = rows
            .iter()
            .map(|(row_inside, row)| {
                let [left, right_value] = columns.each_ref().map(|(column_inside, column)| {
                    let at =
                        nest.offset(&self.image, &[plane[0].clone(), plane[1].clone(), row.clone(), column.clone()]);
                    let element = nest.load(0, real.0, &at);
                    let inside = nest.both(row_inside, column_inside);
                    real.select(nest, &inside, &element, &number(0.0))
                });
                real.mix(nest, &left, &right_value, right)
            })
            .collect();
        real.mix(nest, &lines[0], &lines[1], down)
    }
}
