//! One warp per item: reductions of a row by 32 lanes.

use crate::error::CodegenError;
use crate::target::TargetDescription;
use crate::writer::{Int, LANES, Writer, Written};
use atoll_kgraph::{DType, Expr};
use atoll_ptx::{Name, Operand, ScalarType};

/// Writes the kernel in which one warp handles each of `items`; `elements` is the size of an item,
/// if it is known.
pub(crate) fn per_item(
    mut w: Writer,
    target: &TargetDescription,
    items: &Expr,
    elements: Option<i64>,
    body: impl FnOnce(&mut Writer, &Int) -> Result<(), CodegenError>,
) -> Result<Written, CodegenError> {
    let per_warp = match elements {
        Some(elements) => (i64::from(target.elements_per_block / target.warps) / elements.max(1)).clamp(1, 64) as u32,
        None => 1,
    };
    let per_block = per_warp * target.warps;
    let count = w.size(items);
    let warp = w.special("%tid.y");
    let block = w.special("%ctaid.x");
    let first = w.mad(&block, &per_block.into(), &warp);
    let mut outcome = Ok(());
    w.count(&0.into(), &per_block.into(), &target.warps.into(), |w, round| {
        let item = w.add(&first, round);
        let guard = w.compare("lt.u32", &item, &count);
        w.when(Some(&guard), |w| outcome = body(w, &item));
    });
    outcome?;
    let grid = items.clone().ceil_div(i64::from(per_block));
    Ok(w.finish([LANES, target.warps, 1], [grid, Expr::Const(1), Expr::Const(1)]))
}

/// An address that advances along a row, and its stride in elements.
pub(crate) struct Cursor {
    pub(crate) address: Name,
    pub(crate) stride: Int,
    pub(crate) bytes: u32,
}

impl Writer {
    /// A cursor at this lane's first element of a row that starts at `line`.
    pub(crate) fn lane_cursor(&mut self, line: &Name, stride: &Int, bytes: u32) -> Cursor {
        let lane = self.special("%tid.x");
        let start = self.mul(&lane, stride);
        let address = self.at(line, &start, bytes);
        Cursor { address: self.cursor(&address), stride: stride.clone(), bytes }
    }

    /// Runs `body` for every element of a row of `length`, 32 at a time, and advances the cursors.
    pub(crate) fn along(
        &mut self,
        length: &Int,
        cursors: &[&Cursor],
        mut body: impl FnMut(&mut Writer) -> Result<(), CodegenError>,
    ) -> Result<(), CodegenError> {
        let lane = self.special("%tid.x");
        let (rounds, rest) = self.div_rem(length, &LANES.into());
        let mut outcome = Ok(());
        self.count(&0.into(), &rounds, &1.into(), |w, _| {
            outcome = body(w);
            for cursor in cursors {
                let step = w.mul(&cursor.stride, &LANES.into());
                w.advance(&cursor.address, &step, cursor.bytes);
            }
        });
        outcome?;
        if rest.is(0) {
            return Ok(());
        }
        let mut outcome = Ok(());
        let guard = self.compare("lt.u32", &lane, &rest);
        self.when(Some(&guard), |w| outcome = body(w));
        outcome
    }

    /// Reduces a value over all lanes; every lane gets the result.
    pub(crate) fn combine_lanes(
        &mut self,
        value: &Operand,
        combine: impl Fn(&mut Writer, &Operand, &Operand) -> Operand,
    ) -> Operand {
        let mut value = value.clone();
        for mask in [16, 8, 4, 2, 1] {
            let other = self.shuffle(&value, mask);
            value = combine(self, &value, &other);
        }
        value
    }

    /// Emits nested loops over `dims`, and calls `body` with the sum of indices times `strides`.
    pub(crate) fn nested(
        &mut self,
        dims: &[Expr],
        strides: &[Expr],
        base: &Int,
        body: &mut dyn FnMut(&mut Writer, &Int) -> Result<(), CodegenError>,
    ) -> Result<(), CodegenError> {
        let Some((dim, dims)) = dims.split_first() else { return body(self, base) };
        let (extent, stride) = (self.size(dim), self.size(&strides[0]));
        let mut outcome = Ok(());
        self.count(&0.into(), &extent, &1.into(), |w, index| {
            let at = w.mad(index, &stride, base);
            outcome = w.nested(dims, &strides[1..], &at, body);
        });
        outcome
    }

    /// Loads an element as f32.
    pub(crate) fn load_f32(&mut self, dtype: DType, address: &Name, offset: i64) -> Operand {
        let value = self.load(dtype, address, offset);
        self.cast(&value, DType::F32).operand
    }

    /// Stores an f32 as an element.
    pub(crate) fn store_f32(&mut self, dtype: DType, value: &Operand, address: &Name, offset: i64) {
        let value = self.cast(&crate::scalar::Scalar::f32(value.clone()), dtype);
        self.store(&value, address, offset);
    }

    /// An unsigned integer as f32.
    pub(crate) fn int_to_f32(&mut self, value: &Int) -> Operand {
        match value {
            Int::Known(known) => (*known as f32).into(),
            Int::Reg(name) => self.make(ScalarType::F32, "cvt.rn.f32.s32", [name.into()]).into(),
        }
    }

    /// Assigns a new value to a register.
    pub(crate) fn set(&mut self, register: &Name, value: &Operand, ty: ScalarType) {
        self.emit(&format!("mov.{ty}"), [register.into(), value.clone()]);
    }
}
