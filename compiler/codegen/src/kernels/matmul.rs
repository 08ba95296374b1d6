//! Matrix products: chooses the form of the product, and the kernel.

use super::{gemm, gemv, plain_product};
use crate::error::CodegenError;
use crate::product::{Matrix, Product, Source, Spread};
use crate::schedule::Tensor;
use crate::target::TargetDescription;
use crate::writer::Written;
use atoll_frontend::tensor_graph::MatMul;
use atoll_kgraph::Expr;

/// Inputs `a [..., M, K]`, `b [..., K, N]` (before transposition), then the extra inputs of the
/// epilogue. `rows_most`: the largest number of rows that the kernel is launched with, for a
/// variant of a product with symbolic rows.
pub(crate) fn matmul(
    target: &TargetDescription,
    matmul: &MatMul,
    inputs: &[Tensor],
    output: &Tensor,
    rows_most: Option<i64>,
) -> Result<Written, CodegenError> {
    choose(target, Product { rows_most, ..product(matmul, inputs, output)? })
}

/// The number of rows of the product to which a node is lowered.
pub(crate) fn rows(matmul: &MatMul, inputs: &[Tensor], output: &Tensor) -> Result<Expr, CodegenError> {
    Ok(product(matmul, inputs, output)?.rows)
}

fn product<'a>(matmul: &'a MatMul, inputs: &[Tensor], output: &Tensor) -> Result<Product<'a>, CodegenError> {
    let [a, b, extras @ ..] = inputs else {
        return Err(CodegenError::inconsistent("a matrix product has fewer than two operands"));
    };
    let [outer @ .., rows, columns] = &output.shape[..] else {
        return Err(CodegenError::unsupported("a matrix product of vectors"));
    };
    let depth = a.shape[a.shape.len() - if matmul.transpose_a { 2 } else { 1 }].clone();
    let spreads = std::iter::once(output).chain(extras).map(|t| spread(t, &output.shape)).collect();
    let mut product = Product {
        stem: "matmul",
        batch: outer.to_vec(),
        rows: rows.clone(),
        rows_most: None,
        depth,
        columns: vec![columns.clone()],
        a: matrix(a, outer, matmul.transpose_a)?,
        b: Source::Matrix(matrix(b, outer, matmul.transpose_b)?),
        program: &matmul.epilogue,
        spreads,
    };
    merge_batch_into_rows(&mut product);
    Ok(product)
}

/// Chooses the kernel for a product.
fn choose(target: &TargetDescription, product: Product<'_>) -> Result<Written, CodegenError> {
    if plain_product::is_plain(product.a.tensor.dtype) {
        return plain_product::plain_product(target, product);
    }
    let few_rows = product.rows_bound().filter(|rows| (1..=gemv::ROWS_MAX).contains(rows));
    match (&product.b, few_rows) {
        (Source::Matrix(b), Some(rows)) if b.column == Expr::Const(1) => gemv::gemv(target, product, rows as u32),
        _ => gemm::gemm(target, product),
    }
}

/// An operand as matrices; its outer dimensions are broadcast to `outer`.
fn matrix(tensor: &Tensor, outer: &[Expr], transposed: bool) -> Result<Matrix, CodegenError> {
    let rank = tensor.shape.len();
    if rank < 2 {
        return Err(CodegenError::inconsistent("an operand of a matrix product has fewer than two dimensions"));
    }
    let own = tensor.strides();
    let shape = &tensor.shape[..rank - 2];
    let missing = outer.len().saturating_sub(shape.len());
    let batch = (0..outer.len())
        .map(|axis| match axis.checked_sub(missing) {
            Some(at) if shape[at] != Expr::Const(1) => own[at].clone(),
            _ => Expr::Const(0),
        })
        .collect();
    let (row, column) = (own[rank - 2].clone(), own[rank - 1].clone());
    let (row, column) = if transposed { (column, row) } else { (row, column) };
    Ok(Matrix { tensor: tensor.clone(), batch, row, column })
}

/// The strides of a tensor that is broadcast to the output.
fn spread(tensor: &Tensor, output: &[Expr]) -> Spread {
    let strides = tensor.spread(output);
    let rank = strides.len();
    Spread {
        tensor: tensor.clone(),
        batch: strides[..rank - 2].to_vec(),
        row: strides[rank - 2].clone(),
        columns: vec![strides[rank - 1].clone()],
    }
}

/// Merges batches into rows if every batch has the same second operand: `[B, T, K] x [K, N]` is one
/// product of `B * T` rows.
fn merge_batch_into_rows(product: &mut Product<'_>) {
    while let Some(dim) = product.batch.last().cloned() {
        let is_shared = |strides: &[Expr]| strides.last() == Some(&Expr::Const(0));
        let continues = |batch: &[Expr], row: &Expr, rows: &Expr| batch.last() == Some(&(row.clone() * rows.clone()));
        let Source::Matrix(b) = &product.b else { return };
        let joins = is_shared(&b.batch)
            && continues(&product.a.batch, &product.a.row, &product.rows)
            && product.spreads.iter().all(|s| continues(&s.batch, &s.row, &product.rows));
        let is_single = dim == Expr::Const(1);
        if !joins && !is_single {
            return;
        }
        product.rows = if is_single { product.rows.clone() } else { dim * product.rows.clone() };
        product.batch.pop();
        product.a.batch.pop();
        if let Source::Matrix(b) = &mut product.b {
            b.batch.pop();
        }
        for spread in &mut product.spreads {
            spread.batch.pop();
        }
    }
}
