//! Compares the library's exports with those of NVIDIA's runtime if it is installed. `ATOLL_VENV`
//! names a Python environment with the package `nvidia-cuda-runtime-cu12`
//! (`tests/requirements.txt`).

#[allow(dead_code, reason = "each test uses a part")]
mod support;

#[path = "../../cuda-library/tests/support/exports.rs"]
mod exports;

use atoll_session_server::RUNTIME;
use exports::{Page, exported, page_lists_what_is_implemented};
use std::path::PathBuf;
use support::{library, skip};

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
    let page = Page {
        file: "cuda-runtime.md",
        sections: ["", "Missing"],
        beginnings: &["cuda", "__cuda"],
        forms: &["_ptsz", "_ptds"],
        version: "",
    };
    page_lists_what_is_implemented(env!("CARGO_MANIFEST_DIR"), &page, &exported(&library(RUNTIME)));
}
