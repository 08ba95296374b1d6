//! Import, transformation and reference interpreter against stored answers, in the layout of ONNX's backend tests: a folder per case with `model.onnx` and
//! `test_data_set_N/{input,output}_K.pb`.
//!
//! `ATOLL_ONNX_CASES` names one or more folders of cases (separated by `:`), for instance the `node` folder of the `onnx` package up to 1.22; `make_cases.py` writes cases
//! for other models. A case whose model is refused as unsupported is counted, not failed; a wrong answer fails. `ATOLL_ONNX_FILTER` runs only cases whose name contains it.

#![allow(clippy::print_stderr, reason = "a summary of hundreds of cases, and a loud skip")]

use atoll_frontend::onnx::proto::TensorProto;
use atoll_frontend::onnx::{self, ImportError, ImportOptions};
use atoll_frontend::reference;
use atoll_frontend::tensor::{Data, Tensor};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

enum Outcome {
    Passed,
    Unsupported(String),
    Failed(String),
}

#[test]
fn stored_answers_are_met() {
    let Ok(folders) = std::env::var("ATOLL_ONNX_CASES") else {
        eprintln!("SKIPPED: ATOLL_ONNX_CASES names no folder of cases");
        return;
    };
    let filter = std::env::var("ATOLL_ONNX_FILTER").unwrap_or_default();
    let mut cases: Vec<PathBuf> = folders
        .split(':')
        .flat_map(|folder| std::fs::read_dir(folder).unwrap_or_else(|e| panic!("{folder}: {e}")))
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.join("model.onnx").exists() && path.to_string_lossy().contains(&filter))
        .collect();
    cases.sort();
    assert!(!cases.is_empty(), "no case in {folders} matches {filter:?}");
    let (mut passed, mut failed, mut reasons) = (0, Vec::new(), BTreeMap::<String, usize>::new());
    for case in &cases {
        match run_case(case) {
            Outcome::Passed => passed += 1,
            Outcome::Unsupported(reason) => *reasons.entry(reason).or_default() += 1,
            Outcome::Failed(reason) => failed.push(format!("{}: {reason}", case.file_name().unwrap().to_string_lossy())),
        }
    }
    let unsupported: usize = reasons.values().sum();
    for (reason, count) in &reasons {
        eprintln!("{count:5} unsupported: {reason}");
    }
    eprintln!("{} cases: {passed} passed, {unsupported} unsupported, {} failed", cases.len(), failed.len());
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

fn run_case(case: &Path) -> Outcome {
    let graph = match onnx::import(&case.join("model.onnx"), &ImportOptions::default()) {
        Ok(graph) => graph,
        Err(error @ (ImportError::Invalid { .. } | ImportError::Internal(_) | ImportError::Cycle { .. })) => {
            return Outcome::Failed(error.to_string());
        }
        Err(ImportError::UnsupportedOperator { operator, .. }) => return Outcome::Unsupported(operator),
        Err(ImportError::Unsupported { operator, reason, .. }) => return Outcome::Unsupported(format!("{operator}: {reason}")),
        Err(ImportError::DType { dtype, .. }) => return Outcome::Unsupported(format!("type {dtype}")),
        Err(ImportError::Opset { .. }) => return Outcome::Unsupported("opset".into()),
        Err(error) => return Outcome::Failed(error.to_string()),
    };
    let mut sets: Vec<PathBuf> = std::fs::read_dir(case).unwrap().map(|e| e.unwrap().path()).filter(|p| p.is_dir()).collect();
    sets.sort();
    for set in sets {
        let (Some(inputs), Some(expected)) = (tensors(&set, "input"), tensors(&set, "output")) else {
            return Outcome::Unsupported("data that is no tensor".into());
        };
        let outputs = match reference::run(&graph, &inputs) {
            Ok(outputs) => outputs,
            Err(error) => return Outcome::Failed(error.to_string()),
        };
        for (index, (found, expected)) in outputs.iter().zip(&expected).enumerate() {
            if let Some(difference) = difference(found, expected) {
                return Outcome::Failed(format!("output {index}: {difference}"));
            }
        }
    }
    Outcome::Passed
}

fn tensors(set: &Path, kind: &str) -> Option<Vec<Tensor>> {
    let paths = (0..).map(|i| set.join(format!("{kind}_{i}.pb"))).take_while(|path| path.exists());
    paths.map(|path| tensor(&std::fs::read(path).unwrap())).collect()
}

/// A stored tensor, read with the importer's own eyes: as the value of a `Constant`.
fn tensor(bytes: &[u8]) -> Option<Tensor> {
    use prost::Message;
    onnx::read_tensor_proto(&TensorProto::decode(bytes).ok()?).ok()
}

/// Where two tensors differ; tolerance as in ONNX's own runner.
fn difference(found: &Tensor, expected: &Tensor) -> Option<String> {
    if found.shape != expected.shape || found.dtype != expected.dtype {
        return Some(format!("{:?} {:?} instead of {:?} {:?}", found.dtype, found.shape, expected.dtype, expected.shape));
    }
    match (&found.data, &expected.data) {
        (Data::Int(a), Data::Int(b)) => {
            a.iter().zip(b).position(|(a, b)| a != b).map(|i| format!("element {i}: {} instead of {}", a[i], b[i]))
        }
        _ => {
            let (a, b) = (found.to_f64(), expected.to_f64());
            let differs = |(a, b): (&f64, &f64)| !(a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= 1e-5 + 1e-3 * b.abs());
            a.iter().zip(&b).position(differs).map(|i| format!("element {i}: {} instead of {}", a[i], b[i]))
        }
    }
}
