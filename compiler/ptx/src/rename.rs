//! Finds and renames the module-scope names that a function uses.
//!
//! A declaration in a function hides a module-scope name of the same spelling. Callers that rename
//! by [`rename_initializer`] must first remove [`local_names`] from the map; [`rename_in_function`]
//! does this itself.

use crate::ast::{
    Address, AddressBase, Body, Function, Initializer, Instruction, Name, Operand, Statement, StatementKind,
};
use std::collections::{BTreeMap, BTreeSet};

/// Renames the module-scope names that a function's body uses, from old to new. The function's own
/// name stays.
pub fn rename_in_function(function: &mut Function, renamed: &BTreeMap<Name, Name>) {
    let local = local_names(function);
    let Some(body) = &mut function.body else { return };
    let visible =
        renamed.iter().filter(|(old, _)| !local.contains(*old)).map(|(old, new)| (old.clone(), new.clone())).collect();
    rename_body(body, &visible);
}

/// The names that a function declares: parameters, return values, variables and labels.
pub fn local_names(function: &Function) -> BTreeSet<Name> {
    let mut names: BTreeSet<Name> =
        function.params.iter().chain(&function.returns).map(|variable| variable.name.clone()).collect();
    function.body.iter().for_each(|body| note_declared(body, &mut names));
    names
}

fn note_declared(body: &Body, names: &mut BTreeSet<Name>) {
    for statement in &body.statements {
        match &statement.kind {
            StatementKind::Variable(v) => drop(names.insert(v.name.clone())),
            StatementKind::Label(name) => drop(names.insert(name.clone())),
            StatementKind::Block(inner) => note_declared(inner, names),
            _ => {}
        }
    }
}

/// Calls `visit` with every name that a body uses, including its registers and labels.
pub fn visit_names(body: &Body, visit: &mut dyn FnMut(&Name)) {
    for statement in &body.statements {
        match &statement.kind {
            StatementKind::Instruction(i) => i.operands.iter().for_each(|o| visit_operand(o, visit)),
            StatementKind::CallTargets { targets, .. } => targets.iter().for_each(&mut *visit),
            StatementKind::Variable(v) => v.initializer.iter().for_each(|i| visit_initializer(i, visit)),
            StatementKind::Block(inner) => visit_names(inner, visit),
            _ => {}
        }
    }
}

fn visit_operand(operand: &Operand, visit: &mut dyn FnMut(&Name)) {
    match operand {
        Operand::Name(name) | Operand::NameOffset(name, _) | Operand::Not(name) => visit(name),
        Operand::Address(Address { base: AddressBase::Name(name), .. }) => visit(name),
        Operand::Vector(inner) | Operand::List(inner) | Operand::Bracket(inner) => {
            inner.iter().for_each(|o| visit_operand(o, visit))
        }
        Operand::Pair(a, b) => [a, b].into_iter().for_each(|o| visit_operand(o, visit)),
        _ => {}
    }
}

/// Calls `visit` with every name that an initializer uses.
pub fn visit_initializer(initializer: &Initializer, visit: &mut dyn FnMut(&Name)) {
    match initializer {
        Initializer::Symbol { name, .. } => visit(name),
        Initializer::List(inner) => inner.iter().for_each(|i| visit_initializer(i, visit)),
        Initializer::Immediate(_) => {}
    }
}

fn rename_body(body: &mut Body, renamed: &BTreeMap<Name, Name>) {
    for statement in &mut body.statements {
        if let StatementKind::Block(inner) = &mut statement.kind {
            rename_body(inner, renamed);
        } else if mentions(statement, renamed) {
            match statement.edit() {
                StatementKind::Instruction(Instruction { operands, .. }) => {
                    operands.iter_mut().for_each(|o| rename_operand(o, renamed))
                }
                StatementKind::CallTargets { targets, .. } => targets.iter_mut().for_each(|name| rename(name, renamed)),
                StatementKind::Variable(v) => v.initializer.iter_mut().for_each(|i| rename_initializer(i, renamed)),
                _ => {}
            }
        }
    }
}

fn mentions(statement: &Statement, renamed: &BTreeMap<Name, Name>) -> bool {
    let mut found = false;
    let mut note = |name: &Name| found |= renamed.contains_key(name);
    match &statement.kind {
        StatementKind::Instruction(i) => i.operands.iter().for_each(|o| visit_operand(o, &mut note)),
        StatementKind::CallTargets { targets, .. } => targets.iter().for_each(note),
        StatementKind::Variable(v) => v.initializer.iter().for_each(|i| visit_initializer(i, &mut note)),
        _ => {}
    }
    found
}

fn rename(name: &mut Name, renamed: &BTreeMap<Name, Name>) {
    if let Some(new) = renamed.get(name) {
        *name = new.clone();
    }
}

fn rename_operand(operand: &mut Operand, renamed: &BTreeMap<Name, Name>) {
    match operand {
        Operand::Name(name) | Operand::NameOffset(name, _) | Operand::Not(name) => rename(name, renamed),
        Operand::Address(Address { base: AddressBase::Name(name), .. }) => rename(name, renamed),
        Operand::Vector(inner) | Operand::List(inner) | Operand::Bracket(inner) => {
            inner.iter_mut().for_each(|o| rename_operand(o, renamed))
        }
        Operand::Pair(a, b) => [a, b].into_iter().for_each(|o| rename_operand(o, renamed)),
        _ => {}
    }
}

/// Renames the symbols that an initializer uses.
pub fn rename_initializer(initializer: &mut Initializer, renamed: &BTreeMap<Name, Name>) {
    match initializer {
        Initializer::Symbol { name, .. } => rename(name, renamed),
        Initializer::List(inner) => inner.iter_mut().for_each(|i| rename_initializer(i, renamed)),
        Initializer::Immediate(_) => {}
    }
}
