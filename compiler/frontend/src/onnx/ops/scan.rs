//! Operators that carry a value along an axis, with one thread per line.

use super::super::call::{Call, axis_of};
use super::super::error::{LowerResult, invalid, unsupported};
use super::super::lowering::Lowering;
use super::dft::scalar;
use crate::nest::{NestArg, NestBuilder};
use crate::tensor::is_float;
use crate::tensor_graph::{Op, PointOp, ValueId};
use atoll_kgraph::{DType, Expr};

type Results = LowerResult<Vec<ValueId>>;

/// The lines of a tensor along an axis.
struct Lines {
    /// Dimensions without the axis.
    domain: Vec<Expr>,
    shape: Vec<Expr>,
    axis: usize,
}

impl Lines {
    fn of(shape: &[Expr], axis: usize) -> Lines {
        let domain = shape.iter().enumerate().filter(|(i, _)| *i != axis).map(|(_, d)| d.clone()).collect();
        Lines { domain, shape: shape.to_vec(), axis }
    }

    /// Offset of element `i` of the point's line, in a tensor with `length` elements along the
    /// axis.
    fn at(&self, nest: &mut NestBuilder, length: &Expr, i: &NestArg) -> NestArg {
        let mut shape = self.shape.clone();
        shape[self.axis] = length.clone();
        let mut place = nest.point();
        place.insert(self.axis, i.clone());
        nest.offset(&shape, &place)
    }

    fn length(&self) -> &Expr {
        &self.shape[self.axis]
    }
}

/// `CumSum` and `CumProd`. Floats narrower than f32 are accumulated in f32.
pub(super) fn cumulate(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = call.input(0)?;
    let shape = lowering.shape(x).to_vec();
    let axis = axis_of(scalar(lowering, call.input(1)?, "axis")?, shape.len())?;
    let (exclusive, reverse) = (call.flag("exclusive", false)?, call.flag("reverse", false)?);
    let (op, neutral) = if call.node.op_type == "CumProd" { (PointOp::Mul, 1.0) } else { (PointOp::Add, 0.0) };
    let dtype = lowering.dtype(x);
    let ty = if matches!(dtype, DType::F16 | DType::Bf16) { DType::F32 } else { dtype };
    let lines = Lines::of(&shape, axis);
    let mut nest = NestBuilder::new(if op == PointOp::Mul { "cum_prod" } else { "cum_sum" }, lines.domain.clone());
    nest.by_rows(usize::from(axis > 0));
    let total = nest.variable(ty, &NestArg::Const(neutral));
    nest.count(&0.into(), &NestArg::from(lines.length()), |nest, i| {
        let i = if reverse {
            let last = nest.sub(&NestArg::from(lines.length()), &1.into());
            nest.sub(&last, i)
        } else {
            i.clone()
        };
        let at = lines.at(nest, lines.length(), &i);
        let before = if exclusive { Some(narrowed(nest, &total, ty, dtype)) } else { None };
        let element = nest.load(0, dtype, &at);
        let element = if ty == dtype { element } else { nest.cast(&element, ty) };
        nest.accumulate(&total, op, &element);
        let value = before.unwrap_or_else(|| narrowed(nest, &total, ty, dtype));
        nest.store(0, &at, &value);
    });
    Ok(vec![lowering.emit_one(&call.name, Op::Nest(nest.finish()), &[x], dtype, shape)?])
}

/// The current value of a variable, in the type of the result.
fn narrowed(nest: &mut NestBuilder, variable: &NestArg, ty: DType, dtype: DType) -> NestArg {
    if ty == dtype { nest.variable(ty, variable) } else { nest.cast(variable, dtype) }
}

/// Reverses the first elements of each line of a batch; an operand gives their number.
pub(super) fn reverse_sequence(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let (x, lengths) = (call.input(0)?, call.input(1)?);
    let shape = lowering.shape(x).to_vec();
    let (batch, time) =
        (axis_of(call.int("batch_axis", 1)?, shape.len())?, axis_of(call.int("time_axis", 0)?, shape.len())?);
    if batch == time || batch > 1 || time > 1 || lowering.rank(lengths) != 1 || lowering.dtype(lengths) != DType::I64 {
        let lengths = lowering.shape_text(lowering.shape(lengths));
        return invalid(format!(
            "its batch axis is {batch}, its time axis {time}, and its lengths have shape {lengths}"
        ));
    }
    lowering.equal_dims(lowering.shape(lengths)[0].clone(), shape[batch].clone())?;
    let (dtype, ty) = (lowering.dtype(x), DType::I32);
    let mut nest = NestBuilder::new("reverse_sequence", shape.clone());
    let mut place = nest.point();
    let at = nest.offset(&shape, &place);
    let length = nest.load(1, DType::I64, &place[batch]);
    let length = nest.cast(&length, ty);
    let length = nest.step(PointOp::Min, ty, &[length, NestArg::from(&shape[time])]);
    let is_reversed = nest.compare(PointOp::Less, ty, &place[time], &length);
    let last = nest.sub(&length, &1.into());
    let mirrored = nest.sub(&last, &place[time]);
    place[time] = nest.select(ty, &is_reversed, &mirrored, &place[time]);
    let from = nest.offset(&shape, &place);
    let value = nest.load(0, dtype, &from);
    nest.store(0, &at, &value);
    Ok(vec![lowering.emit_one(&call.name, Op::Nest(nest.finish()), &[x, lengths], dtype, shape)?])
}

/// The `k` largest or smallest elements of each line in order, with their positions. Among equal
/// elements the first comes first. A NaN counts as the largest.
///
/// A thread keeps the best elements so far in the results, sorted. Most elements of a long line are
/// worse than all of them and are skipped.
pub(super) fn top_k(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = call.input(0)?;
    let shape = lowering.shape(x).to_vec();
    let axis = axis_of(call.int("axis", -1)?, shape.len())?;
    let k = match call.opset {
        ..10 => Expr::Const(call.int("k", -1)?),
        _ => match &lowering.require_known(call.input(1)?, "k")?[..] {
            [k] => k.clone(),
            _ => return invalid("its k is not one number"),
        },
    };
    let better = Better { ty: lowering.dtype(x), largest: call.flag("largest", true)? };
    let mut best_shape = shape.clone();
    best_shape[axis] = k.clone();
    if k == Expr::Const(0) {
        let values = lowering.fill(&call.name, better.ty, best_shape.clone(), 0.0)?;
        return Ok(vec![values, lowering.fill(&format!("{}.indices", call.name), DType::I64, best_shape, 0.0)?]);
    }
    let is_run_time = |size: &Expr| lowering.graph.run_time_sizes.iter().any(|known| size.depends_on(known.symbol));
    if is_run_time(&k) || is_run_time(&shape[axis]) {
        return unsupported(format!(
            "the {} best of {} elements, which may be too few: that is only known while the model runs",
            lowering.text(&k),
            lowering.text(&shape[axis])
        ));
    }
    lowering.require_at_least(&k, &Expr::Const(0))?;
    lowering.require_at_least(&shape[axis], &k)?;
    let lines = Lines::of(&shape, axis);
    let mut nest = NestBuilder::new("top_k", lines.domain.clone());
    nest.by_rows(usize::from(axis > 0));
    let kept = nest.variable(DType::I32, &0.into());
    // If `k` is 0 there is no last element to compare with.
    let is_any = nest.compare(PointOp::Greater, DType::I32, &NestArg::from(&k), &0.into());
    let end = nest.select(DType::I32, &is_any, &NestArg::from(lines.length()), &0.into());
    nest.count(&0.into(), &end, |nest, i| {
        let at = lines.at(nest, lines.length(), i);
        let element = nest.load(0, better.ty, &at);
        let enters = nest.variable(DType::Bool, &NestArg::Const(1.0));
        let is_full = nest.compare(PointOp::GreaterOrEqual, DType::I32, &kept, &NestArg::from(&k));
        nest.choose(
            &is_full,
            |nest| {
                let last = nest.sub(&kept, &1.into());
                let at = lines.at(nest, &k, &last);
                let worst = nest.load_result(0, better.ty, &at);
                let is_better = better.than(nest, &element, &worst);
                nest.set(&enters, &is_better);
            },
            |nest| nest.accumulate(&kept, PointOp::Add, &1.into()),
        );
        nest.when(&enters, |nest| insert(nest, &lines, &k, &better, [&kept, &element, i]));
    });
    let outputs = vec![(better.ty, best_shape.clone()), (DType::I64, best_shape)];
    lowering.emit(&call.name, Op::Nest(nest.finish()), &[x], outputs)
}

/// Inserts an element among the `kept` best elements and drops the last of them.
fn insert(nest: &mut NestBuilder, lines: &Lines, k: &Expr, better: &Better, [kept, element, index]: [&NestArg; 3]) {
    let last = nest.sub(kept, &1.into());
    let place = nest.variable(DType::I32, &last);
    let moving = nest.variable(DType::Bool, &NestArg::Const(1.0));
    nest.count_while(&0.into(), &last, &moving, |nest, _| {
        let before = nest.sub(&place, &1.into());
        let at = lines.at(nest, k, &before);
        let other = nest.load_result(0, better.ty, &at);
        let is_better = better.than(nest, element, &other);
        nest.choose(
            &is_better,
            |nest| {
                let to = lines.at(nest, k, &place);
                let other_index = nest.load_result(1, DType::I64, &at);
                nest.store(0, &to, &other);
                nest.store(1, &to, &other_index);
                nest.set(&place, &before);
            },
            |nest| nest.set(&moving, &NestArg::Const(0.0)),
        );
    });
    let to = lines.at(nest, k, &place);
    nest.store(0, &to, element);
    let index = nest.cast(index, DType::I64);
    nest.store(1, &to, &index);
}

/// The order of elements.
struct Better {
    ty: DType,
    largest: bool,
}

impl Better {
    /// Whether `a` is strictly better than `b`, ignoring their positions.
    fn than(&self, nest: &mut NestBuilder, a: &NestArg, b: &NestArg) -> NestArg {
        let (a, b) = if self.largest { (a, b) } else { (b, a) };
        let greater = nest.compare(PointOp::Greater, self.ty, a, b);
        if !is_float(self.ty) {
            return greater;
        }
        let a_is_number = nest.compare(PointOp::Equal, self.ty, a, a);
        let a_is_nan = nest.step(PointOp::Not, DType::Bool, &[a_is_number]);
        let b_is_number = nest.compare(PointOp::Equal, self.ty, b, b);
        let nan_above = nest.both(&a_is_nan, &b_is_number);
        nest.step(PointOp::Or, DType::Bool, &[greater, nan_above])
    }
}
