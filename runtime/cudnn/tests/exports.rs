//! Compares the library's exports with the names of cuDNN's interface, with the page of the reference,
//! and with the list of entry points that are missing.

#[allow(dead_code, reason = "each test uses a part")]
#[path = "../../cudart/tests/support/mod.rs"]
mod support;

#[path = "../../cuda-library/tests/support/exports.rs"]
mod exports;

use atoll_session_server::DNN;
use exports::{Page, exported, page_lists_what_is_implemented};
use std::collections::BTreeSet;
use support::library;

/// The names of cuDNN 8.9.
const NAMES_8: &str = include_str!("names/cudnn8.txt");

/// The names of cuDNN 9.13.
const NAMES_9: &str = include_str!("names/cudnn9.txt");

#[test]
fn the_library_exports_the_names_of_both_versions_alone() {
    let names = exported(&library(DNN));
    let wanted: BTreeSet<String> = [NAMES_8, NAMES_9].iter().flat_map(|list| list.lines()).map(str::to_owned).collect();
    assert!(wanted.len() > 270, "{} names", wanted.len());
    let differing: Vec<_> = names.symmetric_difference(&wanted).collect();
    assert!(differing.is_empty(), "only exported or only in cuDNN: {differing:?}");
}

#[test]
fn the_page_lists_what_is_implemented() {
    let page =
        Page { file: "cudnn.md", sections: ["Handles", "Types"], beginnings: &["cudnn"], forms: &[], version: "" };
    page_lists_what_is_implemented(env!("CARGO_MANIFEST_DIR"), &page, &exported(&library(DNN)));
}
