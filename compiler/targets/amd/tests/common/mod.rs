#![allow(dead_code, reason = "each test uses a part")]

//! The kernels of `tests/kernels` with their block shapes, and LLVM's programs.

use atoll_passes::{PassOptions, TransformOptions};
use atoll_ptx::{Module, Name};
use atoll_target_amd::{Architecture, KernelShape, Options, llvm_ir};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The block shape of kernels that no case launches.
const USUAL_BLOCK: [u32; 3] = [128, 1, 1];

#[derive(Deserialize)]
struct Cases {
    case: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    launches: Vec<[Vec<u32>; 2]>,
}

/// One file of the corpus.
pub(crate) struct File {
    /// Its name, without the extension.
    pub(crate) name: String,
    /// Its module as it was compiled.
    pub(crate) module: Module,
    /// Its kernels, with the block shapes of their first launches.
    pub(crate) kernels: Vec<KernelShape>,
}

impl File {
    /// The module after the passes that models use.
    pub(crate) fn preemptible(&self) -> Module {
        let mut module = self.module.clone();
        let blocks: BTreeMap<Name, [u32; 3]> = self.kernels.iter().map(|k| (k.name.clone(), k.block)).collect();
        let options = PassOptions { blocks, ..PassOptions::default() };
        let passes: Vec<&str> = TransformOptions::default().names().collect();
        atoll_passes::transform_with(&mut module, &passes, &options, &mut |_, _| {}).expect("passes accept the corpus");
        module
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/kernels")
}

/// All files of the corpus, by name.
pub(crate) fn files() -> Vec<File> {
    let text = std::fs::read_to_string(folder().join("cases.toml")).expect("the corpus has cases");
    let cases: Cases = toml::from_str(&text).expect("cases are TOML");
    let blocks: BTreeMap<&str, &[u32]> = cases.case.iter().map(|c| (c.name.as_str(), &c.launches[0][1][..])).collect();
    let entries = std::fs::read_dir(folder().join("ptx")).expect("the corpus has PTX");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("a file").path()).collect();
    paths.sort();
    let read = |path: &PathBuf| {
        let text = std::fs::read_to_string(path).expect("a file of the corpus");
        let module = atoll_ptx::parse(&text).expect("the corpus is PTX");
        let extent = |name: &str, axis: usize| blocks.get(name).map(|b| b.get(axis).copied().unwrap_or(1));
        let block = |name: &str| [0, 1, 2].map(|axis| extent(name, axis).unwrap_or(USUAL_BLOCK[axis]));
        let kernels = module.kernels().map(|k| KernelShape { name: k.name.clone(), block: block(&k.name) }).collect();
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        File { name, module, kernels }
    };
    paths.iter().map(read).collect()
}

/// The kernels of a file that the target accepts in this form of their module.
pub(crate) fn accepted(file: &File, module: &Module, architecture: Architecture) -> Vec<KernelShape> {
    let is_accepted = |kernel: &&KernelShape| {
        llvm_ir(module, std::slice::from_ref(kernel), architecture, &Options::default()).is_ok()
    };
    file.kernels.iter().filter(is_accepted).cloned().collect()
}

/// Whether the whole corpus is tested.
pub(crate) fn is_full() -> bool {
    std::env::var_os("ATOLL_TEST_FULL").is_some_and(|value| value == "1")
}

/// The output of a program of LLVM on a code object.
pub(crate) fn llvm(program: &str, arguments: &[&str], code: &[u8]) -> String {
    let prefix = ["LLVM_SYS_221_PREFIX", "LLVM_SYS_191_PREFIX"].iter().find_map(std::env::var_os);
    let folder = prefix.map_or_else(|| PathBuf::from("/usr/lib/llvm-22"), PathBuf::from);
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), code).expect("a temporary file is writable");
    let output = Command::new(folder.join("bin").join(program)).args(arguments).arg(file.path()).output();
    let output = output.unwrap_or_else(|e| panic!("{program}: {e}"));
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("LLVM prints UTF-8")
}
