//! Invalid input to the real program, which must name the cause and the remedy, and never panic.

use crate::serve::atoll;
use anyhow::{Result, ensure};
use atoll_frontend::onnx::proto::{
    DataLocation, DataType, Dimension, DimensionValue, GraphProto, ModelProto, NodeProto, OperatorSetIdProto,
    StringStringEntryProto, TensorProto, TensorShapeProto, TensorTypeProto, TypeProto, ValueInfoProto,
};
use atoll_tests::built;
use prost::Message;
use std::path::Path;
use std::process::Command;

fn value(name: &str, dims: &[i64]) -> ValueInfoProto {
    let dim = dims.iter().map(|&d| Dimension { value: Some(DimensionValue::DimValue(d)) }).collect();
    let tensor = TensorTypeProto { elem_type: DataType::Float as i32, shape: Some(TensorShapeProto { dim }) };
    ValueInfoProto {
        name: name.into(),
        r#type: Some(TypeProto { tensor_type: Some(tensor), ..TypeProto::default() }),
        ..Default::default()
    }
}

fn node(op: &str, inputs: &[&str], output: &str) -> NodeProto {
    NodeProto {
        name: format!("the_{output}"),
        op_type: op.into(),
        input: inputs.iter().map(|s| s.to_string()).collect(),
        output: vec![output.into()],
        ..Default::default()
    }
}

/// A model of `x [dims] → y` with opset 17.
fn model(dims: &[i64], nodes: Vec<NodeProto>, initializer: Vec<TensorProto>) -> Vec<u8> {
    let graph = GraphProto {
        name: "bad".into(),
        node: nodes,
        initializer,
        input: vec![value("x", dims)],
        output: vec![value("y", dims)],
        ..Default::default()
    };
    let opset = OperatorSetIdProto { domain: String::new(), version: 17 };
    ModelProto { ir_version: 8, graph: Some(graph), opset_import: vec![opset], ..Default::default() }.encode_to_vec()
}

/// Runs `atoll`; it must fail without a panic, and its message must contain every word.
fn refused(arguments: &[&str], words: &[&str]) -> Result<()> {
    let output = Command::new(atoll()).args(arguments).output()?;
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(
        output.status.code().is_some_and(|c| c == 1 || c == 2),
        "{arguments:?} ended with {}: {message}",
        output.status
    );
    ensure!(!message.contains("panicked"), "{message}");
    for word in words {
        ensure!(message.contains(word), "{arguments:?} does not say {word:?}: {message}");
    }
    Ok(())
}

fn compile_refused(folder: &Path, bytes: &[u8], words: &[&str]) -> Result<()> {
    let source = folder.join("bad.onnx");
    let bundle = folder.join("bad.kg");
    std::fs::write(&source, bytes)?;
    refused(&["compile", &source.to_string_lossy(), "-o", &bundle.to_string_lossy(), "--target", "host"], words)?;
    ensure!(!bundle.exists(), "a failed compilation leaves no bundle");
    Ok(())
}

#[test]
fn models() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let check = |bytes: &[u8], words: &[&str]| compile_refused(folder.path(), bytes, words);
    let good = model(&[1, 8], vec![node("Relu", &["x"], "y")], vec![]);
    check(b"", &["empty", "bad.onnx"])?;
    check(&good[..good.len() - 3], &["not an ONNX model, or a truncated one"])?;
    check(b"this is a text file", &["not an ONNX model"])?;
    check(&model(&[1 << 40, 1 << 40], vec![node("Relu", &["x"], "y")], vec![]), &["limit"])?;
    check(
        &model(&[4], vec![node("Relu", &["b"], "a"), node("Relu", &["a"], "b"), node("Add", &["a", "x"], "y")], vec![]),
        &["cycle"],
    )?;
    check(&model(&[4], vec![node("Relu", &["unknown"], "y")], vec![]), &["unknown"])?;
    check(
        &model(&[4], vec![node("Relux", &["x"], "y")], vec![]),
        &["Relux", "the_y", "opset 17", "nearest supported operator is Relu"],
    )?;
    let location = StringStringEntryProto { key: "location".into(), value: "weights.bin".into() };
    let external = |location: StringStringEntryProto| TensorProto {
        name: "w".into(),
        dims: vec![4],
        data_type: DataType::Float as i32,
        data_location: DataLocation::External as i32,
        external_data: vec![location],
        ..Default::default()
    };
    let add = || vec![node("Add", &["x", "w"], "y")];
    check(&model(&[4], add(), vec![external(location)]), &["weights.bin", "beside the model"])?;
    let outside = StringStringEntryProto { key: "location".into(), value: "../../etc/passwd".into() };
    check(&model(&[4], add(), vec![external(outside)]), &["relative path inside"])?;
    refused(&["compile", "/nowhere/model.onnx"], &["/nowhere/model.onnx"])?;
    refused(&["compile", "x.onnx", "--target", "toaster"], &["toaster", "host-x86-64-v3"])
}

#[test]
fn bundles() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let model = built("null", folder.path())?;
    let bundle = folder.path().join("null.kg");
    let path = bundle.to_string_lossy().into_owned();
    atoll_tests::compile(&model, folder.path())?;
    let whole = std::fs::read(&bundle)?;
    let mut damaged = whole.clone();
    let at = whole.len() / 2;
    damaged[at..at + 64].fill(0x55);
    for content in [&whole[..whole.len() / 3], &[], &b"PK\x03\x04 and nonsense"[..]] {
        std::fs::write(&bundle, content)?;
        refused(&["inspect", &path], &["null.kg", "atoll compile"])?;
        refused(&["infer", "--model", &path], &["null.kg"])?;
    }
    // A newer format: the manifest is checked before anything else.
    let text = String::from_utf8_lossy(&whole).into_owned();
    ensure!(text.contains("\"format\": 2"), "the manifest has a format");
    let mut newer = whole.clone();
    let at = whole.windows(11).position(|w| w == b"\"format\": 2").unwrap_or(0) + 10;
    newer[at] = b'9';
    std::fs::write(&bundle, newer)?;
    refused(&["inspect", &path], &["format 9", "reads formats 1 to 2"])
}

#[test]
fn inputs() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let model = built("null", folder.path())?;
    atoll_tests::compile(&model, folder.path())?;
    let bundle = folder.path().join("null.kg").to_string_lossy().into_owned();
    let file = folder.path().join("x.npy");
    std::fs::write(&file, b"no numpy")?;
    let file = file.to_string_lossy().into_owned();
    refused(&["infer", "--model", &bundle, "--input", &format!("input={file}")], &["x.npy"])?;
    refused(&["infer", "--model", &bundle, "--input", "unknown=random"], &["unknown", "input"])?;
    refused(&["infer", "--model", "null", "--url", "127.0.0.1:1"], &["127.0.0.1:1", "atoll serve"])
}
