//! Bounds every access of an untrusted kernel to its tenant's memory (design D9), so that functions
//! of different tenants may share one context.
//!
//! # Vocabulary
//! - The tenant's *region* is one range of global memory whose size is a power of two and whose
//!   start is a multiple of that; `mask` is its size less one.
//! - *Constants* are a second such range, shared with others, for loads alone.
//! - *Private* memory is a shared, local or constant variable of the kernel's own module.
//!
//! # How
//! | access | becomes | by |
//! |---|---|---|
//! | store, atomic | `(address & mask) \| base` | two operations; what lay outside of the region lands somewhere in it |
//! | load | itself where `(address & ~mask) == base` of the constants, else as a store | a comparison and a selection more |
//! | the same, in the form [`FenceForm::Trap`] | itself, behind a trap where it lies in neither | comparisons, in a form that the host target lowers as a whole |
//! | shared, local, constant memory | `variable + min(address − variable, size − bytes)` | the variable that the address is derived from; nothing where the offset is known to fit |
//! | generic address | as global, unless it is derived from a private variable: then as that, in its own state space | analysis; both at once is refused |
//! | `brx.idx` | the index is at most the last of the table | |
//!
//! The masks keep the low bits clear that an aligned access has clear, so the last byte of an
//! access is inside as well. Nothing depends on what an address *should* be: whether it
//! is taken for global or private memory, it is bounded, and an analysis that is wrong about a
//! kernel costs that kernel its sense and nobody else anything.
//!
//! # What is refused
//! Every instruction that is not in [`TABLE`] with modifiers of [`MODIFIERS`] and does not merely
//! compute ([`memory`]): textures, surfaces, tensor maps, bulk copies, matrices in strides, calls
//! of what is not known. So is an address of private memory that is handed out to global memory,
//! from where it would come back as a global one, and a variable of the module in global memory,
//! which lies outside of every region, where it is written; loads are allowed, within the variable.

mod bounds;
mod plan;

use crate::code::{Code, at, prepend, rebuild};
use crate::error::PassError;
use crate::module_facts::{Dialect, align_up, params_bytes};
use crate::options::FenceForm;
use atoll_kgraph::target::fence_params;
use atoll_ptx::{
    Function, FunctionKind, ItemKind, Module, Name, Operand, ScalarType, StateSpace, StatementKind, Variable,
};
use bounds::Fixes;
use plan::{FunctionPlan, plans};
use std::collections::{BTreeMap, BTreeSet};

/// What the pass did to a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fencing {
    /// The pass did not run.
    NotAsked,
    /// Every access is bounded.
    Fenced {
        /// Byte offset of the appended [`fence_params`].
        offset: u32,
    },
    /// It was left as it was, and must not run for a tenant that is not trusted.
    Refused(NotFenced),
}

/// Why a kernel cannot be fenced. Lines are those of the source, 0 for built statements.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotFenced {
    /// An instruction that the fence has no rule for.
    #[error("line {line}: there is no fence for `{instruction}`{what}")]
    Instruction {
        /// The instruction.
        instruction: String,
        /// What it belongs to, where that is known.
        what: String,
        /// Where.
        line: u32,
    },
    /// A call whose target is not known, or that leads out of the module.
    #[error("line {line}: the callee `{callee}` has no body here")]
    UnknownCallee {
        /// The function, or the register that holds it.
        callee: String,
        /// Where.
        line: u32,
    },
    /// A function is called by address, so that its parameters cannot change.
    #[error("the address of the device function `{function}` is taken")]
    FunctionAddress {
        /// The function.
        function: String,
    },
    /// A kernel that cannot be fenced calls the same function, or the two call it in ways that are
    /// fenced differently.
    #[error("the device function `{function}` cannot be fenced for all kernels that call it")]
    SharedFunction {
        /// The function.
        function: String,
    },
    /// A variable of the module in global memory.
    #[error("line {line}: `{variable}` is global memory of the module, outside of every region")]
    ModuleVariable {
        /// The variable.
        variable: String,
        /// Where.
        line: u32,
    },
    /// It is not known which variable an address lies in.
    #[error("line {line}: it is not known which {space} variable is accessed")]
    UnknownVariable {
        /// The state space.
        space: String,
        /// Where.
        line: u32,
    },
    /// A generic address that may be global or private.
    #[error("line {line}: a generic address that may be that of private or of global memory")]
    GenericAddress {
        /// Where.
        line: u32,
    },
    /// The address of private memory is stored to global memory.
    #[error("line {line}: stores the address of private memory")]
    PrivateAddress {
        /// Where.
        line: u32,
    },
    /// Parameters of a kernel or call are accessed by a computed address, or beyond their end.
    #[error("line {line}: a parameter is accessed by a computed address")]
    ParameterAddress {
        /// Where.
        line: u32,
    },
    /// A register that the fence cannot give a first value, or whose name it has for itself.
    #[error("line {line}: the register `{register}` is read before it is written, or has a name that the fence uses")]
    Register {
        /// Its name.
        register: String,
        /// Where it is declared; 0 where it is one that is read.
        line: u32,
    },
    /// The appended parameters do not fit.
    #[error("{bytes} bytes of parameters are more than the {limit} that `.version` and `.target` allow")]
    TooManyParameters {
        /// With the appended ones.
        bytes: u64,
        /// What is allowed.
        limit: u64,
    },
    /// The fence is for 64-bit addresses.
    #[error("the module has {0}-bit addresses")]
    AddressSize(u32),
    /// The kernel is larger than the limits of the analysis.
    #[error("the kernel is too large to be analysed")]
    TooComplex,
    /// A branch that leads nowhere; the verifier refuses it too.
    #[error("line {line}: a table without targets")]
    EmptyTable {
        /// Where.
        line: u32,
    },
}

/// How an instruction that may touch memory or jump is fenced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// Goes to a label of its function.
    Jump,
    /// The index into the table of labels is bounded.
    BoundIndex,
    /// The callee is known and fenced itself.
    KnownCallee,
    /// The address is bounded.
    BoundAddress,
    /// The global source and the shared destination are bounded.
    BoundCopy,
    /// The address of a row of a matrix in shared memory is bounded: operand, bytes.
    BoundRow(usize, u64),
    /// Waits for copies of the thread.
    Wait,
}

/// Every instruction that may touch memory or jump and has a fence. What is neither here nor only
/// computes is refused.
pub(crate) const TABLE: &[(&str, Rule)] = &[
    ("bra", Rule::Jump),
    ("ret", Rule::Jump),
    ("exit", Rule::Jump),
    ("trap", Rule::Jump),
    ("brx", Rule::BoundIndex),
    ("call", Rule::KnownCallee),
    ("ld", Rule::BoundAddress),
    ("ldu", Rule::BoundAddress),
    ("st", Rule::BoundAddress),
    ("atom", Rule::BoundAddress),
    ("red", Rule::BoundAddress),
    ("cp.async.ca", Rule::BoundCopy),
    ("cp.async.cg", Rule::BoundCopy),
    ("cp.async.commit_group", Rule::Wait),
    ("cp.async.wait_group", Rule::Wait),
    ("cp.async.wait_all", Rule::Wait),
    ("ldmatrix", Rule::BoundRow(1, 16)),
    ("stmatrix", Rule::BoundRow(0, 16)),
];

/// Modifiers of bounded accesses, besides types and hints to caches: state spaces, order and scope,
/// caching, vectors, what is done, matrices. One that is not here might change where an access goes
/// or how far.
pub(crate) const MODIFIERS: &[&[&str]] = &[
    &["const", "global", "local", "param", "param::entry", "param::func", "shared", "shared::cta"],
    &["weak", "volatile", "relaxed", "acquire", "release", "acq_rel", "mmio", "cta", "cluster", "gpu", "sys"],
    &["ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc"],
    &["v2", "v4", "v8"],
    &["add", "exch", "cas", "min", "max", "inc", "dec", "and", "or", "xor", "noftz"],
    &["async", "sync", "aligned", "m8n8", "x1", "x2", "x4", "trans"],
];

/// The registers that hold what the fence needs, in kernels and in functions, where they are
/// parameters: name, type, parameter of the kernel.
const REGISTERS: [(&str, ScalarType, &str, u32); 5] = [
    (BASE, ScalarType::B64, "atoll_fence_base", fence_params::BASE),
    (MASK, ScalarType::B64, "atoll_fence_mask", fence_params::MASK),
    (CONSTANTS, ScalarType::B64, "atoll_fence_constants", fence_params::CONSTANTS_BASE),
    (CONSTANTS_MASK, ScalarType::B64, "atoll_fence_constants_mask", fence_params::CONSTANTS_MASK),
    (DYNAMIC, ScalarType::B32, "atoll_fence_dynamic_shared", fence_params::DYNAMIC_SHARED),
];

/// How the names of all registers begin that the fence adds.
const RESERVED: &str = "%atoll_";
const BASE: &str = "%atoll_base";
const MASK: &str = "%atoll_mask";
const CONSTANTS: &str = "%atoll_constants";
const CONSTANTS_MASK: &str = "%atoll_constants_mask";
const DYNAMIC: &str = "%atoll_dynamic";

/// Fences every kernel that can be. Says for each kernel with a body, in order, what was done.
pub(crate) fn fence_memory(module: &mut Module, form: FenceForm) -> Result<Vec<Fencing>, PassError> {
    let dialect = Dialect::of(module);
    if let Some(kernel) = module.kernels().find(|k| k.params.iter().any(|p| p.name.ends_with(REGISTERS[0].2))) {
        return Err(PassError::AlreadyFenced { kernel: kernel.name.to_string() });
    }
    let (plans, refused) = plans(module, dialect);
    let outcome = |kernel: &Function| match refused.get(&kernel.name) {
        Some(reason) => Fencing::Refused(reason.clone()),
        // That it fits was seen when the plan was made.
        None => Fencing::Fenced { offset: u32::try_from(offset(kernel)).unwrap_or(u32::MAX) },
    };
    let outcomes = module.kernels().map(outcome).collect();
    let extended: BTreeSet<Name> = module
        .functions()
        .filter(|f| f.kind == FunctionKind::Func && plans.contains_key(&f.name))
        .map(|f| f.name.clone())
        .collect();
    for item in &mut module.items {
        let fenced = matches!(&item.kind, ItemKind::Function(f) if plans.contains_key(&f.name));
        if fenced && let ItemKind::Function(function) = item.edit() {
            apply(function, &plans, &extended, form);
        }
    }
    Ok(outcomes)
}

/// Where the appended parameters start.
fn offset(kernel: &Function) -> u64 {
    align_up(params_bytes(kernel), 8)
}

/// Whether the appended parameters fit.
fn fits(kernel: &Function, dialect: Dialect) -> Result<(), NotFenced> {
    let (bytes, limit) = (offset(kernel).saturating_add(fence_params::BYTES.into()), dialect.params_bytes_max());
    if bytes > limit { Err(NotFenced::TooManyParameters { bytes, limit }) } else { Ok(()) }
}

fn apply(function: &mut Function, plans: &BTreeMap<Name, FunctionPlan>, extended: &BTreeSet<Name>, form: FenceForm) {
    let Some(plan) = plans.get(&function.name) else { return };
    let mut prologue = Code::default();
    if function.kind == FunctionKind::Entry {
        for (register, ty, purpose, _) in REGISTERS {
            let name = format!("{}_{purpose}", function.name);
            function.params.push(Variable::new(StateSpace::Param, ty, &name));
            prologue.registers(ty, &[register]);
            prologue.emit(&format!("ld.param.{ty}"), [register.into(), at(&name)]);
        }
    } else {
        let parameter =
            |(register, ty, ..): &(&str, ScalarType, &str, u32)| Variable::new(StateSpace::Reg, *ty, register);
        function.params.extend(REGISTERS.iter().map(parameter));
    }
    // A declaration in front of the definition has no body.
    let Some(body) = &mut function.body else { return };
    let mut fixes = Fixes::new(form);
    rebuild(body, &mut |id, mut statement, code| {
        let calls = statement.instruction().and_then(called).filter(|callee| extended.contains(*callee)).is_some();
        if calls && let StatementKind::Instruction(call) = statement.edit() {
            pass_on(&mut call.operands);
        }
        match plan.fixes.get(&id) {
            Some(wanted) => fixes.apply(wanted, statement, code),
            None => code.statements.push(statement),
        }
    });
    for (register, ty) in &plan.initial {
        let kind = if *ty == ScalarType::Pred { "pred".to_owned() } else { format!("b{}", ty.bits()) };
        prologue.emit(&format!("mov.{kind}"), [register.into(), 0.into()]);
    }
    if !plan.fixes.is_empty() {
        fixes.declare(&mut prologue);
    }
    prepend(body, prologue);
}

fn called(instruction: &atoll_ptx::Instruction) -> Option<&Name> {
    match instruction.operands.get(1) {
        Some(Operand::Name(name)) if instruction.opcode == "call" => Some(name),
        _ => None,
    }
}

/// Appends the registers of the fence to the arguments of a call.
fn pass_on(operands: &mut [Operand]) {
    if let Some(Operand::List(arguments)) = operands.get_mut(2) {
        arguments.extend(REGISTERS.iter().map(|(register, ..)| Operand::from(*register)));
    }
}
