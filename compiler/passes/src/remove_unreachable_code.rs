//! Removes unreachable code: code after an unconditional branch or a `trap`, and loops without an
//! entry.
//!
//! Declarations stay, and so do labels and tables that are still referenced.

use crate::code::{clean_functions, rebuild};
use crate::error::PassError;
use atoll_ptx::analysis::{Cfg, Code, StatementId};
use atoll_ptx::{Function, Module, Name, Role, StatementKind};
use std::collections::BTreeSet;

/// Cleans every function of a module. Returns the number of statements removed for each kernel with
/// a body, in order.
pub(crate) fn remove_unreachable_code(module: &mut Module) -> Result<Vec<u32>, PassError> {
    clean_functions(module, |function| {
        let unreachable = unreachable_statements(function)?;
        remove(function, &unreachable);
        Ok(unreachable.len())
    })
}

/// Instructions in unreachable blocks, and labels that nothing references afterwards.
fn unreachable_statements(function: &Function) -> Result<BTreeSet<StatementId>, PassError> {
    let code = Code::of(function);
    let cfg = Cfg::of(&code).map_err(|source| PassError::BrokenFlow { function: function.name.to_string(), source })?;
    let reached: BTreeSet<_> = cfg.reverse_postorder().into_iter().collect();
    let is_unreachable = |id: StatementId| !reached.contains(&cfg.block_of(id));
    let mut found: BTreeSet<StatementId> = code
        .statements()
        .filter(|(id, s)| s.instruction().is_some() && is_unreachable(*id))
        .map(|(id, _)| id)
        .collect();
    if found.is_empty() {
        return Ok(found);
    }
    let named = still_named(&code, &found);
    for (id, statement) in code.statements() {
        if let StatementKind::Label(name) = &statement.kind
            && is_unreachable(id)
            && !named.contains(name)
        {
            found.insert(id);
        }
    }
    Ok(found)
}

/// Labels that remaining branches and all tables reference. A table may stand after the code that
/// uses it, so tables are kept whole.
fn still_named(code: &Code<'_>, removed: &BTreeSet<StatementId>) -> BTreeSet<Name> {
    let mut named = BTreeSet::new();
    for (id, statement) in code.statements() {
        match &statement.kind {
            StatementKind::BranchTargets { targets, .. } => named.extend(targets.iter().cloned()),
            StatementKind::Instruction(instruction) if !removed.contains(&id) => {
                instruction.visit_names(&mut |role, name| {
                    if matches!(role, Role::Label | Role::Table | Role::Use) {
                        named.insert(name.clone());
                    }
                })
            }
            _ => {}
        }
    }
    named
}

fn remove(function: &mut Function, statements: &BTreeSet<StatementId>) {
    if let Some(body) = function.body.as_mut().filter(|_| !statements.is_empty()) {
        rebuild(body, &mut |id, statement, code| {
            if !statements.contains(&id) {
                code.statements.push(statement);
            }
        });
    }
}
