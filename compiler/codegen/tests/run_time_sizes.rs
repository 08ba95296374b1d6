//! Kernels of operators whose result size depends on values.

mod common;

use atoll_frontend::onnx::proto::{
    Dimension, DimensionValue, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorShapeProto,
    TensorTypeProto, TypeProto, ValueInfoProto,
};
use atoll_frontend::onnx::{ImportOptions, import_model};
use atoll_frontend::tensor::Tensor;
use atoll_kgraph::DType;
use common::Model;
use common::device::{check, levels};

fn input(name: &str, elem_type: i32, dims: &[&str]) -> ValueInfoProto {
    let dim = dims.iter().map(|dim| Dimension { value: Some(DimensionValue::DimParam((*dim).into())) }).collect();
    let tensor_type = Some(TensorTypeProto { elem_type, shape: Some(TensorShapeProto { dim }) });
    ValueInfoProto {
        name: name.into(),
        r#type: Some(TypeProto { tensor_type, ..TypeProto::default() }),
        ..ValueInfoProto::default()
    }
}

/// `y = op(inputs)` and `z = y + y`.
fn model(op: &str, inputs: Vec<ValueInfoProto>, tensors: Vec<Tensor>) -> Model {
    let node = |op: &str, input: Vec<String>, output: &str| NodeProto {
        op_type: op.into(),
        name: output.into(),
        input,
        output: vec![output.into()],
        ..NodeProto::default()
    };
    let names = inputs.iter().map(|input| input.name.clone()).collect();
    let result = |name: &str| ValueInfoProto { name: name.into(), ..ValueInfoProto::default() };
    let graph = GraphProto {
        name: op.into(),
        node: vec![node(op, names, "y"), node("Add", vec!["y".into(), "y".into()], "z")],
        input: inputs,
        output: vec![result("y"), result("z")],
        ..GraphProto::default()
    };
    let opset_import = vec![OperatorSetIdProto { domain: String::new(), version: 13 }];
    let proto = ModelProto { ir_version: 8, graph: Some(graph), opset_import, ..ModelProto::default() };
    let graph = import_model(&proto, op, None, &ImportOptions::default()).expect("a model");
    let mut model = Model::new(op);
    model.graph = atoll_frontend::transform::transform(graph).expect("a graph");
    model.inputs = tensors;
    model
}

#[test]
fn selections_of_every_size_are_correct() {
    let levels = levels();
    for share in [0, 1, 3, 10] {
        let chosen = |i: usize| i64::from(share > 0 && (i * 7919) % 10 < share);
        for shape in [[1, 1], [5, 7], [40, 33]] {
            let count = shape[0] * shape[1];
            let x = Tensor::floats(DType::F32, shape.to_vec(), (0..count).map(|i| (chosen(i) * 2) as f64 - 0.0));
            check(&model("NonZero", vec![input("x", 1, &["n", "m"])], vec![x.clone()]), &levels);
            let condition = Tensor::ints(DType::Bool, vec![count], (0..count).map(chosen).collect::<Vec<_>>());
            let inputs = vec![input("x", 1, &["n", "m"]), input("condition", 9, &["rows"])];
            check(&model("Compress", inputs, vec![x, condition]), &levels);
        }
    }
}
