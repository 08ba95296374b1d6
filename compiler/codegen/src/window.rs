//! Sliding windows: the position of a tap of a convolution or pooling on one axis.

use crate::writer::{Int, Writer};
use atoll_kgraph::Expr;
use atoll_ptx::Name;

/// Largest window, in taps, that is unrolled; larger windows are loops.
pub(crate) const TAPS_UNROLLED_MAX: u32 = 49;

/// One axis of a sliding window.
#[derive(Clone, Debug)]
pub(crate) struct Axis {
    /// Number of input elements.
    pub(crate) extent: Expr,
    /// Number of output elements.
    pub(crate) output: Expr,
    /// Number of taps.
    pub(crate) window: u32,
    pub(crate) stride: u32,
    pub(crate) dilation: u32,
    /// Padding before the input.
    pub(crate) before: u32,
}

impl Axis {
    /// Input position of the first tap; negative in the padding.
    pub(crate) fn first(&self, w: &mut Writer, output: &Int) -> Int {
        let scaled = w.mul(output, &self.stride.into());
        w.sub(&scaled, &self.before.into())
    }

    /// Whether input and output have the same positions. The offset of a window is then the offset
    /// of its output element plus a constant.
    pub(crate) fn keeps_size(&self) -> bool {
        self.stride == 1 && self.extent == self.output
    }

    /// Whether all taps of all windows are inside the input.
    pub(crate) fn is_always_inside(&self) -> bool {
        let (Some(extent), Some(output)) = (self.extent.as_const(), self.output.as_const()) else { return false };
        let last = (output - 1) * i64::from(self.stride) + i64::from(self.window.saturating_sub(1) * self.dilation);
        self.before == 0 && last < extent
    }

    /// Whether tap `tap` of the window at `first` is inside the input; `None` if it always is.
    pub(crate) fn inside(&self, w: &mut Writer, first: &Int, tap: u32) -> Option<Name> {
        if self.is_always_inside() {
            return None;
        }
        let at = w.add(first, &(tap * self.dilation).into());
        let extent = w.size(&self.extent);
        w.inside(&at, &extent)
    }

    /// Number of taps of the window at `first` that are in `low..high`.
    pub(crate) fn taps_inside(&self, w: &mut Writer, first: &Int, low: &Int, high: &Int) -> Int {
        if self.is_always_inside() {
            return self.window.into();
        }
        let below = self.taps_before(w, first, low);
        let all = self.taps_before(w, first, high);
        w.sub(&all, &below)
    }

    /// Number of taps before `end`.
    fn taps_before(&self, w: &mut Writer, first: &Int, end: &Int) -> Int {
        let distance = w.sub(end, first);
        let distance = w.max(&distance, &Int::Known(0));
        let distance = w.add(&distance, &(self.dilation - 1).into());
        let taps = w.div(&distance, &self.dilation.into());
        w.min(&taps, &self.window.into())
    }
}
