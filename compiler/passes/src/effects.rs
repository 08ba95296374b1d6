//! The effects of a kernel on memory that outlives its blocks: which buffers it reads, writes and
//! updates atomically.
//!
//! [`analyze_effects`] describes the effects in terms of kernel parameters, for other crates. The
//! passes of this crate use the underlying [`Trace`], which lists every access with its address.

mod cells;
mod eval;
pub(crate) mod linear;
pub(crate) mod memory;
pub(crate) mod overlap;
mod provenance;
mod roots;

pub use roots::Root;

use crate::preemptible::{NotPreemptible, reachable_functions};
use crate::threads::is_block_barrier;
use atoll_ptx::analysis::{Code, StatementId};
use atoll_ptx::{Function, Instruction, Module, Name, StateSpace, Variable};
use linear::{Atoms, Linear, RootSet};
use memory::{Act, MemoryAct, act};
use provenance::Provenance;

/// The effects of a kernel on memory, including those of the device functions it calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelEffects {
    /// What it reads; unordered, without duplicates.
    pub reads: Vec<Root>,
    /// What it writes.
    pub writes: Vec<Root>,
    /// What it updates with atomic operations; also contained in the writes.
    pub atomics: Vec<Root>,
    /// The line of a load whose address has no known origin: it may read anything.
    pub reads_anything: Option<u32>,
    /// The line of a store or atomic whose address has no known origin: it may write anything.
    pub writes_anything: Option<u32>,
    /// Number of barriers at which the threads of the block wait for each other; warp-wide
    /// operations not included.
    pub barriers: usize,
    /// Whether shared memory is accessed.
    pub uses_shared: bool,
    /// The line of the first instruction whose effects are not modelled (textures, tensor maps, …),
    /// or of a call of a function without a body.
    pub unsupported: Option<u32>,
}

/// Returns the effects of a kernel on memory.
///
/// ```
/// # let text = ".version 7.0\n.target sm_80\n.address_size 64\n.entry k(.param .u64 a) {\n\
/// #     .reg .b64 %rd<2>;\nld.param.u64 %rd1, [a];\nst.global.u32 [%rd1], 7;\nret;\n}";
/// let module = atoll_ptx::parse(text).unwrap();
/// let effects = atoll_passes::analyze_effects(&module, module.function("k").unwrap());
/// assert_eq!(effects.writes[0].to_string(), "%a");
/// assert!(effects.reads.is_empty());
/// ```
pub fn analyze_effects(module: &Module, kernel: &Function) -> KernelEffects {
    let trace = match Trace::of(module, kernel) {
        Ok(trace) => trace,
        Err(opaque) => return KernelEffects { unsupported: Some(opaque.line()), ..KernelEffects::default() },
    };
    let mut effects =
        KernelEffects { unsupported: trace.unsupported().map(|(line, ..)| line), ..KernelEffects::default() };
    for (_, instruction, _) in trace.instructions() {
        effects.barriers += usize::from(is_block_barrier(instruction));
    }
    for access in &trace.accesses {
        effects.uses_shared |= access.act.space == Some(StateSpace::Shared);
        let (line, act) = (Some(access.line), &access.act);
        match &access.targets {
            _ if access.is_private => {}
            Some(targets) => {
                for root in targets.iter().filter_map(|&t| trace.root(t)) {
                    add(&mut effects.reads, root, act.reads);
                    add(&mut effects.writes, root, act.writes);
                    add(&mut effects.atomics, root, act.atomic);
                }
            }
            None => {
                effects.reads_anything = effects.reads_anything.or(line.filter(|_| act.reads));
                effects.writes_anything = effects.writes_anything.or(line.filter(|_| act.writes));
            }
        }
    }
    effects
}

fn add(roots: &mut Vec<Root>, root: &Root, wanted: bool) {
    if wanted && !roots.contains(root) {
        roots.push(root.clone());
    }
}

/// Why a kernel cannot be traced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Opaque {
    /// It calls a function without a body.
    Callee { name: String, line: u32 },
    /// It exceeds the limits of the analysis.
    TooComplex,
}

impl Opaque {
    fn line(&self) -> u32 {
        match self {
            Opaque::Callee { line, .. } => *line,
            Opaque::TooComplex => 0,
        }
    }
}

/// One access to memory.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    /// Index of the function that contains it; the kernel is 0.
    pub(crate) function: usize,
    pub(crate) statement: StatementId,
    pub(crate) line: u32,
    pub(crate) act: MemoryAct,
    /// Its address, if it can be expressed.
    pub(crate) address: Option<Linear>,
    /// The roots it may access; `None` if it may access anything.
    pub(crate) targets: Option<Vec<usize>>,
    /// Whether it accesses only memory of the block itself, or reads constant memory.
    pub(crate) is_private: bool,
}

/// Every access of a kernel, and the values that addresses consist of.
pub(crate) struct Trace<'m> {
    provenance: Provenance<'m>,
    pub(crate) accesses: Vec<Access>,
}

impl<'m> Trace<'m> {
    pub(crate) fn of(module: &'m Module, kernel: &'m Function) -> Result<Trace<'m>, Opaque> {
        let reachable = reachable_functions(module, kernel).map_err(|reason| match reason {
            NotPreemptible::UnknownCallee { callee, line } => Opaque::Callee { name: callee, line },
            other => Opaque::Callee { name: other.to_string(), line: 0 },
        })?;
        let provenance = Provenance::of(module, kernel, &reachable).map_err(|_| Opaque::TooComplex)?;
        let mut trace = Trace { provenance, accesses: Vec::new() };
        trace.collect();
        Ok(trace)
    }

    fn collect(&mut self) {
        for function in 0..self.provenance.functions.len() {
            for index in 0..self.provenance.functions[function].code.len() {
                let statement = StatementId::new(index);
                let Some(instruction) = self.provenance.instruction(function, statement) else { continue };
                let Act::Access(act) = act(instruction) else { continue };
                let address = self.provenance.address(function, statement, &act);
                let into = address.as_ref().map_or(RootSet::NONE, |a| self.provenance.points_into(a));
                let roots = &self.provenance.roots;
                let targets = roots.targets(into);
                let is_private = match act.space {
                    Some(StateSpace::Shared | StateSpace::Local | StateSpace::Param | StateSpace::Const) => true,
                    _ => targets.as_ref().is_some_and(|all| {
                        all.iter()
                            .all(|&root| roots.is_private_root(root) || roots.is_constant_root(root) && !act.writes)
                    }),
                };
                let line = self.provenance.functions[function].code.statement(statement).origin.line;
                self.accesses.push(Access { function, statement, line, act, address, targets, is_private });
            }
        }
    }

    /// Every instruction with its function and position.
    pub(crate) fn instructions(&self) -> impl Iterator<Item = (usize, &'m Instruction, StatementId)> + '_ {
        self.provenance.functions.iter().enumerate().flat_map(|(index, function)| {
            function.code.statements().filter_map(move |(id, statement)| Some((index, statement.instruction()?, id)))
        })
    }

    /// The first instruction whose effects are not modelled: line, name, group of instructions.
    pub(crate) fn unsupported(&self) -> Option<(u32, String, &'static str)> {
        self.instructions().find_map(|(function, instruction, id)| match act(instruction) {
            Act::Unsupported(what) => Some((self.code(function).statement(id).origin.line, instruction.dotted(), what)),
            _ => None,
        })
    }

    pub(crate) fn code(&self, function: usize) -> &Code<'m> {
        &self.provenance.functions[function].code
    }

    pub(crate) fn atoms(&self) -> &Atoms {
        &self.provenance.atoms
    }

    /// The number of functions; the kernel is the first.
    pub(crate) fn function_count(&self) -> usize {
        self.provenance.functions.len()
    }

    /// The root with an index; `None` for private and constant memory.
    pub(crate) fn root(&self, index: usize) -> Option<&Root> {
        self.provenance.roots.get(index)
    }

    /// The address of an operand `[base+offset]` of an instruction.
    pub(crate) fn address(&mut self, function: usize, statement: StatementId, operand: usize) -> Option<Linear> {
        self.provenance.operand_address(function, statement, operand)
    }

    /// The only shared, local or constant variable that an address can lie in, with the smallest
    /// and largest offset if they are known.
    pub(crate) fn variable(&self, address: &Linear) -> Option<(&'m Variable, Option<(i64, i64)>)> {
        self.provenance.variable_at(address)
    }

    /// Whether a variable is declared by the module itself.
    pub(crate) fn is_of_module(&self, variable: &Variable) -> bool {
        self.provenance.is_of_module(variable)
    }

    /// Whether an address may point to memory of the block itself.
    pub(crate) fn may_be_private(&self, access: &Access) -> bool {
        access.address.as_ref().is_some_and(|address| self.provenance.may_be_private(address))
    }

    /// Whether a stored value may be the address of memory of the block itself.
    pub(crate) fn may_store_private_address(&mut self, access: &Access) -> bool {
        self.provenance.may_store_private_address(access.function, access.statement, &access.act)
    }

    /// The value of a register, if it has a single one.
    pub(crate) fn register_value(&self, function: usize, statement: StatementId, name: &Name) -> Option<Linear> {
        self.provenance.register_value(function, statement, name)
    }
}
