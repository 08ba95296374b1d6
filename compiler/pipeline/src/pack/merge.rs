//! Merges PTX files into one module.
//!
//! Separately compiled files may define the same name. The first file keeps the name; in the others
//! it gets a prefix with the number of the file.

use super::PackError;
use atoll_ptx::rename::{rename_in_function, rename_initializer};
use atoll_ptx::{FunctionKind, Item, ItemKind, Linkage, Module, Name, StateSpace};
use atoll_target_nvidia::{declared_sm, declared_version};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};

/// Directives at the head of a module.
const HEADER: [&str; 3] = ["version", "target", "address_size"];

/// The merged module, and the names of the files' kernels in it.
pub(super) struct Merged {
    pub(super) module: Module,
    /// The name in the merged module of each kernel with a body, by file and original name.
    pub(super) kernels: HashMap<(usize, Name), Name>,
}

/// Merges modules. The result has the newest version and architecture that any of them declares.
pub(super) fn merge(mut modules: Vec<(PathBuf, Module)>) -> Result<Merged, PackError> {
    let newest = |key: &dyn Fn(&Module) -> u64| {
        modules.iter().map(|(_, m)| key(m)).enumerate().max_by_key(|&(i, k)| (k, usize::MAX - i))
    };
    let version = newest(&|m| declared_version(m).map_or(0, |v| u64::from(v.major) << 32 | u64::from(v.minor)));
    let target = newest(&|m| declared_sm(m).map_or(0, u64::from));
    let (Some((version, _)), Some((target, _))) = (version, target) else {
        return Err(PackError::at("ptx", "no file is listed"));
    };
    let directive =
        |from: usize, name: &str| modules[from].1.items.iter().find(|item| is_directive(item, name)).cloned();
    let mut items: Vec<Item> =
        [directive(version, "version"), directive(target, "target"), directive(0, "address_size")]
            .into_iter()
            .flatten()
            .collect();

    let mut kernels = HashMap::new();
    for (file, renamed) in new_names(&modules)?.into_iter().enumerate() {
        let module = &mut modules[file].1;
        for kernel in module.kernels().filter(|kernel| kernel.body.is_some()) {
            kernels.insert((file, kernel.name.clone()), renamed.get(&kernel.name).unwrap_or(&kernel.name).clone());
        }
        if !renamed.is_empty() {
            module.items.iter_mut().for_each(|item| rename_item(item, &renamed));
        }
    }
    let mut shared: HashMap<Name, usize> = HashMap::new();
    let mut trailing = String::new();
    for item in modules.iter_mut().flat_map(|(_, module)| module.items.drain(..)) {
        if HEADER.iter().any(|name| is_directive(&item, name)) {
            continue;
        }
        match (is_declaration(&item), name_of(&item)) {
            (true, Some(name)) => match shared.get(&name) {
                Some(&first) => raise_alignment(&mut items[first], &item),
                None => {
                    shared.insert(name, items.len());
                    items.push(item);
                }
            },
            _ => items.push(item),
        }
    }
    modules.iter().for_each(|(_, module)| trailing.push_str(&module.trailing));
    Ok(Merged { module: Module { items, trailing: trailing.into() }, kernels })
}

/// For each module, new names for definitions whose names an earlier module already uses.
fn new_names(modules: &[(PathBuf, Module)]) -> Result<Vec<BTreeMap<Name, Name>>, PackError> {
    let mut taken: HashSet<Name> =
        modules.iter().flat_map(|(_, module)| module.items.iter().filter_map(name_of)).collect();
    let mut owners: HashMap<Name, (usize, bool)> = HashMap::new();
    let mut all = Vec::new();
    for (file, (path, module)) in modules.iter().enumerate() {
        let mut renamed = BTreeMap::new();
        for item in &module.items {
            let Some(name) = name_of(item) else { continue };
            let declares = is_declaration(item);
            match owners.get(&name) {
                Some(&(owner, _)) if owner == file => {}
                Some(&(_, true)) if declares => {}
                Some(&(owner, declared)) if declared != declares => return Err(linked(path, &modules[owner].0, &name)),
                Some(_) => {
                    let free = (0..)
                        .map(|n| Name::from(format!("f{file}_{}{name}", "_".repeat(n))))
                        .find(|free| !taken.contains(free));
                    let free = free.unwrap_or_else(|| name.clone());
                    taken.insert(free.clone());
                    renamed.insert(name, free);
                }
                None => drop(owners.insert(name, (file, declares))),
            }
        }
        all.push(renamed);
    }
    Ok(all)
}

fn linked(path: &Path, other: &Path, name: &Name) -> PackError {
    let reason = format!(
        "one of this file and {} declares `{name}`, the other defines it; files are not linked: merge them into one",
        other.display()
    );
    PackError::at(path.display(), reason)
}

/// Whether an item is only a declaration: dynamic shared memory, or a function without body.
fn is_declaration(item: &Item) -> bool {
    match &item.kind {
        ItemKind::Function(function) => function.body.is_none(),
        ItemKind::Variable(variable) => variable.linkage == Linkage::Extern && variable.space == StateSpace::Shared,
        ItemKind::Directive(_) => false,
    }
}

/// Two declarations of the same shared memory get the larger alignment.
fn raise_alignment(first: &mut Item, other: &Item) {
    if let (ItemKind::Variable(a), ItemKind::Variable(b)) = (&first.kind, &other.kind)
        && a.align < b.align
    {
        let align = b.align;
        if let ItemKind::Variable(variable) = first.edit() {
            variable.align = align;
        }
    }
}

fn rename_item(item: &mut Item, renamed: &BTreeMap<Name, Name>) {
    match item.edit() {
        ItemKind::Function(function) => {
            if let Some(name) = renamed.get(&function.name) {
                function.name = name.clone();
            }
            rename_in_function(function, renamed);
        }
        ItemKind::Variable(variable) => {
            if let Some(name) = renamed.get(&variable.name) {
                variable.name = name.clone();
            }
            variable.initializer.iter_mut().for_each(|initializer| rename_initializer(initializer, renamed));
        }
        ItemKind::Directive(_) => {}
    }
}

fn is_directive(item: &Item, name: &str) -> bool {
    matches!(&item.kind, ItemKind::Directive(d) if d.name == name)
}

/// The name that an item defines or declares.
pub(super) fn name_of(item: &Item) -> Option<Name> {
    match &item.kind {
        ItemKind::Function(f) => Some(f.name.clone()),
        ItemKind::Variable(v) => Some(v.name.clone()),
        ItemKind::Directive(_) => None,
    }
}

/// Whether an item is a kernel.
pub(super) fn is_kernel(item: &Item) -> bool {
    matches!(&item.kind, ItemKind::Function(f) if f.kind == FunctionKind::Entry)
}
