//! Sums of slices: each slice has sums of its part of the products. They are exchanged in shared
//! memory, a column of each lane at a time, and each slice adds and stores a part of the rows.

use super::{Block, load_shared};
use crate::error::CodegenError;
use crate::product::{Epilogue, Product};
use crate::target::GemmTile;
use crate::writer::{Int, LANES, Writer, mem};
use atoll_ptx::{Name, Operand, ScalarType};

/// Shared memory of a block whose staged operands need `staged` bytes. Sums take their place.
pub(super) fn shared_bytes(tile: &GemmTile, staged: u32) -> u32 {
    if tile.slices == 1 { staged } else { staged.max(tile.warps_in_all() * warp_bytes(tile)) }
}

/// Bytes of one sum of each lane for each row of a warp.
fn warp_bytes(tile: &GemmTile) -> u32 {
    tile.rows * LANES * 4
}

/// Adds the sums of all slices, applies the epilogue, and stores the results.
pub(super) fn finish(
    w: &mut Writer,
    block: &Block,
    product: &Product<'_>,
    sums: &[Vec<Name>],
) -> Result<(), CodegenError> {
    let tile = block.tile;
    let own_rows = tile.rows / tile.slices;
    let lane = w.mad(&block.lane, &4.into(), &Int::Reg(block.shared.clone()));
    let written = w.mad(&block.warp_of_all, &warp_bytes(&tile).into(), &lane);
    // The sums of a slice's rows by the first slice; those of the others are at equal distances.
    let read = w.mad(&block.warp, &warp_bytes(&tile).into(), &lane);
    let read = w.mad(&block.slice, &(own_rows * LANES * 4).into(), &read);
    let (written, read) = (w.variable(&written), w.variable(&read));
    let first_row = block.first_own_row(w);
    let mut outcome = Ok(());
    for part in 0..tile.columns {
        // All warps have read what is overwritten now: operands, or the sums of the column before.
        w.barrier();
        for (row, sums) in sums.iter().enumerate() {
            let sum = Operand::from(&sums[part as usize]);
            w.emit("st.shared.f32", [mem(&written, i64::from(row as u32 * LANES * 4)), sum]);
        }
        w.barrier();
        let column = block.column(w, part);
        let guard = block.stored_column_guard(w, &column);
        w.when(guard.as_ref(), |w| {
            let epilogue = Epilogue::new(w, product, &block.batch, &first_row, &column);
            for i in 0..own_rows {
                let row = w.add(&first_row, &i.into());
                let guard = block.row_guard(w, &row);
                w.when(guard.as_ref(), |w| {
                    let sum = added(w, &tile, &read, i);
                    if outcome.is_ok() {
                        outcome = epilogue.store(w, i, &sum);
                    }
                });
            }
        });
    }
    outcome
}

/// The sum of all slices for a slice's row number `i`.
fn added(w: &mut Writer, tile: &GemmTile, read: &Name, i: u32) -> Operand {
    let mut sum = load_shared(w, read, i * LANES * 4);
    for slice in 1..tile.slices {
        let term = load_shared(w, read, slice * tile.warps * warp_bytes(tile) + i * LANES * 4);
        sum = w.make(ScalarType::F32, "add.f32", [sum, term]).into();
    }
    sum
}
