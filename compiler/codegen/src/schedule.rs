//! Scheduling: tensor graph to kernel graph, with its buffers, nodes and dependencies.
//!
//! The elements of a value have a [`Location`]. The result of a reshape has the location of its
//! operand. A model output that its producer cannot write directly gets a copy node: an input, a
//! constant, or a value that is also an earlier output. Constants with equal content are stored
//! once.

mod checks;
mod flow;
mod lower;
mod segments;
mod state;
mod storage;

use crate::error::CodegenError;
use crate::strides;
use atoll_frontend::batch::{self, Batch};
use atoll_frontend::tensor_graph::{Cell, Direction, Op, PointProgram, RunTimeSize, TensorGraph, Value, ValueId};
use atoll_kgraph::{
    BatchAxis, BufferId, Check, DType, Expr, FORMAT_VERSION, KernelGraph, Node, NodeId, NodeKind, ReadBack, Scalar,
    Segment,
};
use checks::OwnCheck;
use state::Location;
use std::sync::Arc;
use storage::Storage;

pub(crate) use checks::{DIVISION, FIRST_OWN};

/// A scheduled model: the target-independent part of a bundle, and what each node computes.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// The kernel graph; its memory plan is still empty.
    pub graph: KernelGraph,
    /// Content of the constants.
    pub weights: Vec<Weight>,
    /// Size of all constants in bytes.
    pub weights_bytes: u64,
    /// What each node of the graph computes, by node index.
    pub work: Vec<Work>,
}

/// The bytes of a constant.
#[derive(Clone, Debug)]
pub struct Weight {
    /// Their offset, a multiple of [`atoll_kgraph::BUFFER_ALIGN`].
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
    /// The checks of its kernel: the kernel's own number of each check, and its index in the graph.
    pub checks: Vec<(u32, u32)>,
}

/// The operators of a schedule: those of the tensor graph, and the few that scheduling adds.
#[derive(Clone, Debug, PartialEq)]
pub enum WorkKind {
    /// A copy node, which has no kernel.
    Copy,
    /// An operator of the tensor graph.
    Op(Op),
    /// Several operands of a concatenation, written from `first` on along the axis.
    ConcatPart {
        /// The axis.
        axis: usize,
        /// Index on the axis at which the first operand is written.
        first: Expr,
    },
    /// The recurrence of a layer. Inputs `gates [T, B, D * G H]` (input products), `r [D, H, G H]`
    /// or packed `[D, H / 32, H, G, 32]`, `bias [D, 2 G H]`, `h0`, and `c0` for LSTM; outputs `y`,
    /// `h`, and `c` for LSTM.
    Recurrence(Recurrence),
}

/// The parameters of a recurrence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recurrence {
    /// The kind of cell.
    pub cell: Cell,
    /// H: the size of the hidden state.
    pub hidden: usize,
    /// The direction.
    pub direction: Direction,
}

/// An operand of a node: elements in a buffer in row-major order. It is dense unless `within` is
/// set.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// The buffer.
    pub buffer: BufferId,
    /// Offset of the first element in the buffer, in bytes.
    pub offset: Expr,
    /// Element type.
    pub dtype: DType,
    /// Dimensions, outermost first.
    pub shape: Vec<Expr>,
    /// The dimensions of the dense array whose front part this tensor is; `None` if the tensor is
    /// dense. Used for a state with capacity to grow.
    pub within: Option<Vec<Expr>>,
}

/// Schedules a tensor graph: buffers, constants, and nodes with their dependencies. The memory plan
/// is left empty.
pub fn schedule(graph: &TensorGraph) -> Result<Schedule, CodegenError> {
    let flow::Flat { graph, items } = flow::flatten(graph);
    let mut scheduler = Scheduler {
        graph: &graph,
        storage: Storage::new(&graph),
        nodes: Vec::new(),
        work: Vec::new(),
        checks: Vec::new(),
        segments: Vec::new(),
    };
    let mut segments = scheduler.items(&items)?;
    let behind = scheduler.nodes.len();
    scheduler.copy_outputs()?;
    if segments.iter().any(|segment| !matches!(segment, Segment::Nodes { .. })) {
        scheduler.close(&mut segments, behind);
        scheduler.segments = segments;
    }
    scheduler.finish()
}

/// The state of scheduling.
struct Scheduler<'g> {
    graph: &'g TensorGraph,
    storage: Storage<'g>,
    nodes: Vec<Node>,
    work: Vec<Work>,
    checks: Vec<Check>,
    /// The control flow; empty if all nodes run in order.
    segments: Vec<Segment>,
}

impl Scheduler<'_> {
    /// A value as a dense operand; copied if it is not dense.
    fn tensor(&mut self, value: ValueId) -> Result<Tensor, CodegenError> {
        match self.view(value)? {
            dense @ Tensor { within: None, .. } => Ok(dense),
            Tensor { .. } => self.dense(value),
        }
    }

    /// A value as an operand for kernels that support any strides.
    fn view(&mut self, value: ValueId) -> Result<Tensor, CodegenError> {
        let Location { buffer, offset, within } = self.storage.place(value)?;
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
        let Location { buffer, offset, within } = self.storage.place(root)?;
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

    /// Adds a node that depends on the writers of the buffers it reads.
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

    /// Adds a copy for every model output that its producer does not write directly.
    fn copy_outputs(&mut self) -> Result<(), CodegenError> {
        for (index, &value) in self.graph.outputs.iter().enumerate() {
            let Location { buffer, offset, within } = self.storage.output(index);
            let location = self.storage.place(value)?;
            if (&location.buffer, &location.offset) != (&buffer, &offset) {
                if within.is_some() {
                    let reason = "it is the new value of two states, which a growing state does not support; export \
                                  separate outputs";
                    return Err(CodegenError::unsupported(reason).at(&self.graph.value(value).name));
                }
                let from = self.tensor(value)?;
                let to = Tensor { buffer, offset, ..from.clone() };
                self.push_copy(&format!("{}/output{index}", self.graph.value(value).name), from, to);
            }
        }
        Ok(())
    }

    /// The dimension of the batch's rows in each buffer, if the frontend proves that rows are
    /// independent.
    fn batch(&self) -> Option<BatchAxis> {
        if !self.graph.states.is_empty() || !self.segments.is_empty() {
            // Invocations of different sessions have different states, so they cannot be rows of
            // one batch. With control flow, one condition decides for all rows.
            return None;
        }
        let Batch { symbol, axes } = batch::analyse(self.graph).ok()?;
        let axis = |value: &Option<ValueId>| {
            value.and_then(|value| axes[value.0 as usize]).and_then(|axis| u32::try_from(axis).ok())
        };
        Some(BatchAxis { symbol, axes: self.storage.values().iter().map(axis).collect(), proof: batch::PROOF.into() })
    }

    /// Run-time sizes: each is read back after the node that writes it.
    fn read_backs(&mut self) -> Result<Vec<ReadBack>, CodegenError> {
        let mut read_backs = Vec::with_capacity(self.graph.run_time_sizes.len());
        for RunTimeSize { symbol, value, most } in &self.graph.run_time_sizes {
            let Tensor { buffer, dtype, .. } = self.tensor(*value)?;
            let name = &self.graph.value(*value).name;
            let writer = self.storage.writers(buffer).last();
            let after =
                *writer.ok_or_else(|| CodegenError::inconsistent("no node computes this run-time size").at(name))?;
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
            segments: self.segments,
            read_backs,
            session,
            strings: self.graph.strings.clone(),
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

    /// Strides for reading it at an index of `output`; see [`strides::broadcast`].
    pub(crate) fn spread(&self, output: &[Expr]) -> Vec<Expr> {
        strides::broadcast_with(&self.shape, &self.strides(), output)
    }

    /// Bytes of an element.
    pub(crate) fn element_bytes(&self) -> u32 {
        self.dtype.bytes() as u32
    }
}
