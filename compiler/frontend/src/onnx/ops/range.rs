//! `Range`: numbers with equal distances. Their count is a number, a size, or computed at run time.

use super::super::call::Call;
use super::super::error::{LowerError, LowerResult, invalid};
use super::super::lowering::Lowering;
use crate::nest::{NestArg, NestBuilder};
use crate::size::{larger, simplified};
use crate::tensor::{Tensor, is_float};
use crate::tensor_graph::{Op, PointOp, ValueId};
use atoll_kgraph::{DType, Expr};

type Results = LowerResult<Vec<ValueId>>;

/// Largest number of elements of a constant range, or of one whose length is computed at run time:
/// memory is laid out for that many.
const RANGE_MAX: i64 = 1 << 20;
/// Longest range whose elements are sizes.
const SIZES_MAX: i64 = 64;

pub(super) fn range(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let operands = [call.input(0)?, call.input(1)?, call.input(2)?];
    let dtype = lowering.dtype(operands[0]);
    if operands
        .iter()
        .any(|id| lowering.dtype(*id) != dtype || lowering.shape(*id).iter().any(|dim| dim.as_const() != Some(1)))
    {
        return invalid("its start, limit and delta are not three numbers of one type");
    }
    if is_float(dtype) && operands.iter().all(|id| lowering.is_constant(*id)) {
        return of_floats(lowering, call, dtype, operands);
    }
    match numbers(lowering, operands)? {
        Some([start, limit, delta]) if delta.as_const().is_some() => {
            of_sizes(lowering, call, dtype, [start, limit, delta])
        }
        _ => at_run_time(lowering, call, dtype, operands),
    }
}

/// Start, limit and delta as sizes; `None` if one is computed at run time. An operand that is an
/// input of the model becomes a size if the invocation's value suffices.
fn numbers(lowering: &Lowering, operands: [ValueId; 3]) -> LowerResult<Option<[Expr; 3]>> {
    let mut known = Vec::with_capacity(3);
    // The delta first: the others are of no use without it.
    for id in [operands[2], operands[0], operands[1]] {
        match lowering.known(id).as_deref() {
            Some([number]) => known.push(number.clone()),
            _ if known.first().is_some_and(|delta: &Expr| delta.as_const().is_some()) => {
                match lowering.require_known(id, "range").as_deref() {
                    Ok([number]) => known.push(number.clone()),
                    Ok(_) | Err(LowerError::Unsupported(_)) => return Ok(None),
                    Err(_) => return lowering.require_known(id, "range").map(|_| None),
                }
            }
            _ => return Ok(None),
        }
    }
    Ok(<[Expr; 3]>::try_from(known).ok().map(|[delta, start, limit]| [start, limit, delta]))
}

fn of_floats(lowering: &mut Lowering, call: &Call<'_>, dtype: DType, operands: [ValueId; 3]) -> Results {
    let [start, limit, delta] = operands.map(|id| lowering.require_floats(id, "range").map(|numbers| numbers[0]));
    let (start, limit, delta) = (start?, limit?, delta?);
    let count = ((limit - start) / delta).ceil().max(0.0);
    if delta == 0.0 || !count.is_finite() || count > RANGE_MAX as f64 {
        return invalid(format!("its start, limit and delta give {count} elements; 0 to {RANGE_MAX} are supported"));
    }
    let tensor = Tensor::floats(dtype, vec![count as usize], (0..count as i64).map(|i| start + i as f64 * delta));
    Ok(vec![lowering.constant(&call.name, &tensor)])
}

fn of_sizes(lowering: &mut Lowering, call: &Call<'_>, dtype: DType, [start, limit, delta]: [Expr; 3]) -> Results {
    let step = delta.as_const().unwrap_or(0);
    if step == 0 {
        return invalid(format!("it goes from {} to {} by {step}", lowering.text(&start), lowering.text(&limit)));
    }
    let symbols = &lowering.graph.symbols;
    let span = if step > 0 { limit.clone() - start.clone() } else { start.clone() - limit.clone() };
    let Some(width) = step.checked_abs() else { return invalid(format!("its delta is {step}")) };
    let count = simplified(&larger(span.ceil_div(width), Expr::Const(0), symbols), symbols);
    if let (Some(count), Some(first)) = (count.as_const(), start.as_const()) {
        if count > RANGE_MAX {
            return invalid(format!(
                "its start, limit and delta give {count} elements; 0 to {RANGE_MAX} are supported"
            ));
        }
        let elements = (0..count).map(|i| first.wrapping_add(i.wrapping_mul(step)));
        let tensor = match is_float(dtype) {
            true => Tensor::floats(dtype, vec![count as usize], elements.map(|element| element as f64)),
            false => Tensor::ints(dtype, vec![count as usize], elements),
        };
        return Ok(vec![lowering.constant(&call.name, &tensor)]);
    }
    if let Some(count) = count.as_const().filter(|count| *count <= SIZES_MAX) {
        let elements = (0..count).map(|i| start.clone() + Expr::Const(i.wrapping_mul(step))).collect();
        return Ok(vec![lowering.add_sizes(&call.name, dtype, vec![count as usize], elements)]);
    }
    let mut nest = NestBuilder::new("range", vec![count.clone()]);
    let at = nest.point()[0].clone();
    let along = nest.mul(&at, &NestArg::from(step));
    let element = nest.add(&along, &NestArg::from(&start));
    let value = if dtype == DType::I32 { nest.variable(dtype, &element) } else { nest.cast(&element, dtype) };
    nest.store(0, &at, &value);
    Ok(vec![lowering.emit_one(&call.name, Op::Nest(nest.finish()), &[], dtype, vec![count])?])
}

/// One thread computes the number of elements.
fn at_run_time(lowering: &mut Lowering, call: &Call<'_>, dtype: DType, operands: [ValueId; 3]) -> Results {
    let (wide, zero) = (DType::F64, NestArg::from(0));
    let mut nest = NestBuilder::new("range_length", Vec::new());
    let [start, limit, delta] = [0, 1, 2].map(|operand| nest.load(operand, dtype, &zero));
    let as_wide =
        |nest: &mut NestBuilder, value: &NestArg| if dtype == wide { value.clone() } else { nest.cast(value, wide) };
    // Floats are subtracted in their own type, as in ONNX Runtime; integers could overflow theirs.
    let span = if is_float(dtype) {
        let span = nest.step(PointOp::Sub, dtype, &[limit, start]);
        as_wide(&mut nest, &span)
    } else {
        let (start, limit) = (as_wide(&mut nest, &start), as_wide(&mut nest, &limit));
        nest.step(PointOp::Sub, wide, &[limit, start])
    };
    let delta = as_wide(&mut nest, &delta);
    let quotient = nest.step(PointOp::Div, wide, &[span, delta]);
    let count = nest.step(PointOp::Ceil, wide, &[quotient]);
    let fits = nest.compare(PointOp::LessOrEqual, wide, &count, &NestArg::from(RANGE_MAX));
    let outside = nest.step(PointOp::Not, DType::Bool, std::slice::from_ref(&fits));
    nest.refuse(&outside, "a range has more than {} elements, or no end", &[Expr::Const(RANGE_MAX)]);
    let is_positive = nest.compare(PointOp::Greater, wide, &count, &zero);
    let is_length = nest.both(&fits, &is_positive);
    let count = nest.select(wide, &is_length, &count, &zero);
    let count = nest.cast(&count, DType::I32);
    nest.store(0, &zero, &count);
    let length = lowering.emit_one(
        &format!("{}/length", call.name),
        Op::Nest(nest.finish()),
        &operands,
        DType::I32,
        Vec::new(),
    )?;
    let count = lowering.run_time_size(&format!("{}/count", call.name), length, Expr::Const(RANGE_MAX))?;
    let mut nest = NestBuilder::new("range", vec![count.clone()]);
    let at = nest.point()[0].clone();
    let (start, delta) = (nest.load(0, dtype, &zero), nest.load(1, dtype, &zero));
    let index = if dtype == DType::I32 { at.clone() } else { nest.cast(&at, dtype) };
    let along = nest.step(PointOp::Mul, dtype, &[index, delta]);
    let value = nest.step(PointOp::Add, dtype, &[start, along]);
    nest.store(0, &at, &value);
    Ok(vec![lowering.emit_one(&call.name, Op::Nest(nest.finish()), &[operands[0], operands[2]], dtype, vec![count])?])
}
