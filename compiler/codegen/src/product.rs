//! The one form of all dense linear algebra: `rows x columns` sums of products over k, per batch,
//! with an epilogue.
//!
//! A matrix product has the columns of `b` as columns; a convolution has its output pixels as
//! columns and its filters as rows. Batches, rows and columns are index spaces of the *output*;
//! every tensor has strides over them, so that broadcasting, transposition and residual inputs need
//! no cases of their own.

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
    /// Start of the kernel's name.
    pub(crate) stem: &'static str,
    /// Batch dimensions.
    pub(crate) batch: Vec<Expr>,
    pub(crate) rows: Expr,
    /// Most rows that the kernel is launched with, where they are a symbol's and it is for few.
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

/// A matrix per batch.
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

/// Where the second operand comes from.
#[derive(Clone)]
pub(crate) enum Source {
    /// A matrix.
    Matrix(Matrix),
    /// The windows of an image: column `(n, spatial…)`, k `(channel, tap…)`.
    Windows(Windows),
}

/// The input of a convolution as the second operand of a product.
#[derive(Clone)]
pub(crate) struct Windows {
    /// `[N, C, spatial…]`
    pub(crate) tensor: Tensor,
    /// Strides over the batch dimensions.
    pub(crate) batch: Vec<Expr>,
    /// Images among the columns; 1 where each is a batch.
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

    /// Most rows, where that is known.
    pub(crate) fn rows_bound(&self) -> Option<i64> {
        self.rows.as_const().or(self.rows_most)
    }

    /// Checks what the kernels take for granted.
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

    /// Joins dimensions that all tensors step through evenly: fewer divisions in the kernel.
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

/// The epilogue of a kernel: addresses of the output and the extra inputs at some columns.
pub(crate) struct Epilogue<'a> {
    program: &'a PointProgram,
    tensors: Vec<At>,
}

/// One tensor at one row and one column.
struct At {
    address: Name,
    row: Int,
    /// The element, where all rows read the same.
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
            // What is the same for all lanes first, so that only one address per tensor differs between them.
            let line = w.at(&base, &start, bytes);
            let along = sweep::offset(w, &indices, &spread.columns);
            let address = w.at(&line, &along, bytes);
            let dtype = spread.tensor.dtype;
            let fixed = (index > 0 && stride.is(0)).then(|| w.load(dtype, &address, 0));
            tensors.push(At { address, row: stride, fixed, dtype });
        }
        Epilogue { program: product.program, tensors }
    }

    /// Finishes and stores the sum of the `i`-th row.
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
    /// Address and constant offset of the `i`-th row.
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
