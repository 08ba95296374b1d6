//! The control-flow graph.

use super::code::{Code, StatementId};
use super::entity::entity;
use crate::ast::*;
use std::ops::Range;

entity! {
    /// A basic block.
    BlockId
}

/// A straight run of statements: control enters at its first and leaves at its last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BasicBlock {
    first: StatementId,
    end: StatementId,
    /// Where control may go from here, in order of the cases of a table; a branch comes before
    /// falling through.
    pub successors: Vec<Edge>,
    /// From where control may come; a block that branches here twice is there twice.
    pub predecessors: Vec<BlockId>,
}

impl BasicBlock {
    /// Its statements: labels and directives first, declarations among them.
    pub fn statements(&self) -> impl DoubleEndedIterator<Item = StatementId> + use<> {
        let range: Range<usize> = self.first.index()..self.end.index();
        range.map(StatementId::new)
    }

    /// Its last statement, which decides where control goes; the exit and the entry of an empty
    /// function have none.
    pub fn last(&self) -> Option<StatementId> {
        self.statements().next_back()
    }
}

/// A way from one block to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    /// Where it goes.
    pub to: BlockId,
    /// When it is taken.
    pub when: When,
}

/// When an edge is taken. The guard and the index are those of the block's last instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Always.
    Always,
    /// Where the guard holds.
    Guard,
    /// Where the guard does not hold.
    NotGuard,
    /// Where the index of a table has this value (and the guard, if there is one, holds).
    Case(u32),
}

/// Basic blocks and their edges. There is one entry and one exit; the exit is an empty block that
/// all of `ret`, `exit`, `trap` and the end of the body lead to. Blocks that nothing leads to are
/// part of the graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cfg {
    blocks: Vec<BasicBlock>,
    block_of: Vec<BlockId>,
}

/// Why a function has no control-flow graph. The verifier refuses such a function too.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CfgError {
    /// A branch goes to a label that is not declared where the branch can see it.
    #[error("line {line}: there is no label `{label}` here")]
    UnknownLabel {
        /// The label.
        label: Name,
        /// Line of the branch, 0 where it was built.
        line: u32,
    },
    /// `brx.idx` names something that is no `.branchtargets`.
    #[error("line {line}: there is no table of branch targets `{table}` here")]
    UnknownTable {
        /// The table.
        table: Name,
        /// Line of the branch, 0 where it was built.
        line: u32,
    },
    /// A branch does not say where it goes.
    #[error("line {line}: `{instruction}` has no target")]
    NoTarget {
        /// The instruction.
        instruction: String,
        /// Its line, 0 where it was built.
        line: u32,
    },
}

/// What an instruction does to the flow of control.
enum Flow<'a> {
    Next,
    Branch(Option<&'a Operand>),
    Table(Option<&'a Operand>),
    Leave,
}

fn flow(statement: &Statement) -> Flow<'_> {
    let Some(instruction) = statement.instruction() else { return Flow::Next };
    match instruction.opcode.as_str() {
        "bra" => Flow::Branch(instruction.operands.first()),
        "brx" => Flow::Table(instruction.operands.get(1)),
        "ret" | "exit" | "trap" => Flow::Leave,
        _ => Flow::Next,
    }
}

impl Instruction {
    /// Whether control does not simply go on behind this instruction: `bra`, `brx`, `ret`, `exit`,
    /// `trap`, guarded or not.
    pub fn is_terminator(&self) -> bool {
        matches!(self.opcode.as_str(), "bra" | "brx" | "ret" | "exit" | "trap")
    }
}

impl Cfg {
    /// The graph of a function.
    ///
    /// # Errors
    /// A branch without a target that can be found.
    pub fn of(code: &Code<'_>) -> Result<Cfg, CfgError> {
        let (ranges, block_of) = cut(code);
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

    /// Every block, in the order of the source; the exit comes last.
    pub fn blocks(&self) -> impl ExactSizeIterator<Item = (BlockId, &BasicBlock)> + DoubleEndedIterator {
        self.blocks.iter().enumerate().map(|(index, block)| (BlockId::new(index), block))
    }

    /// A block.
    pub fn block(&self, id: BlockId) -> &BasicBlock {
        &self.blocks[id.index()]
    }

    /// How many blocks there are, the exit included.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Never: there are always an entry and an exit.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Where a function begins.
    pub fn entry(&self) -> BlockId {
        BlockId::new(0)
    }

    /// The empty block that stands for having left.
    pub fn exit(&self) -> BlockId {
        BlockId::new(self.blocks.len() - 1)
    }

    /// The block of a statement.
    pub fn block_of(&self, statement: StatementId) -> BlockId {
        self.block_of[statement.index()]
    }

    /// Blocks that the entry leads to, in reverse postorder: before its successors comes every
    /// block, but for loops.
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
            Flow::Leave => vec![Edge { to: self.exit(), when: taken }],
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

/// Cuts the statements into blocks: the range of each, the exit's empty one last, and the block of
/// every statement.
fn cut(code: &Code<'_>) -> (Vec<(usize, usize)>, Vec<BlockId>) {
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
