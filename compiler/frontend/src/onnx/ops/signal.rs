//! Window functions, mel filter banks and short-time Fourier transforms.

use super::super::call::Call;
use super::super::error::{LowerError, LowerResult, invalid, unsupported};
use super::super::lowering::Lowering;
use super::super::read::dtype_of;
use super::dft::{Transform, scalar, transform};
use super::pieces::{point, positions};
use crate::nest::{NestArg, NestBuilder};
use crate::size::{at_least, canonical};
use crate::tensor::{Tensor, is_float};
use crate::tensor_graph::{Op, PointArg, PointOp, ValueId};
use atoll_kgraph::{DType, Expr};
use std::f64::consts::TAU;

type Results = LowerResult<Vec<ValueId>>;

/// Largest number of elements of a window or of a filter bank.
const ELEMENTS_MAX: i64 = 1 << 24;

fn output_type(call: &Call<'_>) -> LowerResult<DType> {
    let number = call.int("output_datatype", 1)? as i32;
    dtype_of(number).ok_or_else(|| LowerError::Unsupported(format!("its output_datatype is type number {number}")))
}

fn constant(lowering: &mut Lowering, name: &str, dtype: DType, shape: Vec<usize>, values: Vec<f64>) -> ValueId {
    let tensor = match is_float(dtype) {
        true => Tensor::floats(dtype, shape, values),
        false => Tensor::ints(dtype, shape, values.into_iter().map(|v| v as i64)),
    };
    lowering.constant(name, &tensor)
}

/// `HannWindow`, `HammingWindow` and `BlackmanWindow`: sums of cosines.
pub(super) fn window(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let dtype = output_type(call)?;
    let is_periodic = call.flag("periodic", true)?;
    let terms = match call.node.op_type.as_str() {
        "HannWindow" => [0.5, 0.5, 0.0],
        "HammingWindow" => [25.0 / 46.0, 21.0 / 46.0, 0.0],
        "BlackmanWindow" => [0.42, 0.5, 0.08],
        other => return unsupported(other),
    };
    let [size] = &lowering.require_known(call.input(0)?, "size")?[..] else {
        return invalid("its size is not one number");
    };
    let Some(size) = size.as_const() else {
        return symbolic_window(lowering, call, dtype, size.clone(), is_periodic, terms);
    };
    if !(0..=ELEMENTS_MAX).contains(&size) {
        return invalid(format!("its window has {size} elements; 0 to {ELEMENTS_MAX} are supported"));
    }
    let period = if is_periodic { size } else { size - 1 };
    let [constant_term, first, second] = terms;
    let element = |i: i64| {
        let turn = TAU * i as f64 / period as f64;
        constant_term - first * turn.cos() + second * (2.0 * turn).cos()
    };
    Ok(vec![constant(lowering, &call.name, dtype, vec![size as usize], (0..size).map(element).collect())])
}

/// A window whose length is symbolic.
fn symbolic_window(
    lowering: &mut Lowering,
    call: &Call<'_>,
    dtype: DType,
    size: Expr,
    is_periodic: bool,
    terms: [f64; 3],
) -> Results {
    let ty = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let mut nest = NestBuilder::new("window", vec![size.clone()]);
    let at = nest.point()[0].clone();
    let index = nest.cast(&at, ty);
    let period = nest.cast(&NestArg::from(&if is_periodic { size.clone() } else { size.clone() - 1 }), ty);
    let turn = nest.step(PointOp::Mul, ty, &[index, NestArg::Const(TAU)]);
    let turn = nest.step(PointOp::Div, ty, &[turn, period]);
    let mut sum = NestArg::Const(terms[0]);
    for (factor, weight) in [(1.0, -terms[1]), (2.0, terms[2])] {
        let angle = nest.step(PointOp::Mul, ty, &[turn.clone(), NestArg::Const(factor)]);
        let cosine = nest.step(PointOp::Cos, ty, &[angle]);
        let term = nest.step(PointOp::Mul, ty, &[cosine, NestArg::Const(weight)]);
        sum = nest.step(PointOp::Add, ty, &[sum, term]);
    }
    let value = if ty == dtype { sum } else { nest.cast(&sum, dtype) };
    nest.store(0, &at, &value);
    Ok(vec![lowering.emit_one(&call.name, Op::Nest(nest.finish()), &[], dtype, vec![size])?])
}

/// Triangular filters, evenly spaced on the mel scale.
pub(super) fn mel_weight_matrix(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let [bins, length, rate] = ["num_mel_bins", "dft_length", "sample_rate"].map(|what| what.to_owned());
    let bins = scalar(lowering, call.input(0)?, &bins)?;
    let length = scalar(lowering, call.input(1)?, &length)?;
    let rate = scalar(lowering, call.input(2)?, &rate)?;
    let edge = |index: usize, what: &str| -> LowerResult<f64> {
        let values = lowering.require_floats(call.input(index)?, what)?;
        values.first().copied().ok_or_else(|| LowerError::Invalid(format!("its {what} is missing")))
    };
    let (low, high) = (edge(3, "lower_edge_hertz")?, edge(4, "upper_edge_hertz")?);
    let dtype = output_type(call)?;
    let rows = length / 2 + 1;
    if bins < 1 || length < 1 || rate < 1 || bins.saturating_mul(rows) > ELEMENTS_MAX {
        return invalid(format!(
            "it has {bins} filters for a transform of {length} points at {rate} samples per second"
        ));
    }
    let mel = |hertz: f64| 2595.0 * (1.0 + hertz / 700.0).log10();
    let step = (mel(high) - mel(low)) / (bins + 2) as f64;
    let edges: Vec<i64> = (0..bins + 2)
        .map(|i| {
            let hertz = 700.0 * (10f64.powf((mel(low) + step * i as f64) / 2595.0) - 1.0);
            ((length + 1) as f64 * hertz / rate as f64).floor() as i64
        })
        .collect();
    if edges.iter().any(|edge| !(0..rows).contains(edge)) {
        return invalid(format!(
            "its filters from {low} to {high} Hz are outside the {rows} frequencies of the transform"
        ));
    }
    let mut matrix = vec![0.0; (rows * bins) as usize];
    for (filter, edges) in edges.windows(3).enumerate() {
        let mut put = |row: i64, value: f64| matrix[(row * bins) as usize + filter] = value;
        let (left, centre, right) = (edges[0], edges[1], edges[2]);
        if left == centre {
            put(centre, 1.0);
        }
        (left..=centre)
            .filter(|_| left < centre)
            .for_each(|row| put(row, (row - left) as f64 / (centre - left) as f64));
        (centre..right).for_each(|row| put(row, (right - row) as f64 / (right - centre) as f64));
    }
    Ok(vec![constant(lowering, &call.name, dtype, vec![rows as usize, bins as usize], matrix)])
}

/// `STFT`: gathers, weights and transforms the samples of each frame.
pub(super) fn stft(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = call.input(0)?;
    let [batch, length, parts] = lowering
        .shape(x)
        .to_vec()
        .try_into()
        .map_err(|_| LowerError::Invalid("its signal does not have 3 dimensions".into()))?;
    let Some(parts) = parts.as_const().filter(|p| (1..=2).contains(p)) else {
        return invalid(format!("its signal has elements of {parts} parts; 1 (real) or 2 (complex) are valid"));
    };
    let step = scalar(lowering, call.input(1)?, "frame_step")?;
    let window = call.optional(2);
    let points = match (call.optional(3), window) {
        (Some(length), _) => scalar(lowering, length, "frame_length")?,
        (None, Some(window)) => window_length(lowering, window)?,
        (None, None) => length.as_const().ok_or_else(|| lowering.open_size("the length of its frames", &length))?,
    };
    if let Some(window) = window
        && window_length(lowering, window)? != points
    {
        return unsupported(format!("a window whose length differs from that of a frame, {points}"));
    }
    let one_sided = call.flag("onesided", true)?;
    if step < 1 || points < 1 || (one_sided && parts == 2) {
        return invalid(format!(
            "its frames have {points} elements and a step of {step}, with onesided = {one_sided} and elements of \
             {parts} parts"
        ));
    }
    if !at_least(&length, &points.into(), &lowering.graph.symbols) {
        let length = lowering.text(&length);
        return unsupported(format!(
            "a signal of {length} elements, which may be shorter than a frame of {points}; raise its smallest size \
             with `--symbol NAME=MIN..MAX`"
        ));
    }
    let frames = canonical(&((length - points).floor_div(step) + 1));
    let framed = frame(lowering, call, x, [batch, frames], step, [points, parts])?;
    let weighted = match window {
        Some(window) => {
            let window = lowering.reshape(&format!("{}.window", call.name), window, vec![points.into(), 1.into()])?;
            point(lowering, &format!("{}.weighted", call.name), PointOp::Mul, &[framed, window])?
        }
        None => framed,
    };
    Ok(vec![transform(
        lowering,
        &call.name,
        weighted,
        2,
        Transform { points, given: points, parts, inverse: false, one_sided },
    )?])
}

fn window_length(lowering: &Lowering, window: ValueId) -> LowerResult<i64> {
    match lowering.shape(window) {
        [length] => length.as_const().ok_or_else(|| lowering.open_size("the length of its window", length)),
        _ => invalid("its window does not have one dimension"),
    }
}

/// The frames of a signal as `[batch, frames, points, parts]`.
fn frame(
    lowering: &mut Lowering,
    call: &Call<'_>,
    x: ValueId,
    [batch, frames]: [Expr; 2],
    step: i64,
    [points, parts]: [i64; 2],
) -> LowerResult<ValueId> {
    let name = |part: &str| format!("{}.{part}", call.name);
    let ty = DType::I32;
    let starts = positions(lowering, &name("frame"), ty, 2, 0, &frames)?;
    let offsets = positions(lowering, &name("sample"), ty, 2, 1, &points.into())?;
    let indices = lowering.pointwise(&name("indices"), &[starts, offsets], ty, |p, x| {
        let start = p.step(PointOp::Mul, ty, &[x[0], PointArg::Const(step as f64)]);
        p.step(PointOp::Add, ty, &[start, x[1]]);
    })?;
    let dtype = lowering.dtype(x);
    lowering.emit_one(
        &name("framed"),
        Op::Gather { axis: 1 },
        &[x, indices],
        dtype,
        vec![batch, frames, points.into(), parts.into()],
    )
}
