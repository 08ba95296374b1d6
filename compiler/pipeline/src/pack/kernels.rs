//! The kernels of a packed function by their names in the manifest, with one copy for each launch
//! shape.

use super::PackError;
use super::manifest::Manifest;
use super::merge::{self, Merged, is_kernel, name_of};
use crate::kernels::{Kernels, LaunchedKernel};
use atoll_kgraph::KernelId;
use atoll_passes::{KernelEffects, Root, analyze_effects};
use atoll_ptx::{Function, Item, ItemKind, Module, Name};
use std::collections::{HashMap, HashSet};
use std::path::Path;

/// Largest PTX file in bytes: enough for hundreds of kernels.
const PTX_BYTES_MAX: u64 = 64 << 20;

/// All kernels of the PTX files, and the launch shapes in use.
pub(super) struct KernelSet {
    module: Module,
    /// Names in the module by names in the manifest, or the reason why a kernel cannot be launched.
    names: HashMap<String, Result<Name, String>>,
    effects: HashMap<Name, KernelEffects>,
    launched: HashMap<(Name, [u32; 3], u32), KernelId>,
    kernels: Vec<LaunchedKernel>,
}

impl KernelSet {
    /// Reads the PTX files and merges them.
    pub(super) fn read(folder: &Path, manifest: &Manifest) -> Result<KernelSet, PackError> {
        let mut modules = Vec::new();
        for file in &manifest.ptx {
            let path = folder.join(file);
            let text = super::read_text(&path, PTX_BYTES_MAX)?;
            let module = atoll_ptx::parse(&text).map_err(|e| PackError::at(path.display(), e))?;
            atoll_ptx::verify(&module).map_err(|e| PackError::at(path.display(), e))?;
            modules.push((path, module));
        }
        let Merged { module, kernels } = merge::merge(modules)?;
        let names = names(manifest, &kernels)?;
        let effects = module
            .kernels()
            .filter(|k| k.body.is_some())
            .map(|k| (k.name.clone(), analyze_effects(&module, k)))
            .collect();
        Ok(KernelSet { module, names, effects, launched: HashMap::new(), kernels: Vec::new() })
    }

    /// The kernel with a name in the manifest.
    pub(super) fn function(&self, name: &str) -> Result<&Function, String> {
        let unknown = || {
            let mut names: Vec<&str> = self.names.keys().map(String::as_str).collect();
            names.sort_unstable();
            format!("there is no kernel `{name}`; there are {}", names.join(", "))
        };
        let name = self.names.get(name).ok_or_else(unknown)?.as_ref().map_err(Clone::clone)?;
        self.module.function(name).ok_or_else(unknown)
    }

    /// The memory effects of a kernel.
    pub(super) fn effects(&self, name: &Name) -> &KernelEffects {
        &self.effects[name]
    }

    /// The id of a kernel for one launch shape.
    pub(super) fn launched_with(&mut self, name: &Name, block: [u32; 3], dynamic_shared_bytes: u32) -> KernelId {
        let kernels = &mut self.kernels;
        *self.launched.entry((name.clone(), block, dynamic_shared_bytes)).or_insert_with(|| {
            let id = KernelId(kernels.len() as u32);
            kernels.push(LaunchedKernel { name: name.to_string(), block, dynamic_shared_bytes });
            id
        })
    }

    /// Returns a module with exactly the launched kernels, each under a unique name.
    pub(super) fn finish(self) -> Kernels {
        let KernelSet { mut module, mut kernels, .. } = self;
        let sources: HashMap<Name, Function> = module.kernels().map(|k| (k.name.clone(), k.clone())).collect();
        let mut taken: HashSet<Name> = module.items.iter().filter_map(name_of).collect();
        module.items.retain(|item| !is_kernel(item));
        let mut used = HashSet::new();
        for kernel in &mut kernels {
            let mut function = sources[kernel.name.as_str()].clone();
            // The first shape keeps the kernel's name.
            if !used.insert(kernel.name.clone()) {
                let [x, y, z] = kernel.block;
                let stem = format!("{}_{x}x{y}x{z}_{}", kernel.name, kernel.dynamic_shared_bytes);
                let free = (0..)
                    .map(|n| Name::from(if n == 0 { stem.clone() } else { format!("{stem}_{n}") }))
                    .find(|n| !taken.contains(n));
                function.name = free.unwrap_or_else(|| stem.into());
                taken.insert(function.name.clone());
                kernel.name = function.name.to_string();
            }
            module.items.push(Item::built(ItemKind::Function(function)));
        }
        Kernels { module, kernels, launches: Vec::new() }
    }
}

/// The names of kernels in the manifest. If several files define a name, using it is an error.
fn names(
    manifest: &Manifest,
    kernels: &HashMap<(usize, Name), Name>,
) -> Result<HashMap<String, Result<Name, String>>, PackError> {
    let mut names: HashMap<String, Result<Name, String>> = HashMap::new();
    let mut found: Vec<_> = kernels.iter().collect();
    found.sort_unstable_by_key(|((file, _), _)| *file);
    for ((file, entry), name) in found {
        let ambiguous = || {
            let file = manifest.ptx[*file].display();
            format!("{file} and another file define `{entry}`; give each a unique name in `kernels`")
        };
        names
            .entry(entry.to_string())
            .and_modify(|known| *known = Err(ambiguous()))
            .or_insert_with(|| Ok(name.clone()));
    }
    let mut given = HashMap::new();
    for (own, kernel) in &manifest.kernels {
        let at = |reason: String| PackError::at(format!("kernel `{own}`"), reason);
        let file = manifest.ptx.iter().position(|file| *file == kernel.ptx);
        let file = file.ok_or_else(|| at(format!("`ptx` does not list {}", kernel.ptx.display())))?;
        let entry = kernel.entry.as_ref().unwrap_or(own);
        let name = kernels.get(&(file, Name::new(entry)));
        let name = name.ok_or_else(|| at(format!("{} has no kernel `{entry}`", kernel.ptx.display())))?;
        given.insert(own.clone(), Ok(name.clone()));
    }
    names.extend(given);
    Ok(names)
}

/// The pointers in `roots`: the position of the parameter, and the byte offset in it.
///
/// # Errors
/// A root is a variable of the module.
pub(super) fn parameters(roots: &[Root]) -> Result<Vec<(usize, u32)>, String> {
    roots
        .iter()
        .map(|root| match root {
            Root::Param { index, offset, .. } => Ok((*index, *offset)),
            Root::Variable(name) => {
                Err(format!("the module's variable `{name}` would outlive the invocation; pass a buffer instead"))
            }
        })
        .collect()
}
