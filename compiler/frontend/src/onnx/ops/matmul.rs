//! Matrix products.

use super::super::call::Call;
use super::super::error::{LowerResult, invalid, unsupported};
use super::super::lowering::Lowering;
use crate::program::ProgramBuilder;
use crate::tensor::is_float;
use crate::tensor_graph::{MatMul, Op, PointArg, PointOp, PointProgram, ValueId};
use atoll_kgraph::Expr;

type Results = LowerResult<Vec<ValueId>>;

pub(super) fn matmul(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    Ok(vec![product(lowering, &call.name, call.input(0)?, call.input(1)?)?])
}

/// NumPy's `matmul`: vectors are treated as matrices, leading dimensions broadcast.
pub(super) fn product(lowering: &mut Lowering, name: &str, a: ValueId, b: ValueId) -> LowerResult<ValueId> {
    let dtype = lowering.dtype(a);
    if lowering.rank(a) == 0 || lowering.rank(b) == 0 || lowering.dtype(b) != dtype {
        return invalid("its operands are scalars, or have different types");
    }
    let (a_is_vector, b_is_vector) = (lowering.rank(a) == 1, lowering.rank(b) == 1);
    let mut a_shape = lowering.shape(a).to_vec();
    let mut b_shape = lowering.shape(b).to_vec();
    if a_is_vector {
        a_shape.insert(0, Expr::Const(1));
    }
    if b_is_vector {
        b_shape.push(Expr::Const(1));
    }
    let a = lowering.reshape(&format!("{name}.a"), a, a_shape.clone())?;
    let b = lowering.reshape(&format!("{name}.b"), b, b_shape.clone())?;
    let (a_lead, a_matrix) = a_shape.split_at(a_shape.len() - 2);
    let (b_lead, b_matrix) = b_shape.split_at(b_shape.len() - 2);
    lowering.equal_dims(a_matrix[1].clone(), b_matrix[0].clone())?;
    let mut shape = lowering.broadcast_shapes(a_lead, b_lead)?;
    let (a_fitting, b_fitting) = ([&shape, a_matrix].concat(), [&shape, b_matrix].concat());
    let a = lowering.fit(&format!("{name}.a"), a, &a_fitting)?;
    let b = lowering.fit(&format!("{name}.b"), b, &b_fitting)?;
    shape.extend([a_matrix[0].clone(), b_matrix[1].clone()]);
    let op = Op::MatMul(MatMul { transpose_a: false, transpose_b: false, epilogue: PointProgram::default() });
    let y = lowering.emit_one(name, op, &[a, b], dtype, shape.clone())?;
    if b_is_vector {
        shape.pop();
    }
    if a_is_vector {
        shape.remove(shape.len() - 1 - usize::from(!b_is_vector));
    }
    lowering.reshape(&format!("{name}.y"), y, shape)
}

/// `alpha * a * b + beta * c`: a product with an epilogue.
pub(super) fn gemm(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let (a, b) = (call.input(0)?, call.input(1)?);
    let dtype = lowering.dtype(a);
    let (transpose_a, transpose_b) = (call.flag("transA", false)?, call.flag("transB", false)?);
    let (alpha, beta) = (call.float("alpha", 1.0)?, call.float("beta", 1.0)?);
    if !is_float(dtype) && (alpha.fract() != 0.0 || beta.fract() != 0.0) {
        return unsupported(format!(
            "alpha = {alpha} and beta = {beta} with integers; only whole numbers are supported"
        ));
    }
    if lowering.rank(a) != 2 || lowering.rank(b) != 2 {
        return invalid(format!(
            "its operands have shapes {} and {}; it needs matrices of one type",
            lowering.shape_text(lowering.shape(a)),
            lowering.shape_text(lowering.shape(b))
        ));
    }
    let dims = |id: ValueId, transposed: bool| {
        let [rows, columns] = [0, 1].map(|i| lowering.shape(id)[i].clone());
        if transposed { (columns, rows) } else { (rows, columns) }
    };
    let ((rows, a_inner), (b_inner, columns)) = (dims(a, transpose_a), dims(b, transpose_b));
    lowering.equal_dims(a_inner, b_inner)?;
    let shape = vec![rows, columns];
    let mut inputs = vec![a, b];
    let mut epilogue = ProgramBuilder::default();
    let mut sum = PointArg::Input(0);
    if alpha != 1.0 {
        sum = epilogue.step(PointOp::Mul, dtype, &[sum, PointArg::Const(alpha.into())]);
    }
    if let Some(c) = call.optional(2).filter(|_| beta != 0.0) {
        inputs.push(lowering.fit(&format!("{}.c", call.name), c, &shape)?);
        let mut extra = PointArg::Input(1);
        if beta != 1.0 {
            extra = epilogue.step(PointOp::Mul, dtype, &[extra, PointArg::Const(beta.into())]);
        }
        epilogue.step(PointOp::Add, dtype, &[sum, extra]);
    }
    let op = Op::MatMul(MatMul { transpose_a, transpose_b, epilogue: epilogue.finish() });
    Ok(vec![lowering.emit_one(&call.name, op, &inputs, dtype, shape)?])
}
