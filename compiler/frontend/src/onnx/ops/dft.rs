//! Discrete Fourier transforms as matrix products with constant matrices.
//!
//! A transform is linear: with real and imaginary parts side by side it is one real matrix. Long
//! transforms are split (Cooley and Tukey, 1965): a transform of `N = P * Q` points is one of P
//! points for each of Q residues, and one of Q points with rotated factors for each of P
//! frequencies, so that no matrix is large.

use super::super::call::{Call, axis_of};
use super::super::error::{LowerResult, invalid, unsupported};
use super::super::lowering::Lowering;
use super::pieces::{part, product};
use crate::tensor::{Tensor, is_float};
use crate::tensor_graph::ValueId;
use atoll_kgraph::{DType, Expr};
use std::f64::consts::TAU;

type Results = LowerResult<Vec<ValueId>>;

/// Largest number of elements of the matrix of a transform that is not split.
const WHOLE_MAX: i64 = 1 << 20;
/// Largest number of elements of the matrices of one step.
const MATRIX_MAX: i64 = 1 << 26;

/// The shape of a transform. Lengths are those of the transformed axis; an element has one part
/// (real) or two (real and imaginary).
#[derive(Clone, Copy, Debug)]
pub(super) struct Transform {
    /// Number of points of the transform.
    pub(super) points: i64,
    /// Number of elements of the operand. The others, up to `points`, are zero or, for a one-sided
    /// inverse, the mirrored part of the spectrum.
    pub(super) given: i64,
    /// Number of parts of each element of the operand.
    pub(super) parts: i64,
    /// Whether the transform is inverse (frequencies to samples, divided by `points`).
    pub(super) inverse: bool,
    /// Whether only the first half of a symmetric spectrum is written or, for an inverse, read.
    pub(super) one_sided: bool,
}

impl Transform {
    /// Number of elements of the result, and of parts of each.
    fn result(&self) -> (i64, i64) {
        match (self.inverse, self.one_sided) {
            (true, true) => (self.points, 1),
            (false, true) => (self.points / 2 + 1, 2),
            (_, false) => (self.points, 2),
        }
    }

    /// The matrix of shape `[given * parts, result elements * result parts]`.
    fn matrix(&self) -> Vec<f64> {
        let (count, parts) = self.result();
        let mut matrix = Vec::with_capacity((self.given * self.parts * count * parts) as usize);
        for from in 0..self.given {
            for part in 0..self.parts {
                for to in 0..count {
                    let factor = self.factor(from, to);
                    matrix.extend(factor.applied_to(part).into_iter().take(parts as usize));
                }
            }
        }
        matrix
    }

    /// The factor of the given element `from` in the result's element `to`.
    fn factor(&self, from: i64, to: i64) -> Complex {
        let scale = if self.inverse { 1.0 / self.points as f64 } else { 1.0 };
        // The spectrum of a real signal contains each frequency twice, once conjugated; only the
        // real part of the sum remains.
        let is_mirrored = self.inverse && self.one_sided && from != 0 && 2 * from != self.points;
        root(self.points, from * to, self.inverse).scaled(if is_mirrored { 2.0 * scale } else { scale })
    }
}

/// A complex number.
#[derive(Clone, Copy)]
struct Complex {
    re: f64,
    im: f64,
}

impl Complex {
    fn scaled(self, by: f64) -> Complex {
        Complex { re: self.re * by, im: self.im * by }
    }

    /// The product with 1 (part 0) or with the imaginary unit (part 1).
    fn applied_to(self, part: i64) -> [f64; 2] {
        if part == 0 { [self.re, self.im] } else { [-self.im, self.re] }
    }
}

/// `exp(-+ 2 pi i * power / points)`. The power is reduced modulo `points` first, so that large
/// powers are exact.
fn root(points: i64, power: i64, inverse: bool) -> Complex {
    let turn = TAU * power.rem_euclid(points) as f64 / points as f64;
    let (sin, cos) = turn.sin_cos();
    Complex { re: cos, im: if inverse { sin } else { -sin } }
}

/// `DFT`: the axis is an attribute in opset 17 and an operand from opset 20 on.
pub(super) fn dft(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = call.input(0)?;
    let rank = lowering.rank(x);
    let axis = match (call.opset < 20, call.optional(2)) {
        (true, _) => call.int("axis", 1)?,
        (false, Some(axis)) => scalar(lowering, axis, "axis")?,
        (false, None) => -2,
    };
    let axis = axis_of(axis, rank)?;
    if rank < 2 || axis == rank - 1 {
        return invalid(format!(
            "its axis is {axis} in a tensor with {rank} dimensions, the last of which holds the real and imaginary \
             parts"
        ));
    }
    let known = |dim: &Expr, what: &str| dim.as_const().ok_or_else(|| lowering.open_size(what, dim));
    let shape = lowering.shape(x).to_vec();
    let given = known(&shape[axis], "the length of its signal")?;
    let parts = known(&shape[rank - 1], "the size of its last dimension")?;
    let (inverse, one_sided) = (call.flag("inverse", false)?, call.flag("onesided", false)?);
    let points = match call.optional(1) {
        Some(length) => scalar(lowering, length, "dft_length")?,
        None if inverse && one_sided => 2 * (given - 1),
        None => given,
    };
    if points < 1 || !(1..=2).contains(&parts) {
        return invalid(format!(
            "it transforms {points} points of elements with {parts} parts; a positive number of points and 1 or 2 \
             parts are valid"
        ));
    }
    if one_sided && !inverse && parts == 2 {
        return invalid("its attribute onesided is 1, but its signal is complex");
    }
    let used = given.min(if inverse && one_sided { points / 2 + 1 } else { points });
    let x = part(lowering, &format!("{}.used", call.name), x, axis, 0, used.into())?;
    Ok(vec![transform(lowering, &call.name, x, axis, Transform { points, given: used, parts, inverse, one_sided })?])
}

/// An operand that must be one integer.
pub(super) fn scalar(lowering: &Lowering, id: ValueId, what: &str) -> LowerResult<i64> {
    match lowering.require_ints(id, what)?[..] {
        [number] => Ok(number),
        _ => invalid(format!("its {what} is not one number")),
    }
}

/// Transforms an axis of `x`, whose last dimension holds the parts.
pub(super) fn transform(
    lowering: &mut Lowering,
    name: &str,
    x: ValueId,
    axis: usize,
    transform: Transform,
) -> LowerResult<ValueId> {
    let dtype = lowering.dtype(x);
    if !is_float(dtype) {
        return invalid(format!("its operand has type {dtype:?}; it needs floats"));
    }
    let rank = lowering.rank(x);
    // Moves the axis next to the parts, and back after the transform.
    let order: Vec<usize> = (0..rank).filter(|a| *a != axis && *a != rank - 1).chain([axis, rank - 1]).collect();
    let back: Vec<usize> = (0..rank).map(|a| order.iter().position(|o| *o == a).unwrap_or(a)).collect();
    let turned = lowering.transpose(&format!("{name}.turned"), x, order)?;
    let outer = lowering.shape(turned)[..rank - 2].to_vec();
    let rows = crate::size::elements(&outer);
    let (count, parts) = transform.result();
    let y = spectrum(lowering, name, turned, &rows, transform)?;
    let mut shape = outer;
    shape.extend([Expr::Const(count), Expr::Const(parts)]);
    let y = lowering.reshape(&format!("{name}.shaped"), y, shape)?;
    lowering.transpose(&format!("{name}.back"), y, back)
}

/// The transform of `rows` rows, as `[rows, result elements * parts]` in any shape.
fn spectrum(lowering: &mut Lowering, name: &str, x: ValueId, rows: &Expr, t: Transform) -> LowerResult<ValueId> {
    let (count, parts) = t.result();
    let (width, height) = (t.given * t.parts, count * parts);
    let is_small = width.saturating_mul(height) <= WHOLE_MAX;
    let is_whole = is_small || (t.inverse && t.one_sided);
    match factor_of(t.points).filter(|_| !is_whole) {
        Some(factor) => split(lowering, name, x, rows, t, factor),
        None => {
            let x = lowering.reshape(&format!("{name}.rows"), x, vec![Expr::Const(1), rows.clone(), width.into()])?;
            let matrix = constant(lowering, &format!("{name}.matrix"), x, vec![1, width, height], || t.matrix())?;
            product(lowering, name, x, matrix, false, false)
        }
    }
}

/// The factor of `points` by which it is split first: the largest one up to 32.
fn factor_of(points: i64) -> Option<i64> {
    (2..=32).rev().find(|factor| points % factor == 0 && points > *factor)
}

/// Splits `points = first * last`: element `last * p + q` of the signal goes into transform q of
/// `first` points. Frequency `u + first * v` comes from position q of those transforms, with the
/// factor `root^(q * u) * root_last^(q * v)`.
fn split(
    lowering: &mut Lowering,
    name: &str,
    x: ValueId,
    rows: &Expr,
    t: Transform,
    last: i64,
) -> LowerResult<ValueId> {
    let first = t.points / last;
    let full = padded(lowering, name, x, rows, t)?;
    let residues = lowering.reshape(
        &format!("{name}.residues"),
        full,
        vec![rows.clone(), first.into(), last.into(), t.parts.into()],
    )?;
    let by_residue = lowering.transpose(&format!("{name}.by_residue"), residues, vec![0, 2, 1, 3])?;
    let inner = Transform { points: first, given: first, parts: t.parts, inverse: t.inverse, one_sided: false };
    let inner_rows = crate::size::canonical(&(rows.clone() * last));
    let inner = spectrum(lowering, &format!("{name}.inner"), by_residue, &inner_rows, inner)?;
    // [rows, last, first, 2] to one product per frequency of the inner transforms.
    let inner = lowering.reshape(
        &format!("{name}.frequencies"),
        inner,
        vec![rows.clone(), last.into(), first.into(), 2.into()],
    )?;
    let by_frequency = lowering.transpose(&format!("{name}.by_frequency"), inner, vec![2, 0, 1, 3])?;
    let by_frequency = lowering.reshape(
        &format!("{name}.batch"),
        by_frequency,
        vec![first.into(), rows.clone(), (2 * last).into()],
    )?;
    let matrices = constant(lowering, &format!("{name}.matrices"), x, vec![first, 2 * last, 2 * last], || {
        rotated(t, first, last)
    })?;
    let y = product(lowering, name, by_frequency, matrices, false, false)?;
    let y = lowering.reshape(&format!("{name}.parts"), y, vec![first.into(), rows.clone(), last.into(), 2.into()])?;
    let y = lowering.transpose(&format!("{name}.ordered"), y, vec![1, 2, 0, 3])?;
    let y = lowering.reshape(&format!("{name}.spectrum"), y, vec![rows.clone(), t.points.into(), 2.into()])?;
    part(lowering, &format!("{name}.half"), y, 1, 0, t.result().0.into())
}

/// The signal as `[rows, points, parts]`, padded with zeros at the end.
fn padded(lowering: &mut Lowering, name: &str, x: ValueId, rows: &Expr, t: Transform) -> LowerResult<ValueId> {
    let x = lowering.reshape(&format!("{name}.signal"), x, vec![rows.clone(), t.given.into(), t.parts.into()])?;
    if t.given == t.points {
        return Ok(x);
    }
    let op = crate::tensor_graph::Op::Pad {
        before: vec![Expr::Const(0); 3],
        mode: crate::tensor_graph::PadMode::Constant(0.0),
    };
    lowering.emit_one(
        &format!("{name}.padded"),
        op,
        &[x],
        lowering.dtype(x),
        vec![rows.clone(), t.points.into(), t.parts.into()],
    )
}

/// The matrices `[first, last * 2, last * 2]` of the second step of a split.
fn rotated(t: Transform, first: i64, last: i64) -> Vec<f64> {
    // The inner transforms have already divided by `first`.
    let scale = if t.inverse { 1.0 / last as f64 } else { 1.0 };
    let mut matrices = Vec::with_capacity((first * 4 * last * last) as usize);
    for u in 0..first {
        for q in 0..last {
            for part in 0..2 {
                for v in 0..last {
                    matrices.extend(root(t.points, q * (u + first * v), t.inverse).scaled(scale).applied_to(part));
                }
            }
        }
    }
    matrices
}

/// A constant of the type of `like`; an error if it exceeds the limit.
fn constant(
    lowering: &mut Lowering,
    name: &str,
    like: ValueId,
    shape: Vec<i64>,
    make: impl FnOnce() -> Vec<f64>,
) -> LowerResult<ValueId> {
    let count = shape.iter().try_fold(1i64, |n, d| n.checked_mul(*d)).unwrap_or(i64::MAX);
    if count > MATRIX_MAX {
        return unsupported(format!(
            "a transform by a matrix of {count} elements, more than {MATRIX_MAX}: its length has a large prime \
             factor, or it is inverse and one-sided"
        ));
    }
    let dtype: DType = lowering.dtype(like);
    let tensor = Tensor::floats(dtype, shape.into_iter().map(|d| d as usize).collect(), make());
    Ok(lowering.constant(name, &tensor))
}
