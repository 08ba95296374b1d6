//! Compares the library's exports with the names of cuDNN's interface, with the page of the reference,
//! and with the list of entry points that are missing.

#[allow(dead_code, reason = "each test uses a part")]
#[path = "../../cudart/tests/support/mod.rs"]
mod support;

use atoll_session_server::DNN;
use object::{Object, ObjectSymbol};
use std::collections::BTreeSet;
use std::path::Path;
use support::library;

/// The names of cuDNN 8.9.
const NAMES_8: &str = include_str!("names/cudnn8.txt");

/// The names of cuDNN 9.13.
const NAMES_9: &str = include_str!("names/cudnn9.txt");

fn exported() -> BTreeSet<String> {
    let bytes = std::fs::read(library(DNN)).expect("a library");
    let file = object::File::parse(&*bytes).expect("a shared object");
    let symbols = file.dynamic_symbols().filter(|symbol| symbol.is_definition() && symbol.is_global());
    let names = symbols.filter(|symbol| symbol.kind() == object::SymbolKind::Text);
    names.map(|symbol| symbol.name().expect("a name").to_owned()).collect()
}

#[test]
fn the_library_exports_the_names_of_both_versions_alone() {
    let names = exported();
    let wanted: BTreeSet<String> = [NAMES_8, NAMES_9].iter().flat_map(|list| list.lines()).map(str::to_owned).collect();
    assert!(wanted.len() > 270, "{} names", wanted.len());
    let differing: Vec<_> = names.symmetric_difference(&wanted).collect();
    assert!(differing.is_empty(), "only exported or only in cuDNN: {differing:?}");
}

#[test]
fn the_page_lists_what_is_implemented() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| std::fs::read_to_string(root.join(path)).expect("a file of the repository");
    let missing = read("src/exports/missing.rs");
    let (_, missing) = missing.split_once("\nmissing! {\n").expect("the list");
    let missing: BTreeSet<&str> = missing.split_whitespace().filter(|word| *word != "}").collect();
    let names = exported();
    let implemented: BTreeSet<&str> = names.iter().map(String::as_str).filter(|name| !missing.contains(name)).collect();
    let page = read("../../docs/reference/cudnn.md");
    let (_, listed) = page.split_once("\n## Handles").expect("sections");
    let (listed, _) = listed.split_once("\n## Types").expect("a section");
    let listed: BTreeSet<&str> =
        listed.split('`').skip(1).step_by(2).filter(|name| name.starts_with("cudnn")).collect();
    let differing: Vec<_> = implemented.symmetric_difference(&listed).collect();
    assert!(differing.is_empty(), "only implemented or only on the page: {differing:?}");
    assert!(missing.iter().all(|name| names.contains(*name)), "what is missing is exported");
}
