//! Small compositions that several operators share.

use super::super::error::LowerResult;
use super::super::lowering::Lowering;
use super::layout;
use crate::nest::NestBuilder;
use crate::tensor::{Tensor, is_float};
use crate::tensor_graph::{MatMul, Op, PointOp, PointProgram, Reduce, ReduceKind, ValueId};
use atoll_kgraph::{DType, Expr};

/// Longest axis whose positions are a constant.
const POSITIONS_MAX: i64 = 1 << 24;

/// `0, 1, 2, ...` along `axis` of a tensor with `rank` dimensions; the other dimensions are 1.
pub(super) fn positions(
    lowering: &mut Lowering,
    name: &str,
    ty: DType,
    rank: usize,
    axis: usize,
    dim: &Expr,
) -> LowerResult<ValueId> {
    let mut shape = vec![Expr::Const(1); rank];
    shape[axis] = dim.clone();
    let numbers = positions_from(lowering, name, ty, &Expr::Const(0), dim)?;
    lowering.reshape(name, numbers, shape)
}

/// The `count` numbers `start, start + 1, ...`.
pub(super) fn positions_from(
    lowering: &mut Lowering,
    name: &str,
    ty: DType,
    start: &Expr,
    count: &Expr,
) -> LowerResult<ValueId> {
    if let (Some(count), Some(start)) =
        (count.as_const().filter(|count| (0..=POSITIONS_MAX).contains(count)), start.as_const())
    {
        let (shape, numbers) = (vec![count as usize], start..start + count);
        let tensor = match is_float(ty) {
            true => Tensor::floats(ty, shape, numbers.map(|i| i as f64)),
            false => Tensor::ints(ty, shape, numbers),
        };
        return Ok(lowering.constant(name, &tensor));
    }
    let mut nest = NestBuilder::new("positions", vec![count.clone()]);
    let at = nest.point()[0].clone();
    let moved = nest.add(&at, &start.into());
    let value = if ty == DType::I32 { nest.variable(ty, &moved) } else { nest.cast(&moved, ty) };
    nest.store(0, &at, &value);
    lowering.emit_one(name, Op::Nest(nest.finish()), &[], ty, vec![count.clone()])
}

/// Emits a reduction.
pub(super) fn reduce(
    lowering: &mut Lowering,
    name: &str,
    x: ValueId,
    kind: ReduceKind,
    axes: Vec<usize>,
    keep_dims: bool,
) -> LowerResult<ValueId> {
    super::reduce::one(lowering, name, x, Reduce { kind, axes, keep_dims })
}

/// One scalar operation on operands of one type that broadcast to each other.
pub(super) fn point(lowering: &mut Lowering, name: &str, op: PointOp, inputs: &[ValueId]) -> LowerResult<ValueId> {
    let ty = lowering.dtype(inputs[0]);
    lowering.pointwise(name, inputs, ty, |p, x| {
        p.step(op, ty, x);
    })
}

/// `count` elements from `start` along an axis.
pub(super) fn part(
    lowering: &mut Lowering,
    name: &str,
    x: ValueId,
    axis: usize,
    start: i64,
    count: Expr,
) -> LowerResult<ValueId> {
    if start == 0 && lowering.shape(x)[axis] == count {
        return Ok(x);
    }
    layout::part(lowering, name, x, axis, start.into(), count)
}

/// `a [B, M, K]` times `b [B, K, N]`; the leading dimension of either may be 1. For types that the
/// matrix kernels do not support (integers, f64), a sum of products.
pub(super) fn product(
    lowering: &mut Lowering,
    name: &str,
    a: ValueId,
    b: ValueId,
    transpose_a: bool,
    transpose_b: bool,
) -> LowerResult<ValueId> {
    let dtype = lowering.dtype(a);
    let (a_shape, b_shape) = (lowering.shape(a).to_vec(), lowering.shape(b).to_vec());
    let (m, k) = if transpose_a { (&a_shape[2], &a_shape[1]) } else { (&a_shape[1], &a_shape[2]) };
    let n = if transpose_b { &b_shape[1] } else { &b_shape[2] };
    let is_dot = m.as_const() == Some(1) && n.as_const() == Some(1);
    let batch = lowering.broadcast_shapes(&a_shape[..1], &b_shape[..1])?;
    let shape = vec![batch[0].clone(), m.clone(), n.clone()];
    if matches!(dtype, DType::F32 | DType::F16 | DType::Bf16) && !is_dot {
        let op = Op::MatMul(MatMul { transpose_a, transpose_b, epilogue: PointProgram::default() });
        return lowering.emit_one(name, op, &[a, b], dtype, shape);
    }
    let a = if transpose_a { lowering.transpose(&format!("{name}.at"), a, vec![0, 2, 1])? } else { a };
    let b = if transpose_b { b } else { lowering.transpose(&format!("{name}.bt"), b, vec![0, 2, 1])? };
    let rows = vec![a_shape[0].clone(), m.clone(), Expr::Const(1), k.clone()];
    let columns = vec![b_shape[0].clone(), Expr::Const(1), n.clone(), k.clone()];
    let a = lowering.reshape(&format!("{name}.rows"), a, rows)?;
    let b = lowering.reshape(&format!("{name}.columns"), b, columns)?;
    let products = point(lowering, &format!("{name}.products"), PointOp::Mul, &[a, b])?;
    reduce(lowering, name, products, ReduceKind::Sum, vec![3], false)
}
