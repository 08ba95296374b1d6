//! Live registers: registers whose value may still be read.

use super::cfg::{BlockId, Cfg};
use super::code::{Code, RegisterId, StatementId};
use crate::limits::MAX_LIVENESS_BITS;
use fixedbitset::FixedBitSet;
use std::collections::BTreeSet;

/// Live registers at block boundaries. A guarded write does not kill the old value, because the
/// write may not happen.
///
/// Only a register that some block reads before writing can be live across a boundary. The sets
/// have one bit for each of these registers. In real kernels, few registers are among them.
#[derive(Clone, Debug)]
pub struct Liveness {
    /// The registers that can be live across a boundary, by bit number.
    crossing: Vec<RegisterId>,
    live_in: Vec<FixedBitSet>,
    live_out: Vec<FixedBitSet>,
}

/// The function exceeds [`MAX_LIVENESS_BITS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("liveness of {registers} registers over {blocks} blocks exceeds the limit of {MAX_LIVENESS_BITS} bits")]
pub struct TooLarge {
    /// Registers that are live across block boundaries.
    pub registers: usize,
    /// Basic blocks.
    pub blocks: usize,
}

impl Liveness {
    /// Computes liveness.
    ///
    /// # Errors
    /// The sets would exceed [`MAX_LIVENESS_BITS`].
    pub fn of(code: &Code<'_>, cfg: &Cfg) -> Result<Liveness, TooLarge> {
        let (crossing, place) = crossing(code, cfg);
        if crossing.len().saturating_mul(cfg.len()) > MAX_LIVENESS_BITS {
            return Err(TooLarge { registers: crossing.len(), blocks: cfg.len() });
        }
        let empty = FixedBitSet::with_capacity(crossing.len());
        let mut live_in = vec![empty.clone(); cfg.len()];
        let mut live_out = live_in.clone();
        let effects: Vec<Effect> =
            cfg.blocks().map(|(_, block)| Effect::of(code, block.statements(), &place, &empty)).collect();
        for register in code.return_registers() {
            live_in[cfg.exit().index()].extend(place[register.index()]);
        }

        let mut waiting: Vec<BlockId> = cfg.blocks().map(|(id, _)| id).collect();
        let mut is_waiting = FixedBitSet::with_capacity(cfg.len());
        is_waiting.insert_range(..);
        while let Some(block) = waiting.pop() {
            let index = block.index();
            is_waiting.set(index, false);
            for edge in &cfg.block(block).successors {
                live_out[index].union_with(&live_in[edge.to.index()]);
            }
            let mut live = live_out[index].clone();
            live.difference_with(&effects[index].killed);
            live.union_with(&effects[index].read_first);
            if block == cfg.exit() {
                live.union_with(&live_in[index]);
            }
            let changed = live != live_in[index];
            live_in[index] = live;
            if changed || block == cfg.exit() {
                let again = cfg.block(block).predecessors.iter().filter(|p| !is_waiting.put(p.index()));
                waiting.extend(again);
            }
        }
        Ok(Liveness { crossing, live_in, live_out })
    }

    /// Registers whose value at the start of a block may be read later.
    pub fn live_in(&self, block: BlockId) -> impl Iterator<Item = RegisterId> + '_ {
        self.live_in[block.index()].ones().map(|place| self.crossing[place])
    }

    /// Registers whose value at the end of a block may be read later.
    pub fn live_out(&self, block: BlockId) -> impl Iterator<Item = RegisterId> + '_ {
        self.live_out[block.index()].ones().map(|place| self.crossing[place])
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
        let mut live: BTreeSet<RegisterId> = self.live_out(block).collect();
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

/// The effect of a block on the crossing registers.
struct Effect {
    read_first: FixedBitSet,
    killed: FixedBitSet,
}

impl Effect {
    fn of(
        code: &Code<'_>,
        statements: impl DoubleEndedIterator<Item = StatementId>,
        place: &[Option<usize>],
        empty: &FixedBitSet,
    ) -> Effect {
        let mut effect = Effect { read_first: empty.clone(), killed: empty.clone() };
        for id in statements.rev() {
            let guarded = is_guarded(code, id);
            let accesses = || code.accesses(id).iter().filter_map(|a| Some((a.role, place[a.register.index()]?)));
            for (_, place) in accesses().filter(|(role, _)| !guarded && role.writes() && !role.reads()) {
                effect.killed.insert(place);
                effect.read_first.set(place, false);
            }
            for (_, place) in accesses().filter(|(role, _)| role.reads()) {
                effect.read_first.insert(place);
            }
        }
        effect
    }
}

/// The registers that some block reads before it writes them, and the bit number of each register.
fn crossing(code: &Code<'_>, cfg: &Cfg) -> (Vec<RegisterId>, Vec<Option<usize>>) {
    let mut crosses = vec![false; code.registers().len()];
    // The block that last wrote each register, in source order.
    let mut written_in = vec![usize::MAX; code.registers().len()];
    for (block, basic_block) in cfg.blocks() {
        for id in basic_block.statements() {
            for access in code.accesses(id).iter().filter(|a| a.role.reads()) {
                let register = access.register.index();
                crosses[register] |= written_in[register] != block.index();
            }
            for access in code.accesses(id).iter().filter(|a| a.role.writes() && !is_guarded(code, id)) {
                written_in[access.register.index()] = block.index();
            }
        }
    }
    code.return_registers().for_each(|register| crosses[register.index()] = true);
    let crossing: Vec<RegisterId> = (0..crosses.len()).filter(|&r| crosses[r]).map(RegisterId::new).collect();
    let mut place = vec![None; crosses.len()];
    crossing.iter().enumerate().for_each(|(index, register)| place[register.index()] = Some(index));
    (crossing, place)
}
