//! Constants of packed types: unpacked if only their values matter, rejected if the type itself
//! matters.

use crate::common::{Model, int};
use atoll_frontend::onnx::proto::*;
use atoll_frontend::reference;

/// A model with the packed constant `w` of shape `[4]`.
fn model(data_type: DataType, bytes: &[u8]) -> Model {
    let mut m = Model::new(21);
    m.graph().initializer.push(TensorProto {
        name: "w".into(),
        dims: vec![4],
        data_type: data_type as i32,
        raw_data: bytes.to_vec().into(),
        ..TensorProto::default()
    });
    m
}

#[test]
fn packed_constants_are_dequantised() {
    let cases: [(DataType, &[u8], [f64; 4]); 3] = [
        (DataType::Int4, &[0x8f, 0x70], [-0.5, -4.0, 0.0, 3.5]),
        (DataType::Uint2, &[0b1110_0100], [0.0, 0.5, 1.0, 1.5]),
        (DataType::Float8e4m3fn, &[0x38, 0x7e, 0xc0, 0x00], [0.5, 224.0, -1.0, 0.0]),
    ];
    for (data_type, bytes, expected) in cases {
        let mut m = model(data_type, bytes);
        let scale = m.floats("scale", &[], &[0.5]);
        m.node("DequantizeLinear", "y", &["w", &scale], vec![]);
        m.output("y");
        let outputs = reference::run(&m.import().unwrap(), &[]).unwrap();
        assert_eq!(outputs[0].to_f64(), expected, "{data_type:?}");
    }
}

#[test]
fn operators_that_need_the_packed_type_are_refused() {
    let mut quantise = model(DataType::Int4, &[0, 0]);
    let x = quantise.input("x", DataType::Float, &[4i64]);
    let scale = quantise.floats("scale", &[4], &[1.0; 4]);
    quantise.node("QuantizeLinear", "y", &[&x, &scale, "w"], vec![int("axis", 0)]);
    quantise.output("y");
    let mut like = model(DataType::Float8e5m2, &[0; 4]);
    let x = like.input("x", DataType::Float, &[4i64]);
    like.node("CastLike", "y", &[&x, "w"], vec![]);
    like.output("y");
    let mut result = model(DataType::Uint4, &[0, 0]);
    result.output("w");
    for m in [quantise, like, result] {
        let error = m.import().unwrap_err().to_string();
        assert!(error.contains("8 bits or less"), "{error}");
    }
}

#[test]
fn too_few_packed_bytes_are_refused() {
    let mut m = model(DataType::Int4, &[0]);
    m.output("w");
    assert!(m.import().unwrap_err().to_string().contains("needs 2 bytes"));
}
