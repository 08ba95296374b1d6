//! Pooling: one thread per output element; a small window is unrolled.

use crate::error::CodegenError;
use crate::schedule::Tensor;
use crate::sweep::{self, Body};
use crate::target::TargetDescription;
use crate::window::{Axis, TAPS_UNROLLED_MAX};
use crate::writer::{Int, Writer, Written, mem};
use atoll_frontend::tensor_graph::{Pool, PoolKind};
use atoll_kgraph::DType;
use atoll_ptx::{Name, Operand, ScalarType};

/// Input `[N, C, H, W]`, output `[N, C, OH, OW]`.
pub(crate) fn pool(
    target: &TargetDescription,
    pool: &Pool,
    input: &Tensor,
    output: &Tensor,
) -> Result<Written, CodegenError> {
    let [n, c, oh, ow] = &output.shape[..] else {
        return Err(CodegenError::unsupported("pooling of tensors that do not have 4 dimensions"));
    };
    if input.dtype == DType::F64 {
        return Err(CodegenError::unsupported("pooling of F64 by the f32 kernel"));
    }
    let mut w = Writer::new("pool");
    let (from, to) = (w.base(input), w.base(output));
    let axes = [0, 1].map(|axis| Axis {
        extent: input.shape[2 + axis].clone(),
        output: output.shape[2 + axis].clone(),
        window: pool.window[axis],
        stride: pool.strides[axis],
        dilation: pool.dilations[axis],
        before: pool.pads[axis],
    });
    let taps = pool.window[0] * pool.window[1];
    let dims = [n.clone() * c.clone(), oh.clone(), ow.clone()];
    let mut body = Pooling {
        kind: pool.kind,
        after: [pool.pads[2], pool.pads[3]],
        axes,
        from,
        to,
        dtypes: [input.dtype, output.dtype],
    };
    sweep::sweep(w, target, &dims, (target.products_per_block / taps.max(1) / 4).max(1), &mut body)
}

struct Pooling {
    kind: PoolKind,
    /// Padding after each axis.
    after: [u32; 2],
    axes: [Axis; 2],
    from: Name,
    to: Name,
    dtypes: [DType; 2],
}

struct Row {
    /// Address of the input plane.
    plane: Name,
    /// First input row of the window; may be negative.
    top: Int,
    /// Address of the output row.
    to: Name,
    /// Number of input rows that an average counts.
    rows: Int,
}

impl Pooling {
    /// Number of taps along an axis that an average counts; 1 for other kinds.
    fn counted(&self, w: &mut Writer, axis: usize, first: &Int) -> Int {
        let extent = w.size(&self.axes[axis].extent);
        match self.kind {
            PoolKind::Max | PoolKind::Sum => Int::Known(1),
            PoolKind::Average { count_include_pad: false } => {
                self.axes[axis].taps_inside(w, first, &Int::Known(0), &extent)
            }
            PoolKind::Average { count_include_pad: true } => {
                let end = w.add(&extent, &self.after[axis].into());
                let before = Int::Known(-i64::from(self.axes[axis].before));
                self.axes[axis].taps_inside(w, first, &before, &end)
            }
        }
    }

    fn neutral(&self) -> f32 {
        if self.kind == PoolKind::Max { f32::NEG_INFINITY } else { 0.0 }
    }

    fn take(&self, w: &mut Writer, accumulator: &Name, value: &Operand) {
        if self.kind == PoolKind::Max {
            let larger = w.real(ScalarType::F32).max(&accumulator.into(), value);
            return w.set(accumulator, &larger, ScalarType::F32);
        }
        w.emit("add.f32", [accumulator.into(), accumulator.into(), value.clone()]);
    }

    /// Adds one element, unless the tap is outside.
    fn tap(&self, w: &mut Writer, accumulator: &Name, inside: Option<&Name>, address: &Name, offset: i64) {
        let dtype = self.dtypes[0];
        if let (Some(inside), DType::F32) = (inside, dtype) {
            let value = w.f32_variable(self.neutral());
            w.emit_if(inside, "ld.global.f32", [(&value).into(), mem(address, offset)]);
            return self.take(w, accumulator, &value.into());
        }
        w.when(inside, |w| {
            let value = w.load_f32(dtype, address, offset);
            self.take(w, accumulator, &value);
        });
    }

    fn window(&self, w: &mut Writer, accumulator: &Name, row: &Row, left: &Int) -> Result<(), CodegenError> {
        let bytes = self.dtypes[0].bytes() as u32;
        let width = w.size(&self.axes[1].extent);
        let [rows, columns] = [&self.axes[0], &self.axes[1]];
        let corner = w.mad(&row.top, &width, left);
        let corner = w.at(&row.plane, &corner, bytes);
        if rows.window * columns.window <= TAPS_UNROLLED_MAX {
            let inside_columns: Vec<Option<Name>> =
                (0..columns.window).map(|tap| columns.inside(w, left, tap)).collect();
            for tap_row in 0..rows.window {
                let inside_row = rows.inside(w, &row.top, tap_row);
                let down = w.mul(&width, &(tap_row * rows.dilation).into());
                let line = w.at(&corner, &down, bytes);
                for (tap, inside_column) in inside_columns.iter().enumerate() {
                    let inside = w.both(inside_row.as_ref(), inside_column.as_ref());
                    self.tap(w, accumulator, inside.as_ref(), &line, i64::from(tap as u32 * columns.dilation * bytes));
                }
            }
            return Ok(());
        }
        let [height, _] = [&self.axes[0], &self.axes[1]].map(|a| w.size(&a.extent));
        w.count(&0.into(), &rows.window.into(), &1.into(), |w, tap_row| {
            let y = w.mad(tap_row, &rows.dilation.into(), &row.top);
            let inside_row = w.inside(&y, &height);
            w.count(&0.into(), &columns.window.into(), &1.into(), |w, tap| {
                let x = w.mad(tap, &columns.dilation.into(), left);
                let inside_column = w.inside(&x, &width);
                let inside = w.both(inside_row.as_ref(), inside_column.as_ref());
                let at = w.mad(&y, &width, &x);
                let address = w.at(&row.plane, &at, bytes);
                self.tap(w, accumulator, inside.as_ref(), &address, 0);
            });
        });
        Ok(())
    }
}

impl Body for Pooling {
    type Row = Row;

    fn row(&mut self, w: &mut Writer, outer: &[Int], _first: &Int) -> Result<Row, CodegenError> {
        let [height, width] = [&self.axes[0], &self.axes[1]].map(|a| w.size(&a.extent));
        let [out_height, out_width] = [&self.axes[0], &self.axes[1]].map(|a| w.size(&a.output));
        let size = w.mul(&height, &width);
        let plane = w.mul(&outer[0], &size);
        let plane = w.at(&self.from, &plane, self.dtypes[0].bytes() as u32);
        let line = w.mad(&outer[0], &out_height, &outer[1]);
        let line = w.mul(&line, &out_width);
        let to = w.at(&self.to, &line, self.dtypes[1].bytes() as u32);
        let top = self.axes[0].first(w, &outer[1]);
        let rows = self.counted(w, 0, &top);
        Ok(Row { plane, top, to, rows })
    }

    fn element(&mut self, w: &mut Writer, row: &Row, at: &Int) -> Result<(), CodegenError> {
        let left = self.axes[1].first(w, at);
        let accumulator = w.f32_variable(self.neutral());
        self.window(w, &accumulator, row, &left)?;
        let mut value = Operand::from(&accumulator);
        if matches!(self.kind, PoolKind::Average { .. }) {
            let columns = self.counted(w, 1, &left);
            let count = w.mul(&row.rows, &columns);
            let count = w.int_to_f32(&count);
            value = w.make(ScalarType::F32, "div.rn.f32", [value, count]).into();
        }
        let to = w.at(&row.to, at, self.dtypes[1].bytes() as u32);
        w.store_f32(self.dtypes[1], &value, &to, 0);
        Ok(())
    }
}
