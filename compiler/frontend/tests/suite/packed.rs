//! Narrow types: constants that a file stores packed, conversion, and operators that refuse them.

use crate::common::{Model, int};
use atoll_frontend::onnx::proto::*;
use atoll_frontend::reference;
use atoll_frontend::tensor::Tensor;
use atoll_kgraph::DType;

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
fn numbers_are_quantised_to_narrow_types() {
    for (data_type, expected) in [
        (DataType::Int4, [-8.0, -2.0, 2.0, 7.0]),
        (DataType::Uint2, [0.0, 0.0, 2.0, 3.0]),
        (DataType::Float8e4m3fn, [-448.0, -2.5, 2.5, 448.0]),
        (DataType::Float4e2m1, [-6.0, -2.0, 2.0, 6.0]),
    ] {
        let mut m = model(data_type, &[0; 4][..bytes_of(data_type)]);
        let x = m.input("x", DataType::Float, &[4i64]);
        let scale = m.floats("scale", &[4], &[2.0; 4]);
        m.node("QuantizeLinear", "y", &[&x, &scale, "w"], vec![int("axis", 0)]);
        m.output("y");
        let x = Tensor::floats(DType::F32, vec![4], [-1e4, -5.0, 5.0, 1e4]);
        let outputs = reference::run(&m.import().unwrap(), &[x]).unwrap();
        assert_eq!(outputs[0].to_f64(), expected, "{data_type:?}");
    }
}

/// Bytes of four elements.
fn bytes_of(data_type: DataType) -> usize {
    match data_type {
        DataType::Uint2 => 1,
        DataType::Int4 | DataType::Float4e2m1 => 2,
        _ => 4,
    }
}

#[test]
fn a_cast_saturates_unless_the_model_says_otherwise() {
    for (saturate, expected) in [(1, [448.0, -448.0, 0.5]), (0, [f64::NAN, f64::NAN, 0.5])] {
        let mut m = Model::new(19);
        let x = m.input("x", DataType::Float, &[3i64]);
        let attributes = vec![int("to", DataType::Float8e4m3fn as i64), int("saturate", saturate)];
        m.node("Cast", "y", &[&x], attributes);
        m.output("y");
        let x = Tensor::floats(DType::F32, vec![3], [1e6, f64::NEG_INFINITY, 0.51]);
        let found = reference::run(&m.import().unwrap(), &[x]).unwrap()[0].clone();
        assert_eq!(found.dtype, DType::F8e4m3fn);
        let is_same = |(a, b): (f64, f64)| a == b || (a.is_nan() && b.is_nan());
        assert!(found.to_f64().into_iter().zip(expected).all(is_same), "{found:?}");
    }
}

#[test]
fn packed_constants_are_moved_and_returned() {
    let mut m = model(DataType::Int4, &[0x8f, 0x70]);
    let shape = m.ints("shape", &[2, 2]);
    m.node("Reshape", "square", &["w", &shape], vec![]);
    m.node("Transpose", "y", &["square"], vec![]);
    m.output("y");
    let outputs = reference::run(&m.import().unwrap(), &[]).unwrap();
    assert_eq!(outputs[0], Tensor::ints(DType::I4, vec![2, 2], [-1, 0, -8, 7]));
}

#[test]
fn operators_that_compute_refuse_narrow_types() {
    for (operator, operands) in [("Add", 2), ("Relu", 1), ("MatMul", 2), ("Max", 2)] {
        let mut m = model(DataType::Float8e5m2, &[0; 4]);
        m.node(operator, "y", &["w"; 2][..operands], vec![]);
        m.output("y");
        let error = m.import().unwrap_err().to_string();
        assert!(error.contains("type f8e5m2, in which no kernel computes"), "{error}");
    }
}

#[test]
fn too_few_packed_bytes_are_refused() {
    let mut m = model(DataType::Int4, &[0]);
    m.output("w");
    assert!(m.import().unwrap_err().to_string().contains("needs 2 bytes"));
}
