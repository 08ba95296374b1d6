//! Removes instructions whose results are never read, and declarations of single registers that are
//! never used.
//!
//! An instruction is removed only if it is known to do nothing but write registers: accesses to
//! memory, barriers, calls, jumps, users of the carry flag and unknown instructions stay.

use crate::code::{clean_functions, rebuild};
use crate::error::PassError;
use crate::threads::is_pure;
use atoll_ptx::analysis::{Cfg, Code, Liveness, StatementId};
use atoll_ptx::{Function, Instruction, Module, Name, RegisterDeclaration, StateSpace, StatementKind};
use std::collections::BTreeSet;

/// Cleans every function of a module. Returns the number of instructions removed for each kernel
/// with a body, in order.
pub(crate) fn remove_dead_registers(module: &mut Module) -> Result<Vec<u32>, PassError> {
    clean_functions(module, |function| {
        let mut removed = 0;
        // Removing an instruction may make the instructions dead whose results it read; each round
        // removes at least one.
        loop {
            let dead = dead_instructions(function)?;
            if dead.is_empty() {
                break;
            }
            removed += dead.len();
            remove(function, &dead);
        }
        if removed > 0 {
            remove_unmentioned(function);
        }
        Ok(removed)
    })
}

fn dead_instructions(function: &Function) -> Result<BTreeSet<StatementId>, PassError> {
    let code = Code::of(function);
    let cfg = Cfg::of(&code).map_err(|source| PassError::BrokenFlow { function: function.name.to_string(), source })?;
    // A function beyond the limits of the analysis keeps its dead registers; the assembler removes
    // them.
    let Ok(liveness) = Liveness::of(&code, &cfg) else { return Ok(BTreeSet::new()) };
    let mut dead = BTreeSet::new();
    for (block, _) in cfg.blocks() {
        liveness.walk_back(&code, &cfg, block, |id, live| {
            let Some(instruction) = code.instruction(id).filter(|i| only_writes_registers(i)) else { return };
            let mut written = code.accesses(id).iter().filter(|a| a.role.writes()).peekable();
            // An instruction that writes no register declared here, but for instance a sink, is not
            // examined.
            if written.peek().is_some()
                && written.all(|access| !live.contains(&access.register))
                && !instruction.operands.is_empty()
            {
                dead.insert(id);
            }
        });
    }
    Ok(dead)
}

fn only_writes_registers(instruction: &Instruction) -> bool {
    let is_parameter_load =
        instruction.opcode == "ld" && matches!(instruction.space(), Some(StateSpace::Param | StateSpace::Const));
    (is_pure(&instruction.opcode) || is_parameter_load)
        && !instruction.is_terminator()
        && !instruction.writes_carry()
        && !instruction.reads_carry()
        && !instruction.has("volatile")
}

fn remove(function: &mut Function, dead: &BTreeSet<StatementId>) {
    if let Some(body) = &mut function.body {
        rebuild(body, &mut |id, statement, code| {
            if !dead.contains(&id) {
                code.statements.push(statement);
            }
        });
    }
}

/// Removes registers that are declared by name, not in a range, and never used from their
/// declarations.
fn remove_unmentioned(function: &mut Function) {
    let mentioned: BTreeSet<Name> =
        Code::of(function).registers().iter().map(|register| register.name.clone()).collect();
    let is_idle = |(name, count): &(Name, Option<u32>)| count.is_none() && !mentioned.contains(name);
    let Some(body) = &mut function.body else { return };
    rebuild(body, &mut |_, mut statement, code| {
        let has_idle = match &statement.kind {
            StatementKind::Registers(RegisterDeclaration { names, .. }) => names.iter().any(is_idle),
            _ => false,
        };
        if has_idle && let StatementKind::Registers(declaration) = statement.edit() {
            declaration.names.retain(|name| !is_idle(name));
            if declaration.names.is_empty() {
                return;
            }
        }
        code.statements.push(statement);
    });
}
