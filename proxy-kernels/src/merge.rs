//! Merges functions of several modules into one.
//!
//! Module-scope names get a prefix per source, because compilers reuse names. Names declared in a
//! function hide module-scope names and stay as they are.

use atoll_passes::DYNAMIC_SHARED;
use atoll_ptx::rename::{local_names, rename_in_function, rename_initializer, visit_initializer, visit_names};
use atoll_ptx::{Function, FunctionKind, Item, ItemKind, Linkage, Module, Name, StateSpace, Variable};
use std::collections::{BTreeMap, BTreeSet};

/// A module that functions are taken from.
pub(crate) struct Source<'a> {
    module: &'a Module,
    /// Module-scope names that are renamed, old to new.
    renamed: BTreeMap<Name, Name>,
}

impl<'a> Source<'a> {
    /// The source with an index among all sources.
    pub(crate) fn new(module: &'a Module, number: usize) -> Source<'a> {
        let mut renamed = BTreeMap::new();
        for item in &module.items {
            let name = match &item.kind {
                // A declared function, such as the device's `vprintf`, keeps its name.
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

    /// The names of all functions and variables that a function needs from its module, including
    /// itself.
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

    /// A variable among `names` that has state; a copy in another module would not share it.
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

    /// The items with these names, renamed, in order. Kernels are left out, because only the
    /// generated entry may be a kernel.
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
        // Functions with a body are used only within the new module.
        function.linkage = if function.body.is_some() { Linkage::Internal } else { function.linkage };
        rename_in_function(function, &self.renamed);
    }
}
