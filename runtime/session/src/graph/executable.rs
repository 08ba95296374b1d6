//! Executable graphs: a copy of a graph, in an order in which its nodes can run.

use super::{Graphs, Holder, Task};
use crate::code::Code;
use std::collections::{BTreeMap, BTreeSet};

/// How a graph differs from the one that an executable graph was made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MismatchKind {
    /// Other nodes or dependencies.
    Topology,
    /// A node of another kind.
    Kind,
    /// A parameter that cannot change.
    Parameters,
}

/// Why an executable graph was not updated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The difference.
    pub kind: MismatchKind,
    /// The node of the new graph that differs; 0 if none can be named.
    pub node: u32,
}

/// A graph at the time when it was made executable.
#[derive(Clone, Debug)]
struct Part<W> {
    /// In the order in which they were added.
    nodes: Vec<PartNode<W>>,
    /// Indices of the nodes: each after the ones that it depends on.
    order: Vec<usize>,
}

#[derive(Clone, Debug)]
struct PartNode<W> {
    /// The node of the graph.
    number: u32,
    task: PartTask<W>,
    /// Indices of the nodes that it depends on.
    before: BTreeSet<usize>,
    is_enabled: bool,
}

#[derive(Clone, Debug)]
enum PartTask<W> {
    Empty,
    Work(W),
    Child(Part<W>),
}

/// A graph that can be launched.
#[derive(Clone, Debug)]
pub(super) struct Executable<W> {
    part: Part<W>,
    flags: u64,
}

impl<W> Part<W> {
    fn count(&self) -> usize {
        let of_node = |node: &PartNode<W>| match &node.task {
            PartTask::Child(part) => 1 + part.count(),
            _ => 1,
        };
        self.nodes.iter().map(of_node).sum()
    }

    fn find(&mut self, number: u32) -> Option<&mut PartNode<W>> {
        for node in &mut self.nodes {
            if node.number == number {
                return Some(node);
            }
            if let PartTask::Child(part) = &mut node.task
                && let Some(found) = part.find(number)
            {
                return Some(found);
            }
        }
        None
    }

    /// The first difference from another graph that must have the same structure.
    fn mismatch(&self, other: &Part<W>, differs: &impl Fn(&W, &W) -> Option<MismatchKind>) -> Option<Mismatch> {
        let at = |kind, node: &PartNode<W>| Some(Mismatch { kind, node: node.number });
        if self.nodes.len() != other.nodes.len() {
            return Some(Mismatch { kind: MismatchKind::Topology, node: 0 });
        }
        for (ours, theirs) in self.nodes.iter().zip(&other.nodes) {
            let changed = match (&ours.task, &theirs.task) {
                (PartTask::Empty, PartTask::Empty) => None,
                (PartTask::Work(one), PartTask::Work(two)) => differs(one, two).and_then(|kind| at(kind, theirs)),
                (PartTask::Child(one), PartTask::Child(two)) => one.mismatch(two, differs),
                _ => at(MismatchKind::Kind, theirs),
            };
            let moved = if ours.before == theirs.before { None } else { at(MismatchKind::Topology, theirs) };
            if let Some(mismatch) = changed.or(moved) {
                return Some(mismatch);
            }
        }
        None
    }

    /// Takes over the calls of a graph without [`Part::mismatch`].
    fn replace(&mut self, other: Part<W>) {
        for (ours, theirs) in self.nodes.iter_mut().zip(other.nodes) {
            match (&mut ours.task, theirs.task) {
                (PartTask::Child(one), PartTask::Child(two)) => one.replace(two),
                (task, other) => *task = other,
            }
        }
    }
}

impl<W: Clone> Part<W> {
    fn collect(&self, to: &mut Vec<W>) {
        for node in self.order.iter().filter_map(|index| self.nodes.get(*index)).filter(|node| node.is_enabled) {
            match &node.task {
                PartTask::Empty => {}
                PartTask::Work(work) => to.push(work.clone()),
                PartTask::Child(part) => part.collect(to),
            }
        }
    }
}

impl<W: Clone> Graphs<W> {
    /// Makes a graph executable. Changes of the graph do not change the executable one.
    ///
    /// # Errors
    /// If the graph does not exist or has a cycle, or there are too many nodes.
    pub fn instantiate(&mut self, graph: u32, flags: u64) -> Result<u32, Code> {
        let part = self.part(graph)?;
        let count = part.count();
        self.admit(count + 1)?;
        let number = self.number()?;
        self.executable_nodes += count + 1;
        self.executables.insert(number, Executable { part, flags });
        Ok(number)
    }

    /// Destroys an executable graph. What was launched is still done.
    pub fn destroy_executable(&mut self, executable: u32) -> Result<(), Code> {
        let destroyed = self.executables.remove(&executable).ok_or(Code::INVALID_VALUE)?;
        self.executable_nodes -= destroyed.part.count() + 1;
        Ok(())
    }

    /// The flags with which a graph was made executable.
    pub fn flags(&self, executable: u32) -> Result<u64, Code> {
        self.executables.get(&executable).map(|known| known.flags).ok_or(Code::INVALID_VALUE)
    }

    /// The calls of an executable graph in the order in which they are made. Nodes that are disabled
    /// are left out.
    pub fn launch(&self, executable: u32) -> Result<Vec<W>, Code> {
        let known = self.executables.get(&executable).ok_or(Code::INVALID_VALUE)?;
        let mut works = Vec::with_capacity(known.part.order.len());
        known.part.collect(&mut works);
        Ok(works)
    }

    /// The call of a node of an executable graph, named by the node of the graph that it was made
    /// from.
    pub fn executable_work(&mut self, executable: u32, node: u32) -> Result<&W, Code> {
        match &self.executable_node(executable, node)?.task {
            PartTask::Work(work) => Ok(work),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    /// Changes the call of a node of an executable graph. The caller has checked that it is of the
    /// same kind.
    pub fn set_executable_work(&mut self, executable: u32, node: u32, work: W) -> Result<(), Code> {
        match &mut self.executable_node(executable, node)?.task {
            PartTask::Work(old) => *old = work,
            _ => return Err(Code::INVALID_VALUE),
        }
        Ok(())
    }

    /// Enables or disables a call of an executable graph.
    pub fn enable(&mut self, executable: u32, node: u32, is_enabled: bool) -> Result<(), Code> {
        let node = self.executable_node(executable, node)?;
        node.is_enabled = is_enabled;
        Ok(())
    }

    /// Whether a node of an executable graph is enabled.
    pub fn is_enabled(&mut self, executable: u32, node: u32) -> Result<bool, Code> {
        self.executable_node(executable, node).map(|node| node.is_enabled)
    }

    /// Changes the calls of an executable graph to those of another graph, whose nodes have been
    /// added in the same order. `differs` says why one call cannot replace another. The inner result
    /// is the difference, if there is one; then nothing changes.
    ///
    /// # Errors
    /// If one of the two does not exist, or the graph has a cycle.
    pub fn update(
        &mut self,
        executable: u32,
        graph: u32,
        differs: impl Fn(&W, &W) -> Option<MismatchKind>,
    ) -> Result<Result<(), Mismatch>, Code> {
        let other = self.part(graph)?;
        let known = self.executables.get_mut(&executable).ok_or(Code::INVALID_VALUE)?;
        if let Some(mismatch) = known.part.mismatch(&other, &differs) {
            return Ok(Err(mismatch));
        }
        known.part.replace(other);
        Ok(Ok(()))
    }

    /// Like [`Graphs::update`], for one child node of an executable graph.
    pub fn update_child(
        &mut self,
        executable: u32,
        node: u32,
        graph: u32,
        differs: impl Fn(&W, &W) -> Option<MismatchKind>,
    ) -> Result<Result<(), Mismatch>, Code> {
        let other = self.part(graph)?;
        let PartTask::Child(part) = &mut self.executable_node(executable, node)?.task else {
            return Err(Code::INVALID_VALUE);
        };
        if let Some(mismatch) = part.mismatch(&other, &differs) {
            return Ok(Err(mismatch));
        }
        part.replace(other);
        Ok(Ok(()))
    }

    fn executable_node(&mut self, executable: u32, node: u32) -> Result<&mut PartNode<W>, Code> {
        let known = self.executables.get_mut(&executable).ok_or(Code::INVALID_VALUE)?;
        known.part.find(node).ok_or(Code::INVALID_VALUE)
    }

    /// A graph in an order in which it can run; an error if it has a cycle.
    fn part(&self, graph: u32) -> Result<Part<W>, Code> {
        let numbers = self.nodes(graph)?;
        let index: BTreeMap<u32, usize> = numbers.iter().enumerate().map(|(index, number)| (*number, index)).collect();
        let mut nodes = Vec::with_capacity(numbers.len());
        for number in numbers {
            let node = self.node(number)?;
            let task = match &node.task {
                Task::Empty => PartTask::Empty,
                Task::Work(work) => PartTask::Work(work.clone()),
                Task::Child(child) => PartTask::Child(self.part(*child)?),
            };
            let before = node.before.iter().filter_map(|earlier| index.get(earlier)).copied().collect();
            nodes.push(PartNode { number, task, before, is_enabled: true });
        }
        let order = order(&nodes).ok_or(Code::INVALID_VALUE)?;
        Ok(Part { nodes, order })
    }

    /// A graph without a holder yet that does what an executable graph does; for launches that are
    /// captured.
    pub(super) fn graph_of(&mut self, executable: u32) -> Result<u32, Code> {
        let part = self.executables.get(&executable).ok_or(Code::INVALID_VALUE)?.part.clone();
        self.admit(2 * part.count() + 1)?;
        self.graph_of_part(&part).map(|(graph, _)| graph)
    }

    /// The graph, and the levels of child graphs below it.
    fn graph_of_part(&mut self, part: &Part<W>) -> Result<(u32, usize), Code> {
        let graph = self.new_graph(Holder::Node(0))?;
        let (mut numbers, mut depth) = (vec![0; part.nodes.len()], 0);
        for &index in &part.order {
            let node = &part.nodes[index];
            let before = node.before.iter().map(|earlier| numbers[*earlier]).collect();
            numbers[index] = match &node.task {
                PartTask::Work(work) if node.is_enabled => self.new_node(graph, before, Task::Work(work.clone()), 0)?,
                PartTask::Child(part) if node.is_enabled => {
                    let (child, below) = self.graph_of_part(part)?;
                    depth = depth.max(below + 1);
                    self.new_child(graph, before, child)?
                }
                _ => self.new_node(graph, before, Task::Empty, 0)?,
            };
        }
        self.graphs.entry(graph).and_modify(|graph| graph.depth = depth);
        Ok((graph, depth))
    }
}

/// Indices of the nodes, each after the ones that it depends on, otherwise in the order of the nodes;
/// `None` if there is a cycle.
fn order<W>(nodes: &[PartNode<W>]) -> Option<Vec<usize>> {
    let mut waiting: Vec<usize> = nodes.iter().map(|node| node.before.len()).collect();
    let mut after = vec![Vec::new(); nodes.len()];
    for (index, node) in nodes.iter().enumerate() {
        node.before.iter().for_each(|earlier| after[*earlier].push(index));
    }
    let mut ready: BTreeSet<usize> = (0..nodes.len()).filter(|index| waiting[*index] == 0).collect();
    let mut order = Vec::with_capacity(nodes.len());
    while let Some(index) = ready.pop_first() {
        order.push(index);
        for &later in &after[index] {
            waiting[later] -= 1;
            if waiting[later] == 0 {
                ready.insert(later);
            }
        }
    }
    (order.len() == nodes.len()).then_some(order)
}
