//! The kernels to measure: generated kernels of models, and kernels of PTX files.

use crate::commands::model_file;
use crate::failure::{OrUserError, user_error};
use anyhow::{Context, Result};
use atoll_kgraph::Bundle;
use atoll_pipeline::{CompileOptions, Silent, Target, TransformOptions, compile};
use atoll_ptx::{Function, FunctionKind, Item, ItemKind, Module, Name};
use atoll_target_nvidia::{Architecture, declared_sm};
use std::collections::{BTreeMap, HashSet};
use std::path::Path;

/// Threads per block if unknown.
const BLOCK_THREADS: u32 = 256;

/// A kernel to measure.
pub(super) struct Source {
    /// The model or file that contains it.
    pub(super) origin: String,
    pub(super) kernel: Name,
    /// A module with only this kernel.
    pub(super) module: Module,
    /// Block shape in x, y and z, if the launches are known.
    block: Option<[u32; 3]>,
}

impl Source {
    fn new(origin: &str, module: &Module, kernel: &Name, block: Option<[u32; 3]>) -> Source {
        let is_other = |item: &Item| match &item.kind {
            ItemKind::Function(function) => function.kind == FunctionKind::Entry && function.name != *kernel,
            _ => false,
        };
        let items = module.items.iter().filter(|item| !is_other(item)).cloned().collect();
        Source { origin: origin.to_owned(), kernel: kernel.clone(), module: Module { items, ..module.clone() }, block }
    }

    /// Block shapes as options of the passes.
    pub(super) fn blocks(&self) -> BTreeMap<Name, [u32; 3]> {
        self.block.iter().map(|block| (self.kernel.clone(), *block)).collect()
    }

    /// The block shape. If it is unknown, all threads are in x.
    pub(super) fn block(&self) -> [u32; 3] {
        self.block.unwrap_or_else(|| [self.block_threads(), 1, 1])
    }

    /// Threads per block.
    pub(super) fn block_threads(&self) -> u32 {
        let known = self.block.map(|block| block.iter().product());
        known.or_else(|| declared_threads(self.module.function(&self.kernel)?)).unwrap_or(BLOCK_THREADS)
    }

    /// Equal for kernels that differ only in their names.
    fn identity(&self) -> String {
        let mut module = self.module.clone();
        module.strip_origins();
        format!("{:?} {}", self.block, atoll_ptx::print(&module).replace(self.kernel.as_str(), "kernel"))
    }

    /// The module, retargeted to an architecture older than the declared one. Most instructions
    /// exist there, too; the assembler refuses the others.
    pub(super) fn module_for(&self, architecture: Architecture) -> Module {
        let mut module = self.module.clone();
        if declared_sm(&module).is_some_and(|declared| declared > architecture.sm()) {
            for item in &mut module.items {
                if matches!(&item.kind, ItemKind::Directive(d) if d.name == "target")
                    && let ItemKind::Directive(target) = item.edit()
                {
                    target.arguments = vec![Name::from(architecture.to_string())];
                }
            }
        }
        module
    }
}

/// Parses `.reqntid 16, 4` or `.maxntid 256`.
fn declared_threads(kernel: &Function) -> Option<u32> {
    let directive = kernel.attributes.iter().find(|a| matches!(a.name.as_str(), "reqntid" | "maxntid"))?;
    directive.arguments.iter().map(|extent| extent.parse::<u32>().ok()).product()
}

/// Reads files and builds models, which are compiled for a target. A kernel that occurs in several
/// models is attributed to the first one. `blocks` are the block shapes of kernels in files.
pub(super) fn read(names: &[String], blocks: &BTreeMap<String, [u32; 3]>, target: Target) -> Result<Vec<Source>> {
    let mut known = HashSet::new();
    let mut sources = Vec::new();
    for name in names {
        sources.extend(if name.ends_with(".ptx") { ptx_file(name, blocks)? } else { model(name, target, &mut known)? });
    }
    Ok(sources)
}

fn ptx_file(name: &str, blocks: &BTreeMap<String, [u32; 3]>) -> Result<Vec<Source>> {
    let text = std::fs::read_to_string(name).with_context(|| name.to_owned()).or_user_error()?;
    let module = atoll_ptx::parse(&text).map_err(|e| user_error(format!("{name}:{e}")))?;
    atoll_ptx::verify(&module).map_err(|faults| user_error(format!("{name}: {faults}")))?;
    let origin = Path::new(name).file_name().map_or_else(|| name.into(), |file| file.to_string_lossy());
    let source =
        |kernel: &Function| Source::new(&origin, &module, &kernel.name, blocks.get(kernel.name.as_str()).copied());
    Ok(module.kernels().map(source).collect())
}

/// Compiles a model without passes, and returns its kernels that are not known yet.
fn model(name: &str, target: Target, known: &mut HashSet<String>) -> Result<Vec<Source>> {
    let folder = tempfile::tempdir()?;
    let path = model_file(name, folder.path(), false)?;
    let bundle = folder.path().join("model.kg");
    let options = CompileOptions { targets: vec![target], passes: TransformOptions::NONE, ..CompileOptions::default() };
    compile(&path, &bundle, &options, &Silent).with_context(|| format!("cannot compile {name}"))?;
    let bundle = Bundle::open(&bundle)?;
    let text = bundle.ptx(target.name()).context("the bundle has no PTX")?;
    let module = atoll_ptx::parse(std::str::from_utf8(text)?)?;
    let facts = bundle.target(target.name()).map_or(&[][..], |image| &image.kernels);
    let block = |kernel: &Name| facts.iter().find(|facts| *kernel == *facts.name).map(|facts| facts.block);
    let origin = Path::new(name).file_stem().map_or_else(|| name.into(), |stem| stem.to_string_lossy());
    let sources = module.kernels().map(|kernel| Source::new(&origin, &module, &kernel.name, block(&kernel.name)));
    Ok(sources.filter(|source| known.insert(source.identity())).collect())
}
