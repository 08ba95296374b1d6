//! Decides whether the blocks of a kernel may leave at entry and run later.
//!
//! With a check at entry, a block either runs completely or not at all. Every kernel therefore
//! resumes correctly unless its blocks wait for each other: a block that waits for a block that
//! left would wait forever. This module finds such kernels, and kernels that it cannot analyse.

use crate::epoch::LOOP_EPOCH;
use crate::threads::{Divergence, waits_for_threads};
use atoll_ptx::analysis::{Cfg, CfgError, Code, DominatorTree, Loops, RegisterId, StatementId};
use atoll_ptx::{
    Body, Function, FunctionKind, Immediate, Instruction, Module, Name, Operand, StateSpace, Statement, StatementKind,
};
use std::collections::HashSet;

/// Why a kernel is not preemptible. Lines are those of the source; 0 for statements built by a
/// pass.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotPreemptible {
    /// Blocks of a cluster start together and may wait for each other.
    #[error("line {line}: `{what}` belongs to a thread block cluster, whose blocks wait for each other")]
    Cluster {
        /// The instruction or special register.
        what: String,
        /// The line.
        line: u32,
    },
    /// The kernel is declared to run in clusters.
    #[error("the kernel is declared `.{directive}`: blocks of a cluster wait for each other")]
    ClusterDirective {
        /// The directive.
        directive: String,
    },
    /// Cooperative groups read these registers to find the grid barrier.
    #[error("line {line}: `{what}` is read by cooperative launches to find their grid barrier")]
    CooperativeLaunch {
        /// The special register.
        what: String,
        /// The line.
        line: u32,
    },
    /// The kernel may start before the preceding kernel has ended.
    #[error("line {line}: `griddepcontrol` lets the kernel overlap with the one before it")]
    DependentLaunch {
        /// The line.
        line: u32,
    },
    /// A loop waits for another block to change memory.
    #[error("line {line}: a loop spins on memory that another block may have to write")]
    SpinsOnMemory {
        /// The instruction that reads the memory.
        line: u32,
    },
    /// A callee whose body is unknown.
    #[error("line {line}: the callee `{callee}` has no body in this module")]
    UnknownCallee {
        /// The function, or the register that holds it.
        callee: String,
        /// The line.
        line: u32,
    },
    /// A thread would exit without being counted.
    #[error("line {line}: the device function `{function}` ends the thread with `exit`")]
    ExitInFunction {
        /// The function.
        function: String,
        /// The line.
        line: u32,
    },
    /// The appended parameters exceed the limit.
    #[error("{bytes} bytes of parameters exceed the {limit} that `.version` and `.target` allow")]
    TooManyParameters {
        /// Size with the appended parameters.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// The preemption parameters are 64-bit addresses.
    #[error("the module has {0}-bit addresses")]
    AddressSize(u32),
    /// Before sm_70 an exited thread does not count as arrived at a barrier within its warp, and
    /// before PTX 6.2 threads cannot query which others are active.
    #[error(
        "threads may exit before a barrier, which requires sm_70 and PTX 6.2; \
         the module has sm_{sm} and PTX {}.{}",
        version.0,
        version.1
    )]
    EarlyExitOnOldTarget {
        /// The target.
        sm: u32,
        /// `.version`.
        version: (u32, u32),
    },
}

/// Why a kernel cannot be analysed or is not preemptible.
pub(crate) enum Refusal {
    /// It is not preemptible.
    NotPreemptible(NotPreemptible),
    /// Its control flow is broken.
    Broken(CfgError),
}

impl From<NotPreemptible> for Refusal {
    fn from(reason: NotPreemptible) -> Refusal {
        Refusal::NotPreemptible(reason)
    }
}

impl From<CfgError> for Refusal {
    fn from(error: CfgError) -> Refusal {
        Refusal::Broken(error)
    }
}

/// Functions of the CUDA device runtime that neither wait for other threads nor launch kernels.
const HARMLESS_EXTERNALS: [&str; 5] = ["vprintf", "malloc", "free", "__assertfail", "__nv_assertfail"];

/// Whether device functions that a kernel can reach wait for other threads of the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CalleesWait {
    /// They do not.
    Never,
    /// All threads that call such a function together wait equally often.
    Always,
    /// It depends on data of the thread.
    Sometimes,
}

/// Checks whether `kernel` is preemptible. If it is, returns whether device functions that it can
/// reach wait for other threads of the block.
pub(crate) fn check(module: &Module, kernel: &Function) -> Result<CalleesWait, Refusal> {
    const CLUSTER_ATTRIBUTES: [&str; 4] =
        ["explicitcluster", "reqnctapercluster", "maxclusterrank", "blocksareclusters"];
    if let Some(attribute) = kernel.attributes.iter().find(|a| CLUSTER_ATTRIBUTES.contains(&a.name.as_str())) {
        return Err(NotPreemptible::ClusterDirective { directive: attribute.name.to_string() }.into());
    }
    let functions = reachable_functions(module, kernel)?;
    for function in std::iter::once(&kernel).chain(&functions) {
        let code = Code::of(function);
        for (id, statement) in code.statements() {
            let Some(instruction) = code.instruction(id) else { continue };
            let line = statement.origin.line;
            forbid_instruction(instruction, line)?;
            if function.kind == FunctionKind::Func && instruction.opcode == "exit" {
                return Err(NotPreemptible::ExitInFunction { function: function.name.to_string(), line }.into());
            }
        }
        forbid_spinning(&code, &Cfg::of(&code)?)?;
    }
    callees_wait(&functions)
}

/// How device functions wait for other threads. An indirect call counts as waiting if any of its
/// possible callees waits.
fn callees_wait(functions: &[&Function]) -> Result<CalleesWait, Refusal> {
    let codes: Vec<Code<'_>> = functions.iter().map(|function| Code::of(function)).collect();
    let waiting =
        |code: &Code<'_>| code.statements().any(|(id, _)| code.instruction(id).is_some_and(waits_for_threads));
    if !codes.iter().any(waiting) {
        return Ok(CalleesWait::Never);
    }
    for code in &codes {
        let cfg = Cfg::of(code)?;
        let divergence = Divergence::of(code, &cfg);
        for (id, _) in code.statements() {
            let wait = code.instruction(id).filter(|i| waits_for_threads(i) || i.opcode == "call");
            if wait.is_some_and(|instruction| !divergence.all_run(&cfg, id, instruction)) {
                return Ok(CalleesWait::Sometimes);
            }
        }
    }
    Ok(CalleesWait::Always)
}

/// Device functions with a body that a function can call, each once; the function itself is not
/// included.
pub(crate) fn reachable_functions<'m>(
    module: &'m Module,
    from: &'m Function,
) -> Result<Vec<&'m Function>, NotPreemptible> {
    let mut found: Vec<&Function> = Vec::new();
    let mut pending = vec![from];
    while let Some(function) = pending.pop() {
        let Some(body) = &function.body else { continue };
        for (callee, line) in callees(body)? {
            match module.function(&callee) {
                Some(target) if target.body.is_some() => {
                    if !found.iter().any(|f| std::ptr::eq(*f, target)) {
                        found.push(target);
                        pending.push(target);
                    }
                }
                _ if HARMLESS_EXTERNALS.contains(&callee.as_str()) => {}
                _ => return Err(NotPreemptible::UnknownCallee { callee: callee.to_string(), line }),
            }
        }
    }
    Ok(found)
}

/// The functions a body calls, by name, with the lines of the calls. An indirect call counts as
/// calling all functions of its table.
pub(crate) fn callees(body: &Body) -> Result<Vec<(Name, u32)>, NotPreemptible> {
    let mut tables: Vec<(&Name, &[Name])> = Vec::new();
    let mut calls: Vec<(&Instruction, u32)> = Vec::new();
    visit_statements(body, &mut |statement| match &statement.kind {
        StatementKind::CallTargets { name, targets } => tables.push((name, targets)),
        StatementKind::Instruction(i) if i.opcode == "call" => calls.push((i, statement.origin.line)),
        _ => {}
    });
    let mut found = Vec::new();
    for (call, line) in calls {
        let mut names = call.operands.iter().filter_map(|o| match o {
            Operand::Name(name) => Some(name),
            _ => None,
        });
        let callee = names.next().cloned().unwrap_or_default();
        if !callee.starts_with('%') {
            found.push((callee, line));
            continue;
        }
        let table = names.next().and_then(|table| tables.iter().find(|(name, _)| *name == table));
        let Some((_, targets)) = table else {
            return Err(NotPreemptible::UnknownCallee { callee: callee.to_string(), line });
        };
        found.extend(targets.iter().map(|target| (target.clone(), line)));
    }
    Ok(found)
}

/// Calls `visit` with every statement of a body, those of nested blocks included.
pub(crate) fn visit_statements<'a>(body: &'a Body, visit: &mut dyn FnMut(&'a Statement)) {
    for statement in &body.statements {
        visit(statement);
        if let StatementKind::Block(inner) = &statement.kind {
            visit_statements(inner, visit);
        }
    }
}

/// Rejects instructions that require blocks to run together.
fn forbid_instruction(instruction: &Instruction, line: u32) -> Result<(), NotPreemptible> {
    let cluster = instruction.has("cluster") && instruction.opcode == "barrier"
        || instruction.has("multicast::cluster")
        || matches!(instruction.opcode.as_str(), "mapa" | "getctarank");
    if cluster {
        return Err(NotPreemptible::Cluster { what: instruction.dotted(), line });
    }
    if instruction.opcode == "griddepcontrol" {
        return Err(NotPreemptible::DependentLaunch { line });
    }
    for name in instruction.reads() {
        if name.starts_with("%envreg") {
            return Err(NotPreemptible::CooperativeLaunch { what: name.to_string(), line });
        }
        if name.starts_with("%cluster") || name.starts_with("%is_explicit_cluster") {
            return Err(NotPreemptible::Cluster { what: name.to_string(), line });
        }
    }
    Ok(())
}

/// Rejects a loop whose exit depends on memory that only another block can change.
fn forbid_spinning(code: &Code<'_>, cfg: &Cfg) -> Result<(), NotPreemptible> {
    let loops = Loops::of(cfg, &DominatorTree::dominators(cfg));
    for (id, _) in loops.iter() {
        let statements: Vec<StatementId> =
            loops.blocks(id).iter().flat_map(|&block| cfg.block(block).statements()).collect();
        let ends: Vec<StatementId> = loops.exits(id, cfg).filter_map(|(from, _)| cfg.block(from).last()).collect();
        for &statement in &statements {
            let Some(instruction) = code.instruction(statement) else { continue };
            let decides_end = || {
                let dependent = depends_on(code, &statements, written(code, statement));
                ends.iter().any(|&end| read(code, end).any(|register| dependent.contains(&register)))
            };
            if instruction.opcode == "nanosleep" || watches_memory(code, statement, &statements) && decides_end() {
                return Err(NotPreemptible::SpinsOnMemory { line: code.statement(statement).origin.line });
            }
        }
    }
    // A cycle with two entries is not a natural loop and cannot be analysed. Compilers emit none,
    // so any function that has one and polls memory is rejected.
    let everything: Vec<StatementId> = code.statements().map(|(id, _)| id).collect();
    match everything.iter().find(|&&id| !loops.is_reducible() && watches_memory(code, id, &everything)) {
        Some(&id) => Err(NotPreemptible::SpinsOnMemory { line: code.statement(id).origin.line }),
        None => Ok(()),
    }
}

/// Whether a statement polls memory that another block may write: a load that bypasses the L1
/// cache, `atom.exch`, an `atom.cas` that does not retry an update, or an atomic with operand 0.
fn watches_memory(code: &Code<'_>, statement: StatementId, region: &[StatementId]) -> bool {
    let Some(instruction) = code.instruction(statement) else { return false };
    // A check in a loop does not wait: if the word does not change, the loop continues as without
    // the check.
    let is_check = matches!(instruction.operands.first(), Some(Operand::Name(to)) if to == LOOP_EPOCH);
    if is_check || !matches!(instruction.space(), None | Some(StateSpace::Global)) {
        return false;
    }
    match instruction.opcode.as_str() {
        "ld" => ["volatile", "relaxed", "acquire", "mmio", "cv", "cg"].iter().any(|word| instruction.has(word)),
        "atom" if instruction.has("exch") => true,
        "atom" if instruction.has("cas") => !is_retry(code, statement, instruction, region),
        // `atom.or x, 0` and `atom.add x, 0` are loads; with another operand every iteration
        // changes the memory.
        "atom" => matches!(instruction.operands.get(2), Some(Operand::Immediate(Immediate::Int(0)))),
        _ => false,
    }
}

/// Whether a compare-and-swap compares with a value that the loop has read from memory. Such a loop
/// retries an update; it does not wait.
fn is_retry(code: &Code<'_>, statement: StatementId, swap: &Instruction, region: &[StatementId]) -> bool {
    let Some(Operand::Name(compare)) = swap.operands.get(2) else { return false };
    let reads_memory = |id: &&StatementId| {
        code.instruction(**id)
            .is_some_and(|i| matches!(i.opcode.as_str(), "ld" | "atom") && i.space() != Some(StateSpace::Param))
    };
    let read = region.iter().filter(reads_memory).flat_map(|&id| written(code, id));
    code.register_at(statement, compare).is_some_and(|compare| depends_on(code, region, read).contains(&compare))
}

/// The registers whose values depend, within these statements, on the given ones.
fn depends_on(
    code: &Code<'_>,
    statements: &[StatementId],
    registers: impl IntoIterator<Item = RegisterId>,
) -> HashSet<RegisterId> {
    let mut dependent: HashSet<RegisterId> = registers.into_iter().collect();
    loop {
        let before = dependent.len();
        for &statement in statements {
            if read(code, statement).any(|register| dependent.contains(&register)) {
                dependent.extend(written(code, statement));
            }
        }
        if dependent.len() == before {
            return dependent;
        }
    }
}

fn written<'c>(code: &'c Code<'_>, statement: StatementId) -> impl Iterator<Item = RegisterId> + 'c {
    code.accesses(statement).iter().filter(|access| access.role.writes()).map(|access| access.register)
}

fn read<'c>(code: &'c Code<'_>, statement: StatementId) -> impl Iterator<Item = RegisterId> + 'c {
    code.accesses(statement).iter().filter(|access| access.role.reads()).map(|access| access.register)
}
