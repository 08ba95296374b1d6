//! Softmax and its logarithm: maximum, sum of exponentials, quotient.

use crate::error::CodegenError;
use crate::schedule::Tensor;
use crate::sweep::{self, Body};
use crate::target::TargetDescription;
use crate::warps;
use crate::writer::{Int, Writer, Written};
use atoll_kgraph::{DType, Expr};
use atoll_ptx::{Name, Operand, ScalarType};

/// Normalises along an axis.
pub(crate) fn softmax(
    target: &TargetDescription,
    axis: usize,
    log: bool,
    input: &Tensor,
    output: &Tensor,
) -> Result<Written, CodegenError> {
    if input.dtype == DType::F64 {
        return Err(CodegenError::unsupported("a softmax of F64"));
    }
    let inner = Expr::product(&input.shape[axis + 1..]);
    let outer = Expr::product(&input.shape[..axis]);
    let length = input.shape[axis].clone();
    if inner == Expr::Const(1) {
        return along_rows(target, &outer, &length, log, input, output);
    }
    let mut w = Writer::new("softmax");
    let (from, to) = (w.base(input), w.base(output));
    let taps = length.as_const().unwrap_or(64).clamp(1, 256) as u32;
    let mut body = Strided { from, to, length, inner: inner.clone(), log, dtype: input.dtype };
    sweep::sweep(w, target, &[outer, inner], (target.elements_per_block / taps).max(1), &mut body)
}

/// The axis is the innermost one: one warp per row.
fn along_rows(
    target: &TargetDescription,
    rows: &Expr,
    length: &Expr,
    log: bool,
    input: &Tensor,
    output: &Tensor,
) -> Result<Written, CodegenError> {
    let mut w = Writer::new("softmax");
    let (from, to) = (w.base(input), w.base(output));
    let (dtype, bytes) = (input.dtype, input.element_bytes());
    warps::per_item(w, target, rows, length.as_const(), |w, row| {
        let length = w.size(length);
        let start = w.mul(row, &length);
        let one = Int::Known(1);
        let (source, result) = (w.at(&from, &start, bytes), w.at(&to, &start, bytes));

        let greatest = w.f32_variable(f32::NEG_INFINITY);
        let read = w.lane_cursor(&source, &one, bytes);
        w.along(&length, &[&read], |w| {
            let x = w.load_f32(dtype, &read.address, 0);
            w.emit("max.f32", [(&greatest).into(), (&greatest).into(), x]);
            Ok(())
        })?;
        let greatest = w.combine_lanes(&greatest.into(), |w, a, b| w.fmax(a, b));

        // If the result type can hold the exponentials exactly, they are stored in the result, so
        // that they are computed once.
        let keeps = dtype == DType::F32 && !log;
        let sum = w.f32_variable(0.0);
        let read = w.lane_cursor(&source, &one, bytes);
        let write = w.lane_cursor(&result, &one, bytes);
        w.along(&length, &[&read, &write], |w| {
            let power = shifted_power(w, dtype, &read.address, &greatest).1;
            if keeps {
                w.store_f32(dtype, &power, &write.address, 0);
            }
            w.emit("add.f32", [(&sum).into(), (&sum).into(), power]);
            Ok(())
        })?;
        let sum = w.combine_lanes(&sum.into(), |w, a, b| w.fadd(a, b));
        let scale = Scale::new(w, &sum, log);

        let read = w.lane_cursor(if keeps { &result } else { &source }, &one, bytes);
        let write = w.lane_cursor(&result, &one, bytes);
        w.along(&length, &[&read, &write], |w| {
            let value = if keeps {
                let power = w.load_f32(dtype, &read.address, 0);
                w.fmul(&power, &scale.factor)
            } else {
                scale.apply(w, dtype, &read.address, &greatest)
            };
            w.store_f32(dtype, &value, &write.address, 0);
            Ok(())
        })
    })
}

/// `x - greatest` and its exponential.
fn shifted_power(w: &mut Writer, dtype: DType, address: &Name, greatest: &Operand) -> (Operand, Operand) {
    let x = w.load_f32(dtype, address, 0);
    let shifted = w.fsub(&x, greatest);
    let power = w.exp(&shifted);
    (shifted, power)
}

/// How an element is scaled by the sum.
struct Scale {
    log: bool,
    /// `1 / sum`, or `ln(sum)`.
    factor: Operand,
}

impl Scale {
    fn new(w: &mut Writer, sum: &Operand, log: bool) -> Scale {
        let factor = if log { w.log(sum) } else { w.f32("rcp.rn.f32", [sum.clone()]) };
        Scale { log, factor }
    }

    fn apply(&self, w: &mut Writer, dtype: DType, address: &Name, greatest: &Operand) -> Operand {
        if self.log {
            let x = w.load_f32(dtype, address, 0);
            let shifted = w.fsub(&x, greatest);
            return w.fsub(&shifted, &self.factor);
        }
        let power = shifted_power(w, dtype, address, greatest).1;
        w.fmul(&power, &self.factor)
    }
}

/// The axis is an outer one: one thread per line, adjacent threads on adjacent lines.
struct Strided {
    from: Name,
    to: Name,
    length: Expr,
    inner: Expr,
    log: bool,
    dtype: DType,
}

impl Strided {
    /// Calls `body` with the address offset of every element of a line.
    fn line(
        &self,
        w: &mut Writer,
        mut body: impl FnMut(&mut Writer, &Int) -> Result<(), CodegenError>,
    ) -> Result<(), CodegenError> {
        let dims = [self.length.clone()];
        let strides = [self.inner.clone()];
        w.nested(&dims, &strides, &Int::Known(0), &mut body)
    }
}

impl Body for Strided {
    type Row = Int;

    fn row(&mut self, w: &mut Writer, outer: &[Int], _first: &Int) -> Result<Int, CodegenError> {
        let (length, inner) = (w.size(&self.length), w.size(&self.inner));
        let line = w.mul(&outer[0], &length);
        Ok(w.mul(&line, &inner))
    }

    fn element(&mut self, w: &mut Writer, row: &Int, at: &Int) -> Result<(), CodegenError> {
        let bytes = self.dtype.bytes() as u32;
        let start = w.add(row, at);
        let (source, result) = (w.at(&self.from, &start, bytes), w.at(&self.to, &start, bytes));
        let greatest = w.f32_variable(f32::NEG_INFINITY);
        self.line(w, |w, at| {
            let address = w.at(&source, at, bytes);
            let x = w.load_f32(self.dtype, &address, 0);
            w.emit("max.f32", [(&greatest).into(), (&greatest).into(), x]);
            Ok(())
        })?;
        let greatest = Operand::from(greatest);
        let sum = w.make(ScalarType::F32, "mov.f32", [0.0f32.into()]);
        self.line(w, |w, at| {
            let address = w.at(&source, at, bytes);
            let power = shifted_power(w, self.dtype, &address, &greatest).1;
            w.emit("add.f32", [(&sum).into(), (&sum).into(), power]);
            Ok(())
        })?;
        let scale = Scale::new(w, &sum.into(), self.log);
        self.line(w, |w, at| {
            let (address, to) = (w.at(&source, at, bytes), w.at(&result, at, bytes));
            let value = scale.apply(w, self.dtype, &address, &greatest);
            w.store_f32(self.dtype, &value, &to, 0);
            Ok(())
        })
    }
}
