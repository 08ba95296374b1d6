//! The tiled matrix product: operands in shared memory, a tile of accumulators per thread.
//!
//! A block of W warps computes `W * TM` rows by `32 * TN` columns. Each warp has TM rows; each lane
//! has TN columns, 32 apart. In every round the block stages both operands of `KT` products in
//! shared memory, in two buffers, so that one barrier per round suffices. An element of `a` is then
//! read by a whole warp at once (broadcast), and elements of `b` by adjacent lanes. The inner loop
//! computes no addresses: they are a base plus a constant.

use crate::error::CodegenError;
use crate::product::{Epilogue, Product, Source};
use crate::sweep;
use crate::target::{GemmTile, TargetDescription};
use crate::writer::{Int, LANES, Writer, Written, mem};
use atoll_kgraph::{DType, Expr};
use atoll_ptx::{Name, Operand, ScalarType};

mod columns;
mod rows;

use columns::Columns;
use rows::Rows;

/// Writes the tiled kernel.
pub(crate) fn gemm(target: &TargetDescription, mut product: Product<'_>) -> Result<Written, CodegenError> {
    product.check()?;
    product.collapse();
    let tile = fitted(target, &product);
    let mut w = Writer::new(product.stem);
    let block = Block::new(&mut w, &product, tile);

    let sums: Vec<Vec<Name>> =
        (0..tile.rows).map(|_| (0..tile.columns).map(|_| w.f32_variable(0.0)).collect()).collect();
    let mut rows = Rows::new(&mut w, &block, &product);
    let mut columns = Columns::new(&mut w, &block, &product);
    let depth = w.size(&product.depth);
    // The offset of the staged buffer alternates between 0 and that of the second buffer.
    let buffer = w.variable(&Int::Known(0));
    let last_buffer = Operand::from(w.variable(&block.buffer_bytes.into()));
    w.count(&Int::Known(0), &depth, &tile.depth.into(), |w, k| {
        rows.stage(w, &block, k, &depth, &buffer);
        columns.stage(w, &block, k, &depth, &buffer);
        w.barrier();
        multiply(w, &block, &sums, &buffer);
        w.emit("sub.s32", [(&buffer).into(), last_buffer.clone(), (&buffer).into()]);
    });
    finish(&mut w, &block, &product, &sums)?;

    let column_tiles = product.column_count().ceil_div(i64::from(tile.columns * LANES));
    let row_tiles = product.rows.clone().ceil_div(i64::from(tile.warps * tile.rows));
    Ok(w.finish([LANES, tile.warps, 1], [column_tiles * product.batch_count(), row_tiles, Expr::Const(1)]))
}

/// The target's tile, with the number of warps that suits the product.
fn fitted(target: &TargetDescription, product: &Product<'_>) -> GemmTile {
    let mut tile = target.gemm;
    if target.registers.is_some() && matches!(&product.b, Source::Windows(windows) if windows.axes.len() > 2) {
        // With a third axis, the positions of all columns would not fit into registers.
        tile.columns = (tile.columns / 2).max(1);
    }
    let most = if is_worth_more_warps(target, product) { target.gather_warps } else { tile.warps };
    let needed = product.rows_bound().map_or(tile.warps, |rows| (rows as u32).div_ceil(tile.rows).max(1));
    // Blocks of equal height waste least: 9 warps of rows become 5 + 4, not 8 + 1.
    let blocks = needed.div_ceil(most);
    GemmTile { warps: needed.div_ceil(blocks), ..tile }
}

/// Whether a block with more warps stays within the limit on its products.
fn is_worth_more_warps(target: &TargetDescription, product: &Product<'_>) -> bool {
    let tile = target.gemm;
    let per_depth = i64::from(target.gather_warps * tile.rows * tile.columns * LANES);
    let products = product.depth.as_const().map(|depth| depth * per_depth);
    matches!(product.b, Source::Windows(_)) && products.is_some_and(|p| p <= i64::from(target.gather_products_max))
}

/// The position of a block, and the layout of its shared memory.
struct Block {
    tile: GemmTile,
    lane: Int,
    warp: Int,
    batch: Vec<Int>,
    /// First row of this warp.
    first_row: Int,
    /// First column of the block.
    first_column: Int,
    row_count: Int,
    column_count: Int,
    /// Whether rows, columns or products of a tile may be out of range.
    ragged_rows: bool,
    ragged_columns: bool,
    ragged_depth: bool,
    shared: Name,
    /// Offset of the staged columns, which follow the staged rows.
    columns_offset: u32,
    /// Distance of the two buffers.
    buffer_bytes: u32,
}

impl Block {
    fn new(w: &mut Writer, product: &Product<'_>, tile: GemmTile) -> Block {
        let rows_bytes = tile.warps * tile.rows * tile.depth * 4;
        let columns_bytes = tile.columns * LANES * tile.depth * 4;
        let buffer_bytes = rows_bytes + columns_bytes;
        let shared = w.shared("tile", 2 * buffer_bytes);
        let (lane, warp) = (w.special("%tid.x"), w.special("%tid.y"));
        let (x, y) = (w.special("%ctaid.x"), w.special("%ctaid.y"));
        let columns_per_block = tile.columns * LANES;
        let tiles = w.size(&product.column_count().ceil_div(i64::from(columns_per_block)));
        let (batch, column_tile) = if product.batch.is_empty() { (Int::Known(0), x) } else { w.div_rem(&x, &tiles) };
        let batch = sweep::unravel(w, &batch, &product.batch);
        let first_column = w.mul(&column_tile, &columns_per_block.into());
        let warp_row = w.mul(&warp, &tile.rows.into());
        let first_row = w.mad(&y, &(tile.warps * tile.rows).into(), &warp_row);
        let ragged = |size: &Expr, unit: u32| size.as_const().is_none_or(|size| size % i64::from(unit) != 0);
        Block {
            tile,
            lane,
            warp,
            batch,
            first_row,
            first_column,
            row_count: w.size(&product.rows),
            column_count: w.size(&product.column_count()),
            ragged_rows: ragged(&product.rows, tile.warps * tile.rows),
            ragged_columns: ragged(&product.column_count(), columns_per_block),
            ragged_depth: ragged(&product.depth, tile.depth),
            shared,
            columns_offset: rows_bytes,
            buffer_bytes,
        }
    }

    /// Whether `column` of this thread exists; `None` if it always does.
    fn column_guard(&self, w: &mut Writer, column: &Int) -> Option<Name> {
        self.ragged_columns.then(|| w.compare("lt.u32", column, &self.column_count))
    }

    /// This thread's column number `part`.
    fn column(&self, w: &mut Writer, part: u32) -> Int {
        let first = w.add(&self.first_column, &(part * LANES).into());
        w.add(&first, &self.lane)
    }
}

/// One round: adds every staged product to every accumulator.
fn multiply(w: &mut Writer, block: &Block, sums: &[Vec<Name>], buffer: &Name) {
    let tile = block.tile;
    let base = w.make(ScalarType::U32, "add.s32", [(&block.shared).into(), buffer.into()]);
    let row_bytes = tile.depth * 4;
    let line_bytes = tile.columns * LANES * 4;
    let rows_at = w.mad(&block.warp, &(tile.rows * row_bytes).into(), &Int::Reg(base.clone()));
    let rows_at = w.variable(&rows_at);
    let columns_at = w.add(&Int::Reg(base), &block.columns_offset.into());
    let columns_at = w.mad(&block.lane, &4.into(), &columns_at);
    let columns_at = w.variable(&columns_at);
    w.count(&Int::Known(0), &tile.depth.into(), &tile.unroll.into(), |w, _| {
        let group = if tile.vector_rows { 4 } else { 1 };
        for first in (0..tile.unroll).step_by(group as usize) {
            let columns: Vec<Vec<Operand>> = (first..first + group)
                .map(|k| {
                    (0..tile.columns)
                        .map(|part| load_shared(w, &columns_at, k * line_bytes + part * LANES * 4))
                        .collect()
                })
                .collect();
            for (row, sums) in sums.iter().enumerate() {
                let at = row as u32 * row_bytes + first * 4;
                let factors =
                    if group == 4 { load_shared_four(w, &rows_at, at) } else { vec![load_shared(w, &rows_at, at)] };
                for (factor, columns) in factors.iter().zip(&columns) {
                    for (sum, column) in sums.iter().zip(columns) {
                        w.emit("fma.rn.f32", [sum.into(), factor.clone(), column.clone(), sum.into()]);
                    }
                }
            }
        }
        w.emit("add.s32", [(&rows_at).into(), (&rows_at).into(), (tile.unroll * 4).into()]);
        w.emit("add.s32", [(&columns_at).into(), (&columns_at).into(), (tile.unroll * line_bytes).into()]);
    });
}

fn load_shared(w: &mut Writer, base: &Name, offset: u32) -> Operand {
    w.f32("ld.shared.f32", [mem(base, offset.into())])
}

fn load_shared_four(w: &mut Writer, base: &Name, offset: u32) -> Vec<Operand> {
    let values: Vec<Operand> = (0..4).map(|_| w.reg(ScalarType::F32).into()).collect();
    w.emit("ld.shared.v4.f32", [Operand::Vector(values.clone()), mem(base, offset.into())]);
    values
}

/// Applies the epilogue to the accumulators, and stores them.
fn finish(w: &mut Writer, block: &Block, product: &Product<'_>, sums: &[Vec<Name>]) -> Result<(), CodegenError> {
    let mut outcome = Ok(());
    for part in 0..block.tile.columns {
        let column = block.column(w, part);
        let guard = block.column_guard(w, &column);
        w.when(guard.as_ref(), |w| {
            let epilogue = Epilogue::new(w, product, &block.batch, &block.first_row, &column);
            for (i, sums) in sums.iter().enumerate() {
                let row = w.add(&block.first_row, &Int::Known(i as i64));
                let guard = block.ragged_rows.then(|| w.compare("lt.u32", &row, &block.row_count));
                w.when(guard.as_ref(), |w| {
                    if outcome.is_ok() {
                        outcome = epilogue.store(w, i as u32, &(&sums[part as usize]).into());
                    }
                });
            }
        });
    }
    outcome
}

/// Loads an element for staging as f32; 0 if the guard is false.
pub(super) fn load_guarded(w: &mut Writer, dtype: DType, guard: Option<&Name>, address: &Name, offset: i64) -> Operand {
    match guard {
        None => w.load_f32(dtype, address, offset),
        Some(guard) if dtype == DType::F32 => {
            let value = w.f32_variable(0.0);
            w.emit_if(guard, "ld.global.f32", [(&value).into(), mem(address, offset)]);
            value.into()
        }
        Some(guard) => {
            let bits = w.make(ScalarType::B16, "mov.b16", [0.into()]);
            w.emit_if(guard, "ld.global.b16", [(&bits).into(), mem(address, offset)]);
            half_to_f32(w, dtype, &bits)
        }
    }
}

/// Converts the bits of a 16-bit float.
fn half_to_f32(w: &mut Writer, dtype: DType, bits: &Name) -> Operand {
    if dtype == DType::F16 {
        return w.f32("cvt.f32.f16", [bits.into()]);
    }
    let wide = w.make(ScalarType::U32, "cvt.u32.u16", [bits.into()]);
    let wide = w.make(ScalarType::B32, "shl.b32", [wide.into(), 16.into()]);
    w.f32("mov.b32", [wide.into()])
}
