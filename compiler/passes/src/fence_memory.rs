//! Bounds every access of an untrusted kernel to its tenant's memory, so that functions of
//! different tenants can share one device context.
//!
//! # Vocabulary
//! - The tenant's *region* is one range of global memory whose size is a power of two and whose
//!   start is a multiple of its size; `mask` is the size minus one.
//! - *Constants* are a second such range, shared with other tenants and only loaded from.
//! - *Private* memory is a shared, local or constant variable of the kernel's own module.
//!
//! # Transformation
//! - Store or atomic: the address becomes `(address & mask) | base`, which takes two operations. An
//!   address outside the region becomes an address inside.
//! - Load: the address stays if `(address & ~mask) == base` holds for the constants; otherwise it
//!   is bounded like that of a store. This takes one comparison and one selection more.
//! - Store or load in the form [`FenceForm::Trap`]: the address stays. A check before the
//!   access traps if the address lies neither in the region nor, for a load, in the constants; the
//!   host target lowers the comparisons as one instruction.
//! - Store or load in the form [`FenceForm::Exit`]: as in the form [`FenceForm::Trap`], with one
//!   range for loads and stores, since constants of a tenant are in its region on a GPU. An address
//!   that is not a multiple of the size of the access counts as outside. `exit_on_trap` replaces the
//!   trap.
//! - Shared, local and constant memory: the address becomes
//!   `variable + min(address − variable, size − bytes)`, where `variable` is the variable that the
//!   address is derived from. If the offset is known to fit, no code is added. In the form
//!   [`FenceForm::Exit`] the address is also rounded down to a multiple of `bytes`.
//! - Generic address: treated as a global address. If it is derived from a private variable, the
//!   access becomes an access to that variable in its own state space. A kernel with an address
//!   that may be both is rejected.
//! - `brx.idx`: the index is limited to the last entry of the table.
//!
//! The mask keeps an aligned address aligned, so the last byte of an access lies inside as well.
//! Safety does not depend on the analysis: an address is bounded whether it is classified as global
//! or as private. If the analysis is wrong about a kernel, the kernel computes wrong results but
//! accesses no memory of another tenant.
//!
//! # Rejected kernels
//! Rejected is every instruction that does more than compute ([`memory`]) and is not in [`TABLE`],
//! or has a modifier that is not in [`MODIFIERS`]: textures, surfaces, tensor maps, bulk copies,
//! strided matrices, calls of unknown functions. Two more uses of memory are rejected:
//! - storing the address of private memory to global memory, because a later load would take it for
//!   a global address;
//! - writing to a variable of the module in global memory, because it lies outside every region.
//!   Loads from such a variable are allowed.
//!
//! The form [`FenceForm::Exit`] also rejects everything else that may destroy a context (`gpu.rs`).

mod bounds;
mod gpu;
mod plan;
mod stranded;
mod undefined;

use crate::code::{Code, at, prepend, rebuild};
use crate::error::PassError;
use crate::module_facts::{Dialect, align_up, params_bytes};
use crate::options::FenceForm;
use atoll_kgraph::target::fence_params;
use atoll_ptx::{
    Function, FunctionKind, ItemKind, Module, Name, Operand, ScalarType, StateSpace, StatementKind, Variable,
};
use bounds::Fixes;
pub(crate) use bounds::{OTHER, OUTSIDE, TOO_SMALL};
use plan::{FunctionPlan, plans};
use std::collections::{BTreeMap, BTreeSet};

/// What the pass did to a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fencing {
    /// The pass did not run.
    NotAsked,
    /// All accesses are bounded.
    Fenced {
        /// Byte offset of the appended [`fence_params`].
        offset: u32,
    },
    /// It is unchanged, and must not run for an untrusted tenant.
    Refused(NotFenced),
}

/// Why a kernel cannot be fenced. Lines are those of the source; 0 for statements built by a pass.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotFenced {
    /// An instruction that has no rule in the fence.
    #[error("line {line}: `{instruction}` cannot be fenced{what}")]
    Instruction {
        /// The instruction.
        instruction: String,
        /// The group of instructions it belongs to, if known.
        what: String,
        /// The line.
        line: u32,
    },
    /// A call whose target is unknown or outside of the module.
    #[error("line {line}: the callee `{callee}` has no body in this module")]
    UnknownCallee {
        /// The function, or the register that holds it.
        callee: String,
        /// The line.
        line: u32,
    },
    /// A function whose address is taken, so that its parameters cannot change.
    #[error("the address of the device function `{function}` is taken")]
    FunctionAddress {
        /// The function.
        function: String,
    },
    /// A function that cannot be fenced for all its callers: one of them is a kernel that cannot be
    /// fenced, or two kernels need different fences in it.
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
        /// The line.
        line: u32,
    },
    /// The variable that an address lies in is unknown.
    #[error("line {line}: cannot determine which {space} variable is accessed")]
    UnknownVariable {
        /// The state space.
        space: String,
        /// The line.
        line: u32,
    },
    /// A generic address that may be global or private.
    #[error("line {line}: a generic address that may point to private or to global memory")]
    GenericAddress {
        /// The line.
        line: u32,
    },
    /// Stores the address of private memory to global memory.
    #[error("line {line}: stores the address of private memory")]
    PrivateAddress {
        /// The line.
        line: u32,
    },
    /// An access to parameters of a kernel or call by a computed address, or beyond their end.
    #[error("line {line}: a parameter is accessed by a computed address")]
    ParameterAddress {
        /// The line.
        line: u32,
    },
    /// A register that the fence cannot initialise, or whose name is reserved for the fence.
    #[error(
        "line {line}: the register `{register}` is read before it is written, or its name is reserved for the fence"
    )]
    Register {
        /// Its name.
        register: String,
        /// The line of the declaration; 0 for a register that is read before it is written.
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
    /// The fence requires 64-bit addresses.
    #[error("the module has {0}-bit addresses")]
    AddressSize(u32),
    /// The kernel exceeds the limits of the analysis.
    #[error("the kernel is too large to be analysed")]
    TooComplex,
    /// A variable or parameter that is not aligned to the size of an access.
    #[error("line {line}: `{variable}` may not be aligned to the size of the access")]
    Alignment {
        /// The variable.
        variable: String,
        /// The line.
        line: u32,
    },
    /// A function that calls itself, so that the stack of a thread has no bound.
    #[error("the device function `{function}` calls itself, so the size of the stack is unknown")]
    Recursion {
        /// The function.
        function: String,
    },
    /// A branch table without targets; the verifier rejects it too.
    #[error("line {line}: a branch table without targets")]
    EmptyTable {
        /// The line.
        line: u32,
    },
}

/// The fence of an instruction that may access memory or jump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// Jumps to a label of its function; nothing to do.
    Jump,
    /// The index into the table of labels is bounded.
    BoundIndex,
    /// The callee is known and is fenced itself.
    KnownCallee,
    /// The address is bounded.
    BoundAddress,
    /// The global source and the shared destination are bounded.
    BoundCopy,
    /// The address of a row of a matrix in shared memory is bounded: operand, bytes.
    BoundRow(usize, u64),
    /// Waits for copies of the thread; nothing to do.
    Wait,
    /// Nothing to do in the form [`FenceForm::Trap`]: on its targets a prefetch never faults and
    /// changes no register or memory. Rejected in the other form.
    Prefetch,
}

/// Every instruction that may access memory or jump and has a rule. Instructions that are neither
/// here nor purely computing are rejected.
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
    ("prefetch.global.L1", Rule::Prefetch),
    ("prefetch.global.L2", Rule::Prefetch),
];

/// Modifiers of bounded accesses, besides types and cache hints: state spaces, order and scope,
/// caching, vectors, operations, matrices. An unknown modifier could change the address or the
/// extent of an access.
pub(crate) const MODIFIERS: &[&[&str]] = &[
    &["const", "global", "local", "param", "param::entry", "param::func", "shared", "shared::cta"],
    &["weak", "volatile", "relaxed", "acquire", "release", "acq_rel", "mmio", "cta", "cluster", "gpu", "sys"],
    &["ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc"],
    &["v2", "v4", "v8"],
    &["add", "exch", "cas", "min", "max", "inc", "dec", "and", "or", "xor", "noftz"],
    &["async", "sync", "aligned", "m8n8", "x1", "x2", "x4", "trans"],
];

/// Registers with the fence's parameters, loaded in kernels and passed to functions as parameters:
/// name, type, suffix of the kernel's parameter. The last one exists in the form [`FenceForm::Exit`]
/// only.
const REGISTERS: [(&str, ScalarType, &str); 6] = [
    (BASE, ScalarType::B64, "atoll_fence_base"),
    (MASK, ScalarType::B64, "atoll_fence_mask"),
    (CONSTANTS, ScalarType::B64, "atoll_fence_constants"),
    (CONSTANTS_MASK, ScalarType::B64, "atoll_fence_constants_mask"),
    (DYNAMIC, ScalarType::B32, "atoll_fence_dynamic_shared"),
    (FAULT_WORD, ScalarType::B64, "atoll_fence_fault_word"),
];

/// The registers of a form.
fn registers(form: FenceForm) -> &'static [(&'static str, ScalarType, &'static str)] {
    if form == FenceForm::Exit { &REGISTERS } else { &REGISTERS[..REGISTERS.len() - 1] }
}

/// Prefix of all registers that the fence adds.
const RESERVED: &str = "%atoll_";
const BASE: &str = "%atoll_base";
const MASK: &str = "%atoll_mask";
const CONSTANTS: &str = "%atoll_constants";
const CONSTANTS_MASK: &str = "%atoll_constants_mask";
const DYNAMIC: &str = "%atoll_dynamic";
/// The address of the launch's fault word.
pub(crate) const FAULT_WORD: &str = "%atoll_fault_word";

/// Fences every kernel for which that is possible. Returns the outcome for each kernel with a body,
/// in order.
pub(crate) fn fence_memory(module: &mut Module, form: FenceForm) -> Result<Vec<Fencing>, PassError> {
    let dialect = Dialect::of(module);
    if let Some(kernel) = module.kernels().find(|k| k.params.iter().any(|p| p.name.ends_with(REGISTERS[0].2))) {
        return Err(PassError::AlreadyFenced { kernel: kernel.name.to_string() });
    }
    let (plans, refused) = plans(module, dialect, form);
    let outcome = |kernel: &Function| match refused.get(&kernel.name) {
        Some(reason) => Fencing::Refused(reason.clone()),
        // The plan has checked that it fits.
        None => Fencing::Fenced { offset: u32::try_from(offset(kernel)).unwrap_or(u32::MAX) },
    };
    let outcomes = module.kernels().map(outcome).collect();
    let extended: BTreeSet<Name> = module
        .functions()
        .filter(|f| f.kind == FunctionKind::Func && plans.contains_key(&f.name))
        .map(|f| f.name.clone())
        .collect();
    stranded::remove_stranded(module, &extended);
    for item in &mut module.items {
        let fenced = matches!(&item.kind, ItemKind::Function(f) if plans.contains_key(&f.name));
        if fenced && let ItemKind::Function(function) = item.edit() {
            apply(function, &plans, &extended, form);
        }
    }
    Ok(outcomes)
}

/// Byte offset of the appended parameters.
fn offset(kernel: &Function) -> u64 {
    align_up(params_bytes(kernel), 8)
}

/// Checks that the appended parameters fit.
fn check_parameters(kernel: &Function, dialect: Dialect, form: FenceForm) -> Result<(), NotFenced> {
    let exits = form == FenceForm::Exit;
    let appended = if exits { fence_params::BYTES_WITH_FAULT_WORD } else { fence_params::BYTES };
    let (bytes, limit) = (offset(kernel).saturating_add(appended.into()), dialect.params_bytes_max());
    if bytes > limit { Err(NotFenced::TooManyParameters { bytes, limit }) } else { Ok(()) }
}

fn apply(function: &mut Function, plans: &BTreeMap<Name, FunctionPlan>, extended: &BTreeSet<Name>, form: FenceForm) {
    let Some(plan) = plans.get(&function.name) else { return };
    let mut prologue = Code::default();
    if function.kind == FunctionKind::Entry {
        for &(register, ty, purpose) in registers(form) {
            let name = format!("{}_{purpose}", function.name);
            function.params.push(Variable::new(StateSpace::Param, ty, &name));
            prologue.registers(ty, &[register]);
            prologue.emit(&format!("ld.param.{ty}"), [register.into(), at(&name)]);
        }
    } else {
        let parameter = |(register, ty, _): &(&str, ScalarType, &str)| Variable::new(StateSpace::Reg, *ty, register);
        function.params.extend(registers(form).iter().map(parameter));
    }
    // A declaration before the definition has no body.
    let Some(body) = &mut function.body else { return };
    let mut fixes = Fixes::new(form);
    rebuild(body, &mut |id, mut statement, code| {
        let calls = statement.instruction().and_then(called).filter(|callee| extended.contains(*callee)).is_some();
        if calls && let StatementKind::Instruction(call) = statement.edit() {
            pass_on(&mut call.operands, form);
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
fn pass_on(operands: &mut [Operand], form: FenceForm) {
    if let Some(Operand::List(arguments)) = operands.get_mut(2) {
        arguments.extend(registers(form).iter().map(|(register, ..)| Operand::from(*register)));
    }
}
