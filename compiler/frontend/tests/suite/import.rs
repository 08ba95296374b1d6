//! What the importer rejects, and with which messages; external data; the trained models, if they
//! are available.

#![allow(clippy::print_stderr, reason = "a loud skip")]

use crate::common;
use crate::common::{Dim, Model, int, ints, random_tensor};
use atoll_frontend::onnx::proto::*;
use atoll_frontend::onnx::{ImportError, ImportOptions, import, import_bytes};
use atoll_frontend::reference;
use atoll_frontend::size::static_shape;
use atoll_frontend::tensor::Tensor;
use atoll_frontend::tensor_graph::Op;
use atoll_frontend::transform::transform;
use atoll_kgraph::DType;
use prost::Message;
use std::path::Path;

fn refused(model: &Model) -> String {
    model.import().unwrap_err().to_string()
}

#[test]
fn files_that_are_not_models_are_refused() {
    let options = ImportOptions::default();
    assert!(matches!(import_bytes(vec![], "m", &options), Err(ImportError::Empty)));
    assert!(matches!(import_bytes(vec![0xFF; 40], "m", &options), Err(ImportError::Malformed { .. })));
    let whole = common::resnet50(2, 32).bytes();
    for part in [1, 10, whole.len() / 2, whole.len() - 1] {
        assert!(
            matches!(import_bytes(whole[..part].to_vec(), "m", &options), Err(ImportError::Malformed { .. })),
            "{part} bytes"
        );
    }
    assert!(matches!(import(Path::new("no such file.onnx"), &options), Err(ImportError::Io { .. })));
}

#[test]
fn no_changed_byte_causes_a_panic() {
    let mut m = Model::new(13);
    let x = m.input("x", DataType::Float, &[Dim::S("n"), Dim::N(4)]);
    let w = m.floats("w", &[4, 2], &[0.5; 8]);
    let y = m.node("MatMul", "y", &[&x, &w], vec![]);
    m.node("Softmax", "z", &[&y], vec![int("axis", -1)]);
    m.output("z");
    let bytes = m.bytes();
    for at in 0..bytes.len() {
        for flip in [1, 0x80, 0xFF] {
            let mut broken = bytes.clone();
            broken[at] ^= flip;
            // Any result is fine, as long as it does not panic.
            let _ = import_bytes(broken, "m", &ImportOptions::default());
        }
    }
}

#[test]
fn an_unknown_operator_is_reported_with_its_node() {
    let mut m = Model::new(14);
    let x = m.input("x", DataType::Float, &[1i64, 4]);
    m.node("ReduceMedian", "the_node", &[&x], vec![]);
    m.output("the_node");
    let text = refused(&m);
    for part in ["the_node", "ReduceMedian", "ai.onnx", "opset 14", "ReduceMean"] {
        assert!(text.contains(part), "{text:?} does not name {part}");
    }
    m.graph().node[0].domain = "com.example".into();
    assert!(refused(&m).contains("com.example"));
}

#[test]
fn opsets_outside_the_range_are_refused() {
    for version in [6, 28] {
        let mut m = Model::new(version);
        let x = m.input("x", DataType::Float, &[1i64]);
        m.node("Add", "y", &[&x, &x], vec![]);
        m.output("y");
        assert!(matches!(m.import(), Err(ImportError::Opset { .. })));
    }
}

#[test]
fn cycles_and_undefined_names_are_refused() {
    let mut m = Model::new(13);
    let x = m.input("x", DataType::Float, &[2i64]);
    m.node("Add", "a", &[&x, "b"], vec![]);
    m.node("Relu", "b", &["a"], vec![]);
    m.output("b");
    let Err(ImportError::Cycle { nodes }) = m.import() else { panic!("a cycle is imported") };
    assert_eq!(nodes.len(), 2);
    m.graph().node[0].input[1] = "a".into();
    let Err(ImportError::Cycle { nodes }) = m.import() else { panic!("a node that needs itself is imported") };
    assert_eq!(nodes.len(), 1);
    m.graph().node[0].input[1] = "nowhere".into();
    assert!(refused(&m).contains("nowhere"));
}

#[test]
fn nodes_may_be_in_any_order() {
    let mut m = Model::new(13);
    let x = m.input("x", DataType::Float, &[2i64]);
    m.node("Neg", "b", &["a"], vec![]);
    m.node("Relu", "a", &[&x], vec![]);
    m.node("Abs", "unused", &["b"], vec![]);
    m.output("b");
    assert_eq!(m.import().unwrap().nodes.len(), 2);
}

#[test]
fn huge_dimensions_are_refused_before_anything_is_allocated() {
    let mut m = Model::new(13);
    m.input("x", DataType::Float, &[i64::MAX, 2]);
    m.node("Relu", "y", &["x"], vec![]);
    m.output("y");
    assert!(matches!(m.import(), Err(ImportError::TooLarge { .. })));
    let mut m = Model::new(13);
    m.graph().initializer.push(TensorProto {
        name: "w".into(),
        dims: vec![1 << 40, 1 << 40],
        data_type: 1,
        ..TensorProto::default()
    });
    m.node("Relu", "y", &["w"], vec![]);
    m.output("y");
    assert!(matches!(m.import(), Err(ImportError::TooLarge { .. })));
    let mut m = Model::new(13);
    let x = m.input("x", DataType::Float, &[1i64]);
    let shape = m.ints("shape", &[1 << 20, 1 << 20]);
    m.node("Expand", "y", &[&x, &shape], vec![]);
    m.output("y");
    assert!(matches!(m.import(), Err(ImportError::TooLarge { .. })));
}

/// A size that refers to the last one twice doubles with each node.
#[test]
fn sizes_that_grow_with_each_node_are_refused() {
    let mut m = Model::new(13);
    let mut x = m.input("x", DataType::Float, &[Dim::N(1), Dim::N(1), Dim::S("n")]);
    for round in 0..40 {
        let window = vec![ints("kernel_shape", &[1]), ints("strides", &[3])];
        let pooled = m.node("MaxPool", &format!("pooled{round}"), &[&x], window);
        x = m.node("Concat", &format!("joined{round}"), &[&x, &pooled], vec![int("axis", 2)]);
    }
    m.output(&x);
    assert!(refused(&m).contains("terms over symbolic sizes, more than the limit of 16384"), "{}", refused(&m));
}

#[test]
fn operands_without_the_axis_that_an_operator_works_on_are_refused() {
    let mut m = Model::new(13);
    let (x, scale) = (m.floats("x", &[], &[1.0]), m.input("scale", DataType::Float, &[] as &[i64]));
    m.node("SimplifiedLayerNormalization", "y", &[&x, &scale], vec![]);
    m.output("y");
    assert!(refused(&m).contains("the operand is a scalar"), "{}", refused(&m));
    let mut m = Model::new(13);
    let (x, w) = (m.input("x", DataType::Uint8, &[1i64, 2, 3]), m.input("w", DataType::Uint8, &[1i64]));
    let zero = m.input("zero", DataType::Uint8, &[2i64]);
    m.node("ConvInteger", "y", &[&x, &w, &zero], vec![]);
    m.output("y");
    assert!(refused(&m).contains("its weights have 1 dimensions"), "{}", refused(&m));
}

#[test]
fn wrong_attributes_and_types_are_refused() {
    let mut m = Model::new(13);
    let x = m.input("x", DataType::Float, &[2i64, 3]);
    m.node("Softmax", "y", &[&x], vec![ints("axis", &[1])]);
    m.output("y");
    assert!(refused(&m).contains("attribute axis has type Ints"), "{}", refused(&m));
    m.graph().node[0].attribute = vec![int("axis", 7)];
    assert!(refused(&m).contains("axis 7"));
    let mut m = Model::new(13);
    m.input("x", DataType::Complex64, &[2i64]);
    m.output("x");
    assert!(matches!(m.import(), Err(ImportError::DType { .. })));
    let mut m = Model::new(13);
    let (x, y) = (m.input("x", DataType::Float, &[2i64]), m.input("y", DataType::Int64, &[2i64]));
    m.node("Add", "z", &[&x, &y], vec![]);
    m.output("z");
    assert!(refused(&m).contains("F32 and I64"));
    let mut m = Model::new(13);
    m.floats("w", &[2, 2], &[1.0; 3]);
    m.node("Relu", "y", &["w"], vec![]);
    m.output("y");
    assert!(refused(&m).contains("needs 16 bytes, it has 12"));
}

/// A model whose only weight is in a file.
fn external(location: &str, offset: &str) -> Model {
    let mut m = Model::new(13);
    let x = m.input("x", DataType::Float, &[2i64]);
    let entry = |key: &str, value: &str| StringStringEntryProto { key: key.into(), value: value.into() };
    let external_data = vec![entry("location", location), entry("offset", offset), entry("length", "8")];
    m.graph().initializer.push(TensorProto {
        name: "w".into(),
        dims: vec![2],
        data_type: 1,
        external_data,
        data_location: DataLocation::External as i32,
        ..TensorProto::default()
    });
    m.node("Mul", "y", &[&x, "w"], vec![]);
    m.output("y");
    m
}

#[test]
fn external_data_is_read_only_from_the_models_folder() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("m.onnx");
    let run = |m: &Model| {
        std::fs::write(&model, m.bytes()).unwrap();
        import(&model, &ImportOptions::default())
    };
    let Err(error @ ImportError::ExternalDataMissing { .. }) = run(&external("w.bin", "4")) else {
        panic!("missing data is imported")
    };
    assert!(error.to_string().contains("w.bin") && error.to_string().contains("beside the model"));
    let bytes: Vec<u8> = [9.0f32, 2.0, 3.0].iter().flat_map(|v| v.to_le_bytes()).collect();
    std::fs::write(folder.path().join("w.bin"), bytes).unwrap();
    let graph = run(&external("w.bin", "4")).unwrap();
    let y = reference::run(&graph, &[Tensor::floats(DType::F32, vec![2], [1.0, 1.0])]).unwrap();
    assert_eq!(y[0].to_f64(), [2.0, 3.0]);
    for (location, offset) in [
        ("../w.bin", "0"),
        ("/etc/passwd", "0"),
        ("", "0"),
        ("w.bin", "8"),
        ("w.bin", "18446744073709551615"),
        ("w.bin", "x"),
    ] {
        assert!(
            matches!(run(&external(location, offset)), Err(ImportError::ExternalData { .. })),
            "{location} at {offset}"
        );
    }
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink("/etc/hostname", folder.path().join("link.bin")).unwrap();
        assert!(matches!(run(&external("link.bin", "0")), Err(ImportError::ExternalData { .. })));
    }
    assert!(matches!(
        import_bytes(external("w.bin", "4").bytes(), "m", &ImportOptions::default()),
        Err(ImportError::ExternalData { .. })
    ));
}

#[test]
fn an_initialiser_among_the_inputs_is_a_constant() {
    let mut m = Model::new(9);
    let x = m.input("x", DataType::Float, &[2i64]);
    let w = m.input("w", DataType::Float, &[2i64]);
    m.floats("w", &[2], &[1.0, 2.0]);
    m.node("Add", "y", &[&x, &w], vec![]);
    m.output("y");
    let graph = m.import().unwrap();
    assert_eq!(graph.inputs.len(), 1);
}

#[test]
fn outputs_are_distinct_values_with_the_models_names() {
    let mut m = Model::new(13);
    let x = m.input("x", DataType::Float, &[2i64]);
    m.node("Identity", "same", &[&x], vec![]);
    m.node("Relu", "a", &[&x], vec![]);
    m.node("Identity", "b", &["a"], vec![]);
    ["same", "a", "b"].iter().for_each(|name| m.output(name));
    let graph = transform(m.import().unwrap()).unwrap();
    let names: Vec<&str> = graph.outputs.iter().map(|id| graph.value(*id).name.as_str()).collect();
    assert_eq!(names, ["same", "a", "b"]);
    let found = reference::run(&graph, &[Tensor::floats(DType::F32, vec![2], [-1.0, 2.0])]).unwrap();
    assert_eq!(found.iter().map(Tensor::to_f64).collect::<Vec<_>>(), [[-1.0, 2.0], [0.0, 2.0], [0.0, 2.0]]);
}

#[test]
fn one_graph_serves_every_batch() {
    let model = common::resnet50(2, 32);
    let graph = transform(model.import().unwrap()).unwrap();
    let images = [random_tensor(7, &[1, 3, 32, 32]), random_tensor(8, &[1, 3, 32, 32])];
    let alone: Vec<f64> = images
        .iter()
        .flat_map(|image| reference::run(&graph, std::slice::from_ref(image)).unwrap()[0].to_f64())
        .collect();
    let both = Tensor::floats(DType::F32, vec![2, 3, 32, 32], images.iter().flat_map(Tensor::to_f64));
    assert_eq!(reference::run(&graph, &[both]).unwrap()[0].to_f64(), alone);
    let names: std::collections::BTreeSet<&str> = graph.values.iter().map(|v| v.name.as_str()).collect();
    assert_eq!(names.len(), graph.values.len(), "every value has a name of its own");
    let distinct: std::collections::BTreeSet<u64> = alone.iter().map(|v| v.to_bits()).collect();
    assert!(distinct.len() > 150, "the network's answers are all alike");
}

#[test]
fn trained_models_are_imported_and_transformed() {
    let Ok(folder) = std::env::var("ATOLL_MODELS_DIR") else {
        eprintln!("SKIPPED: ATOLL_MODELS_DIR names no folder with models");
        return;
    };
    for (path, nodes_max, lstms) in [("magika.onnx", 40, 0), ("common_det.onnx", 120, 0), ("silero_vad.onnx", 24, 1)] {
        let path = Path::new(&folder).join(path);
        if !path.exists() {
            eprintln!("SKIPPED: {} is not there", path.display());
            continue;
        }
        let graph = transform(import(&path, &ImportOptions::default()).unwrap()).unwrap();
        assert!(graph.nodes.len() <= nodes_max, "{}: {} nodes", path.display(), graph.nodes.len());
        assert_eq!(graph.nodes.iter().filter(|n| matches!(n.op, Op::Recurrent { .. })).count(), lstms);
        assert!(graph.nodes.iter().all(|n| {
            n.outputs.iter().all(|id| static_shape(&graph.value(*id).shape).is_some() || !graph.symbols.is_empty())
        }));
    }
}

#[test]
fn protobuf_structs_read_what_they_write() {
    let m = common::resnet50(1, 32);
    assert_eq!(ModelProto::decode(&m.bytes()[..]).unwrap(), m.proto);
}
