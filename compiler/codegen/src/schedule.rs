//! Tensor graph → kernel graph: which buffers there are, which nodes, what waits for what.
//!
//! A value's elements live in a [`Place`]. A reshape gives its result the place of its operand; a
//! client's output that cannot be written where it is produced (it is an input, a constant, or an
//! output already) gets a copy node. Constants are stored once by content.

mod checks;
mod lower;
mod state;
mod storage;

use crate::error::CodegenError;
use crate::strides;
use atoll_frontend::batch::{self, Batch};
use atoll_frontend::tensor_graph::{Cell, Direction, Op, PointProgram, RunTimeSize, TensorGraph, Value, ValueId};
use atoll_kgraph::{
    BatchAxis, BufferId, Check, DType, Expr, FORMAT_VERSION, KernelGraph, Node, NodeId, NodeKind, ReadBack, Scalar,
};
use checks::OwnCheck;
use state::Home;
use std::sync::Arc;
use storage::Storage;

pub(crate) use checks::{DIVISION, FIRST_OWN};

/// A scheduled model: the target-independent half of a bundle, and what each node computes.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// The kernel graph, its memory plan still empty.
    pub graph: KernelGraph,
    /// Content of the constants.
    pub weights: Vec<Weight>,
    /// Size of the whole weights tensor in bytes.
    pub weights_bytes: u64,
    /// What each node of the graph computes, by node index.
    pub work: Vec<Work>,
}

/// Bytes of the weights tensor.
#[derive(Clone, Debug)]
pub struct Weight {
    /// Where they stand, a multiple of [`atoll_kgraph::BUFFER_ALIGN`].
    pub offset: u64,
    /// The bytes.
    pub bytes: Arc<[u8]>,
}

/// What one node computes.
#[derive(Clone, Debug)]
pub struct Work {
    /// The operator.
    pub kind: WorkKind,
    /// Its operands in the operator's order.
    pub inputs: Vec<Tensor>,
    /// Its results.
    pub outputs: Vec<Tensor>,
    /// What its kernel checks: the kernel's own number of the check, and its index in the graph.
    pub checks: Vec<(u32, u32)>,
}

/// The operators of a schedule: those of the tensor graph and the few that scheduling makes of
/// them.
#[derive(Clone, Debug, PartialEq)]
pub enum WorkKind {
    /// A copy node; no kernel.
    Copy,
    /// An operator of the tensor graph.
    Op(Op),
    /// Some operands of a concatenation, written at `first` on the axis.
    ConcatPart {
        /// The axis.
        axis: usize,
        /// Index on the axis of the first element.
        first: Expr,
    },
    /// The recurrence of a layer. Inputs `gates [T, B, D * G H]` (input products), `r [D, H, G H]`
    /// or packed `[D, H / 32, H, G, 32]`, `bias [D, 2 G H]`, `h0`, and `c0` where the cell keeps
    /// one; outputs `y`, `h`, and `c`.
    Recurrence(Recurrence),
}

/// What a recurrence computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recurrence {
    /// A step.
    pub cell: Cell,
    /// H.
    pub hidden: usize,
    /// Which way it runs.
    pub direction: Direction,
}

/// An operand of a node: elements in a buffer in row-major order, dense unless it says otherwise.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// The buffer.
    pub buffer: BufferId,
    /// Where in the buffer it starts, in bytes.
    pub offset: Expr,
    /// Element type.
    pub dtype: DType,
    /// Dimensions, outermost first.
    pub shape: Vec<Expr>,
    /// Dimensions of the dense array of which it is the front part, where it is not dense itself: a
    /// state that has room to grow.
    pub within: Option<Vec<Expr>>,
}

/// Schedules a tensor graph: buffers, weights, nodes with their dependencies. The memory plan is
/// left empty.
pub fn schedule(graph: &TensorGraph) -> Result<Schedule, CodegenError> {
    let mut scheduler =
        Scheduler { graph, storage: Storage::new(graph), nodes: Vec::new(), work: Vec::new(), checks: Vec::new() };
    for node in &graph.nodes {
        scheduler.node(node).map_err(|e| e.at(&node.name))?;
    }
    scheduler.copy_outputs()?;
    scheduler.finish()
}

/// The state of scheduling.
struct Scheduler<'g> {
    graph: &'g TensorGraph,
    storage: Storage<'g>,
    nodes: Vec<Node>,
    work: Vec<Work>,
    checks: Vec<Check>,
}

impl Scheduler<'_> {
    /// The operand a value is, dense.
    fn tensor(&mut self, value: ValueId) -> Result<Tensor, CodegenError> {
        match self.view(value)? {
            dense @ Tensor { within: None, .. } => Ok(dense),
            Tensor { .. } => self.dense(value),
        }
    }

    /// The operand a value is, for kernels that read with any strides.
    fn view(&mut self, value: ValueId) -> Result<Tensor, CodegenError> {
        let Home { buffer, offset, within } = self.storage.place(value)?;
        let root = self.storage.root(value);
        let Value { dtype, shape, .. } = self.graph.value(value);
        let tensor = Tensor { buffer, offset, dtype: *dtype, shape: shape.clone(), within: None };
        let Some(within) = within else { return Ok(tensor) };
        match strides::reshaped(&self.graph.value(root).shape, &within, shape) {
            Some(within) => Ok(Tensor { within: Some(within), ..tensor }),
            None => self.dense(value),
        }
    }

    /// A dense copy of a value that is not dense.
    fn dense(&mut self, value: ValueId) -> Result<Tensor, CodegenError> {
        let root = self.storage.root(value);
        let Home { buffer, offset, within } = self.storage.place(root)?;
        let (of, shape) = (self.graph.value(root), self.graph.value(value).shape.clone());
        let from = Tensor { buffer, offset, dtype: of.dtype, shape: of.shape.clone(), within };
        let (copy, is_new) = self.storage.copy_of(root);
        let whole = Tensor { buffer: copy, offset: Expr::Const(0), within: None, ..from.clone() };
        if is_new {
            let name = format!("{}/dense", of.name);
            self.push_kernel(
                &name,
                WorkKind::Op(Op::Pointwise(PointProgram::default())),
                vec![from],
                vec![whole.clone()],
            );
        }
        Ok(Tensor { shape, ..whole })
    }

    /// Adds a node that waits for the writers of what it reads.
    fn push(&mut self, name: String, kind: NodeKind, work: Work) {
        let buffers = |tensors: &[Tensor]| {
            let mut ids: Vec<BufferId> = tensors.iter().map(|t| t.buffer).collect();
            ids.sort_unstable();
            ids.dedup();
            ids
        };
        let (reads, writes) = (buffers(&work.inputs), buffers(&work.outputs));
        let mut after: Vec<NodeId> = reads.iter().flat_map(|&id| self.storage.writers(id)).copied().collect();
        after.sort_unstable();
        after.dedup();
        let id = NodeId(self.nodes.len() as u32);
        for &buffer in &writes {
            self.storage.written_by(buffer, id);
        }
        self.nodes.push(Node { name, kind, reads, writes, after });
        self.work.push(work);
    }

    fn push_kernel(&mut self, name: &str, kind: WorkKind, inputs: Vec<Tensor>, outputs: Vec<Tensor>) {
        let node = NodeId(self.nodes.len() as u32);
        let mut checks = Vec::new();
        for OwnCheck { number, text, values } in checks::of(&kind, &inputs) {
            checks.push((number, self.checks.len() as u32));
            self.checks.push(Check { node, text, values });
        }
        self.push(name.to_owned(), NodeKind::Kernel, Work { kind, inputs, outputs, checks });
    }

    fn push_copy(&mut self, name: &str, from: Tensor, to: Tensor) {
        let bytes = Expr::product(&to.shape) * to.dtype.bytes() as i64;
        let (from_offset, to_offset) = (from.offset.clone(), to.offset.clone());
        let kind = NodeKind::Copy { from: from.buffer, from_offset, to: to.buffer, to_offset, bytes };
        self.push(
            name.to_owned(),
            kind,
            Work { kind: WorkKind::Copy, inputs: vec![from], outputs: vec![to], checks: vec![] },
        );
    }

    /// Copies to every output of the client that is not written by its producer.
    fn copy_outputs(&mut self) -> Result<(), CodegenError> {
        for (index, &value) in self.graph.outputs.iter().enumerate() {
            let Home { buffer, offset, within } = self.storage.output(index);
            let home = self.storage.place(value)?;
            if (&home.buffer, &home.offset) != (&buffer, &offset) {
                if within.is_some() {
                    let reason =
                        "what the state becomes is the state of another output too; only a replaced state may be";
                    return Err(CodegenError::unsupported(reason).at(&self.graph.value(value).name));
                }
                let from = self.tensor(value)?;
                let to = Tensor { buffer, offset, ..from.clone() };
                self.push_copy(&format!("{}/output{index}", self.graph.value(value).name), from, to);
            }
        }
        Ok(())
    }

    /// Where the rows of a batch lie in the buffers, if the frontend proves rows independent.
    fn batch(&self) -> Option<BatchAxis> {
        if !self.graph.states.is_empty() {
            // Rows of a session are not those of another.
            return None;
        }
        let Batch { symbol, axes } = batch::analyse(self.graph).ok()?;
        let axis = |value: &Option<ValueId>| {
            value.and_then(|value| axes[value.0 as usize]).and_then(|axis| u32::try_from(axis).ok())
        };
        Some(BatchAxis { symbol, axes: self.storage.values().iter().map(axis).collect(), proof: batch::PROOF.into() })
    }

    /// Sizes that nodes compute: each is read back behind the node that writes it.
    fn read_backs(&mut self) -> Result<Vec<ReadBack>, CodegenError> {
        let mut read_backs = Vec::with_capacity(self.graph.run_time_sizes.len());
        for RunTimeSize { symbol, value, most } in &self.graph.run_time_sizes {
            let Tensor { buffer, dtype, .. } = self.tensor(*value)?;
            let name = &self.graph.value(*value).name;
            let writer = self.storage.writers(buffer).last();
            let after = *writer.ok_or_else(|| CodegenError::inconsistent("a size that no node computes").at(name))?;
            read_backs.push(ReadBack {
                symbol: *symbol,
                after,
                value: Scalar { buffer, offset: 0, dtype },
                most: Some(most.clone()),
            });
        }
        read_backs.sort_by_key(|read_back| read_back.after);
        Ok(read_backs)
    }

    fn finish(mut self) -> Result<Schedule, CodegenError> {
        let batch = self.batch();
        let read_backs = self.read_backs()?;
        let (symbols, session) = self.storage.session();
        let (buffers, weights, weights_bytes) = self.storage.finish();
        let graph = KernelGraph {
            format: FORMAT_VERSION,
            name: self.graph.name.clone(),
            symbols,
            buffers,
            nodes: self.nodes,
            batch,
            elements: self.graph.elements.iter().map(|element| state::without_states(self.graph, *element)).collect(),
            conditions: self.graph.conditions.clone(),
            checks: self.checks,
            read_backs,
            session,
            ..KernelGraph::default()
        };
        Ok(Schedule { graph, weights, weights_bytes, work: self.work })
    }
}

impl Tensor {
    /// Number of elements.
    pub fn count(&self) -> Expr {
        Expr::product(&self.shape)
    }

    /// Strides in elements, row-major.
    pub(crate) fn strides(&self) -> Vec<Expr> {
        strides::dense(self.within.as_deref().unwrap_or(&self.shape))
    }

    /// Strides with which it is read at an index of `output`; see [`strides::broadcast`].
    pub(crate) fn spread(&self, output: &[Expr]) -> Vec<Expr> {
        strides::broadcast_with(&self.shape, &self.strides(), output)
    }

    /// Bytes of an element.
    pub(crate) fn element_bytes(&self) -> u32 {
        self.dtype.bytes() as u32
    }
}
