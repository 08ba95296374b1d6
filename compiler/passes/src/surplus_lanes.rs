//! Lets the lanes of a warp that a block does not have take part in its barriers.
//!
//! A block whose threads are no multiple of 32 leaves *surplus* lanes in its last warp. In a launch
//! whose real blocks are larger these lanes exist, and a barrier with a count waits for them. So
//! they stay and walk the *skeleton* of the kernel: the basic blocks that all threads run equally
//! often, with all barriers and with all branches that take every thread the same way. What decides
//! such a branch is computed from registers that are the same in every thread, and that surplus
//! lanes compute too.
//!
//! - An instruction that could touch memory is only run by threads of the block ([`ACTIVE`]).
//! - Where threads part, surplus lanes go straight to the place where they meet again.
//! - What a surplus lane gives to `bar.red` changes nothing.

use crate::code::Code;
use crate::threads::{Divergence, is_block_barrier, is_pure, waits_for_threads};
use atoll_ptx::analysis::{BlockId, Cfg, Code as KernelCode, DominatorTree, StatementId};
use atoll_ptx::{Guard, Instruction, Name, Operand, ScalarType, StateSpace, Statement, StatementKind};
use std::collections::BTreeMap;
use std::fmt;

/// Holds in the threads that the block has.
pub(crate) const ACTIVE: &str = "%atoll_active";
/// A predicate joined with [`ACTIVE`].
const BOTH: &str = "%atoll_both";
/// The threads of the block, for guards.
const PREDICATES: [&str; 2] = [ACTIVE, BOTH];

/// Why surplus lanes cannot stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// Threads wait in a device function, whose code surplus lanes do not know.
    WaitInFunction,
    /// Not all threads reach the barrier equally often, or some have left before.
    DivergentBarrier,
    /// Lanes of a warp act together, and surplus lanes would be missing or too many.
    WarpWide,
    /// A barrier for some of the threads.
    CountedBarrier,
    /// The place where threads meet again cannot be named from where they part.
    NoMeeting,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Obstacle::WaitInFunction => "a device function that is called here waits for other threads",
            Obstacle::DivergentBarrier => "not every thread reaches this barrier equally often",
            Obstacle::WarpWide => "the lanes of a warp act together here",
            Obstacle::CountedBarrier => "this barrier is for some of the threads",
            Obstacle::NoMeeting => "threads part here and meet again where no label can be seen from here",
        })
    }
}

/// What surplus lanes make necessary at a statement.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Action {
    /// Only threads of the block run it.
    Guard,
    /// Surplus lanes give a value that changes nothing.
    Neutral,
    /// Surplus lanes go to a label instead.
    SkipTo(Name),
    /// Surplus lanes leave instead.
    Leave,
}

/// The changes to one kernel.
#[derive(Debug, Default)]
pub(crate) struct SurplusLanes {
    actions: BTreeMap<StatementId, Action>,
    /// Labels in front of statements.
    labels: BTreeMap<StatementId, Name>,
}

/// Declares the registers of the changes.
pub(crate) fn declare(code: &mut Code) {
    code.registers(ScalarType::Pred, &PREDICATES);
}

impl SurplusLanes {
    /// Plans the skeleton, or says what forbids one and in which line.
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
                    let parts = divergence.parts(code, id) && cfg.block(cfg.block_of(id)).successors.len() > 1;
                    parts
                        .then(|| plan.meeting(code, cfg, &postdominators, id))
                        .transpose()
                        .map_err(|obstacle| (obstacle, line))?
                }
                // What is the same in all threads is computed by surplus lanes too: it may decide where everybody goes.
                () => (divergence.parts(code, id) && touches_memory(instruction)).then_some(Action::Guard),
            };
            plan.actions.extend(action.map(|action| (id, action)));
        }
        Ok(plan)
    }

    /// What surplus lanes do where threads part.
    fn meeting(
        &mut self,
        code: &KernelCode<'_>,
        cfg: &Cfg,
        postdominators: &DominatorTree,
        from: StatementId,
    ) -> Result<Action, Obstacle> {
        let meeting: BlockId = postdominators.immediate(cfg.block_of(from)).ok_or(Obstacle::NoMeeting)?;
        if meeting == cfg.exit() {
            return Ok(Action::Leave);
        }
        let first = cfg.block(meeting).statements().next().ok_or(Obstacle::NoMeeting)?;
        if let StatementKind::Label(name) = &code.statement(first).kind {
            return if code.label_at(from, name) == Some(first) {
                Ok(Action::SkipTo(name.clone()))
            } else {
                Err(Obstacle::NoMeeting)
            };
        }
        // A label of our own is seen from its own scope and, in the outermost one, from everywhere.
        let outermost = code.statements().next().map(|(id, _)| code.scope(id));
        if code.scope(first) != code.scope(from) && Some(code.scope(first)) != outermost {
            return Err(Obstacle::NoMeeting);
        }
        let name = Name::from(format!("$L_atoll_meet_{}", first.index()));
        self.labels.insert(first, name.clone());
        Ok(Action::SkipTo(name))
    }

    /// Appends a statement with what surplus lanes make necessary.
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

/// What makes it impossible for surplus lanes to stay.
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

/// Whether an instruction does more than work on registers, as far as is known.
fn touches_memory(instruction: &Instruction) -> bool {
    match (instruction.opcode.as_str(), instruction.space()) {
        // Arguments and results of calls have places of their own in every thread, and a call's protocol has no guards.
        ("st", Some(StateSpace::Param)) => false,
        ("ld", Some(StateSpace::Param)) => instruction.reads().into_iter().any(|name| name.starts_with('%')),
        (opcode, _) => !is_pure(opcode),
    }
}

/// Lets only threads of the block run an instruction.
fn guard(instruction: &mut Instruction, code: &mut Code) {
    // A call that not all threads of a warp make is not uniform.
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

/// Computes into [`BOTH`] whether a guard holds in a thread of the block.
fn join(guard: &Guard, code: &mut Code) {
    let predicate = Operand::Name(guard.predicate.clone());
    if guard.negated {
        code.emit("not.pred", [BOTH.into(), predicate]);
        code.emit("and.pred", [BOTH.into(), BOTH.into(), ACTIVE.into()]);
    } else {
        code.emit("and.pred", [BOTH.into(), predicate, ACTIVE.into()]);
    }
}

/// Has surplus lanes give `bar.red` what changes nothing: true to a conjunction, false to a
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
        // p or not active, as not (not p and active).
        join(&Guard { predicate: name, negated: !negated }, code);
        *last = Operand::Not(Name::new(BOTH));
    } else {
        join(&Guard { predicate: name, negated }, code);
        *last = Operand::Name(Name::new(BOTH));
    }
}
