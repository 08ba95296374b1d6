//! Flattens control flow: the bodies of branches and loops become parts of one graph.
//!
//! Scheduling works on one list of nodes and one table of values. The nodes and values of bodies
//! are appended to those of the model. Copies move values across borders: to the results of a
//! branch, and to the states that the next iteration of a loop reads. A result of a branch
//! therefore has two producers, of which one runs. A state of a loop has one producer before the
//! loop and one in it.

use atoll_frontend::control::LoopSpec;
use atoll_frontend::program::ProgramBuilder;
use atoll_frontend::tensor_graph::{Op, PointArg, PointOp, TensorGraph, TensorNode, Value, ValueId};
use atoll_kgraph::{DType, Expr};
use std::borrow::Cow;

/// A graph without bodies, and the order of its nodes.
pub(super) struct Flat<'g> {
    pub(super) graph: Cow<'g, TensorGraph>,
    pub(super) items: Vec<Item>,
}

/// An item of a flat graph.
pub(super) enum Item {
    /// A node of the graph, by index.
    Node(usize),
    /// Copies a value to the place of another value.
    Copy { name: String, from: ValueId, to: ValueId },
    /// Copies a value to the row of `to` whose index is the value of `number`.
    Row { name: String, row: ValueId, number: ValueId, to: ValueId },
    /// Two lists of items, of which one runs.
    If { name: String, condition: ValueId, then: Vec<Item>, otherwise: Vec<Item> },
    /// A list of items that runs repeatedly.
    Loop {
        name: String,
        trips: Option<Expr>,
        count: Option<ValueId>,
        condition: Option<ValueId>,
        trips_max: u64,
        body: Vec<Item>,
    },
}

/// Flattens a graph. A graph without control flow is borrowed.
pub(super) fn flatten(graph: &TensorGraph) -> Flat<'_> {
    if !graph.nodes.iter().any(|node| matches!(node.op, Op::If { .. } | Op::Loop { .. })) {
        return Flat { graph: Cow::Borrowed(graph), items: (0..graph.nodes.len()).map(Item::Node).collect() };
    }
    let mut flattener = Flattener { flat: TensorGraph { nodes: Vec::new(), ..graph.clone() } };
    let own: Vec<ValueId> = (0..graph.values.len() as u32).map(ValueId).collect();
    let items = flattener.nodes(graph, &own);
    Flat { graph: Cow::Owned(flattener.flat), items }
}

struct Flattener {
    flat: TensorGraph,
}

impl Flattener {
    /// The items for the nodes of a graph. `own` maps each of its values to its flat value.
    fn nodes(&mut self, graph: &TensorGraph, own: &[ValueId]) -> Vec<Item> {
        let uses = graph.use_counts();
        let mut items = Vec::with_capacity(graph.nodes.len());
        for node in &graph.nodes {
            let of = |ids: &[ValueId]| ids.iter().map(|id| own[id.0 as usize]).collect::<Vec<_>>();
            let (inputs, outputs) = (of(&node.inputs), of(&node.outputs));
            match &node.op {
                Op::If { then, otherwise } => {
                    let (ours, others) = inputs[1..].split_at(then.inputs.len());
                    let name = node.name.clone();
                    let then = self.branch(&format!("{name}/then"), then, ours, &outputs);
                    let otherwise = self.branch(&format!("{name}/else"), otherwise, others, &outputs);
                    items.push(Item::If { name, condition: inputs[0], then, otherwise });
                }
                Op::Loop { body, spec } => {
                    let is_counted = uses[node.outputs[0].0 as usize] > 0;
                    self.repetition(&node.name, body, spec, (&inputs, &outputs), is_counted, &mut items);
                }
                op => items.push(self.node(node.name.clone(), op.clone(), inputs, outputs)),
            }
        }
        items
    }

    fn node(&mut self, name: String, op: Op, inputs: Vec<ValueId>, outputs: Vec<ValueId>) -> Item {
        self.flat.nodes.push(TensorNode { name, op, inputs, outputs });
        Item::Node(self.flat.nodes.len() - 1)
    }

    /// The items of a branch. They write its results to `results`.
    fn branch(&mut self, name: &str, body: &TensorGraph, inputs: &[ValueId], results: &[ValueId]) -> Vec<Item> {
        // A node of the branch writes the result directly, unless the result is a view of another
        // value.
        let is_written =
            |id: ValueId| body.nodes.iter().any(|node| node.outputs.contains(&id) && !matches!(node.op, Op::Reshape));
        let pairs = body.outputs.iter().copied().zip(results.iter().copied());
        let direct: Vec<(ValueId, ValueId)> = pairs.filter(|(id, _)| is_written(*id)).collect();
        let own = self.values(body, inputs, &direct);
        let mut items = self.nodes(body, &own);
        for (index, (id, to)) in body.outputs.iter().zip(results).enumerate() {
            let from = own[id.0 as usize];
            if from != *to {
                items.push(Item::Copy { name: format!("{name}{index}"), from, to: *to });
            }
        }
        items
    }

    /// Maps each value of a body to its flat value. Inputs and values in `direct` map to given
    /// values, all others to new ones.
    fn values(&mut self, body: &TensorGraph, inputs: &[ValueId], direct: &[(ValueId, ValueId)]) -> Vec<ValueId> {
        let given = body.inputs.iter().copied().zip(inputs.iter().copied());
        let known: std::collections::HashMap<ValueId, ValueId> = given.chain(direct.iter().copied()).collect();
        let of = |(index, value): (usize, &Value)| {
            known.get(&ValueId(index as u32)).copied().unwrap_or_else(|| self.flat.add_value(value.clone()))
        };
        body.values.iter().enumerate().map(of).collect()
    }

    /// Appends the items of a loop. `is_counted` says whether a node reads the number of iterations
    /// that ran.
    fn repetition(
        &mut self,
        name: &str,
        body: &TensorGraph,
        spec: &LoopSpec,
        (inputs, outputs): (&[ValueId], &[ValueId]),
        is_counted: bool,
        items: &mut Vec<Item>,
    ) {
        let (number, states) = (outputs[0], &outputs[1..=spec.states]);
        let rows = &outputs[1 + spec.states..];
        let (fixed, operands) = inputs.split_at(spec.states_at());
        let (first, captured) = operands.split_at(spec.states);
        let reads_number = body.nodes.iter().any(|node| node.inputs.contains(&body.inputs[0]));
        let is_numbered = is_counted || reads_number || !rows.is_empty();
        if is_numbered {
            let zero = step(PointOp::Identity, &[PointArg::Const(0.0)]);
            items.push(self.node(format!("{name}/number"), zero, vec![], vec![number]));
        }
        for (index, (from, to)) in first.iter().zip(states).enumerate() {
            items.push(Item::Copy { name: format!("{name}/begin{index}"), from: *from, to: *to });
        }
        let condition = spec.has_condition.then(|| self.scalar(&format!("{name}/condition"), DType::Bool));
        if let (Some(to), Some(from)) = (condition, fixed.last()) {
            items.push(Item::Copy { name: format!("{name}/first"), from: *from, to });
        }
        let given: Vec<ValueId> =
            std::iter::once(number).chain(states.iter().copied()).chain(captured.to_vec()).collect();
        let own = self.values(body, &given, &[]);
        let mut inner = self.nodes(body, &own);
        for (index, (id, to)) in body.outputs[spec.rows_at()..].iter().zip(rows).enumerate() {
            let row = own[id.0 as usize];
            inner.push(Item::Row { name: format!("{name}/row{index}"), row, number, to: *to });
        }
        let targets: Vec<ValueId> = condition.into_iter().chain(states.iter().copied()).collect();
        self.carry(name, body, (&own, &targets), &mut inner);
        if is_numbered {
            let next = self.scalar(&format!("{name}/next"), DType::I64);
            let add = step(PointOp::Add, &[PointArg::Input(0), PointArg::Const(1.0)]);
            inner.push(self.node(format!("{name}/next"), add, vec![number], vec![next]));
            inner.push(Item::Copy { name: format!("{name}/number_next"), from: next, to: number });
        }
        items.push(Item::Loop {
            name: name.to_owned(),
            trips: spec.trips.clone(),
            count: spec.has_count.then(|| fixed[0]),
            condition,
            trips_max: spec.trips_max,
            body: inner,
        });
    }

    /// Copies the first outputs of a body to the values that the next iteration reads. An output
    /// that is a view of an input is first copied to another place, before the input changes.
    fn carry(
        &mut self,
        name: &str,
        body: &TensorGraph,
        (own, targets): (&[ValueId], &[ValueId]),
        items: &mut Vec<Item>,
    ) {
        let mut copies = Vec::with_capacity(targets.len());
        for (index, (id, to)) in body.outputs.iter().zip(targets).enumerate() {
            let mut from = own[id.0 as usize];
            if body.inputs.contains(&viewed(body, *id)) {
                let aside = self.flat.add_value(Value { constant: None, ..body.value(*id).clone() });
                items.push(Item::Copy { name: format!("{name}/aside{index}"), from, to: aside });
                from = aside;
            }
            copies.push(Item::Copy { name: format!("{name}/carry{index}"), from, to: *to });
        }
        items.extend(copies);
    }

    fn scalar(&mut self, name: &str, dtype: DType) -> ValueId {
        self.flat.add_value(Value { name: name.to_owned(), dtype, shape: vec![], constant: None })
    }
}

/// A scalar program with one operation on I64.
fn step(op: PointOp, args: &[PointArg]) -> Op {
    let mut program = ProgramBuilder::default();
    program.step(op, DType::I64, args);
    Op::Pointwise(program.finish())
}

/// The value that a value of a body is a view of, through all reshapes.
fn viewed(body: &TensorGraph, mut id: ValueId) -> ValueId {
    let source = |id: ValueId| {
        let node = body.nodes.iter().find(|node| node.outputs.contains(&id) && matches!(node.op, Op::Reshape))?;
        node.inputs.first().copied()
    };
    while let Some(from) = source(id) {
        id = from;
    }
    id
}
