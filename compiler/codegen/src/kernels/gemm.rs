//! The tiled matrix product: operands in shared memory, a tile of accumulators per thread.
//!
//! A block of W warps computes `W * TM` rows by `32 * TN` columns. Each warp has TM rows; each lane
//! has TN columns, 32 apart. In every round the block stages both operands of `KT` products in
//! shared memory, in two buffers, so that one barrier per round suffices. An element of `a` is then
//! read by a whole warp at once (broadcast), and elements of `b` by adjacent lanes. The inner loop
//! computes no addresses: they are a base plus a constant.
//!
//! On GPUs, a round begins with loads of the next round's operands into registers, and several warps
//! may divide a round's products among them (`slices.rs`, `fit.rs`).
//!
//! Where caches are as fast as shared memory, rows of `a` may be read from global memory instead
//! ([`rows::are_direct`]), and the columns of the next round are prefetched.

use crate::error::CodegenError;
use crate::product::{Epilogue, Product};
use crate::sweep;
use crate::target::{GemmTile, TargetDescription};
use crate::writer::{Int, LANES, Writer, Written, mem};
use atoll_kgraph::Expr;
use atoll_ptx::{Name, Operand, ScalarType};

mod ahead;
mod columns;
mod fit;
mod rows;
mod slices;
mod windows;

pub(super) use ahead::load_guarded;
use columns::Columns;
use rows::Rows;

/// Writes the tiled kernel.
pub(crate) fn gemm(target: &TargetDescription, mut product: Product<'_>) -> Result<Written, CodegenError> {
    product.check()?;
    product.collapse();
    let tile = fit::fitted(target, &product);
    let mut w = Writer::new(product.stem);
    let block = Block::new(&mut w, target, &product, tile);

    let sums: Vec<Vec<Name>> =
        (0..tile.rows).map(|_| (0..tile.columns).map(|_| w.f32_variable(0.0)).collect()).collect();
    let rows = Rows::new(&mut w, &block, &product);
    let columns = Columns::new(&mut w, &block, &product);
    let depth = w.size(&product.depth);
    // The offset of the staged buffer alternates between 0 and that of the second buffer.
    let buffer = w.variable(&Int::Known(0));
    let last_buffer = Operand::from(w.variable(&block.buffer_bytes.into()));
    let mut staging = Staging { rows, columns, depth };
    if block.loads_ahead && !staging.depth.is(0) {
        staging.load(&mut w, &block, &Int::Known(0));
    }
    let depth = staging.depth.clone();
    w.count(&Int::Known(0), &depth, &tile.depth.into(), |w, k| {
        staging.round(w, &block, k, &buffer);
        multiply(w, &block, &staging.rows, &sums, k, &depth, &buffer);
        w.emit("sub.s32", [(&buffer).into(), last_buffer.clone(), (&buffer).into()]);
    });
    match tile.slices {
        1 => finish(&mut w, &block, &product, &sums)?,
        _ => slices::finish(&mut w, &block, &product, &sums)?,
    }

    let column_tiles = product.column_count().ceil_div(i64::from(tile.columns * LANES));
    let row_tiles = product.rows.clone().ceil_div(i64::from(tile.warps * tile.rows));
    Ok(w.finish([LANES, tile.warps_in_all(), 1], [column_tiles * product.batch_count(), row_tiles, Expr::Const(1)]))
}

/// Both operands on their way to shared memory.
struct Staging<'a> {
    rows: Rows,
    columns: Columns<'a>,
    depth: Int,
}

impl Staging<'_> {
    /// Stages the products from `k` on, and waits for all warps. With loads ahead, these products are
    /// in registers, and the loads of the next round begin.
    fn round(&mut self, w: &mut Writer, block: &Block, k: &Int, buffer: &Name) {
        if !block.loads_ahead {
            self.rows.stage(w, block, k, &self.depth, buffer);
            self.columns.stage(w, block, k, &self.depth, buffer);
            w.barrier();
            return;
        }
        self.rows.store(w, buffer);
        self.columns.store(w, buffer);
        w.barrier();
        // A known k is that of the only round.
        if k.known().is_none() {
            let next = w.add(k, &block.tile.depth.into());
            let is_there = w.compare("lt.s32", &next, &self.depth);
            w.when(Some(&is_there), |w| self.load(w, block, &next));
        }
    }

    /// Loads the products from `k` on into registers.
    fn load(&mut self, w: &mut Writer, block: &Block, k: &Int) {
        self.rows.load(w, block, k, &self.depth);
        self.columns.load(w, block, k, &self.depth);
    }
}

/// The position of a block, and the layout of its shared memory.
struct Block {
    tile: GemmTile,
    lane: Int,
    /// Number of this warp among those with other rows.
    warp: Int,
    /// Number of this warp among those with the same rows.
    slice: Int,
    /// Number of this warp among all.
    warp_of_all: Int,
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
    /// Whether to load the operands of the next round into registers.
    loads_ahead: bool,
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
        let shared = w.shared("tile", slices::shared_bytes(&tile, 2 * buffer_bytes));
        let (lane, warp_of_all) = (w.special("%tid.x"), w.special("%tid.y"));
        let (slice, warp) = match tile.slices {
            1 => (Int::Known(0), warp_of_all.clone()),
            _ => w.div_rem(&warp_of_all, &tile.warps.into()),
        };
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
            slice,
            warp_of_all,
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
            loads_ahead: target.loads_ahead && ahead::is_possible(&tile),
            shared,
            columns_offset: rows_bytes,
            buffer_bytes,
        }
    }

    /// First of the rows that this warp stages and stores: slices divide the rows of their warp.
    fn first_own_row(&self, w: &mut Writer) -> Int {
        w.mad(&self.slice, &(self.tile.rows / self.tile.slices).into(), &self.first_row)
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
    let share = tile.depth / tile.slices;
    let columns_at = w.mad(&block.slice, &(share * line_bytes).into(), &columns_at);
    let columns_at = w.variable(&columns_at);
    let mut products = Int::from(share);
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
