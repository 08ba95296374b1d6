//! Convolutions with few filters per group, especially depthwise ones: a thread computes a few
//! filters at one pixel.

use super::conv::Shapes;
use crate::error::CodegenError;
use crate::scalar::Scalar;
use crate::schedule::Tensor;
use crate::strides;
use crate::sweep::{self, Body};
use crate::target::TargetDescription;
use crate::window::{Axis, TAPS_UNROLLED_MAX};
use crate::writer::{Int, Writer, Written, mem};
use atoll_frontend::tensor_graph::Conv;
use atoll_kgraph::{DType, Expr};
use atoll_ptx::{Name, Operand, ScalarType};

/// Smallest length of a pixel row that gets its own warp. The pixels of smaller images are numbered
/// consecutively.
const PIXEL_ROW_MIN: i64 = 24;

/// Writes the kernel.
pub(crate) fn direct(
    target: &TargetDescription,
    conv: &Conv,
    shapes: &Shapes,
    inputs: &[Tensor],
    output: &Tensor,
) -> Result<Written, CodegenError> {
    let [x, weights, extras @ ..] = inputs else {
        return Err(CodegenError::inconsistent("a convolution has fewer than two operands"));
    };
    if x.dtype == DType::F64 || weights.dtype != x.dtype {
        return Err(CodegenError::unsupported(format!("a convolution of {:?} and {:?}", x.dtype, weights.dtype)));
    }
    let at_once = [8, 4, 2, 1].into_iter().find(|count| shapes.filters % count == 0).unwrap_or(1);
    let pixels = shapes.axes.iter().map(|a| &a.output);
    let by_row = pixels.clone().next_back().is_some_and(|width| width.as_const().is_none_or(|w| w >= PIXEL_ROW_MIN));
    let mut dims = vec![shapes.images.clone(), Expr::Const(shapes.groups * shapes.filters / at_once)];
    match by_row {
        true => dims.extend(pixels.cloned()),
        false => dims.push(Expr::product(pixels)),
    }
    let mut w = Writer::new(if shapes.channels == 1 { "depthwise" } else { "conv_direct" });
    let mut body = Direct {
        conv,
        shapes,
        at_once: at_once as u32,
        by_row,
        x: w.base(x),
        weights: w.base(weights),
        tensors: std::iter::once(output)
            .chain(extras)
            .map(|t| (w.base(t), strides::broadcast(&t.shape, &output.shape), t.dtype))
            .collect(),
        dtype: x.dtype,
    };
    let products = (shapes.depth() * at_once).clamp(1, i64::from(target.products_per_block)) as u32;
    sweep::sweep(w, target, &dims, (target.products_per_block / products).max(1), &mut body)
}

struct Direct<'a> {
    conv: &'a Conv,
    shapes: &'a Shapes,
    /// Filters per thread.
    at_once: u32,
    by_row: bool,
    x: Name,
    weights: Name,
    /// Address, strides and type of the output, then of the extra inputs.
    tensors: Vec<(Name, Vec<Expr>, DType)>,
    dtype: DType,
}

struct Row {
    image: Int,
    filter: Int,
    /// The indices of the output row, if a warp computes one.
    line: Vec<Int>,
    /// Address of the group's first input channel.
    planes: Name,
    /// Address of the first filter.
    weights: Name,
    /// The taps of the only filter, if they are few.
    taps: Vec<Operand>,
}

/// The window of an output element.
struct Window {
    /// Position of its first tap on each axis.
    first: Vec<Int>,
    /// Index of its first tap in the channel; may be outside.
    corner: Int,
}

impl Direct<'_> {
    /// The window of the output element at `pixel`, which is the `at`-th of its row or of its
    /// image.
    fn window(&self, w: &mut Writer, at: &Int, pixel: &[Int]) -> Window {
        let axes = &self.shapes.axes;
        let first: Vec<Int> = axes.iter().zip(pixel).map(|(axis, at)| axis.first(w, at)).collect();
        let along = |w: &mut Writer, positions: &[Int]| {
            let mut index = positions[0].clone();
            for (axis, position) in axes.iter().zip(positions).skip(1) {
                let extent = w.size(&axis.extent);
                index = w.mad(&extent, &index, position);
            }
            index
        };
        let corner = if !self.by_row && axes.iter().all(Axis::keeps_size) {
            // Adjacent pixels have adjacent windows, even across the ends of rows.
            let before: Vec<Int> = axes.iter().map(|a| a.before.into()).collect();
            let back = along(w, &before);
            w.sub(at, &back)
        } else {
            along(w, &first)
        };
        Window { first, corner }
    }

    /// Adds the taps of one channel; the channel and its weights start at the given addresses.
    fn channel(&self, w: &mut Writer, row: &Row, sums: &[Name], channel: &Name, weights: &Name, at: &Window) {
        let bytes = self.dtype.bytes() as u32;
        let corner = w.at(channel, &at.corner, bytes);
        let [depth, rows, columns] = &self.shapes.axes[..] else {
            return self.plane(w, row, sums, [channel, &corner, weights], &at.first);
        };
        let plane = w.size(&(rows.extent.clone() * columns.extent.clone()));
        let extent = w.size(&depth.extent);
        w.count(&0.into(), &depth.window.into(), &1.into(), |w, tap| {
            let down = w.mul(tap, &depth.dilation.into());
            let z = w.add(&down, &at.first[0]);
            let inside = w.inside(&z, &extent);
            w.when(inside.as_ref(), |w| {
                let (start, down) = (w.mul(&z, &plane), w.mul(&down, &plane));
                let (start, corner) = (w.at(channel, &start, bytes), w.at(&corner, &down, bytes));
                let first = w.mul(tap, &(rows.window * columns.window).into());
                let weights = w.at(weights, &first, bytes);
                self.plane(w, row, sums, [&start, &corner, &weights], &at.first[1..]);
            });
        });
    }

    /// Adds the taps of one plane. The three addresses point to the plane, the window's corner, and
    /// the weights.
    fn plane(&self, w: &mut Writer, row: &Row, sums: &[Name], [plane, corner, weights]: [&Name; 3], first: &[Int]) {
        let [.., rows, columns] = &self.shapes.axes[..] else { return };
        let bytes = self.dtype.bytes() as u32;
        let width = w.size(&columns.extent);
        let filter_bytes = self.shapes.depth() * i64::from(bytes);
        let multiply = |w: &mut Writer, x: &Operand, weights: &Name, tap: u32| {
            for (i, sum) in sums.iter().enumerate() {
                let factor = match row.taps.get(tap as usize) {
                    Some(known) => known.clone(),
                    None => w.load_f32(self.dtype, weights, i as i64 * filter_bytes + i64::from(tap * bytes)),
                };
                w.emit("fma.rn.f32", [sum.into(), x.clone(), factor, sum.into()]);
            }
        };
        if rows.window * columns.window <= TAPS_UNROLLED_MAX {
            let inside_columns: Vec<Option<Name>> =
                (0..columns.window).map(|tap| columns.inside(w, &first[1], tap)).collect();
            for tap_row in 0..rows.window {
                let inside_row = rows.inside(w, &first[0], tap_row);
                let down = w.mul(&width, &(tap_row * rows.dilation).into());
                let line = w.at(corner, &down, bytes);
                for (tap, inside_column) in inside_columns.iter().enumerate() {
                    let guard = w.both(inside_row.as_ref(), inside_column.as_ref());
                    let x = self.pixel(w, guard.as_ref(), &line, i64::from(tap as u32 * columns.dilation * bytes));
                    multiply(w, &x, weights, tap_row * columns.window + tap as u32);
                }
            }
            return;
        }
        let height = w.size(&rows.extent);
        w.count(&0.into(), &rows.window.into(), &1.into(), |w, tap_row| {
            let y = w.mad(tap_row, &rows.dilation.into(), &first[0]);
            let inside_row = w.inside(&y, &height);
            w.count(&0.into(), &columns.window.into(), &1.into(), |w, tap| {
                let x = w.mad(tap, &columns.dilation.into(), &first[1]);
                let inside_column = w.inside(&x, &width);
                let guard = w.both(inside_row.as_ref(), inside_column.as_ref());
                let at = w.mad(&y, &width, &x);
                let address = w.at(plane, &at, bytes);
                let x = self.pixel(w, guard.as_ref(), &address, 0);
                let tap = w.mad(tap_row, &columns.window.into(), tap);
                let weights = w.at(weights, &tap, bytes);
                multiply(w, &x, &weights, 0);
            });
        });
    }

    fn pixel(&self, w: &mut Writer, guard: Option<&Name>, address: &Name, offset: i64) -> Operand {
        match (guard, self.dtype) {
            (None, _) => w.load_f32(self.dtype, address, offset),
            (Some(guard), DType::F32) => {
                let value = w.f32_variable(0.0);
                w.emit_if(guard, "ld.global.f32", [(&value).into(), mem(address, offset)]);
                value.into()
            }
            (Some(guard), _) => {
                let value = w.f32_variable(0.0);
                w.when(Some(guard), |w| {
                    let loaded = w.load_f32(self.dtype, address, offset);
                    w.set(&value, &loaded, ScalarType::F32);
                });
                value.into()
            }
        }
    }

    /// The output pixel of an element.
    fn pixel_at(&self, w: &mut Writer, row: &Row, at: &Int) -> Vec<Int> {
        match self.by_row {
            true => row.line.iter().chain([at]).cloned().collect(),
            false => {
                let outputs: Vec<Expr> = self.shapes.axes.iter().map(|a| a.output.clone()).collect();
                sweep::unravel(w, at, &outputs)
            }
        }
    }
}

impl Body for Direct<'_> {
    type Row = Row;

    fn row(&mut self, w: &mut Writer, outer: &[Int], _first: &Int) -> Result<Row, CodegenError> {
        let shapes = self.shapes;
        let bytes = self.dtype.bytes() as u32;
        let filter = w.mul(&outer[1], &self.at_once.into());
        let filter = Int::Reg(w.variable(&filter));
        let group = w.div(&filter, &Int::Known(shapes.filters));
        let plane = w.size(&shapes.input_plane());
        let first = w.mad(&outer[0], &Int::Known(shapes.groups), &group);
        let first = w.mul(&first, &Int::Known(shapes.channels));
        let first = w.mul(&first, &plane);
        let planes = w.at(&self.x, &first, bytes);
        let weights = w.mul(&filter, &Int::Known(shapes.depth()));
        let weights = w.at(&self.weights, &weights, bytes);
        let is_small = self.at_once == 1
            && shapes.axes.len() == 2
            && shapes.channels == 1
            && shapes.depth() <= i64::from(TAPS_UNROLLED_MAX) / 2;
        let taps = if is_small {
            (0..shapes.depth()).map(|tap| w.load_f32(self.dtype, &weights, tap * i64::from(bytes))).collect()
        } else {
            Vec::new()
        };
        Ok(Row { image: outer[0].clone(), filter, line: outer[2..].to_vec(), planes, weights, taps })
    }

    fn element(&mut self, w: &mut Writer, row: &Row, at: &Int) -> Result<(), CodegenError> {
        let shapes = self.shapes;
        let bytes = self.dtype.bytes() as u32;
        let pixel = self.pixel_at(w, row, at);
        let window = self.window(w, at, &pixel);
        let sums: Vec<Name> = (0..self.at_once).map(|_| w.f32_variable(0.0)).collect();
        if shapes.channels == 1 {
            self.channel(w, row, &sums, &row.planes, &row.weights, &window);
        } else {
            let plane = w.cursor(&row.planes);
            let weights = w.cursor(&row.weights);
            let plane_size = w.size(&shapes.input_plane());
            let taps = shapes.taps();
            w.count(&0.into(), &Int::Known(shapes.channels), &1.into(), |w, _| {
                self.channel(w, row, &sums, &plane, &weights, &window);
                w.advance(&plane, &plane_size, bytes);
                w.advance(&weights, &Int::Known(taps), bytes);
            });
        }
        for (i, sum) in sums.iter().enumerate() {
            let filter = w.add(&row.filter, &Int::Known(i as i64));
            let indices: Vec<Int> = [row.image.clone(), filter].into_iter().chain(pixel.iter().cloned()).collect();
            let mut values = vec![Scalar::f32(sum.into())];
            for (base, strides, dtype) in &self.tensors[1..] {
                let at = sweep::offset(w, &indices, strides);
                let address = w.at(base, &at, dtype.bytes() as u32);
                values.push(w.load(*dtype, &address, 0));
            }
            let (base, strides, dtype) = &self.tensors[0];
            let value = w.program(&self.conv.epilogue, &values, *dtype)?;
            let at = sweep::offset(w, &indices, strides);
            let address = w.at(base, &at, dtype.bytes() as u32);
            w.store(&value, &address, 0);
        }
        Ok(())
    }
}
