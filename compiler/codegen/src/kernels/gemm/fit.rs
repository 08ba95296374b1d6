//! The tile that suits a product.
//!
//! A GPU is busy if all its compute units have warps enough to hide latency. A product with few rows
//! and columns has few tiles, so its tiles are made smaller ([`spread`]), and several warps divide the
//! products of each round among them ([`GemmTile::slices`]).

use super::{ahead, rows};
use crate::product::{Product, Source};
use crate::target::{GemmTile, SpreadLimits, TargetDescription};
use crate::writer::LANES;

/// The target's tile for the product, with the number of warps that suits it.
pub(super) fn fitted(target: &TargetDescription, product: &Product<'_>) -> GemmTile {
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
    let tile = GemmTile { warps: needed.div_ceil(blocks), ..tile };
    target.spread.map_or(tile, |limits| spread(product, tile, limits))
}

/// Numbers of an estimate of a product's time, in cycles of a compute unit with four schedulers.
mod cycles {
    /// Schedulers of a compute unit, each of which issues an instruction per cycle.
    pub(super) const SCHEDULERS: i64 = 4;
    /// Warps of a compute unit that hide latency, limited by their registers.
    pub(super) const WARPS_RESIDENT: i64 = 12;
    /// Bytes that a compute unit gets from the second-level cache per cycle.
    pub(super) const BYTES: i64 = 24;
    /// A barrier, and the part of a load's latency that a round does not hide.
    pub(super) const ROUND: i64 = 100;
    /// Instructions that stage an element of each lane: of a matrix, or of windows.
    pub(super) const STAGED: i64 = 3;
    pub(super) const STAGED_WINDOW: i64 = 9;
    /// Instructions for each line of staged columns.
    pub(super) const LINE: i64 = 2;
    pub(super) const LINE_OF_WINDOWS: i64 = 15;
    /// Instructions that exchange and add a sum of each lane.
    pub(super) const SUM: i64 = 3;
}

/// The tile, or a smaller one with more slices if that is estimated to be a tenth faster. A product
/// whose sizes are not known keeps its tile.
fn spread(product: &Product<'_>, tile: GemmTile, limits: SpreadLimits) -> GemmTile {
    let Some(time) = estimate(product, &tile, limits) else { return tile };
    let (mut best, mut least) = (tile, time.saturating_mul(9) / 10);
    for columns in [tile.columns, tile.columns / 2, tile.columns / 4] {
        for warps in [4, 2, 1] {
            for slices in [1, 2, 4, 8] {
                let candidate = GemmTile { warps, columns, slices, ..tile }.with_short_slices();
                if columns == 0 || warps > tile.warps || !is_possible(&candidate, limits) {
                    continue;
                }
                match estimate(product, &candidate, limits) {
                    Some(time) if time < least => (best, least) = (candidate, time),
                    _ => {}
                }
            }
        }
    }
    best
}

impl GemmTile {
    /// The tile, with iterations of the inner loop that are no longer than a slice.
    fn with_short_slices(self) -> GemmTile {
        GemmTile { unroll: self.unroll.min(self.depth / self.slices), ..self }
    }
}

/// Whether each slice has whole groups of products, and rows to stage and to store.
fn is_possible(tile: &GemmTile, limits: SpreadLimits) -> bool {
    tile.warps_in_all() <= limits.warps_max
        && tile.rows.is_multiple_of(tile.slices)
        && tile.depth.is_multiple_of(4 * tile.slices)
        && ahead::is_possible(tile)
}

/// Estimated cycles of a product with this tile, if its sizes are known.
fn estimate(product: &Product<'_>, tile: &GemmTile, limits: SpreadLimits) -> Option<i64> {
    let (rows, columns) = (product.rows_bound()?, product.column_count().as_const()?);
    let (batch, depth) = (product.batch_count().as_const()?, product.depth.as_const()?);
    let [warps, slices, tile_rows, tile_columns] = [tile.warps, tile.slices, tile.rows, tile.columns].map(i64::from);
    let ceil = |a: i64, b: i64| (a + b - 1) / b;
    let blocks = batch
        .checked_mul(ceil(rows, warps * tile_rows))?
        .checked_mul(ceil(columns, tile_columns * i64::from(LANES)))?;
    let in_turn = ceil(blocks, i64::from(limits.compute_units)).max(1);
    // Per product: multiplications with their loads of staged elements, and staging.
    let multiplied = warps * (tile_rows * tile_columns + tile_columns + tile_rows / 4);
    let (line, element) = match product.b {
        Source::Matrix(_) => (cycles::LINE, cycles::STAGED),
        Source::Windows(_) => (cycles::LINE_OF_WINDOWS, cycles::STAGED_WINDOW),
    };
    let staged = line + element * tile_columns + cycles::STAGED * warps * tile_rows / i64::from(LANES);
    let resident = (warps * slices * in_turn).min(cycles::WARPS_RESIDENT.max(warps * slices));
    // With few warps per scheduler, instructions wait for each other: a half or a quarter longer.
    let quarters = (7 - resident / cycles::SCHEDULERS).clamp(4, 6);
    let issued = (multiplied + staged).checked_mul(depth)? / cycles::SCHEDULERS * quarters / 4;
    let read = 4 * (tile_columns * i64::from(LANES) + warps * tile_rows) * depth / cycles::BYTES;
    let rounds = ceil(depth, tile.depth.into()) * cycles::ROUND / in_turn.min(3);
    let added =
        if slices > 1 { cycles::ROUND + cycles::SUM * warps * slices * tile_rows * tile_columns / 4 } else { 0 };
    issued.max(read).checked_add(rounds + added)?.checked_mul(in_turn)
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
