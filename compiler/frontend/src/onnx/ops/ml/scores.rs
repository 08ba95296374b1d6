//! Scores of classes: their final transformation, and the label that they select.

use super::super::super::call::Call;
use super::super::super::error::{LowerError, LowerResult, invalid};
use super::super::super::lowering::Lowering;
use super::super::layout::join;
use super::super::pieces::{part, reduce};
use super::labels::Labels;
use super::operands::floats;
use crate::program::ProgramBuilder;
use crate::tensor_graph::{Op, PointArg, PointOp, ReduceKind, ValueId};
use atoll_kgraph::{DType, Expr};

const TY: DType = DType::F32;

/// `post_transform`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transform {
    None,
    Softmax,
    Logistic,
    SoftmaxZero,
    Probit,
}

impl Transform {
    pub(super) fn of(call: &Call<'_>) -> LowerResult<Transform> {
        Ok(match call.string("post_transform", "NONE")?.as_str() {
            "NONE" => Transform::None,
            "SOFTMAX" => Transform::Softmax,
            "LOGISTIC" => Transform::Logistic,
            "SOFTMAX_ZERO" => Transform::SoftmaxZero,
            "PROBIT" => Transform::Probit,
            other => return invalid(format!("its attribute post_transform is {other:?}, which ONNX does not define")),
        })
    }

    /// Applies the transformation to rows of scores `[N, C]`.
    pub(super) fn apply(self, lowering: &mut Lowering, name: &str, scores: ValueId) -> LowerResult<ValueId> {
        match self {
            Transform::None => Ok(scores),
            Transform::Logistic => lowering.pointwise(name, &[scores], TY, |p, x| {
                p.step(PointOp::Sigmoid, TY, x);
            }),
            Transform::Softmax => {
                let shape = lowering.shape(scores).to_vec();
                lowering.emit_one(name, Op::Softmax { axis: 1, log: false }, &[scores], TY, shape)
            }
            Transform::SoftmaxZero => softmax_zero(lowering, name, scores),
            Transform::Probit => lowering.pointwise(name, &[scores], TY, |p, x| {
                probit(p, x[0]);
            }),
        }
    }
}

/// As a softmax, but scores of zero stay zero before the division: `x * exp(-max)`.
fn softmax_zero(lowering: &mut Lowering, name: &str, scores: ValueId) -> LowerResult<ValueId> {
    let max = reduce(lowering, &format!("{name}.max"), scores, ReduceKind::Max, vec![1], true)?;
    let parts = lowering.pointwise(&format!("{name}.parts"), &[scores, max], TY, |p, x| {
        let magnitude = p.step(PointOp::Abs, TY, &[x[0]]);
        let counts = p.step(PointOp::Greater, TY, &[magnitude, PointArg::Const(1e-7)]);
        let shifted = p.step(PointOp::Sub, TY, x);
        let exp = p.step(PointOp::Exp, TY, &[shifted]);
        let negated = p.step(PointOp::Neg, TY, &[x[1]]);
        let least = p.step(PointOp::Exp, TY, &[negated]);
        let small = p.step(PointOp::Mul, TY, &[x[0], least]);
        p.step(PointOp::Where, TY, &[counts, exp, small]);
    })?;
    let sum = reduce(lowering, &format!("{name}.sum"), parts, ReduceKind::Sum, vec![1], true)?;
    lowering.pointwise(name, &[parts, sum], TY, |p, x| {
        let is_zero = p.step(PointOp::Equal, TY, &[x[1], PointArg::Const(0.0)]);
        let share = p.step(PointOp::Div, TY, x);
        p.step(PointOp::Where, TY, &[is_zero, PointArg::Const(0.5), share]);
    })
}

/// `sqrt(2) * erf^-1(2 x - 1)` by Winitzki's approximation, as in ONNX Runtime.
fn probit(p: &mut ProgramBuilder, x: PointArg) {
    let number = PointArg::Const;
    let twice = p.step(PointOp::Mul, TY, &[x, number(2.0)]);
    let x = p.step(PointOp::Sub, TY, &[twice, number(1.0)]);
    let negative = p.step(PointOp::Less, TY, &[x, number(0.0)]);
    let sign = p.step(PointOp::Where, TY, &[negative, number(-1.0), number(1.0)]);
    let below = p.step(PointOp::Sub, TY, &[number(1.0), x]);
    let above = p.step(PointOp::Add, TY, &[number(1.0), x]);
    let product = p.step(PointOp::Mul, TY, &[below, above]);
    let log = p.step(PointOp::Log, TY, &[product]);
    let half = p.step(PointOp::Mul, TY, &[log, number(0.5)]);
    let v = p.step(PointOp::Add, TY, &[half, number(2.0 / (std::f64::consts::PI * 0.147))]);
    let scaled = p.step(PointOp::Mul, TY, &[log, number(1.0 / 0.147)]);
    let square = p.step(PointOp::Mul, TY, &[v, v]);
    let inner = p.step(PointOp::Sub, TY, &[square, scaled]);
    let root = p.step(PointOp::Sqrt, TY, &[inner]);
    let rest = p.step(PointOp::Sub, TY, &[root, v]);
    let root = p.step(PointOp::Sqrt, TY, &[rest]);
    let signed = p.step(PointOp::Mul, TY, &[sign, root]);
    p.step(PointOp::Mul, TY, &[signed, number(std::f64::consts::SQRT_2)]);
}

/// Makes two columns from one: `first` applied to each score, then the score itself.
pub(super) fn two_columns(
    lowering: &mut Lowering,
    name: &str,
    score: ValueId,
    first: fn(&mut ProgramBuilder, PointArg),
) -> LowerResult<ValueId> {
    let other = lowering.pointwise(&format!("{name}.other"), &[score], TY, |p, x| first(p, x[0]))?;
    join(lowering, name, &[other, score], 1)
}

/// `1 - x`
pub(super) fn complement(p: &mut ProgramBuilder, x: PointArg) {
    p.step(PointOp::Sub, TY, &[PointArg::Const(1.0), x]);
}

/// `-x`
pub(super) fn negative(p: &mut ProgramBuilder, x: PointArg) {
    p.step(PointOp::Neg, TY, &[x]);
}

/// The label of the first class with the best score in each row.
pub(super) fn best_label(
    lowering: &mut Lowering,
    name: &str,
    scores: ValueId,
    labels: &Labels,
) -> LowerResult<ValueId> {
    let count = labels.values.len();
    let classes = lowering.shape(scores)[1].as_const().and_then(|c| usize::try_from(c).ok());
    if classes != Some(count) {
        return invalid(format!("it has {count} labels for scores of {classes:?} classes"));
    }
    let best = reduce(lowering, &format!("{name}.best"), scores, ReduceKind::Max, vec![1], true)?;
    let places = floats(lowering, &format!("{name}.places"), &[1, count], (0..count).map(|i| i as f64));
    let candidates = lowering.pointwise(&format!("{name}.candidates"), &[scores, best, places], TY, |p, x| {
        let hit = p.step(PointOp::Equal, TY, &x[..2]);
        p.step(PointOp::Where, TY, &[hit, x[2], PointArg::Const(count as f64 - 1.0)]);
    })?;
    let place = reduce(lowering, &format!("{name}.place"), candidates, ReduceKind::Min, vec![1], false)?;
    let place = lowering.cast(&format!("{name}.index"), place, DType::I32)?;
    let table = lowering.constant(&format!("{name}.labels"), &labels.tensor());
    let shape = lowering.shape(place).to_vec();
    lowering.emit_one(name, Op::Gather { axis: 0 }, &[table, place], labels.dtype, shape)
}

/// The second of two labels where a column of scores is above a number, and the first elsewhere.
pub(super) fn label_above(
    lowering: &mut Lowering,
    name: &str,
    scores: ValueId,
    column: i64,
    above: f64,
    labels: &Labels,
) -> LowerResult<ValueId> {
    let score = part(lowering, &format!("{name}.score"), scores, 1, column, Expr::Const(1))?;
    let rows = lowering.shape(score)[..1].to_vec();
    let score = lowering.reshape(&format!("{name}.column"), score, rows)?;
    let mut exact = [0.0; 2];
    for (number, label) in exact.iter_mut().zip(labels.values.iter().copied()) {
        *number = label as f64;
        if *number as i64 != label || label.unsigned_abs() >= 1 << 53 {
            return Err(LowerError::Unsupported(format!("its label {label}, which f64 cannot represent")));
        }
    }
    let dtype = labels.dtype;
    lowering.pointwise(name, &[score], dtype, |p, x| {
        let is_above = p.step(PointOp::Greater, TY, &[x[0], PointArg::Const(above)]);
        p.step(PointOp::Where, dtype, &[is_above, PointArg::Const(exact[1]), PointArg::Const(exact[0])]);
    })
}
