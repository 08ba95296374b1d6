//! Linear models.

use super::super::super::call::Call;
use super::super::super::error::{LowerResult, invalid};
use super::super::super::lowering::Lowering;
use super::labels::Labels;
use super::operands::{floats, rows};
use super::scores::{Transform, best_label, complement, label_above, two_columns};
use crate::program::ProgramBuilder;
use crate::tensor_graph::{MatMul, Op, PointArg, PointOp, ValueId};
use atoll_kgraph::{DType, Expr};

type Results = LowerResult<Vec<ValueId>>;

/// `x * coefficients^T + intercepts`, `[N, outputs]`.
fn affine(lowering: &mut Lowering, call: &Call<'_>, outputs: usize) -> LowerResult<ValueId> {
    let (x, [count, features]) = rows(lowering, call)?;
    let coefficients = call.floats("coefficients")?.unwrap_or_default();
    let intercepts = call.floats("intercepts")?.unwrap_or_default();
    let width = features.as_const().and_then(|f| usize::try_from(f).ok());
    let width = width.ok_or_else(|| lowering.open_size("its number of features", &features))?;
    if outputs == 0 || coefficients.len() != outputs * width || !(intercepts.is_empty() || intercepts.len() == outputs)
    {
        let (c, i) = (coefficients.len(), intercepts.len());
        return invalid(format!(
            "it has {c} coefficients and {i} intercepts for {width} features and {outputs} results"
        ));
    }
    let x = lowering.cast(&format!("{}.x", call.name), x, DType::F32)?;
    let weights = floats(
        lowering,
        &format!("{}.coefficients", call.name),
        &[outputs, width],
        coefficients.into_iter().map(f64::from),
    );
    let mut inputs = vec![x, weights];
    let mut epilogue = ProgramBuilder::default();
    if !intercepts.is_empty() {
        inputs.push(floats(
            lowering,
            &format!("{}.intercepts", call.name),
            &[outputs],
            intercepts.into_iter().map(f64::from),
        ));
        epilogue.step(PointOp::Add, DType::F32, &[PointArg::Input(0), PointArg::Input(1)]);
    }
    let op = Op::MatMul(MatMul { transpose_a: false, transpose_b: true, epilogue: epilogue.finish() });
    lowering.emit_one(
        &format!("{}.scores", call.name),
        op,
        &inputs,
        DType::F32,
        vec![count, Expr::Const(outputs as i64)],
    )
}

pub(in super::super) fn linear_regressor(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let targets = usize::try_from(call.int("targets", 1)?).unwrap_or(0);
    let scores = affine(lowering, call, targets)?;
    Ok(vec![Transform::of(call)?.apply(lowering, &call.name, scores)?])
}

/// Labels and scores. With one row of coefficients, the sign of the score selects one of two
/// classes.
pub(in super::super) fn linear_classifier(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let labels = Labels::of(lowering, call, "classlabels_ints", "classlabels_strings")?;
    let outputs = call.floats("intercepts")?.map_or(labels.values.len(), |i| i.len());
    let scores = affine(lowering, call, outputs)?;
    let (label_name, transform) = (format!("{}.label", call.name), Transform::of(call)?);
    if outputs > 1 {
        let label = best_label(lowering, &label_name, scores, &labels)?;
        return Ok(vec![label, transform.apply(lowering, &call.name, scores)?]);
    }
    if labels.values.len() != 2 {
        return invalid(format!("it has {} labels for one score; it needs 2", labels.values.len()));
    }
    let label = label_above(lowering, &label_name, scores, 0, 0.0, &labels)?;
    // A softmax of one score does nothing, as in ONNX Runtime.
    let score = match transform {
        Transform::Logistic | Transform::Probit => {
            transform.apply(lowering, &format!("{}.transformed", call.name), scores)?
        }
        _ => scores,
    };
    Ok(vec![label, two_columns(lowering, &call.name, score, complement)?])
}
