//! The parameters of the preemption protocol and their memory accesses, shared by the entry check
//! and the checks in loops.

use crate::code::{Code, at};
use crate::module_facts::{Dialect, align_up, params_bytes};
use crate::preemptible::NotPreemptible;
use atoll_kgraph::preempt_params;
use atoll_ptx::{Function, Name, ScalarType, StateSpace, Variable};

/// Suffixes of the names of the appended parameters.
pub(crate) const EPOCH_WORD: &str = "atoll_epoch_word";
pub(crate) const EVICTED_WORD: &str = "atoll_evicted_word";
pub(crate) const PROGRESS: &str = "atoll_progress";
pub(crate) const ISSUED_EPOCH: &str = "atoll_issued_epoch";

/// The appended parameters with their types and offsets within the appended block.
const APPENDED: [(&str, ScalarType, u32); 4] = [
    (EPOCH_WORD, ScalarType::U64, preempt_params::EPOCH_WORD),
    (EVICTED_WORD, ScalarType::U64, preempt_params::EVICTED_WORD),
    (PROGRESS, ScalarType::U64, preempt_params::PROGRESS),
    (ISSUED_EPOCH, ScalarType::U32, preempt_params::ISSUED_EPOCH),
];

/// Alignment of the appended block, as required by its addresses.
const APPENDED_ALIGNMENT: u64 = 8;

/// The label of the code that a block runs when it stops midway. It is the last code of a body; its
/// `ret` does not mark the block as finished.
pub(crate) const STOPPED_LABEL: &str = "$L_atoll_stopped";

/// The register that checks in loops load the epoch word into.
pub(crate) const LOOP_EPOCH: &str = "%atoll_loop_epoch";

/// A symbol of the kernel for a purpose. The kernel's name makes it unique, because parameters and
/// shared variables share one name space with all other symbols of the module.
pub(crate) fn named(kernel: &str, purpose: &str) -> String {
    format!("{kernel}_{purpose}")
}

/// Byte offset of the appended parameters in a kernel that has them.
pub(crate) fn params_offset(kernel: &Function) -> Option<u32> {
    let first = kernel.params.iter().position(|p| p.name == named(&kernel.name, EPOCH_WORD))?;
    let before = Function { params: kernel.params[..first].to_vec(), body: None, ..kernel.clone() };
    u32::try_from(align_up(params_bytes(&before), APPENDED_ALIGNMENT)).ok()
}

/// Byte offset of the appended parameters, present or to be appended.
pub(crate) fn planned_offset(kernel: &Function, dialect: Dialect) -> Result<u32, NotPreemptible> {
    if dialect.address_bits != 64 {
        return Err(NotPreemptible::AddressSize(dialect.address_bits));
    }
    if let Some(offset) = params_offset(kernel) {
        return Ok(offset);
    }
    let offset = align_up(params_bytes(kernel), APPENDED_ALIGNMENT);
    let bytes = offset.saturating_add(preempt_params::BYTES.into());
    let limit = dialect.params_bytes_max();
    let too_many = NotPreemptible::TooManyParameters { bytes, limit };
    if bytes > limit { Err(too_many) } else { u32::try_from(offset).map_err(|_| too_many) }
}

/// Appends the parameters unless the kernel has them.
pub(crate) fn append_params(kernel: &mut Function) {
    if params_offset(kernel).is_none() {
        for (purpose, ty, _) in APPENDED {
            let name = named(&kernel.name, purpose);
            kernel.params.push(Variable::new(StateSpace::Param, ty, &name));
        }
    }
}

/// Sets the launch's evicted word in the threads where `predicate` holds, or in all; `address` is a
/// 64-bit scratch register.
pub(crate) fn set_evicted(code: &mut Code, kernel: &Name, dialect: Dialect, predicate: Option<&str>, address: &str) {
    code.emit("ld.param.u64", [address.into(), at(&named(kernel, EVICTED_WORD))]);
    let store = if dialect.has_memory_model() { "st.relaxed.sys.global.u32" } else { "st.volatile.global.u32" };
    match predicate {
        Some(predicate) => code.emit_if(predicate, store, [at(address), 1.into()]),
        None => code.emit(store, [at(address), 1.into()]),
    }
}

/// A load that sees writes of the host while kernels run.
pub(crate) fn strong_load(dialect: Dialect) -> &'static str {
    if dialect.has_memory_model() { "ld.relaxed.sys.global.u32" } else { "ld.volatile.global.u32" }
}
