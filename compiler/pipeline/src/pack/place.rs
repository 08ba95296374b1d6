//! Replaces the names of a module's variables by addresses.
//!
//! Kernels of a module may be compiled separately. If variables were symbols, each object would
//! have its own copy of every variable.

use atoll_ptx::{AddressBase, Body, Immediate, ItemKind, Module, Name, Operand, Statement, StatementKind};
use std::collections::HashSet;

/// Replaces names of variables by addresses in all functions. Accesses to constant memory become
/// accesses to global memory, where the variables are. Keeps names that a function declares itself.
/// The caller removes the variables.
pub(super) fn replace_names(module: &mut Module, address: &dyn Fn(&Name) -> Option<u64>) {
    for item in &mut module.items {
        let ItemKind::Function(function) = &mut item.kind else { continue };
        let mut own: HashSet<Name> =
            function.params.iter().chain(&function.returns).map(|param| param.name.clone()).collect();
        if let Some(body) = &mut function.body {
            declared(body, &mut own);
            replace_in_body(body, &|name| address(name).filter(|_| !own.contains(name)));
        }
    }
}

/// Whether a statement accesses constant memory or converts an address of it.
fn is_constant(statement: &Statement) -> bool {
    statement.instruction().is_some_and(|instruction| instruction.modifiers.iter().any(|modifier| *modifier == "const"))
}

/// Names of variables that a function declares itself; they hide variables of the module.
fn declared(body: &Body, names: &mut HashSet<Name>) {
    for statement in &body.statements {
        match &statement.kind {
            StatementKind::Variable(variable) => drop(names.insert(variable.name.clone())),
            StatementKind::Block(body) => declared(body, names),
            _ => {}
        }
    }
}

fn replace_in_body(body: &mut Body, address: &dyn Fn(&Name) -> Option<u64>) {
    for statement in &mut body.statements {
        if let StatementKind::Block(body) = &mut statement.kind {
            replace_in_body(body, address);
        } else if (uses(statement, address) || is_constant(statement))
            && let StatementKind::Instruction(instruction) = statement.edit()
        {
            instruction.operands.iter_mut().for_each(|operand| replace(operand, address));
            for modifier in instruction.modifiers.iter_mut().filter(|modifier| **modifier == "const") {
                *modifier = "global".into();
            }
        }
    }
}

fn uses(statement: &Statement, address: &dyn Fn(&Name) -> Option<u64>) -> bool {
    let mut found = false;
    if let Some(instruction) = statement.instruction() {
        instruction.visit_names(&mut |_, name| found |= address(name).is_some());
    }
    found
}

fn replace(operand: &mut Operand, address: &dyn Fn(&Name) -> Option<u64>) {
    let number = |at: u64| Operand::Immediate(Immediate::Int(at.into()));
    match operand {
        Operand::Name(name) => {
            if let Some(at) = address(name) {
                *operand = number(at);
            }
        }
        Operand::NameOffset(name, offset) => {
            if let Some(at) = address(name) {
                *operand = number(at.wrapping_add_signed(*offset));
            }
        }
        Operand::Address(place) => {
            if let AddressBase::Name(name) = &place.base
                && let Some(at) = address(name)
            {
                place.base = AddressBase::Absolute(at.wrapping_add_signed(std::mem::take(&mut place.offset)));
            }
        }
        Operand::Vector(items) | Operand::List(items) | Operand::Bracket(items) => {
            items.iter_mut().for_each(|item| replace(item, address))
        }
        Operand::Pair(first, second) => {
            replace(first, address);
            replace(second, address);
        }
        Operand::Not(_) | Operand::Negated(_) | Operand::Immediate(_) | Operand::Sink => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_ptx::{parse, print, verify};

    #[test]
    fn names_become_numbers_unless_they_are_declared_again() {
        let text = ".version 7.0\n.target sm_80\n.address_size 64\n\
                    .visible .entry k() {\n\
                    .reg .b64 %d<3>;\n.reg .b32 %r<3>;\n\
                    mov.u64 %d1, counts;\nld.const.u32 %r1, [table+4];\nst.global.u32 [counts+8], %r1;\n\
                    {\n.shared .b32 hidden;\nld.shared.u32 %r2, [hidden];\n}\nret;\n}\n";
        let mut module = parse(text).unwrap();
        let address = |name: &Name| match name.as_str() {
            "counts" => Some(0x1000),
            "table" => Some(0x2000),
            "hidden" => Some(0x3000),
            _ => None,
        };
        replace_names(&mut module, &address);
        assert_eq!(verify(&module).map_err(|faults| faults.to_string()), Ok(()));
        let printed = print(&module).replace('\t', " ");
        for part in ["mov.u64 %d1, 4096", "ld.global.u32 %r1, [8196]", "st.global.u32 [4104], %r1", "[hidden]"] {
            assert!(printed.contains(part), "{part} is not in {printed}");
        }
    }
}
