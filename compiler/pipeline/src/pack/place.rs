//! Replaces the names of a module's variables by addresses.
//!
//! Kernels of a module may be compiled separately. If variables were symbols, each object would
//! have its own copy of every variable.

use atoll_ptx::{AddressBase, Body, Immediate, ItemKind, Module, Name, Operand, Statement, StatementKind, Variable};
use std::collections::HashSet;

/// Replaces names of variables by addresses in all functions. Accesses to constant memory become
/// accesses to global memory, where the variables are. Keeps names that a function declares itself.
/// The caller removes the variables.
///
/// # Errors
/// If an instruction asks whether an address is in constant memory: none is.
pub(super) fn replace_names(module: &mut Module, address: &dyn Fn(&Name) -> Option<u64>) -> Result<(), String> {
    for item in &mut module.items {
        let ItemKind::Function(function) = &mut item.kind else { continue };
        let params = function.params.iter().chain(&function.returns).map(|param| param.name.clone()).collect();
        let own = Declared { names: params, ranges: Vec::new() };
        if let Some(body) = &mut function.body {
            let replaced = replace_in_body(body, &|name| address(name).filter(|_| !own.hides(name)));
            replaced.map_err(|reason| format!("function `{}`: {reason}", function.name))?;
        }
    }
    Ok(())
}

/// Names that a block declares, which hide variables of the module there.
#[derive(Default)]
struct Declared {
    names: HashSet<Name>,
    /// `("%r", 100)` declares `%r0` to `%r99`.
    ranges: Vec<(Name, u32)>,
}

impl Declared {
    fn of(body: &Body) -> Declared {
        let mut declared = Declared::default();
        for statement in &body.statements {
            match &statement.kind {
                StatementKind::Variable(Variable { name, .. })
                | StatementKind::Label(name)
                | StatementKind::BranchTargets { name, .. }
                | StatementKind::CallTargets { name, .. } => drop(declared.names.insert(name.clone())),
                StatementKind::Registers(registers) => {
                    for (name, count) in &registers.names {
                        match count {
                            Some(count) => declared.ranges.push((name.clone(), *count)),
                            None => drop(declared.names.insert(name.clone())),
                        }
                    }
                }
                _ => {}
            }
        }
        declared
    }

    fn hides(&self, name: &Name) -> bool {
        let is_in = |(base, count): &(Name, u32)| {
            let number = name.as_str().strip_prefix(base.as_str()).and_then(|digits| digits.parse().ok());
            number.is_some_and(|number: u32| number < *count)
        };
        self.names.contains(name) || self.ranges.iter().any(is_in)
    }
}

/// Whether a statement accesses constant memory or converts an address of it.
fn is_constant(statement: &Statement) -> bool {
    statement.instruction().is_some_and(|instruction| instruction.modifiers.iter().any(|modifier| *modifier == "const"))
}

fn replace_in_body(body: &mut Body, address: &dyn Fn(&Name) -> Option<u64>) -> Result<(), String> {
    let own = Declared::of(body);
    let address = &|name: &Name| address(name).filter(|_| !own.hides(name));
    for statement in &mut body.statements {
        let is_constant = is_constant(statement);
        if let StatementKind::Block(body) = &mut statement.kind {
            replace_in_body(body, address)?;
        } else if (uses(statement, address) || is_constant)
            && let StatementKind::Instruction(instruction) = statement.edit()
        {
            if is_constant && instruction.opcode == "isspacep" {
                return Err("isspacep.const is not supported, since constant variables are in global memory".to_owned());
            }
            instruction.operands.iter_mut().for_each(|operand| replace(operand, address));
            for modifier in instruction.modifiers.iter_mut().filter(|modifier| **modifier == "const") {
                *modifier = "global".into();
            }
        }
    }
    Ok(())
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
        replace_names(&mut module, &address).unwrap();
        assert_eq!(verify(&module).map_err(|faults| faults.to_string()), Ok(()));
        let printed = print(&module).replace('\t', " ");
        for part in ["mov.u64 %d1, 4096", "ld.global.u32 %r1, [8196]", "st.global.u32 [4104], %r1", "[hidden]"] {
            assert!(printed.contains(part), "{part} is not in {printed}");
        }
    }

    #[test]
    fn names_are_hidden_only_in_the_block_that_declares_them() {
        let text = ".version 7.0\n.target sm_80\n.address_size 64\n\
                    .visible .entry k() {\n.reg .b64 d<3>, x;\n\
                    mov.u64 d1, d2;\nmov.u64 d2, d7;\nmov.u64 x, d1;\nbra y;\ny:\n\
                    {\n.reg .b64 z;\nmov.u64 z, 1;\n}\nmov.u64 d1, z;\nret;\n}\n";
        let mut module = parse(text).unwrap();
        let known = ["d1", "d7", "x", "y", "z"];
        let address = |name: &Name| known.iter().position(|known| *known == name.as_str()).map(|at| 0x1000 + at as u64);
        replace_names(&mut module, &address).unwrap();
        let printed = print(&module).replace('\t', " ");
        for part in ["mov.u64 d1, d2", "mov.u64 d2, 4097", "mov.u64 x, d1", "bra y", "mov.u64 z, 1", "mov.u64 d1, 4100"]
        {
            assert!(printed.contains(part), "{part} is not in {printed}");
        }
    }

    #[test]
    fn questions_whether_an_address_is_constant_are_refused() {
        let text = ".version 7.0\n.target sm_80\n.address_size 64\n\
                    .visible .entry k() {\n.reg .pred %p;\n.reg .b64 %d;\nisspacep.const %p, %d;\nret;\n}\n";
        let refused = replace_names(&mut parse(text).unwrap(), &|_| None).unwrap_err();
        assert!(refused.starts_with("function `k`: isspacep.const is not supported"), "{refused}");
    }
}
