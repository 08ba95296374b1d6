//! Convolutions with few filters per group, depthwise ones above all: a thread computes a few filters at one pixel.

use super::conv::Shapes;
use crate::error::CodegenError;
use crate::scalar::Scalar;
use crate::schedule::Tensor;
use crate::strides;
use crate::sweep::{self, Body};
use crate::target::TargetDescription;
use crate::window::TAPS_UNROLLED_MAX;
use crate::writer::{Int, Writer, Written, mem};
use atoll_frontend::tensor_graph::Conv;
use atoll_kgraph::{DType, Expr};
use atoll_ptx::{Name, Operand, ScalarType};

/// Rows of pixels with at least this many get a warp of their own; the pixels of smaller images are numbered through.
const PIXEL_ROW_MIN: i64 = 24;

/// Writes the kernel.
pub(crate) fn direct(
    target: &TargetDescription,
    conv: &Conv,
    shapes: &Shapes,
    inputs: &[Tensor],
    output: &Tensor,
) -> Result<Written, CodegenError> {
    let [x, weights, extras @ ..] = inputs else { return Err(CodegenError::inconsistent("a convolution has two operands")) };
    if x.dtype == DType::F64 || weights.dtype != x.dtype {
        return Err(CodegenError::unsupported(format!("a convolution of {:?} and {:?}", x.dtype, weights.dtype)));
    }
    let at_once = [8, 4, 2, 1].into_iter().find(|count| shapes.filters % count == 0).unwrap_or(1);
    let [height, width] = [&shapes.axes[0].output, &shapes.axes[1].output];
    let by_row = width.as_const().is_none_or(|w| w >= PIXEL_ROW_MIN);
    let blocks = Expr::Const(shapes.groups * shapes.filters / at_once);
    let dims = match by_row {
        true => vec![shapes.images.clone(), blocks, height.clone(), width.clone()],
        false => vec![shapes.images.clone(), blocks, height.clone() * width.clone()],
    };
    let mut w = Writer::new(if shapes.channels == 1 { "depthwise" } else { "conv_direct" });
    let mut body = Direct {
        conv,
        shapes,
        at_once: at_once as u32,
        by_row,
        x: w.base(x),
        weights: w.base(weights),
        tensors: std::iter::once(output).chain(extras).map(|t| (w.base(t), strides::broadcast(&t.shape, &output.shape), t.dtype)).collect(),
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
    /// The output row, where a warp has one.
    y: Option<Int>,
    /// Address of the group's first input plane.
    planes: Name,
    /// Address of the first filter.
    weights: Name,
    /// The only filter's taps, where they are few.
    taps: Vec<Operand>,
}

/// The window of an output element.
struct Window {
    top: Int,
    left: Int,
    /// Index of its first tap in the plane, maybe outside.
    corner: Int,
}

impl Direct<'_> {
    fn window(&self, w: &mut Writer, at: &Int, y: &Int, x: &Int) -> Window {
        let [rows, columns] = &self.shapes.axes;
        let (top, left) = (rows.first(w, y), columns.first(w, x));
        let width = w.size(&columns.extent);
        let corner = if !self.by_row && rows.keeps_size() && columns.keeps_size() {
            // Neighbouring pixels have neighbouring windows, across the ends of rows too.
            let back = w.mad(&width, &rows.before.into(), &columns.before.into());
            w.sub(at, &back)
        } else {
            w.mad(&top, &width, &left)
        };
        Window { top, left, corner }
    }

    /// Adds the taps of one channel, whose plane and weights start at the given addresses.
    fn channel(&self, w: &mut Writer, row: &Row, sums: &[Name], plane: &Name, weights: &Name, at: &Window) {
        let [rows, columns] = &self.shapes.axes;
        let bytes = self.dtype.bytes() as u32;
        let width = w.size(&columns.extent);
        let first = [&at.top, &at.left];
        let corner = w.at(plane, &at.corner, bytes);
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
            let inside_columns: Vec<Option<Name>> = (0..columns.window).map(|tap| columns.inside(w, first[1], tap)).collect();
            for tap_row in 0..rows.window {
                let inside_row = rows.inside(w, first[0], tap_row);
                let down = w.mul(&width, &(tap_row * rows.dilation).into());
                let line = w.at(&corner, &down, bytes);
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
            let y = w.mad(tap_row, &rows.dilation.into(), first[0]);
            let inside_row = w.inside(&y, &height);
            w.count(&0.into(), &columns.window.into(), &1.into(), |w, tap| {
                let x = w.mad(tap, &columns.dilation.into(), first[1]);
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

    /// Output indices of an element: image, filter, row, column.
    fn indices(&self, w: &mut Writer, row: &Row, at: &Int) -> [Int; 4] {
        let (y, x) = match &row.y {
            Some(y) => (y.clone(), at.clone()),
            None => {
                let width = w.size(&self.shapes.axes[1].output);
                w.div_rem(at, &width)
            }
        };
        [row.image.clone(), row.filter.clone(), y, x]
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
        let plane = w.size(&(shapes.axes[0].extent.clone() * shapes.axes[1].extent.clone()));
        let first = w.mad(&outer[0], &Int::Known(shapes.groups), &group);
        let first = w.mul(&first, &Int::Known(shapes.channels));
        let first = w.mul(&first, &plane);
        let planes = w.at(&self.x, &first, bytes);
        let weights = w.mul(&filter, &Int::Known(shapes.depth()));
        let weights = w.at(&self.weights, &weights, bytes);
        let is_small = self.at_once == 1 && shapes.channels == 1 && shapes.depth() <= i64::from(TAPS_UNROLLED_MAX) / 2;
        let taps = if is_small {
            (0..shapes.depth()).map(|tap| w.load_f32(self.dtype, &weights, tap * i64::from(bytes))).collect()
        } else {
            Vec::new()
        };
        let y = self.by_row.then(|| outer[2].clone());
        Ok(Row { image: outer[0].clone(), filter, y, planes, weights, taps })
    }

    fn element(&mut self, w: &mut Writer, row: &Row, at: &Int) -> Result<(), CodegenError> {
        let shapes = self.shapes;
        let bytes = self.dtype.bytes() as u32;
        let indices = self.indices(w, row, at);
        let window = self.window(w, at, &indices[2], &indices[3]);
        let sums: Vec<Name> = (0..self.at_once).map(|_| w.f32_variable(0.0)).collect();
        if shapes.channels == 1 {
            self.channel(w, row, &sums, &row.planes, &row.weights, &window);
        } else {
            let plane = w.cursor(&row.planes);
            let weights = w.cursor(&row.weights);
            let plane_size = w.size(&(shapes.axes[0].extent.clone() * shapes.axes[1].extent.clone()));
            let taps = shapes.depth() / shapes.channels;
            w.count(&0.into(), &Int::Known(shapes.channels), &1.into(), |w, _| {
                self.channel(w, row, &sums, &plane, &weights, &window);
                w.advance(&plane, &plane_size, bytes);
                w.advance(&weights, &Int::Known(taps), bytes);
            });
        }
        for (i, sum) in sums.iter().enumerate() {
            let mut indices = indices.clone();
            indices[1] = w.add(&indices[1], &Int::Known(i as i64));
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
