//! Graphs: work that a program builds or captures once and launches many times.
//!
//! They exist only in the client. A launch is expanded: the program's library makes the calls of
//! all nodes in an order that satisfies the dependencies, so a server sees plain calls. `W` is what
//! a node does; this module never looks into it.
//!
//! Invariants:
//! - Numbers of graphs, nodes and executable graphs are never reused.
//! - The graph of a child node belongs to the node: it is a copy of the graph that the program gave,
//!   and ends with the node. So graphs are trees of graphs, at most [`GRAPH_DEPTH_MAX`] deep.
//! - A graph may have cycles until it is made executable.

mod capture;
mod executable;
#[cfg(test)]
mod tests;

use crate::code::Code;
use crate::limits::{GRAPH_DEPTH_MAX, GRAPH_NODES_MAX};
use std::collections::{BTreeMap, BTreeSet};

pub use capture::{CaptureMode, CaptureStatus};
pub use executable::{Mismatch, MismatchKind};

/// What a node does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Task<W> {
    /// Nothing; it only orders other nodes.
    Empty,
    /// One call.
    Work(W),
    /// A graph, by its number.
    Child(u32),
}

/// A node of a graph.
#[derive(Clone, Debug)]
struct Node<W> {
    graph: u32,
    task: Task<W>,
    /// The nodes that it depends on.
    before: BTreeSet<u32>,
    /// The node that it is a copy of; 0 for none.
    origin: u32,
}

/// Who destroys a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holder {
    Program,
    /// A child node, by its number; 0 while it is being added.
    Node(u32),
    /// A capture that has not ended.
    Capture,
}

#[derive(Clone, Debug)]
struct Graph {
    nodes: BTreeSet<u32>,
    holder: Holder,
    /// Levels of child graphs below it.
    depth: usize,
}

/// All graphs of a program, its executable graphs, and the captures in progress.
#[derive(Clone, Debug)]
pub struct Graphs<W> {
    graphs: BTreeMap<u32, Graph>,
    nodes: BTreeMap<u32, Node<W>>,
    executables: BTreeMap<u32, executable::Executable<W>>,
    /// Nodes of the executable graphs.
    executable_nodes: usize,
    captures: capture::Captures,
    last: u32,
}

impl<W> Default for Graphs<W> {
    fn default() -> Graphs<W> {
        Graphs {
            graphs: BTreeMap::new(),
            nodes: BTreeMap::new(),
            executables: BTreeMap::new(),
            executable_nodes: 0,
            captures: capture::Captures::default(),
            last: 0,
        }
    }
}

impl<W: Clone> Graphs<W> {
    /// A new graph without nodes.
    ///
    /// # Errors
    /// If there are too many objects.
    pub fn create(&mut self) -> Result<u32, Code> {
        self.new_graph(Holder::Program)
    }

    /// Destroys a graph, its nodes and their child graphs. Executable graphs made from it stay.
    ///
    /// # Errors
    /// If the graph does not exist, belongs to a node, or is being captured.
    pub fn destroy(&mut self, graph: u32) -> Result<(), Code> {
        let known = self.graphs.get(&graph).filter(|graph| graph.holder == Holder::Program);
        known.ok_or(Code::INVALID_VALUE)?;
        self.drop_graph(graph);
        Ok(())
    }

    /// Returns an error if the graph does not exist.
    pub fn check_graph(&self, graph: u32) -> Result<(), Code> {
        self.graph(graph).map(drop)
    }

    /// Adds a node that depends on others of its graph.
    ///
    /// # Errors
    /// If the graph does not exist, a dependency is named twice or is not a node of it, or there are
    /// too many nodes.
    pub fn add(&mut self, graph: u32, before: &[u32], work: Option<W>) -> Result<u32, Code> {
        let before = self.dependencies(graph, before)?;
        self.new_node(graph, before, work.map_or(Task::Empty, Task::Work), 0)
    }

    /// Adds a node that is a copy of a graph.
    ///
    /// # Errors
    /// As for [`Graphs::add`], or if graphs would be nested too deeply.
    pub fn add_child(&mut self, graph: u32, before: &[u32], child: u32) -> Result<u32, Code> {
        let before = self.dependencies(graph, before)?;
        let depth = self.graph(child)?.depth + 1;
        self.admit_depth(graph, depth)?;
        let copy = self.copy_graph(child, Holder::Node(0))?;
        self.new_child(graph, before, copy)
    }

    /// The graph of a child node; an error for other nodes.
    pub fn child(&self, node: u32) -> Result<u32, Code> {
        match self.node(node)?.task {
            Task::Child(graph) => Ok(graph),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    /// Destroys a node and its dependencies.
    ///
    /// # Errors
    /// If it does not exist, or its graph is being captured.
    pub fn remove(&mut self, node: u32) -> Result<(), Code> {
        let graph = self.node(node)?.graph;
        if self.graph(graph)?.holder == Holder::Capture {
            return Err(Code::NOT_PERMITTED);
        }
        for other in self.siblings(graph) {
            self.nodes.entry(other).and_modify(|other| {
                other.before.remove(&node);
            });
        }
        self.graphs.entry(graph).and_modify(|graph| {
            graph.nodes.remove(&node);
        });
        self.drop_node(node);
        Ok(())
    }

    /// What a node does.
    pub fn task(&self, node: u32) -> Result<&Task<W>, Code> {
        self.node(node).map(|node| &node.task)
    }

    /// What a node does, if that is a call; an error for other nodes.
    pub fn work(&self, node: u32) -> Result<&W, Code> {
        match self.task(node)? {
            Task::Work(work) => Ok(work),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    /// Changes the call of a node that has one. The caller has checked that it is of the same kind.
    pub fn set_work(&mut self, node: u32, work: W) -> Result<(), Code> {
        match &mut self.nodes.get_mut(&node).ok_or(Code::INVALID_VALUE)?.task {
            Task::Work(old) => *old = work,
            _ => return Err(Code::INVALID_VALUE),
        }
        Ok(())
    }

    /// The nodes of a graph, in the order in which they were added.
    pub fn nodes(&self, graph: u32) -> Result<Vec<u32>, Code> {
        Ok(self.graph(graph)?.nodes.iter().copied().collect())
    }

    /// The nodes of a graph that depend on no other.
    pub fn roots(&self, graph: u32) -> Result<Vec<u32>, Code> {
        let nodes = self.nodes(graph)?;
        Ok(nodes.into_iter().filter(|node| self.before(*node).is_ok_and(|before| before.is_empty())).collect())
    }

    /// The dependencies in a graph: pairs of an earlier and a later node.
    pub fn edges(&self, graph: u32) -> Result<Vec<(u32, u32)>, Code> {
        let nodes = self.nodes(graph)?;
        Ok(nodes
            .into_iter()
            .flat_map(|node| self.before(node).unwrap_or_default().into_iter().map(move |earlier| (earlier, node)))
            .collect())
    }

    /// The nodes that a node depends on.
    pub fn before(&self, node: u32) -> Result<Vec<u32>, Code> {
        Ok(self.node(node)?.before.iter().copied().collect())
    }

    /// The nodes that depend on a node.
    pub fn after(&self, node: u32) -> Result<Vec<u32>, Code> {
        let nodes = self.siblings(self.node(node)?.graph);
        Ok(nodes.into_iter().filter(|other| self.nodes.get(other).is_some_and(|o| o.before.contains(&node))).collect())
    }

    /// Adds dependencies: each pair is an earlier and a later node of the graph. Nothing changes if
    /// one of them is refused.
    ///
    /// # Errors
    /// If a node is not in the graph, depends on itself, or depends on the other already.
    pub fn connect(&mut self, graph: u32, pairs: &[(u32, u32)]) -> Result<(), Code> {
        let mut seen = BTreeSet::new();
        for &(earlier, later) in pairs {
            let known = self.pair(graph, earlier, later)?;
            if earlier == later || known || !seen.insert((earlier, later)) {
                return Err(Code::INVALID_VALUE);
            }
        }
        for &(earlier, later) in pairs {
            self.nodes.entry(later).and_modify(|later| {
                later.before.insert(earlier);
            });
        }
        Ok(())
    }

    /// Removes dependencies. Nothing changes if one of them does not exist.
    ///
    /// # Errors
    /// If a node is not in the graph, or a dependency does not exist.
    pub fn disconnect(&mut self, graph: u32, pairs: &[(u32, u32)]) -> Result<(), Code> {
        for &(earlier, later) in pairs {
            if !self.pair(graph, earlier, later)? {
                return Err(Code::INVALID_VALUE);
            }
        }
        for &(earlier, later) in pairs {
            self.nodes.entry(later).and_modify(|later| {
                later.before.remove(&earlier);
            });
        }
        Ok(())
    }

    /// A copy of a graph.
    ///
    /// # Errors
    /// If the graph does not exist, or there are too many nodes.
    pub fn copy(&mut self, graph: u32) -> Result<u32, Code> {
        self.copy_graph(graph, Holder::Program)
    }

    /// The node of a copied graph that is the copy of a node.
    ///
    /// # Errors
    /// If the graph is not a copy, or has no copy of the node.
    pub fn find_in_copy(&self, node: u32, copy: u32) -> Result<u32, Code> {
        self.node(node)?;
        let nodes = &self.graph(copy)?.nodes;
        let is_copy = |other: &&u32| self.nodes.get(*other).is_some_and(|other| other.origin == node);
        nodes.iter().find(is_copy).copied().ok_or(Code::INVALID_VALUE)
    }

    fn graph(&self, graph: u32) -> Result<&Graph, Code> {
        self.graphs.get(&graph).ok_or(Code::INVALID_VALUE)
    }

    fn node(&self, node: u32) -> Result<&Node<W>, Code> {
        self.nodes.get(&node).ok_or(Code::INVALID_VALUE)
    }

    fn siblings(&self, graph: u32) -> Vec<u32> {
        self.graphs.get(&graph).map(|graph| graph.nodes.iter().copied().collect()).unwrap_or_default()
    }

    /// Whether a node depends on another; an error if one of them is not in the graph.
    fn pair(&self, graph: u32, earlier: u32, later: u32) -> Result<bool, Code> {
        let (one, other) = (self.node(earlier)?, self.node(later)?);
        if one.graph != graph || other.graph != graph {
            return Err(Code::INVALID_VALUE);
        }
        Ok(other.before.contains(&earlier))
    }

    /// Dependencies of a new node as a set.
    fn dependencies(&self, graph: u32, before: &[u32]) -> Result<BTreeSet<u32>, Code> {
        let nodes = &self.graph(graph)?.nodes;
        let set: BTreeSet<u32> = before.iter().copied().collect();
        let is_sound = set.len() == before.len() && set.is_subset(nodes);
        if is_sound { Ok(set) } else { Err(Code::INVALID_VALUE) }
    }

    fn number(&mut self) -> Result<u32, Code> {
        self.last = self.last.checked_add(1).ok_or(Code::OUT_OF_MEMORY)?;
        Ok(self.last)
    }

    /// Returns an error if that many more graphs and nodes are too many.
    fn admit(&self, more: usize) -> Result<(), Code> {
        let count = self.nodes.len() + self.graphs.len() + self.executable_nodes;
        if count.saturating_add(more) > GRAPH_NODES_MAX { Err(Code::OUT_OF_MEMORY) } else { Ok(()) }
    }

    /// Makes room for that many levels below a graph, which may be the graph of a child node itself.
    fn admit_depth(&mut self, graph: u32, depth: usize) -> Result<(), Code> {
        let (mut at, mut levels) = (graph, Vec::new());
        loop {
            levels.push(at);
            if depth + levels.len() - 1 > GRAPH_DEPTH_MAX {
                return Err(Code::NOT_SUPPORTED);
            }
            let Holder::Node(node) = self.graph(at)?.holder else { break };
            at = self.node(node)?.graph;
        }
        for (level, graph) in levels.into_iter().enumerate() {
            self.graphs.entry(graph).and_modify(|graph| graph.depth = graph.depth.max(depth + level));
        }
        Ok(())
    }

    fn new_graph(&mut self, holder: Holder) -> Result<u32, Code> {
        self.admit(1)?;
        let number = self.number()?;
        self.graphs.insert(number, Graph { nodes: BTreeSet::new(), holder, depth: 0 });
        Ok(number)
    }

    fn new_node(&mut self, graph: u32, before: BTreeSet<u32>, task: Task<W>, origin: u32) -> Result<u32, Code> {
        self.admit(1)?;
        let number = self.number()?;
        self.nodes.insert(number, Node { graph, task, before, origin });
        self.graphs.entry(graph).and_modify(|graph| {
            graph.nodes.insert(number);
        });
        Ok(number)
    }

    /// Adds a node for a graph that has no holder yet. The graph is dropped if there are too many
    /// nodes.
    fn new_child(&mut self, graph: u32, before: BTreeSet<u32>, child: u32) -> Result<u32, Code> {
        let added = self.new_node(graph, before, Task::Child(child), 0);
        match added {
            Ok(node) => self.hold(child, node),
            Err(_) => self.drop_graph(child),
        }
        added
    }

    fn hold(&mut self, graph: u32, node: u32) {
        self.graphs.entry(graph).and_modify(|graph| graph.holder = Holder::Node(node));
    }

    /// The number of graphs and nodes that a copy of a graph adds.
    fn size(&self, graph: u32) -> usize {
        let of_node = |node: &u32| match self.nodes.get(node).map(|node| &node.task) {
            Some(Task::Child(child)) => 1 + self.size(*child),
            _ => 1,
        };
        1 + self.graphs.get(&graph).map_or(0, |graph| graph.nodes.iter().map(of_node).sum())
    }

    fn copy_graph(&mut self, graph: u32, holder: Holder) -> Result<u32, Code> {
        let depth = self.graph(graph)?.depth;
        self.admit(self.size(graph))?;
        let copy = self.new_graph(holder)?;
        let mut copies = BTreeMap::new();
        for node in self.siblings(graph) {
            let Some(Node { task, before, .. }) = self.nodes.get(&node).cloned() else { continue };
            let task = match task {
                Task::Child(child) => Task::Child(self.copy_graph(child, Holder::Node(0))?),
                task => task,
            };
            let child = if let Task::Child(child) = task { Some(child) } else { None };
            let added = self.new_node(copy, BTreeSet::new(), task, node)?;
            if let Some(child) = child {
                self.hold(child, added);
            }
            copies.insert(node, (added, before));
        }
        for (node, before) in copies.values() {
            let copied = before.iter().filter_map(|earlier| copies.get(earlier)).map(|(earlier, _)| *earlier);
            self.nodes.entry(*node).and_modify(|node| node.before = copied.collect());
        }
        self.graphs.entry(copy).and_modify(|copy| copy.depth = depth);
        Ok(copy)
    }

    fn drop_graph(&mut self, graph: u32) {
        let Some(graph) = self.graphs.remove(&graph) else { return };
        graph.nodes.into_iter().for_each(|node| self.drop_node(node));
    }

    fn drop_node(&mut self, node: u32) {
        if let Some(Node { task: Task::Child(child), .. }) = self.nodes.remove(&node) {
            self.drop_graph(child);
        }
    }
}
