//! Reductions: by a warp if the innermost axis is reduced, otherwise by single threads.

use crate::error::CodegenError;
use crate::scalar::{Scalar, held_as, is_float};
use crate::schedule::Tensor;
use crate::strides::{self, Walk};
use crate::sweep::{self, Body};
use crate::target::TargetDescription;
use crate::warps;
use crate::writer::{Int, Writer, Written};
use atoll_frontend::tensor::int_bounds;
use atoll_frontend::tensor_graph::{Reduce, ReduceKind};
use atoll_kgraph::{DType, Expr};
use atoll_ptx::{Name, Operand};

/// Reduces some axes of the input.
pub(crate) fn reduce(
    target: &TargetDescription,
    reduce: &Reduce,
    input: &Tensor,
    output: &Tensor,
) -> Result<Written, CodegenError> {
    let kept: Vec<Expr> = input
        .shape
        .iter()
        .enumerate()
        .map(|(axis, dim)| if reduce.axes.contains(&axis) { Expr::Const(1) } else { dim.clone() })
        .collect();
    let dense = strides::dense(&kept);
    let result: Vec<Expr> = dense
        .iter()
        .enumerate()
        .map(|(axis, s)| if reduce.axes.contains(&axis) { Expr::Const(0) } else { s.clone() })
        .collect();
    let walk = Walk::collapsed(&input.shape, &[input.strides(), result]);
    let reduction = Reduction::new(reduce, input, output, &walk);
    let is_lane_axis_reduced = walk.strides[1].last() == Some(&Expr::Const(0));
    // Lanes exchange 32 bits at a time, and only float reductions are worth it.
    let is_by_warp = is_lane_axis_reduced && is_float(input.dtype) && input.dtype != DType::F64;
    if is_by_warp { by_warp(target, &reduction) } else { by_thread(target, reduction) }
}

/// A reduction over collapsed axes.
struct Reduction<'a> {
    kind: ReduceKind,
    input: &'a Tensor,
    output: &'a Tensor,
    /// Kept dimensions and the input's strides along them.
    kept: (Vec<Expr>, Vec<Expr>),
    /// Reduced dimensions and the input's strides along them.
    reduced: (Vec<Expr>, Vec<Expr>),
    /// The type of the accumulator.
    ty: DType,
}

impl<'a> Reduction<'a> {
    fn new(reduce: &Reduce, input: &'a Tensor, output: &'a Tensor, walk: &Walk) -> Reduction<'a> {
        let (mut kept, mut reduced) = ((Vec::new(), Vec::new()), (Vec::new(), Vec::new()));
        for (axis, dim) in walk.dims.iter().enumerate() {
            let side = if walk.strides[1][axis] == Expr::Const(0) { &mut reduced } else { &mut kept };
            side.0.push(dim.clone());
            side.1.push(walk.strides[0][axis].clone());
        }
        let ty = match input.dtype {
            DType::F64 => DType::F64,
            other if is_float(other) => DType::F32,
            other => other,
        };
        Reduction { kind: reduce.kind, input, output, kept, reduced, ty }
    }

    fn start(&self, w: &mut Writer) -> Name {
        let ty = held_as(self.ty);
        let (lowest, highest) = match self.ty {
            DType::F32 | DType::F64 => (f64::NEG_INFINITY, f64::INFINITY),
            ty => {
                let (low, high) = int_bounds(ty);
                (low as f64, high as f64)
            }
        };
        let value = match self.kind {
            ReduceKind::Sum | ReduceKind::Mean | ReduceKind::SumSquare | ReduceKind::L2 => 0.0,
            ReduceKind::Prod => 1.0,
            ReduceKind::Max => lowest,
            // The bit pattern of the largest value.
            ReduceKind::Min if self.ty == DType::U64 => -1.0,
            ReduceKind::Min => highest,
        };
        let value = w.constant(self.ty, value).operand;
        w.make(ty, &format!("mov.{ty}"), [value])
    }

    /// Combines two partial results.
    fn join(&self, w: &mut Writer, a: &Operand, b: &Operand) -> Operand {
        let ty = held_as(self.ty);
        if is_float(self.ty) && matches!(self.kind, ReduceKind::Max | ReduceKind::Min) {
            let mut real = w.real(ty);
            return if self.kind == ReduceKind::Max { real.max(a, b) } else { real.min(a, b) };
        }
        let dotted = match self.kind {
            ReduceKind::Max => format!("max.{ty}"),
            ReduceKind::Min => format!("min.{ty}"),
            ReduceKind::Prod if is_float(self.ty) => format!("mul.{ty}"),
            ReduceKind::Prod => format!("mul.lo.{ty}"),
            _ => format!("add.{ty}"),
        };
        w.make(ty, &dotted, [a.clone(), b.clone()]).into()
    }

    /// Adds the element at an address to the accumulator.
    fn take(&self, w: &mut Writer, accumulator: &Name, address: &Name) {
        let ty = held_as(self.ty);
        let value = w.load(self.input.dtype, address, 0);
        let mut value = w.cast(&value, self.ty).operand;
        if matches!(self.kind, ReduceKind::SumSquare | ReduceKind::L2) {
            let dotted = if is_float(self.ty) { format!("mul.{ty}") } else { format!("mul.lo.{ty}") };
            value = w.make(ty, &dotted, [value.clone(), value]).into();
        }
        let joined = self.join(w, &accumulator.into(), &value);
        w.set(accumulator, &joined, ty);
    }

    /// The result, from the final accumulator.
    fn finish(&self, w: &mut Writer, accumulator: &Operand) -> Scalar {
        let whole = Scalar { dtype: self.ty, operand: accumulator.clone() };
        let result = match self.kind {
            ReduceKind::Mean => {
                let count = w.size(&Expr::product(&self.reduced.0));
                self.divided(w, &whole, &count)
            }
            ReduceKind::L2 => {
                let dtype = if self.ty == DType::F32 { DType::F32 } else { DType::F64 };
                let value = w.cast(&whole, dtype).operand;
                Scalar { dtype, operand: w.real(held_as(dtype)).sqrt(&value) }
            }
            _ => w.wrapped(&whole),
        };
        w.cast(&result, self.output.dtype)
    }

    fn divided(&self, w: &mut Writer, sum: &Scalar, count: &Int) -> Scalar {
        let ty = held_as(self.ty);
        let count = match count {
            Int::Known(count) => w.constant(self.ty, *count as f64),
            Int::Reg(register) => w.cast(&Scalar { dtype: DType::I32, operand: register.into() }, self.ty),
        };
        let dotted = if is_float(self.ty) { format!("div.rn.{ty}") } else { format!("div.{ty}") };
        Scalar { dtype: self.ty, operand: w.make(ty, &dotted, [sum.operand.clone(), count.operand]).into() }
    }
}

/// One warp per result; lanes along the innermost reduced axis.
fn by_warp(target: &TargetDescription, reduction: &Reduction<'_>) -> Result<Written, CodegenError> {
    let mut w = Writer::new("reduce");
    let (from, to) = (w.base(reduction.input), w.base(reduction.output));
    let bytes = reduction.input.element_bytes();
    let items = Expr::product(&reduction.kept.0);
    let elements = Expr::product(&reduction.reduced.0).as_const();
    warps::per_item(w, target, &items, elements, |w, item| {
        let indices = sweep::unravel(w, item, &reduction.kept.0);
        let start = sweep::offset(w, &indices, &reduction.kept.1);
        let line = w.at(&from, &start, bytes);
        let accumulator = reduction.start(w);
        let (length, dims) =
            reduction.reduced.0.split_last().ok_or_else(|| CodegenError::inconsistent("nothing to reduce"))?;
        let (stride, strides) =
            reduction.reduced.1.split_last().ok_or_else(|| CodegenError::inconsistent("nothing to reduce"))?;
        let (length, stride) = (w.size(length), w.size(stride));
        w.nested(dims, strides, &Int::Known(0), &mut |w, at| {
            let line = w.at(&line, at, bytes);
            let cursor = w.lane_cursor(&line, &stride, bytes);
            w.along(&length, &[&cursor], |w| {
                reduction.take(w, &accumulator, &cursor.address);
                Ok(())
            })
        })?;
        let whole = w.combine_lanes(&(&accumulator).into(), |w, a, b| reduction.join(w, a, b));
        let value = reduction.finish(w, &whole);
        store_by_first_lane(w, &value, &to, item);
        Ok(())
    })
}

/// Stores a value that all lanes have, by the first lane.
fn store_by_first_lane(w: &mut Writer, value: &Scalar, to: &Name, item: &Int) {
    let address = w.at(to, item, value.dtype.bytes() as u32);
    let lane = w.special("%tid.x");
    let is_first = w.compare("eq.u32", &lane, &Int::Known(0));
    w.when(Some(&is_first), |w| w.store(value, &address, 0));
}

/// One thread per result.
fn by_thread(target: &TargetDescription, reduction: Reduction<'_>) -> Result<Written, CodegenError> {
    let mut w = Writer::new("reduce");
    let (from, to) = (w.base(reduction.input), w.base(reduction.output));
    let taps =
        Expr::product(&reduction.reduced.0).as_const().unwrap_or(64).clamp(1, i64::from(target.elements_per_block))
            as u32;
    let dims = reduction.kept.0.clone();
    let mut body = ByThread { reduction, from, to };
    sweep::sweep(w, target, &dims, (target.elements_per_block / taps).max(1), &mut body)
}

struct ByThread<'a> {
    reduction: Reduction<'a>,
    from: Name,
    to: Name,
}

impl Body for ByThread<'_> {
    type Row = (Int, Int);

    fn row(&mut self, w: &mut Writer, outer: &[Int], _first: &Int) -> Result<(Int, Int), CodegenError> {
        let (dims, strides) = &self.reduction.kept;
        let outer_count = dims.len().saturating_sub(1);
        let source = sweep::offset(w, outer, &strides[..outer_count]);
        let result = sweep::offset(w, outer, &strides::dense(dims)[..outer_count]);
        Ok((source, result))
    }

    fn element(&mut self, w: &mut Writer, row: &(Int, Int), at: &Int) -> Result<(), CodegenError> {
        let bytes = self.reduction.input.element_bytes();
        let stride = self.reduction.kept.1.last().map_or(Int::Known(0), |s| w.size(s));
        let source = w.mad(at, &stride, &row.0);
        let line = w.at(&self.from, &source, bytes);
        let accumulator = self.reduction.start(w);
        let (dims, strides) = &self.reduction.reduced;
        w.nested(dims, strides, &Int::Known(0), &mut |w, at| {
            let address = w.at(&line, at, bytes);
            self.reduction.take(w, &accumulator, &address);
            Ok(())
        })?;
        let value = self.reduction.finish(w, &accumulator.into());
        let result = if self.reduction.kept.0.is_empty() { Int::Known(0) } else { w.add(&row.1, at) };
        let to = w.at(&self.to, &result, value.dtype.bytes() as u32);
        w.store(&value, &to, 0);
        Ok(())
    }
}
