//! Buffers of a model's states, which a session keeps.
//!
//! A state that each step replaces has a buffer with two halves: a step reads one and writes the
//! other, and a symbol of the session selects the half to read. A growing state has a buffer for
//! its largest size; each step writes its rows after those of the previous steps.

use atoll_frontend::size::canonical;
use atoll_frontend::tensor_graph::{State, TensorGraph, Value};
use atoll_kgraph::{
    BUFFER_ALIGN, BufferId, BufferKind, BufferSpec, Expr, InputElement, Session, SessionSymbol, StateSpec, SymbolId,
    SymbolSpec,
};

/// Name of the symbol that selects the half of a state that a step reads. No model has a symbol of
/// this name.
const HALF: &str = "state half";

/// The location of a value's elements.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Location {
    pub(super) buffer: BufferId,
    /// In bytes.
    pub(super) offset: Expr,
    /// As in [`super::Tensor`].
    pub(super) within: Option<Vec<Expr>>,
}

impl Location {
    /// The beginning of a buffer.
    pub(super) fn at(buffer: BufferId) -> Location {
        Location { buffer, offset: Expr::Const(0), within: None }
    }
}

/// The states of a graph, by their index in it.
pub(super) struct States {
    /// The symbol that selects the half to read.
    half: SymbolId,
    buffers: Vec<Option<BufferId>>,
    written: Vec<Option<Location>>,
}

impl States {
    pub(super) fn new(graph: &TensorGraph) -> States {
        let count = graph.states.len();
        States { half: SymbolId(graph.symbols.len() as u32), buffers: vec![None; count], written: vec![None; count] }
    }

    /// The buffer that a state needs.
    pub(super) fn buffer_of(&self, graph: &TensorGraph, number: usize) -> BufferSpec {
        let State { input, growth, .. } = graph.states[number];
        let Value { name, dtype, shape, .. } = graph.value(graph.inputs[input]);
        let shape = match growth {
            Some(growth) => whole(shape, growth.axis, growth.capacity),
            None => vec![Expr::Const(2), half_bytes(graph, number).floor_div(dtype.bytes() as i64)],
        };
        BufferSpec { name: name.clone(), kind: BufferKind::State, dtype: *dtype, shape, weights_offset: None }
    }

    /// Records the buffer of a state. Returns the location that a step reads.
    pub(super) fn open(&mut self, graph: &TensorGraph, number: usize, buffer: BufferId) -> Location {
        let State { input, output, growth } = graph.states[number];
        self.buffers[number] = Some(buffer);
        if let Some(growth) = growth {
            let of = |value| Some(whole(&graph.value(value).shape, growth.axis, growth.capacity));
            let location = |within| Location { buffer, offset: Expr::Const(0), within };
            self.written[number] = Some(location(of(graph.outputs[output])));
            return location(of(graph.inputs[input]));
        }
        let half = Expr::from(self.half);
        let location = |offset| Location { buffer, offset, within: None };
        let bytes = half_bytes(graph, number);
        self.written[number] = Some(location((Expr::Const(1) - half.clone()) * bytes.clone()));
        location(half * bytes)
    }

    /// The location that a step writes. The state is open by then, because inputs come before
    /// outputs.
    pub(super) fn written(&self, number: usize) -> Location {
        self.written[number].clone().unwrap_or_else(|| unreachable!("inputs are opened before outputs are written"))
    }

    /// The symbols of the kernel graph, and the description of what a session keeps.
    pub(super) fn session(&self, graph: &TensorGraph) -> (Vec<SymbolSpec>, Session) {
        let (mut symbols, mut session) = (graph.symbols.clone(), Session::default());
        for (State { input, output, growth }, buffer) in graph.states.iter().zip(&self.buffers) {
            let (before, after) = (graph.value(graph.inputs[*input]), graph.value(graph.outputs[*output]));
            let own = match growth {
                Some(growth) => SessionSymbol { symbol: growth.past, first: 0, next: after.shape[growth.axis].clone() },
                None => SessionSymbol { symbol: self.half, first: 0, next: Expr::Const(1) - Expr::from(self.half) },
            };
            if own.symbol == self.half && symbols.len() == graph.symbols.len() {
                symbols.push(SymbolSpec::new(HALF, 0, 1));
            }
            if !session.has(own.symbol) {
                session.symbols.push(own);
            }
            if let Some(buffer) = *buffer {
                session.states.push(StateSpec {
                    buffer,
                    input: before.name.clone(),
                    output: after.name.clone(),
                    shape: before.shape.clone(),
                });
            }
        }
        (symbols, session)
    }
}

/// The shape, with the extent of an axis replaced by its capacity.
fn whole(shape: &[Expr], axis: usize, capacity: i64) -> Vec<Expr> {
    let mut whole = shape.to_vec();
    whole[axis] = Expr::Const(capacity);
    whole
}

/// Distance of the two halves in bytes.
fn half_bytes(graph: &TensorGraph, number: usize) -> Expr {
    let Value { dtype, shape, .. } = graph.value(graph.inputs[graph.states[number].input]);
    canonical(&(Expr::product(shape) * dtype.bytes() as i64).align_up(BUFFER_ALIGN as i64))
}

/// Renumbers an element of an input: states are not inputs of the kernel graph.
pub(super) fn without_states(graph: &TensorGraph, element: InputElement) -> InputElement {
    let before = graph.states.iter().filter(|state| state.input < element.input as usize).count();
    InputElement { input: element.input - before as u32, ..element }
}
