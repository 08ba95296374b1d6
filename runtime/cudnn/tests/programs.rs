//! Runs C programs that are linked with cuDNN. They are built for each version and run in sessions,
//! with a server on the stand-in driver; each compares its results with loops on the CPU.

#[allow(dead_code, reason = "each test uses a part")]
#[path = "../../cudart/tests/support/mod.rs"]
mod support;

#[path = "../../cuda-library/tests/support/mod.rs"]
mod building;

use atoll_session_server::{DNN, RUNTIME, STAND_IN};
use building::compile;
use std::path::PathBuf;
use std::sync::OnceLock;
use support::{Sessions, library};
use tempfile::TempDir;

/// Ways to link with cuDNN: a name, the names of the libraries, and the version that cuDNN reports.
const WAYS: [(&str, &[&str], usize); 4] = [
    ("8", &["libcudnn.so.8"], 8_907),
    ("8-parts", &["libcudnn_ops_infer.so.8", "libcudnn_cnn_infer.so.8"], 8_907),
    ("9", &["libcudnn.so.9"], 91_300),
    ("9-parts", &["libcudnn_graph.so.9", "libcudnn_ops.so.9", "libcudnn_cnn.so.9"], 91_300),
];

/// The runtime that the programs are linked with.
const CUDART: &str = "libcudart.so.12";

/// The programs.
const PROGRAMS: [&str; 4] = ["convolutions", "elements", "windows", "settings"];

/// The folder with the programs: each built for cuDNN 9, and one for each way to link.
fn built() -> &'static TempDir {
    static BUILT: OnceLock<TempDir> = OnceLock::new();
    BUILT.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder");
        let link = |name: &str, file: &str| {
            std::os::unix::fs::symlink(library(file), folder.path().join(name)).expect("a link");
        };
        link(CUDART, RUNTIME);
        for (way, names, _) in WAYS {
            // The program loads the libraries by the names by which it was linked.
            names.iter().for_each(|name| link(name, DNN));
            let libraries = [names, &[CUDART]].concat();
            for program in PROGRAMS.iter().filter(|program| way == "9" || **program == "settings") {
                let source = format!("{}/tests/programs/{program}.c", env!("CARGO_MANIFEST_DIR"));
                compile(folder.path(), &source, &format!("{program}-{way}"), &libraries);
            }
        }
        folder
    })
}

fn program(name: &str, way: &str) -> PathBuf {
    built().path().join(format!("{name}-{way}"))
}

/// Runs parts of a program that print only their names.
fn run(name: &str, parts: &[&str]) {
    let sessions = Sessions::start();
    for part in parts {
        let said = sessions.output(&program(name, "9"), &[part]);
        assert_eq!(said, (format!("{part}\n"), String::new()), "{name}");
    }
}

#[test]
fn convolutions_of_all_shapes_types_and_formats_are_those_of_loops() {
    run("convolutions", &["forwards", "epilogues"]);
}

#[test]
fn gradients_of_convolutions_are_those_of_loops() {
    run("convolutions", &["gradients"]);
}

#[test]
fn operations_on_elements_are_those_of_loops() {
    run("elements", &["activations", "copies", "operations", "norms", "dropouts"]);
}

#[test]
fn pooling_and_normalization_across_channels_are_those_of_loops() {
    run("windows", &["poolings", "responses"]);
}

#[test]
fn softmax_is_that_of_loops() {
    run("windows", &["softmaxes"]);
}

#[test]
fn reductions_are_those_of_loops() {
    let sessions = Sessions::start();
    let (text, said) = sessions.output(&program("windows", "9"), &["reductions"]);
    assert_eq!(text, "reductions\n");
    assert_eq!(said, "atoll: cudnnReduceTensor: indices are not supported; it returns CUDNN_STATUS_NOT_SUPPORTED\n");
}

#[test]
fn descriptors_give_back_what_they_were_set_to() {
    run("settings", &["descriptors"]);
}

#[test]
fn wrong_arguments_are_errors_and_missing_functions_print_their_name_once() {
    let sessions = Sessions::start();
    for way in ["8", "9"] {
        let (text, said) = sessions.output(&program("settings", way), &["refusals"]);
        assert_eq!(text, "refusals\n");
        let lines: Vec<&str> = said.lines().collect();
        let missing = ["cudnnBackendCreateDescriptor", "cudnnRNNForward", "cudnnPoolingBackward"];
        let wanted =
            missing.map(|name| format!("atoll: {name} is not supported; it returns CUDNN_STATUS_NOT_SUPPORTED"));
        assert_eq!(lines, wanted);
    }
    let (text, said) = sessions.output(&program("convolutions", "9"), &["refusals"]);
    assert_eq!(text, "refusals\n");
    assert_eq!(
        said,
        "atoll: cudnnConvolutionForward: tensors of type 3 are not supported; \
         it returns CUDNN_STATUS_NOT_SUPPORTED\n"
    );
    let reasons = [
        ("elements", "cudnnOpTensor: tensors of f32 with compute type 1"),
        ("windows", "cudnnLRNCrossChannelForward: outputs in place of the input"),
        ("windows", "cudnnReduceTensor: tensors of f32 with compute type 1"),
    ];
    for name in ["elements", "windows"] {
        let (text, said) = sessions.output(&program(name, "9"), &["refusals"]);
        assert_eq!(text, "refusals\n");
        let wanted = reasons.iter().filter(|(of, _)| *of == name);
        let wanted: String = wanted
            .map(|(_, why)| format!("atoll: {why} are not supported; it returns CUDNN_STATUS_NOT_SUPPORTED\n"))
            .collect();
        assert_eq!(said, wanted, "{name}");
    }
}

#[test]
fn each_version_of_the_library_reports_its_number() {
    let sessions = Sessions::start();
    for (way, _, number) in WAYS {
        let said = sessions.output(&program("settings", way), &["settings"]);
        assert_eq!(said, (format!("version {number}\nsettings\n"), String::new()));
        assert_eq!(sessions.output(&program("settings", way), &["descriptors"]).0, "descriptors\n");
    }
}

#[test]
fn programs_run_on_a_driver_without_a_session() {
    let direct = Sessions::with_driver(STAND_IN);
    assert_eq!(direct.output(&program("windows", "9"), &["softmaxes"]).0, "softmaxes\n");
    assert_eq!(direct.output(&program("elements", "9"), &["norms"]).0, "norms\n");
}

#[test]
fn kernels_are_loaded_once_for_a_handle() {
    let sessions = Sessions::start();
    sessions.output(&program("settings", "9"), &["threads"]);
    let report = sessions.report(1);
    // Four threads with ten launches each.
    assert_eq!((report.launches, report.failures), (40, 0));
}
