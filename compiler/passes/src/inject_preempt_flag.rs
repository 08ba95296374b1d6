//! Makes kernels preemptible: a block that has not started leaves if the task was preempted, and a
//! block that has finished is recorded.
//!
//! # Vocabulary
//! - A launch is *issued* under an epoch. The task's *epoch word* is newer than this epoch if the
//!   task was preempted since.
//! - A block *leaves* at entry if the word is newer, or if its *progress byte* shows that it ran in
//!   an earlier launch of the same invocation. In the first case it sets the launch's *evicted
//!   word*.
//! - A block that ran sets its progress byte when its last thread has finished.
//!
//! # Entry
//! Thread 0 reads the word and the byte. One `bar.red` then distributes its decision to the whole
//! block before any thread can leave. Only the loads of thread 0 are guarded; all other code is
//! uniform, so a vectorising target keeps the check scalar.
//!
//! # Completion
//! Since Volta a barrier waits for all threads that have not exited, and barriers pair by number,
//! not by their location in the code. How the pass finds the last thread therefore depends on the
//! body:
//! - [`Completion::Barrier`], if all threads execute every waiting operation equally often. All
//!   exits branch to one epilogue with a barrier, after which thread 0 sets the byte.
//! - [`Completion::Count`] otherwise. Threads exit where they did before. The threads of a warp
//!   that exit together elect one that subtracts their number from a counter in shared memory; the
//!   thread that brings it to zero sets the byte. This sequence is predicated and replaces every
//!   exit, including a jump to a bare `ret`: a common tail would be a reconvergence point, where
//!   exiting threads would wait for threads that wait for them at a barrier.
//!
//! A block that stops midway, at a check in a loop, has not finished. The pass does not change the
//! code through which it leaves.
//!
//! No register that the pass adds is live in the body: values are recomputed where they are needed
//! again.

use crate::code::{Code, at, prepend};
use crate::epoch::{self, EPOCH_WORD, ISSUED_EPOCH, PROGRESS, STOPPED_LABEL};
use crate::error::PassError;
use crate::module_facts::Dialect;
use crate::preemptible::{self, CalleesWait, NotPreemptible, Refusal, visit_statements};
use crate::threads::{Divergence, waits_for_threads};
use atoll_ptx::analysis::{Cfg, Code as KernelCode};
use atoll_ptx::{
    Body, Function, FunctionKind, Guard, Instruction, ItemKind, Module, Name, Operand, ScalarType, StateSpace,
    Statement, StatementKind, Variable,
};
use std::collections::HashMap;

/// How the last thread of a block is determined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// A barrier in a common epilogue.
    Barrier,
    /// A counter of running threads in shared memory.
    Count,
}

/// What the pass did to a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Preemption {
    /// The pass did not run.
    NotAsked,
    /// It has the flag.
    Injected {
        /// Byte offset of the appended parameters.
        offset: u32,
        /// How its completion is determined.
        completion: Completion,
    },
    /// It is unchanged.
    NotPreemptible(NotPreemptible),
}

// Predicates.
const FIRST: &str = "%atoll_first";
const NEWER: &str = "%atoll_newer";
const DONE: &str = "%atoll_done";
const LEAVE: &str = "%atoll_leave";
const AGREED: &str = "%atoll_agreed";
const LEADER: &str = "%atoll_leader";
const LAST: &str = "%atoll_last";
// 32-bit registers.
const WORD: &str = "%atoll_word";
const ISSUED: &str = "%atoll_issued";
const BYTE: &str = "%atoll_byte";
const X: &str = "%atoll_x";
const Y: &str = "%atoll_y";
const TOGETHER: &str = "%atoll_together";
const ENDING: &str = "%atoll_ending";
// 64-bit registers.
const SLOT: &str = "%atoll_slot";
const WIDE: &str = "%atoll_wide";

const BODY_LABEL: &str = "$L_atoll_body";
const END_LABEL: &str = "$L_atoll_end";

/// From this architecture on, a block leaves by a predicated `ret`. A jump over an unpredicated
/// `ret` would cost some kernels registers there (`docs/benchmarks/passes.md`). Older architectures
/// use the jump: without it, four convolutions of DenseNet with a register limit spill (ptxas
/// 12.9).
const LEAVES_WITHOUT_JUMP_SM: u32 = 80;

/// Injects the flag into every preemptible kernel of a module. Returns the outcome for each kernel,
/// in order.
pub(crate) fn inject_preempt_flag(module: &mut Module) -> Result<Vec<Preemption>, PassError> {
    let dialect = Dialect::of(module);
    let mut plans = Vec::new();
    for kernel in module.kernels() {
        plans.push(plan(module, kernel, dialect)?);
    }
    let kernels = module.items.iter_mut().filter(
        |item| matches!(&item.kind, ItemKind::Function(f) if f.kind == FunctionKind::Entry && f.body.is_some()),
    );
    for (item, plan) in kernels.zip(&plans) {
        if let Preemption::Injected { completion, .. } = plan
            && let ItemKind::Function(kernel) = item.edit()
        {
            Injection { kernel: kernel.name.clone(), dialect, completion: *completion }.apply(kernel);
        }
    }
    Ok(plans)
}

/// Decides about a kernel.
fn plan(module: &Module, kernel: &Function, dialect: Dialect) -> Result<Preemption, PassError> {
    if has_flag(kernel) {
        return Err(PassError::AlreadyPreemptible { kernel: kernel.name.to_string() });
    }
    match completion_of(module, kernel, dialect) {
        Ok((offset, completion)) => Ok(Preemption::Injected { offset, completion }),
        Err(Refusal::NotPreemptible(reason)) => Ok(Preemption::NotPreemptible(reason)),
        Err(Refusal::Broken(source)) => Err(PassError::BrokenFlow { function: kernel.name.to_string(), source }),
    }
}

/// Whether the pass has already run on a kernel.
fn has_flag(kernel: &Function) -> bool {
    let mut found = false;
    let leaves = |instruction: &Instruction| instruction.guard.as_ref().is_some_and(|guard| guard.predicate == AGREED);
    if let Some(body) = &kernel.body {
        visit_statements(body, &mut |statement| found |= statement.instruction().is_some_and(leaves));
    }
    found
}

/// Offset of the appended parameters, and how the kernel's completion is determined.
fn completion_of(module: &Module, kernel: &Function, dialect: Dialect) -> Result<(u32, Completion), Refusal> {
    let offset = epoch::planned_offset(kernel, dialect)?;
    let callees = preemptible::check(module, kernel)?;
    let code = KernelCode::of(kernel);
    let completion =
        if waits_are_uniform(&code, &Cfg::of(&code)?, callees) { Completion::Barrier } else { Completion::Count };
    if completion == Completion::Count && !dialect.counts_exits() {
        return Err(NotPreemptible::EarlyExitOnOldTarget { sm: dialect.sm, version: dialect.version }.into());
    }
    Ok((offset, completion))
}

/// Whether all threads execute every waiting operation equally often.
fn waits_are_uniform(code: &KernelCode<'_>, cfg: &Cfg, callees: CalleesWait) -> bool {
    let waits = |i: &Instruction| waits_for_threads(i) || callees != CalleesWait::Never && i.opcode == "call";
    let mut waiting =
        code.statements().filter_map(|(id, s)| Some((id, s.instruction().filter(|i| waits(i))?))).peekable();
    if waiting.peek().is_none() {
        return true;
    }
    let divergence = Divergence::of(code, cfg);
    callees != CalleesWait::Sometimes && waiting.all(|(id, instruction)| divergence.all_run(cfg, id, instruction))
}

/// The changes to one kernel.
struct Injection {
    kernel: Name,
    dialect: Dialect,
    completion: Completion,
}

impl Injection {
    fn apply(&self, kernel: &mut Function) {
        epoch::append_params(kernel);
        let Some(body) = &mut kernel.body else { return };
        let stopped = take_stopped_code(body);
        match self.completion {
            Completion::Barrier => self.join_exits(body),
            Completion::Count => self.count_exits(body),
        }
        body.statements.extend(stopped);
        prepend(body, self.entry());
    }

    fn named(&self, purpose: &str) -> String {
        epoch::named(&self.kernel, purpose)
    }

    fn counter(&self) -> String {
        self.named("atoll_threads")
    }

    /// Declarations, the check, and the exit of a block that leaves.
    fn entry(&self) -> Code {
        let mut code = Code::default();
        code.registers(ScalarType::Pred, &[FIRST, NEWER, DONE, LEAVE, AGREED]);
        code.registers(ScalarType::B32, &[WORD, ISSUED, BYTE, X, Y]);
        code.registers(ScalarType::B64, &[SLOT, WIDE]);
        if self.completion == Completion::Count {
            code.registers(ScalarType::Pred, &[LEADER, LAST]);
            code.registers(ScalarType::B32, &[TOGETHER, ENDING]);
            code.variable(Variable {
                align: Some(4),
                ..Variable::new(StateSpace::Shared, ScalarType::B32, &self.counter())
            });
        }
        self.find_first_thread(&mut code);
        self.find_progress_byte(&mut code);
        // The other threads keep the initial values, with which they vote to stay.
        code.emit("ld.param.u64", [WIDE.into(), at(&self.named(EPOCH_WORD))]);
        code.emit("ld.param.u32", [ISSUED.into(), at(&self.named(ISSUED_EPOCH))]);
        code.emit("mov.u32", [WORD.into(), ISSUED.into()]);
        code.emit("mov.u32", [BYTE.into(), 0.into()]);
        code.emit_if(FIRST, epoch::strong_load(self.dialect), [WORD.into(), at(WIDE)]);
        code.emit_if(FIRST, "ld.global.u8", [BYTE.into(), at(SLOT)]);
        if self.completion == Completion::Count {
            self.set_counter(&mut code);
        }
        // Epochs wrap around: an epoch is newer if it is less than half the range ahead.
        code.emit("sub.s32", [WORD.into(), WORD.into(), ISSUED.into()]);
        code.emit("setp.gt.s32", [NEWER.into(), WORD.into(), 0.into()]);
        code.emit("setp.ne.u32", [DONE.into(), BYTE.into(), 0.into()]);
        code.emit("or.pred", [LEAVE.into(), NEWER.into(), DONE.into()]);
        code.emit("bar.red.or.pred", [AGREED.into(), 0.into(), LEAVE.into()]);
        let jumps = self.dialect.sm < LEAVES_WITHOUT_JUMP_SM;
        if jumps {
            // `.uni`: otherwise an assembler considers the whole body divergent, keeps none of its
            // values in uniform registers, and runs out of general ones.
            code.emit_unless(AGREED, "bra.uni", [BODY_LABEL.into()]);
        }
        // A block that ran before must not cause the launch to be issued again.
        code.emit("not.pred", [DONE.into(), DONE.into()]);
        code.emit("and.pred", [NEWER.into(), NEWER.into(), DONE.into()]);
        epoch::set_evicted(&mut code, &self.kernel, self.dialect, Some(NEWER), WIDE);
        if jumps {
            code.emit("ret", []);
            code.label(BODY_LABEL);
        } else {
            code.emit_if(AGREED, "ret", []);
        }
        code
    }

    /// [`Completion::Barrier`]: redirects every exit to an epilogue.
    fn join_exits(&self, body: &mut Body) {
        let mut epilogue = Code::default();
        match body.statements.pop() {
            // The last `ret` is replaced by the label; comments before it stay.
            Some(mut last) if last.instruction().is_some_and(|i| is_exit(i) && i.guard.is_none()) => {
                *last.edit() = StatementKind::Label(Name::new(END_LABEL));
                let indented = last.origin.leading.trim_end_matches([' ', '\t']).len();
                last.origin.leading = last.origin.leading[..indented].into();
                epilogue.statements.push(last);
            }
            last => {
                body.statements.extend(last);
                epilogue.label(END_LABEL);
            }
        }
        redirect_exits(body);
        epilogue.emit("bar.sync", [0.into()]);
        self.find_first_thread(&mut epilogue);
        self.find_progress_byte(&mut epilogue);
        self.set_progress_byte(&mut epilogue, FIRST);
        epilogue.emit("ret", []);
        body.statements.extend(epilogue.statements);
    }

    /// [`Completion::Count`]: inserts the count before every exit. Control cannot run off the
    /// end of a kernel; the verifier checks that.
    fn count_exits(&self, body: &mut Body) {
        let ways_out = bare_exit_labels(body);
        self.count_exits_in(body, &ways_out);
    }

    fn count_exits_in(&self, body: &mut Body, ways_out: &[Name]) {
        let mut code = Code::default();
        for mut statement in std::mem::take(&mut body.statements) {
            if let StatementKind::Block(inner) = &mut statement.kind {
                self.count_exits_in(inner, ways_out);
            }
            match statement.instruction() {
                Some(i) if is_exit(i) || goes_to(i, ways_out) => {
                    let guard = i.guard.clone();
                    let start = code.statements.len();
                    self.count_exit(&mut code, guard.as_ref());
                    if let Some(first) = code.statements.get_mut(start) {
                        first.origin.leading = std::mem::take(&mut statement.origin.leading);
                    }
                }
                _ => code.statements.push(statement),
            }
        }
        body.statements = code.statements;
    }

    /// Counts the threads under `guard` as finished and ends them; the thread that counts the last
    /// ones sets the progress byte.
    ///
    /// The active threads of a warp first agree on the set that exits and synchronise, so that the
    /// writes of all of them precede the leader's update of the counter.
    fn count_exit(&self, code: &mut Code, guard: Option<&Guard>) {
        code.emit("activemask.b32", [TOGETHER.into()]);
        match guard {
            None => code.emit("mov.b32", [ENDING.into(), TOGETHER.into()]),
            Some(guard) => {
                let ends = if guard.negated {
                    Operand::Not(guard.predicate.clone())
                } else {
                    Operand::Name(guard.predicate.clone())
                };
                code.emit("vote.sync.ballot.b32", [ENDING.into(), ends, TOGETHER.into()]);
            }
        }
        code.emit("bar.warp.sync", [TOGETHER.into()]);
        // The leader is the first thread of the exiting ones.
        code.emit("mov.u32", [Y.into(), "%lanemask_lt".into()]);
        code.emit("and.b32", [Y.into(), Y.into(), ENDING.into()]);
        code.emit("setp.eq.u32", [LEADER.into(), Y.into(), 0.into()]);
        if let Some(guard) = guard {
            let ends = Operand::Name(guard.predicate.clone());
            if guard.negated {
                code.emit("not.pred", [LAST.into(), ends]);
                code.emit("and.pred", [LEADER.into(), LEADER.into(), LAST.into()]);
            } else {
                code.emit("and.pred", [LEADER.into(), LEADER.into(), ends]);
            }
        }
        code.emit("popc.b32", [ENDING.into(), ENDING.into()]);
        code.emit("neg.s32", [Y.into(), ENDING.into()]);
        code.emit("mov.u32", [X.into(), 0.into()]);
        // The fence before the byte extends to the device the visibility that the atomic counts
        // established within the block.
        code.emit_if(LEADER, "atom.acq_rel.cta.shared.add.s32", [X.into(), at(&self.counter()), Y.into()]);
        code.emit("setp.eq.s32", [LAST.into(), X.into(), ENDING.into()]);
        code.emit("and.pred", [LAST.into(), LAST.into(), LEADER.into()]);
        self.find_progress_byte(code);
        self.set_progress_byte(code, LAST);
        code.emit_guarded(guard, "ret", []);
    }

    /// Sets [`FIRST`] in the thread with index (0, 0, 0).
    fn find_first_thread(&self, code: &mut Code) {
        code.emit("mov.u32", [X.into(), "%tid.x".into()]);
        for dimension in ["%tid.y", "%tid.z"] {
            code.emit("mov.u32", [Y.into(), dimension.into()]);
            code.emit("or.b32", [X.into(), X.into(), Y.into()]);
        }
        code.emit("setp.eq.u32", [FIRST.into(), X.into(), 0.into()]);
    }

    /// Computes the address of the block's progress byte into [`SLOT`]; in 64 bits, because a grid
    /// can have more than 2³² blocks.
    fn find_progress_byte(&self, code: &mut Code) {
        code.emit("mov.u32", [X.into(), "%ctaid.z".into()]);
        code.emit("mov.u32", [Y.into(), "%nctaid.y".into()]);
        code.emit("mul.wide.u32", [SLOT.into(), X.into(), Y.into()]);
        code.emit("mov.u32", [X.into(), "%ctaid.y".into()]);
        code.emit("cvt.u64.u32", [WIDE.into(), X.into()]);
        code.emit("add.s64", [SLOT.into(), SLOT.into(), WIDE.into()]);
        code.emit("mov.u32", [X.into(), "%nctaid.x".into()]);
        code.emit("cvt.u64.u32", [WIDE.into(), X.into()]);
        code.emit("mul.lo.s64", [SLOT.into(), SLOT.into(), WIDE.into()]);
        code.emit("mov.u32", [X.into(), "%ctaid.x".into()]);
        code.emit("cvt.u64.u32", [WIDE.into(), X.into()]);
        code.emit("add.s64", [SLOT.into(), SLOT.into(), WIDE.into()]);
        code.emit("ld.param.u64", [WIDE.into(), at(&self.named(PROGRESS))]);
        code.emit("add.s64", [SLOT.into(), SLOT.into(), WIDE.into()]);
    }

    /// Lets the thread selected by `chosen` set the progress byte, after all writes of the block.
    fn set_progress_byte(&self, code: &mut Code, chosen: &str) {
        let fence = if self.dialect.has_memory_model() { "fence.acq_rel.gpu" } else { "membar.gl" };
        code.emit_if(chosen, fence, []);
        code.emit_if(chosen, "st.global.u8", [at(SLOT), 1.into()]);
    }

    /// Lets thread 0 write the number of threads to the counter; the barrier of the check makes it
    /// visible.
    fn set_counter(&self, code: &mut Code) {
        code.emit("mov.u32", [X.into(), "%ntid.x".into()]);
        for dimension in ["%ntid.y", "%ntid.z"] {
            code.emit("mov.u32", [Y.into(), dimension.into()]);
            code.emit("mul.lo.s32", [X.into(), X.into(), Y.into()]);
        }
        code.emit_if(FIRST, "st.shared.u32", [at(&self.counter()), X.into()]);
    }
}

/// Removes from a body the code after the label for blocks that stopped midway.
fn take_stopped_code(body: &mut Body) -> Vec<Statement> {
    let is_stopped =
        |statement: &Statement| matches!(&statement.kind, StatementKind::Label(name) if name == STOPPED_LABEL);
    let start = body.statements.iter().position(is_stopped).unwrap_or(body.statements.len());
    body.statements.split_off(start)
}

/// Whether an instruction of a kernel ends the thread; in a kernel `ret` does.
fn is_exit(instruction: &Instruction) -> bool {
    matches!(instruction.opcode.as_str(), "ret" | "exit")
}

/// Whether an instruction branches to one of these labels.
fn goes_to(instruction: &Instruction, labels: &[Name]) -> bool {
    instruction.opcode == "bra"
        && matches!(instruction.operands.first(), Some(Operand::Name(label)) if labels.contains(label))
}

/// Turns every exit of a body into a branch to the epilogue, with the same guard.
fn redirect_exits(body: &mut Body) {
    for statement in &mut body.statements {
        if let StatementKind::Block(inner) = &mut statement.kind {
            redirect_exits(inner);
        }
        if !statement.instruction().is_some_and(is_exit) {
            continue;
        }
        if let StatementKind::Instruction(exit) = statement.edit() {
            exit.opcode = Name::new("bra");
            exit.operands = vec![Operand::from(END_LABEL)];
        }
    }
}

/// Labels directly before an exit, whose names are unique in the function.
fn bare_exit_labels(body: &Body) -> Vec<Name> {
    let mut declared: HashMap<&Name, u32> = HashMap::new();
    visit_statements(body, &mut |statement| {
        if let StatementKind::Label(name) = &statement.kind {
            *declared.entry(name).or_default() += 1;
        }
    });
    let mut found = Vec::new();
    collect_bare_exit_labels(body, &mut found);
    found.retain(|name| declared.get(name) == Some(&1));
    found
}

fn collect_bare_exit_labels(body: &Body, found: &mut Vec<Name>) {
    let mut waiting: Vec<&Name> = Vec::new();
    for statement in &body.statements {
        match &statement.kind {
            StatementKind::Label(name) => waiting.push(name),
            StatementKind::Directive(_) => {}
            StatementKind::Block(inner) => {
                waiting.clear();
                collect_bare_exit_labels(inner, found);
            }
            StatementKind::Instruction(i) if is_exit(i) && i.guard.is_none() => {
                found.extend(waiting.drain(..).cloned())
            }
            _ => waiting.clear(),
        }
    }
}
