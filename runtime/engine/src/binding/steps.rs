//! Turns the nodes of a graph into steps, in order: launches, copies, fills, read-backs and borders
//! of segments, with the sites of their arguments.

use super::work::{BindError, FenceRanges, LaunchTemplate, Relocation, Site, Space, Work};
use crate::literal::literal;
use atoll_core::Step;
use atoll_device::AddressSlots;
use atoll_kgraph::validate::params_layout;
use atoll_kgraph::{
    Argument, BufferId, BufferKind, DType, Flow, FlowItem, InvocationLayout, KernelFacts, KernelGraph, LaunchLayout,
    NodeKind, TargetImage, fence_params, node_may_run_again, preempt_params,
};
use std::collections::HashMap;

/// Builds the steps of a binding, node by node.
pub(super) struct Builder<'a> {
    pub(super) graph: &'a KernelGraph,
    pub(super) target: &'a TargetImage,
    pub(super) layout: &'a InvocationLayout,
    pub(super) symbols: &'a [i64],
    pub(super) ranges: FenceRanges,
    /// Indices of the constants, in the order of [`atoll_kgraph::Bundle::constants`].
    pub(super) constants: HashMap<BufferId, u32>,
    pub(super) work: Vec<Work>,
    pub(super) nodes: Vec<u32>,
    pub(super) steps: Vec<Step>,
    /// For each node so far, the number of steps before it.
    pub(super) before: Vec<usize>,
    pub(super) params: Vec<u8>,
    pub(super) relocations: Vec<Relocation>,
}

impl Builder<'_> {
    /// Appends the steps of all items of a flow, up to the read-back of the first unknown size.
    /// Returns the number of steps before each item, followed by the number of all steps.
    pub(super) fn items(&mut self, flow: &Flow, sizes_known: usize) -> Result<Vec<u32>, BindError> {
        let mut before = Vec::with_capacity(flow.items.len() + 1);
        let mut read_backs = (0..).zip(&self.graph.read_backs).peekable();
        // The next node, to which messages about a border refer.
        let mut next = 0;
        'items: for (index, item) in flow.items.iter().enumerate() {
            before.push(self.steps.len() as u32);
            let FlowItem::Node(node) = *item else {
                self.host_step(next, Work::Border(index));
                continue;
            };
            self.node(node as usize)?;
            next = (node as usize + 1).min(self.graph.nodes.len().saturating_sub(1));
            while let Some((size, _)) = read_backs.next_if(|(_, read_back)| read_back.after.0 == node) {
                self.host_step(node as usize, Work::ReadBack(size));
                if size as usize == sizes_known {
                    break 'items;
                }
            }
        }
        before.resize(flow.items.len() + 1, self.steps.len() as u32);
        Ok(before)
    }

    /// Appends the step of a node, unless the node has nothing to do for these symbols.
    pub(super) fn node(&mut self, index: usize) -> Result<(), BindError> {
        self.before.push(self.steps.len());
        if self.target.launches[index].is_some() {
            // This includes copies and fills that a kernel does.
            return self.layout.launches[index].map_or(Ok(()), |launch| self.launch(index, launch));
        }
        let work = match &self.graph.nodes[index].kind {
            NodeKind::Kernel => return Ok(()),
            NodeKind::Copy { from, from_offset, to, to_offset, bytes } => {
                let [from_offset, to_offset] = [self.size(index, from_offset)?, self.size(index, to_offset)?];
                let (from, to) = (self.site(*from, from_offset), self.site(*to, to_offset));
                Work::Copy { from, to, bytes: self.size(index, bytes)? }
            }
            NodeKind::Fill { to, offset, bytes, pattern } => {
                let to = self.site(*to, self.size(index, offset)?);
                let pattern = std::array::from_fn(|at| pattern[at % pattern.len()]);
                Work::Fill { to, pattern, bytes: self.size(index, bytes)? }
            }
        };
        if !matches!(work, Work::Copy { bytes: 0, .. } | Work::Fill { bytes: 0, .. }) {
            self.host_step(index, work);
        }
        Ok(())
    }

    pub(super) fn host_step(&mut self, node: usize, work: Work) {
        self.steps.push(Step::Host);
        self.nodes.push(node as u32);
        self.work.push(work);
    }

    fn launch(&mut self, index: usize, layout: LaunchLayout) -> Result<(), BindError> {
        let (graph, target) = (self.graph, self.target);
        let Some(spec) = &target.launches[index] else { return Ok(()) };
        let spec = spec.variant(layout.variant);
        let kernel = &target.kernels[spec.kernel.0 as usize];
        let start = self.params.len().next_multiple_of(8);
        self.params.resize(start + kernel.params_bytes as usize, 0);
        let mut address_slots = AddressSlots::NONE;
        let mut address = |at: u32, relocations: &mut Vec<Relocation>, site| {
            address_slots.insert(at as usize / 8);
            relocations.push(Relocation { at: start + at as usize, site });
        };
        for (argument, &at) in spec.args.iter().zip(&params_layout(&spec.args).0) {
            match argument {
                Argument::Buffer { buffer, offset } => {
                    let offset = self.eval(index, offset)? as u64;
                    let site = self.site(*buffer, offset);
                    address(at, &mut self.relocations, site);
                }
                Argument::Int { dtype, value } => {
                    let value = self.eval(index, value)?;
                    let bytes = literal(value, *dtype).ok_or_else(|| self.misfit(index, value, *dtype))?;
                    self.write(start, at, &bytes[..dtype.bytes() as usize]);
                }
                Argument::Check { check } => {
                    let site = Site { space: Space::Invocation, offset: self.layout.check_word(*check) };
                    address(at, &mut self.relocations, site);
                }
                Argument::F32 { bits } => self.write(start, at, &bits.to_le_bytes()),
                Argument::F64 { bits } => self.write(start, at, &bits.to_le_bytes()),
                Argument::Bytes { bytes, relocations, .. } => {
                    self.write(start, at, bytes);
                    for relocation in relocations {
                        let site = self.site(relocation.buffer, self.size(index, &relocation.offset)?);
                        address(at + relocation.at, &mut self.relocations, site);
                    }
                }
            }
        }
        if let Some(fence) = kernel.fence {
            for (at, site) in self.ranges.addresses() {
                address(fence.offset + at, &mut self.relocations, site);
            }
            for (at, mask) in self.ranges.masks() {
                self.write_mask(start, fence.offset + at, mask);
            }
            let own = fence.dynamic_shared_bytes.to_le_bytes();
            self.write(start, fence.offset + fence_params::DYNAMIC_SHARED, &own);
        }
        if let Some(base) = kernel.preempt_offset {
            let words = [
                (preempt_params::EPOCH_WORD, self.layout.epoch_word),
                (preempt_params::EVICTED_WORD, layout.evicted_word),
                (preempt_params::PROGRESS, layout.progress.offset),
            ];
            for (at, offset) in words {
                address(base + at, &mut self.relocations, Site { space: Space::Invocation, offset });
            }
        }
        let step = self.kind(index, kernel);
        self.steps.push(step);
        self.nodes.push(index as u32);
        self.work.push(Work::Launch(LaunchTemplate {
            node: index as u32,
            code: None,
            kernel: spec.kernel.0,
            grid: layout.grid,
            shared_bytes: kernel.shared_bytes,
            evicted_word: layout.evicted_word,
            address_slots,
            params: start..self.params.len(),
            issued_epoch: kernel.preempt_offset.map(|base| (base + preempt_params::ISSUED_EPOCH) as usize),
            keeps_progress: kernel.keeps_progress(),
            stays: step == Step::NotPreemptible,
            may_run_again: node_may_run_again(graph, target, self.layout, index).is_ok(),
        }));
        Ok(())
    }

    /// The kind of a launch. A launch without a progress map is restartable if the memory plan has
    /// a restore point for it among the steps so far; otherwise it is not preemptible.
    fn kind(&self, index: usize, kernel: &KernelFacts) -> Step {
        if kernel.keeps_progress() {
            return Step::Preemptible;
        }
        let point = self.graph.plan.restore_points[index].0 as usize;
        match self.before.get(point) {
            Some(&from) if kernel.exits_unreported => Step::Restartable { restore_point: from as u32 },
            _ => Step::NotPreemptible,
        }
    }

    fn site(&self, buffer: BufferId, offset: u64) -> Site {
        match self.constants.get(&buffer) {
            Some(&number) => Site { space: Space::Constant(number), offset },
            None if self.graph.buffers[buffer.0 as usize].kind == BufferKind::State => {
                Site { space: Space::State, offset: self.layout.buffer(buffer).offset + offset }
            }
            None => Site { space: Space::Invocation, offset: self.layout.buffer(buffer).offset + offset },
        }
    }

    fn eval(&self, node: usize, expr: &atoll_kgraph::Expr) -> Result<i64, BindError> {
        expr.eval(self.symbols).map_err(|source| BindError::Value { node: self.graph.nodes[node].name.clone(), source })
    }

    /// The value of an expression that the layout has checked not to be negative.
    fn size(&self, node: usize, expr: &atoll_kgraph::Expr) -> Result<u64, BindError> {
        self.eval(node, expr).map(|value| value as u64)
    }

    fn misfit(&self, node: usize, value: i64, dtype: DType) -> BindError {
        BindError::Literal { node: self.graph.nodes[node].name.clone(), value, dtype }
    }

    fn write_mask(&mut self, start: usize, at: u32, mask: Option<u64>) {
        match mask {
            Some(mask) => self.write(start, at, &mask.to_le_bytes()),
            None => {
                let site = Site { space: Space::Mask, offset: 0 };
                self.relocations.push(Relocation { at: start + at as usize, site });
            }
        }
    }

    fn write(&mut self, start: usize, at: u32, bytes: &[u8]) {
        let at = start + at as usize;
        self.params[at..at + bytes.len()].copy_from_slice(bytes);
    }
}
