//! Compares the library's exports with the table of `runtime/cuda-api`.

use atoll_cuda_api::ENTRY_POINTS;
use object::{Object, ObjectSymbol};
use std::collections::BTreeSet;

/// Entry points for the dynamic linker (`audit`).
const OF_LINKER: [&str; 2] = ["la_objsearch", "la_version"];

#[test]
fn the_library_exports_the_table_and_nothing_else() {
    let test = std::env::current_exe().expect("a test has a path");
    let path = test.ancestors().nth(1).expect("target/<profile>/deps").join("libatoll_interpose.so");
    let bytes = std::fs::read(path).expect("cargo built it");
    let file = object::File::parse(&*bytes).expect("a shared object");
    let symbols = file.dynamic_symbols().filter(|symbol| symbol.is_definition() && symbol.is_global());
    let exported: BTreeSet<&str> = symbols.map(|symbol| symbol.name().expect("a name")).collect();
    let declared: BTreeSet<&str> = ENTRY_POINTS.iter().map(|entry| entry.symbol).chain(OF_LINKER).collect();
    let (undeclared, missing) = (exported.difference(&declared), declared.difference(&exported));
    assert!(
        exported == declared,
        "not in the table: {:?}; not exported: {:?}",
        undeclared.collect::<Vec<_>>(),
        missing.collect::<Vec<_>>()
    );
}
