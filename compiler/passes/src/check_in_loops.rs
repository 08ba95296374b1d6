//! Checks the epoch word in long loops, so that a running block can leave.
//!
//! # Where
//! In outermost loops. If an outermost loop has few iterations, its inner loops get the check
//! instead. A short loop whose iterations cannot be counted in advance gets no check, because a
//! check would prevent the assembler from unrolling it. Every examined loop gets either a check or
//! a reason in the report.
//!
//! # Conditions
//! - The block may run again after it stopped midway. The caller provides this fact about a kernel
//!   and its buffers.
//! - All threads of the block that have not exited reach the check equally often, so that they can
//!   decide together: the branches that control the number of iterations are uniform. Threads may
//!   exit before the loop, but not inside it.
//! - No asynchronous operation of the block, such as a bulk copy into its shared memory, is in
//!   flight when the block leaves.
//!
//! # Code
//! Every thread reads the word, not only thread 0, because thread 0 may have exited; the threads of
//! a warp read one address. `bar.red` makes the decision for the whole block. A block that leaves
//! sets the launch's evicted word and does not set its progress byte. The check runs once every few
//! iterations, in one of two forms:
//! - *Strips*, for a loop whose iterations can be counted: the loop is strip-mined, with the check
//!   between two strips; see [`counted_loops`](crate::counted_loops).
//! - *A counter of iterations* at the loop header, for all other loops.

mod outcome;

pub use self::outcome::{LoopDecision, LoopOutcome, LoopSkipped};

use crate::code::{Code, at, prepend, rebuild};
use crate::counted_loops::{CountedLoop, StripRegisters, is_in_table};
use crate::epoch::{self, EPOCH_WORD, ISSUED_EPOCH, LOOP_EPOCH, STOPPED_LABEL};
use crate::error::PassError;
use crate::module_facts::Dialect;
use crate::options::PassOptions;
use crate::preemptible::{self, Refusal};
use crate::threads::Divergence;
use atoll_ptx::analysis::{BlockId, Cfg, CfgError, Code as KernelCode, DominatorTree, LoopId, Loops, StatementId};
use atoll_ptx::{
    Body, Function, FunctionKind, Instruction, ItemKind, Module, Name, Operand, ScalarType, Statement, StatementKind,
};
use std::collections::BTreeMap;

/// The loops of one kernel.
#[derive(Debug, Default)]
pub(crate) struct KernelLoops {
    /// Byte offset of the appended parameters, if there are checks.
    pub(crate) params_offset: Option<u32>,
    /// The outcomes of all examined loops.
    pub(crate) loops: Vec<LoopOutcome>,
}

/// Target distance between two checks, in instructions of one warp: some ten microseconds on a busy
/// compute unit.
const INSTRUCTIONS_BETWEEN: u64 = 4096;
/// Assumed iterations of an inner loop if nothing is known.
const INNER_ROUNDS: u64 = 16;
/// From this many instructions per iteration on, assemblers do not unroll.
const LONG_ROUND: u64 = 96;
/// Limit on the iterations between two checks.
const EVERY_MAX: u32 = 1024;
/// Smallest number of iterations of a strip: an assembler unrolls by four or eight.
const STRIP_MIN: u32 = 16;
/// Smallest number of iterations by which assemblers unroll.
const UNROLLED: u32 = 4;

/// Inserts checks. Returns the outcome for each kernel's loops, kernels in order.
pub(crate) fn check_in_loops(module: &mut Module, options: &PassOptions) -> Result<Vec<KernelLoops>, PassError> {
    let dialect = Dialect::of(module);
    let mut outcomes = Vec::new();
    let mut plans = BTreeMap::new();
    for kernel in module.kernels() {
        let plan = plan(module, kernel, dialect, options)
            .map_err(|source| PassError::BrokenFlow { function: kernel.name.to_string(), source })?;
        let params_offset = plan.offset.filter(|_| !plan.checks.is_empty());
        outcomes.push(KernelLoops { params_offset, loops: plan.outcomes.clone() });
        if !plan.checks.is_empty() {
            plans.insert(kernel.name.clone(), plan);
        }
    }
    for item in &mut module.items {
        let plan = match &item.kind {
            ItemKind::Function(f) if f.kind == FunctionKind::Entry && f.body.is_some() => plans.get(&f.name),
            _ => None,
        };
        if let Some(plan) = plan
            && let ItemKind::Function(kernel) = item.edit()
        {
            apply(kernel, plan, dialect);
        }
    }
    Ok(outcomes)
}

/// The changes to one kernel.
#[derive(Debug, Default)]
struct Plan {
    offset: Option<u32>,
    outcomes: Vec<LoopOutcome>,
    checks: Vec<Check>,
}

/// A check in one loop.
#[derive(Debug)]
struct Check {
    every: u32,
    /// Whether the loop's iterations are a known multiple of `every`, so that all strips are equally
    /// long.
    is_even: bool,
    form: Form,
}

#[derive(Debug)]
enum Form {
    /// Counts iterations after the label and directives at the start of the header, before
    /// this statement.
    Count { first: StatementId },
    /// Strip mining.
    Strips { counted: CountedLoop, header: StatementId, outside: Vec<StatementId> },
}

fn plan(module: &Module, kernel: &Function, dialect: Dialect, options: &PassOptions) -> Result<Plan, CfgError> {
    let code = KernelCode::of(kernel);
    let cfg = Cfg::of(&code)?;
    let dominators = DominatorTree::dominators(&cfg);
    let loops = Loops::of(&cfg, &dominators);
    let mut plan = Plan::default();
    let refusal = kernel_refusal(module, kernel, options, &code, &loops)?;
    let outermost: Vec<LoopId> = loops.iter().filter(|(_, l)| l.parent.is_none()).map(|(id, _)| id).collect();
    let refusal = refusal.or_else(|| match epoch::planned_offset(kernel, dialect) {
        Ok(offset) => {
            plan.offset = Some(offset);
            None
        }
        Err(reason) => Some(LoopSkipped::NotPreemptible(reason)),
    });
    let planner = Planner {
        all_threads: Divergence::of(&code, &cfg),
        remaining_threads: Divergence::of_remaining_threads(&code, &cfg, &loops),
        every: options.check_every,
        code,
        cfg,
        dominators,
        loops,
        dialect,
    };
    for id in outermost {
        match &refusal {
            Some(reason) => plan.outcomes.push(planner.skipped(id, reason.clone())),
            None => planner.consider(id, &mut plan),
        }
    }
    plan.outcomes.sort_by_key(|outcome| outcome.line);
    Ok(plan)
}

/// The reason why no loop of a kernel can have a check, if there is one.
fn kernel_refusal(
    module: &Module,
    kernel: &Function,
    options: &PassOptions,
    code: &KernelCode<'_>,
    loops: &Loops,
) -> Result<Option<LoopSkipped>, CfgError> {
    if !options.may_run_again.contains(&kernel.name) {
        return Ok(Some(LoopSkipped::MayNotRunAgain));
    }
    match preemptible::check(module, kernel) {
        Ok(_) => {}
        Err(Refusal::NotPreemptible(reason)) => return Ok(Some(LoopSkipped::NotPreemptible(reason))),
        Err(Refusal::Broken(source)) => return Err(source),
    }
    if !loops.is_reducible() {
        return Ok(Some(LoopSkipped::Irreducible));
    }
    let in_progress = code.statements().find_map(|(_, statement)| {
        let instruction = statement.instruction().filter(|i| is_asynchronous(i))?;
        Some(LoopSkipped::InProgress { what: instruction.dotted(), line: statement.origin.line })
    });
    Ok(in_progress)
}

/// Whether an instruction starts an asynchronous operation on the block's memory or at one of its
/// barriers; the block must not leave before it ends.
fn is_asynchronous(instruction: &Instruction) -> bool {
    match instruction.opcode.as_str() {
        "wgmma" | "tcgen05" => true,
        "cp" => instruction.has("bulk"),
        "bar" | "barrier" => instruction.has("arrive"),
        _ => false,
    }
}

/// The analyses that decisions about the loops of one kernel use.
struct Planner<'k> {
    code: KernelCode<'k>,
    cfg: Cfg,
    dominators: DominatorTree,
    loops: Loops,
    all_threads: Divergence,
    remaining_threads: Divergence,
    dialect: Dialect,
    every: Option<u32>,
}

impl Planner<'_> {
    /// Decides about a loop, or about the loops inside it.
    fn consider(&self, id: LoopId, plan: &mut Plan) {
        let counted = CountedLoop::of(&self.code, &self.cfg, &self.dominators, &self.loops, id);
        let round = self.instructions_of_round(id);
        let rounds =
            counted.as_ref().and_then(|counted| counted.constant_rounds(&self.code, &self.cfg, &self.loops, id));
        let inner: Vec<LoopId> =
            self.loops.iter().filter(|(_, l)| l.parent == Some(id)).map(|(inner, _)| inner).collect();
        if let Some(rounds) = rounds.filter(|&rounds| {
            self.every.map_or(rounds * round < 2 * INSTRUCTIONS_BETWEEN, |every| rounds <= every.into())
        }) {
            if inner.is_empty() {
                plan.outcomes.push(self.skipped(id, LoopSkipped::FewRounds { rounds }));
            }
            return inner.into_iter().for_each(|inner| self.consider(inner, plan));
        }
        match self.decide(id, counted, rounds, round, inner.is_empty()) {
            Ok(check) => {
                let strips = matches!(check.form, Form::Strips { .. });
                plan.outcomes.push(LoopOutcome {
                    line: self.line(id),
                    decision: LoopDecision::Checked { every: check.every, strips },
                });
                plan.checks.push(check);
            }
            Err(reason) => plan.outcomes.push(self.skipped(id, reason)),
        }
    }

    fn decide(
        &self,
        id: LoopId,
        counted: Option<CountedLoop>,
        rounds: Option<u64>,
        round: u64,
        is_innermost: bool,
    ) -> Result<Check, LoopSkipped> {
        let header = self.loops.get(id).header;
        let reached: Vec<BlockId> = self.loops.get(id).latches.iter().copied().chain([header]).collect();
        if reached.iter().any(|&block| self.remaining_threads.in_block(block)) {
            return Err(LoopSkipped::Divergent);
        }
        if reached.iter().any(|&block| self.all_threads.in_block(block)) && !self.dialect.counts_exits() {
            return Err(LoopSkipped::EarlyExitOnOldTarget);
        }
        let every = self.every.unwrap_or_else(|| rounds_between(round));
        if let Some(form) = counted.and_then(|counted| self.strips(id, counted)) {
            let every = self.every.unwrap_or(every.max(STRIP_MIN));
            let even = rounds.and_then(|rounds| even_strip(rounds, every));
            return Ok(Check { every: even.unwrap_or(every), is_even: even.is_some(), form });
        }
        if is_innermost && round < LONG_ROUND {
            return Err(LoopSkipped::Short { instructions: round });
        }
        let first = self.cfg.block(header).statements().find(|&statement| self.code.instruction(statement).is_some());
        // A header without an instruction falls through to the next block; compilers do not emit
        // one.
        first
            .map(|first| Check { every, is_even: false, form: Form::Count { first } })
            .ok_or(LoopSkipped::Short { instructions: round })
    }

    /// The strip form, if every entry of the loop can be redirected to the start of the first
    /// strip.
    fn strips(&self, id: LoopId, counted: CountedLoop) -> Option<Form> {
        let header = self.loops.get(id).header;
        let first = self.cfg.block(header).statements().next()?;
        let StatementKind::Label(label) = &self.code.statement(first).kind else { return None };
        if is_in_table(&self.code, label) || self.code.scope(first) != self.code.scope(counted.branch) {
            return None;
        }
        let jumps_here = |statement: StatementId| {
            let Some(jump) = self.code.instruction(statement).filter(|i| i.opcode == "bra") else { return false };
            let Some(Operand::Name(to)) = jump.operands.first() else { return false };
            self.code.label_at(statement, to).is_some_and(|at| self.cfg.block_of(at) == header)
        };
        let outside: Vec<StatementId> = self
            .code
            .statements()
            .map(|(id, _)| id)
            .filter(|&statement| statement != counted.branch && jumps_here(statement))
            .collect();
        Some(Form::Strips { counted, header: first, outside })
    }

    /// Approximate number of instructions that a thread executes per iteration.
    fn instructions_of_round(&self, id: LoopId) -> u64 {
        let depth = self.loops.get(id).depth;
        let blocks = self.loops.blocks(id).iter();
        blocks.fold(0, |sum: u64, &block| {
            let instructions =
                self.cfg.block(block).statements().filter(|&s| self.code.instruction(s).is_some()).count() as u64;
            let inner = self.loops.depth(block).saturating_sub(depth);
            sum.saturating_add(instructions.saturating_mul(INNER_ROUNDS.saturating_pow(inner)))
        })
    }

    fn line(&self, id: LoopId) -> u32 {
        let blocks = self.loops.blocks(id).iter();
        let lines =
            blocks.flat_map(|&block| self.cfg.block(block).statements()).map(|s| self.code.statement(s).origin.line);
        lines.filter(|&line| line > 0).min().unwrap_or(0)
    }

    fn skipped(&self, id: LoopId, reason: LoopSkipped) -> LoopOutcome {
        LoopOutcome { line: self.line(id), decision: LoopDecision::Skipped(reason) }
    }
}

/// Iterations between two checks, a power of two, for an iteration of `round` instructions.
fn rounds_between(round: u64) -> u32 {
    let rounds = (INSTRUCTIONS_BETWEEN / round.max(1)).next_power_of_two();
    u32::try_from(rounds).unwrap_or(EVERY_MAX).clamp(1, EVERY_MAX)
}

/// The longest strip of `every.div_ceil(2)` to `every` iterations that divides a loop of `rounds`
/// iterations evenly. The assembler then knows the length of every strip, as it knew that of the
/// loop, and unrolls as far.
fn even_strip(rounds: u64, every: u32) -> Option<u32> {
    let divides = |strip: &u32| rounds.is_multiple_of(u64::from(*strip));
    (every.div_ceil(2)..=every).rev().filter(|strip| *strip >= UNROLLED).find(divides)
}

// Registers used by the checks.
const ROUND: &str = "%atoll_round";
const REMAINDER: &str = "%atoll_remainder";
const ISSUED: &str = "%atoll_loop_issued";
const ADDRESS: &str = "%atoll_loop_address";
const BETWEEN: &str = "%atoll_between";
const NEWER: &str = "%atoll_loop_newer";
const STOP: &str = "%atoll_stop";
const STRIP: StripRegisters =
    StripRegisters { narrow: "%atoll_strip", wide: "%atoll_wide_strip", far: "%atoll_far", before: "%atoll_before" };

/// Inserts the checks into a kernel.
fn apply(kernel: &mut Function, plan: &Plan, dialect: Dialect) {
    epoch::append_params(kernel);
    let name = kernel.name.clone();
    let Some(body) = &mut kernel.body else { return };
    let checks = Checks { kernel: &name, dialect, checks: &plan.checks };
    rebuild(body, &mut |id, statement, code| checks.statement(id, statement, code));
    prepend(body, checks.declarations());
    checks.append_way_out(body);
}

/// The checks of one kernel.
struct Checks<'p> {
    kernel: &'p Name,
    dialect: Dialect,
    checks: &'p [Check],
}

impl Checks<'_> {
    fn declarations(&self) -> Code {
        let mut code = Code::default();
        code.registers(ScalarType::Pred, &[NEWER, STOP]);
        code.registers(ScalarType::B32, &[LOOP_EPOCH, ISSUED]);
        code.registers(ScalarType::B64, &[ADDRESS]);
        let counted = self.checks.iter().enumerate().filter_map(|(index, check)| match &check.form {
            Form::Strips { counted, .. } => Some((rounds_left(index), counted.bits())),
            Form::Count { .. } => None,
        });
        let counted: Vec<(String, u32)> = counted.collect();
        if !counted.is_empty() {
            code.registers(ScalarType::Pred, &[STRIP.far, STRIP.before]);
            code.registers(ScalarType::B32, &counted.iter().map(|(left, _)| left.as_str()).collect::<Vec<_>>());
        }
        for (bits, ty, work) in [(32, ScalarType::B32, STRIP.narrow), (64, ScalarType::B64, STRIP.wide)] {
            if counted.iter().any(|(_, its)| *its == bits) {
                code.registers(ty, &[work]);
            }
        }
        if counted.len() < self.checks.len() {
            code.registers(ScalarType::Pred, &[BETWEEN]);
            code.registers(ScalarType::B32, &[ROUND, REMAINDER]);
            code.emit("mov.u32", [ROUND.into(), 0.into()]);
        }
        code
    }

    /// Rewrites a statement that a check concerns.
    fn statement(&self, id: StatementId, mut statement: Statement, code: &mut Code) {
        for (index, check) in self.checks.iter().enumerate() {
            match &check.form {
                Form::Count { first } if *first == id => self.count_round(index, check.every, code),
                Form::Strips { counted, header, .. } if *header == id => {
                    code.label(&strip_label(index));
                    let left = rounds_left(index);
                    if check.is_even {
                        code.emit("mov.b32", [left.as_str().into(), i64::from(check.every).into()]);
                    } else {
                        counted.begin_strip(code, check.every, &left, &STRIP);
                    }
                }
                Form::Strips { counted, .. } if counted.compare == id => {
                    return counted.count_down(code, &rounds_left(index));
                }
                Form::Strips { counted, .. } if counted.branch == id => {
                    code.statements.push(statement);
                    return self.between_strips(index, counted, code);
                }
                Form::Strips { outside, .. } if outside.contains(&id) => {
                    if let StatementKind::Instruction(jump) = statement.edit() {
                        jump.operands = vec![Operand::Name(Name::from(strip_label(index)))];
                    }
                }
                _ => {}
            }
        }
        code.statements.push(statement);
    }

    /// At the start of an iteration: checks once every `every` iterations.
    fn count_round(&self, index: usize, every: u32, code: &mut Code) {
        let round = format!("$L_atoll_round_{index}");
        if every > 1 {
            code.emit("add.s32", [ROUND.into(), ROUND.into(), 1.into()]);
            code.emit("rem.u32", [REMAINDER.into(), ROUND.into(), i64::from(every).into()]);
            code.emit("setp.ne.u32", [BETWEEN.into(), REMAINDER.into(), 0.into()]);
            code.emit_if(BETWEEN, "bra.uni", [round.as_str().into()]);
        }
        self.check(code);
        if every > 1 {
            code.label(&round);
        }
    }

    /// Behind the branch of a latch: starts the next strip unless the loop has ended.
    fn between_strips(&self, index: usize, counted: &CountedLoop, code: &mut Code) {
        let over = format!("$L_atoll_over_{index}");
        counted.end_strip(code, &over);
        self.check(code);
        code.emit("bra", [strip_label(index).as_str().into()]);
        code.label(&over);
    }

    /// Reads the epoch word; if it is newer, all remaining threads stop together.
    fn check(&self, code: &mut Code) {
        code.emit("ld.param.u64", [ADDRESS.into(), at(&epoch::named(self.kernel, EPOCH_WORD))]);
        code.emit("ld.param.u32", [ISSUED.into(), at(&epoch::named(self.kernel, ISSUED_EPOCH))]);
        code.emit(epoch::strong_load(self.dialect), [LOOP_EPOCH.into(), at(ADDRESS)]);
        code.emit("sub.s32", [LOOP_EPOCH.into(), LOOP_EPOCH.into(), ISSUED.into()]);
        code.emit("setp.gt.s32", [NEWER.into(), LOOP_EPOCH.into(), 0.into()]);
        code.emit("bar.red.or.pred", [STOP.into(), 0.into(), NEWER.into()]);
        code.emit_if(STOP, "bra.uni", [STOPPED_LABEL.into()]);
    }

    /// The exit of a block that stops midway.
    fn append_way_out(&self, body: &mut Body) {
        let mut code = Code::default();
        code.label(STOPPED_LABEL);
        epoch::set_evicted(&mut code, self.kernel, self.dialect, None, ADDRESS);
        code.emit("ret", []);
        body.statements.extend(code.statements);
    }
}

fn strip_label(index: usize) -> String {
    format!("$L_atoll_strip_{index}")
}

fn rounds_left(index: usize) -> String {
    format!("%atoll_rounds_left_{index}")
}
