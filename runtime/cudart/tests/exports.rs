//! Compares the library's exports with those of NVIDIA's runtime if it is installed. `ATOLL_VENV`
//! names a Python environment with the package `nvidia-cuda-runtime-cu12`
//! (`tests/requirements.txt`).

#[allow(dead_code, reason = "each test uses a part")]
mod support;

use atoll_session_server::RUNTIME;
use object::{Object, ObjectSymbol};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use support::{library, skip};

fn exported(path: &Path) -> BTreeSet<String> {
    let bytes = std::fs::read(path).expect("a library");
    let file = object::File::parse(&*bytes).expect("a shared object");
    let symbols = file.dynamic_symbols().filter(|symbol| symbol.is_definition() && symbol.is_global());
    let names = symbols.filter(|symbol| symbol.kind() == object::SymbolKind::Text);
    names.map(|symbol| symbol.name().expect("a name").to_owned()).collect()
}

fn installed() -> Option<PathBuf> {
    let lib = PathBuf::from(std::env::var_os("ATOLL_VENV")?).join("lib");
    let pythons = std::fs::read_dir(lib).ok()?.flatten();
    let mut files = pythons.map(|python| python.path().join("site-packages/nvidia/cuda_runtime/lib/libcudart.so.12"));
    files.find(|file| file.is_file())
}

#[test]
fn the_library_exports_entry_points_of_the_runtime_alone() {
    let names = exported(&library(RUNTIME));
    let others: Vec<&String> =
        names.iter().filter(|name| !name.starts_with("cuda") && !name.starts_with("__cuda")).collect();
    assert!(others.is_empty(), "{others:?}");
    for name in ["cudaMalloc", "__cudaRegisterFatBinary", "cudaGraphLaunch", "cudaBindTexture"] {
        assert!(names.contains(name), "{name} is exported: {} names", names.len());
    }
}

#[test]
fn a_program_for_the_installed_runtime_finds_every_name() {
    let Some(file) = installed() else {
        return skip("NVIDIA's runtime is not installed (tests/requirements.txt); its names were not compared");
    };
    let (ours, theirs) = (exported(&library(RUNTIME)), exported(&file));
    let lacking: Vec<&String> = theirs.iter().filter(|name| name.contains("cuda") && !ours.contains(*name)).collect();
    assert!(lacking.is_empty() && theirs.len() > 300, "{lacking:?} of {} names", theirs.len());
}

#[test]
fn the_page_lists_what_is_implemented() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| std::fs::read_to_string(root.join(path)).expect("a file of the repository");
    let missing = read("src/exports/missing.rs");
    let (_, missing) = missing.split_once("\nmissing! {\n").expect("the list");
    let missing: BTreeSet<&str> = missing.split_whitespace().filter(|word| *word != "}").collect();
    let is_form = |name: &str| name.ends_with("_ptsz") || name.ends_with("_ptds");
    let names = exported(&library(RUNTIME));
    let implemented: BTreeSet<&str> =
        names.iter().map(String::as_str).filter(|name| !missing.contains(name) && !is_form(name)).collect();
    let page = read("../../docs/reference/cuda-runtime.md");
    let (_, listed) = page.split_once("\n## ").expect("sections");
    let (listed, _) = listed.split_once("\n## Missing").expect("a section");
    let listed: BTreeSet<&str> = listed.split('`').skip(1).step_by(2).collect();
    let differing: Vec<_> = implemented.symmetric_difference(&listed).collect();
    assert!(differing.is_empty(), "only implemented or only on the page: {differing:?}");
    assert!(missing.iter().all(|name| names.contains(*name)), "what is missing is exported");
}
