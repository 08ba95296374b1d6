//! Stages the second operand: lanes along the columns, warps along k. Elements of a matrix are
//! addressed by strides; `windows.rs` gathers those of windows.

use super::windows::{Window, stage_windows};
use super::{Block, load_guarded};
use crate::product::{Matrix, Product, Source, Windows};
use crate::sweep;
use crate::target::GemmTile;
use crate::writer::{Int, LANES, Writer, mem};
use atoll_kgraph::DType;
use atoll_ptx::{Name, ScalarType};

/// The columns of a block.
pub(super) struct Columns<'a> {
    source: From<'a>,
    dtype: DType,
    /// Shared address of this lane's first column in this warp's first line.
    place: Name,
}

enum From<'a> {
    Matrix {
        /// Address of each of this thread's columns, at the next k of this warp.
        addresses: Vec<Name>,
        guards: Vec<Option<Name>>,
        /// Distance from one k to the next, in elements.
        k: Int,
    },
    Windows {
        windows: &'a Windows,
        columns: Vec<Window>,
    },
}

impl<'a> Columns<'a> {
    pub(super) fn new(w: &mut Writer, block: &Block, product: &'a Product<'_>) -> Columns<'a> {
        let tile = block.tile;
        let line_bytes = tile.columns * LANES * 4;
        let place = w.add(&Int::Reg(block.shared.clone()), &block.columns_offset.into());
        let place = w.mad(&block.warp, &line_bytes.into(), &place);
        let place = w.mad(&block.lane, &4.into(), &place);
        let place = w.variable(&place);
        match &product.b {
            Source::Matrix(matrix) => {
                Columns { source: from_matrix(w, block, matrix), dtype: matrix.tensor.dtype, place }
            }
            Source::Windows(windows) => {
                let columns = (0..tile.columns).map(|part| Window::new(w, block, product, windows, part)).collect();
                Columns { source: From::Windows { windows, columns }, dtype: windows.tensor.dtype, place }
            }
        }
    }

    /// Stages the products from `k` on.
    pub(super) fn stage(&mut self, w: &mut Writer, block: &Block, k: &Int, depth: &Int, buffer: &Name) {
        let tile = block.tile;
        let place = w.make(ScalarType::U32, "add.s32", [(&self.place).into(), buffer.into()]);
        let line_bytes = tile.columns * LANES * 4;
        for first in (0..tile.depth).step_by(tile.warps as usize) {
            // The last round may have fewer lines than warps.
            let surplus = (first + tile.warps > tile.depth)
                .then(|| w.compare("lt.u32", &block.warp, &(tile.depth - first).into()));
            let to = i64::from(first * line_bytes);
            w.when(surplus.as_ref(), |w| {
                let line = w.add(k, &first.into());
                let line = w.add(&line, &block.warp);
                let inside = block.ragged_depth.then(|| w.compare("lt.u32", &line, depth));
                match &self.source {
                    From::Matrix { addresses, guards, k } => {
                        stage_matrix(w, self.dtype, addresses, guards, inside.as_ref(), k, first, &place, to)
                    }
                    From::Windows { windows, columns } => {
                        stage_windows(w, windows, columns, inside.as_ref(), &line, &place, to)
                    }
                }
            });
        }
        if let From::Matrix { addresses, k, .. } = &self.source {
            let step = w.mul(k, &tile.depth.into());
            if block.prefetches {
                prefetch(w, self.dtype, addresses, k, tile);
            }
            for address in addresses {
                w.advance(address, &step, self.dtype.bytes() as u32);
            }
        }
    }
}

fn from_matrix<'a>(w: &mut Writer, block: &Block, matrix: &Matrix) -> From<'a> {
    let bytes = matrix.tensor.element_bytes();
    let base = w.base(&matrix.tensor);
    let (k, column_stride) = (w.size(&matrix.row), w.size(&matrix.column));
    let start = sweep::offset(w, &block.batch, &matrix.batch);
    let start = w.mad(&block.warp, &k, &start);
    let start = w.mad(&block.first_column, &column_stride, &start);
    let line = w.at(&base, &start, bytes);
    let along = w.mul(&block.lane, &column_stride);
    let first = w.at(&line, &along, bytes);
    let mut addresses = Vec::new();
    let mut guards = Vec::new();
    for part in 0..block.tile.columns {
        let step = w.mul(&column_stride, &(part * LANES).into());
        let address = w.at(&first, &step, bytes);
        addresses.push(w.cursor(&address));
        let column = block.column(w, part);
        guards.push(block.column_guard(w, &column));
    }
    From::Matrix { addresses, guards, k }
}

#[expect(clippy::too_many_arguments, reason = "the parts of one call site")]
fn stage_matrix(
    w: &mut Writer,
    dtype: DType,
    addresses: &[Name],
    guards: &[Option<Name>],
    inside: Option<&Name>,
    k: &Int,
    first: u32,
    place: &Name,
    to: i64,
) {
    let bytes = dtype.bytes() as u32;
    let down = w.mul(k, &first.into());
    for (part, (address, guard)) in addresses.iter().zip(guards).enumerate() {
        let guard = w.both(inside, guard.as_ref());
        let (address, offset) = match down.known().map(|d| d * i64::from(bytes)) {
            Some(offset) if offset < i64::from(i32::MAX) => (address.clone(), offset),
            _ => (w.at(address, &down, bytes), 0),
        };
        let value = load_guarded(w, dtype, guard.as_ref(), &address, offset);
        w.emit("st.shared.f32", [mem(place, to + part as i64 * i64::from(LANES) * 4), value]);
    }
}

/// Prefetches this thread's part of the next round. Lines behind the last product or column are
/// prefetched in vain.
fn prefetch(w: &mut Writer, dtype: DType, addresses: &[Name], k: &Int, tile: GemmTile) {
    for line in (0..tile.depth).step_by(tile.warps as usize) {
        let down = w.mul(k, &(tile.depth + line).into());
        let Some(offset) = down.known().map(|down| down * dtype.bytes() as i64) else { return };
        if offset >= i64::from(i32::MAX) {
            return;
        }
        for address in addresses {
            w.emit("prefetch.global.L1", [mem(address, offset)]);
        }
    }
}
