//! The kernels of a packed function: files put together, one kernel for each shape it is launched with, arguments as their parameters want them.

use super::PackError;
use super::manifest::Value;
use crate::kernels::{Kernels, LaunchedKernel};
use atoll_kgraph::{Argument, DType, Expr, KernelId};
use atoll_passes::{KernelEffects, Root, analyze_effects};
use atoll_ptx::{Function, FunctionKind, Item, ItemKind, Module, Name, ScalarType, Variable};
use atoll_target_nvidia::{declared_sm, declared_version};
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

/// Largest PTX file in bytes: hundreds of kernels.
const PTX_BYTES_MAX: u64 = 64 << 20;
/// Items at the head of a module that say what it is written for.
const HEADER: [&str; 3] = ["version", "target", "address_size"];

/// All kernels of the files, and which of them are launched with which shape.
pub(super) struct KernelSet {
    module: Module,
    effects: HashMap<Name, KernelEffects>,
    launched: HashMap<(String, [u32; 3], u32), KernelId>,
    kernels: Vec<LaunchedKernel>,
}

impl KernelSet {
    /// Reads files and puts them together.
    pub(super) fn read(folder: &Path, files: &[PathBuf]) -> Result<KernelSet, PackError> {
        let mut modules = Vec::new();
        for file in files {
            let path = folder.join(file);
            let text = super::read_text(&path, PTX_BYTES_MAX)?;
            let module = atoll_ptx::parse(&text).map_err(|e| PackError::at(path.display(), e))?;
            atoll_ptx::verify(&module).map_err(|e| PackError::at(path.display(), e))?;
            modules.push((path, module));
        }
        let module = together(modules)?;
        let effects = module.kernels().filter(|k| k.body.is_some()).map(|k| (k.name.clone(), analyze_effects(&module, k))).collect();
        Ok(KernelSet { module, effects, launched: HashMap::new(), kernels: Vec::new() })
    }

    /// A kernel by name.
    pub(super) fn function(&self, name: &str) -> Result<&Function, String> {
        let found = self.module.function(name).filter(|f| f.kind == FunctionKind::Entry && f.body.is_some());
        found.ok_or_else(|| {
            let names: Vec<&str> = self.module.kernels().map(|k| k.name.as_str()).collect();
            format!("there is no kernel `{name}`; there are {}", names.join(", "))
        })
    }

    /// What a kernel does to memory.
    pub(super) fn effects(&self, name: &str) -> &KernelEffects {
        &self.effects[name]
    }

    /// The kernel for launches of one shape.
    pub(super) fn launched_with(&mut self, name: &str, block: [u32; 3], dynamic_shared_bytes: u32) -> KernelId {
        let kernels = &mut self.kernels;
        *self.launched.entry((name.to_owned(), block, dynamic_shared_bytes)).or_insert_with(|| {
            let id = KernelId(kernels.len() as u32);
            kernels.push(LaunchedKernel { name: name.to_owned(), block, dynamic_shared_bytes });
            id
        })
    }

    /// A module with exactly the kernels that are launched, each under a name of its own.
    pub(super) fn finish(self) -> Kernels {
        let KernelSet { mut module, mut kernels, .. } = self;
        let sources: HashMap<Name, Function> = module.kernels().map(|k| (k.name.clone(), k.clone())).collect();
        let mut taken: HashSet<Name> = module.items.iter().filter_map(name_of).collect();
        module.items.retain(|item| !matches!(&item.kind, ItemKind::Function(f) if f.kind == FunctionKind::Entry));
        let mut used = HashSet::new();
        for kernel in &mut kernels {
            let mut function = sources[kernel.name.as_str()].clone();
            // The first shape has the kernel's own name.
            if !used.insert(kernel.name.clone()) {
                let [x, y, z] = kernel.block;
                let stem = format!("{}_{x}x{y}x{z}_{}", kernel.name, kernel.dynamic_shared_bytes);
                let free =
                    (0..).map(|n| Name::from(if n == 0 { stem.clone() } else { format!("{stem}_{n}") })).find(|n| !taken.contains(n));
                function.name = free.unwrap_or_else(|| stem.into());
                taken.insert(function.name.clone());
                kernel.name = function.name.to_string();
            }
            module.items.push(Item::built(ItemKind::Function(function)));
        }
        Kernels { module, kernels, launches: Vec::new() }
    }
}

/// Puts modules together. They must not define one name twice; the newest version and architecture that one of them declares is that of the whole.
fn together(modules: Vec<(PathBuf, Module)>) -> Result<Module, PackError> {
    let newest = |key: &dyn Fn(&Module) -> u64| modules.iter().map(|(_, m)| key(m)).enumerate().max_by_key(|&(i, k)| (k, usize::MAX - i));
    let version = newest(&|m| declared_version(m).map_or(0, |v| u64::from(v.major) << 32 | u64::from(v.minor)));
    let target = newest(&|m| declared_sm(m).map_or(0, u64::from));
    let (Some((version, _)), Some((target, _))) = (version, target) else {
        return Err(PackError::at("ptx", "no file is listed"));
    };
    let directive = |from: usize, name: &str| modules[from].1.items.iter().find(|item| is_directive(item, name)).cloned();
    let mut items: Vec<Item> =
        [directive(version, "version"), directive(target, "target"), directive(0, "address_size")].into_iter().flatten().collect();
    let mut defined: HashMap<Name, usize> = HashMap::new();
    let mut trailing = String::new();
    let paths: Vec<PathBuf> = modules.iter().map(|(path, _)| path.clone()).collect();
    for (file, (path, module)) in modules.into_iter().enumerate() {
        for item in module.items {
            if HEADER.iter().any(|name| is_directive(&item, name)) {
                continue;
            }
            if let Some(name) = name_of(&item)
                && let Some(first) = defined.insert(name.clone(), file)
                && first != file
            {
                return Err(PackError::at(path.display(), format!("defines `{name}`, as {} does", paths[first].display())));
            }
            items.push(item);
        }
        trailing.push_str(&module.trailing);
    }
    Ok(Module { items, trailing: trailing.into() })
}

fn is_directive(item: &Item, name: &str) -> bool {
    matches!(&item.kind, ItemKind::Directive(d) if d.name == name)
}

fn name_of(item: &Item) -> Option<Name> {
    match &item.kind {
        ItemKind::Function(f) => Some(f.name.clone()),
        ItemKind::Variable(v) => Some(v.name.clone()),
        ItemKind::Directive(_) => None,
    }
}

/// A value as a parameter wants it.
pub(super) fn literal(parameter: &Variable, value: &Value, expr: impl Fn(&Value) -> Result<Expr, String>) -> Result<Argument, String> {
    use ScalarType::{B32, B64, F32, F64, S32, S64, U32, U64};
    let integer = |dtype| Ok(Argument::Int { dtype, value: expr(value)? });
    let float = || match value {
        Value::Integer(value) => Ok(*value as f64),
        Value::Float(value) => Ok(*value),
        Value::Text(text) => text.parse().map_err(|_| format!("`{text}` is no number")),
    };
    if !parameter.dimensions.is_empty() || parameter.vector.is_some() || parameter.opaque.is_some() {
        return Err("parameters that are structures, vectors or textures cannot be given here".into());
    }
    match parameter.ty {
        U32 | B32 => integer(DType::U32),
        S32 => integer(DType::I32),
        U64 | B64 => integer(DType::U64),
        S64 => integer(DType::I64),
        F32 => Ok(Argument::F32 { bits: (float()? as f32).to_bits() }),
        F64 => Ok(Argument::F64 { bits: float()?.to_bits() }),
        other => Err(format!("parameters of type .{other} cannot be given here")),
    }
}

/// Positions of the pointer parameters among `roots`, or why the others are in the way.
pub(super) fn parameters(roots: &[Root]) -> Result<Vec<usize>, String> {
    roots
        .iter()
        .map(|root| match root {
            Root::Param { index, offset: 0, .. } => Ok(*index),
            Root::Param { name, .. } => Err(format!("a pointer within the structure `{name}` cannot be given here")),
            Root::Variable(name) => Err(format!("the module's variable `{name}` would outlive the invocation; pass a buffer instead")),
        })
        .collect()
}
