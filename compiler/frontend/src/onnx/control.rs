//! Control flow that is decided at run time: branches and loops whose bodies are separate graphs. A
//! device runs only the selected branch, and only the iterations that occur.

use super::call::Call;
use super::error::{LowerError, LowerResult, invalid, unsupported};
use super::failure::{Failure, tensor_of};
use super::import::Import;
use super::lowering::{Lowering, Type};
use super::scope::{Body as Subgraph, Item};
use super::selection::common_type;
use crate::control::{Body, LoopSpec};
use crate::size::{bounds, larger, same_shape, smaller};
use crate::tensor::Tensor;
use crate::tensor_graph::{Op, PointArg, PointOp, Value, ValueId};
use atoll_kgraph::{DType, Expr};
use std::collections::HashMap;

type Items = Result<Vec<Item>, Failure>;

/// Maximum number of iterations of a loop. It limits the time of an invocation whose loop does not
/// end. The engine limits the sum over all loops to the same number.
pub const LOOP_TRIPS_MAX: i64 = 1 << 20;
/// Maximum number of iterations of a loop that stacks results, unless sizes determine the number.
/// Memory is laid out for the largest number.
pub const LOOP_ROWS_MAX: i64 = 1 << 12;

/// Maximum number of nodes of a subgraph that is computed even if it is not needed. Computing it
/// costs less than deciding, since each decision reads a value back from the device.
const CHEAP_NODES_MAX: usize = 8;
/// Operators that are never cheap, all of the default domain.
const COSTLY: [&str; 13] = [
    "Attention",
    "Conv",
    "ConvInteger",
    "ConvTranspose",
    "Einsum",
    "GRU",
    "Gemm",
    "If",
    "LSTM",
    "Loop",
    "MatMul",
    "RNN",
    "Scan",
];

/// Whether a subgraph is so small that computing it costs less than deciding whether it is needed.
pub(super) fn is_cheap(body: &Subgraph<'_>) -> bool {
    let is_costly = |index: &usize| {
        let node = &body.nodes[*index];
        !matches!(node.domain.as_str(), "" | "ai.onnx") || COSTLY.contains(&node.op_type.as_str())
    };
    body.order.len() <= CHEAP_NODES_MAX && !body.order.iter().any(is_costly)
}

/// Lowers an `If` of which only the selected branch runs. `None` if a branch computes a size at run
/// time, or if both are so small that both are computed.
pub(super) fn branches<'m>(
    import: &mut Import<'m>,
    call: &Call<'m>,
    condition: ValueId,
) -> Result<Option<Vec<Item>>, Failure> {
    let [then, otherwise] = [call.graph("then_branch")?, call.graph("else_branch")?];
    let bodies = [("then_branch", Subgraph::of_graph(then)?), ("else_branch", Subgraph::of_graph(otherwise)?)];
    if bodies.iter().all(|(_, body)| is_cheap(body)) {
        return Ok(None);
    }
    let whole = import.lowering.mark();
    let mut regions = Vec::with_capacity(2);
    let mut results = Vec::with_capacity(2);
    for (name, body) in &bodies {
        let mark = import.lowering.mark();
        let name = format!("{}/{name}", call.name);
        let items = import.lower_body(body, &name, vec![], None)?;
        if import.lowering.computes_sizes_since(&mark) {
            import.lowering.roll_back(whole);
            return Ok(None);
        }
        let tensors = tensors_of(&items);
        regions.push(import.lowering.take_region(mark, &name, &[], &HashMap::new(), &tensors)?);
        results.push((items, tensors));
    }
    let [(items, then), (others, otherwise)] = &results[..] else { return Ok(None) };
    if forms(items) != forms(others) {
        return Ok(unsupported(
            "its condition is known only at run time, and its branches differ in the number of results, in the length \
             of a sequence or in an optional",
        )?);
    }
    let pairs = then.iter().zip(otherwise);
    let types = pairs.map(|(a, b)| common_type(&import.lowering, *a, *b)).collect::<LowerResult<Vec<Type>>>()?;
    if types.is_empty() {
        return Ok(Some(items.clone()));
    }
    let captures = regions.iter().flat_map(|region| region.captures.iter().copied());
    let inputs = std::iter::once(condition).chain(captures).collect();
    let mut bodies = regions.into_iter().map(|region| Body::new(region.graph));
    let (Some(then), Some(otherwise)) = (bodies.next(), bodies.next()) else { return Ok(None) };
    let values = import.lowering.push_node(&call.name, Op::If { then, otherwise }, inputs, types)?;
    Ok(Some(with_tensors(items, &values)))
}

/// All tensors of these items, in order.
fn tensors_of(items: &[Item]) -> Vec<ValueId> {
    let of = |item: &Item| match item {
        Item::Tensor(id) => vec![*id],
        Item::Sequence(ids) => ids.clone(),
        Item::Nothing => vec![],
    };
    items.iter().flat_map(of).collect()
}

/// The forms of items: a tensor, a sequence with its length, or none.
fn forms(items: &[Item]) -> Vec<Option<(bool, usize)>> {
    let of = |item: &Item| match item {
        Item::Tensor(_) => Some((false, 1)),
        Item::Sequence(ids) => Some((true, ids.len())),
        Item::Nothing => None,
    };
    items.iter().map(of).collect()
}

/// Items of the same forms with other tensors.
fn with_tensors(items: &[Item], values: &[ValueId]) -> Vec<Item> {
    let mut values = values.iter().copied();
    let of = |item: &Item| match item {
        Item::Tensor(_) => values.next().map_or(Item::Nothing, Item::Tensor),
        Item::Sequence(ids) => Item::Sequence(values.by_ref().take(ids.len()).collect()),
        Item::Nothing => Item::Nothing,
    };
    items.iter().map(of).collect()
}

/// A loop that is to be lowered.
pub(super) struct Repetition {
    /// The prefix of the names of its nodes and values.
    pub(super) name: String,
    /// The number of iterations, if it has one.
    pub(super) trips: Option<ValueId>,
    /// The condition before the first iteration, a Bool scalar; `None` if it is always true.
    pub(super) condition: Option<ValueId>,
    /// The initial values of the states.
    pub(super) states: Vec<ValueId>,
}

/// The results of one iteration.
pub(super) struct Iteration {
    /// The next condition, a Bool with one element; `None` if it is always true.
    pub(super) condition: Option<ValueId>,
    pub(super) states: Vec<ValueId>,
    pub(super) rows: Vec<ValueId>,
}

impl Repetition {
    /// Lowers the loop. `body` lowers one iteration, given its number and its states. Returns the
    /// final states and the stacked rows.
    pub(super) fn lower<'m>(
        self,
        import: &mut Import<'m>,
        body: impl FnOnce(&mut Import<'m>, ValueId, &[ValueId]) -> Result<Iteration, Failure>,
    ) -> Result<(Vec<ValueId>, Vec<ValueId>), Failure> {
        let states = self.states.iter().map(|id| import.lowering.computed(*id)).collect::<LowerResult<Vec<_>>>()?;
        let number = parameter(&mut import.lowering, &format!("{}.iteration", self.name), (DType::I64, vec![]));
        let types: Vec<Type> = states.iter().map(|id| type_of(&import.lowering, *id)).collect();
        let parameters: Vec<ValueId> = types
            .iter()
            .enumerate()
            .map(|(i, own)| parameter(&mut import.lowering, &format!("{}.state{i}", self.name), own.clone()))
            .collect();
        let count = self.count(&mut import.lowering)?;
        let mark = import.lowering.mark();
        let Iteration { condition, states: next, rows } = body(import, number, &parameters)?;
        for (index, (id, own)) in next.iter().zip(&types).enumerate() {
            check_state(&import.lowering, index, own, *id)?;
        }
        let lowering = &mut import.lowering;
        let has_condition = condition.is_some() || self.condition.is_some();
        let condition = match condition {
            Some(id) => Some(lowering.reshape(&format!("{}.condition", self.name), id, vec![])?),
            None => has_condition.then(|| truth(lowering, &self.name)),
        };
        let (trips, limit) = self.trips(lowering, has_condition, rows.len())?;
        check_speculation(lowering, trips.is_some(), limit)?;
        let count = count.filter(|_| trips.is_none());
        // A state that no iteration changes is passed to the body as a value from outside.
        let changes = |index: &usize| next[*index] != parameters[*index];
        let changing: Vec<usize> = (0..states.len()).filter(changes).collect();
        let instead = parameters
            .iter()
            .zip(&states)
            .enumerate()
            .filter(|(i, _)| !changing.contains(i))
            .map(|(_, (p, s))| (*p, *s));
        let instead: HashMap<ValueId, ValueId> = instead.collect();
        let of_changing = |ids: &[ValueId]| changing.iter().map(|i| ids[*i]).collect::<Vec<_>>();
        let own: Vec<ValueId> = std::iter::once(number).chain(of_changing(&parameters)).collect();
        let results: Vec<ValueId> =
            condition.into_iter().chain(of_changing(&next)).chain(rows.iter().copied()).collect();
        let row_types: Vec<Type> = rows.iter().map(|id| type_of(lowering, *id)).collect();
        let region = lowering.take_region(mark, &self.name, &own, &instead, &results)?;
        let first = has_condition.then(|| self.condition.unwrap_or_else(|| truth(lowering, &self.name)));
        let inputs = count.into_iter().chain(first).chain(of_changing(&states)).chain(region.captures).collect();
        let is_exact = trips.is_some() && !has_condition;
        let symbols = &lowering.graph.symbols;
        let rows_most = match trips.clone().map(|trips| larger(trips, Expr::Const(0), symbols)) {
            Some(trips) if is_exact => trips,
            Some(trips) => smaller(trips, Expr::Const(limit), symbols),
            None => Expr::Const(limit),
        };
        let stacked = row_types.into_iter().map(|(dtype, shape)| (dtype, [vec![rows_most.clone()], shape].concat()));
        let outputs = std::iter::once((DType::I64, vec![]))
            .chain(changing.iter().map(|i| types[*i].clone()))
            .chain(stacked)
            .collect();
        let spec = LoopSpec {
            trips,
            has_count: count.is_some(),
            has_condition,
            states: changing.len(),
            trips_max: limit.max(1) as u64,
        };
        let op = Op::Loop { body: Body::new(region.graph), spec };
        let values = lowering.push_node(&self.name, op, inputs, outputs)?;
        let mut last = states;
        changing.iter().zip(&values[1..]).for_each(|(i, value)| last[*i] = *value);
        let rows = &values[1 + changing.len()..];
        match is_exact || rows.is_empty() {
            true => Ok((last, rows.to_vec())),
            false => Ok((last, cut(lowering, &self.name, values[0], rows_most, rows)?)),
        }
    }

    /// The number of iterations as an I64 scalar, if it is computed at run time.
    fn count(&self, lowering: &mut Lowering) -> LowerResult<Option<ValueId>> {
        let Some(id) = self.trips.filter(|id| lowering.known(*id).is_none()) else { return Ok(None) };
        let name = format!("{}.trips", self.name);
        let count = lowering.reshape(&name, id, vec![])?;
        lowering.cast(&name, count, DType::I64).map(Some)
    }

    /// The number of iterations, if sizes determine it, and the maximum number.
    fn trips(&self, lowering: &Lowering, has_condition: bool, rows: usize) -> LowerResult<(Option<Expr>, i64)> {
        let unknown = if rows > 0 { LOOP_ROWS_MAX } else { LOOP_TRIPS_MAX };
        let Some(id) = self.trips else {
            return match has_condition {
                true => Ok((None, unknown)),
                false => invalid("it has neither a trip count nor a condition, so it never ends"),
            };
        };
        // If the number of iterations is an input of the graph, memory for stacked results gets its
        // exact size.
        let known = match lowering.known(id) {
            None if rows > 0 && lowering.graph.inputs.contains(&id) => Some(lowering.require_known(id, "trip count")?),
            known => known,
        };
        let Some([trips]) = known.as_deref() else { return Ok((None, unknown)) };
        let most = bounds(trips, &lowering.graph.symbols).map_or(i64::MAX, |(_, high)| high);
        let limit = match trips.as_const() {
            // Exporters write a huge number for a loop that only its condition ends.
            Some(trips) if trips > unknown && has_condition => return Ok((None, unknown)),
            Some(trips) if trips > LOOP_TRIPS_MAX => {
                let (found, limit) = (format!("{trips} iterations"), LOOP_TRIPS_MAX.to_string());
                return Err(LowerError::TooLarge { what: "the loop".into(), found, limit });
            }
            _ if has_condition => most.min(unknown),
            _ => most.min(LOOP_TRIPS_MAX),
        };
        Ok((Some(trips.clone()), limit))
    }
}

/// Refuses a loop that also runs if its results are discarded. The values that would end it may be
/// invalid then, and the request would fail at the loop's limit. A loop with a small limit that
/// follows from sizes cannot exceed it.
fn check_speculation(lowering: &Lowering, has_sizes: bool, limit: i64) -> LowerResult<()> {
    if lowering.speculative && !(has_sizes && limit < LOOP_ROWS_MAX) {
        return unsupported(format!(
            "it is in a branch that is computed even if it is not selected, because a size is computed at run time in \
             one of the branches; a loop there needs a number of iterations that sizes limit to less than \
             {LOOP_ROWS_MAX}"
        ));
    }
    Ok(())
}

/// Cuts stacked rows to the iterations that ran.
fn cut(lowering: &mut Lowering, name: &str, count: ValueId, most: Expr, rows: &[ValueId]) -> LowerResult<Vec<ValueId>> {
    // The size is read back after this node, which runs exactly once.
    let read = lowering.pointwise(&format!("{name}.ran"), &[count], DType::I64, |p, args| {
        p.step(PointOp::Max, DType::I64, &[args[0], PointArg::Const(0.0)]);
    })?;
    let ran = lowering.run_time_size(&format!("{name}/iterations"), read, most)?;
    let cut = |(index, id): (usize, &ValueId)| {
        let (dtype, mut shape) = type_of(lowering, *id);
        shape[0] = ran.clone();
        let op = Op::Slice { starts: vec![Expr::Const(0); shape.len()], steps: vec![1; shape.len()] };
        lowering.emit_one(&format!("{name}.rows{index}"), op, &[*id], dtype, shape)
    };
    rows.iter().enumerate().map(cut).collect()
}

fn type_of(lowering: &Lowering, id: ValueId) -> Type {
    (lowering.dtype(id), lowering.shape(id).to_vec())
}

/// Adds a value that the body of a loop takes as an input.
fn parameter(lowering: &mut Lowering, name: &str, (dtype, shape): Type) -> ValueId {
    lowering.graph.add_value(Value { name: name.to_owned(), dtype, shape, constant: None })
}

fn truth(lowering: &mut Lowering, name: &str) -> ValueId {
    lowering.constant(&format!("{name}.true"), &Tensor::ints(DType::Bool, vec![], [1]))
}

/// Checks that a state has the same type and shape in all iterations.
fn check_state(lowering: &Lowering, index: usize, (dtype, shape): &Type, next: ValueId) -> LowerResult<()> {
    let (new_dtype, new_shape) = type_of(lowering, next);
    if new_dtype != *dtype {
        return invalid(format!("its loop-carried value {index} changes its type from {dtype:?} to {new_dtype:?}"));
    }
    if !same_shape(shape, &new_shape) {
        let (before, after) = (lowering.shape_text(shape), lowering.shape_text(&new_shape));
        return unsupported(format!(
            "its loop-carried value {index} changes its shape from {before} to {after}, and the number of iterations \
             is known only at run time; the shape has to stay the same"
        ));
    }
    Ok(())
}

/// Lowers a `Loop` whose iterations are decided at run time.
pub(super) fn looped<'m>(
    import: &mut Import<'m>,
    call: &Call<'m>,
    condition: Option<ValueId>,
    truth_of: impl FnOnce(&mut Import<'m>, ValueId) -> LowerResult<Option<ValueId>>,
) -> Items {
    let body = Subgraph::of_graph(call.graph("body")?)?;
    let states = call
        .items
        .iter()
        .skip(2)
        .map(|item| tensor_of(item, "a loop-carried value of a loop whose length is known only at run time"));
    let states = states.collect::<LowerResult<Vec<ValueId>>>()?;
    let repetition = Repetition { name: call.name.clone(), trips: call.optional(0), condition, states };
    let count = repetition.states.len();
    let (last, rows) = repetition.lower(import, |import, number, states| {
        // The body runs only while the condition is true.
        let go = truth(&mut import.lowering, &call.name);
        let items = [number, go].into_iter().chain(states.iter().copied()).map(Item::Tensor).collect();
        let results = import.lower_body(&body, &format!("{}/body", call.name), items, None)?;
        let tensors = results.iter().map(|item| tensor_of(item, "a result of a loop's body"));
        let mut tensors = tensors.collect::<LowerResult<Vec<ValueId>>>()?;
        let rows = tensors.split_off(1 + count);
        let states = tensors.split_off(1);
        Ok(Iteration { condition: truth_of(import, tensors[0])?, states, rows })
    })?;
    Ok(last.into_iter().chain(rows).map(Item::Tensor).collect())
}
