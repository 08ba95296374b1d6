//! Where values live: buffers, shared places of reshapes, constants by content.

use super::Weight;
use super::state::{Home, States};
use crate::error::CodegenError;
use atoll_frontend::tensor_graph::{Growth, Op, State, TensorGraph, ValueId};
use atoll_kgraph::{BUFFER_ALIGN, BufferId, BufferKind, BufferSpec, DType, Expr, NodeId, Session, SymbolSpec};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// The buffers of a schedule.
pub(super) struct Storage<'g> {
    graph: &'g TensorGraph,
    buffers: Vec<BufferSpec>,
    /// The value that a buffer has the shape of, where it was made for one.
    values: Vec<Option<ValueId>>,
    names: HashSet<String>,
    /// Nodes that write a buffer, by buffer.
    writers: Vec<Vec<NodeId>>,
    /// For every value the value whose elements it has: itself, or what was reshaped.
    roots: Vec<ValueId>,
    /// Where a root is, once it has a place.
    places: Vec<Option<Home>>,
    /// Places of the outputs in the model's order.
    outputs: Vec<Home>,
    /// Dense copies of roots that are not dense.
    copies: HashMap<ValueId, BufferId>,
    states: States,
    weights: Vec<Weight>,
    weights_bytes: u64,
    /// Offset of constant bytes in the weights.
    offsets: HashMap<Arc<[u8]>, u64>,
    /// Constants that were rearranged at compile time, by the constant, what was done and the
    /// resulting shape.
    derived: HashMap<(ValueId, &'static str, Vec<Expr>), BufferId>,
}

impl<'g> Storage<'g> {
    pub(super) fn new(graph: &'g TensorGraph) -> Storage<'g> {
        let mut storage = Storage {
            graph,
            buffers: Vec::new(),
            values: Vec::new(),
            names: HashSet::new(),
            writers: Vec::new(),
            roots: roots(graph),
            places: vec![None; graph.values.len()],
            outputs: Vec::new(),
            copies: HashMap::new(),
            states: States::new(graph),
            weights: Vec::new(),
            weights_bytes: 0,
            offsets: HashMap::new(),
            derived: HashMap::new(),
        };
        for (index, &input) in graph.inputs.iter().enumerate() {
            let home = match storage.state_of(|state| state.input == index) {
                Some(number) => storage.open_state(number),
                None => Home::at(storage.add_value(input, BufferKind::Input, None)),
            };
            storage.places[input.0 as usize] = Some(home);
        }
        for (index, &output) in graph.outputs.iter().enumerate() {
            let home = match storage.state_of(|state| state.output == index) {
                Some(number) => storage.states.written(number),
                None => Home::at(storage.add_value(output, BufferKind::Output, None)),
            };
            storage.outputs.push(home.clone());
            // The first output of a produced value is where it is produced; everything else is copied.
            let root = storage.roots[output.0 as usize].0 as usize;
            if storage.places[root].is_none() && graph.values[root].constant.is_none() {
                storage.places[root] = Some(home);
            }
        }
        storage
    }

    /// The place of a value's elements; a constant or a temporary buffer is made when it is first
    /// asked for.
    pub(super) fn place(&mut self, value: ValueId) -> Result<Home, CodegenError> {
        let root = self.roots[value.0 as usize];
        if let Some(home) = &self.places[root.0 as usize] {
            return Ok(home.clone());
        }
        let buffer = match self.graph.value(root).constant.clone() {
            Some(bytes) => {
                let value = self.graph.value(root);
                self.constant(&value.name, value.dtype, &value.shape, bytes)?
            }
            None => self.add_value(root, BufferKind::Temp, None),
        };
        let home = Home::at(buffer);
        self.places[root.0 as usize] = Some(home.clone());
        Ok(home)
    }

    /// The value whose elements a value has.
    pub(super) fn root(&self, value: ValueId) -> ValueId {
        self.roots[value.0 as usize]
    }

    /// The buffer for a dense copy of a root, and whether it is new.
    pub(super) fn copy_of(&mut self, root: ValueId) -> (BufferId, bool) {
        if let Some(&copy) = self.copies.get(&root) {
            return (copy, false);
        }
        let value = self.graph.value(root);
        let copy = self.temporary(&format!("{}/dense", value.name), value.dtype, &value.shape);
        self.copies.insert(root, copy);
        (copy, true)
    }

    fn state_of(&self, is_it: impl Fn(&State) -> bool) -> Option<usize> {
        self.graph.states.iter().position(is_it)
    }

    /// Makes the buffer of a state. Returns where a step reads it.
    fn open_state(&mut self, number: usize) -> Home {
        let spec = self.states.buffer_of(self.graph, number);
        let buffer = self.add(spec);
        self.states.open(self.graph, number, buffer)
    }

    /// The state into which a concatenation of a value writes what is new, by its growth.
    pub(super) fn grown(&self, output: ValueId) -> Option<&Growth> {
        let state = self.graph.states.iter().find(|state| self.graph.outputs[state.output] == output)?;
        state.growth.as_ref()
    }

    /// The symbols of the kernel graph, and what a session keeps.
    pub(super) fn session(&self) -> (Vec<SymbolSpec>, Session) {
        self.states.session(self.graph)
    }

    /// Content of a value that is constant, reshaped constants included.
    pub(super) fn content(&self, value: ValueId) -> Option<Arc<[u8]>> {
        self.graph.value(self.roots[value.0 as usize]).constant.clone()
    }

    /// A constant computed at compile time from the constant `of`; `how` names the computation and
    /// runs at most once per constant.
    pub(super) fn derived(
        &mut self,
        of: ValueId,
        how: &'static str,
        shape: &[Expr],
        make: impl FnOnce() -> Arc<[u8]>,
    ) -> Result<BufferId, CodegenError> {
        let root = self.roots[of.0 as usize];
        let key = (root, how, shape.to_vec());
        if let Some(&buffer) = self.derived.get(&key) {
            return Ok(buffer);
        }
        let value = self.graph.value(root);
        let buffer = self.constant(&format!("{}/{how}", value.name), value.dtype, shape, make())?;
        self.derived.insert(key, buffer);
        Ok(buffer)
    }

    /// A temporary buffer that is no value of the graph.
    pub(super) fn temporary(&mut self, name: &str, dtype: DType, shape: &[Expr]) -> BufferId {
        self.add(BufferSpec {
            name: name.to_owned(),
            kind: BufferKind::Temp,
            dtype,
            shape: shape.to_vec(),
            weights_offset: None,
        })
    }

    pub(super) fn output(&self, index: usize) -> Home {
        self.outputs[index].clone()
    }

    pub(super) fn writers(&self, buffer: BufferId) -> &[NodeId] {
        &self.writers[buffer.0 as usize]
    }

    pub(super) fn written_by(&mut self, buffer: BufferId, node: NodeId) {
        self.writers[buffer.0 as usize].push(node);
    }

    /// The value that each buffer was made for.
    pub(super) fn values(&self) -> &[Option<ValueId>] {
        &self.values
    }

    pub(super) fn finish(self) -> (Vec<BufferSpec>, Vec<Weight>, u64) {
        (self.buffers, self.weights, self.weights_bytes)
    }

    fn constant(
        &mut self,
        name: &str,
        dtype: DType,
        shape: &[Expr],
        bytes: Arc<[u8]>,
    ) -> Result<BufferId, CodegenError> {
        let expected = Expr::product(shape).as_const().map(|count| count as u64 * dtype.bytes());
        if expected != Some(bytes.len() as u64) {
            let reason = format!("the constant {name} has {} bytes, its shape asks for {expected:?}", bytes.len());
            return Err(CodegenError::inconsistent(reason));
        }
        let offset = match self.offsets.get(&bytes) {
            Some(&offset) => offset,
            None => {
                let offset = self.weights_bytes.next_multiple_of(BUFFER_ALIGN);
                self.weights_bytes = offset + bytes.len() as u64;
                self.offsets.insert(bytes.clone(), offset);
                self.weights.push(Weight { offset, bytes });
                offset
            }
        };
        let spec = BufferSpec {
            name: name.to_owned(),
            kind: BufferKind::Const,
            dtype,
            shape: shape.to_vec(),
            weights_offset: Some(offset),
        };
        Ok(self.add(spec))
    }

    fn add_value(&mut self, value: ValueId, kind: BufferKind, weights_offset: Option<u64>) -> BufferId {
        let of = value;
        let value = self.graph.value(value);
        let buffer = self.add(BufferSpec {
            name: value.name.clone(),
            kind,
            dtype: value.dtype,
            shape: value.shape.clone(),
            weights_offset,
        });
        self.values[buffer.0 as usize] = Some(of);
        buffer
    }

    fn add(&mut self, mut spec: BufferSpec) -> BufferId {
        // Inputs and outputs come first and so keep the model's names.
        let plain = spec.name.clone();
        let mut copies = 1;
        while !self.names.insert(spec.name.clone()) {
            copies += 1;
            spec.name = format!("{plain}#{copies}");
        }
        self.buffers.push(spec);
        self.writers.push(Vec::new());
        self.values.push(None);
        BufferId(self.buffers.len() as u32 - 1)
    }
}

/// Follows reshapes back to what they reshape.
fn roots(graph: &TensorGraph) -> Vec<ValueId> {
    let mut roots: Vec<ValueId> = (0..graph.values.len() as u32).map(ValueId).collect();
    for node in &graph.nodes {
        if let (Op::Reshape, [from, ..], [to]) = (&node.op, &node.inputs[..], &node.outputs[..]) {
            roots[to.0 as usize] = roots[from.0 as usize];
        }
    }
    roots
}
