//! Stages the second operand: lanes along the columns, warps along k. Elements of a matrix are
//! addressed by strides; `windows.rs` gathers those of windows.

use super::Block;
use super::ahead::{Ahead, Element};
use super::windows::{Window, visit_windows};
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
    ahead: Ahead,
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
        let place = w.mad(&block.warp_of_all, &line_bytes.into(), &place);
        let place = w.mad(&block.lane, &4.into(), &place);
        let place = w.variable(&place);
        let (source, dtype) = match &product.b {
            Source::Matrix(matrix) => (from_matrix(w, block, matrix), matrix.tensor.dtype),
            Source::Windows(windows) => {
                let columns = (0..tile.columns).map(|part| Window::new(w, block, product, windows, part)).collect();
                (From::Windows { windows, columns }, windows.tensor.dtype)
            }
        };
        Columns { source, dtype, place, ahead: Ahead::default() }
    }

    /// Stages the products from `k` on.
    pub(super) fn stage(&self, w: &mut Writer, block: &Block, k: &Int, depth: &Int, buffer: &Name) {
        let place = w.make(ScalarType::U32, "add.s32", [(&self.place).into(), buffer.into()]);
        self.visit(w, block, k, depth, &mut |w, element| element.stage(w, self.dtype, &place));
    }

    /// Loads the products from `k` on into registers.
    pub(super) fn load(&mut self, w: &mut Writer, block: &Block, k: &Int, depth: &Int) {
        let mut ahead = std::mem::take(&mut self.ahead);
        ahead.begin();
        self.visit(w, block, k, depth, &mut |w, element| ahead.load(w, self.dtype, &element));
        self.ahead = ahead;
    }

    /// Stages the products that were loaded.
    pub(super) fn store(&self, w: &mut Writer, buffer: &Name) {
        let place = w.make(ScalarType::U32, "add.s32", [(&self.place).into(), buffer.into()]);
        self.ahead.store(w, self.dtype, &place);
    }

    /// Visits this lane's elements of the products from `k` on, and moves on to the next round.
    fn visit(&self, w: &mut Writer, block: &Block, k: &Int, depth: &Int, visit: &mut dyn FnMut(&mut Writer, Element)) {
        let tile = block.tile;
        let line_bytes = tile.columns * LANES * 4;
        for first in (0..tile.depth).step_by(tile.warps_in_all() as usize) {
            // The last round may have fewer lines than warps.
            let surplus = (first + tile.warps_in_all() > tile.depth)
                .then(|| w.compare("lt.u32", &block.warp_of_all, &(tile.depth - first).into()));
            let to = i64::from(first * line_bytes);
            w.when(surplus.as_ref(), |w| {
                let line = w.add(k, &first.into());
                let line = w.add(&line, &block.warp_of_all);
                let inside = block.ragged_depth.then(|| w.compare("lt.u32", &line, depth));
                match &self.source {
                    From::Matrix { addresses, guards, k } => {
                        let down = w.mul(k, &first.into());
                        visit_matrix(w, self.dtype, addresses, guards, inside.as_ref(), &down, to, visit)
                    }
                    From::Windows { windows, columns } => {
                        visit_windows(w, windows, columns, inside.as_ref(), &line, to, visit)
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
    let start = w.mad(&block.warp_of_all, &k, &start);
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

/// Visits the elements of one line, `down` elements from the first one of the round.
#[expect(clippy::too_many_arguments, reason = "the parts of one call site")]
fn visit_matrix(
    w: &mut Writer,
    dtype: DType,
    addresses: &[Name],
    guards: &[Option<Name>],
    inside: Option<&Name>,
    down: &Int,
    to: i64,
    visit: &mut dyn FnMut(&mut Writer, Element),
) {
    let bytes = dtype.bytes() as u32;
    for (part, (address, guard)) in addresses.iter().zip(guards).enumerate() {
        let guard = w.both(inside, guard.as_ref());
        let (address, offset) = match down.known().map(|d| d * i64::from(bytes)) {
            Some(offset) if offset < i64::from(i32::MAX) => (address.clone(), offset),
            _ => (w.at(address, down, bytes), 0),
        };
        visit(w, Element { guard, address, offset, to: to + part as i64 * i64::from(LANES) * 4 });
    }
}

/// Prefetches this thread's part of the next round. Lines behind the last product or column are
/// prefetched in vain.
fn prefetch(w: &mut Writer, dtype: DType, addresses: &[Name], k: &Int, tile: GemmTile) {
    for line in (0..tile.depth).step_by(tile.warps_in_all() as usize) {
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
