//! The common form of all dense linear algebra: per batch, `rows x columns` sums of products over
//! k, with an epilogue.
//!
//! A matrix product has the columns of `b` as columns; a convolution has its output pixels as
//! columns and its filters as rows. Batches, rows and columns are index spaces of the *output*.
//! Every tensor has strides over them, so broadcasting, transposition and residual inputs are not
//! special cases.

use crate::error::CodegenError;
use crate::scalar::Scalar;
use crate::schedule::Tensor;
use crate::strides::Walk;
use crate::sweep;
use crate::window::Axis;
use crate::writer::{Int, Writer};
use atoll_frontend::tensor_graph::PointProgram;
use atoll_kgraph::{DType, Expr};
use atoll_ptx::{Name, Operand};

/// `output[batch, row, column] = program(sum over k of a[batch, row, k] * b[batch, k, column],
/// extras…)`
pub(crate) struct Product<'a> {
    /// Prefix of the kernel's name.
    pub(crate) stem: &'static str,
    /// Batch dimensions.
    pub(crate) batch: Vec<Expr>,
    pub(crate) rows: Expr,
    /// Largest number of rows that this kernel is launched with, if the number of rows is symbolic
    /// and the kernel is a variant for few rows.
    pub(crate) rows_most: Option<i64>,
    pub(crate) depth: Expr,
    /// Dimensions of the columns.
    pub(crate) columns: Vec<Expr>,
    pub(crate) a: Matrix,
    pub(crate) b: Source,
    pub(crate) program: &'a PointProgram,
    /// The output, then the program's extra inputs.
    pub(crate) spreads: Vec<Spread>,
}

/// A tensor viewed as a matrix per batch.
#[derive(Clone)]
pub(crate) struct Matrix {
    pub(crate) tensor: Tensor,
    /// Strides over the batch dimensions.
    pub(crate) batch: Vec<Expr>,
    /// Stride from one row to the next (`a`: the product's rows; `b`: k).
    pub(crate) row: Expr,
    /// Stride from one column to the next (`a`: k; `b`: the product's columns).
    pub(crate) column: Expr,
}

/// The second operand.
#[derive(Clone)]
pub(crate) enum Source {
    /// A matrix.
    Matrix(Matrix),
    /// The windows of an image (implicit im2col): a column is `(n, spatial…)`, k is
    /// `(channel, tap…)`.
    Windows(Windows),
}

/// The input of a convolution as the second operand of a product.
#[derive(Clone)]
pub(crate) struct Windows {
    /// `[N, C, spatial…]`
    pub(crate) tensor: Tensor,
    /// Strides over the batch dimensions.
    pub(crate) batch: Vec<Expr>,
    /// Number of images among the columns; 1 if each image is a batch.
    pub(crate) images: Expr,
    /// Spatial axes, outermost first.
    pub(crate) axes: Vec<Axis>,
}

/// A tensor with strides over batch, rows and columns.
#[derive(Clone)]
pub(crate) struct Spread {
    pub(crate) tensor: Tensor,
    pub(crate) batch: Vec<Expr>,
    pub(crate) row: Expr,
    pub(crate) columns: Vec<Expr>,
}

impl Product<'_> {
    /// Number of columns.
    pub(crate) fn column_count(&self) -> Expr {
        Expr::product(&self.columns)
    }

    /// Number of batches.
    pub(crate) fn batch_count(&self) -> Expr {
        Expr::product(&self.batch)
    }

    /// Largest number of rows, if it is known.
    pub(crate) fn rows_bound(&self) -> Option<i64> {
        self.rows.as_const().or(self.rows_most)
    }

    /// Checks the element types that the kernels support.
    pub(crate) fn check(&self) -> Result<(), CodegenError> {
        let b = match &self.b {
            Source::Matrix(m) => &m.tensor,
            Source::Windows(w) => &w.tensor,
        };
        for tensor in [&self.a.tensor, b] {
            if !matches!(tensor.dtype, DType::F32 | DType::F16 | DType::Bf16) {
                return Err(CodegenError::unsupported(format!("products of {:?}", tensor.dtype)));
            }
        }
        Ok(())
    }

    /// Merges dimensions that all tensors traverse with one stride: the kernel needs fewer
    /// divisions.
    pub(crate) fn collapse(&mut self) {
        let spread_batches = self.spreads.iter().map(|s| s.batch.clone());
        let b_batch = match &self.b {
            Source::Matrix(m) => m.batch.clone(),
            Source::Windows(w) => w.batch.clone(),
        };
        let strides: Vec<Vec<Expr>> = spread_batches.chain([self.a.batch.clone(), b_batch]).collect();
        let mut walk = Walk::collapsed(&self.batch, &strides);
        self.batch = walk.dims;
        let b_batch = walk.strides.pop().unwrap_or_default();
        self.a.batch = walk.strides.pop().unwrap_or_default();
        match &mut self.b {
            Source::Matrix(m) => m.batch = b_batch,
            Source::Windows(w) => w.batch = b_batch,
        }
        for (spread, batch) in self.spreads.iter_mut().zip(walk.strides) {
            spread.batch = batch;
        }
        let strides: Vec<Vec<Expr>> = self.spreads.iter().map(|s| s.columns.clone()).collect();
        let walk = Walk::collapsed(&self.columns, &strides);
        self.columns = walk.dims;
        for (spread, columns) in self.spreads.iter_mut().zip(walk.strides) {
            spread.columns = columns;
        }
    }
}

/// The epilogue of a kernel at given columns: addresses of the output and of the extra inputs.
pub(crate) struct Epilogue<'a> {
    program: &'a PointProgram,
    tensors: Vec<At>,
}

/// A tensor at one row and one column.
struct At {
    address: Name,
    row: Int,
    /// The element, if it is the same for all rows.
    fixed: Option<Scalar>,
    dtype: DType,
}

impl<'a> Epilogue<'a> {
    /// Prepares the elements of column `column` from row `row` on.
    pub(crate) fn new(
        w: &mut Writer,
        product: &'a Product<'_>,
        batch: &[Int],
        row: &Int,
        column: &Int,
    ) -> Epilogue<'a> {
        let indices = sweep::unravel(w, column, &product.columns);
        let mut tensors = Vec::with_capacity(product.spreads.len());
        for (index, spread) in product.spreads.iter().enumerate() {
            let base = w.base(&spread.tensor);
            let bytes = spread.tensor.element_bytes();
            let stride = w.size(&spread.row);
            let start = sweep::offset(w, batch, &spread.batch);
            let start = w.mad(row, &stride, &start);
            // The part that is the same for all lanes comes first, so that only one address per
            // tensor differs between lanes.
            let line = w.at(&base, &start, bytes);
            let along = sweep::offset(w, &indices, &spread.columns);
            let address = w.at(&line, &along, bytes);
            let dtype = spread.tensor.dtype;
            let fixed = (index > 0 && stride.is(0)).then(|| w.load(dtype, &address, 0));
            tensors.push(At { address, row: stride, fixed, dtype });
        }
        Epilogue { program: product.program, tensors }
    }

    /// Applies the epilogue to the sum of the `i`-th row, and stores it.
    pub(crate) fn store(&self, w: &mut Writer, i: u32, sum: &Operand) -> Result<(), CodegenError> {
        self.store_scalar(w, i, Scalar::f32(sum.clone()))
    }

    /// As [`Epilogue::store`], for a sum of any type.
    pub(crate) fn store_scalar(&self, w: &mut Writer, i: u32, sum: Scalar) -> Result<(), CodegenError> {
        let mut values = vec![sum];
        for at in &self.tensors[1..] {
            values.push(match &at.fixed {
                Some(value) => value.clone(),
                None => {
                    let (address, offset) = at.row(w, i);
                    w.load(at.dtype, &address, offset)
                }
            });
        }
        let output = &self.tensors[0];
        let value = w.program(self.program, &values, output.dtype)?;
        let (address, offset) = output.row(w, i);
        w.store(&value, &address, offset);
        Ok(())
    }
}

impl At {
    /// The address and constant offset of the `i`-th row.
    fn row(&self, w: &mut Writer, i: u32) -> (Name, i64) {
        let bytes = self.dtype.bytes() as u32;
        match &self.row {
            Int::Known(stride) if stride * i64::from(i * bytes) < i64::from(i32::MAX) => {
                (self.address.clone(), stride * i64::from(i * bytes))
            }
            stride => {
                let down = w.mul(stride, &i.into());
                (w.at(&self.address, &down, bytes), 0)
            }
        }
    }
}
