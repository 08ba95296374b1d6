//! Finds registers whose value may be undefined.

use crate::effects::Trace;
use crate::effects::memory::{Act, act};
use atoll_ptx::analysis::{Cfg, Code, Liveness};
use atoll_ptx::{Instruction, Name, StateSpace};

/// For each function, the registers that may hold an undefined value or one derived from it. Facts
/// about values do not apply to them.
pub(super) fn undefined(trace: &Trace<'_>) -> Vec<Vec<bool>> {
    (0..trace.function_count()).map(|function| undefined_in(trace.code(function), function == 0)).collect()
}

fn undefined_in(code: &Code<'_>, is_kernel: bool) -> Vec<bool> {
    let count = code.registers().len();
    let Some((cfg, live)) = Cfg::of(code).ok().and_then(|cfg| Liveness::of(code, &cfg).ok().map(|live| (cfg, live)))
    else {
        return vec![true; count];
    };
    let mut undefined = vec![false; count];
    live.live_in(cfg.entry()).for_each(|register| undefined[register.index()] = true);
    loop {
        let mut changed = false;
        for (id, _) in code.statements() {
            let Some(instruction) = code.instruction(id) else { continue };
            let reads = code.accesses(id).iter().any(|a| a.role.reads() && undefined[a.register.index()]);
            if reads || may_load_undefined(instruction, code, is_kernel) {
                for access in code.accesses(id).iter().filter(|a| a.role.writes()) {
                    changed |= !std::mem::replace(&mut undefined[access.register.index()], true);
                }
            }
        }
        if !changed {
            return undefined;
        }
    }
}

/// Whether an instruction may load bytes that were never stored, from memory whose contents the
/// analysis tracks: local memory, and the parameters and results of calls.
fn may_load_undefined(instruction: &Instruction, code: &Code<'_>, is_kernel: bool) -> bool {
    let of_kernel = |name: &&Name| is_kernel && code.function().params.iter().any(|p| p.name == **name);
    match act(instruction) {
        Act::Access(access) if access.reads => match access.space {
            Some(StateSpace::Param) => !instruction.reads().iter().any(of_kernel),
            Some(StateSpace::Local) | None => true,
            _ => false,
        },
        Act::Call => true,
        _ => false,
    }
}
