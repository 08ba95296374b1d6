//! Ends the thread where a fenced kernel traps on a GPU, and reports the fault in the launch's fault
//! word. A trap would destroy the context, with the work of all tenants in it.
//!
//! The traps are those of the fence and the kernel's own. Each becomes a store and an exit, both under
//! the guard of the trap. A common tail would be a reconvergence point, where exiting threads would
//! wait for threads that wait for them at a barrier. Since Volta barriers wait only for threads that
//! have not exited, so other threads of the block go on. If several threads report a fault, any of
//! the values may be the one that is read.
//!
//! This runs after `inject_preempt_flag`, so a thread that ends here is not counted as finished: its
//! block is not recorded in the progress map. A launch with a fault fails, so that has no effect.
//!
//! Functions that `fence_memory` gave no fault word, because it fenced them in another form, are
//! unchanged.

use crate::code::{Code, at, rebuild};
use crate::fence_memory::{FAULT_WORD, OTHER, OUTSIDE, TOO_SMALL};
use crate::module_facts::Dialect;
use crate::preemptible::visit_statements;
use atoll_kgraph::target::fault_word;
use atoll_ptx::{Function, FunctionKind, Guard, ItemKind, Module, Operand, StatementKind};

/// Replaces the traps of all functions that have a fault word.
pub(crate) fn exit_on_trap(module: &mut Module) {
    let dialect = Dialect::of(module);
    let store = if dialect.has_memory_model() { "st.relaxed.sys.global.u64" } else { "st.volatile.global.u64" };
    for item in &mut module.items {
        let has_word = matches!(&item.kind, ItemKind::Function(function) if has_fault_word(function));
        if has_word && let ItemKind::Function(function) = item.edit() {
            replace_traps(function, store);
        }
    }
}

/// Whether a function has the register: kernels load it, functions get it from their callers.
fn has_fault_word(function: &Function) -> bool {
    if function.kind == FunctionKind::Func {
        return function.params.iter().any(|parameter| parameter.name == FAULT_WORD);
    }
    let mut found = false;
    if let Some(body) = &function.body {
        visit_statements(body, &mut |statement| {
            if let StatementKind::Registers(declaration) = &statement.kind {
                found |= declaration.names.iter().any(|(name, _)| *name == FAULT_WORD);
            }
        });
    }
    found
}

fn replace_traps(function: &mut Function, store: &str) {
    let Some(body) = &mut function.body else { return };
    rebuild(body, &mut |_, mut statement, code| {
        let guard = match statement.instruction() {
            Some(instruction) if instruction.opcode == "trap" => instruction.guard.clone(),
            _ => return code.statements.push(statement),
        };
        let start = code.statements.len();
        exit(guard.as_ref(), store, code);
        code.statements[start..].iter_mut().for_each(|made| made.origin.line = statement.origin.line);
        if let Some(first) = code.statements.get_mut(start) {
            first.origin.leading = std::mem::take(&mut statement.origin.leading);
        }
    });
}

/// Emits the store of the fault and the exit. The predicate of a trap tells its cause: each check
/// of the fence has a reserved register, and every other trap is the kernel's own.
fn exit(guard: Option<&Guard>, store: &str, code: &mut Code) {
    let value: Operand = match guard.map(|guard| guard.predicate.as_str()) {
        Some(OUTSIDE) => OTHER.into(),
        Some(TOO_SMALL) => (fault_word::OUTSIDE as i64).into(),
        _ => (fault_word::TRAP as i64).into(),
    };
    code.emit_guarded(guard, store, [at(FAULT_WORD), value]);
    code.emit_guarded(guard, "exit", []);
}
