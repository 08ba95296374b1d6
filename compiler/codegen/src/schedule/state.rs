//! States of a model in buffers of a session.
//!
//! A state that a step replaces by as much has a buffer of two halves: a step reads one and writes
//! the other, and a symbol of the session says which. One that grows has a buffer of its largest
//! size, in which the rows of a step stand behind those of the steps before it.

use atoll_frontend::size::canonical;
use atoll_frontend::tensor_graph::{State, TensorGraph, Value};
use atoll_kgraph::{
    BUFFER_ALIGN, BufferId, BufferKind, BufferSpec, Expr, InputElement, Session, SessionSymbol, StateSpec, SymbolId,
    SymbolSpec,
};

/// Name of the symbol that says which half of a state a step reads; no model has such a name.
const HALF: &str = "state half";

/// Where the elements of a value are.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Home {
    pub(super) buffer: BufferId,
    /// In bytes.
    pub(super) offset: Expr,
    /// As in [`super::Tensor`].
    pub(super) within: Option<Vec<Expr>>,
}

impl Home {
    /// A whole buffer.
    pub(super) fn at(buffer: BufferId) -> Home {
        Home { buffer, offset: Expr::Const(0), within: None }
    }
}

/// The states of a graph, by their place in it.
pub(super) struct States {
    /// The symbol that says which half is read.
    half: SymbolId,
    buffers: Vec<Option<BufferId>>,
    written: Vec<Option<Home>>,
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

    /// Notes the buffer of a state. Returns where a step reads it.
    pub(super) fn open(&mut self, graph: &TensorGraph, number: usize, buffer: BufferId) -> Home {
        let State { input, output, growth } = graph.states[number];
        self.buffers[number] = Some(buffer);
        if let Some(growth) = growth {
            let of = |value| Some(whole(&graph.value(value).shape, growth.axis, growth.capacity));
            let home = |within| Home { buffer, offset: Expr::Const(0), within };
            self.written[number] = Some(home(of(graph.outputs[output])));
            return home(of(graph.inputs[input]));
        }
        let half = Expr::from(self.half);
        let home = |offset| Home { buffer, offset, within: None };
        let bytes = half_bytes(graph, number);
        self.written[number] = Some(home((Expr::Const(1) - half.clone()) * bytes.clone()));
        home(half * bytes)
    }

    /// Where a step writes a state that is open: inputs come before outputs.
    pub(super) fn written(&self, number: usize) -> Home {
        self.written[number].clone().unwrap_or_else(|| unreachable!("every state has an input"))
    }

    /// The symbols of the kernel graph, and what a session keeps.
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

/// A shape with room on an axis.
fn whole(shape: &[Expr], axis: usize, capacity: i64) -> Vec<Expr> {
    let mut whole = shape.to_vec();
    whole[axis] = Expr::Const(capacity);
    whole
}

/// Bytes from one half to the other.
fn half_bytes(graph: &TensorGraph, number: usize) -> Expr {
    let Value { dtype, shape, .. } = graph.value(graph.inputs[graph.states[number].input]);
    canonical(&(Expr::product(shape) * dtype.bytes() as i64).align_up(BUFFER_ALIGN as i64))
}

/// An element of an input, among the inputs that are no states.
pub(super) fn without_states(graph: &TensorGraph, element: InputElement) -> InputElement {
    let before = graph.states.iter().filter(|state| state.input < element.input as usize).count();
    InputElement { input: element.input - before as u32, ..element }
}
