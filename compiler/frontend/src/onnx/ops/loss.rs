//! Loss functions.

use super::super::call::Call;
use super::super::error::{LowerResult, invalid};
use super::super::lowering::Lowering;
use super::softmax;
use crate::tensor_graph::{Op, PointArg, PointOp, Reduce, ReduceKind, ValueId};
use atoll_kgraph::{DType, Expr};

type Results = LowerResult<Vec<ValueId>>;

/// How the losses of elements are reduced to the result.
#[derive(Clone, Copy, PartialEq)]
enum Reduction {
    None,
    Sum,
    Mean,
}

fn reduction(call: &Call<'_>) -> LowerResult<Reduction> {
    match call.string("reduction", "mean")?.as_str() {
        "none" => Ok(Reduction::None),
        "sum" => Ok(Reduction::Sum),
        "mean" => Ok(Reduction::Mean),
        other => invalid(format!("its attribute reduction is {other:?}, which ONNX does not define")),
    }
}

/// `NegativeLogLikelihoodLoss`. Operands `x [N, C, …]` (logarithms of probabilities),
/// `target [N, …]`, optionally `weight [C]`.
pub(super) fn negative_log_likelihood(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = call.input(0)?;
    Ok(vec![of_logarithms(lowering, call, x)?])
}

/// `SoftmaxCrossEntropyLoss`: the same for scores. The second result is the logarithm of their
/// softmax.
pub(super) fn softmax_cross_entropy(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let scores = call.input(0)?;
    if lowering.rank(scores) < 2 {
        return invalid("its scores have no dimension of classes");
    }
    let logarithms = softmax::normalized(lowering, &format!("{}.log", call.name), scores, 1, true)?;
    Ok(vec![of_logarithms(lowering, call, logarithms)?, logarithms])
}

fn of_logarithms(lowering: &mut Lowering, call: &Call<'_>, x: ValueId) -> LowerResult<ValueId> {
    let (ty, shape) = (lowering.dtype(x), lowering.shape(x).to_vec());
    let reduction = reduction(call)?;
    let ignored = if call.has("ignore_index") { Some(call.int("ignore_index", 0)?) } else { None };
    let name = |part: &str| format!("{}.{part}", call.name);
    let target = call.input(1)?;
    if shape.len() < 2 || lowering.rank(target) + 1 != shape.len() {
        return invalid(format!(
            "its target has {} dimensions for an operand of {}",
            lowering.rank(target),
            shape.len()
        ));
    }
    let mut with_classes = lowering.shape(target).to_vec();
    with_classes.insert(1, Expr::Const(1));
    let target = lowering.cast(&name("target"), target, DType::I32)?;
    let target = lowering.reshape(&name("targets"), target, with_classes)?;
    let positions = softmax::positions(lowering, &name("classes"), x, 1)?;
    let of_target = Selection { target, positions };

    let picked = of_target.pick(lowering, &name("picked"), x)?;
    let weight = match call.optional(2) {
        Some(weight) => {
            let mut per_class = vec![Expr::Const(1); shape.len()];
            per_class[1].clone_from(&shape[1]);
            let weight = lowering.reshape(&name("weight"), weight, per_class)?;
            Some(of_target.pick(lowering, &name("weights"), weight)?)
        }
        None if ignored.is_some() => Some(lowering.fill(&name("weights"), ty, vec![], 1.0)?),
        None => None,
    };
    let weight = match (weight, ignored) {
        (Some(weight), Some(ignored)) => Some(lowering.pointwise(&name("kept"), &[weight, target], ty, |p, x| {
            let is_ignored = p.step(PointOp::Equal, DType::I32, &[x[1], PointArg::Const(ignored as f64)]);
            p.step(PointOp::Where, ty, &[is_ignored, PointArg::Const(0.0), x[0]]);
        })?),
        (weight, _) => weight,
    };
    let losses = match weight {
        Some(weight) => lowering.pointwise(&name("losses"), &[picked, weight], ty, |p, x| {
            let product = p.step(PointOp::Mul, ty, x);
            p.step(PointOp::Neg, ty, &[product]);
        })?,
        None => lowering.pointwise(&name("losses"), &[picked], ty, |p, x| {
            p.step(PointOp::Neg, ty, x);
        })?,
    };
    let all = |lowering: &mut Lowering, part: &str, x: ValueId, kind: ReduceKind| {
        let axes = (0..lowering.rank(x)).collect();
        lowering.emit_one(&name(part), Op::Reduce(Reduce { kind, axes, keep_dims: false }), &[x], ty, vec![])
    };
    match (reduction, weight) {
        (Reduction::None, _) => {
            let mut without_classes = lowering.shape(losses).to_vec();
            without_classes.remove(1);
            lowering.reshape(&call.name, losses, without_classes)
        }
        (Reduction::Sum, _) => all(lowering, "sum", losses, ReduceKind::Sum),
        (Reduction::Mean, None) => all(lowering, "mean", losses, ReduceKind::Mean),
        (Reduction::Mean, Some(weight)) => {
            let total = all(lowering, "sum", losses, ReduceKind::Sum)?;
            let weights = all(lowering, "total", weight, ReduceKind::Sum)?;
            lowering.pointwise(&call.name, &[total, weights], ty, |p, x| {
                p.step(PointOp::Div, ty, x);
            })
        }
    }
}

/// The class of each target, compared with all classes. A target that is not a class selects
/// nothing.
struct Selection {
    target: ValueId,
    positions: ValueId,
}

impl Selection {
    /// The value of each target's class; axis 1 is kept with extent 1.
    fn pick(&self, lowering: &mut Lowering, name: &str, values: ValueId) -> LowerResult<ValueId> {
        let ty = lowering.dtype(values);
        let only =
            lowering.pointwise(&format!("{name}.only"), &[self.target, self.positions, values], ty, |p, x| {
                let is_target = p.step(PointOp::Equal, DType::I32, &x[..2]);
                p.step(PointOp::Where, ty, &[is_target, x[2], PointArg::Const(0.0)]);
            })?;
        super::norm::reduced(lowering, name, only, ReduceKind::Sum, vec![1])
    }
}
