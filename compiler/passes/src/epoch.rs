//! The parameters of the preemption protocol and the memory accesses that read and answer it: what
//! the entry check and the checks in loops share.

use crate::code::{Code, at};
use crate::cuttable::NotCut;
use crate::module_facts::{Dialect, align_up, params_bytes};
use atoll_kgraph::preempt_params;
use atoll_ptx::{Function, Name, ScalarType, StateSpace, Variable};

/// Last parts of the names of the appended parameters.
pub(crate) const EPOCH_WORD: &str = "atoll_epoch_word";
pub(crate) const EVICTED_WORD: &str = "atoll_evicted_word";
pub(crate) const PROGRESS: &str = "atoll_progress";
pub(crate) const ISSUED_EPOCH: &str = "atoll_issued_epoch";

/// The appended parameters with their types and places from the start of the appended block.
const APPENDED: [(&str, ScalarType, u32); 4] = [
    (EPOCH_WORD, ScalarType::U64, preempt_params::EPOCH_WORD),
    (EVICTED_WORD, ScalarType::U64, preempt_params::EVICTED_WORD),
    (PROGRESS, ScalarType::U64, preempt_params::PROGRESS),
    (ISSUED_EPOCH, ScalarType::U32, preempt_params::ISSUED_EPOCH),
];

/// Alignment of the appended block: that of the addresses in it.
const APPENDED_ALIGNMENT: u64 = 8;

/// The label behind which a block leaves that stopped midway. It is the last code of a body, and
/// what it ends with is no end of a block that ran.
pub(crate) const STOPPED_LABEL: &str = "$L_atoll_stopped";

/// The register that checks in loops read the epoch word into.
pub(crate) const LOOP_EPOCH: &str = "%atoll_loop_epoch";

/// A kernel's own symbol of a purpose: parameters and shared variables share one name space with
/// everything else of the module.
pub(crate) fn named(kernel: &str, purpose: &str) -> String {
    format!("{kernel}_{purpose}")
}

/// Where the parameters start in a kernel that has them.
pub(crate) fn params_offset(kernel: &Function) -> Option<u32> {
    let first = kernel.params.iter().position(|p| p.name == named(&kernel.name, EPOCH_WORD))?;
    let before = Function { params: kernel.params[..first].to_vec(), body: None, ..kernel.clone() };
    u32::try_from(align_up(params_bytes(&before), APPENDED_ALIGNMENT)).ok()
}

/// Where the parameters start, or would start if they were appended.
pub(crate) fn planned_offset(kernel: &Function, dialect: Dialect) -> Result<u32, NotCut> {
    if dialect.address_bits != 64 {
        return Err(NotCut::AddressSize(dialect.address_bits));
    }
    if let Some(offset) = params_offset(kernel) {
        return Ok(offset);
    }
    let offset = align_up(params_bytes(kernel), APPENDED_ALIGNMENT);
    let bytes = offset.saturating_add(preempt_params::BYTES.into());
    let limit = dialect.params_bytes_max();
    let too_many = NotCut::TooManyParameters { bytes, limit };
    if bytes > limit { Err(too_many) } else { u32::try_from(offset).map_err(|_| too_many) }
}

/// Appends the parameters to a kernel that does not have them.
pub(crate) fn append_params(kernel: &mut Function) {
    if params_offset(kernel).is_none() {
        for (purpose, ty, _) in APPENDED {
            let name = named(&kernel.name, purpose);
            kernel.params.push(Variable::new(StateSpace::Param, ty, &name));
        }
    }
}

/// Sets the launch's evicted word in the threads where `predicate` holds, or in all; `address` is a
/// register of 64 bits to work with.
pub(crate) fn set_evicted(code: &mut Code, kernel: &Name, dialect: Dialect, predicate: Option<&str>, address: &str) {
    code.emit("ld.param.u64", [address.into(), at(&named(kernel, EVICTED_WORD))]);
    let store = if dialect.has_memory_model() { "st.relaxed.sys.global.u32" } else { "st.volatile.global.u32" };
    match predicate {
        Some(predicate) => code.emit_if(predicate, store, [at(address), 1.into()]),
        None => code.emit(store, [at(address), 1.into()]),
    }
}

/// A load that sees what the host writes while kernels run.
pub(crate) fn strong_load(dialect: Dialect) -> &'static str {
    if dialect.has_memory_model() { "ld.relaxed.sys.global.u32" } else { "ld.volatile.global.u32" }
}
