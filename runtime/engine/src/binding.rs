//! A function with known symbols: the memory layout of an invocation, its steps, and a template of
//! every launch.
//!
//! Created once per shape combination, on the thread of the first client that sends it; immutable
//! and shared from then on.
//!
//! If a function reads sizes back from the device, its binding ends with the step that reads the
//! first of them. Once that size is known, another binding has the later steps as well
//! ([`Binding::with_size`]).
//!
//! Each node of an `if` or `loop` segment has one step, no matter how often it runs. A host step at
//! each border of a segment chooses the step that follows.

mod flush;
mod steps;
mod work;

use crate::branches::{Branches, Capacity};
use atoll_core::memory::FunctionId;
use atoll_core::{Fork, Step, StepCost};
use atoll_kgraph::expr::EvalError;
use atoll_kgraph::{
    BufferId, BufferKind, DType, Flow, FlowLoop, InvocationLayout, KernelGraph, Place, ReadBack, TargetImage,
    dependencies,
};
pub(crate) use flush::Piece;
use std::sync::Arc;
use steps::Builder;
pub(crate) use work::{BindError, FenceRanges, LaunchTemplate, Relocation, Site, Space, Work};

/// An output of an invocation.
#[derive(Clone, Debug)]
pub(crate) struct Output {
    pub(crate) shape: Vec<i64>,
    pub(crate) place: Place,
}

#[derive(Debug)]
pub(crate) struct Binding {
    /// Values of all symbols; for sizes that are not read back yet, the largest possible values.
    pub(crate) symbols: Vec<i64>,
    /// The symbols that memory was laid out for, before any size was read back.
    pub(crate) largest: Arc<[i64]>,
    /// How many sizes were read back.
    pub(crate) sizes_known: usize,
    /// The address ranges that fenced kernels may access.
    ranges: FenceRanges,
    pub(crate) layout: InvocationLayout,
    pub(crate) inputs: Vec<Place>,
    pub(crate) outputs: Vec<Output>,
    /// One per entry of `work`.
    pub(crate) steps: Arc<[Step]>,
    pub(crate) work: Vec<Work>,
    /// The node of each entry of `work`.
    pub(crate) nodes: Vec<u32>,
    /// The parameter blocks of all launches, each 8-byte aligned.
    pub(crate) params: Vec<u8>,
    pub(crate) relocations: Vec<Relocation>,
    pub(crate) branches: Branches,
    pub(crate) flow: Flow,
    /// Per item of the flow, the number of steps before it. The last entry is the number of all
    /// steps.
    pub(crate) item_steps: Vec<u32>,
    /// The functions whose kernels a flush of a CUDA session launches.
    pub(crate) code: Vec<FunctionId>,
    /// The name of the first node of each loop, for messages.
    loop_names: Vec<String>,
}

impl Binding {
    pub(crate) fn new(
        graph: &KernelGraph,
        target: &TargetImage,
        ranges: FenceRanges,
        symbols: Vec<i64>,
    ) -> Result<Binding, BindError> {
        // All steps of a session need memory of the same size, so the layout is for the largest
        // symbols.
        let mut largest = symbols.clone();
        for own in &graph.session.symbols {
            largest[own.symbol.0 as usize] = graph.symbols[own.symbol.0 as usize].max;
        }
        let mut layout = InvocationLayout::new(graph, target, &largest)?;
        if largest != symbols {
            layout = layout.with_sizes(graph, target, &symbols)?;
        }
        Binding::of(graph, target, ranges, layout, symbols, (largest.into(), 0))
    }

    /// The binding of a flush of a CUDA session with `memory_bytes` bytes of memory.
    ///
    /// # Errors
    /// Why a piece of work is invalid.
    pub(crate) fn of_flush(ranges: FenceRanges, memory_bytes: u64, pieces: &[Piece<'_>]) -> Result<Binding, String> {
        let parts = flush::parts(ranges, memory_bytes, pieces)?;
        let flush::Parts { layout, inputs, outputs, steps, work, params, relocations, code } = parts;
        let symbols = vec![layout.bytes as i64];
        let output = |place: Place| Output { shape: vec![place.bytes as i64], place };
        let branches = Branches::new(steps.len());
        branches.disable();
        Ok(Binding {
            largest: symbols.as_slice().into(),
            symbols,
            sizes_known: 0,
            ranges,
            layout,
            inputs,
            outputs: outputs.into_iter().map(output).collect(),
            nodes: vec![0; steps.len()],
            item_steps: vec![steps.len() as u32],
            steps: steps.into(),
            work,
            params,
            relocations,
            branches,
            flow: Flow { items: Vec::new(), loops: Vec::new() },
            code,
            loop_names: Vec::new(),
        })
    }

    /// The binding after the next size was read back as `value`, in the same memory.
    pub(crate) fn with_size(
        &self,
        graph: &KernelGraph,
        target: &TargetImage,
        value: i64,
    ) -> Result<Binding, BindError> {
        let ReadBack { symbol, after, most, .. } = &graph.read_backs[self.sizes_known];
        let spec = &graph.symbols[symbol.0 as usize];
        let (node, size) = (graph.nodes[after.0 as usize].name.clone(), spec.name.clone());
        let most = most.as_ref().map_or(Ok(i64::MAX), |most| most.eval(&self.symbols));
        let most = most.map_err(|source| BindError::Value { node: node.clone(), source })?;
        let (min, max) = (spec.min, self.largest[symbol.0 as usize].min(most));
        if !(min..=max).contains(&value) {
            return Err(BindError::Size { node, size, value, min, max });
        }
        if target.launches[after.0 as usize].is_some() && self.layout.launches[after.0 as usize].is_none() {
            return Err(BindError::NoSize { node, size });
        }
        let mut symbols = self.symbols.clone();
        symbols[symbol.0 as usize] = value;
        let layout = self.layout.with_sizes(graph, target, &symbols)?;
        let largest = Arc::clone(&self.largest);
        Binding::of(graph, target, self.ranges, layout, symbols, (largest, self.sizes_known + 1))
    }

    /// Builds the steps up to the next read-back, in memory for the largest symbols.
    fn of(
        graph: &KernelGraph,
        target: &TargetImage,
        ranges: FenceRanges,
        layout: InvocationLayout,
        symbols: Vec<i64>,
        (largest, sizes_known): (Arc<[i64]>, usize),
    ) -> Result<Binding, BindError> {
        let inputs = graph.buffers_of(BufferKind::Input).map(|(id, _)| layout.buffer(id)).collect();
        let outputs = outputs(graph, &layout, &symbols)?;
        let constants =
            graph.buffers_of(BufferKind::Const).enumerate().map(|(number, (id, _))| (id, number as u32)).collect();
        let mut builder = Builder {
            graph,
            target,
            layout: &layout,
            symbols: &symbols,
            ranges,
            constants,
            work: Vec::new(),
            nodes: Vec::new(),
            steps: Vec::new(),
            before: Vec::new(),
            params: Vec::new(),
            relocations: Vec::new(),
        };
        let flow = Flow::of(graph);
        let item_steps = builder.items(&flow, sizes_known)?;
        let name = |own: &FlowLoop| graph.nodes.get(own.nodes.start as usize).map(|node| node.name.clone());
        let loop_names = flow.loops.iter().map(|own| name(own).unwrap_or_default()).collect();
        let Builder { work, nodes, steps, params, relocations, .. } = builder;
        let branches = Branches::new(steps.len());
        if !graph.read_backs.is_empty() || !graph.session.is_empty() || !graph.segments.is_empty() {
            branches.disable();
        }
        let steps = steps.into();
        Ok(Binding {
            inputs,
            outputs,
            steps,
            work,
            nodes,
            params,
            relocations,
            layout,
            symbols,
            largest,
            sizes_known,
            ranges,
            branches,
            flow,
            item_steps,
            code: Vec::new(),
            loop_names,
        })
    }

    /// The name of a loop of the flow: the name of its first node.
    pub(crate) fn name_of(&self, own: &FlowLoop) -> &str {
        let index = self.flow.loops.iter().position(|other| other == own);
        index.map_or("", |index| &self.loop_names[index])
    }

    /// The forks, once it is decided which sections run faster in two branches.
    pub(crate) fn forks(&self, graph: &KernelGraph, capacity: &Capacity) -> Option<Arc<[Fork]>> {
        let needs = || dependencies(graph, &self.layout, &self.nodes);
        let cost = |step: usize, ns| {
            let (blocks, at_a_time) = match &self.work[step] {
                Work::Launch(launch) => {
                    (launch.grid.iter().map(|&extent| u64::from(extent)).product(), capacity.blocks_of(launch.kernel))
                }
                Work::Copy { .. } | Work::Fill { .. } | Work::ReadBack(_) | Work::Border(_) => (1, 1),
            };
            StepCost::of_launch(self.steps[step], ns, blocks, at_a_time)
        };
        self.branches.forks(capacity.gain_ns_min, needs, cost)
    }
}

fn outputs(graph: &KernelGraph, layout: &InvocationLayout, symbols: &[i64]) -> Result<Vec<Output>, BindError> {
    let output = |(id, buffer): (BufferId, &atoll_kgraph::BufferSpec)| {
        let shape: Result<Vec<i64>, EvalError> = buffer.shape.iter().map(|dimension| dimension.eval(symbols)).collect();
        let shape = shape.map_err(|source| BindError::Value { node: buffer.name.clone(), source })?;
        let bytes = tensor_bytes(&shape, buffer.dtype)
            .ok_or_else(|| BindError::Value { node: buffer.name.clone(), source: EvalError::Overflow })?;
        Ok(Output { shape, place: Place { bytes, ..layout.buffer(id) } })
    };
    graph.buffers_of(BufferKind::Output).map(output).collect()
}

/// Bytes of a tensor; `None` if they do not fit 64 bits. A tensor without elements has 0 bytes,
/// however large its other dimensions are.
fn tensor_bytes(shape: &[i64], dtype: DType) -> Option<u64> {
    if shape.contains(&0) {
        return Some(0);
    }
    shape.iter().try_fold(dtype.bytes(), |bytes, &dimension| bytes.checked_mul(u64::try_from(dimension).ok()?))
}
