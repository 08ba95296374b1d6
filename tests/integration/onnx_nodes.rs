//! ONNX's own node cases: compiled to a bundle, loaded by an engine, and run on the host device.
//!
//! The cases come from the `onnx` package in the Python environment: one folder each, with
//! `model.onnx` and `test_data_set_N/{input,output}_K.pb`. A full run takes all of them, and
//! compares the resulting table of operators with `docs/reference/onnx-operators.md`
//! (`ATOLL_BLESS=1` writes it). Other runs take one case in sixteen. `ATOLL_ONNX_FILTER` is a
//! regular expression that selects cases by name. A case may be refused; a wrong result fails the
//! test.

mod case;
mod changed;
mod table;

use anyhow::{Context, Result, ensure};
use atoll_engine::EngineConfig;
use atoll_tests::{full, python, root, skip};
use case::{Outcome, Runner};
use std::path::PathBuf;
use table::Table;

/// One of this many cases runs unless the run is full.
const SAMPLED: u64 = 16;

#[test]
fn node_cases_run_on_the_host_device() -> Result<()> {
    let Some(folder) = node_folder() else {
        skip("the Python environment has no onnx package with node cases");
        return Ok(());
    };
    let filter = std::env::var("ATOLL_ONNX_FILTER").ok();
    let pattern = regex::Regex::new(filter.as_deref().unwrap_or_default())
        .context("ATOLL_ONNX_FILTER is no regular expression")?;
    let mut cases: Vec<PathBuf> = std::fs::read_dir(&folder)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    cases.retain(|path| path.join("model.onnx").exists() && pattern.is_match(&name(path)));
    if filter.is_none() && !full() {
        cases.retain(|path| hash(&name(path)).is_multiple_of(SAMPLED));
    }
    cases.sort();
    let runner = Runner::start(EngineConfig::default())?;
    let mut table = Table::default();
    let mut wrong = Vec::new();
    for path in &cases {
        let case = case::read(path).with_context(|| format!("reading {}", name(path)))?;
        let outcome = runner.run(&case);
        if let Outcome::Wrong(reason) = &outcome {
            wrong.push(format!("{}: {reason}", name(path)));
        }
        table.add(&case, &outcome);
    }
    runner.stop();
    summarise(&table, cases.len());
    ensure!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    if filter.is_none() && full() { table.compare(&root().join("docs/reference/onnx-operators.md")) } else { Ok(()) }
}

/// Integers of 2 and 4 bits and floats of 4 and 8 bits: all casts to and from them, quantisation, and
/// operators that move them, as ONNX's reference implementation answers.
#[test]
fn narrow_types_answer_as_onnx_does() -> Result<()> {
    all_run("narrow_cases.py", 39)
}

/// Runs the `count` cases that a script of `tests/python` writes. Each must be correct with all inputs
/// given at run time.
fn all_run(script: &str, count: usize) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = root().join("tests/python").join(script);
    let output = std::process::Command::new(python()).args(["-W", "ignore"]).arg(path).arg(folder.path()).output();
    let output = output.with_context(|| format!("{script} needs the Python environment of `make setup`"))?;
    ensure!(output.status.success(), "{script} failed: {}", String::from_utf8_lossy(&output.stderr));
    let mut cases: Vec<PathBuf> =
        std::fs::read_dir(folder.path())?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    cases.sort();
    ensure!(cases.len() == count, "{} cases instead of {count}", cases.len());
    let runner = Runner::start(EngineConfig::default())?;
    let mut failures = Vec::new();
    for path in &cases {
        match runner.run(&case::read(path)?) {
            Outcome::Right => {}
            Outcome::RightWithConstants => failures.push(format!("{}: only with constants", name(path))),
            Outcome::Refused(reason) | Outcome::Wrong(reason) => failures.push(format!("{}: {reason}", name(path))),
        }
    }
    runner.stop();
    ensure!(failures.is_empty(), "{}", failures.join("\n"));
    Ok(())
}

/// Operators that label, look up, move and make strings, and casts of strings, agree with ONNX
/// Runtime.
#[test]
fn strings_answer_as_onnx_runtime_does() -> Result<()> {
    all_run("string_cases.py", 47)
}

/// Support vector machines answer labels, scores and probabilities as ONNX Runtime does, among them
/// KServe's iris example.
#[test]
fn support_vector_machines_answer_as_onnx_runtime_does() -> Result<()> {
    all_run("svm_cases.py", 22)
}

#[expect(clippy::print_stderr, reason = "the count of a run is read by people")]
fn summarise(table: &Table, cases: usize) {
    eprintln!("ONNX node cases: {} of {cases} run, {} refused", table.run(), table.refused());
    if std::env::var_os("ATOLL_ONNX_FILTER").is_some() {
        eprintln!("{}", table.reasons().join("\n"));
    }
}

/// Folder of the node cases in the `onnx` package.
fn node_folder() -> Option<PathBuf> {
    let libraries = python().parent()?.parent()?.join("lib");
    let versions = std::fs::read_dir(libraries).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    versions.map(|path| path.join("site-packages/onnx/backend/test/data/node")).find(|path| path.is_dir())
}

fn name(case: &std::path::Path) -> String {
    case.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// FNV-1a, so that the selection is the same on every machine.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}
