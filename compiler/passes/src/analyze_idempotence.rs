//! Decides whether a block of a kernel may run again from its start after it was stopped at any
//! point.
//!
//! # Condition
//! A second run finds memory as the first run left it: unchanged except for the bytes that the
//! first run had already written. The block may run again if the second run reads none of these
//! bytes before it writes them itself: it then computes and writes the same bytes as an undisturbed
//! run. The analysis therefore looks for a *clobber*: a load that may read bytes which a store of
//! the same block may overwrite later. Shared and local memory do not matter, because every run
//! starts with undefined contents there.
//!
//! # Vocabulary
//! - A load is *covered* if the same thread has certainly stored to the same address before.
//! - A store *follows* a load if a path leads from the load to the store. If all threads pass all
//!   barriers alike, a store that follows on no path precedes the load in every thread, and the
//!   load reads what this run has written.
//! - A value is *unstable* if it may differ in a second run: the order of atomics in shared memory,
//!   the set of active threads. It must not decide where a store goes, or whether it happens.
//!
//! # Assumptions
//! - A pointer derived from a parameter stays within the buffer that the parameter points to.
//! - The kernel has no data races: except through barriers and atomics, its result does not depend
//!   on the order in which threads and blocks run.

use crate::effects::linear::{Class, Linear};
use crate::effects::memory::Act;
use crate::effects::memory::act;
use crate::effects::overlap::may_overlap;
use crate::effects::{Access, Opaque, Root, Trace};
use crate::threads::{Divergence, waits_for_threads};
use crate::unstable::Unstable;
use atoll_kgraph::{DisjointPair, RerunFact};
use atoll_ptx::analysis::{BlockId, Cfg, DominatorTree, StatementId};
use atoll_ptx::{Function, Instruction, Module};
use std::collections::HashMap;

/// Whether a block may run again from its start after it was stopped at any point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rerun {
    /// Yes, for all arguments.
    Always,
    /// Yes, if in every pair the buffer of the first root (read) does not overlap the buffer of the
    /// second (written).
    IfDisjoint(Vec<(Root, Root)>),
    /// No, or it could not be proven.
    Never(NotRerunnable),
}

impl Rerun {
    /// The fact in the form of a bundle: parameters by position. A pair with a variable of the
    /// module is dropped, because a variable is never bound as a buffer. A pointer inside a
    /// structure gives `Never`: the parameters of a graph's kernel are not structures.
    pub fn fact(&self) -> RerunFact {
        let pairs = match self {
            Rerun::Always => return RerunFact::Always,
            Rerun::Never(reason) => return RerunFact::Never(reason.to_string()),
            Rerun::IfDisjoint(pairs) => pairs,
        };
        let mut bound = Vec::new();
        for pair in pairs {
            match pair {
                (Root::Param { index: read, offset: 0, .. }, Root::Param { index: written, offset: 0, .. }) => {
                    bound.push(DisjointPair { read: *read as u32, written: *written as u32 });
                }
                (Root::Variable(_), _) | (_, Root::Variable(_)) => {}
                (read, written) => {
                    return RerunFact::Never(format!(
                        "{read} and {written} must not overlap, and are part of a structure"
                    ));
                }
            }
        }
        if bound.is_empty() { RerunFact::Always } else { RerunFact::IfDisjoint(bound) }
    }

    /// Whether a block may run again if every parameter has a buffer of its own and no two overlap.
    pub fn holds_on_buffers_apart(&self) -> bool {
        let apart = |pair: &(Root, Root)| match pair {
            (Root::Param { index: read, .. }, Root::Param { index: written, .. }) => read != written,
            _ => false,
        };
        match self {
            Rerun::Always => true,
            Rerun::IfDisjoint(pairs) => pairs.iter().all(apart),
            Rerun::Never(_) => false,
        }
    }
}

/// Why a block may not run again. Lines are those of the source; 0 for statements built by a pass.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotRerunnable {
    /// The block reads bytes that it may have overwritten.
    #[error("the store at line {store} may overwrite what line {load} loaded through {root}")]
    Clobber {
        /// The store.
        store: u32,
        /// The load.
        load: u32,
        /// The buffer or variable that both access.
        root: Root,
    },
    /// The origin of an address is unknown.
    #[error("line {line}: the origin of the address of the {what} is unknown")]
    UnknownAddress {
        /// `load` or `store`.
        what: &'static str,
        /// The line.
        line: u32,
    },
    /// An update that a second run would apply twice.
    #[error("line {line}: `{instruction}` updates memory: a second run would update it again")]
    Atomic {
        /// The instruction.
        instruction: String,
        /// The line.
        line: u32,
    },
    /// An access that synchronises with other blocks or the host.
    #[error("line {line}: `{instruction}` synchronises with other blocks or the host")]
    Strong {
        /// The instruction.
        instruction: String,
        /// The line.
        line: u32,
    },
    /// A value that may differ in a second run.
    #[error("line {line}: `{what}` may differ in a second run")]
    Differs {
        /// The instruction or special register.
        what: String,
        /// The line.
        line: u32,
    },
    /// An unstable value decides where, or whether, something is stored.
    #[error("line {store}: the store depends on line {source_line}, whose result may differ in a second run")]
    Unstable {
        /// The store.
        store: u32,
        /// The line of the instruction that produces the value.
        source_line: u32,
    },
    /// The kernel prints or allocates memory.
    #[error("line {line}: the kernel calls `{callee}`, whose effects would happen twice")]
    Calls {
        /// The function.
        callee: String,
        /// The line.
        line: u32,
    },
    /// A callee without a body in this module.
    #[error("line {line}: the callee `{callee}` has no body in this module")]
    UnknownCallee {
        /// The function, or the register that holds it.
        callee: String,
        /// The line.
        line: u32,
    },
    /// An instruction whose effects the analysis does not model.
    #[error("line {line}: the effects of `{instruction}` ({what}) are not known")]
    Unsupported {
        /// The instruction.
        instruction: String,
        /// The group of instructions it belongs to.
        what: &'static str,
        /// The line.
        line: u32,
    },
    /// The kernel exceeds the limits of the analysis.
    #[error("the kernel is too large to be analysed")]
    TooComplex,
}

/// Limit on the pairs of accesses to global memory that are compared: a million pairs take a
/// fraction of a second.
const PAIRS_MAX: usize = 4 << 20;

/// Decides whether a block of a kernel may run again. The kernel must not have been transformed
/// yet: the preemption flag itself reads and writes memory of the runtime.
pub fn analyze_idempotence(module: &Module, kernel: &Function) -> Rerun {
    match prove(module, kernel) {
        Ok(pairs) if pairs.is_empty() => Rerun::Always,
        Ok(pairs) => Rerun::IfDisjoint(pairs),
        Err(reason) => Rerun::Never(reason),
    }
}

fn prove(module: &Module, kernel: &Function) -> Result<Vec<(Root, Root)>, NotRerunnable> {
    let trace = Trace::of(module, kernel).map_err(|opaque| match opaque {
        Opaque::Callee { name, line } => NotRerunnable::UnknownCallee { callee: name, line },
        Opaque::TooComplex => NotRerunnable::TooComplex,
    })?;
    for (function, instruction, id) in trace.instructions() {
        forbid(instruction, trace.code(function).statement(id).origin.line)?;
    }
    let outside: Vec<&Access> = trace.accesses.iter().filter(|a| !a.is_private).collect();
    forbid_accesses(&trace, &outside)?;
    let writes: Vec<&Access> = outside.iter().copied().filter(|a| a.act.writes).collect();
    if writes.is_empty() {
        return Ok(Vec::new());
    }
    let order = Order::of(&trace)?;
    Unstable::of(&trace, &order.cfg).check(&trace, &writes)?;
    let reads: Vec<&Access> = outside.into_iter().filter(|a| a.act.reads).collect();
    if reads.len().saturating_mul(writes.len()) > PAIRS_MAX {
        return Err(NotRerunnable::TooComplex);
    }
    let mut pairs: Vec<(usize, usize)> = Vec::new();
    for read in reads {
        let Some(from) = &read.targets else {
            return Err(NotRerunnable::UnknownAddress { what: "load", line: read.line });
        };
        if order.is_covered(&trace, read, &writes) {
            continue;
        }
        for write in writes.iter().filter(|write| order.may_follow(read, write)) {
            let Some(to) = &write.targets else {
                return Err(NotRerunnable::UnknownAddress { what: "store", line: write.line });
            };
            if let Some(&shared) = from.iter().find(|root| to.contains(root))
                && may_clobber(&trace, read, write)
            {
                // Only roots that a caller can name remain here.
                let Some(root) = trace.root(shared).cloned() else { continue };
                return Err(NotRerunnable::Clobber { store: write.line, load: read.line, root });
            }
            let new = from.iter().flat_map(|&r| to.iter().map(move |&w| (r, w))).filter(|(r, w)| r != w);
            new.for_each(|pair| {
                if !pairs.contains(&pair) {
                    pairs.push(pair)
                }
            });
        }
    }
    let named = pairs.into_iter().filter_map(|(r, w)| Some((trace.root(r)?.clone(), trace.root(w)?.clone())));
    // Two different variables of a module never overlap.
    Ok(named.filter(|pair| !matches!(pair, (Root::Variable(_), Root::Variable(_)))).collect())
}

/// Whether a store may overwrite bytes that a load of the same block read; both point into the same
/// root.
fn may_clobber(trace: &Trace<'_>, read: &Access, write: &Access) -> bool {
    let (Some(from), Some(to)) = (&read.address, &write.address) else { return true };
    let (Some(read_bytes), Some(write_bytes)) = (read.act.bytes, write.act.bytes) else { return true };
    may_overlap(trace.atoms(), (from, read_bytes), (to, write_bytes))
}

/// Rejects instructions whose effect or result may differ in a second run.
fn forbid(instruction: &Instruction, line: u32) -> Result<(), NotRerunnable> {
    const CALLS: [&str; 3] = ["vprintf", "malloc", "free"];
    const DIFFERS: [&str; 10] = [
        "%clock",
        "%globaltimer",
        "%pm",
        "%smid",
        "%warpid",
        "%nwarpid",
        "%gridid",
        "%envreg",
        "%cluster",
        "%current_graph_exec",
    ];
    if let Act::Unsupported(what) = act(instruction) {
        return Err(NotRerunnable::Unsupported { instruction: instruction.dotted(), what, line });
    }
    if instruction.opcode == "nanosleep" {
        return Err(NotRerunnable::Differs { what: instruction.dotted(), line });
    }
    let mut found = Ok(());
    instruction.visit_names(&mut |_, name| {
        if CALLS.contains(&name.as_str()) && instruction.opcode == "call" {
            found = Err(NotRerunnable::Calls { callee: name.to_string(), line });
        }
        if atoll_ptx::is_special_register(name) && DIFFERS.iter().any(|prefix| name.starts_with(prefix)) {
            found = Err(NotRerunnable::Differs { what: name.to_string(), line });
        }
    });
    found
}

/// Rejects accesses that are unsafe on their own, without a pair of load and store.
fn forbid_accesses(trace: &Trace<'_>, outside: &[&Access]) -> Result<(), NotRerunnable> {
    for access in outside {
        let instruction =
            || trace.code(access.function).instruction(access.statement).map(Instruction::dotted).unwrap_or_default();
        if access.act.atomic {
            return Err(NotRerunnable::Atomic { instruction: instruction(), line: access.line });
        }
        if access.act.strong {
            return Err(NotRerunnable::Strong { instruction: instruction(), line: access.line });
        }
        if access.act.writes && access.targets.is_none() {
            return Err(NotRerunnable::UnknownAddress { what: "store", line: access.line });
        }
    }
    Ok(())
}

/// The order of accesses within a block.
struct Order {
    cfg: Cfg,
    dominators: DominatorTree,
    /// For each basic block, the blocks that can run after it has ended.
    later: HashMap<BlockId, Vec<bool>>,
    /// Whether a store that follows a load on no path precedes it in every thread.
    by_paths: bool,
}

impl Order {
    fn of(trace: &Trace<'_>) -> Result<Order, NotRerunnable> {
        let code = trace.code(0);
        // The verifier guarantees that the control-flow graph can be built.
        let cfg = Cfg::of(code).map_err(|_| NotRerunnable::TooComplex)?;
        let divergence = Divergence::of(code, &cfg);
        let waits_divergently = |(function, instruction, id): (usize, &Instruction, StatementId)| {
            waits_for_threads(instruction)
                && (function != 0 || instruction.guard.is_some() || divergence.in_block(cfg.block_of(id)))
        };
        // Spinning on shared memory orders threads without a barrier.
        let synchronises =
            |access: &Access| access.is_private && (access.act.strong || access.act.atomic && access.act.reads);
        let by_paths = !trace.instructions().any(waits_divergently) && !trace.accesses.iter().any(synchronises);
        let later = trace.accesses.iter().filter(|a| a.function == 0 && a.act.reads && !a.is_private);
        let later = later.map(|a| cfg.block_of(a.statement)).map(|block| (block, reachable(&cfg, block))).collect();
        Ok(Order { dominators: DominatorTree::dominators(&cfg), cfg, later, by_paths })
    }

    /// Whether a store may come after a load, in this thread or in another.
    fn may_follow(&self, read: &Access, write: &Access) -> bool {
        if !self.by_paths || read.function != 0 || write.function != 0 {
            return true;
        }
        let (from, to) = (self.cfg.block_of(read.statement), self.cfg.block_of(write.statement));
        from == to && read.statement < write.statement || self.later.get(&from).is_none_or(|later| later[to.index()])
    }

    /// Whether the thread itself has certainly written the bytes that a load reads.
    fn is_covered(&self, trace: &Trace<'_>, read: &Access, writes: &[&Access]) -> bool {
        writes.iter().any(|write| {
            write.function == 0
                && read.function == 0
                && self.comes_first(write.statement, read.statement)
                && is_unguarded(trace, write)
                && is_within(trace, read, write)
        })
    }

    /// Whether a statement has certainly run when another one is reached.
    fn comes_first(&self, first: StatementId, second: StatementId) -> bool {
        let (a, b) = (self.cfg.block_of(first), self.cfg.block_of(second));
        a == b && first < second || a != b && self.dominators.dominates(a, b)
    }
}

fn is_unguarded(trace: &Trace<'_>, access: &Access) -> bool {
    trace.code(access.function).instruction(access.statement).is_some_and(|i| i.guard.is_none())
}

/// Whether a load reads only bytes that a store of the same thread writes, regardless of their
/// order.
fn is_within(trace: &Trace<'_>, read: &Access, write: &Access) -> bool {
    let (Some(from), Some(to), Some(read_bytes), Some(write_bytes)) =
        (&read.address, &write.address, read.act.bytes, write.act.bytes)
    else {
        return false;
    };
    if trace.atoms().class(from) == Class::Changing {
        return false;
    }
    let distance = from.plus(to, u64::MAX).and_then(|d: Linear| d.as_constant().map(|c| d.signed(c)));
    distance.is_some_and(|d| d >= 0 && i128::from(d) + i128::from(read_bytes) <= i128::from(write_bytes))
}

/// Blocks that can run after a block has ended.
fn reachable(cfg: &Cfg, from: BlockId) -> Vec<bool> {
    let mut seen = vec![false; cfg.len()];
    let mut waiting: Vec<BlockId> = cfg.block(from).successors.iter().map(|edge| edge.to).collect();
    while let Some(block) = waiting.pop() {
        if !std::mem::replace(&mut seen[block.index()], true) {
            waiting.extend(cfg.block(block).successors.iter().map(|edge| edge.to));
        }
    }
    seen
}
