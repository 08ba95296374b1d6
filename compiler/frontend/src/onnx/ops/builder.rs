//! Shorthands for emitting operators of the tensor graph, for ONNX operators that are composed of
//! several.

use super::super::error::{LowerResult, invalid};
use super::super::lowering::Lowering;
use super::layout;
use crate::nest::{NestArg, NestBuilder};
use crate::program::ProgramBuilder;
use crate::tensor::Tensor;
use crate::tensor_graph::{MatMul, Op, PointArg, PointOp, PointProgram, PointStep, Reduce, ReduceKind, ValueId};
use atoll_kgraph::{DType, Expr};

/// Builds one ONNX operator from several operators; all their names begin with `name`.
pub(super) struct Builder<'l> {
    pub(super) lowering: &'l mut Lowering,
    name: String,
}

impl<'l> Builder<'l> {
    pub(super) fn new(lowering: &'l mut Lowering, name: &str) -> Builder<'l> {
        Builder { lowering, name: name.into() }
    }

    fn named(&self, what: &str) -> String {
        format!("{}.{what}", self.name)
    }

    pub(super) fn dtype(&self, x: ValueId) -> DType {
        self.lowering.dtype(x)
    }

    pub(super) fn shape(&self, x: ValueId) -> Vec<Expr> {
        self.lowering.shape(x).to_vec()
    }

    /// The dimensions of a tensor that must have `N` of them.
    pub(super) fn dims<const N: usize>(&self, what: &str, x: ValueId) -> LowerResult<[Expr; N]> {
        let shape = self.shape(x);
        shape.try_into().map_or_else(
            |shape: Vec<Expr>| {
                invalid(format!("{what} has shape {}, but needs {N} dimensions", self.lowering.shape_text(&shape)))
            },
            Ok,
        )
    }

    /// One scalar operation on tensors that broadcast to each other. It computes in the type of the
    /// last operand.
    pub(super) fn point(&mut self, what: &str, op: PointOp, operands: &[ValueId]) -> LowerResult<ValueId> {
        let ty = operands.last().map_or(DType::F32, |id| self.dtype(*id));
        self.program(what, operands, result_type(op, ty), |p, args| {
            p.step(op, ty, args);
        })
    }

    /// A scalar program on tensors that broadcast to each other.
    pub(super) fn program(
        &mut self,
        what: &str,
        operands: &[ValueId],
        dtype: DType,
        build: impl FnOnce(&mut ProgramBuilder, &[PointArg]),
    ) -> LowerResult<ValueId> {
        self.lowering.pointwise(&self.named(what), operands, dtype, build)
    }

    pub(super) fn add(&mut self, what: &str, a: ValueId, b: ValueId) -> LowerResult<ValueId> {
        self.point(what, PointOp::Add, &[a, b])
    }

    pub(super) fn mul(&mut self, what: &str, a: ValueId, b: ValueId) -> LowerResult<ValueId> {
        self.point(what, PointOp::Mul, &[a, b])
    }

    /// `op(x, number)`.
    pub(super) fn with_number(&mut self, what: &str, op: PointOp, x: ValueId, number: f64) -> LowerResult<ValueId> {
        let ty = self.dtype(x);
        self.program(what, &[x], result_type(op, ty), |p, args| {
            p.step(op, ty, &[args[0], PointArg::Const(number)]);
        })
    }

    /// `then` where the condition is true, else `other`; the operands broadcast to each other.
    pub(super) fn select(
        &mut self,
        what: &str,
        condition: ValueId,
        then: ValueId,
        other: ValueId,
    ) -> LowerResult<ValueId> {
        self.point(what, PointOp::Where, &[condition, then, other])
    }

    /// `x` where the condition is true, else a number.
    pub(super) fn select_or(
        &mut self,
        what: &str,
        condition: ValueId,
        x: ValueId,
        number: f64,
    ) -> LowerResult<ValueId> {
        let ty = self.dtype(x);
        self.program(what, &[condition, x], ty, |p, args| {
            p.step(PointOp::Where, ty, &[args[0], args[1], PointArg::Const(number)]);
        })
    }

    pub(super) fn cast(&mut self, what: &str, x: ValueId, dtype: DType) -> LowerResult<ValueId> {
        self.lowering.cast(&self.named(what), x, dtype)
    }

    pub(super) fn constant(&mut self, what: &str, tensor: &Tensor) -> ValueId {
        self.lowering.constant(&self.named(what), tensor)
    }

    pub(super) fn fill(&mut self, what: &str, dtype: DType, shape: Vec<Expr>, number: f64) -> LowerResult<ValueId> {
        self.lowering.fill(&self.named(what), dtype, shape, number)
    }

    pub(super) fn reshape(&mut self, what: &str, x: ValueId, shape: Vec<Expr>) -> LowerResult<ValueId> {
        self.lowering.reshape(&self.named(what), x, shape)
    }

    pub(super) fn transpose(&mut self, what: &str, x: ValueId, permutation: &[usize]) -> LowerResult<ValueId> {
        self.lowering.transpose(&self.named(what), x, permutation.to_vec())
    }

    /// A slice of `size` elements from `start` along an axis.
    pub(super) fn part(
        &mut self,
        what: &str,
        x: ValueId,
        axis: usize,
        start: impl Into<Expr>,
        size: impl Into<Expr>,
    ) -> LowerResult<ValueId> {
        let (start, size) = (start.into(), size.into());
        if start.as_const() == Some(0) && self.lowering.shape(x)[axis] == size {
            return Ok(x);
        }
        layout::part(self.lowering, &self.named(what), x, axis, start, size)
    }

    /// The element at `index` of an axis; the axis is removed.
    pub(super) fn element(&mut self, what: &str, x: ValueId, axis: usize, index: i64) -> LowerResult<ValueId> {
        layout::element(self.lowering, &self.named(what), x, axis, index)
    }

    /// Concatenates tensors along an axis.
    pub(super) fn join(&mut self, what: &str, parts: &[ValueId], axis: usize) -> LowerResult<ValueId> {
        layout::join(self.lowering, &self.named(what), parts, axis)
    }

    /// Stacks tensors of one shape along a new axis.
    pub(super) fn stack(&mut self, what: &str, parts: &[ValueId], axis: usize) -> LowerResult<ValueId> {
        layout::stack(self.lowering, &self.named(what), parts, axis)
    }

    pub(super) fn gather(&mut self, what: &str, data: ValueId, indices: ValueId, axis: usize) -> LowerResult<ValueId> {
        let shape = self.lowering.shape(data);
        let shape = [&shape[..axis], self.lowering.shape(indices), &shape[axis + 1..]].concat();
        self.lowering.emit_one(&self.named(what), Op::Gather { axis }, &[data, indices], self.dtype(data), shape)
    }

    /// Matrix product of the two innermost dimensions; the others broadcast. With `transpose_b`,
    /// `b` is stored as `[..., N, K]`.
    pub(super) fn matmul(&mut self, what: &str, a: ValueId, b: ValueId, transpose_b: bool) -> LowerResult<ValueId> {
        let (a_shape, b_shape) = (self.shape(a), self.shape(b));
        if a_shape.len() < 2 || b_shape.len() < 2 || self.dtype(a) != self.dtype(b) {
            return invalid(format!(
                "it multiplies operands of shapes {} and {}; it needs matrices of one type",
                self.lowering.shape_text(&a_shape),
                self.lowering.shape_text(&b_shape)
            ));
        }
        let (a_lead, a_matrix) = a_shape.split_at(a_shape.len() - 2);
        let (b_lead, b_matrix) = b_shape.split_at(b_shape.len() - 2);
        let (inner, columns) = if transpose_b { (&b_matrix[1], &b_matrix[0]) } else { (&b_matrix[0], &b_matrix[1]) };
        self.lowering.equal_dims(a_matrix[1].clone(), inner.clone())?;
        let mut shape = self.lowering.broadcast_shapes(a_lead, b_lead)?;
        let (name, fitting) = (self.named(what), [[&shape, a_matrix].concat(), [&shape, b_matrix].concat()]);
        let a = self.lowering.fit(&format!("{name}.a"), a, &fitting[0])?;
        let b = self.lowering.fit(&format!("{name}.b"), b, &fitting[1])?;
        shape.extend([a_matrix[0].clone(), columns.clone()]);
        let op = Op::MatMul(MatMul { transpose_a: false, transpose_b, epilogue: PointProgram::default() });
        self.lowering.emit_one(&self.named(what), op, &[a, b], self.dtype(a), shape)
    }

    /// The last axis of `x`. A scalar, which has no axis, is an error.
    fn last_axis(&self, x: ValueId) -> LowerResult<usize> {
        match self.lowering.rank(x).checked_sub(1) {
            Some(axis) => Ok(axis),
            None => invalid("it normalises or reduces the last axis, and the operand is a scalar, which has no axis"),
        }
    }

    pub(super) fn softmax(&mut self, what: &str, x: ValueId) -> LowerResult<ValueId> {
        let op = Op::Softmax { axis: self.last_axis(x)?, log: false };
        self.lowering.emit_one(&self.named(what), op, &[x], self.dtype(x), self.shape(x))
    }

    /// Reduces the last axis and keeps it with extent 1.
    pub(super) fn reduce_last(&mut self, what: &str, kind: ReduceKind, x: ValueId) -> LowerResult<ValueId> {
        let mut shape = self.shape(x);
        let axis = self.last_axis(x)?;
        shape[axis] = Expr::Const(1);
        let op = Op::Reduce(Reduce { kind, axes: vec![axis], keep_dims: true });
        self.lowering.emit_one(&self.named(what), op, &[x], self.dtype(x), shape)
    }

    /// Layer normalisation over the last axis.
    pub(super) fn layer_norm(
        &mut self,
        what: &str,
        x: ValueId,
        scale: ValueId,
        bias: Option<ValueId>,
        epsilon: f32,
    ) -> LowerResult<ValueId> {
        let shape = self.shape(x);
        let inputs: Vec<ValueId> = [x, scale].into_iter().chain(bias).collect();
        let axis = self.last_axis(x)?;
        let row = &shape[axis];
        for operand in &inputs[1..] {
            let own = self.shape(*operand).last().cloned().unwrap_or(Expr::Const(1));
            self.lowering.equal_dims(own, row.clone())?;
        }
        let op = Op::LayerNorm { axis, epsilon };
        self.lowering.emit_one(&self.named(what), op, &inputs, self.dtype(x), shape)
    }

    /// `1 / sqrt(mean(x) + epsilon)` over the last axis, which is kept with extent 1.
    pub(super) fn inverse_root(&mut self, what: &str, x: ValueId, epsilon: f32) -> LowerResult<ValueId> {
        let mean = self.reduce_last("mean", ReduceKind::Mean, x)?;
        let ty = self.dtype(x);
        self.program(what, &[mean], ty, |p, x| {
            let sum = p.step(PointOp::Add, ty, &[x[0], PointArg::Const(epsilon.into())]);
            let root = p.step(PointOp::Sqrt, ty, &[sum]);
            p.step(PointOp::Reciprocal, ty, &[root]);
        })
    }

    /// Combines `past [B, N, P, D]` and `new [B, N, S, D]` into a tensor of `columns` rows:
    /// sequence `b` has `before[b]` rows of the past, then the new rows, then zeros.
    pub(super) fn placed(
        &mut self,
        what: &str,
        past: Option<ValueId>,
        new: ValueId,
        before: ValueId,
        columns: &Expr,
    ) -> LowerResult<ValueId> {
        let ty = self.dtype(new);
        let new_shape = self.shape(new);
        let past_shape = past.map(|past| self.shape(past));
        let mut shape = new_shape.clone();
        shape[2] = columns.clone();
        let mut nest = NestBuilder::new("placed", shape.clone());
        let point = nest.point();
        let wide = nest.load(1, DType::I64, &point[0]);
        let count = nest.cast(&wide, DType::I32);
        let element = nest.variable(ty, &NestArg::Const(0.0));
        let row = nest.sub(&point[2], &count);
        let is_new = nest.inside(&row, &(&new_shape[2]).into());
        nest.when(&is_new, |nest| {
            let at = nest.offset(&new_shape, &[point[0].clone(), point[1].clone(), row.clone(), point[3].clone()]);
            let loaded = nest.load(0, ty, &at);
            nest.set(&element, &loaded);
        });
        if let Some(past_shape) = past_shape {
            let is_before = nest.compare(PointOp::Less, DType::I32, &point[2], &count);
            let is_there = nest.inside(&point[2], &(&past_shape[2]).into());
            let is_past = nest.both(&is_before, &is_there);
            nest.when(&is_past, |nest| {
                let at = nest.offset(&past_shape, &point);
                let loaded = nest.load(2, ty, &at);
                nest.set(&element, &loaded);
            });
        }
        let at = nest.offset(&shape, &point);
        nest.store(0, &at, &element);
        let operands: Vec<ValueId> = [new, before].into_iter().chain(past).collect();
        self.lowering.emit_one(&self.named(what), Op::Nest(nest.finish()), &operands, ty, shape)
    }

    /// The `count` numbers `start, start + 1, ...` as I64.
    pub(super) fn positions(&mut self, what: &str, count: &Expr, start: &Expr) -> LowerResult<ValueId> {
        super::pieces::positions_from(self.lowering, &self.named(what), DType::I64, start, count)
    }
}

fn result_type(op: PointOp, ty: DType) -> DType {
    PointStep { op, ty, args: Vec::new() }.result_type()
}
