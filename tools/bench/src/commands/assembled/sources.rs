//! Kernels to measure: those of models as they come out of code generation, and those of PTX files.

use crate::commands::model_file;
use crate::failure::{Blame, user_error};
use anyhow::{Context, Result};
use atoll_kgraph::Bundle;
use atoll_pipeline::{CompileOptions, Silent, Target, TransformOptions, compile};
use atoll_ptx::{Function, FunctionKind, Item, ItemKind, Module, Name};
use atoll_target_nvidia::{Architecture, declared_sm};
use std::collections::{BTreeMap, HashSet};
use std::path::Path;

/// Threads of a block where nothing says how many.
const BLOCK_THREADS: u32 = 256;

/// A kernel to measure.
pub(super) struct Source {
    /// The model or file it comes from.
    pub(super) origin: String,
    pub(super) kernel: Name,
    /// The module with this kernel alone.
    pub(super) module: Module,
    /// Threads of a block in x, y and z, where the launches are known.
    block: Option<[u32; 3]>,
}

impl Source {
    fn new(origin: &str, module: &Module, kernel: &Name, block: Option<[u32; 3]>) -> Source {
        let is_other = |item: &Item| matches!(&item.kind, ItemKind::Function(f) if f.kind == FunctionKind::Entry && f.name != *kernel);
        let items = module.items.iter().filter(|item| !is_other(item)).cloned().collect();
        Source { origin: origin.to_owned(), kernel: kernel.clone(), module: Module { items, ..module.clone() }, block }
    }

    /// Block shapes as passes take them.
    pub(super) fn blocks(&self) -> BTreeMap<Name, [u32; 3]> {
        self.block.iter().map(|block| (self.kernel.clone(), *block)).collect()
    }

    /// Threads of a block.
    pub(super) fn block_threads(&self) -> u32 {
        let known = self.block.map(|block| block.iter().product());
        known.or_else(|| declared_threads(self.module.function(&self.kernel)?)).unwrap_or(BLOCK_THREADS)
    }

    /// What two kernels have in common that differ by name alone.
    fn identity(&self) -> String {
        let mut module = self.module.clone();
        module.strip_origins();
        format!("{:?} {}", self.block, atoll_ptx::print(&module).replace(self.kernel.as_str(), "kernel"))
    }

    /// The module as one for an architecture that is older than what it declares: most instructions
    /// are older, too, and the assembler knows which are not.
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

/// `.reqntid 16, 4` or `.maxntid 256`
fn declared_threads(kernel: &Function) -> Option<u32> {
    let directive = kernel.attributes.iter().find(|a| matches!(a.name.as_str(), "reqntid" | "maxntid"))?;
    directive.arguments.iter().map(|extent| extent.parse::<u32>().ok()).product()
}

/// Reads files and builds models; a kernel that models have in common comes from the first of them.
/// `blocks` are the shapes of kernels in files.
pub(super) fn read(names: &[String], blocks: &BTreeMap<String, [u32; 3]>) -> Result<Vec<Source>> {
    let mut known = HashSet::new();
    let mut sources = Vec::new();
    for name in names {
        sources.extend(if name.ends_with(".ptx") { ptx_file(name, blocks)? } else { model(name, &mut known)? });
    }
    Ok(sources)
}

fn ptx_file(name: &str, blocks: &BTreeMap<String, [u32; 3]>) -> Result<Vec<Source>> {
    let text = std::fs::read_to_string(name).with_context(|| name.to_owned()).blame_user()?;
    let module = atoll_ptx::parse(&text).map_err(|e| user_error(format!("{name}:{e}")))?;
    atoll_ptx::verify(&module).map_err(|faults| user_error(format!("{name}: {faults}")))?;
    let origin = Path::new(name).file_name().map_or_else(|| name.into(), |file| file.to_string_lossy());
    let source =
        |kernel: &Function| Source::new(&origin, &module, &kernel.name, blocks.get(kernel.name.as_str()).copied());
    Ok(module.kernels().map(source).collect())
}

/// Compiles a model for NVIDIA GPUs without any pass, and takes the kernels that are not known yet.
fn model(name: &str, known: &mut HashSet<String>) -> Result<Vec<Source>> {
    let folder = tempfile::tempdir()?;
    let path = model_file(name, folder.path())?;
    let bundle = folder.path().join("model.kg");
    let options =
        CompileOptions { targets: vec![Target::NVIDIA], passes: TransformOptions::NONE, ..CompileOptions::default() };
    compile(&path, &bundle, &options, &Silent).with_context(|| format!("cannot compile {name}"))?;
    let bundle = Bundle::open(&bundle)?;
    let text = bundle.ptx(Target::NVIDIA.name()).context("the bundle has no PTX")?;
    let module = atoll_ptx::parse(std::str::from_utf8(text)?)?;
    let facts = bundle.target(Target::NVIDIA.name()).map_or(&[][..], |image| &image.kernels);
    let block = |kernel: &Name| facts.iter().find(|facts| *kernel == *facts.name).map(|facts| facts.block);
    let origin = Path::new(name).file_stem().map_or_else(|| name.into(), |stem| stem.to_string_lossy());
    let sources = module.kernels().map(|kernel| Source::new(&origin, &module, &kernel.name, block(&kernel.name)));
    Ok(sources.filter(|source| known.insert(source.identity())).collect())
}
