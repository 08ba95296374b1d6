//! `Slice`: selects elements of each axis. Starts, ends, axes and steps may be sizes that are known
//! only in the invocation.

use super::super::call::Call;
use super::super::error::{LowerResult, invalid};
use super::super::lowering::Lowering;
use crate::nest::{NestArg, NestBuilder};
use crate::size::{at_least, bounds, larger, simplified, smaller};
use crate::tensor_graph::{Op, ValueId};
use atoll_kgraph::{Expr, SymbolSpec};

type Results = LowerResult<Vec<ValueId>>;

/// A start or end beyond this means the end of the axis. No dimension is that large, and sums with
/// it do not overflow.
const FAR: i64 = 1 << 40;

/// One entry of the lists of starts, ends, axes and steps.
struct Cut {
    from: Expr,
    to: Expr,
    axis: Expr,
    step: Expr,
}

/// The selected elements of one axis.
struct Range {
    /// Index of the first element.
    start: Expr,
    /// Number of elements.
    count: Expr,
    /// Distance between elements.
    step: Expr,
}

/// Starts, ends and axes are attributes before opset 10; from opset 10 on they are operands, and
/// there are steps.
pub(super) fn slice(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = call.input(0)?;
    let shape = lowering.shape(x).to_vec();
    let cuts = read(lowering, call)?;
    let ranges = ranges(lowering, &shape, &cuts)?;
    let result: Vec<Expr> = ranges.iter().map(|range| range.count.clone()).collect();
    let steps: Option<Vec<i64>> = ranges.iter().map(|range| range.step.as_const()).collect();
    if result == shape && steps.as_ref().is_some_and(|steps| steps.iter().all(|step| *step == 1)) {
        return Ok(vec![x]);
    }
    let op = match steps {
        Some(steps) => Op::Slice { starts: ranges.into_iter().map(|range| range.start).collect(), steps },
        None => by_points(&shape, &ranges, &result, lowering.dtype(x)),
    };
    Ok(vec![lowering.emit_one(&call.name, op, &[x], lowering.dtype(x), result)?])
}

fn read(lowering: &Lowering, call: &Call<'_>) -> LowerResult<Vec<Cut>> {
    let numbers = |values: Vec<i64>| values.into_iter().map(Expr::Const).collect::<Vec<Expr>>();
    let (from, to, axes, steps);
    if call.opset < 10 {
        (from, to) = (numbers(call.required_ints("starts")?), numbers(call.required_ints("ends")?));
        (axes, steps) = (call.ints("axes")?.map(numbers), None);
    } else {
        from = lowering.require_known(call.input(1)?, "list of starts")?;
        to = lowering.require_known(call.input(2)?, "list of ends")?;
        axes = call.optional(3).map(|id| lowering.require_known(id, "list of axes")).transpose()?;
        steps = call.optional(4).map(|id| lowering.require_known(id, "list of steps")).transpose()?;
    }
    let axes = axes.unwrap_or_else(|| (0..from.len() as i64).map(Expr::Const).collect());
    let steps = steps.unwrap_or_else(|| vec![Expr::Const(1); from.len()]);
    if [to.len(), axes.len(), steps.len()] != [from.len(); 3] {
        return invalid("its starts, ends, axes and steps have different lengths");
    }
    let cuts = from.into_iter().zip(to).zip(axes).zip(steps);
    Ok(cuts.map(|(((from, to), axis), step)| Cut { from, to, axis, step }).collect())
}

/// The selected elements of every axis.
fn ranges(lowering: &Lowering, shape: &[Expr], cuts: &[Cut]) -> LowerResult<Vec<Range>> {
    let symbols = &lowering.graph.symbols;
    let rank = Expr::Const(shape.len() as i64);
    for cut in cuts {
        lowering.require_at_least(&(cut.axis.clone() + rank.clone()), &Expr::Const(0))?;
        lowering.require_at_least(&(rank.clone() - 1), &cut.axis)?;
        // A step must not be 0.
        lowering
            .require_at_least(&larger(cut.step.clone(), Expr::Const(0) - cut.step.clone(), symbols), &Expr::Const(1))?;
    }
    shape
        .iter()
        .enumerate()
        .map(|(axis, dim)| {
            let zero = || Expr::Const(0);
            let (mut from, mut to, mut step, mut rest) = (zero(), zero(), zero(), Expr::Const(1));
            for cut in cuts {
                let is_this = is_equal(&from_end(&cut.axis, &rank, symbols), axis as i64, symbols);
                from = from + near(&cut.from) * is_this.clone();
                to = to + near(&cut.to) * is_this.clone();
                step = step + cut.step.clone() * is_this.clone();
                rest = rest - is_this;
            }
            if rest == Expr::Const(1) {
                return Ok(Range { start: zero(), count: dim.clone(), step: rest });
            }
            if rest.as_const().is_some_and(|rest| rest < 0) {
                return invalid(format!("its axes contain {axis} twice"));
            }
            to = to + dim.clone() * rest.clone();
            step = simplified(&(step + rest), symbols);
            Ok(inside(symbols, resolve(symbols, dim, &simplified(&from, symbols), &simplified(&to, symbols), step)))
        })
        .collect()
}

/// A range without elements starts at 0: if several axes started at their end, the start would be
/// outside the tensor.
fn inside(symbols: &[SymbolSpec], range: Range) -> Range {
    let Range { start, count, step } = range;
    let is_any = smaller(count.clone(), Expr::Const(1), symbols);
    Range { start: if is_any == Expr::Const(1) { start } else { simplified(&(start * is_any), symbols) }, count, step }
}

/// Clamps a number to `-FAR..=FAR`.
fn near(size: &Expr) -> Expr {
    size.as_const().map_or_else(|| size.clone(), |value| Expr::Const(value.clamp(-FAR, FAR)))
}

/// 1 if a size equals a number, else 0.
fn is_equal(size: &Expr, number: i64, symbols: &[SymbolSpec]) -> Expr {
    let (above, below) = (size.clone() - number, Expr::Const(number) - size.clone());
    Expr::Const(1) - smaller(larger(above, below, symbols), Expr::Const(1), symbols)
}

/// 1 if a size is positive, else 0.
fn is_positive(size: &Expr, symbols: &[SymbolSpec]) -> Expr {
    smaller(larger(size.clone(), Expr::Const(0), symbols), Expr::Const(1), symbols)
}

/// Resolves a negative position, which counts from the end.
fn from_end(position: &Expr, dim: &Expr, symbols: &[SymbolSpec]) -> Expr {
    match bounds(position, symbols) {
        Some((low, _)) if low >= 0 => position.clone(),
        Some((_, high)) if high < 0 => simplified(&(position.clone() + dim.clone()), symbols),
        _ => position.clone() + dim.clone() * is_positive(&(Expr::Const(0) - position.clone()), symbols),
    }
}

/// Resolves a range by ONNX's rules, which depend on the sign of the step.
fn resolve(symbols: &[SymbolSpec], dim: &Expr, from: &Expr, to: &Expr, step: Expr) -> Range {
    let [from, to] = [from, to].map(|position| from_end(position, dim, symbols));
    if at_least(&step, &Expr::Const(1), symbols) {
        return forwards(symbols, dim, from, to, step);
    }
    if at_least(&Expr::Const(-1), &step, symbols) {
        return backwards(symbols, dim, from, to, step);
    }
    let (up, down) = (is_positive(&step, symbols), is_positive(&(Expr::Const(0) - step.clone()), symbols));
    let forwards = forwards(symbols, dim, from.clone(), to.clone(), step.clone().max(1));
    let backwards = backwards(symbols, dim, from, to, step.clone().min(-1));
    let either = |first: Expr, second: Expr| first * up.clone() + second * down.clone();
    Range { start: either(forwards.start, backwards.start), count: either(forwards.count, backwards.count), step }
}

/// Both ends are clamped to the axis.
fn forwards(symbols: &[SymbolSpec], dim: &Expr, from: Expr, to: Expr, step: Expr) -> Range {
    let zero = Expr::Const(0);
    let within = |position: Expr| smaller(larger(position, zero.clone(), symbols), dim.clone(), symbols);
    let (start, end) = (within(from), within(to));
    let span = larger(simplified(&(end - start.clone()), symbols), zero.clone(), symbols);
    Range { start, count: simplified(&span.ceil_div(step.clone()), symbols), step }
}

/// The start is clamped to the axis; the end is at least -1.
fn backwards(symbols: &[SymbolSpec], dim: &Expr, from: Expr, to: Expr, step: Expr) -> Range {
    let zero = Expr::Const(0);
    let first = smaller(larger(from, zero.clone(), symbols), dim.clone() - 1, symbols);
    let end = larger(to, Expr::Const(-1), symbols);
    let span = larger(simplified(&(first.clone() - end), symbols), zero.clone(), symbols);
    let count = simplified(&span.ceil_div(zero.clone() - step.clone()), symbols);
    // In an axis without elements, the first index would be -1.
    Range { start: larger(first, zero, symbols), count, step }
}

/// A nest that loads each element of the result separately, for steps whose sign is not known.
fn by_points(shape: &[Expr], ranges: &[Range], result: &[Expr], dtype: atoll_kgraph::DType) -> Op {
    let mut nest = NestBuilder::new("slice", result.to_vec());
    let point = nest.point();
    let mut indices = Vec::with_capacity(point.len());
    for (at, range) in point.iter().zip(ranges) {
        let along = nest.mul(at, &NestArg::from(&range.step));
        indices.push(nest.add(&along, &NestArg::from(&range.start)));
    }
    let from = nest.offset(shape, &indices);
    let to = nest.offset(result, &point);
    let value = nest.load(0, dtype, &from);
    nest.store(0, &to, &value);
    Op::Nest(nest.finish())
}
