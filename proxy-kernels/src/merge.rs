//! Puts functions of several modules into one.
//!
//! Names of module scope get a prefix per source, since every compiler calls its things alike. What is declared inside a function hides them there and keeps its name.

use atoll_passes::DYNAMIC_SHARED;
use atoll_ptx::{
    Address, AddressBase, Body, Function, FunctionKind, Initializer, Instruction, Item, ItemKind, Linkage, Module, Name, Operand,
    StateSpace, Statement, StatementKind, Variable,
};
use std::collections::{BTreeMap, BTreeSet};

/// A module whose functions are taken over.
pub(crate) struct Source<'a> {
    module: &'a Module,
    /// Module-scope names that are renamed, old to new.
    renamed: BTreeMap<Name, Name>,
}

impl<'a> Source<'a> {
    /// The module with this number among the sources.
    pub(crate) fn new(module: &'a Module, number: usize) -> Source<'a> {
        let mut renamed = BTreeMap::new();
        for item in &module.items {
            let name = match &item.kind {
                // A declared function is somebody else's, such as the device's own `vprintf`.
                ItemKind::Function(f) if f.body.is_some() => &f.name,
                ItemKind::Variable(v) if v.name != DYNAMIC_SHARED && v.linkage != Linkage::Extern => &v.name,
                _ => continue,
            };
            renamed.insert(name.clone(), Name::from(format!("c{number}_{name}")));
        }
        Source { module, renamed }
    }

    /// The new name of a function.
    pub(crate) fn name(&self, function: &str) -> Name {
        self.renamed.get(function).cloned().unwrap_or_else(|| Name::new(function))
    }

    /// Everything that a function needs of its module, itself included: names of functions and variables.
    pub(crate) fn reachable(&self, function: &str) -> BTreeSet<Name> {
        let mut found = BTreeSet::new();
        let mut open = vec![Name::new(function)];
        while let Some(name) = open.pop() {
            if !found.insert(name.clone()) {
                continue;
            }
            for item in &self.module.items {
                match &item.kind {
                    ItemKind::Function(f) if f.name == name => {
                        let local = local_names(f);
                        let mut note = |n: &Name| {
                            if !local.contains(n) && self.is_global(n) {
                                open.push(n.clone());
                            }
                        };
                        f.body.iter().for_each(|body| visit_names(body, &mut note));
                    }
                    ItemKind::Variable(v) if v.name == name => {
                        v.initializer.iter().for_each(|i| visit_initializer(i, &mut |n| open.push(n.clone())));
                    }
                    _ => {}
                }
            }
        }
        found
    }

    fn is_global(&self, name: &Name) -> bool {
        self.module.items.iter().any(|item| match &item.kind {
            ItemKind::Function(f) => f.name == *name,
            ItemKind::Variable(v) => v.name == *name,
            ItemKind::Directive(_) => false,
        })
    }

    /// A module-scope variable among some names that has a state of its own, which a copy in another module would not share.
    pub(crate) fn stateful_variable(&self, names: &BTreeSet<Name>) -> Option<&Variable> {
        self.module.items.iter().find_map(|item| match &item.kind {
            ItemKind::Variable(v) if names.contains(&v.name) => match v.space {
                StateSpace::Const => v.initializer.is_none().then_some(v),
                StateSpace::Global => Some(v),
                _ => None,
            },
            _ => None,
        })
    }

    /// The items of these names, renamed, in order. Kernels are left out: they are entries of the source, not of the module to be.
    pub(crate) fn items(&self, names: &BTreeSet<Name>) -> Vec<Item> {
        let mut items = Vec::new();
        for item in &self.module.items {
            let mut item = item.clone();
            let wanted = match &mut item.kind {
                ItemKind::Function(f) => names.contains(&f.name) && f.kind == FunctionKind::Func,
                ItemKind::Variable(v) => names.contains(&v.name),
                ItemKind::Directive(_) => false,
            };
            if !wanted {
                continue;
            }
            match item.edit() {
                ItemKind::Function(f) => self.rename_function(f),
                ItemKind::Variable(v) => {
                    v.initializer.iter_mut().for_each(|i| rename_initializer(i, &self.renamed));
                    v.name = self.name(&v.name);
                }
                ItemKind::Directive(_) => {}
            }
            item.origin.leading = "\n\n".into();
            items.push(item);
        }
        items
    }

    fn rename_function(&self, function: &mut Function) {
        function.name = self.name(&function.name);
        // What is not in the module to be cannot be seen from outside it.
        function.linkage = if function.body.is_some() { Linkage::Internal } else { function.linkage };
        let local = local_names(function);
        let Some(body) = &mut function.body else { return };
        let visible = self.renamed.iter().filter(|(old, _)| !local.contains(*old)).map(|(old, new)| (old.clone(), new.clone())).collect();
        rename_body(body, &visible);
    }
}

/// Names that are declared by a function: of parameters, and in its body.
fn local_names(function: &Function) -> BTreeSet<Name> {
    let mut names: BTreeSet<Name> = function.params.iter().chain(&function.returns).map(|variable| variable.name.clone()).collect();
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

fn visit_names(body: &Body, visit: &mut dyn FnMut(&Name)) {
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
        Operand::Vector(inner) | Operand::List(inner) | Operand::Bracket(inner) => inner.iter().for_each(|o| visit_operand(o, visit)),
        Operand::Pair(a, b) => [a, b].into_iter().for_each(|o| visit_operand(o, visit)),
        _ => {}
    }
}

fn visit_initializer(initializer: &Initializer, visit: &mut dyn FnMut(&Name)) {
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
                StatementKind::Instruction(Instruction { operands, .. }) => operands.iter_mut().for_each(|o| rename_operand(o, renamed)),
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

fn rename_initializer(initializer: &mut Initializer, renamed: &BTreeMap<Name, Name>) {
    match initializer {
        Initializer::Symbol { name, .. } => rename(name, renamed),
        Initializer::List(inner) => inner.iter_mut().for_each(|i| rename_initializer(i, renamed)),
        Initializer::Immediate(_) => {}
    }
}
