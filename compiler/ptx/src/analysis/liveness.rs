//! Live registers: registers whose value may still be read.

use super::cfg::{BlockId, Cfg};
use super::code::{Code, RegisterId, StatementId};
use crate::flow::{self, Mentions, TooManyLive};
use std::collections::BTreeSet;

/// Live registers at block boundaries, computed by [`crate::flow`]. A guarded write does not kill
/// the old value, because the write may not happen.
#[derive(Clone, Debug)]
pub struct Liveness(flow::Liveness);

impl Liveness {
    /// Computes liveness.
    ///
    /// # Errors
    /// Too many registers are live across too many blocks.
    pub fn of(code: &Code<'_>, cfg: &Cfg) -> Result<Liveness, TooManyLive> {
        let mut mentions = Mentions::new(code.registers().len());
        for (id, block) in cfg.blocks() {
            block.statements().for_each(|statement| mention(&mut mentions, code, id, statement));
        }
        code.return_registers().for_each(|register| mentions.read(cfg.exit().index(), register.index()));
        let predecessors = |node| cfg.block(BlockId::new(node)).predecessors.iter().map(|from| from.index());
        flow::Liveness::of(cfg.len(), mentions, predecessors).map(Liveness)
    }

    /// Registers whose value at the start of a block may be read later.
    pub fn live_in(&self, block: BlockId) -> impl Iterator<Item = RegisterId> + '_ {
        self.0.at(block.index()).map(RegisterId::new)
    }

    /// Registers whose value at the end of a block may be read later.
    pub fn live_out(&self, cfg: &Cfg, block: BlockId) -> BTreeSet<RegisterId> {
        cfg.block(block).successors.iter().flat_map(|edge| self.live_in(edge.to)).collect()
    }

    /// Calls `visit` with every statement of a block, last to first, and the registers that are
    /// live after it.
    pub fn walk_back(
        &self,
        code: &Code<'_>,
        cfg: &Cfg,
        block: BlockId,
        mut visit: impl FnMut(StatementId, &BTreeSet<RegisterId>),
    ) {
        let mut live = self.live_out(cfg, block);
        for id in cfg.block(block).statements().rev() {
            visit(id, &live);
            step_back(code, id, &mut live);
        }
    }

    /// The registers that are live after a statement. For many statements of one block, use
    /// [`Liveness::walk_back`].
    pub fn live_after(&self, code: &Code<'_>, cfg: &Cfg, statement: StatementId) -> BTreeSet<RegisterId> {
        let mut found = BTreeSet::new();
        self.walk_back(code, cfg, cfg.block_of(statement), |id, live| {
            if id == statement {
                found.clone_from(live);
            }
        });
        found
    }
}

/// Adds the reads and then the writes of a statement.
fn mention(mentions: &mut Mentions, code: &Code<'_>, block: BlockId, id: StatementId) {
    let accesses = code.accesses(id);
    for access in accesses.iter().filter(|access| access.role.reads()) {
        mentions.read(block.index(), access.register.index());
    }
    if !is_guarded(code, id) {
        for access in accesses.iter().filter(|access| access.role.writes()) {
            mentions.write(block.index(), access.register.index());
        }
    }
}

/// Whether a statement is guarded, so that the registers it writes may keep their values.
fn is_guarded(code: &Code<'_>, id: StatementId) -> bool {
    code.instruction(id).is_some_and(|i| i.guard.is_some())
}

fn step_back(code: &Code<'_>, id: StatementId, live: &mut BTreeSet<RegisterId>) {
    let accesses = code.accesses(id);
    if !is_guarded(code, id) {
        for access in accesses.iter().filter(|a| a.role.writes() && !a.role.reads()) {
            live.remove(&access.register);
        }
    }
    live.extend(accesses.iter().filter(|a| a.role.reads()).map(|a| a.register));
}
