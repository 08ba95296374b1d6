//! Stages the second operand: lanes along the columns, warps along k. Elements of a matrix are
//! addressed by strides. Elements of windows are gathered (implicit im2col): an address per column,
//! and per k an offset that is the same for all lanes.

use super::{Block, load_guarded};
use crate::product::{Matrix, Product, Source, Windows};
use crate::sweep;
use crate::target::GemmTile;
use crate::window::Axis;
use crate::writer::{Int, LANES, Writer, mem};
use atoll_kgraph::{DType, Expr};
use atoll_ptx::{Name, ScalarType};

/// Added to the position of a tap that does not exist; no image extends that far.
const TAP_OUTSIDE: i64 = 1 << 29;
/// Position of a window that does not exist; with [`TAP_OUTSIDE`] added it is still outside.
const WINDOW_OUTSIDE: i64 = -(1 << 30);

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

/// The window of one column.
struct Window {
    /// Address of its first tap in the first channel; may be outside the image.
    corner: Name,
    /// Position of its first tap on each axis.
    first: Vec<Int>,
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
                let columns = (0..tile.columns).map(|part| window(w, block, windows, part)).collect();
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

/// Computes the window of this thread's column number `part`.
fn window(w: &mut Writer, block: &Block, windows: &Windows, part: u32) -> Window {
    let axes = &windows.axes;
    let column = block.column(w, part);
    let guard = block.column_guard(w, &column);
    let dims: Vec<Expr> = std::iter::once(&windows.images).chain(axes.iter().map(|a| &a.output)).cloned().collect();
    let indices = sweep::unravel(w, &column, &dims);
    let mut first: Vec<Int> = axes.iter().zip(&indices[1..]).map(|(axis, index)| axis.first(w, index)).collect();
    let image = Expr::product(&windows.tensor.shape[1..]);
    let image = w.size(&image);
    let extents: Vec<Int> = axes.iter().map(|a| w.size(&a.extent)).collect();
    let batch = sweep::offset(w, &block.batch, &windows.batch);
    let base = w.base(&windows.tensor);
    let bytes = windows.tensor.element_bytes();
    let base = w.at(&base, &batch, bytes);
    let corner = if windows.images == Expr::Const(1) && axes.iter().all(Axis::keeps_size) {
        // Adjacent columns have adjacent windows, even across the ends of rows.
        let mut back = Int::from(axes[0].before);
        for (axis, extent) in axes.iter().zip(&extents).skip(1) {
            back = w.mad(extent, &back, &axis.before.into());
        }
        let back = w.sub(&Int::Known(0), &back);
        let shifted = w.at(&base, &back, bytes);
        w.at(&shifted, &column, bytes)
    } else {
        let start = w.mul(&indices[0], &image);
        let mut line = first[0].clone();
        for at in 1..axes.len() {
            // The start of the image is added together with the last axis.
            let is_last = at + 1 == axes.len();
            line = if is_last { w.mad(&line, &extents[at], &start) } else { w.mul(&line, &extents[at]) };
            line = w.add(&line, &first[at]);
        }
        w.at(&base, &line, bytes)
    };
    // The window of a column that does not exist is moved outside the image.
    if let Some(guard) = guard {
        first[0] =
            Int::Reg(w.make(ScalarType::S32, "selp.s32", [first[0].operand(), WINDOW_OUTSIDE.into(), guard.into()]));
    }
    Window { corner, first }
}

/// Gathers one line: the tap and channel of `k` for every column.
fn stage_windows(
    w: &mut Writer,
    windows: &Windows,
    columns: &[Window],
    inside: Option<&Name>,
    k: &Int,
    place: &Name,
    to: i64,
) {
    let axes = &windows.axes;
    let bytes = windows.tensor.element_bytes();
    let extents: Vec<Int> = axes.iter().map(|a| w.size(&a.extent)).collect();
    let (channel, taps) = channel_and_taps(w, axes, k);
    let mut steps: Vec<Int> = axes.iter().zip(&taps).map(|(axis, tap)| w.mul(tap, &axis.dilation.into())).collect();
    // Channels, planes, rows and columns are nested in this order.
    let mut offset = channel;
    let mut size = Int::Known(1);
    for extent in &extents {
        size = w.mul(&size, extent);
    }
    offset = w.mul(&offset, &size);
    let inner: Vec<Int> = inner_sizes(w, &extents);
    for (step, size) in steps.iter().zip(&inner) {
        offset = w.mad(step, size, &offset);
    }
    if let Some(inside) = inside {
        // The tap of a product that does not exist is moved outside every image.
        steps[0] =
            Int::Reg(w.make(ScalarType::S32, "selp.s32", [steps[0].operand(), TAP_OUTSIDE.into(), inside.into()]));
    }
    for (part, column) in columns.iter().enumerate() {
        let positions: Vec<Int> = column.first.iter().zip(&steps).map(|(first, step)| w.add(first, step)).collect();
        let mut guard = None;
        for (position, extent) in positions.iter().zip(&extents) {
            let inside = w.inside(position, extent);
            guard = w.both(guard.as_ref(), inside.as_ref());
        }
        let address = w.at(&column.corner, &offset, bytes);
        let value = load_guarded(w, windows.tensor.dtype, guard.as_ref(), &address, 0);
        w.emit("st.shared.f32", [mem(place, to + part as i64 * i64::from(LANES) * 4), value]);
    }
}

/// Number of elements that one step along each axis skips.
fn inner_sizes(w: &mut Writer, extents: &[Int]) -> Vec<Int> {
    let mut sizes = vec![Int::Known(1); extents.len()];
    for axis in (1..extents.len()).rev() {
        sizes[axis - 1] = w.mul(&extents[axis], &sizes[axis]);
    }
    sizes
}

/// The channel of `k` and its tap on each axis.
fn channel_and_taps(w: &mut Writer, axes: &[Axis], k: &Int) -> (Int, Vec<Int>) {
    let mut rest = k.clone();
    let mut indices = Vec::with_capacity(axes.len());
    for axis in 0..=axes.len() {
        let behind: u32 = axes[axis..].iter().map(|a| a.window).product();
        let (index, inner) = w.div_rem(&rest, &behind.into());
        indices.push(index);
        rest = inner;
    }
    (indices.remove(0), indices)
}
