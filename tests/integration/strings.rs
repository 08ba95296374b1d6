//! Models with strings: a classifier of texts in a daemon, and tables on the command line.

use crate::serve::Daemon;
use anyhow::{Context, Result, ensure};
use atoll_frontend::onnx::proto::TensorProto;
use atoll_tests::http::ask;
use atoll_tests::{program, python, root};
use prost::Message;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Writes the cases of `string_cases.py` into a folder.
fn cases(folder: &Path) -> Result<PathBuf> {
    let cases = folder.join("cases");
    let script = root().join("tests/python/string_cases.py");
    let output = Command::new(python()).args(["-W", "ignore"]).arg(script).arg(&cases).output();
    let output = output.context("strings need the Python environment of `make setup`")?;
    ensure!(output.status.success(), "string_cases.py failed: {}", String::from_utf8_lossy(&output.stderr));
    Ok(cases)
}

/// The strings of a tensor of a case.
fn strings(case: &Path, file: &str) -> Result<Vec<String>> {
    let bytes = std::fs::read(case.join("test_data_set_0").join(file))?;
    let tensor = TensorProto::decode(&bytes[..])?;
    Ok(tensor.string_data.iter().map(|text| String::from_utf8_lossy(text).into_owned()).collect())
}

/// The answer of `atoll infer --json`.
fn infer(arguments: &[&str]) -> Result<Value> {
    let output = Command::new(program("atoll")).args(["infer", "--json"]).args(arguments).output()?;
    ensure!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(serde_json::from_slice(&output.stdout)?)
}

#[test]
fn a_daemon_answers_texts_with_the_labels_of_the_model() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let cases = cases(folder.path())?;
    let case = cases.join("text_to_label");
    let repository = folder.path().join("repository");
    std::fs::create_dir(&repository)?;
    std::fs::copy(case.join("model.onnx"), repository.join("texts.onnx"))?;
    let daemon = Daemon::start_with(&repository, folder.path(), &[])?;
    let label = |words: &[String]| -> Result<Value> {
        let input = json!({ "name": "text", "datatype": "BYTES", "shape": [words.len()], "data": words });
        let body = json!({ "inputs": [input] }).to_string();
        let (status, text) = ask(&daemon.http, "POST", "/v2/models/texts/infer", &body)?;
        ensure!(status == 200, "{text}");
        Ok(serde_json::from_str::<Value>(&text)?["outputs"][0].take())
    };
    let (words, expected) = (strings(&case, "input_0.pb")?, strings(&case, "output_0.pb")?);
    let found = label(&words)?;
    ensure!(found == json!({ "name": "label", "datatype": "BYTES", "shape": [1], "data": expected }), "{found}");
    // Words that the model does not know count for nothing, however many there are.
    let more: Vec<String> = words.iter().cloned().chain((0..100).map(|word| format!("unknown {word}"))).collect();
    ensure!(label(&more)? == found, "unknown words change the label");
    let mistake = json!({ "inputs": [{ "name": "text", "datatype": "FP32", "shape": [1], "data": [1.0] }] });
    let (status, text) = ask(&daemon.http, "POST", "/v2/models/texts/infer", &mistake.to_string())?;
    ensure!(status == 400 && text.contains("the model takes strings"), "{text}");
    let answer = infer(&["--model", "texts", "--url", &daemon.http, "--input", "text=text:blue", "--shape", "text=2"])?;
    let shown = &answer["outputs"][0];
    ensure!(shown["datatype"] == "BYTES" && shown["strings"].as_array().is_some_and(|all| all.len() == 1), "{answer}");
    Ok(())
}

#[test]
fn the_command_line_takes_and_shows_strings() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let cases = cases(folder.path())?;
    let model = cases.join("names_to_names/model.onnx").display().to_string();
    let saved = folder.path().join("saved").display().to_string();
    let answer = infer(&["--model", &model, "--input", "x=text:blue", "--save", &saved])?;
    ensure!(answer["outputs"][0]["strings"] == json!(["b", "b", "b", "b", "b"]), "{answer}");
    infer(&["--model", &model, "--input", "x=text:blue", "--expect", &saved])?;
    let other = infer(&["--model", &model, "--input", "x=text:red", "--expect", &saved]);
    ensure!(other.is_err_and(|error| error.to_string().contains("has other strings than expected")), "equal strings");
    // What was saved is an input of the same form.
    let from_file = format!("x={saved}/y.npy");
    let answer = infer(&["--model", &model, "--input", &from_file])?;
    ensure!(answer["outputs"][0]["strings"] == json!(["?", "?", "?", "?", "?"]), "{answer}");
    Ok(())
}
