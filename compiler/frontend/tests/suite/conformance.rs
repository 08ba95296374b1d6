//! Runs import, transformation and reference interpreter against stored outputs, in the layout of
//! ONNX's backend tests: a folder per case with `model.onnx` and
//! `test_data_set_N/{input,output}_K.pb`.
//!
//! A selection is in `cases` and must pass completely. `ATOLL_ONNX_CASES` lists more folders of
//! cases (separated by `:`), for instance the `node` folder of the `onnx` package up to 1.22 (1,765
//! cases); `make_cases.py` writes cases for other models. In these folders, a model that is
//! rejected as unsupported is counted and does not fail; a wrong output fails. `ATOLL_ONNX_FILTER`
//! is a regular expression; only cases with a match in their paths run.
//!
//! Every case that passes is run once more with every size of its inputs replaced by a distinct
//! symbol. Such a model may be rejected, but at least half of `cases` must pass this way; a wrong
//! output fails here too.

#![allow(clippy::print_stderr, reason = "a summary of hundreds of cases, and a loud skip")]

use atoll_frontend::onnx::proto::{DimensionValue, ModelProto, TensorProto};
use atoll_frontend::onnx::{self, ImportError, ImportOptions};
use atoll_frontend::tensor::{Data, Tensor};
use atoll_frontend::tensor_graph::TensorGraph;
use atoll_frontend::{reference, transform};
use prost::Message;
use regex::Regex;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Cases whose stored outputs are known to differ, and why.
const EXCEPTIONS: [(&str, &str); 12] = [
    (
        "test_resize_downsample_scales_cubic_align_corners",
        "expects coordinates from an output size of 3.2; ONNX Runtime uses 3, and so does Atoll",
    ),
    (
        "test_resize_downsample_scales_linear_align_corners",
        "expects coordinates from an output size of 2.4; ONNX Runtime uses 2, and so does Atoll",
    ),
    ("test_bernoulli", OTHER_NUMBERS),
    ("test_bernoulli_double", OTHER_NUMBERS),
    ("test_bernoulli_double_expanded", OTHER_NUMBERS),
    ("test_bernoulli_expanded", OTHER_NUMBERS),
    ("test_bernoulli_seed", OTHER_NUMBERS),
    ("test_bernoulli_seed_expanded", OTHER_NUMBERS),
    ("test_training_dropout", OTHER_NUMBERS),
    ("test_training_dropout_default", OTHER_NUMBERS),
    ("test_training_dropout_default_mask", OTHER_NUMBERS),
    ("test_training_dropout_mask", OTHER_NUMBERS),
];

/// Why random numbers differ.
const OTHER_NUMBERS: &str = "the numbers are those of a different generator";

enum Outcome {
    Passed,
    Unsupported(String),
    Failed(String),
}

#[test]
fn stored_outputs_are_reproduced() {
    let summary = run_folder(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases"), &filter(""));
    assert!(summary.passed > 40 && summary.reasons.is_empty(), "{:?}", summary.reasons);
    // Many of these cases are windows, recurrent cells and attention, whose channels and weights
    // must be numbers.
    assert!(
        summary.passed_symbolic * 2 >= summary.passed,
        "{} of {}: {:?}",
        summary.passed_symbolic,
        summary.passed,
        summary.open
    );
}

#[test]
fn stored_outputs_in_other_folders_are_reproduced() {
    let Ok(folders) = std::env::var("ATOLL_ONNX_CASES") else {
        eprintln!("SKIPPED: ATOLL_ONNX_CASES names no folder of cases");
        return;
    };
    let filter = filter(&std::env::var("ATOLL_ONNX_FILTER").unwrap_or_default());
    for folder in folders.split(':') {
        let summary = run_folder(Path::new(folder), &filter);
        for (reason, count) in &summary.reasons {
            eprintln!("{count:5} unsupported: {reason}");
        }
        eprintln!("{folder}: {} passed, {} unsupported", summary.passed, summary.reasons.values().sum::<usize>());
        for (reason, count) in &summary.open {
            eprintln!("{count:5} refused with symbolic sizes: {reason}");
        }
        eprintln!("{folder}: {} of {} passed with symbolic sizes", summary.passed_symbolic, summary.passed);
    }
}

/// The cases that run: those with a match in their paths.
fn filter(text: &str) -> Regex {
    Regex::new(text).unwrap_or_else(|error| panic!("ATOLL_ONNX_FILTER is not a regular expression: {error}"))
}

struct Summary {
    passed: usize,
    /// Number of unsupported cases per reason.
    reasons: BTreeMap<String, usize>,
    /// Number of cases that also passed with symbolic sizes.
    passed_symbolic: usize,
    /// Number of the other cases that are rejected with symbolic sizes, per reason.
    open: BTreeMap<String, usize>,
}

/// Runs all cases of a folder; panics if one fails.
fn run_folder(folder: &Path, filter: &Regex) -> Summary {
    let mut cases: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap_or_else(|e| panic!("{}: {e}", folder.display()))
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.join("model.onnx").exists() && filter.is_match(&path.to_string_lossy()))
        .filter(|path| EXCEPTIONS.iter().all(|(name, _)| !path.ends_with(name)))
        .collect();
    cases.sort();
    let mut summary = Summary { passed: 0, reasons: BTreeMap::new(), passed_symbolic: 0, open: BTreeMap::new() };
    let mut failed = Vec::new();
    for case in &cases {
        let name = case.file_name().unwrap().to_string_lossy();
        let run = |symbolic: bool| {
            let outcome = std::panic::catch_unwind(|| run_case(case, symbolic));
            outcome.unwrap_or_else(|_| Outcome::Failed("panic".into()))
        };
        match run(false) {
            Outcome::Passed => summary.passed += 1,
            Outcome::Unsupported(reason) => {
                *summary.reasons.entry(reason).or_default() += 1;
                continue;
            }
            Outcome::Failed(reason) => {
                failed.push(format!("{name}: {reason}"));
                continue;
            }
        }
        match run(true) {
            Outcome::Passed => summary.passed_symbolic += 1,
            Outcome::Unsupported(reason) => *summary.open.entry(format!("{name}: {reason}")).or_default() += 1,
            Outcome::Failed(reason) => failed.push(format!("{name} with symbolic sizes: {reason}")),
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    summary
}

fn run_case(case: &Path, symbolic: bool) -> Outcome {
    let mut sets: Vec<PathBuf> =
        std::fs::read_dir(case).unwrap().map(|e| e.unwrap().path()).filter(|p| p.is_dir()).collect();
    sets.sort();
    let mut outcome = Outcome::Passed;
    for set in sets {
        let (Some(inputs), Some(expected)) = (tensors(&set, "input"), tensors(&set, "output")) else {
            return Outcome::Unsupported("data that is not a tensor".into());
        };
        let import = |model: &ModelProto| {
            let model = if symbolic { with_symbols(model) } else { model.clone() };
            onnx::import_model(&model, "case", Some(case), &ImportOptions::default())
        };
        let model = ModelProto::decode(&std::fs::read(case.join("model.onnx")).unwrap()[..]).unwrap();
        let imported = match import(&model) {
            // Backend tests pass axes as inputs; real models have them as constants.
            Err(ImportError::Unsupported { .. }) if inputs.len() > 1 => {
                let (constants, left) = with_constants(model, &set);
                import(&constants).map(|graph| (graph, left))
            }
            result => result.map(|graph| (graph, inputs.len())),
        };
        outcome = match imported {
            Ok((graph, given)) => compare(graph, &inputs[..given], &expected),
            Err(error) if symbolic => Outcome::Unsupported(error.to_string()),
            Err(error) => refused(error),
        };
        // With symbolic sizes, inputs may fail a check when they are bound.
        if let (true, Outcome::Failed(reason)) = (symbolic, &outcome)
            && ["the model takes", "do not fit the model", "elements of input"].iter().any(|text| reason.contains(text))
        {
            outcome = Outcome::Unsupported(reason.clone());
        }
        if !matches!(outcome, Outcome::Passed) {
            break;
        }
    }
    outcome
}

/// Runs the graph as imported and as transformed.
fn compare(graph: TensorGraph, inputs: &[Tensor], expected: &[Tensor]) -> Outcome {
    let transformed = match transform::transform(graph.clone()) {
        Ok(transformed) => transformed,
        Err(error) => return Outcome::Failed(error.to_string()),
    };
    for (graph, kind) in [(graph, "imported"), (transformed, "transformed")] {
        let outputs = match reference::run(&graph, inputs) {
            Ok(outputs) => outputs,
            Err(error) => return Outcome::Failed(format!("{kind}: {error}")),
        };
        let mut pairs = outputs.iter().zip(expected).enumerate();
        if let Some((index, difference)) =
            pairs.find_map(|(i, (found, expected))| Some((i, difference(found, expected)?)))
        {
            return Outcome::Failed(format!("{kind}: output {index}: {difference}\n{graph}"));
        }
    }
    Outcome::Passed
}

fn refused(error: ImportError) -> Outcome {
    match error {
        ImportError::UnsupportedOperator { operator, .. } => Outcome::Unsupported(operator),
        ImportError::Unsupported { operator, reason, .. } => Outcome::Unsupported(format!("{operator}: {reason}")),
        ImportError::DType { dtype, .. } => Outcome::Unsupported(format!("type {dtype}")),
        ImportError::Opset { .. } => Outcome::Unsupported("opset".into()),
        error => Outcome::Failed(error.to_string()),
    }
}

/// The model with all inputs but the first as initialisers, and the number of remaining inputs.
fn with_constants(mut model: ModelProto, set: &Path) -> (ModelProto, usize) {
    let graph = model.graph.as_mut().unwrap();
    let kept = usize::from(graph.input.len() > 1);
    for (index, input) in graph.input.iter().enumerate().skip(kept) {
        let bytes = std::fs::read(set.join(format!("input_{index}.pb"))).unwrap();
        graph.initializer.push(TensorProto { name: input.name.clone(), ..TensorProto::decode(&bytes[..]).unwrap() });
    }
    (model, kept)
}

/// The model with every size of its inputs as a distinct symbol. A size of 0 stays, because the
/// range of a symbol usually begins at 1.
fn with_symbols(model: &ModelProto) -> ModelProto {
    let mut model = model.clone();
    let graph = model.graph.as_mut().unwrap();
    for input in &mut graph.input {
        let tensor = input.r#type.as_mut().and_then(|t| t.tensor_type.as_mut());
        let Some(shape) = tensor.and_then(|t| t.shape.as_mut()) else { continue };
        for (axis, dim) in
            shape.dim.iter_mut().enumerate().filter(|(_, dim)| dim.value != Some(DimensionValue::DimValue(0)))
        {
            dim.value = Some(DimensionValue::DimParam(format!("{}_{axis}", input.name)));
        }
    }
    model
}

fn tensors(set: &Path, kind: &str) -> Option<Vec<Tensor>> {
    let paths = (0..).map(|i| set.join(format!("{kind}_{i}.pb"))).take_while(|path| path.exists());
    paths.map(|path| tensor(&std::fs::read(path).unwrap())).collect()
}

fn tensor(bytes: &[u8]) -> Option<Tensor> {
    onnx::read_tensor_proto(&TensorProto::decode(bytes).ok()?).ok()
}

/// The first difference between two tensors; the tolerance is that of ONNX's own runner.
fn difference(found: &Tensor, expected: &Tensor) -> Option<String> {
    if found.shape != expected.shape || found.dtype != expected.dtype {
        return Some(format!(
            "{:?} {:?} instead of {:?} {:?}",
            found.dtype, found.shape, expected.dtype, expected.shape
        ));
    }
    match (&found.data, &expected.data) {
        (Data::Int(a), Data::Int(b)) => {
            a.iter().zip(b).position(|(a, b)| a != b).map(|i| format!("element {i}: {} instead of {}", a[i], b[i]))
        }
        _ => {
            let (a, b) = (found.to_f64(), expected.to_f64());
            let differs = |(a, b): (&f64, &f64)| {
                !(a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= 1e-5 + 1e-3 * b.abs())
            };
            a.iter().zip(&b).position(differs).map(|i| format!("element {i}: {} instead of {}", a[i], b[i]))
        }
    }
}
