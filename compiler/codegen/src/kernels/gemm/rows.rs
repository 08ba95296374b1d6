//! The first operand: each warp has its own rows. Staged rows are copied to shared memory, lanes
//! along k. Direct rows are read where they are: all lanes read the same element.

use super::{Block, load_guarded, load_shared};
use crate::product::Product;
use crate::sweep;
use crate::target::{GemmTile, TargetDescription};
use crate::writer::{Int, LANES, Writer, mem};
use atoll_kgraph::{DType, Expr};
use atoll_ptx::{Name, Operand, ScalarType};

/// Whether rows are read from global memory: they exist, their elements are adjacent, and no round
/// ends within an iteration of the inner loop.
pub(super) fn are_direct(target: &TargetDescription, product: &Product<'_>, tile: GemmTile) -> bool {
    let a = &product.a;
    let (Some(rows), Some(depth), Some(stride)) = (product.rows.as_const(), product.depth.as_const(), a.row.as_const())
    else {
        return false;
    };
    let last = i64::from(tile.rows).saturating_mul(stride.saturating_abs()).saturating_mul(4);
    target.caches_like_shared
        && a.tensor.dtype == DType::F32
        && a.column == Expr::Const(1)
        && rows >= i64::from(tile.rows)
        && depth % i64::from(tile.unroll) == 0
        && last < i64::from(i32::MAX)
}

/// Bytes that one prefetch loads.
const CACHE_LINE_BYTES: usize = 64;

/// The rows of one warp.
pub(super) struct Rows {
    dtype: DType,
    /// Address of this lane's next element of the first row; of the warp's next element if the rows
    /// are direct.
    address: Name,
    /// Distance of rows, and of k, in elements.
    row: Int,
    k: Int,
    /// Which rows exist; `None` if all of them always do.
    guards: Vec<Option<Name>>,
    /// Shared address of this lane's element of the first row, in the first buffer.
    place: Name,
}

impl Rows {
    pub(super) fn new(w: &mut Writer, block: &Block, product: &Product<'_>) -> Rows {
        let tile = block.tile;
        let a = &product.a;
        let bytes = a.tensor.element_bytes();
        let (row, k) = (w.size(&a.row), w.size(&a.column));
        let start = sweep::offset(w, &block.batch, &a.batch);
        let start = w.mad(&block.first_row, &row, &start);
        let base = w.base(&a.tensor);
        let line = w.at(&base, &start, bytes);
        if block.direct_rows {
            let (address, place) = (w.cursor(&line), block.shared.clone());
            return Rows { dtype: a.tensor.dtype, address, row, k, guards: Vec::new(), place };
        }
        let along = w.mul(&block.lane, &k);
        let address = w.at(&line, &along, bytes);
        let guards = (0..tile.rows)
            .map(|i| {
                let row = w.add(&block.first_row, &i.into());
                block.ragged_rows.then(|| w.compare("lt.u32", &row, &block.row_count))
            })
            .collect();
        let place = w.mad(&block.warp, &(tile.rows * tile.depth * 4).into(), &Int::Reg(block.shared.clone()));
        let place = w.mad(&block.lane, &4.into(), &place);
        Rows { dtype: a.tensor.dtype, address: w.cursor(&address), row, k, guards, place: w.variable(&place) }
    }

    /// Stages the products from `k` on.
    pub(super) fn stage(&mut self, w: &mut Writer, block: &Block, k: &Int, depth: &Int, buffer: &Name) {
        if block.direct_rows {
            self.prefetch(w, block.tile);
            return;
        }
        let tile = block.tile;
        let bytes = self.dtype.bytes() as u32;
        let place = w.make(ScalarType::U32, "add.s32", [(&self.place).into(), buffer.into()]);
        for part in 0..tile.depth / LANES {
            let inside = block.ragged_depth.then(|| {
                let at = w.add(k, &(part * LANES).into());
                let at = w.add(&at, &block.lane);
                w.compare("lt.u32", &at, depth)
            });
            let along = w.mul(&self.k, &(part * LANES).into());
            let mut line = w.at(&self.address, &along, bytes);
            for (i, guard) in self.guards.iter().enumerate() {
                let guard = w.both(inside.as_ref(), guard.as_ref());
                // A distance that fits into the instruction is encoded there.
                let offset = match self.row.known().map(|row| row * i as i64 * i64::from(bytes)) {
                    Some(offset) if offset < i64::from(i32::MAX) => offset,
                    _ if i == 0 => 0,
                    _ => {
                        line = w.at(&line, &self.row, bytes);
                        0
                    }
                };
                let value = load_guarded(w, self.dtype, guard.as_ref(), &line, offset);
                let to = i64::from(i as u32 * tile.depth * 4 + part * LANES * 4);
                w.emit("st.shared.f32", [mem(&place, to), value]);
            }
        }
        let step = w.mul(&self.k, &tile.depth.into());
        w.advance(&self.address, &step, bytes);
    }

    /// Prefetches the elements of the next round of direct rows. Elements behind the last product
    /// are prefetched in vain.
    fn prefetch(&self, w: &mut Writer, tile: GemmTile) {
        let Some(row) = self.row.known() else { return };
        let round = i64::from(tile.depth) * 4;
        let offsets = (0..i64::from(tile.rows))
            .flat_map(|i| (round..2 * round).step_by(CACHE_LINE_BYTES).map(move |at| i * row * 4 + at));
        for offset in offsets.take_while(|offset| *offset < i64::from(i32::MAX)) {
            w.emit("prefetch.global.L1", [mem(&self.address, offset)]);
        }
    }

    /// The rows of one round, whose staged buffer is at the shared address `base`.
    pub(super) fn of_round(&self, w: &mut Writer, block: &Block, base: &Name) -> RowsAt {
        let row_bytes = block.tile.depth * 4;
        if let (true, Some(row)) = (block.direct_rows, self.row.known()) {
            return RowsAt::Global { address: self.address.clone(), row_bytes: row * 4 };
        }
        let at = w.mad(&block.warp, &(block.tile.rows * row_bytes).into(), &Int::Reg(base.clone()));
        RowsAt::Shared { address: w.variable(&at), row_bytes }
    }
}

/// Where the inner loop reads the rows.
pub(super) enum RowsAt {
    Shared { address: Name, row_bytes: u32 },
    Global { address: Name, row_bytes: i64 },
}

impl RowsAt {
    /// `count` elements of a row, from the product number `first` of an iteration on.
    pub(super) fn factors(&self, w: &mut Writer, row: u32, first: u32, count: u32) -> Vec<Operand> {
        match self {
            RowsAt::Global { address, row_bytes } => (first..first + count)
                .map(|k| {
                    let at = i64::from(row) * row_bytes + i64::from(k) * 4;
                    w.f32("ld.global.f32", [mem(address, at)])
                })
                .collect(),
            RowsAt::Shared { address, row_bytes } if count == 4 => {
                let values: Vec<Operand> = (0..4).map(|_| w.reg(ScalarType::F32).into()).collect();
                let at = mem(address, (row * row_bytes + first * 4).into());
                w.emit("ld.shared.v4.f32", [Operand::Vector(values.clone()), at]);
                values
            }
            RowsAt::Shared { address, row_bytes } => {
                (first..first + count).map(|k| load_shared(w, address, row * row_bytes + k * 4)).collect()
            }
        }
    }

    /// Moves on by the products of an iteration.
    pub(super) fn advance(&self, w: &mut Writer, products: u32) {
        let (RowsAt::Shared { address, .. } | RowsAt::Global { address, .. }) = self;
        let dotted = if matches!(self, RowsAt::Global { .. }) { "add.s64" } else { "add.s32" };
        w.emit(dotted, [address.into(), address.into(), (products * 4).into()]);
    }
}
