//! Loops whose iterations can be counted in advance, and their strip mining.
//!
//! A loop is recognised in the form that compilers emit: the only edge back to the header is a
//! branch at the end of the only latch; the branch compares a counter with a bound that the loop
//! does not change; the counter changes by one constant step per iteration. A strip is the same
//! loop with a nearer bound, so an assembler that could unroll the loop can unroll the strip. Code
//! that has to run once in a while is placed between two strips.
//!
//! A nearer bound never makes the loop run longer, because the original condition is tested again
//! after each strip.

use crate::code::Code as NewCode;
use atoll_ptx::analysis::{BlockId, Cfg, Code, DominatorTree, LoopId, Loops, RegisterId, StatementId, When};
use atoll_ptx::{AddressBase, Guard, Immediate, Instruction, Name, Operand, ScalarType, StatementKind};

/// A loop whose iterations can be counted in advance.
#[derive(Clone, Debug)]
pub(crate) struct CountedLoop {
    /// The comparison in the latch.
    pub(crate) compare: StatementId,
    /// The branch back to the header, the last instruction of the latch.
    pub(crate) branch: StatementId,
    /// The comparison's opcode with its modifiers.
    dotted: String,
    relation: Relation,
    /// Type of the comparison.
    ty: ScalarType,
    counter: Name,
    bound: Operand,
    step: i64,
    /// The predicate that the comparison writes, and the value for which the loop continues.
    predicate: Name,
    continues_if_false: bool,
}

/// The relation between counter and bound while the loop continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relation {
    Below,
    Above,
    Differs,
}

impl CountedLoop {
    /// Recognises a loop.
    pub(crate) fn of(
        code: &Code<'_>,
        cfg: &Cfg,
        dominators: &DominatorTree,
        loops: &Loops,
        id: LoopId,
    ) -> Option<CountedLoop> {
        let header = loops.get(id).header;
        let [latch] = loops.get(id).latches[..] else { return None };
        let branch = cfg.block(latch).last()?;
        let guard = back_branch(code, cfg, branch, header)?;
        let predicate = code.register_at(branch, &guard.predicate)?;
        let inside = |statement: StatementId| loops.contains(id, cfg.block_of(statement));
        let compare = only_def(code, predicate, &inside).filter(|&def| cfg.block_of(def) == latch)?;
        // Nothing between comparison and branch may access the predicate.
        let between = (compare.index() + 1..branch.index()).map(StatementId::new);
        if between.into_iter().any(|statement| code.accesses(statement).iter().any(|a| a.register == predicate)) {
            return None;
        }
        let comparison = code.instruction(compare)?;
        let [Operand::Name(_), Operand::Name(counter), bound] = &comparison.operands[..] else { return None };
        let ty = comparison.ty().filter(|ty| matches!(ty.bytes(), 4 | 8))?;
        if comparison.opcode != "setp" || comparison.guard.is_some() || comparison.modifiers.len() != 2 {
            return None;
        }
        match bound {
            Operand::Immediate(Immediate::Int(_)) => {}
            Operand::Name(name)
                if code.register_at(compare, name).is_some_and(|r| defs(code, r, &inside).next().is_none()) => {}
            _ => return None,
        }
        let step = step(code, cfg, dominators, loops, id, latch, compare, counter)?;
        let relation = relation(&comparison.modifiers[0], ty, guard.negated, step)?;
        Some(CountedLoop {
            compare,
            branch,
            dotted: comparison.dotted(),
            relation,
            ty,
            counter: counter.clone(),
            bound: bound.clone(),
            step,
            predicate: guard.predicate.clone(),
            continues_if_false: guard.negated,
        })
    }

    /// The number of iterations, if start and bound are constants of 0 to 2^31 - 1. Only the usual
    /// form is recognised: one `mov` of a constant, in the only block that leads into the loop.
    pub(crate) fn constant_rounds(&self, code: &Code<'_>, cfg: &Cfg, loops: &Loops, id: LoopId) -> Option<u64> {
        let Operand::Immediate(Immediate::Int(bound)) = self.bound else { return None };
        let counter = code.register_at(self.compare, &self.counter)?;
        let outside = |statement: StatementId| !loops.contains(id, cfg.block_of(statement));
        let start = only_def(code, counter, &outside)?;
        let header = cfg.block(loops.get(id).header);
        let mut ways_in = header.predecessors.iter().filter(|&&block| !loops.contains(id, block));
        if ways_in.next() != Some(&cfg.block_of(start)) || ways_in.next().is_some() {
            return None;
        }
        let start = code.instruction(start).filter(|i| i.opcode == "mov" && i.guard.is_none())?;
        let Some(Operand::Immediate(Immediate::Int(start))) = start.operands.get(1) else { return None };
        // Signed and unsigned types of all widths order these constants alike.
        if [start, &bound].into_iter().any(|constant| !(0..=i128::from(i32::MAX)).contains(constant)) {
            return None;
        }
        let distance = u64::try_from((bound - start) * i128::from(self.step.signum())).ok()?;
        let step = self.step.unsigned_abs();
        let is_reached = self.relation != Relation::Differs || (distance > 0 && distance.is_multiple_of(step));
        is_reached.then(|| distance.div_ceil(step).max(1))
    }

    /// Writes the number of iterations of the next strip, at most `rounds`, to `left`. Iterations
    /// are counted down to zero, the form that assemblers unroll for every step and start.
    pub(crate) fn begin_strip(&self, code: &mut NewCode, rounds: u32, left: &str, registers: &StripRegisters) {
        let bits = self.ty.bits();
        let (work, far) = (if bits == 64 { registers.wide } else { registers.narrow }, registers.far);
        let step = self.step.abs();
        let counter = || Operand::Name(self.counter.clone());
        let (from, to) = if self.step > 0 { (counter(), self.bound.clone()) } else { (self.bound.clone(), counter()) };
        code.emit(&format!("sub.s{bits}"), [work.into(), to, from]);
        code.emit(&format!("setp.gt.u{bits}"), [far.into(), work.into(), (i64::from(rounds) * step).into()]);
        let is_ordered = self.relation != Relation::Differs;
        if is_ordered {
            let relation = if self.relation == Relation::Below { "lt" } else { "gt" };
            code.emit(
                &format!("setp.{relation}.{}", self.ty),
                [registers.before.into(), counter(), self.bound.clone()],
            );
            code.emit("and.pred", [far.into(), far.into(), registers.before.into()]);
        }
        if step > 1 {
            code.emit(&format!("add.s{bits}"), [work.into(), work.into(), (step - 1).into()]);
            code.emit(&format!("div.u{bits}"), [work.into(), work.into(), step.into()]);
        }
        let narrow = if bits == 64 { "cvt.u32.u64" } else { "mov.b32" };
        code.emit(narrow, [left.into(), work.into()]);
        // A loop that tests at its end always runs once, even if the counter is already at its
        // bound or beyond.
        if is_ordered {
            code.emit("selp.b32", [left.into(), left.into(), 1.into(), registers.before.into()]);
        } else {
            code.emit("max.u32", [left.into(), left.into(), 1.into()]);
        }
        code.emit("selp.b32", [left.into(), i64::from(rounds).into(), left.into(), far.into()]);
    }

    /// Replaces the loop's own comparison: whether the strip has another iteration.
    pub(crate) fn count_down(&self, code: &mut NewCode, left: &str) {
        code.emit("add.s32", [left.into(), left.into(), (-1).into()]);
        let goes_on = if self.continues_if_false { "setp.eq.s32" } else { "setp.ne.s32" };
        code.emit(goes_on, [Operand::Name(self.predicate.clone()), left.into(), 0.into()]);
    }

    /// Behind a strip: tests the loop's own condition again and jumps to `over` if the loop has
    /// ended.
    pub(crate) fn end_strip(&self, code: &mut NewCode, over: &str) {
        code.emit(
            &self.dotted,
            [Operand::Name(self.predicate.clone()), Operand::Name(self.counter.clone()), self.bound.clone()],
        );
        let over_if = Guard { predicate: self.predicate.clone(), negated: !self.continues_if_false };
        code.emit_guarded(Some(&over_if), "bra", [over.into()]);
    }

    /// Width of counter and bound in bits.
    pub(crate) fn bits(&self) -> u32 {
        self.ty.bits()
    }
}

/// Registers for the computation of strip bounds.
pub(crate) struct StripRegisters {
    /// 32 bits, for counters of 32 bits.
    pub(crate) narrow: &'static str,
    /// 64 bits, for counters of 64 bits.
    pub(crate) wide: &'static str,
    /// A predicate.
    pub(crate) far: &'static str,
    /// A second predicate.
    pub(crate) before: &'static str,
}

/// The guard of the branch back to the header, if the latch otherwise leaves the loop by falling
/// through.
fn back_branch<'c>(code: &Code<'c>, cfg: &Cfg, branch: StatementId, header: BlockId) -> Option<&'c Guard> {
    let instruction = code.instruction(branch).filter(|i| i.opcode == "bra")?;
    let back = cfg.block(cfg.block_of(branch)).successors.iter().find(|edge| edge.to == header)?;
    instruction.guard.as_ref().filter(|_| back.when == When::Guard)
}

/// The statements among `wanted` that write a register.
fn defs<'c>(
    code: &'c Code<'_>,
    register: RegisterId,
    wanted: &'c dyn Fn(StatementId) -> bool,
) -> impl Iterator<Item = StatementId> + 'c {
    let writes = move |id: StatementId| code.accesses(id).iter().any(|a| a.register == register && a.role.writes());
    code.statements().map(|(id, _)| id).filter(move |&id| wanted(id) && writes(id))
}

fn only_def(code: &Code<'_>, register: RegisterId, wanted: &dyn Fn(StatementId) -> bool) -> Option<StatementId> {
    let mut found = defs(code, register, wanted);
    let first = found.next()?;
    found.next().is_none().then_some(first)
}

/// The constant step by which every iteration changes the counter, once, before the comparison.
#[expect(clippy::too_many_arguments, reason = "all the analyses of one function")]
fn step(
    code: &Code<'_>,
    cfg: &Cfg,
    dominators: &DominatorTree,
    loops: &Loops,
    id: LoopId,
    latch: BlockId,
    compare: StatementId,
    counter: &Name,
) -> Option<i64> {
    let register = code.register_at(compare, counter)?;
    let def = only_def(code, register, &|statement| loops.contains(id, cfg.block_of(statement)))?;
    let block = cfg.block_of(def);
    let once_a_round =
        loops.innermost(block) == Some(id) && dominators.dominates(block, latch) && (block != latch || def < compare);
    let add = code.instruction(def).filter(|i| i.opcode == "add" && i.guard.is_none() && !i.writes_carry())?;
    let [Operand::Name(to), Operand::Name(from), Operand::Immediate(Immediate::Int(step))] = &add.operands[..] else {
        return None;
    };
    let step = i64::try_from(*step).ok().filter(|step| *step != 0 && step.unsigned_abs() <= STEP_MAX)?;
    (once_a_round && to == counter && from == counter && add.ty()?.bits() == code.register(register).ty.bits())
        .then_some(step)
}

/// Limit on the step, so that the bounds of the longest strips stay far within 32 bits.
const STEP_MAX: u64 = 1 << 16;

/// The relation by which a loop continues, if a nearer bound means fewer iterations.
fn relation(compare: &str, ty: ScalarType, negated: bool, step: i64) -> Option<Relation> {
    let is_ordered = ty.class() != atoll_ptx::types::TypeClass::Float;
    let relation = match (compare, negated) {
        ("lt", false) | ("ge", true) => Relation::Below,
        ("gt", false) | ("le", true) => Relation::Above,
        ("ne", false) | ("eq", true) => Relation::Differs,
        _ => return None,
    };
    let is_towards = match relation {
        Relation::Below => step > 0,
        Relation::Above => step < 0,
        Relation::Differs => true,
    };
    (is_ordered && is_towards).then_some(relation)
}

/// Whether a statement names the header of a loop in a table or takes its address, so that the name
/// cannot be replaced by another label.
pub(crate) fn is_in_table(code: &Code<'_>, label: &Name) -> bool {
    code.statements()
        .any(|(_, s)| matches!(&s.kind, StatementKind::BranchTargets { targets, .. } if targets.contains(label)))
        || code.statements().any(|(id, _)| code.instruction(id).is_some_and(|i| takes_address(i, label)))
}

fn takes_address(instruction: &Instruction, label: &Name) -> bool {
    instruction.opcode != "bra"
        && instruction.operands.iter().any(|operand| match operand {
            Operand::Name(name) => name == label,
            Operand::Address(address) => matches!(&address.base, AddressBase::Name(name) if name == label),
            _ => false,
        })
}
