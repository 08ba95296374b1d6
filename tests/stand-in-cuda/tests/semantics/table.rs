//! Compares the library's exports with the tables of `runtime/cuda-api`.

use crate::gpu::{code, cuda, library, library_path, ok};
use atoll_cuda_api::ENTRY_POINTS;
use atoll_cuda_api::nvml::SYMBOLS;
use object::{Object, ObjectSymbol};
use std::collections::BTreeSet;

#[test]
fn the_library_exports_the_tables_and_gdrcopy() {
    let bytes = std::fs::read(library_path()).expect("cargo built it");
    let file = object::File::parse(&*bytes).expect("a shared object");
    let symbols = file.dynamic_symbols().filter(|symbol| symbol.is_definition() && symbol.is_global());
    let exported: BTreeSet<String> = symbols.map(|symbol| symbol.name().expect("a name").to_owned()).collect();
    let gdrcopy = ["gdr_close", "gdr_map", "gdr_open", "gdr_pin_buffer", "gdr_unmap", "gdr_unpin_buffer"];
    let nvml = SYMBOLS.iter().copied();
    let declared: BTreeSet<String> =
        ENTRY_POINTS.iter().map(|entry| entry.symbol).chain(gdrcopy).chain(nvml).map(str::to_owned).collect();
    let (undeclared, missing) = (exported.difference(&declared), declared.difference(&exported));
    assert!(
        exported == declared,
        "not in the table: {:?}; not exported: {:?}",
        undeclared.collect::<Vec<_>>(),
        missing.collect::<Vec<_>>()
    );
}

#[test]
fn entry_points_that_are_not_implemented_return_an_error() {
    ok!(cuInit(0 => u32));
    assert_eq!(cuda!(cuCtxSetCacheConfig(0 => i32)), code::NOT_SUPPORTED);
    assert_eq!(cuda!(cuGraphCreate(&mut 0 => *mut u64, 0 => u32)), code::NOT_SUPPORTED);
}

/// The entry point that a program written for this version of CUDA finds, and the result of the
/// lookup.
fn look_up(name: &str, version: i32) -> (usize, i32) {
    let (name, mut entry, mut found) = (format!("{name}\0"), 1usize, -1);
    cuda!(cuGetProcAddress_v2(
        name.as_ptr() => *const u8, &mut entry => *mut usize, version => i32, 0 => u64, &mut found => *mut i32
    ));
    (entry, found)
}

fn address_of(symbol: &str) -> usize {
    // SAFETY: only its address is used.
    let function = unsafe { library().get::<unsafe extern "C" fn()>(symbol) }.expect("the stand-in exports it");
    *function as usize
}

#[test]
fn a_program_gets_the_entry_point_of_its_version() {
    ok!(cuInit(0 => u32));
    assert_eq!(look_up("cuMemHostRegister", 4000), (address_of("cuMemHostRegister"), 0));
    assert_eq!(look_up("cuMemHostRegister", 12_000), (address_of("cuMemHostRegister_v2"), 0));
    assert_eq!(look_up("cuGreenCtxCreate", 12_000), (0, 2), "it came with 12.4");
    assert_eq!(look_up("cuNoSuchThing", 12_000), (0, 1));
}
