//! Buffers and locations of values; reshapes share a location, constants are shared by content.

use super::Weight;
use super::state::{Location, States};
use crate::error::CodegenError;
use atoll_frontend::tensor_graph::{Growth, Op, State, TensorGraph, ValueId};
use atoll_kgraph::{BUFFER_ALIGN, BufferId, BufferKind, BufferSpec, DType, Expr, NodeId, Session, SymbolSpec};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// The buffers of a schedule.
pub(super) struct Storage<'g> {
    graph: &'g TensorGraph,
    buffers: Vec<BufferSpec>,
    /// The value for which a buffer was made; `None` for other buffers.
    values: Vec<Option<ValueId>>,
    names: HashSet<String>,
    /// The nodes that write each buffer.
    writers: Vec<Vec<NodeId>>,
    /// For every value, the value with the same elements that is not a reshape of another.
    roots: Vec<ValueId>,
    /// The location of each root, once it has one.
    places: Vec<Option<Location>>,
    /// Locations of the outputs, in the model's order.
    outputs: Vec<Location>,
    /// Dense copies of roots that are not dense.
    copies: HashMap<ValueId, BufferId>,
    states: States,
    weights: Vec<Weight>,
    weights_bytes: u64,
    /// Offset of each constant in the weights, by content.
    offsets: HashMap<Arc<[u8]>, u64>,
    /// Constants that were rearranged at compile time: by the original, the name of the operation,
    /// and the resulting shape.
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
            let location = match storage.state_of(|state| state.input == index) {
                Some(number) => storage.open_state(number),
                None => Location::at(storage.add_value(input, BufferKind::Input, None)),
            };
            storage.places[input.0 as usize] = Some(location);
        }
        for (index, &output) in graph.outputs.iter().enumerate() {
            let location = match storage.state_of(|state| state.output == index) {
                Some(number) => storage.states.written(number),
                None => Location::at(storage.add_value(output, BufferKind::Output, None)),
            };
            storage.outputs.push(location.clone());
            // The first output that refers to a produced value is written by its producer; every
            // other output is copied.
            let root = storage.roots[output.0 as usize].0 as usize;
            if storage.places[root].is_none() && graph.values[root].constant.is_none() {
                storage.places[root] = Some(location);
            }
        }
        storage
    }

    /// The location of a value's elements. A constant or a temporary buffer is made when it is
    /// first used.
    pub(super) fn place(&mut self, value: ValueId) -> Result<Location, CodegenError> {
        let root = self.roots[value.0 as usize];
        if let Some(location) = &self.places[root.0 as usize] {
            return Ok(location.clone());
        }
        let buffer = match self.graph.value(root).constant.clone() {
            Some(bytes) => {
                let value = self.graph.value(root);
                self.constant(&value.name, value.dtype, &value.shape, bytes)?
            }
            None => self.add_value(root, BufferKind::Temp, None),
        };
        let location = Location::at(buffer);
        self.places[root.0 as usize] = Some(location.clone());
        Ok(location)
    }

    /// The root of a value: the value with the same elements that is not a reshape.
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

    /// The dense copies of values that are not dense.
    pub(super) fn copies(&mut self) -> &mut HashMap<ValueId, BufferId> {
        &mut self.copies
    }

    /// The kind of a buffer.
    pub(super) fn kind(&self, buffer: BufferId) -> BufferKind {
        self.buffers[buffer.0 as usize].kind
    }

    fn state_of(&self, is_it: impl Fn(&State) -> bool) -> Option<usize> {
        self.graph.states.iter().position(is_it)
    }

    /// Makes the buffer of a state. Returns the location that a step reads.
    fn open_state(&mut self, number: usize) -> Location {
        let spec = self.states.buffer_of(self.graph, number);
        let buffer = self.add(spec);
        self.states.open(self.graph, number, buffer)
    }

    /// The growth of the state to which a concatenation with this result appends, if there is one.
    pub(super) fn grown(&self, output: ValueId) -> Option<&Growth> {
        let state = self.graph.states.iter().find(|state| self.graph.outputs[state.output] == output)?;
        state.growth.as_ref()
    }

    /// The symbols of the kernel graph, and the description of what a session keeps.
    pub(super) fn session(&self) -> (Vec<SymbolSpec>, Session) {
        self.states.session(self.graph)
    }

    /// The content of a constant, or of a reshaped constant.
    pub(super) fn content(&self, value: ValueId) -> Option<Arc<[u8]>> {
        self.graph.value(self.roots[value.0 as usize]).constant.clone()
    }

    /// A constant computed at compile time from the constant `of`. `how` names the computation,
    /// which runs at most once per constant and shape.
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

    /// A temporary buffer that is not a value of the graph.
    pub(super) fn temporary(&mut self, name: &str, dtype: DType, shape: &[Expr]) -> BufferId {
        self.add(BufferSpec {
            name: name.to_owned(),
            kind: BufferKind::Temp,
            dtype,
            shape: shape.to_vec(),
            weights_offset: None,
        })
    }

    pub(super) fn output(&self, index: usize) -> Location {
        self.outputs[index].clone()
    }

    pub(super) fn writers(&self, buffer: BufferId) -> &[NodeId] {
        &self.writers[buffer.0 as usize]
    }

    pub(super) fn written_by(&mut self, buffer: BufferId, node: NodeId) {
        self.writers[buffer.0 as usize].push(node);
    }

    /// The value for which each buffer was made.
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
            let reason = format!("the constant {name} has {} bytes; its shape needs {expected:?}", bytes.len());
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
        // Inputs and outputs are added first, so they keep the model's names.
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

/// Follows reshapes back to the value that they reshape.
fn roots(graph: &TensorGraph) -> Vec<ValueId> {
    let mut roots: Vec<ValueId> = (0..graph.values.len() as u32).map(ValueId).collect();
    for node in &graph.nodes {
        if let (Op::Reshape, [from, ..], [to]) = (&node.op, &node.inputs[..], &node.outputs[..]) {
            roots[to.0 as usize] = roots[from.0 as usize];
        }
    }
    roots
}
