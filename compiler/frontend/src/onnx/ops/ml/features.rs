//! Operators of `ai.onnx.ml` that prepare features.

use super::super::super::call::Call;
use super::super::super::error::{LowerResult, invalid, unsupported};
use super::super::super::lowering::Lowering;
use super::super::layout::join;
use super::super::pieces::{part, point, reduce};
use super::labels::Labels;
use super::operands::floats;
use crate::tensor::{Tensor, is_float};
use crate::tensor_graph::{Op, PadMode, PointArg, PointOp, ReduceKind, ValueId};
use atoll_kgraph::{DType, Expr};

type Results = LowerResult<Vec<ValueId>>;

const TY: DType = DType::F32;

/// Selected columns; a vector is one row.
pub(in super::super) fn array_feature_extractor(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let (x, indices) = (call.input(0)?, call.input(1)?);
    let (shape, dtype) = (lowering.shape(x).to_vec(), lowering.dtype(x));
    let Some((_, outer)) = shape.split_last() else { return invalid("its data is a scalar") };
    let count = crate::size::elements(lowering.shape(indices));
    let indices = lowering.reshape(&format!("{}.indices", call.name), indices, vec![count.clone()])?;
    let picked = [outer, std::slice::from_ref(&count)].concat();
    let y = lowering.emit_one(&call.name, Op::Gather { axis: outer.len() }, &[x, indices], dtype, picked.clone())?;
    let wanted = if outer.is_empty() { vec![Expr::Const(1), count] } else { picked };
    Ok(vec![lowering.reshape(&format!("{}.rows", call.name), y, wanted)?])
}

/// 1 above the threshold, 0 elsewhere.
pub(in super::super) fn binarizer(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = call.input(0)?;
    let ty = lowering.dtype(x);
    let threshold = f64::from(call.float("threshold", 0.0)?);
    // An integer is above a fractional threshold if it is above the threshold rounded down.
    let threshold = if is_float(ty) { threshold } else { threshold.floor() };
    Ok(vec![lowering.pointwise(&call.name, &[x], ty, |p, x| {
        let above = p.step(PointOp::Greater, ty, &[x[0], PointArg::Const(threshold)]);
        p.step(PointOp::Cast, ty, &[above]);
    })?])
}

/// Replaces one value, often NaN, by a value per feature.
pub(in super::super) fn imputer(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = call.input(0)?;
    let ty = lowering.dtype(x);
    let (values, replaced) = if is_float(ty) {
        let values = call.floats("imputed_value_floats")?.unwrap_or_default();
        let count = values.len();
        let replaced = f64::from(call.float("replaced_value_float", 0.0)?);
        (Tensor::floats(ty, vec![count], values.into_iter().map(f64::from)), replaced)
    } else {
        let values = call.ints("imputed_value_int64s")?.unwrap_or_default();
        let replaced = call.int("replaced_value_int64", 0)?;
        if replaced.unsigned_abs() >= 1 << 53 {
            return unsupported(format!("its replaced_value_int64 is {replaced}, which f64 cannot represent"));
        }
        (Tensor::ints(ty, vec![values.len()], values), replaced as f64)
    };
    let features = lowering.shape(x).last().and_then(Expr::as_const);
    if values.is_empty() || (values.len() != 1 && Some(values.len() as i64) != features) {
        return invalid(format!("it has {} imputed values for rows of {features:?} features", values.len()));
    }
    let values = lowering.constant(&format!("{}.values", call.name), &values);
    Ok(vec![lowering.pointwise(&call.name, &[x, values], ty, |p, x| {
        let is_missing = if replaced.is_nan() {
            let is_number = p.step(PointOp::Equal, ty, &[x[0], x[0]]);
            p.step(PointOp::Not, DType::Bool, &[is_number])
        } else {
            p.step(PointOp::Equal, ty, &[x[0], PointArg::Const(replaced)])
        };
        p.step(PointOp::Where, ty, &[is_missing, x[1], x[0]]);
    })?])
}

/// `(x - offset) * scale` per feature.
pub(in super::super) fn scaler(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = lowering.cast(&format!("{}.x", call.name), call.input(0)?, TY)?;
    let features = lowering.shape(x).last().and_then(Expr::as_const);
    let mut operands = vec![x];
    for what in ["offset", "scale"] {
        let values = call.floats(what)?.unwrap_or_default();
        if values.is_empty() || (values.len() != 1 && Some(values.len() as i64) != features) {
            return invalid(format!(
                "its {} values of {what} do not match rows of {features:?} features",
                values.len()
            ));
        }
        operands.push(floats(
            lowering,
            &format!("{}.{what}", call.name),
            &[values.len()],
            values.into_iter().map(f64::from),
        ));
    }
    Ok(vec![lowering.pointwise(&call.name, &operands, TY, |p, x| {
        let moved = p.step(PointOp::Sub, TY, &[x[0], x[1]]);
        p.step(PointOp::Mul, TY, &[moved, x[2]]);
    })?])
}

/// Divides each row by its norm; a row of zeros stays zero.
pub(in super::super) fn normalizer(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = lowering.cast(&format!("{}.x", call.name), call.input(0)?, TY)?;
    let axis = match lowering.rank(x) {
        0 => return invalid("its operand is a scalar"),
        rank => rank - 1,
    };
    let name = |part: &str| format!("{}.{part}", call.name);
    let norm = match call.string("norm", "MAX")?.as_str() {
        // As in ONNX Runtime, the largest element and not the largest magnitude.
        "MAX" => reduce(lowering, &name("norm"), x, ReduceKind::Max, vec![axis], true)?,
        "L1" => {
            let magnitudes = point(lowering, &name("magnitudes"), PointOp::Abs, &[x])?;
            reduce(lowering, &name("norm"), magnitudes, ReduceKind::Sum, vec![axis], true)?
        }
        "L2" => reduce(lowering, &name("norm"), x, ReduceKind::L2, vec![axis], true)?,
        other => return invalid(format!("its attribute norm is {other:?}, which ONNX does not define")),
    };
    Ok(vec![lowering.pointwise(&call.name, &[x, norm], TY, |p, x| {
        let is_zero = p.step(PointOp::Equal, TY, &[x[1], PointArg::Const(0.0)]);
        let share = p.step(PointOp::Div, TY, x);
        p.step(PointOp::Where, TY, &[is_zero, x[0], share]);
    })?])
}

/// Concatenates the operands; each is cropped, or padded with zeros, to its width.
pub(in super::super) fn feature_vectorizer(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let inputs = call.all_inputs()?;
    let widths = call.required_ints("inputdimensions")?;
    if widths.len() != inputs.len() {
        return invalid(format!("it has {} inputdimensions for {} operands", widths.len(), inputs.len()));
    }
    let mut parts = Vec::with_capacity(inputs.len());
    for (index, (x, width)) in inputs.into_iter().zip(widths).enumerate() {
        let name = format!("{}.{index}", call.name);
        let x = lowering.cast(&name, x, TY)?;
        let rows = match lowering.shape(x) {
            [count] => vec![count.clone(), Expr::Const(1)],
            [count, found] => vec![count.clone(), found.clone()],
            other => return unsupported(format!("an operand with {} dimensions; 1 or 2 are supported", other.len())),
        };
        let x = lowering.reshape(&format!("{name}.rows"), x, rows.clone())?;
        parts.push(match rows[1].as_const() {
            Some(found) if found < width => {
                let op = Op::Pad { before: vec![Expr::Const(0); 2], mode: PadMode::Constant(0.0) };
                lowering.emit_one(&format!("{name}.filled"), op, &[x], TY, vec![rows[0].clone(), width.into()])?
            }
            Some(_) => part(lowering, &format!("{name}.cut"), x, 1, 0, width.into())?,
            None => return Err(lowering.open_size("the width of an operand", &rows[1])),
        });
    }
    Ok(vec![join(lowering, &call.name, &parts, 1)?])
}

/// Adds a last axis with 1 at the category of each element.
pub(in super::super) fn one_hot_encoder(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = call.input(0)?;
    let categories = Labels::of(lowering, call, "cats_int64s", "cats_strings")?;
    if lowering.has_strings(x) != (categories.dtype == DType::Strings) {
        return invalid("its operand and its categories have different types");
    }
    if !call.flag("zeros", true)? {
        return unsupported("zeros = 0, which makes an unknown category an error; export with zeros = 1");
    }
    let ty = categories.dtype;
    let mut shape = lowering.shape(x).to_vec();
    shape.push(Expr::Const(1));
    let x = lowering.cast(&format!("{}.integers", call.name), x, ty)?;
    let x = lowering.reshape(&format!("{}.column", call.name), x, shape)?;
    let categories = lowering.constant(&format!("{}.categories", call.name), &categories.tensor());
    Ok(vec![lowering.pointwise(&call.name, &[x, categories], TY, |p, x| {
        let hit = p.step(PointOp::Equal, ty, x);
        p.step(PointOp::Cast, TY, &[hit]);
    })?])
}

/// The scores of classes as a tensor: ONNX's result is a sequence of maps from labels to scores,
/// which the protocols cannot express. The columns have the order of the labels.
pub(in super::super) fn zip_map(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = call.input(0)?;
    // The labels are not part of the result, so they get no codes: the graph may have no strings.
    let labels = match call.strings("classlabels_strings")?.filter(|texts| !texts.is_empty()) {
        Some(texts) => texts.len(),
        None => call.ints("classlabels_int64s")?.map_or(0, |labels| labels.len()),
    };
    let columns = lowering.shape(x).last().and_then(Expr::as_const);
    if lowering.rank(x) > 2 || columns != Some(labels as i64) {
        return invalid(format!("it has {labels} labels for {columns:?} scores in a row"));
    }
    Ok(vec![x])
}
