//! The control-flow graph.

use super::code::{Code, StatementId};
use super::entity::entity;
use crate::ast::*;
use std::ops::Range;

entity! {
    /// A basic block.
    BlockId
}

/// A straight-line run of statements: control enters at the first and leaves at the last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BasicBlock {
    first: StatementId,
    end: StatementId,
    /// Outgoing edges. Cases of a table are in table order; a branch precedes the fall-through
    /// edge.
    pub successors: Vec<Edge>,
    /// Predecessors, one entry per incoming edge: a block with two edges to this one is listed
    /// twice.
    pub predecessors: Vec<BlockId>,
}

impl BasicBlock {
    /// The statements: labels and directives first, including declarations.
    pub fn statements(&self) -> impl DoubleEndedIterator<Item = StatementId> + use<> {
        let range: Range<usize> = self.first.index()..self.end.index();
        range.map(StatementId::new)
    }

    /// The last statement, which decides where control goes. `None` for the exit block and for the
    /// entry block of an empty function.
    pub fn last(&self) -> Option<StatementId> {
        self.statements().next_back()
    }
}

/// An edge to another block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    /// The target block.
    pub to: BlockId,
    /// The condition under which it is taken.
    pub when: When,
}

/// When an edge is taken. The guard and the index belong to the block's last instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Always.
    Always,
    /// If the guard is true.
    Guard,
    /// If the guard is false.
    NotGuard,
    /// If the index of a table has this value (and the guard, if present, is true).
    Case(u32),
}

/// Basic blocks and their edges. There is one entry and one exit. The exit is an empty block, the
/// target of `ret`, `exit`, `trap` and the end of the body. Unreachable blocks are part of the
/// graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cfg {
    blocks: Vec<BasicBlock>,
    block_of: Vec<BlockId>,
}

/// Why a function has no control-flow graph. The verifier rejects such a function too.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CfgError {
    /// A branch goes to a label that is not declared in an enclosing scope.
    #[error("line {line}: there is no label `{label}` in scope")]
    UnknownLabel {
        /// The label.
        label: Name,
        /// Line of the branch, 0 if it was built.
        line: u32,
    },
    /// `brx.idx` names something other than a `.branchtargets` table.
    #[error("line {line}: there is no table of branch targets `{table}` in scope")]
    UnknownTable {
        /// The table.
        table: Name,
        /// Line of the branch, 0 if it was built.
        line: u32,
    },
    /// A branch has no target operand.
    #[error("line {line}: `{instruction}` has no target")]
    NoTarget {
        /// The instruction.
        instruction: String,
        /// Its line, 0 if it was built.
        line: u32,
    },
}

/// How an instruction affects control flow.
enum Flow<'a> {
    Next,
    Branch(Option<&'a Operand>),
    Table(Option<&'a Operand>),
    Exit,
}

fn flow(statement: &Statement) -> Flow<'_> {
    let Some(instruction) = statement.instruction() else { return Flow::Next };
    match instruction.opcode.as_str() {
        "bra" => Flow::Branch(instruction.operands.first()),
        "brx" => Flow::Table(instruction.operands.get(1)),
        "ret" | "exit" | "trap" => Flow::Exit,
        _ => Flow::Next,
    }
}

impl Instruction {
    /// Whether the instruction may transfer control instead of falling through: `bra`, `brx`,
    /// `ret`, `exit`, `trap`, guarded or not.
    pub fn is_terminator(&self) -> bool {
        matches!(self.opcode.as_str(), "bra" | "brx" | "ret" | "exit" | "trap")
    }
}

impl Cfg {
    /// Builds the graph of a function.
    ///
    /// # Errors
    /// A branch has no target, or its label or table is not in scope.
    pub fn of(code: &Code<'_>) -> Result<Cfg, CfgError> {
        let (ranges, block_of) = split_blocks(code);
        let empty = |&(first, end): &(usize, usize)| BasicBlock {
            first: StatementId::new(first),
            end: StatementId::new(end),
            successors: Vec::new(),
            predecessors: Vec::new(),
        };
        let mut cfg = Cfg { blocks: ranges.iter().map(empty).collect(), block_of };
        for block in 0..ranges.len() - 1 {
            cfg.blocks[block].successors = cfg.successors(code, BlockId::new(block))?;
        }
        for block in 0..cfg.blocks.len() {
            for edge in 0..cfg.blocks[block].successors.len() {
                let to = cfg.blocks[block].successors[edge].to;
                cfg.blocks[to.index()].predecessors.push(BlockId::new(block));
            }
        }
        Ok(cfg)
    }

    /// Every block, in source order; the exit is last.
    pub fn blocks(&self) -> impl ExactSizeIterator<Item = (BlockId, &BasicBlock)> + DoubleEndedIterator {
        self.blocks.iter().enumerate().map(|(index, block)| (BlockId::new(index), block))
    }

    /// A block.
    pub fn block(&self, id: BlockId) -> &BasicBlock {
        &self.blocks[id.index()]
    }

    /// The number of blocks, including the exit.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Always false: there are always an entry and an exit.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// The block where the function begins.
    pub fn entry(&self) -> BlockId {
        BlockId::new(0)
    }

    /// The empty exit block.
    pub fn exit(&self) -> BlockId {
        BlockId::new(self.blocks.len() - 1)
    }

    /// The block of a statement.
    pub fn block_of(&self, statement: StatementId) -> BlockId {
        self.block_of[statement.index()]
    }

    /// The reachable blocks in reverse postorder: every block precedes its successors, except along
    /// back edges.
    pub fn reverse_postorder(&self) -> Vec<BlockId> {
        let mut seen = vec![false; self.len()];
        let mut order = Vec::with_capacity(self.len());
        let mut stack = vec![(self.entry(), 0)];
        seen[self.entry().index()] = true;
        while let Some((block, next)) = stack.pop() {
            match self.block(block).successors.get(next) {
                Some(edge) => {
                    stack.push((block, next + 1));
                    if !std::mem::replace(&mut seen[edge.to.index()], true) {
                        stack.push((edge.to, 0));
                    }
                }
                None => order.push(block),
            }
        }
        order.reverse();
        order
    }

    fn successors(&self, code: &Code<'_>, block: BlockId) -> Result<Vec<Edge>, CfgError> {
        let next = BlockId::new(block.index() + 1);
        let fall_through = |when| Edge { to: next, when };
        let Some(last) = self.block(block).last() else { return Ok(vec![fall_through(When::Always)]) };
        let guarded = code.instruction(last).is_some_and(|i| i.guard.is_some());
        let taken = if guarded { When::Guard } else { When::Always };
        let mut edges = match flow(code.statement(last)) {
            Flow::Next => return Ok(vec![fall_through(When::Always)]),
            Flow::Exit => vec![Edge { to: self.exit(), when: taken }],
            Flow::Branch(Some(Operand::Name(label))) => vec![Edge { to: self.target(code, last, label)?, when: taken }],
            Flow::Table(Some(Operand::Name(table))) => self.cases(code, last, table)?,
            Flow::Branch(_) | Flow::Table(_) => {
                let instruction = code.statement(last).kind.to_string();
                return Err(CfgError::NoTarget { instruction, line: code.statement(last).origin.line });
            }
        };
        edges.extend(guarded.then(|| fall_through(When::NotGuard)));
        Ok(edges)
    }

    fn target(&self, code: &Code<'_>, from: StatementId, label: &Name) -> Result<BlockId, CfgError> {
        let target =
            code.label_at(from, label).filter(|&id| matches!(code.statement(id).kind, StatementKind::Label(_)));
        let unknown = || CfgError::UnknownLabel { label: label.clone(), line: code.statement(from).origin.line };
        target.map(|id| self.block_of(id)).ok_or_else(unknown)
    }

    fn cases(&self, code: &Code<'_>, from: StatementId, table: &Name) -> Result<Vec<Edge>, CfgError> {
        let found = code.label_at(from, table).map(|id| &code.statement(id).kind);
        let Some(StatementKind::BranchTargets { targets, .. }) = found else {
            return Err(CfgError::UnknownTable { table: table.clone(), line: code.statement(from).origin.line });
        };
        let edge = |(case, label)| Ok(Edge { to: self.target(code, from, label)?, when: When::Case(case) });
        (0..).zip(targets).map(edge).collect()
    }
}

/// Splits the statements into blocks. Returns the statement range of each block, with the empty
/// exit last, and the block of every statement.
fn split_blocks(code: &Code<'_>) -> (Vec<(usize, usize)>, Vec<BlockId>) {
    let mut ranges = Vec::new();
    let mut block_of = Vec::with_capacity(code.len());
    let mut first = 0;
    let mut behind_label = false;
    let mut behind_terminator = false;
    for (id, statement) in code.statements() {
        let is_label = matches!(statement.kind, StatementKind::Label(_));
        if id.index() > first && (behind_terminator || is_label && !behind_label) {
            ranges.push((first, id.index()));
            first = id.index();
        }
        block_of.push(BlockId::new(ranges.len()));
        behind_label = is_label;
        behind_terminator = !matches!(flow(statement), Flow::Next);
    }
    ranges.push((first, code.len()));
    ranges.push((code.len(), code.len()));
    (ranges, block_of)
}
