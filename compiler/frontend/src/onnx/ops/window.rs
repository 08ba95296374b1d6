//! The attributes of a sliding window, shared by convolutions and poolings with any number of
//! spatial dimensions.

use super::super::call::Call;
use super::super::error::{LowerResult, invalid, unsupported};
use super::super::lowering::Lowering;
use super::pad::{self, Margins};
use crate::size::{at_least, bounds, canonical};
use crate::tensor_graph::{PadMode, ValueId};
use atoll_kgraph::Expr;

/// A window, with one entry per spatial dimension in each list.
pub(super) struct Window {
    pub(super) size: Vec<u32>,
    pub(super) strides: Vec<u32>,
    /// Padding before each dimension, then after each.
    pub(super) pads: Vec<u32>,
    pub(super) dilations: Vec<u32>,
    /// Padding whose width depends on the size of the input, with the dimensions of the output. If
    /// it is set, `pads` are 0.
    unresolved: Option<(Margins, Vec<Expr>)>,
    /// Whether the output size is rounded up.
    ceil: bool,
}

/// Largest stride, pad or dilation, so that products do not overflow.
const WINDOW_MAX: i64 = 1 << 16;

fn small(values: &[i64], what: &str, min: i64) -> LowerResult<Vec<u32>> {
    match values.iter().find(|v| !(min..=WINDOW_MAX).contains(*v)) {
        Some(value) if *value < 0 && what == "pads" => {
            unsupported(format!("its {what} contain {value}; only padding of at least 0 is supported"))
        }
        Some(value) => invalid(format!("its {what} contain {value}, which is not in {min}..={WINDOW_MAX}")),
        None => Ok(values.iter().map(|v| *v as u32).collect()),
    }
}

/// An attribute with one number per spatial dimension.
pub(super) fn per_dimension(
    call: &Call<'_>,
    name: &str,
    spatial: usize,
    default: i64,
    min: i64,
) -> LowerResult<Vec<u32>> {
    let values = call.ints(name)?.unwrap_or_else(|| vec![default; spatial]);
    if values.len() != spatial {
        return invalid(format!("its {name} has {} entries for {spatial} dimensions", values.len()));
    }
    small(&values, name, min)
}

/// The padding that an operator requests.
pub(super) enum AutoPad {
    /// Padding before each dimension, then after each.
    Explicit(Vec<u32>),
    /// Padding such that the output size is the input size divided by the stride, rounded up. The
    /// flag puts an odd element at the beginning instead of the end.
    Same { extra_in_front: bool },
}

impl AutoPad {
    pub(super) fn read(call: &Call<'_>, spatial: usize) -> LowerResult<AutoPad> {
        match call.string("auto_pad", "NOTSET")?.as_str() {
            "NOTSET" => {
                let pads = call.ints("pads")?.unwrap_or_else(|| vec![0; 2 * spatial]);
                if pads.len() != 2 * spatial {
                    return invalid(format!("its pads has {} entries for {spatial} dimensions", pads.len()));
                }
                Ok(AutoPad::Explicit(small(&pads, "pads", 0)?))
            }
            "VALID" => Ok(AutoPad::Explicit(vec![0; 2 * spatial])),
            "SAME_UPPER" => Ok(AutoPad::Same { extra_in_front: false }),
            "SAME_LOWER" => Ok(AutoPad::Same { extra_in_front: true }),
            other => invalid(format!("its attribute auto_pad is {other:?}, which ONNX does not define")),
        }
    }
}

impl Window {
    /// Reads `strides`, `pads`, `dilations`, `auto_pad` and `ceil_mode` for an input
    /// `x [N, C, spatial…]` and a window of `size`.
    pub(super) fn read(lowering: &Lowering, call: &Call<'_>, x: ValueId, size: &[i64]) -> LowerResult<Window> {
        let spatial = size.len();
        if spatial == 0 || lowering.rank(x) != spatial + 2 {
            return invalid(format!("its window has {spatial} dimensions and its operand {}", lowering.rank(x)));
        }
        let mut window = Window {
            size: small(size, "kernel_shape", 1)?,
            strides: per_dimension(call, "strides", spatial, 1, 1)?,
            pads: vec![0; 2 * spatial],
            dilations: per_dimension(call, "dilations", spatial, 1, 1)?,
            unresolved: None,
            ceil: call.flag("ceil_mode", false)?,
        };
        match AutoPad::read(call, spatial)? {
            AutoPad::Explicit(pads) => window.pads = pads,
            AutoPad::Same { extra_in_front } => window.pad_to_same(lowering, &lowering.shape(x)[2..], extra_in_front),
        }
        Ok(window)
    }

    /// Distance from the first to the last tap, inclusive.
    fn reach(&self, axis: usize) -> i64 {
        (i64::from(self.size[axis]) - 1) * i64::from(self.dilations[axis]) + 1
    }

    fn pad_to_same(&mut self, lowering: &Lowering, dims: &[Expr], extra_in_front: bool) {
        let mut margins = Margins::none(dims.len() + 2);
        for (axis, dim) in dims.iter().enumerate() {
            let (stride, reach) = (i64::from(self.strides[axis]), self.reach(axis));
            let total = match stride {
                1 => Expr::Const(reach - 1),
                _ => canonical(&((dim.clone().ceil_div(stride) - 1) * stride + reach - dim.clone())),
            };
            let total = if at_least(&total, &Expr::Const(0), &lowering.graph.symbols) { total } else { total.max(0) };
            let half = total.clone().floor_div(2);
            let rest = canonical(&(total - half.clone()));
            let (before, after) = if extra_in_front { (rest, half) } else { (half, rest) };
            (margins.before[axis + 2], margins.after[axis + 2]) = (before, after);
        }
        let numbers: Option<Vec<i64>> =
            margins.before[2..].iter().chain(&margins.after[2..]).map(Expr::as_const).collect();
        match numbers {
            Some(numbers) => self.pads = numbers.into_iter().map(|n| n as u32).collect(),
            None => {
                let output =
                    dims.iter().zip(&self.strides).map(|(dim, stride)| dim.clone().ceil_div(i64::from(*stride)));
                self.unresolved = Some((margins, output.collect()));
            }
        }
    }

    /// Adds the padding that the window itself cannot express.
    pub(super) fn padded(&self, lowering: &mut Lowering, name: &str, x: ValueId, fill: f64) -> LowerResult<ValueId> {
        match &self.unresolved {
            Some((margins, _)) => {
                pad::apply(lowering, &format!("{name}.padded"), x, margins.clone(), PadMode::Constant(fill))
            }
            None => Ok(x),
        }
    }

    /// Whether [`Window::padded`] adds the padding.
    pub(super) fn pads_before(&self) -> bool {
        self.unresolved.is_some()
    }

    /// The spatial dimensions of the output for those of the padded input.
    pub(super) fn output(&self, lowering: &Lowering, dims: &[Expr]) -> LowerResult<Vec<Expr>> {
        match &self.unresolved {
            Some((_, output)) => Ok(output.clone()),
            None => dims.iter().enumerate().map(|(axis, dim)| self.output_dim(lowering, axis, dim)).collect(),
        }
    }

    fn output_dim(&self, lowering: &Lowering, axis: usize, dim: &Expr) -> LowerResult<Expr> {
        let stride = i64::from(self.strides[axis]);
        let reach = self.reach(axis);
        let (before, after) = (i64::from(self.pads[axis]), i64::from(self.pads[axis + self.size.len()]));
        let span = dim.clone() + (before + after - reach);
        // With `ceil`, the last window may extend beyond the input.
        let least = if self.ceil { 1 - stride } else { 0 };
        if bounds(&span, &lowering.graph.symbols).is_some_and(|(_, high)| high < least) {
            return invalid(format!(
                "its window of {reach} elements is larger than the padded input of {}",
                dim.clone() + (before + after)
            ));
        }
        if !self.ceil {
            return Ok(span.floor_div(stride) + 1);
        }
        let count = span.ceil_div(stride) + 1;
        // Omits a last window that would start in the trailing padding.
        Ok(count.min((dim.clone() + (before - 1)).floor_div(stride) + 1))
    }

    /// The same window with a dimension of 1 in front.
    pub(super) fn with_height(mut self) -> Window {
        if let Some((_, output)) = &mut self.unresolved {
            output.insert(0, Expr::Const(1));
        }
        self.pads.insert(self.size.len(), 0);
        self.pads.insert(0, 0);
        for (list, one) in [(&mut self.size, 1), (&mut self.strides, 1), (&mut self.dilations, 1)] {
            list.insert(0, one);
        }
        self
    }
}
