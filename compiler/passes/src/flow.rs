//! Control flow of one function body: basic blocks over the instructions in source order, nested `{ … }` blocks flattened.

use atoll_ptx::{Body, Instruction, Name, Operand, Statement, StatementKind};
use petgraph::algo::dominators::{Dominators, simple_fast};
use petgraph::algo::tarjan_scc;
use petgraph::graph::{DiGraph, NodeIndex};
use petgraph::visit::Reversed;
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

/// A branch whose target is not declared where it can be seen; the verifier of `atoll-ptx` refuses such a body as well.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: a branch goes to the undeclared label `{label}`")]
pub struct UnknownLabel {
    /// The label.
    pub label: Name,
    /// Line of the branch, 0 where it was built.
    pub line: u32,
}

/// Index of a basic block; [`Flow::exit`] is one past the last and stands for having left.
pub(crate) type BlockIndex = usize;

/// A straight run of instructions.
#[derive(Clone, Debug)]
pub(crate) struct BasicBlock {
    /// Its instructions, as a range of [`Flow::instructions`].
    pub(crate) range: Range<usize>,
    /// Where control may go from its end.
    pub(crate) successors: Vec<BlockIndex>,
}

/// An instruction and where it stands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Site<'a> {
    /// The instruction.
    pub(crate) instruction: &'a Instruction,
    /// Source line, 0 where it was built.
    pub(crate) line: u32,
    scope: usize,
}

/// The control-flow graph of a body.
#[derive(Debug)]
pub(crate) struct Flow<'a> {
    /// Every instruction in source order.
    pub(crate) instructions: Vec<Site<'a>>,
    /// Basic blocks in source order; block 0 is the entry. Empty only for a body without instructions.
    pub(crate) blocks: Vec<BasicBlock>,
    graph: DiGraph<(), ()>,
}

/// What a flattened body is made of, before blocks are cut.
#[derive(Default)]
struct Flat<'a> {
    sites: Vec<Site<'a>>,
    /// Parent of each scope; scope 0 is the body itself.
    scopes: Vec<Option<usize>>,
    /// Label to the index of the instruction behind it.
    labels: HashMap<(usize, Name), usize>,
    branch_targets: HashMap<(usize, Name), &'a [Name]>,
    /// Indices of the instructions that start a block.
    leaders: BTreeSet<usize>,
}

impl<'a> Flow<'a> {
    /// The control flow of a body.
    pub(crate) fn new(body: &'a Body) -> Result<Flow<'a>, UnknownLabel> {
        let mut flat = Flat::default();
        flat.add_scope(body, None);
        let ranges = flat.block_ranges();
        let mut blocks = Vec::with_capacity(ranges.len());
        for (index, range) in ranges.iter().enumerate() {
            let successors = flat.successors(&ranges, index)?;
            blocks.push(BasicBlock { range: range.clone(), successors });
        }
        let mut graph = DiGraph::with_capacity(blocks.len() + 1, blocks.len() * 2);
        for _ in 0..=blocks.len() {
            graph.add_node(());
        }
        for (from, block) in blocks.iter().enumerate() {
            for &to in &block.successors {
                graph.add_edge(NodeIndex::new(from), NodeIndex::new(to), ());
            }
        }
        Ok(Flow { instructions: flat.sites, blocks, graph })
    }

    /// The block that stands for having left.
    pub(crate) fn exit(&self) -> BlockIndex {
        self.blocks.len()
    }

    /// The instructions of a block.
    pub(crate) fn instructions_of(&self, block: BlockIndex) -> &[Site<'a>] {
        &self.instructions[self.blocks[block].range.clone()]
    }

    /// For each block the one that every way out of it meets first; `None` where there is no way out or the ways meet only in having left.
    pub(crate) fn immediate_postdominators(&self) -> Vec<Option<BlockIndex>> {
        let dominators: Dominators<NodeIndex> = simple_fast(Reversed(&self.graph), NodeIndex::new(self.exit()));
        let nearest = |block: usize| dominators.immediate_dominator(NodeIndex::new(block)).map(NodeIndex::index);
        (0..self.blocks.len()).map(|block| nearest(block).filter(|&b| b != self.exit())).collect()
    }

    /// The blocks that can run between the end of `from` and `until`, which itself is not in the list.
    pub(crate) fn reachable_before(&self, from: BlockIndex, until: Option<BlockIndex>) -> Vec<BlockIndex> {
        let mut seen = vec![false; self.blocks.len()];
        let mut pending = self.blocks[from].successors.clone();
        let mut found = Vec::new();
        while let Some(block) = pending.pop() {
            if block == self.exit() || Some(block) == until || std::mem::replace(&mut seen[block], true) {
                continue;
            }
            found.push(block);
            pending.extend(&self.blocks[block].successors);
        }
        found
    }

    /// Loops as sets of blocks: each natural loop, and each strongly connected region as a whole, so that a loop with two entries is not missed.
    pub(crate) fn loops(&self) -> Vec<BTreeSet<BlockIndex>> {
        if self.blocks.is_empty() {
            return Vec::new();
        }
        let mut loops: Vec<BTreeSet<BlockIndex>> = tarjan_scc(&self.graph)
            .into_iter()
            .map(|region| region.into_iter().map(NodeIndex::index).collect::<BTreeSet<_>>())
            .filter(|region| region.iter().any(|&b| b != self.exit() && self.blocks[b].successors.iter().any(|s| region.contains(s))))
            .collect();
        let dominators = simple_fast(&self.graph, NodeIndex::new(0));
        for (tail, block) in self.blocks.iter().enumerate() {
            for &head in &block.successors {
                let dominates = dominators.dominators(NodeIndex::new(tail)).is_some_and(|mut up| up.any(|d| d.index() == head));
                if dominates {
                    loops.push(self.natural_loop(head, tail));
                }
            }
        }
        loops
    }

    /// The blocks from which `tail` is reached without passing `head`.
    fn natural_loop(&self, head: BlockIndex, tail: BlockIndex) -> BTreeSet<BlockIndex> {
        let mut body = BTreeSet::from([head]);
        let mut pending = vec![tail];
        while let Some(block) = pending.pop() {
            if body.insert(block) {
                pending.extend(self.graph.neighbors_directed(NodeIndex::new(block), petgraph::Incoming).map(NodeIndex::index));
            }
        }
        body
    }
}

impl<'a> Flat<'a> {
    fn add_scope(&mut self, body: &'a Body, parent: Option<usize>) {
        let scope = self.scopes.len();
        self.scopes.push(parent);
        for statement in &body.statements {
            self.add_statement(statement, scope);
        }
    }

    fn add_statement(&mut self, statement: &'a Statement, scope: usize) {
        match &statement.kind {
            StatementKind::Label(name) => {
                self.labels.insert((scope, name.clone()), self.sites.len());
                self.leaders.insert(self.sites.len());
            }
            StatementKind::BranchTargets { name, targets } => {
                self.branch_targets.insert((scope, name.clone()), targets);
            }
            StatementKind::Block(body) => self.add_scope(body, Some(scope)),
            StatementKind::Instruction(instruction) => {
                self.sites.push(Site { instruction, line: statement.origin.line, scope });
                if ends_block(instruction) {
                    self.leaders.insert(self.sites.len());
                }
            }
            _ => {}
        }
    }

    fn block_ranges(&self) -> Vec<Range<usize>> {
        let mut starts: Vec<usize> = std::iter::once(0).chain(self.leaders.iter().copied()).filter(|&i| i < self.sites.len()).collect();
        starts.dedup();
        let ends = starts.iter().skip(1).copied().chain([self.sites.len()]);
        starts.iter().copied().zip(ends).map(|(start, end)| start..end).collect()
    }

    /// The block that starts with an instruction; the exit for the place behind the last one.
    fn block_at(ranges: &[Range<usize>], instruction: usize) -> BlockIndex {
        ranges.partition_point(|range| range.start < instruction)
    }

    fn successors(&self, ranges: &[Range<usize>], index: usize) -> Result<Vec<BlockIndex>, UnknownLabel> {
        let Some(last) = ranges[index].end.checked_sub(1).map(|i| &self.sites[i]) else {
            return Ok(vec![ranges.len()]);
        };
        let instruction = last.instruction;
        let mut successors = match instruction.opcode.as_str() {
            "ret" | "exit" | "trap" => vec![ranges.len()],
            "bra" => vec![self.target(ranges, last, branch_label(instruction))?],
            "brx" => self.table(last)?.iter().map(|label| self.target(ranges, last, label)).collect::<Result<_, _>>()?,
            _ => vec![index + 1],
        };
        if ends_block(instruction) && instruction.guard.is_some() {
            successors.push(index + 1);
        }
        successors.sort_unstable();
        successors.dedup();
        Ok(successors)
    }

    fn target(&self, ranges: &[Range<usize>], from: &Site<'a>, label: &str) -> Result<BlockIndex, UnknownLabel> {
        let instruction = self.lookup(&self.labels, from, label)?;
        Ok(Self::block_at(ranges, *instruction))
    }

    fn table(&self, from: &Site<'a>) -> Result<&'a [Name], UnknownLabel> {
        let name = from.instruction.operands.last().and_then(operand_name).map_or("", Name::as_str);
        self.lookup(&self.branch_targets, from, name).copied()
    }

    /// What a name means to an instruction: the innermost declaration counts.
    fn lookup<'m, T>(&self, map: &'m HashMap<(usize, Name), T>, from: &Site<'a>, name: &str) -> Result<&'m T, UnknownLabel> {
        let name = Name::new(name);
        let mut scope = Some(from.scope);
        while let Some(inner) = scope {
            if let Some(found) = map.get(&(inner, name.clone())) {
                return Ok(found);
            }
            scope = self.scopes[inner];
        }
        Err(UnknownLabel { label: name, line: from.line })
    }
}

/// Whether control can go elsewhere than to the next instruction. A call comes back and does not end a block.
fn ends_block(instruction: &Instruction) -> bool {
    matches!(instruction.opcode.as_str(), "bra" | "brx" | "ret" | "exit" | "trap")
}

/// The label a `bra` goes to; empty for a malformed one, which then is an unknown label.
pub(crate) fn branch_label(instruction: &Instruction) -> &str {
    instruction.operands.first().and_then(operand_name).map_or("", Name::as_str)
}

fn operand_name(operand: &Operand) -> Option<&Name> {
    match operand {
        Operand::Name(name) => Some(name),
        _ => None,
    }
}
