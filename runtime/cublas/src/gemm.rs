//! Matrix products of any types and strides.

use crate::handle::Call;
use crate::kernels::{Code, GemmCode, Tile};
use crate::number::{Factors, Types};
use atoll_cuda_library::Status;

/// Matrices of a batch that one launch computes.
const BATCH_MAX: u32 = 65_535;

/// Blocks of a launch in x.
const BLOCKS_MAX: u64 = i32::MAX as u64;

/// Flags of the kernel: arrays of addresses; adjacent elements along the rows of A, along the columns
/// of B.
const ARRAYS: u32 = 4;
const A_ALONG: u32 = 8;
const B_ALONG: u32 = 16;

/// Flags of the kernel: only elements on or below, or on or above the diagonal.
const LOWER: u32 = 64;
const UPPER: u32 = 128;

/// A matrix in device memory, with its strides in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Matrix {
    /// Its address, or that of an array with an address for each matrix of the batch.
    pub(crate) at: u64,
    /// From one row to the next.
    pub(crate) row: i64,
    /// From one column to the next.
    pub(crate) column: i64,
    /// From one matrix of the batch to the next, or from one address to the next.
    pub(crate) batch: i64,
}

impl Matrix {
    /// The transposed matrix.
    pub(crate) fn transposed(self) -> Matrix {
        Matrix { row: self.column, column: self.row, ..self }
    }

    /// The transposed matrix, if `is_transposed`.
    pub(crate) fn transposed_if(self, is_transposed: bool) -> Matrix {
        if is_transposed { self.transposed() } else { self }
    }
}

/// What a product adds and applies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Epilogue {
    /// The address of a number for each row, in the type of D; 0 if there is none.
    pub(crate) bias: u64,
    /// Bytes from the bias of one matrix of the batch to the next.
    pub(crate) bias_batch: i64,
    pub(crate) activation: Activation,
}

/// A function that is applied to each element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activation {
    None = 0,
    Relu = 1,
    /// The approximation with tanh.
    Gelu = 2,
}

/// Which elements of D are computed; the others stay as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    All,
    /// On and below the diagonal.
    Lower,
    /// On and above the diagonal.
    Upper,
}

/// D = activation(alpha * A * B + beta * C + bias), for each matrix of the batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gemm {
    pub(crate) types: Types,
    /// Rows of A, C and D.
    pub(crate) m: u32,
    /// Columns of B, C and D.
    pub(crate) n: u32,
    /// Columns of A and rows of B.
    pub(crate) k: u32,
    pub(crate) a: Matrix,
    pub(crate) b: Matrix,
    pub(crate) c: Matrix,
    pub(crate) d: Matrix,
    pub(crate) factors: Factors,
    pub(crate) batch: u32,
    /// Whether the matrices are given by arrays of addresses.
    pub(crate) has_arrays: bool,
    pub(crate) epilogue: Option<Epilogue>,
    pub(crate) part: Part,
}

impl Gemm {
    /// Launches the product. The sizes are at most `i32::MAX`.
    pub(crate) fn launch(self, call: &mut Call<'_>) -> Result<(), Status> {
        if self.m == 0 || self.n == 0 || self.batch == 0 {
            return Ok(());
        }
        let has_no_sum = self.k == 0 || self.factors.is_alpha_zero();
        let is_in_place = self.c == self.d && self.epilogue.is_none();
        if has_no_sum && is_in_place && self.factors.is_beta_one() {
            return Ok(());
        }
        let inputs = if self.has_arrays && has_no_sum { self.with_any_inputs() } else { self };
        let is_row = self.m == 1 && self.n > 1 && self.part == Part::All && self.epilogue.is_none();
        let problem = if is_row { inputs.transposed() } else { inputs };
        problem.launch_tiles(call)
    }

    /// The same product with the array of D for those of A and B. The kernel reads every array, and
    /// arrays of matrices that are not read may be null.
    fn with_any_inputs(self) -> Gemm {
        let array = |of: Matrix| Matrix { at: self.d.at, batch: self.d.batch, ..of };
        Gemm { a: array(self.a), b: array(self.b), ..self }
    }

    /// The same product with all matrices transposed: one row becomes one column, for which there is
    /// a tile.
    fn transposed(self) -> Gemm {
        Gemm {
            m: self.n,
            n: self.m,
            a: self.b.transposed(),
            b: self.a.transposed(),
            c: self.c.transposed(),
            d: self.d.transposed(),
            ..self
        }
    }

    fn tile(&self) -> Tile {
        if self.n == 1 {
            Tile::Thin
        } else if self.m > Tile::Narrow.rows() && self.n > 2 * Tile::Narrow.columns() {
            Tile::Wide
        } else {
            Tile::Narrow
        }
    }

    fn launch_tiles(self, call: &mut Call<'_>) -> Result<(), Status> {
        let tile = self.tile();
        let row_tiles = u64::from(self.m.div_ceil(tile.rows()));
        let blocks = row_tiles * u64::from(self.n.div_ceil(tile.columns()));
        if blocks > BLOCKS_MAX {
            return Err(Status::NotSupported);
        }
        let code = Code::Gemm(GemmCode { types: self.types, tile, has_epilogue: self.epilogue.is_some() });
        let mut first = 0;
        while first < self.batch {
            let count = (self.batch - first).min(BATCH_MAX);
            call.launch((code, "gemm"), ([blocks as u32, 1, count], tile.threads()), &self.parameters(first))?;
            first += count;
        }
        Ok(())
    }

    /// The parameters of the kernel, in its order.
    fn parameters(&self, first: u32) -> [u64; 28] {
        let Gemm { a, b, c, d, factors, .. } = *self;
        let [alpha, beta, alpha_at, beta_at] = factors.parameters();
        let mut flags = factors.flags();
        let mut set = |flag, is_set: bool| flags |= if is_set { flag } else { 0 };
        set(ARRAYS, self.has_arrays);
        set(LOWER, self.part == Part::Lower);
        set(UPPER, self.part == Part::Upper);
        set(A_ALONG, a.column.unsigned_abs() < a.row.unsigned_abs());
        set(B_ALONG, b.column.unsigned_abs() < b.row.unsigned_abs());
        let (bias, bias_batch, activation) = self
            .epilogue
            .map_or((0, 0, 0), |epilogue| (epilogue.bias, epilogue.bias_batch, epilogue.activation as u64));
        [
            a.at,
            b.at,
            c.at,
            d.at,
            alpha,
            beta,
            alpha_at,
            beta_at,
            a.row as u64,
            a.column as u64,
            b.row as u64,
            b.column as u64,
            c.row as u64,
            c.column as u64,
            d.row as u64,
            d.column as u64,
            a.batch as u64,
            b.batch as u64,
            c.batch as u64,
            d.batch as u64,
            bias,
            bias_batch as u64,
            self.m.into(),
            self.n.into(),
            self.k.into(),
            first.into(),
            flags.into(),
            activation,
        ]
    }
}
