//! Gathers the elements of windows (implicit im2col): an address per column, and per k an offset that
//! is the same for all lanes.

use super::{Block, load_guarded};
use crate::product::{Product, Windows};
use crate::sweep;
use crate::window::Axis;
use crate::writer::{Int, LANES, Writer, mem};
use atoll_kgraph::Expr;
use atoll_ptx::{Name, ScalarType};

/// Added to the position of a tap that does not exist; no image extends that far.
const TAP_OUTSIDE: i64 = 1 << 29;
/// Position of a window that does not exist; with [`TAP_OUTSIDE`] added it is still outside.
const WINDOW_OUTSIDE: i64 = -(1 << 30);

/// Fewest channels for which the taps inside the image are determined once per column.
const CHANNELS_MIN: i64 = 8;

/// The window of one column.
pub(super) struct Window {
    /// Address of its first tap in the first channel; may be outside the image.
    corner: Name,
    inside: Inside,
}

/// Which taps of a window are inside the image.
enum Inside {
    /// A bit per tap, first tap first.
    Taps(Name),
    /// Position of the first tap on each axis.
    First(Vec<Int>),
}

impl Window {
    /// Computes the window of this thread's column number `part`.
    pub(super) fn new(w: &mut Writer, block: &Block, product: &Product<'_>, windows: &Windows, part: u32) -> Window {
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
            first[0] = Int::Reg(w.make(
                ScalarType::S32,
                "selp.s32",
                [first[0].operand(), WINDOW_OUTSIDE.into(), guard.into()],
            ));
        }
        let taps = taps(axes);
        let channels = product.depth.as_const().map_or(0, |depth| depth / i64::from(taps.max(1)));
        let inside = if block.prefetches && taps <= u32::BITS && channels >= CHANNELS_MIN {
            Inside::Taps(taps_inside(w, axes, &first))
        } else {
            Inside::First(first)
        };
        Window { corner, inside }
    }
}

/// Number of taps of a window.
fn taps(axes: &[Axis]) -> u32 {
    axes.iter().map(|axis| axis.window).product()
}

/// A bit for each tap of the window at `first` that is inside the image. A tap is inside if it is
/// on each axis.
fn taps_inside(w: &mut Writer, axes: &[Axis], first: &[Int]) -> Name {
    let count = taps(axes);
    let all = u32::MAX.checked_shl(u32::BITS - count).map_or(0, |ones| ones >> (u32::BITS - count));
    let inside = w.variable(&Int::Known(i64::from(all)));
    let mut behind = count;
    for (axis, first) in axes.iter().zip(first) {
        behind /= axis.window;
        let on_axis = w.variable(&Int::Known(0));
        for at in 0..axis.window {
            let bits: u32 = (0..count).filter(|tap| tap / behind % axis.window == at).map(|tap| 1 << tap).sum();
            let bits = i64::from(bits);
            let bits = match axis.inside(w, first, at) {
                None => bits.into(),
                Some(guard) => w.make(ScalarType::B32, "selp.b32", [bits.into(), 0.into(), guard.into()]).into(),
            };
            w.emit("or.b32", [(&on_axis).into(), (&on_axis).into(), bits]);
        }
        w.emit("and.b32", [(&inside).into(), (&inside).into(), (&on_axis).into()]);
    }
    inside
}

/// Gathers one line: the tap and channel of `k` for every column.
pub(super) fn stage_windows(
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
    let (channel, tap, taps) = channel_and_taps(w, axes, k);
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
        let guard = match &column.inside {
            Inside::Taps(taps) => {
                let bit = w.make(ScalarType::B32, "shl.b32", [1.into(), tap.operand()]);
                let bit = w.make(ScalarType::B32, "and.b32", [taps.into(), bit.into()]);
                let is_set = w.compare("ne.u32", &Int::Reg(bit), &Int::Known(0));
                w.both(Some(&is_set), inside)
            }
            Inside::First(first) => {
                let mut guard = None;
                for ((first, step), extent) in first.iter().zip(&steps).zip(&extents) {
                    let position = w.add(first, step);
                    let inside = w.inside(&position, extent);
                    guard = w.both(guard.as_ref(), inside.as_ref());
                }
                guard
            }
        };
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

/// The channel of `k`, its tap, and the tap on each axis.
fn channel_and_taps(w: &mut Writer, axes: &[Axis], k: &Int) -> (Int, Int, Vec<Int>) {
    let (channel, tap) = w.div_rem(k, &taps(axes).into());
    let mut rest = tap.clone();
    let mut on_axes = Vec::with_capacity(axes.len());
    for axis in 0..axes.len() {
        let (index, inner) = w.div_rem(&rest, &taps(&axes[axis + 1..]).into());
        on_axes.push(index);
        rest = inner;
    }
    (channel, tap, on_axes)
}
