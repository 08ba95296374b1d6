//! Lowers `If`, `Loop` and `Scan`.
//!
//! If the condition of an `If` is known at compile time, only the selected branch is lowered. If
//! the trip count of a loop is known and small, the loop is unrolled. If a condition is known only
//! at run time and both branches of the `If`, or all iterations of the `Loop`, are cheap, they are
//! computed and the results are selected. All other cases are decided at run time (`control`).

use super::call::{Call, axis_of};
use super::control::{self, Iteration, Repetition};
use super::error::{LowerError, LowerResult, invalid, unsupported};
use super::failure::{Failure, tensor_of};
use super::import::Import;
use super::lowering::Lowering;
use super::ops::layout;
use super::proto::{DimensionValue, GraphProto};
use super::read;
use super::scope::{Body, Item};
use super::selection::select;
use crate::tensor::{Tensor, is_float};
use crate::tensor_graph::{Op, PointOp, ValueId};
use atoll_kgraph::{DType, Expr};

type Items = Result<Vec<Item>, Failure>;

/// Largest number of nodes of both branches of an `If` whose condition is known only at run time.
const BRANCH_NODES_MAX: usize = 1 << 12;
/// Largest number of iterations of an unrolled loop.
const ITERATIONS_MAX: i64 = 1 << 12;
/// Largest number of nodes of an unrolled loop.
const UNROLLED_NODES_MAX: usize = 1 << 15;
/// Largest number of nodes of a cheap loop whose iterations are all computed even though its
/// condition may end it earlier.
const SELECTED_NODES_MAX: usize = 64;
/// Largest number of bytes of constants that unrolling a loop computes at compile time.
const UNROLLED_BYTES_MAX: u64 = 1 << 30;

/// A condition: a known value, or a scalar computed at run time.
#[derive(Clone, Copy)]
enum Truth {
    Known(bool),
    /// A scalar Bool.
    Computed(ValueId),
}

fn truth_of(import: &mut Import<'_>, call: &Call<'_>, id: ValueId) -> LowerResult<Truth> {
    let lowering = &mut import.lowering;
    if lowering.shape(id).iter().any(|dim| dim.as_const() != Some(1)) {
        return invalid(format!(
            "its condition has shape {}; it must have one element",
            lowering.shape_text(lowering.shape(id))
        ));
    }
    match lowering.known(id).as_deref() {
        Some([known]) => match known.as_const() {
            Some(value) => Ok(Truth::Known(value != 0)),
            None => Err(lowering.open_size("its condition", known)),
        },
        _ if lowering.dtype(id) != DType::Bool => invalid("its condition is not a Bool"),
        _ => Ok(Truth::Computed(lowering.reshape(&format!("{}.condition", call.name), id, vec![])?)),
    }
}

pub(super) fn if_<'m>(import: &mut Import<'m>, call: &Call<'m>) -> Items {
    let condition = truth_of(import, call, call.input(0)?)?;
    let condition = match condition {
        Truth::Known(true) => return branch(import, call, "then_branch"),
        Truth::Known(false) => return branch(import, call, "else_branch"),
        Truth::Computed(condition) => condition,
    };
    if let Some(items) = control::branches(import, call, condition)? {
        return Ok(items);
    }
    let before = import.lowering.graph.nodes.len();
    let outer = import.lowering.begin_speculation();
    let (then, other) = (branch(import, call, "then_branch")?, branch(import, call, "else_branch")?);
    import.lowering.end_speculation(outer);
    let nodes = import.lowering.graph.nodes.len() - before;
    if nodes > BRANCH_NODES_MAX {
        let found = nodes.to_string();
        let what =
            "the number of nodes of both branches (its condition is known only at run time, so both are computed)"
                .into();
        return Err(LowerError::TooLarge { what, found, limit: BRANCH_NODES_MAX.to_string() }.into());
    }
    if then.len() != other.len() {
        return Ok(invalid("its branches have different numbers of results")?);
    }
    let pairs = then.iter().zip(&other).enumerate();
    pairs
        .map(|(i, (then, other))| {
            Ok(select(&mut import.lowering, &format!("{}.{i}", call.name), condition, then, other)?)
        })
        .collect()
}

fn branch<'m>(import: &mut Import<'m>, call: &Call<'m>, name: &str) -> Items {
    let body = Body::of_graph(call.graph(name)?)?;
    import.lower_body(&body, &format!("{}/{name}", call.name), vec![], None)
}

/// Checks an unrolled loop against the limits as it grows.
struct UnrollLimits {
    nodes_before: usize,
    values_seen: usize,
    constant_bytes: u64,
}

impl UnrollLimits {
    fn new(import: &Import<'_>) -> UnrollLimits {
        let graph = &import.lowering.graph;
        UnrollLimits { nodes_before: graph.nodes.len(), values_seen: graph.values.len(), constant_bytes: 0 }
    }

    fn check(&mut self, import: &mut Import<'_>) -> Result<(), Failure> {
        import.count_nodes(1)?;
        let graph = &import.lowering.graph;
        let new = &graph.values[self.values_seen..];
        self.constant_bytes +=
            new.iter().filter_map(|value| value.constant.as_ref()).map(|bytes| bytes.len() as u64).sum::<u64>();
        self.values_seen = graph.values.len();
        let nodes = graph.nodes.len() - self.nodes_before;
        let too_large = |found: String, limit: String| {
            Err(LowerError::TooLarge { what: "the unrolled loop".into(), found, limit }.into())
        };
        if nodes > UNROLLED_NODES_MAX {
            return too_large(format!("more than {UNROLLED_NODES_MAX} nodes"), UNROLLED_NODES_MAX.to_string());
        }
        if self.constant_bytes > UNROLLED_BYTES_MAX {
            return too_large(format!("{} bytes of constants", self.constant_bytes), UNROLLED_BYTES_MAX.to_string());
        }
        Ok(())
    }
}

pub(super) fn loop_<'m>(import: &mut Import<'m>, call: &Call<'m>) -> Items {
    let graph = call.graph("body")?;
    let body = Body::of_graph(graph)?;
    let mut go = match call.optional(1) {
        Some(condition) => truth_of(import, call, condition)?,
        None => Truth::Known(true),
    };
    let first = go;
    let mut carried: Vec<Item> = call.items.iter().skip(2).cloned().collect();
    let states = carried.len();
    let Some(scans) = body.outputs.len().checked_sub(1 + states).filter(|_| body.inputs.len() == 2 + states) else {
        return Ok(invalid(format!(
            "its {states} loop-carried values do not match its body of {} inputs and {} results",
            body.inputs.len(),
            body.outputs.len()
        ))?);
    };
    // A loop without iterations is unrolled, whatever its trip count is.
    let trips = if matches!(go, Truth::Known(false)) { Some(0) } else { unrolled_trips(import, call, &body) };
    let Some(trips) = trips else { return looped(import, call, first) };
    let is_selected = scans == 0 && control::is_cheap(&body) && trips as usize * body.order.len() <= SELECTED_NODES_MAX;
    let mark = import.lowering.mark();
    let mut rows: Vec<Vec<ValueId>> = vec![Vec::new(); scans];
    let mut limits = UnrollLimits::new(import);
    for iteration in 0..trips {
        if matches!(go, Truth::Known(false)) {
            break;
        }
        if matches!(go, Truth::Computed(_)) && !is_selected {
            import.lowering.roll_back(mark);
            return looped(import, call, first);
        }
        let name = format!("{}/{iteration}", call.name);
        let items = [iteration_number(import, &name, iteration), condition_item(import, &name, go)];
        let outer = import.lowering.speculative;
        if matches!(go, Truth::Computed(_)) {
            import.lowering.begin_speculation();
        }
        let mut results =
            import.lower_body(&body, &name, items.into_iter().chain(carried.iter().cloned()).collect(), None)?;
        import.lowering.end_speculation(outer);
        for (row, item) in rows.iter_mut().zip(results.split_off(1 + states)) {
            row.push(tensor_of(&item, "a scan result")?);
        }
        let after = results.split_off(1);
        carried = match go {
            Truth::Known(_) => after,
            Truth::Computed(go) => {
                let pairs = after.iter().zip(&carried).enumerate();
                pairs
                    .map(|(i, (new, old))| select(&mut import.lowering, &format!("{name}.{i}"), go, new, old))
                    .collect::<LowerResult<_>>()?
            }
        };
        let next = truth_of(import, call, tensor_of(&results[0], "the condition")?)?;
        go = both(import, &name, go, next)?;
        limits.check(import)?;
    }
    for (index, row) in rows.iter().enumerate() {
        carried.push(stack(import, &format!("{}.{index}", call.name), row, 0, graph, 1 + states + index)?);
    }
    Ok(carried)
}

/// The number of iterations of a loop, if it may be unrolled.
fn unrolled_trips(import: &Import<'_>, call: &Call<'_>, body: &Body<'_>) -> Option<i64> {
    let trips = import.lowering.known(call.optional(0)?)?.first()?.as_const()?.max(0);
    let fits = trips <= ITERATIONS_MAX && trips as usize * body.order.len() <= UNROLLED_NODES_MAX;
    fits.then_some(trips)
}

/// Lowers a loop whose iterations are decided at run time.
fn looped<'m>(import: &mut Import<'m>, call: &Call<'m>, first: Truth) -> Items {
    let condition = match first {
        Truth::Computed(condition) => Some(condition),
        Truth::Known(_) => None,
    };
    control::looped(import, call, condition, |import, next| match truth_of(import, call, next)? {
        Truth::Known(true) => Ok(None),
        Truth::Known(false) => Ok(Some(next)),
        Truth::Computed(next) => Ok(Some(next)),
    })
}

fn iteration_number(import: &mut Import<'_>, name: &str, iteration: i64) -> Item {
    Item::Tensor(import.lowering.constant(&format!("{name}.iteration"), &Tensor::ints(DType::I64, vec![], [iteration])))
}

fn condition_item(import: &mut Import<'_>, name: &str, truth: Truth) -> Item {
    Item::Tensor(match truth {
        Truth::Computed(id) => id,
        Truth::Known(known) => import
            .lowering
            .constant(&format!("{name}.condition"), &Tensor::ints(DType::Bool, vec![], [i64::from(known)])),
    })
}

/// The condition after an iteration, given the one before it: once false, it stays false.
fn both(import: &mut Import<'_>, name: &str, before: Truth, next: Truth) -> LowerResult<Truth> {
    match (before, next) {
        (Truth::Known(true), next) | (next, Truth::Known(true)) => Ok(next),
        (Truth::Known(false), _) | (_, Truth::Known(false)) => Ok(Truth::Known(false)),
        (Truth::Computed(before), Truth::Computed(next)) => {
            let and =
                import.lowering.pointwise(&format!("{name}.goes_on"), &[before, next], DType::Bool, |p, args| {
                    p.step(PointOp::And, DType::Bool, args);
                })?;
            Ok(Truth::Computed(and))
        }
    }
}

/// The scan results of all iterations, stacked. If there was no iteration, the type of the body's
/// result `output` gives the shape.
fn stack(
    import: &mut Import<'_>,
    name: &str,
    rows: &[ValueId],
    axis: i64,
    graph: &GraphProto,
    output: usize,
) -> Result<Item, Failure> {
    if let Some(first) = rows.first() {
        let axis = axis_of(axis, import.lowering.rank(*first) + 1)?;
        return Ok(Item::Tensor(layout::stack(&mut import.lowering, name, rows, axis)?));
    }
    let tensor = graph.output.get(output).and_then(|o| o.r#type.as_ref()).and_then(|t| t.tensor_type.as_ref());
    let dtype = tensor.and_then(|t| read::stored_dtype_of(t.elem_type));
    let dims: Option<Vec<usize>> =
        tensor.and_then(|t| t.shape.as_ref()).and_then(|shape| {
            shape
                .dim
                .iter()
                .map(|dim| {
                    if let Some(DimensionValue::DimValue(size)) = dim.value { usize::try_from(size).ok() } else { None }
                })
                .collect()
        });
    let (Some(dtype), Some(mut shape)) = (dtype, dims) else {
        return Ok(unsupported(
            "it has no iterations, and the model does not give the shape of a scan result; \
             run shape inference on the model",
        )?);
    };
    shape.insert(axis_of(axis, shape.len() + 1)?, 0);
    let empty = if is_float(dtype) { Tensor::floats(dtype, shape, []) } else { Tensor::ints(dtype, shape, []) };
    Ok(Item::Tensor(import.lowering.constant(name, &empty)))
}

/// Axis and direction in which a scan reads an input or writes a result.
#[derive(Clone, Copy)]
struct ScanAxis {
    axis: i64,
    is_reverse: bool,
}

/// Axes and directions of `count` inputs or results.
fn scan_axes(call: &Call<'_>, axes: &str, directions: &str, count: usize) -> LowerResult<Vec<ScanAxis>> {
    let read = |name: &str| Ok(call.ints(name)?.unwrap_or_else(|| vec![0; count]));
    let (axes, directions) = (read(axes)?, read(directions)?);
    if axes.len() != count || directions.len() != count {
        return invalid(format!(
            "it has {} scan axes and {} directions for {count} tensors",
            axes.len(),
            directions.len()
        ));
    }
    Ok(axes
        .into_iter()
        .zip(directions)
        .map(|(axis, direction)| ScanAxis { axis, is_reverse: direction != 0 })
        .collect())
}

/// The parts of a scan that are the same for each use of its body.
struct Scan<'b, 'm> {
    graph: &'m GraphProto,
    body: &'b Body<'m>,
    inputs: Vec<ScanAxis>,
    outputs: Vec<ScanAxis>,
    limits: UnrollLimits,
}

pub(super) fn scan<'m>(import: &mut Import<'m>, call: &Call<'m>) -> Items {
    let graph = call.graph("body")?;
    let body = Body::of_graph(graph)?;
    // In operator set 8, the first axis is the batch, and the first operand is the lengths of the
    // sequences.
    let has_batch = call.opset < 9;
    let items = &call.items[usize::from(has_batch).min(call.items.len())..];
    let scanned = usize::try_from(call.int("num_scan_inputs", 0)?).ok().filter(|n| (1..=items.len()).contains(n));
    let Some(scanned) = scanned else {
        return Ok(invalid(format!("num_scan_inputs must be 1 to {}, the number of operands", items.len()))?);
    };
    let states = items.len() - scanned;
    let Some(scans) = body.outputs.len().checked_sub(states) else {
        return Ok(invalid(format!("it has {states} states, but its body has only {} results", body.outputs.len()))?);
    };
    let directions = if has_batch { "directions" } else { "scan_input_directions" };
    let inputs = scan_axes(call, "scan_input_axes", directions, scanned)?;
    let outputs = scan_axes(call, "scan_output_axes", "scan_output_directions", scans)?;
    let tensors = items.iter().map(|item| tensor_of(item, "an operand")).collect::<LowerResult<Vec<ValueId>>>()?;
    let mut scan = Scan { graph, body: &body, inputs, outputs, limits: UnrollLimits::new(import) };
    if !has_batch {
        return scan.run(import, &call.name, &tensors[..states], &tensors[states..]);
    }
    if call.optional(0).is_some() {
        return Ok(unsupported("sequence_lens is given; only sequences of the same length are supported")?);
    }
    let batch = static_dim(import, tensors[0], 0)?;
    let mut rows = vec![Vec::new(); body.outputs.len()];
    for row in 0..batch {
        let name = format!("{}/{row}", call.name);
        let of_row =
            |(i, id): (usize, &ValueId)| layout::element(&mut import.lowering, &format!("{name}.{i}"), *id, 0, row);
        let tensors = tensors.iter().enumerate().map(of_row).collect::<LowerResult<Vec<ValueId>>>()?;
        for (rows, item) in rows.iter_mut().zip(scan.run(import, &name, &tensors[..states], &tensors[states..])?) {
            rows.push(tensor_of(&item, "a result")?);
        }
    }
    let results = rows.iter().enumerate();
    results
        .map(|(i, rows)| Ok(Item::Tensor(layout::stack(&mut import.lowering, &format!("{}.{i}", call.name), rows, 0)?)))
        .collect()
}

/// A dimension that must be a number; the error names the flag that fixes it.
fn static_dim(import: &Import<'_>, id: ValueId, axis: usize) -> LowerResult<i64> {
    let dim = &import
        .lowering
        .shape(id)
        .get(axis)
        .ok_or_else(|| LowerError::Invalid(format!("its operand has no dimension {axis}")))?;
    dim.as_const().ok_or_else(|| import.lowering.open_size(&format!("the length of its dimension {axis}"), dim))
}

impl<'m> Scan<'_, 'm> {
    /// Runs the body along the scanned axes.
    fn run(&mut self, import: &mut Import<'m>, name: &str, states: &[ValueId], scanned: &[ValueId]) -> Items {
        let axes = scanned.iter().zip(&self.inputs).map(|(id, way)| axis_of(way.axis, import.lowering.rank(*id)));
        let axes = axes.collect::<LowerResult<Vec<usize>>>()?;
        let length = import.lowering.shape(scanned[0])[axes[0]].clone();
        let is_short =
            |length: &i64| *length <= ITERATIONS_MAX && *length as usize * self.body.order.len() <= UNROLLED_NODES_MAX;
        let Some(length) = length.as_const().filter(is_short) else {
            return self.repeat(import, name, &length, states, (scanned, &axes));
        };
        let mut carried: Vec<Item> = states.iter().map(|id| Item::Tensor(*id)).collect();
        let mut rows: Vec<Vec<ValueId>> = vec![Vec::new(); self.outputs.len()];
        for iteration in 0..length {
            let name = format!("{name}/{iteration}");
            let mut items = carried;
            for (i, ((id, way), axis)) in scanned.iter().zip(&self.inputs).zip(&axes).enumerate() {
                if static_dim(import, *id, *axis)? != length {
                    return Ok(invalid("its scanned tensors have different lengths")?);
                }
                let at = if way.is_reverse { length - 1 - iteration } else { iteration };
                items.push(Item::Tensor(layout::element(
                    &mut import.lowering,
                    &format!("{name}.{i}"),
                    *id,
                    *axis,
                    at,
                )?));
            }
            let mut results = import.lower_body(self.body, &name, items, None)?;
            for (row, item) in rows.iter_mut().zip(results.split_off(states.len())) {
                row.push(tensor_of(&item, "a scan result")?);
            }
            carried = results;
            self.limits.check(import)?;
        }
        for (index, (mut row, way)) in rows.into_iter().zip(&self.outputs).enumerate() {
            if way.is_reverse {
                row.reverse();
            }
            carried.push(stack(import, &format!("{name}.{index}"), &row, way.axis, self.graph, states.len() + index)?);
        }
        Ok(carried)
    }

    /// Runs the body as a loop whose length is known only at run time, or is large.
    fn repeat(
        &self,
        import: &mut Import<'m>,
        name: &str,
        length: &Expr,
        states: &[ValueId],
        (scanned, axes): (&[ValueId], &[usize]),
    ) -> Items {
        for (id, axis) in scanned.iter().zip(axes) {
            import.lowering.equal_dims(length.clone(), import.lowering.shape(*id)[*axis].clone())?;
        }
        let trips = import.lowering.add_sizes(&format!("{name}.length"), DType::I64, vec![], vec![length.clone()]);
        let last = import.lowering.add_sizes(&format!("{name}.last"), DType::I64, vec![], vec![length.clone() - 1]);
        let own = Repetition { name: name.to_owned(), trips: Some(trips), condition: None, states: states.to_vec() };
        let count = states.len();
        let (mut results, rows) = own.lower(import, |import, number, states| {
            let mut items: Vec<Item> = states.iter().map(|id| Item::Tensor(*id)).collect();
            for (i, ((id, way), axis)) in scanned.iter().zip(&self.inputs).zip(axes).enumerate() {
                let name = format!("{name}/body.{i}");
                let at = match way.is_reverse {
                    true => {
                        import.lowering.pointwise(&format!("{name}.at"), &[last, number], DType::I64, |p, args| {
                            p.step(PointOp::Sub, DType::I64, args);
                        })?
                    }
                    false => number,
                };
                let (dtype, mut shape) = (import.lowering.dtype(*id), import.lowering.shape(*id).to_vec());
                shape.remove(*axis);
                let gather = Op::Gather { axis: *axis };
                items.push(Item::Tensor(import.lowering.emit_one(&name, gather, &[*id, at], dtype, shape)?));
            }
            let results = import.lower_body(self.body, &format!("{name}/body"), items, None)?;
            let results = results.iter().map(|item| tensor_of(item, "a result of a scan's body"));
            let mut states = results.collect::<LowerResult<Vec<ValueId>>>()?;
            let rows = states.split_off(count);
            Ok(Iteration { condition: None, states, rows })
        })?;
        for (index, (rows, way)) in rows.into_iter().zip(&self.outputs).enumerate() {
            results.push(placed(&mut import.lowering, &format!("{name}.{index}"), rows, *way)?);
        }
        Ok(results.into_iter().map(Item::Tensor).collect())
    }
}

/// Moves rows, stacked along the first axis, to the axis and into the order that the model asks
/// for.
fn placed(lowering: &mut Lowering, name: &str, rows: ValueId, way: ScanAxis) -> LowerResult<ValueId> {
    let (dtype, shape) = (lowering.dtype(rows), lowering.shape(rows).to_vec());
    let mut rows = rows;
    if way.is_reverse {
        let mut starts = vec![Expr::Const(0); shape.len()];
        let mut steps = vec![1; shape.len()];
        (starts[0], steps[0]) = (shape[0].clone() - 1, -1);
        rows = lowering.emit_one(
            &format!("{name}.reversed"),
            Op::Slice { starts, steps },
            &[rows],
            dtype,
            shape.clone(),
        )?;
    }
    let axis = axis_of(way.axis, shape.len())?;
    let mut permutation: Vec<usize> = (1..shape.len()).collect();
    permutation.insert(axis, 0);
    lowering.transpose(&format!("{name}.placed"), rows, permutation)
}
