//! Runs C programs that are linked with cuBLAS. They are built for each version and run in sessions,
//! with a server on the stand-in driver; each compares its results with loops on the CPU.

#[allow(dead_code, reason = "each test uses a part")]
#[path = "../../cudart/tests/support/mod.rs"]
mod support;

#[path = "../../cuda-library/tests/support/mod.rs"]
mod building;

use atoll_session_server::{BLAS, RUNTIME, STAND_IN};
use building::compile;
use std::path::PathBuf;
use std::sync::OnceLock;
use support::{Sessions, library};
use tempfile::TempDir;

/// The versions of CUDA: the names of their libraries, and the version that cuBLAS reports.
const VERSIONS: [(&str, [&str; 3], i32); 3] = [
    ("11", ["libcublas.so.11", "libcublasLt.so.11", "libcudart.so.11.0"], 111_103),
    ("12", ["libcublas.so.12", "libcublasLt.so.12", "libcudart.so.12"], 120_900),
    ("13", ["libcublas.so.13", "libcublasLt.so.13", "libcudart.so.13"], 130_000),
];

/// The programs.
const PROGRAMS: [&str; 3] = ["products", "vectors", "lt"];

/// The folder with the programs, each built for each version.
fn built() -> &'static TempDir {
    static BUILT: OnceLock<TempDir> = OnceLock::new();
    BUILT.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder");
        for (version, [blas, lt, runtime], _) in VERSIONS {
            // The program loads the libraries by the names by which it was linked.
            for (name, file) in [(blas, BLAS), (lt, BLAS), (runtime, RUNTIME)] {
                std::os::unix::fs::symlink(library(file), folder.path().join(name)).expect("a link");
            }
            for program in PROGRAMS {
                let source = format!("{}/tests/programs/{program}.c", env!("CARGO_MANIFEST_DIR"));
                compile(folder.path(), &source, &format!("{program}-{version}"), &[blas, lt, runtime]);
            }
        }
        folder
    })
}

fn program(name: &str, version: &str) -> PathBuf {
    built().path().join(format!("{name}-{version}"))
}

/// Runs parts of a program that print only their names.
fn run(name: &str, parts: &[&str]) {
    let sessions = Sessions::start();
    for part in parts {
        let said = sessions.output(&program(name, "12"), &[part]);
        assert_eq!(said, (format!("{part}\n"), String::new()), "{name}");
    }
}

#[test]
fn products_of_all_types_and_transposes_are_those_of_loops() {
    run("products", &["transposes"]);
}

#[test]
fn products_of_one_type_batches_and_matrices_with_vectors_are_those_of_loops() {
    run("products", &["plain", "batches", "vectors", "matrices"]);
}

#[test]
fn what_blas_does_not_read_does_not_matter() {
    run("products", &["rules"]);
}

#[test]
fn operations_on_vectors_are_those_of_loops() {
    run("vectors", &["changes", "sums", "limits", "copies"]);
}

#[test]
fn threads_share_a_handle_or_have_their_own() {
    run("vectors", &["threads"]);
}

#[test]
fn products_with_epilogues_are_those_of_loops() {
    run("lt", &["epilogues", "others"]);
}

#[test]
fn wrong_arguments_are_errors_and_missing_functions_print_their_name_once() {
    let sessions = Sessions::start();
    let (text, said) = sessions.output(&program("products", "12"), &["refusals"]);
    assert_eq!(text, "refusals\n");
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(
        lines,
        [
            "atoll: cublasSgemm_v2: sizes above 2147483647 are not supported; it returns CUBLAS_STATUS_NOT_SUPPORTED",
            "atoll: cublasGemmEx: types 0, 2 and 0 with computation 68 are not supported; \
             it returns CUBLAS_STATUS_NOT_SUPPORTED",
            "atoll: cublasCgemm_v2 is not supported; it returns CUBLAS_STATUS_NOT_SUPPORTED",
            "atoll: cublasStrsm_v2 is not supported; it returns CUBLAS_STATUS_NOT_SUPPORTED",
        ]
    );
    let (text, said) = sessions.output(&program("lt", "12"), &["refusals"]);
    assert_eq!(text, "refusals\n");
    assert_eq!(said.lines().count(), 3, "{said}");
    for name in ["cublasLtMatmul: ", "cublasLtMatmulDescSetAttribute: ", "cublasLtMatrixTransform is "] {
        assert_eq!(said.matches(name).count(), 1, "{said}");
    }
}

#[test]
fn each_version_of_the_library_reports_its_number() {
    let sessions = Sessions::start();
    for (version, _, number) in VERSIONS {
        let (text, said) = sessions.output(&program("vectors", version), &["settings"]);
        assert_eq!((text, said), (format!("version {number}\nsettings\n"), String::new()));
        assert_eq!(sessions.output(&program("products", version), &["plain"]).0, "plain\n");
    }
}

#[test]
fn programs_run_on_a_driver_without_a_session() {
    let direct = Sessions::with_driver(STAND_IN);
    assert_eq!(direct.output(&program("products", "13"), &["rules"]).0, "rules\n");
    assert_eq!(direct.output(&program("lt", "13"), &["others"]).0, "others\n");
}

#[test]
fn kernels_are_loaded_once_for_a_handle() {
    let sessions = Sessions::start();
    sessions.output(&program("vectors", "12"), &["threads"]);
    let report = sessions.report(1);
    // Four threads with 20 products and 20 sums each.
    assert_eq!((report.launches, report.failures), (160, 0));
    // The others are for two modules, a buffer and a stream of each of three handles, and for the
    // matrices. If kernels were loaded for each launch, there would be more than 160.
    let others = report.calls - report.launches - report.copies_in - report.copies_out;
    assert!(others < 80, "{others} calls beside launches and copies");
}
