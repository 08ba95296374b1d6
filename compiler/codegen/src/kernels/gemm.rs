//! The tiled matrix product: operands in shared memory, a tile of accumulators per thread.
//!
//! A block of W warps computes `W * TM` rows by `32 * TN` columns. Each warp has TM rows; each lane
//! has TN columns, 32 apart. In every round the block stages both operands of `KT` products in
//! shared memory, in two buffers, so that one barrier per round suffices. An element of `a` is then
//! read by a whole warp at once (broadcast), and elements of `b` by adjacent lanes. The inner loop
//! computes no addresses: they are a base plus a constant.
//!
//! Where caches are as fast as shared memory, rows of `a` may be read from global memory instead
//! ([`rows::are_direct`]), and the columns of the next round are prefetched.

use crate::error::CodegenError;
use crate::product::{Epilogue, Product, Source};
use crate::sweep;
use crate::target::{GemmTile, TargetDescription};
use crate::writer::{Int, LANES, Writer, Written, mem};
use atoll_kgraph::{DType, Expr};
use atoll_ptx::{Name, Operand, ScalarType};

mod columns;
mod rows;
mod windows;

use columns::Columns;
use rows::Rows;

/// Writes the tiled kernel.
pub(crate) fn gemm(target: &TargetDescription, mut product: Product<'_>) -> Result<Written, CodegenError> {
    product.check()?;
    product.collapse();
    let tile = fitted(target, &product);
    let mut w = Writer::new(product.stem);
    let block = Block::new(&mut w, target, &product, tile);

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
        multiply(w, &block, &rows, &sums, k, &depth, &buffer);
        w.emit("sub.s32", [(&buffer).into(), last_buffer.clone(), (&buffer).into()]);
    });
    finish(&mut w, &block, &product, &sums)?;

    let column_tiles = product.column_count().ceil_div(i64::from(tile.columns * LANES));
    let row_tiles = product.rows.clone().ceil_div(i64::from(tile.warps * tile.rows));
    Ok(w.finish([LANES, tile.warps, 1], [column_tiles * product.batch_count(), row_tiles, Expr::Const(1)]))
}

/// The target's tile for the product, with the number of warps that suits it.
fn fitted(target: &TargetDescription, product: &Product<'_>) -> GemmTile {
    let mut tile = target.wide_gemm.filter(|wide| is_wide(product, wide)).unwrap_or(target.gemm);
    if target.registers.is_some() && matches!(&product.b, Source::Windows(windows) if windows.axes.len() > 2) {
        // With a third axis, the positions of all columns would not fit into registers.
        tile.columns = (tile.columns / 2).max(1);
    }
    let most = if is_worth_more_warps(target, product, tile) { tile.warps_max } else { tile.warps };
    let most = most.min(warps_that_fit(target, product, tile));
    let needed = product.rows_bound().map_or(tile.warps, |rows| (rows as u32).div_ceil(tile.rows).max(1));
    // Blocks of equal height waste least: 9 warps of rows become 5 + 4, not 8 + 1.
    let blocks = needed.div_ceil(most);
    GemmTile { warps: needed.div_ceil(blocks), ..tile }
}

/// Whether the columns fill wide tiles about as well as tiles of 32 columns.
fn is_wide(product: &Product<'_>, wide: &GemmTile) -> bool {
    let Source::Matrix(_) = product.b else { return false };
    let padded = |columns: i64, unit: i64| (columns + unit - 1) / unit * unit;
    let Some(columns) = product.column_count().as_const() else { return true };
    padded(columns, i64::from(wide.columns * LANES)) * 20 <= padded(columns, i64::from(LANES)) * 21
}

/// Whether a block with more warps stays within the limit on its products.
fn is_worth_more_warps(target: &TargetDescription, product: &Product<'_>, tile: GemmTile) -> bool {
    let per_depth = i64::from(tile.warps_max * tile.rows * tile.columns * LANES);
    let products = product.depth.as_const().map(|depth| depth.saturating_mul(per_depth));
    products.is_some_and(|products| products <= i64::from(target.tall_products_max))
}

/// The number of warps whose staged rows fit into shared memory beside the staged columns.
fn warps_that_fit(target: &TargetDescription, product: &Product<'_>, tile: GemmTile) -> u32 {
    let threads = target.threads_max / LANES;
    if rows::are_direct(target, product, tile) {
        return threads;
    }
    let lines = target.shared_bytes_max / (2 * tile.depth * 4);
    (lines.saturating_sub(tile.columns * LANES) / tile.rows).clamp(1, threads)
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
    /// Whether rows are read from global memory instead of being staged.
    direct_rows: bool,
    /// First row that this warp stores, if it is not `first_row`: the rows of a warp that reads
    /// them directly are moved up until all of them exist.
    stored_from: Option<Int>,
    /// First column that this block stores, if it is not `first_column`: the columns of the last
    /// block are moved up until all of them exist, so that loads need no guard.
    columns_stored_from: Option<Int>,
    /// Whether to prefetch the columns of the next round.
    prefetches: bool,
    shared: Name,
    /// Offset of the staged columns, which follow the staged rows.
    columns_offset: u32,
    /// Distance of the two buffers.
    buffer_bytes: u32,
}

impl Block {
    fn new(w: &mut Writer, target: &TargetDescription, product: &Product<'_>, tile: GemmTile) -> Block {
        let direct_rows = rows::are_direct(target, product, tile);
        let rows_bytes = if direct_rows { 0 } else { tile.warps * tile.rows * tile.depth * 4 };
        let columns_bytes = tile.columns * LANES * tile.depth * 4;
        let buffer_bytes = rows_bytes + columns_bytes;
        let shared = w.shared("tile", 2 * buffer_bytes);
        let (lane, warp) = (w.special("%tid.x"), w.special("%tid.y"));
        let (x, y) = (w.special("%ctaid.x"), w.special("%ctaid.y"));
        let columns_per_block = tile.columns * LANES;
        let tiles = w.size(&product.column_count().ceil_div(i64::from(columns_per_block)));
        let (batch, column_tile) = if product.batch.is_empty() { (Int::Known(0), x) } else { w.div_rem(&x, &tiles) };
        let batch = sweep::unravel(w, &batch, &product.batch);
        let mut first_column = w.mul(&column_tile, &columns_per_block.into());
        let warp_row = w.mul(&warp, &tile.rows.into());
        let mut first_row = w.mad(&y, &(tile.warps * tile.rows).into(), &warp_row);
        let ragged = |size: &Expr, unit: u32| size.as_const().is_none_or(|size| size % i64::from(unit) != 0);
        let ragged_rows = ragged(&product.rows, tile.warps * tile.rows);
        let ragged_columns = ragged(&product.column_count(), columns_per_block);
        let mut columns_stored_from = None;
        if let (true, true, Some(columns)) =
            (target.caches_like_shared, ragged_columns, product.column_count().as_const())
            && columns >= i64::from(columns_per_block)
        {
            columns_stored_from = Some(first_column.clone());
            first_column = w.min(&first_column, &Int::Known(columns - i64::from(columns_per_block)));
        }
        let mut stored_from = None;
        if let (true, true, Some(rows)) = (direct_rows, ragged_rows, product.rows.as_const()) {
            stored_from = Some(first_row.clone());
            first_row = w.min(&first_row, &Int::Known(rows - i64::from(tile.rows)));
        }
        Block {
            tile,
            lane,
            warp,
            batch,
            first_row,
            first_column,
            row_count: w.size(&product.rows),
            column_count: w.size(&product.column_count()),
            ragged_rows,
            ragged_columns,
            ragged_depth: ragged(&product.depth, tile.depth),
            direct_rows,
            stored_from,
            columns_stored_from,
            prefetches: target.caches_like_shared,
            shared,
            columns_offset: rows_bytes,
            buffer_bytes,
        }
    }

    /// Whether `column` of this thread exists; `None` if it always does.
    fn column_guard(&self, w: &mut Writer, column: &Int) -> Option<Name> {
        let may_be_outside = self.ragged_columns && self.columns_stored_from.is_none();
        may_be_outside.then(|| w.compare("lt.u32", column, &self.column_count))
    }

    /// Whether this thread stores `column`; `None` if it always does.
    fn stored_column_guard(&self, w: &mut Writer, column: &Int) -> Option<Name> {
        match &self.columns_stored_from {
            Some(from) => Some(w.compare("ge.s32", column, from)),
            None => self.column_guard(w, column),
        }
    }

    /// Whether this warp stores `row`; `None` if it always does.
    fn row_guard(&self, w: &mut Writer, row: &Int) -> Option<Name> {
        match &self.stored_from {
            Some(from) => Some(w.compare("ge.s32", row, from)),
            None => self.ragged_rows.then(|| w.compare("lt.u32", row, &self.row_count)),
        }
    }

    /// This thread's column number `part`.
    fn column(&self, w: &mut Writer, part: u32) -> Int {
        let first = w.add(&self.first_column, &(part * LANES).into());
        w.add(&first, &self.lane)
    }
}

/// One round: adds every product of the round to every accumulator.
fn multiply(w: &mut Writer, block: &Block, rows: &Rows, sums: &[Vec<Name>], k: &Int, depth: &Int, buffer: &Name) {
    let tile = block.tile;
    let base = w.make(ScalarType::U32, "add.s32", [(&block.shared).into(), buffer.into()]);
    let line_bytes = tile.columns * LANES * 4;
    let rows_at = rows.of_round(w, block, &base);
    let columns_at = w.add(&Int::Reg(base), &block.columns_offset.into());
    let columns_at = w.mad(&block.lane, &4.into(), &columns_at);
    let columns_at = w.variable(&columns_at);
    let mut products = Int::from(tile.depth);
    if block.direct_rows && block.ragged_depth {
        // Staged columns are zero behind the last product, but rows go on.
        let left = w.sub(depth, k);
        products = w.min(&left, &products);
    }
    w.count(&Int::Known(0), &products, &tile.unroll.into(), |w, _| {
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
                let factors = rows_at.factors(w, row as u32, first, group);
                for (factor, columns) in factors.iter().zip(&columns) {
                    for (sum, column) in sums.iter().zip(columns) {
                        w.emit("fma.rn.f32", [sum.into(), factor.clone(), column.clone(), sum.into()]);
                    }
                }
            }
        }
        rows_at.advance(w, tile.unroll);
        w.emit("add.s32", [(&columns_at).into(), (&columns_at).into(), (tile.unroll * line_bytes).into()]);
    });
}

fn load_shared(w: &mut Writer, base: &Name, offset: u32) -> Operand {
    w.f32("ld.shared.f32", [mem(base, offset.into())])
}

/// Applies the epilogue to the accumulators, and stores them.
fn finish(w: &mut Writer, block: &Block, product: &Product<'_>, sums: &[Vec<Name>]) -> Result<(), CodegenError> {
    let mut outcome = Ok(());
    for part in 0..block.tile.columns {
        let column = block.column(w, part);
        let guard = block.stored_column_guard(w, &column);
        w.when(guard.as_ref(), |w| {
            let epilogue = Epilogue::new(w, product, &block.batch, &block.first_row, &column);
            for (i, sums) in sums.iter().enumerate() {
                let row = w.add(&block.first_row, &Int::Known(i as i64));
                let guard = block.row_guard(w, &row);
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
