//! Lets surplus lanes of a block's last warp take part in its barriers.
//!
//! A block whose number of threads is not a multiple of 32 has *surplus* lanes in its last warp. If
//! the real blocks of the launch are larger, these lanes exist, and a barrier with a thread count
//! waits for them. They therefore stay and execute the *skeleton* of the kernel: the basic blocks
//! that all threads execute equally often, with all their barriers and uniform branches. The
//! condition of a uniform branch depends only on uniform registers, which surplus lanes compute
//! too.
//!
//! - An instruction that may access memory is executed only by threads of the block ([`ACTIVE`]).
//! - At a divergent branch, surplus lanes jump directly to the reconvergence point.
//! - The value that a surplus lane contributes to `bar.red` does not change the result.

use crate::code::Code;
use crate::threads::{Divergence, is_block_barrier, is_pure, waits_for_threads};
use atoll_ptx::analysis::{BlockId, Cfg, Code as KernelCode, DominatorTree, StatementId};
use atoll_ptx::{Guard, Instruction, Name, Operand, ScalarType, StateSpace, Statement, StatementKind};
use std::collections::BTreeMap;
use std::fmt;

/// True in the threads of the block, false in surplus lanes.
pub(crate) const ACTIVE: &str = "%atoll_active";
/// A predicate combined with [`ACTIVE`].
const BOTH: &str = "%atoll_both";
/// Predicates for guards.
const PREDICATES: [&str; 2] = [ACTIVE, BOTH];

/// Why surplus lanes cannot take part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// Threads wait in a device function, whose code has no skeleton for surplus lanes.
    WaitInFunction,
    /// Not all threads reach the barrier equally often, or some have exited before.
    DivergentBarrier,
    /// A warp-wide operation, whose result would depend on surplus lanes.
    WarpWide,
    /// A barrier for a part of the threads.
    CountedBarrier,
    /// No label at the reconvergence point is visible from the branch.
    NoReconvergenceLabel,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Obstacle::WaitInFunction => "a device function that is called here waits for other threads",
            Obstacle::DivergentBarrier => "not every thread reaches this barrier equally often",
            Obstacle::WarpWide => "this is a warp-wide operation",
            Obstacle::CountedBarrier => "this barrier is for some of the threads",
            Obstacle::NoReconvergenceLabel => "threads diverge here, and no label is visible where they reconverge",
        })
    }
}

/// The change to a statement.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Action {
    /// Only threads of the block execute it.
    Guard,
    /// Surplus lanes contribute a neutral value.
    Neutral,
    /// Surplus lanes jump to a label instead.
    SkipTo(Name),
    /// Surplus lanes exit instead.
    Leave,
}

/// The changes to one kernel.
#[derive(Debug, Default)]
pub(crate) struct SurplusLanes {
    actions: BTreeMap<StatementId, Action>,
    /// New labels before statements.
    labels: BTreeMap<StatementId, Name>,
}

/// Declares the registers of the changes.
pub(crate) fn declare(code: &mut Code) {
    code.registers(ScalarType::Pred, &PREDICATES);
}

impl SurplusLanes {
    /// Plans the skeleton, or returns the obstacle and its line.
    pub(crate) fn plan(
        code: &KernelCode<'_>,
        cfg: &Cfg,
        divergence: &Divergence,
        callees_wait: bool,
    ) -> Result<SurplusLanes, (Obstacle, u32)> {
        let mut plan = SurplusLanes::default();
        let postdominators = DominatorTree::postdominators(cfg);
        for (id, statement) in code.statements() {
            let Some(instruction) = statement.instruction() else { continue };
            let line = statement.origin.line;
            let is_uniform = !divergence.in_block(cfg.block_of(id));
            if let Some(obstacle) = obstacle(instruction, is_uniform, callees_wait) {
                return Err((obstacle, line));
            }
            if !is_uniform {
                continue;
            }
            let action = match () {
                () if is_block_barrier(instruction) => instruction.has("red").then_some(Action::Neutral),
                () if instruction.is_terminator() => {
                    let diverges =
                        divergence.is_divergent_at(code, id) && cfg.block(cfg.block_of(id)).successors.len() > 1;
                    diverges
                        .then(|| plan.at_divergent_branch(code, cfg, &postdominators, id))
                        .transpose()
                        .map_err(|obstacle| (obstacle, line))?
                }
                // Surplus lanes also compute uniform values, because these may decide uniform
                // branches.
                () => (divergence.is_divergent_at(code, id) && touches_memory(instruction)).then_some(Action::Guard),
            };
            plan.actions.extend(action.map(|action| (id, action)));
        }
        Ok(plan)
    }

    /// The change for surplus lanes at a divergent branch.
    fn at_divergent_branch(
        &mut self,
        code: &KernelCode<'_>,
        cfg: &Cfg,
        postdominators: &DominatorTree,
        from: StatementId,
    ) -> Result<Action, Obstacle> {
        let reconvergence: BlockId =
            postdominators.immediate(cfg.block_of(from)).ok_or(Obstacle::NoReconvergenceLabel)?;
        if reconvergence == cfg.exit() {
            return Ok(Action::Leave);
        }
        let first = cfg.block(reconvergence).statements().next().ok_or(Obstacle::NoReconvergenceLabel)?;
        if let StatementKind::Label(name) = &code.statement(first).kind {
            return if code.label_at(from, name) == Some(first) {
                Ok(Action::SkipTo(name.clone()))
            } else {
                Err(Obstacle::NoReconvergenceLabel)
            };
        }
        // A label of our own is visible in its own scope and, in the outermost scope, everywhere.
        let outermost = code.statements().next().map(|(id, _)| code.scope(id));
        if code.scope(first) != code.scope(from) && Some(code.scope(first)) != outermost {
            return Err(Obstacle::NoReconvergenceLabel);
        }
        let name = Name::from(format!("$L_atoll_meet_{}", first.index()));
        self.labels.insert(first, name.clone());
        Ok(Action::SkipTo(name))
    }

    /// Appends a statement with its change.
    pub(crate) fn apply(&self, id: StatementId, mut statement: Statement, code: &mut Code) {
        if let Some(label) = self.labels.get(&id) {
            code.label(label);
        }
        match self.actions.get(&id) {
            None => {}
            Some(Action::SkipTo(label)) => code.emit_unless(ACTIVE, "bra", [label.into()]),
            Some(Action::Leave) => code.emit_unless(ACTIVE, "ret", []),
            Some(Action::Guard) => {
                if let StatementKind::Instruction(instruction) = statement.edit() {
                    guard(instruction, code);
                }
            }
            Some(Action::Neutral) => {
                if let StatementKind::Instruction(instruction) = statement.edit() {
                    neutralize(instruction, code);
                }
            }
        }
        code.statements.push(statement);
    }
}

/// The obstacle at an instruction, if there is one.
fn obstacle(instruction: &Instruction, is_uniform: bool, callees_wait: bool) -> Option<Obstacle> {
    const WARP_WIDE: [&str; 6] = ["activemask", "vote", "match", "shfl", "elect", "redux"];
    if is_block_barrier(instruction) {
        let is_counted = crate::virtualize_block_index::barrier_count(instruction).is_some();
        let divergent = !is_uniform || instruction.guard.is_some();
        return divergent.then_some(Obstacle::DivergentBarrier).or(is_counted.then_some(Obstacle::CountedBarrier));
    }
    if instruction.opcode == "call" && callees_wait {
        return Some(Obstacle::WaitInFunction);
    }
    (waits_for_threads(instruction) || WARP_WIDE.contains(&instruction.opcode.as_str())).then_some(Obstacle::WarpWide)
}

/// Whether an instruction may do more than work on registers.
fn touches_memory(instruction: &Instruction) -> bool {
    match (instruction.opcode.as_str(), instruction.space()) {
        // Arguments and results of calls are separate for every thread, and a call sequence has no
        // guards.
        ("st", Some(StateSpace::Param)) => false,
        ("ld", Some(StateSpace::Param)) => instruction.reads().into_iter().any(|name| name.starts_with('%')),
        (opcode, _) => !is_pure(opcode),
    }
}

/// Restricts an instruction to threads of the block.
fn guard(instruction: &mut Instruction, code: &mut Code) {
    // A call that not all threads of a warp execute is not uniform.
    if instruction.opcode == "call" {
        instruction.modifiers.retain(|m| m != "uni");
    }
    let predicate = match instruction.guard.take() {
        None => ACTIVE,
        Some(guard) => {
            join(&guard, code);
            BOTH
        }
    };
    instruction.guard = Some(Guard { predicate: Name::new(predicate), negated: false });
}

/// Computes into [`BOTH`] whether a guard holds and the thread belongs to the block.
fn join(guard: &Guard, code: &mut Code) {
    let predicate = Operand::Name(guard.predicate.clone());
    if guard.negated {
        code.emit("not.pred", [BOTH.into(), predicate]);
        code.emit("and.pred", [BOTH.into(), BOTH.into(), ACTIVE.into()]);
    } else {
        code.emit("and.pred", [BOTH.into(), predicate, ACTIVE.into()]);
    }
}

/// Makes surplus lanes contribute a neutral value to `bar.red`: true to a conjunction, false to a
/// disjunction or a count.
fn neutralize(barrier: &mut Instruction, code: &mut Code) {
    let is_conjunction = barrier.has("and");
    let Some(last) = barrier.operands.last_mut() else { return };
    let (name, negated) = match &*last {
        Operand::Name(name) => (name.clone(), false),
        Operand::Not(name) => (name.clone(), true),
        _ => return,
    };
    if is_conjunction {
        // `p or not active`, as `not (not p and active)`.
        join(&Guard { predicate: name, negated: !negated }, code);
        *last = Operand::Not(Name::new(BOTH));
    } else {
        join(&Guard { predicate: name, negated }, code);
        *last = Operand::Name(Name::new(BOTH));
    }
}
