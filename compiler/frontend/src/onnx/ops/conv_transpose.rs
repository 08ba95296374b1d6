//! Transposed convolution, as a convolution with one filter per phase.
//!
//! Along one axis with stride `s`, the output element at `q * s + p` uses the taps `p`, `p + s`,
//! `p + 2s`, … of the window, with the neighbouring input elements `q`, `q - 1`, `q - 2`, …. Each
//! of the `s` phases `p` is therefore an ordinary convolution of the input with every s-th tap, in
//! reverse order. All phases of all filters become one convolution with `s` times as many filters,
//! and its results are interleaved. No zeros are inserted between input elements. If the stride
//! does not divide the window, the last taps of some phases are zeros.

use super::super::call::Call;
use super::super::error::{LowerResult, invalid, unsupported};
use super::super::lowering::Lowering;
use super::super::options::DIMENSION_MAX;
use super::conv::{self, Convolution, channels, kernel_shape, with_height, without_height};
use super::pad::{self, Margins};
use super::window::{AutoPad, per_dimension};
use crate::size::{at_least, canonical};
use crate::tensor_graph::{Op, PadMode, ValueId};
use atoll_kgraph::Expr;

type Results = LowerResult<Vec<ValueId>>;

/// One spatial axis.
struct Axis {
    stride: i64,
    /// Dilation of the taps; 1 if zeros are inserted between them instead.
    dilation: i64,
    /// Number of taps of the window, including inserted zeros.
    window: i64,
    /// Number of elements cropped at the beginning of the full result.
    cut: Expr,
    /// Number of elements of the output.
    output: Expr,
}

impl Axis {
    /// Number of taps of each phase.
    fn taps(&self) -> i64 {
        (self.window + self.stride - 1) / self.stride
    }
}

pub(super) fn conv_transpose(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let (x, w) = (call.input(0)?, call.input(1)?);
    let kernel = kernel_shape(lowering, call, w)?;
    let spatial = kernel.len();
    if !(1..=3).contains(&spatial) || lowering.rank(x) != spatial + 2 {
        return unsupported(format!("its window has {spatial} dimensions and its operand {}", lowering.rank(x)));
    }
    let mut axes = read_axes(lowering, call, x, &kernel)?;
    let groups = call.int("group", 1)?;
    let (input, per_group) = (channels(lowering, w, 0)?, channels(lowering, w, 1)?);
    if lowering.shape(x)[1].as_const().is_none() {
        lowering.equal_dims(lowering.shape(x)[1].clone(), input.into())?;
    }
    if groups < 1 || input % groups != 0 || lowering.shape(x)[1].as_const() != Some(input) {
        return invalid(format!(
            "its operand has {} channels, but its weights are for {input} channels in {groups} groups",
            lowering.text(&lowering.shape(x)[1])
        ));
    }
    let (x, w) = match spatial {
        1 => {
            axes.insert(0, Axis { stride: 1, dilation: 1, window: 1, cut: Expr::Const(0), output: Expr::Const(1) });
            let x = with_height(lowering, &format!("{}.x", call.name), x)?;
            (x, with_height(lowering, &format!("{}.w", call.name), w)?)
        }
        _ => (x, w),
    };
    let filters = per_group * groups;
    let weights = phase_weights(lowering, &call.name, w, groups, &axes)?;
    let bias = call.optional(2).map(|bias| phase_bias(lowering, &call.name, bias, filters, &axes)).transpose()?;
    let phases = convolve(lowering, &call.name, x, weights, bias, groups, &axes)?;
    let y = interleave(lowering, &call.name, phases, filters, &axes)?;
    Ok(vec![if spatial == 1 { without_height(lowering, &format!("{}.y", call.name), y)? } else { y }])
}

/// Reads strides, dilations, and which part of the full result is the output.
fn read_axes(lowering: &Lowering, call: &Call<'_>, x: ValueId, kernel: &[i64]) -> LowerResult<Vec<Axis>> {
    let spatial = kernel.len();
    let strides = per_dimension(call, "strides", spatial, 1, 1)?;
    let dilations = per_dimension(call, "dilations", spatial, 1, 1)?;
    let extra = per_dimension(call, "output_padding", spatial, 0, 0)?;
    let auto = AutoPad::read(call, spatial)?;
    let wanted = call.ints("output_shape")?;
    // Some exporters include batch and channels.
    let wanted = wanted.map(|shape| shape[shape.len().saturating_sub(spatial)..].to_vec());
    if wanted
        .as_ref()
        .is_some_and(|shape| shape.len() != spatial || shape.iter().any(|d| !(1..=DIMENSION_MAX).contains(d)))
    {
        return invalid(format!("its output_shape is {wanted:?}; it needs one positive size per spatial dimension"));
    }
    let dims = &lowering.shape(x)[2..];
    let axis = |i: usize| {
        let (stride, reach) = (i64::from(strides[i]), i64::from(dilations[i]) * (kernel[i] - 1) + 1);
        let dilation = if strides[i] == 1 { i64::from(dilations[i]) } else { 1 };
        let full = canonical(&((dims[i].clone() - 1) * stride + reach + i64::from(extra[i])));
        let (cut, output) = match (&auto, &wanted) {
            (AutoPad::Explicit(pads), None) => {
                let cut = i64::from(pads[i]);
                (Expr::Const(cut), canonical(&(full - cut - i64::from(pads[i + spatial]))))
            }
            (auto, wanted) => {
                let output = wanted
                    .as_ref()
                    .map_or_else(|| canonical(&(dims[i].clone() * stride)), |shape| Expr::Const(shape[i]));
                let total = not_negative(lowering, canonical(&(full - output.clone())));
                let half = total.clone().floor_div(2);
                // With odd padding, `SAME_UPPER` puts the extra element at the end.
                let is_upper = matches!(auto, AutoPad::Same { extra_in_front: false });
                (if is_upper { half } else { canonical(&(total - half)) }, output)
            }
        };
        Ok(Axis { stride, dilation, window: (reach - 1) / dilation + 1, cut, output })
    };
    (0..spatial).map(axis).collect()
}

/// An output that is larger than the full result is filled with zeros at the end.
fn not_negative(lowering: &Lowering, total: Expr) -> Expr {
    if at_least(&total, &Expr::Const(0), &lowering.graph.symbols) { total } else { canonical(&total.max(0)) }
}

/// Weights `[C, M/g, window…]` as the weights of the phases: `[g * M/g * s…, C/g, taps…]`.
fn phase_weights(lowering: &mut Lowering, name: &str, w: ValueId, groups: i64, axes: &[Axis]) -> LowerResult<ValueId> {
    let name = format!("{name}.weights");
    let (input, per_group) = (channels(lowering, w, 0)?, channels(lowering, w, 1)?);
    let w = spread_taps(lowering, &name, w, axes)?;
    let mut margins = Margins::none(axes.len() + 2);
    let mut split = vec![Expr::Const(groups), Expr::Const(input / groups), Expr::Const(per_group)];
    for (i, axis) in axes.iter().enumerate() {
        margins.after[i + 2] = Expr::Const(axis.taps() * axis.stride - axis.window);
        split.extend([Expr::Const(axis.taps()), Expr::Const(axis.stride)]);
    }
    let w = pad::apply(lowering, &format!("{name}.filled"), w, margins, PadMode::Constant(0.0))?;
    let w = lowering.reshape(&format!("{name}.split"), w, split)?;
    let w = reversed_taps(lowering, &format!("{name}.turned"), w, axes)?;
    // [g, C/g, M/g, taps, s, taps, s…] to [g, M/g, s…, C/g, taps…]
    let (taps, phases): (Vec<usize>, Vec<usize>) = (0..axes.len()).map(|i| (3 + 2 * i, 4 + 2 * i)).unzip();
    let permutation = [vec![0, 2], phases, vec![1], taps].concat();
    let w = lowering.transpose(&format!("{name}.phases"), w, permutation)?;
    let phase_count: i64 = axes.iter().map(|a| a.stride).product();
    let shape = [groups * per_group * phase_count, input / groups]
        .into_iter()
        .chain(axes.iter().map(Axis::taps))
        .map(Expr::Const);
    lowering.reshape(&name, w, shape.collect())
}

/// Inserts the zeros of a dilation between the taps, for windows whose phases cannot skip them.
fn spread_taps(lowering: &mut Lowering, name: &str, w: ValueId, axes: &[Axis]) -> LowerResult<ValueId> {
    let mut w = w;
    for (i, axis) in axes.iter().enumerate() {
        let shape = lowering.shape(w).to_vec();
        let Some(taps) = shape[i + 2].as_const().filter(|taps| *taps > 1 && *taps != axis.window) else { continue };
        let distance = (axis.window - 1) / (taps - 1);
        let mut column = shape.clone();
        column.insert(i + 3, Expr::Const(1));
        let apart = lowering.reshape(&format!("{name}.column"), w, column)?;
        let mut margins = Margins::none(shape.len() + 1);
        margins.after[i + 3] = Expr::Const(distance - 1);
        let apart = pad::apply(lowering, &format!("{name}.zeros"), apart, margins, PadMode::Constant(0.0))?;
        let mut spread = shape;
        spread[i + 2] = Expr::Const(taps * distance);
        let joined = lowering.reshape(&format!("{name}.joined"), apart, spread.clone())?;
        spread[i + 2] = Expr::Const(axis.window);
        let starts = vec![Expr::Const(0); spread.len()];
        w = pad::crop(lowering, &format!("{name}.spread"), joined, starts, spread)?;
    }
    Ok(w)
}

/// Reverses the taps of every phase.
fn reversed_taps(lowering: &mut Lowering, name: &str, w: ValueId, axes: &[Axis]) -> LowerResult<ValueId> {
    let shape = lowering.shape(w).to_vec();
    let mut starts = vec![Expr::Const(0); shape.len()];
    let mut steps = vec![1; shape.len()];
    for (i, axis) in axes.iter().enumerate().filter(|(_, axis)| axis.taps() > 1) {
        (starts[3 + 2 * i], steps[3 + 2 * i]) = (Expr::Const(axis.taps() - 1), -1);
    }
    if steps.iter().all(|step| *step == 1) {
        return Ok(w);
    }
    lowering.emit_one(name, Op::Slice { starts, steps }, &[w], lowering.dtype(w), shape)
}

/// The bias of every filter, repeated for each phase.
fn phase_bias(lowering: &mut Lowering, name: &str, bias: ValueId, filters: i64, axes: &[Axis]) -> LowerResult<ValueId> {
    let phases: i64 = axes.iter().map(|a| a.stride).product();
    let column = lowering.reshape(&format!("{name}.bias.column"), bias, vec![Expr::Const(filters), Expr::Const(1)])?;
    let repeated =
        lowering.expand(&format!("{name}.bias.phases"), column, vec![Expr::Const(filters), Expr::Const(phases)])?;
    lowering.reshape(&format!("{name}.bias.repeated"), repeated, vec![Expr::Const(filters * phases)])
}

/// Computes all phases that contribute to the output.
fn convolve(
    lowering: &mut Lowering,
    name: &str,
    x: ValueId,
    weights: ValueId,
    bias: Option<ValueId>,
    groups: i64,
    axes: &[Axis],
) -> LowerResult<ValueId> {
    let mut margins = Margins::none(axes.len() + 2);
    let mut pads = vec![0; 2 * axes.len()];
    let mut output = Vec::with_capacity(axes.len());
    for (i, axis) in axes.iter().enumerate() {
        let first = axis.cut.clone().floor_div(axis.stride);
        let end = canonical(&(axis.cut.clone() + axis.output.clone())).ceil_div(axis.stride);
        let count = canonical(&(end.clone() - first.clone()));
        // The first window begins `before` elements before the input; the last one ends `after`
        // elements after it.
        let before = canonical(&(Expr::Const((axis.taps() - 1) * axis.dilation) - first));
        let after = canonical(&(end - lowering.shape(x)[i + 2].clone()));
        match (before.as_const(), after.as_const()) {
            (Some(before @ 0..), Some(after @ 0..)) => (pads[i], pads[i + axes.len()]) = (before as u32, after as u32),
            _ => (margins.before[i + 2], margins.after[i + 2]) = (before, after),
        }
        output.push(count);
    }
    let x = pad::apply(lowering, &format!("{name}.padded"), x, margins, PadMode::Constant(0.0))?;
    let convolution = Convolution {
        x,
        weights,
        bias,
        strides: vec![1; axes.len()],
        pads,
        dilations: axes.iter().map(|a| a.dilation as u32).collect(),
        groups: groups as u32,
        output,
    };
    conv::emit(lowering, &format!("{name}.phases"), convolution)
}

/// Interleaves the phases and crops the output: `[N, M * s…, Q…]` to `[N, M, Q * s…]`.
fn interleave(
    lowering: &mut Lowering,
    name: &str,
    phases: ValueId,
    filters: i64,
    axes: &[Axis],
) -> LowerResult<ValueId> {
    let shape = lowering.shape(phases).to_vec();
    let counts = &shape[2..];
    let strides = axes.iter().map(|a| Expr::Const(a.stride));
    let lead = [shape[0].clone(), Expr::Const(filters)];
    let split = lead.iter().cloned().chain(strides).chain(counts.iter().cloned()).collect();
    let permutation = [0, 1].into_iter().chain((0..axes.len()).flat_map(|i| [2 + axes.len() + i, 2 + i])).collect();
    let joined = counts.iter().zip(axes).map(|(count, axis)| count.clone() * axis.stride);
    let joined: Vec<Expr> = lead.iter().cloned().chain(joined).collect();
    let starts = lead.iter().map(|_| Expr::Const(0));
    let starts = starts
        .chain(axes.iter().map(|a| canonical(&(a.cut.clone() - a.cut.clone().floor_div(a.stride) * a.stride))))
        .collect();
    let output = lead.iter().cloned().chain(axes.iter().map(|a| a.output.clone())).collect();
    let split = lowering.reshape(&format!("{name}.split"), phases, split)?;
    let moved = lowering.transpose(&format!("{name}.moved"), split, permutation)?;
    let whole = lowering.reshape(&format!("{name}.whole"), moved, joined)?;
    pad::crop(lowering, name, whole, starts, output)
}
