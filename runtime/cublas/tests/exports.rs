//! Compares the library's exports with the page of the reference, and with the list of entry points
//! that are missing.

#[allow(dead_code, reason = "each test uses a part")]
#[path = "../../cudart/tests/support/mod.rs"]
mod support;

#[path = "../../cuda-library/tests/support/exports.rs"]
mod exports;

use atoll_session_server::BLAS;
use exports::{Page, exported, page_lists_what_is_implemented};
use support::library;

#[test]
fn the_library_exports_entry_points_of_cublas_alone() {
    let names = exported(&library(BLAS));
    let others: Vec<&String> = names.iter().filter(|name| !name.starts_with("cublas")).collect();
    assert!(others.is_empty(), "{others:?}");
    for name in ["cublasSgemm_v2", "cublasSgemm_v2_64", "cublasLtMatmul", "cublasCgemm_v2", "cublasXtSgemm"] {
        assert!(names.contains(name), "{name} is exported: {} names", names.len());
    }
}

#[test]
fn the_page_lists_what_is_implemented() {
    // The page has the names of the header's functions.
    let page = Page {
        file: "cublas.md",
        sections: ["Handles", "Types"],
        beginnings: &["cublas"],
        forms: &["_64"],
        version: "_v2",
    };
    page_lists_what_is_implemented(env!("CARGO_MANIFEST_DIR"), &page, &exported(&library(BLAS)));
}
