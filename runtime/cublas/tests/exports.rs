//! Compares the library's exports with the page of the reference, and with the list of entry points
//! that are missing.

#[allow(dead_code, reason = "each test uses a part")]
#[path = "../../cudart/tests/support/mod.rs"]
mod support;

use atoll_session_server::BLAS;
use object::{Object, ObjectSymbol};
use std::collections::BTreeSet;
use std::path::Path;
use support::library;

fn exported() -> BTreeSet<String> {
    let bytes = std::fs::read(library(BLAS)).expect("a library");
    let file = object::File::parse(&*bytes).expect("a shared object");
    let symbols = file.dynamic_symbols().filter(|symbol| symbol.is_definition() && symbol.is_global());
    let names = symbols.filter(|symbol| symbol.kind() == object::SymbolKind::Text);
    names.map(|symbol| symbol.name().expect("a name").to_owned()).collect()
}

#[test]
fn the_library_exports_entry_points_of_cublas_alone() {
    let names = exported();
    let others: Vec<&String> = names.iter().filter(|name| !name.starts_with("cublas")).collect();
    assert!(others.is_empty(), "{others:?}");
    for name in ["cublasSgemm_v2", "cublasSgemm_v2_64", "cublasLtMatmul", "cublasCgemm_v2", "cublasXtSgemm"] {
        assert!(names.contains(name), "{name} is exported: {} names", names.len());
    }
}

#[test]
fn the_page_lists_what_is_implemented() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| std::fs::read_to_string(root.join(path)).expect("a file of the repository");
    let missing = read("src/exports/missing.rs");
    let (_, missing) = missing.split_once("\nmissing! {\n").expect("the list");
    let missing: BTreeSet<&str> = missing.split_whitespace().filter(|word| *word != "}").collect();
    let names = exported();
    // The page has the names of the header's functions: without the suffixes of versions.
    let implemented: BTreeSet<&str> = names
        .iter()
        .map(String::as_str)
        .filter(|name| !missing.contains(name) && !name.ends_with("_64"))
        .map(|name| name.strip_suffix("_v2").unwrap_or(name))
        .collect();
    let page = read("../../docs/reference/cublas.md");
    let (_, listed) = page.split_once("\n## Handles").expect("sections");
    let (listed, _) = listed.split_once("\n## Types").expect("a section");
    let listed: BTreeSet<&str> =
        listed.split('`').skip(1).step_by(2).filter(|name| name.starts_with("cublas")).collect();
    let differing: Vec<_> = implemented.symmetric_difference(&listed).collect();
    assert!(differing.is_empty(), "only implemented or only on the page: {differing:?}");
    assert!(missing.iter().all(|name| names.contains(*name)), "what is missing is exported");
}
