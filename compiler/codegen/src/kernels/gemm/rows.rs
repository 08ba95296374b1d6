//! Stages the first operand: each warp its own rows, lanes along k.

use super::{Block, load_guarded};
use crate::product::Product;
use crate::sweep;
use crate::writer::{Int, LANES, Writer, mem};
use atoll_kgraph::DType;
use atoll_ptx::{Name, ScalarType};

/// The rows of one warp.
pub(super) struct Rows {
    dtype: DType,
    /// Address of this lane's next element of the first row.
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
}
