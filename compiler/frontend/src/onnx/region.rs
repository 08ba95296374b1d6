//! Regions: nodes that become a separate graph, the body of an `If` or a `Loop`.
//!
//! A subgraph is first lowered in place, after the present nodes. Its nodes are then moved into a
//! separate graph, in which values from outside become inputs and constants are copied. A region
//! that turns out to be unsuitable is rolled back: its nodes are removed, and its values stay
//! unused.

use super::error::{LowerResult, unsupported};
use super::lowering::{Lowering, Selection, Type};
use crate::tensor_graph::{Op, TensorGraph, TensorNode, Value, ValueId};
use std::collections::{HashMap, HashSet};

/// The state of a lowering when a region begins.
pub(super) struct Mark {
    nodes: usize,
    symbols: usize,
    run_time_sizes: usize,
    conditions: usize,
    inputs: usize,
    string_steps: usize,
    stored: HashMap<ValueId, ValueId>,
    selections: HashMap<ValueId, Selection>,
    speculative: bool,
}

/// A region as a graph.
pub(super) struct Region {
    pub(super) graph: TensorGraph,
    /// The values from outside, in the order of the graph's inputs, which follow its parameters.
    pub(super) captures: Vec<ValueId>,
}

impl Lowering {
    /// Begins a region.
    pub(super) fn mark(&self) -> Mark {
        Mark {
            nodes: self.graph.nodes.len(),
            symbols: self.graph.symbols.len(),
            run_time_sizes: self.graph.run_time_sizes.len(),
            conditions: self.conditions.borrow().len(),
            inputs: self.graph.inputs.len(),
            string_steps: self.graph.strings.steps.len(),
            stored: self.stored.clone(),
            selections: self.selections.clone(),
            speculative: self.speculative,
        }
    }

    /// Whether the region that began at the mark computes a size at run time.
    pub(super) fn computes_sizes_since(&self, mark: &Mark) -> bool {
        self.graph.run_time_sizes.len() > mark.run_time_sizes
    }

    /// Removes the nodes, symbols and sizes that were added since the mark.
    pub(super) fn roll_back(&mut self, mark: Mark) {
        self.graph.nodes.truncate(mark.nodes);
        self.graph.symbols.truncate(mark.symbols);
        self.graph.run_time_sizes.truncate(mark.run_time_sizes);
        self.conditions.get_mut().truncate(mark.conditions);
        self.graph.inputs.truncate(mark.inputs);
        self.graph.strings.steps.truncate(mark.string_steps);
        (self.stored, self.selections, self.speculative) = (mark.stored, mark.selections, mark.speculative);
    }

    /// Ends a region: moves the nodes since the mark into a graph. `parameters` are its first
    /// inputs. `instead` maps other parameters to the values from outside that replace them.
    pub(super) fn take_region(
        &mut self,
        mark: Mark,
        name: &str,
        parameters: &[ValueId],
        instead: &HashMap<ValueId, ValueId>,
        results: &[ValueId],
    ) -> LowerResult<Region> {
        if self.computes_sizes_since(&mark) {
            return unsupported(
                "a size is computed at run time inside it (by NonZero, Compress or a loop that stacks results, for \
                 example), which is not possible in a branch or a loop that is decided at run time",
            );
        }
        let results = self.own_results(&mark, name, results)?;
        let nodes = self.graph.nodes.split_off(mark.nodes);
        (self.stored, self.selections) = (mark.stored, mark.selections);
        let mut region = Region {
            graph: TensorGraph {
                name: name.to_owned(),
                symbols: self.graph.symbols.clone(),
                conditions: self.conditions.borrow().clone(),
                ..TensorGraph::default()
            },
            captures: Vec::new(),
        };
        let mut moved = HashMap::new();
        for id in parameters {
            let own = region.graph.add_value(self.graph.value(*id).clone());
            region.graph.inputs.push(own);
            moved.insert(*id, own);
        }
        for node in nodes {
            let inputs = node.inputs.iter().map(|id| self.moved_in(&mut region, &mut moved, instead, *id)).collect();
            let outputs = node.outputs.iter().map(|id| {
                let own = region.graph.add_value(self.graph.value(*id).clone());
                moved.insert(*id, own);
                own
            });
            let outputs = outputs.collect();
            region.graph.nodes.push(TensorNode { inputs, outputs, ..node });
        }
        region.graph.outputs = results.iter().map(|id| moved[id]).collect();
        crate::transform::eliminate_dead(&mut region.graph);
        Ok(region)
    }

    /// The value in the region that stands for a value outside of it.
    fn moved_in(
        &self,
        region: &mut Region,
        moved: &mut HashMap<ValueId, ValueId>,
        instead: &HashMap<ValueId, ValueId>,
        id: ValueId,
    ) -> ValueId {
        if let Some(own) = moved.get(&id) {
            return *own;
        }
        let outer = instead.get(&id).copied().unwrap_or(id);
        let value = self.graph.value(outer).clone();
        let is_constant = value.constant.is_some();
        let own = region.graph.add_value(value);
        if !is_constant {
            region.graph.inputs.push(own);
            region.captures.push(outer);
        }
        moved.insert(id, own);
        own
    }

    /// The results of a region. Each becomes a distinct value that a node of the region computes.
    fn own_results(&mut self, mark: &Mark, name: &str, results: &[ValueId]) -> LowerResult<Vec<ValueId>> {
        let mut own = Vec::with_capacity(results.len());
        for (index, id) in results.iter().enumerate() {
            let id = self.computed(*id)?;
            let made: HashSet<ValueId> =
                self.graph.nodes[mark.nodes..].iter().flat_map(|node| node.outputs.iter().copied()).collect();
            let is_own = made.contains(&id) && !own.contains(&id);
            own.push(if is_own { id } else { self.copy(&format!("{name}.result{index}"), id) });
        }
        Ok(own)
    }

    /// Adds a node with bodies; it is never folded.
    pub(super) fn push_node(
        &mut self,
        name: &str,
        op: Op,
        inputs: Vec<ValueId>,
        outputs: Vec<Type>,
    ) -> LowerResult<Vec<ValueId>> {
        let outputs =
            outputs.into_iter().map(|(dtype, shape)| self.check_type(dtype, shape)).collect::<LowerResult<Vec<_>>>()?;
        let name = self.unique_name(name);
        let results = outputs.into_iter().enumerate().map(|(i, (dtype, shape))| {
            self.graph.add_value(Value { name: format!("{name}:{i}"), dtype, shape, constant: None })
        });
        let results: Vec<ValueId> = results.collect();
        self.graph.nodes.push(TensorNode { name, op, inputs, outputs: results.clone() });
        Ok(results)
    }
}
