//! Products in f64 and in integers: one thread per element adds the products in order. Exact for
//! integers, and fast enough for the few such products in models.

use crate::error::CodegenError;
use crate::product::{Epilogue, Matrix, Product, Source};
use crate::scalar::{Scalar, held_as, is_float};
use crate::sweep::{self, Body};
use crate::target::TargetDescription;
use crate::writer::{Int, Writer, Written};
use atoll_kgraph::{DType, Expr};
use atoll_ptx::Name;

/// Writes the kernel; both operands are matrices of one type.
pub(crate) fn plain_product(target: &TargetDescription, mut product: Product<'_>) -> Result<Written, CodegenError> {
    product.collapse();
    let Source::Matrix(b) = product.b.clone() else {
        return Err(CodegenError::unsupported(format!("convolutions of {:?}", product.a.tensor.dtype)));
    };
    let mut w = Writer::new("product");
    let bases = [w.base(&product.a.tensor), w.base(&b.tensor)];
    let dims: Vec<Expr> =
        product.batch.iter().chain([&product.rows]).chain([&product.column_count()]).cloned().collect();
    let taps = product.depth.as_const().unwrap_or(64).clamp(1, i64::from(target.elements_per_block)) as u32;
    let mut body = Plain { product: &product, b, bases };
    sweep::sweep(w, target, &dims, (target.elements_per_block / taps).max(1), &mut body)
}

struct Plain<'a> {
    product: &'a Product<'a>,
    b: Matrix,
    /// Addresses of both operands.
    bases: [Name; 2],
}

/// State that the elements of a row share.
struct Row {
    batch: Vec<Int>,
    row: Int,
    /// Start of the row of `a`.
    a: Name,
    /// Start of the matrix `b`.
    b: Name,
}

impl Body for Plain<'_> {
    type Row = Row;

    fn row(&mut self, w: &mut Writer, outer: &[Int], _first: &Int) -> Result<Row, CodegenError> {
        let (row, batch) = outer.split_last().ok_or_else(|| CodegenError::inconsistent("a product has no rows"))?;
        let a = &self.product.a;
        let stride = w.size(&a.row);
        let start = sweep::offset(w, batch, &a.batch);
        let start = w.mad(row, &stride, &start);
        let a_line = w.at(&self.bases[0], &start, a.tensor.element_bytes());
        let start = sweep::offset(w, batch, &self.b.batch);
        let b_matrix = w.at(&self.bases[1], &start, self.b.tensor.element_bytes());
        Ok(Row { batch: batch.to_vec(), row: row.clone(), a: a_line, b: b_matrix })
    }

    fn element(&mut self, w: &mut Writer, row: &Row, at: &Int) -> Result<(), CodegenError> {
        let dtype = self.product.a.tensor.dtype;
        let (ty, bytes) = (held_as(dtype), dtype.bytes() as u32);
        let (a_step, b_step) = (w.size(&self.product.a.column), w.size(&self.b.row));
        let along = w.size(&self.b.column);
        let start = w.mul(at, &along);
        let b_line = w.at(&row.b, &start, bytes);
        let (a, b) = (w.cursor(&row.a), w.cursor(&b_line));
        let zero = w.constant(dtype, 0.0).operand;
        let sum = w.make(ty, &format!("mov.{ty}"), [zero]);
        let depth = w.size(&self.product.depth);
        let dotted = if is_float(dtype) { format!("fma.rn.{ty}") } else { format!("mad.lo.{ty}") };
        w.count(&0.into(), &depth, &1.into(), |w, _| {
            let (x, y) = (w.load(dtype, &a, 0), w.load(dtype, &b, 0));
            w.emit(&dotted, [(&sum).into(), x.operand, y.operand, (&sum).into()]);
            w.advance(&a, &a_step, bytes);
            w.advance(&b, &b_step, bytes);
        });
        let sum = w.wrapped(&Scalar { dtype, operand: sum.into() });
        let epilogue = Epilogue::new(w, self.product, &row.batch, &row.row, at);
        epilogue.store_scalar(w, 0, sum)
    }
}

/// Whether a type needs this kernel, because the other kernels compute in f32.
pub(crate) fn is_plain(dtype: DType) -> bool {
    !matches!(dtype, DType::F32 | DType::F16 | DType::Bf16)
}
