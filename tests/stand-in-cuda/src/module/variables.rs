//! Variables of a module: each gets device memory, and its address replaces its name in the PTX.
//!
//! Kernels are compiled one by one, for each block shape. If variables were symbols of the objects,
//! each object would have its own copy of every variable.

use crate::context::Context;
use crate::memory::Kind;
use crate::status::Status;
use atoll_ptx::{
    AddressBase, Body, Immediate, InitialValue, ItemKind, Linkage, Module, Name, Operand, StateSpace, Statement,
    StatementKind, Variable,
};
use std::collections::{HashMap, HashSet};

/// A status, and the text for the error log.
type Refused = (Status, String);

/// Allocates the `.global` and `.const` variables of a module, and removes them from the PTX.
/// Returns address and size of each.
pub(super) fn place(tree: &mut Module, context: &Context) -> Result<HashMap<String, (u64, u64)>, Refused> {
    let mut places = HashMap::new();
    let mut values = Vec::new();
    for variable in tree.items.iter().filter_map(|item| item.variable()).filter(|variable| is_placed(variable)) {
        let refuse = |what: String| {
            (Status::NotSupported, format!("variable {}: the stand-in does not support {what}", variable.name))
        };
        if variable.linkage == Linkage::Extern {
            return Err(refuse("variables of other modules".to_owned()));
        }
        let value = variable.initial_value().map_err(refuse)?;
        // An array without a size has the size of its initializer.
        let bytes = variable.bytes().unwrap_or(u64::MAX).max(value.bytes.len() as u64);
        let at = context.take_memory(bytes.max(1), u64::from(variable.alignment()), Kind::Device);
        let at = at.map_err(|status| (status, format!("variable {} of {bytes} bytes: {status}", variable.name)))?;
        places.insert(variable.name.to_string(), (at, bytes));
        values.push((at, bytes, value));
    }
    for (at, bytes, value) in values {
        write(at, bytes, value, &places, context)?;
    }
    tree.items.retain(|item| !item.variable().is_some_and(is_placed));
    for item in &mut tree.items {
        let ItemKind::Function(function) = &mut item.kind else { continue };
        let mut own: HashSet<Name> =
            function.params.iter().chain(&function.returns).map(|param| param.name.clone()).collect();
        if let Some(body) = &mut function.body {
            declared(body, &mut own);
            replace_in_body(body, &|name| places.get(name.as_str()).filter(|_| !own.contains(name)).map(|(at, _)| *at));
        }
    }
    Ok(places)
}

fn is_placed(variable: &Variable) -> bool {
    matches!(variable.space, StateSpace::Global | StateSpace::Const)
}

fn write(
    at: u64,
    bytes: u64,
    value: InitialValue,
    places: &HashMap<String, (u64, u64)>,
    context: &Context,
) -> Result<(), Refused> {
    let mut content = value.bytes;
    for (slot, name, offset) in value.addresses {
        let (address, _) = places.get(name.as_str()).ok_or_else(|| {
            (Status::NotSupported, format!("the stand-in does not support the address of {name} in an initializer"))
        })?;
        content[slot..slot + 8].copy_from_slice(&address.wrapping_add_signed(offset).to_le_bytes());
    }
    content.resize(bytes as usize, 0);
    let span = context.memory().span(at, bytes.max(1)).map_err(|status| (status, status.to_string()))?;
    span.write(&content);
    Ok(())
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
        } else if uses(statement, address)
            && let StatementKind::Instruction(instruction) = statement.edit()
        {
            instruction.operands.iter_mut().for_each(|operand| replace(operand, address));
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
