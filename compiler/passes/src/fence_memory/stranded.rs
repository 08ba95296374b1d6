//! Functions that no kernel reaches and that call fenced ones. Their calls have no arguments for
//! the parameters that the fence appends, so they would make the module invalid.

use crate::preemptible::{callees, reachable_functions};
use crate::virtual_registers::with_fixed_signature;
use atoll_ptx::{Function, FunctionKind, ItemKind, Module, Name};
use std::collections::BTreeSet;

/// Removes such functions. `fenced` are the functions that get more parameters. If the callees of a
/// kernel are unknown, nothing is removed.
pub(super) fn remove_stranded(module: &mut Module, fenced: &BTreeSet<Name>) {
    let mut reached = with_fixed_signature(module);
    for kernel in module.kernels() {
        let Ok(functions) = reachable_functions(module, kernel) else { return };
        reached.extend(functions.iter().map(|function| function.name.clone()));
    }
    let mut stranded: BTreeSet<Name> = BTreeSet::new();
    loop {
        let calls_one = |function: &&Function| {
            let called = function.body.as_ref().and_then(|body| callees(body).ok()).unwrap_or_default();
            called.iter().any(|(name, _)| fenced.contains(name) || stranded.contains(name))
        };
        let is_new = |function: &&Function| {
            let is_known = reached.contains(&function.name) || stranded.contains(&function.name);
            function.kind == FunctionKind::Func && !is_known
        };
        let more: Vec<Name> =
            module.functions().filter(is_new).filter(calls_one).map(|function| function.name.clone()).collect();
        if more.is_empty() {
            break;
        }
        stranded.extend(more);
    }
    let is_stranded = |function: &Function| function.kind == FunctionKind::Func && stranded.contains(&function.name);
    module.items.retain(|item| !matches!(&item.kind, ItemKind::Function(function) if is_stranded(function)));
}
