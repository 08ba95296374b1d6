//! Behaviour that depends on the values of inputs, from ONNX to the engine: errors raised by
//! kernels, and results whose sizes are computed by kernels.

use anyhow::{Result, ensure};
use atoll_engine::{EngineConfig, InvokeError};
use atoll_frontend::onnx::proto::{
    DataType, Dimension, DimensionValue, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorShapeProto,
    TensorTypeProto, TypeProto, ValueInfoProto,
};
use atoll_tests::{Case, Loaded, Model, Tensor, compile};
use prost::Message;
use std::path::Path;

fn input(name: &str, elem_type: DataType, dims: &[&str]) -> ValueInfoProto {
    let dim = dims.iter().map(|dim| Dimension { value: Some(DimensionValue::DimParam((*dim).into())) }).collect();
    let tensor_type = Some(TensorTypeProto { elem_type: elem_type as i32, shape: Some(TensorShapeProto { dim }) });
    ValueInfoProto {
        name: name.into(),
        r#type: Some(TypeProto { tensor_type, ..TypeProto::default() }),
        ..Default::default()
    }
}

/// Loads a model whose nodes are named after their results, which are all outputs, into its own
/// engine.
fn load(
    folder: &Path,
    inputs: Vec<ValueInfoProto>,
    nodes: &[(&str, &[&str], &str)],
    config: EngineConfig,
) -> Result<Loaded> {
    let node = nodes.iter().map(|(op, inputs, output)| NodeProto {
        name: (*output).into(),
        op_type: (*op).into(),
        input: inputs.iter().map(ToString::to_string).collect(),
        output: vec![(*output).into()],
        ..Default::default()
    });
    let output = nodes.iter().map(|(_, _, output)| ValueInfoProto { name: (*output).into(), ..Default::default() });
    let graph = GraphProto {
        name: "values".into(),
        node: node.collect(),
        input: inputs,
        output: output.collect(),
        ..Default::default()
    };
    let opset = OperatorSetIdProto { domain: String::new(), version: 17 };
    let model = ModelProto { ir_version: 8, graph: Some(graph), opset_import: vec![opset], ..Default::default() };
    let path = folder.join("values.onnx");
    std::fs::write(&path, model.encode_to_vec())?;
    Loaded::start(&compile(&Model { name: "values".into(), path, symbols: vec![] }, folder)?, config)
}

fn floats(name: &str, shape: &[i64], values: &[f32]) -> Tensor {
    let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    Tensor { name: name.into(), dtype: "float32".into(), shape: shape.to_vec(), bytes }
}

fn ints(name: &str, values: &[i64]) -> Tensor {
    let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    Tensor { name: name.into(), dtype: "int64".into(), shape: vec![values.len() as i64], bytes }
}

#[test]
fn invalid_values_fail_the_invocation() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let inputs = vec![
        input("x", DataType::Float, &["rows", "width"]),
        input("i", DataType::Int64, &["count"]),
        input("d", DataType::Int64, &["count"]),
    ];
    let nodes: &[(&str, &[&str], &str)] = &[("Gather", &["x", "i"], "row"), ("Div", &["i", "d"], "quotient")];
    let loaded = load(folder.path(), inputs, nodes, EngineConfig::default())?;
    let x = floats("x", &[5, 3], &[1.5; 15]);
    let case =
        |i: &[i64], d: &[i64]| Case { seed: 0, inputs: vec![x.clone(), ints("i", i), ints("d", d)], outputs: vec![] };
    for (i, d, says) in [
        ([0, -5, 4], [1, -1, 7], None),
        ([0, 5, 4], [1, 1, 7], Some("node row: an index is outside of -5 to 4")),
        ([0, -6, 4], [1, 0, 7], Some("node row: an index is outside of -5 to 4")),
        ([0, 1, 4], [1, 0, 7], Some("node quotient: an integer is divided by zero")),
        ([0, -5, 4], [1, -1, 7], None),
    ] {
        let error = loaded.run(&case(&i, &d)).err().map(|error| error.downcast::<InvokeError>()).transpose()?;
        ensure!(error == says.map(|says| InvokeError::BadInput(says.into())), "{i:?} by {d:?}: {error:?}");
    }
    loaded.stop();
    Ok(())
}

#[test]
fn sizes_of_results_depend_on_values() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let inputs = vec![input("x", DataType::Float, &["n", "m"]), input("keep", DataType::Bool, &["count"])];
    let nodes: &[(&str, &[&str], &str)] =
        &[("NonZero", &["x"], "places"), ("Compress", &["x", "keep"], "kept"), ("Add", &["kept", "kept"], "twice")];
    let loaded =
        load(folder.path(), inputs, nodes, EngineConfig { evict_at_random: Some(5), ..EngineConfig::default() })?;
    for (n, m, share) in [(1, 1, 10), (6, 5, 0), (6, 5, 3), (40, 33, 5), (40, 33, 10), (6, 5, 7)] {
        let chosen = |at: usize| (at * 7919) % 10 < share;
        let count = n * m;
        let x: Vec<f32> = (0..count).map(|at| if chosen(at) { at as f32 + 1.0 } else { 0.0 }).collect();
        let keep = (0..count).map(|at| u8::from(chosen(at))).collect();
        let keep = Tensor { name: "keep".into(), dtype: "bool".into(), shape: vec![count as i64], bytes: keep };
        let result = loaded.run(&Case {
            seed: 0,
            inputs: vec![floats("x", &[n as i64, m as i64], &x), keep],
            outputs: vec![],
        })?;
        let places: Vec<usize> = (0..count).filter(|at| chosen(*at)).collect();
        let coordinates: Vec<i64> =
            places.iter().map(|at| (at / m) as i64).chain(places.iter().map(|at| (at % m) as i64)).collect();
        let kept: Vec<f32> = places.iter().map(|at| x[*at]).collect();
        let twice: Vec<f32> = kept.iter().map(|value| 2.0 * value).collect();
        let many = places.len() as i64;
        let expected = [
            Tensor { shape: vec![2, many], ..ints("places", &coordinates) },
            floats("kept", &[many], &kept),
            floats("twice", &[many], &twice),
        ];
        for (found, expected) in result.outputs.iter().zip(&expected) {
            ensure!(
                found.shape == expected.shape && found.bytes == expected.bytes,
                "{n} x {m}, {share} in 10: {}",
                expected.name
            );
        }
        ensure!(result.outputs.len() == 3, "{} results", result.outputs.len());
    }
    loaded.stop();
    Ok(())
}
