//! Functions, subgraphs and sequences that are rejected, and the messages. Their results are tested
//! by `cases`, written by `make_graph_cases.py`.

use crate::common::{Dim, Model, int};
use atoll_frontend::onnx::proto::*;
use atoll_frontend::reference;
use atoll_frontend::tensor::Tensor;
use atoll_kgraph::DType;

fn refused(model: &Model) -> String {
    model.import().unwrap_err().to_string()
}

fn node(op: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
    let names = |names: &[&str]| names.iter().map(|name| name.to_string()).collect();
    NodeProto { op_type: op.into(), input: names(inputs), output: names(outputs), ..NodeProto::default() }
}

fn value(name: &str) -> ValueInfoProto {
    ValueInfoProto { name: name.into(), ..ValueInfoProto::default() }
}

fn graph(name: &str, inputs: &[&str], nodes: Vec<NodeProto>, outputs: &[&str]) -> AttributeProto {
    let values = |names: &[&str]| names.iter().map(|name| value(name)).collect();
    let graph = GraphProto { node: nodes, input: values(inputs), output: values(outputs), ..GraphProto::default() };
    AttributeProto {
        name: name.into(),
        g: Some(graph),
        r#type: AttributeType::Graph as i32,
        ..AttributeProto::default()
    }
}

fn function(name: &str, inputs: &[&str], nodes: Vec<NodeProto>, outputs: &[&str]) -> FunctionProto {
    let names = |names: &[&str]| names.iter().map(|name| name.to_string()).collect();
    let opset_import = vec![
        OperatorSetIdProto { domain: String::new(), version: 17 },
        OperatorSetIdProto { domain: "local".into(), version: 1 },
    ];
    FunctionProto {
        name: name.into(),
        domain: "local".into(),
        input: names(inputs),
        output: names(outputs),
        node: nodes,
        opset_import,
        ..FunctionProto::default()
    }
}

fn call(name: &str, input: &str, output: &str) -> NodeProto {
    NodeProto { domain: "local".into(), ..node(name, &[input], &[output]) }
}

/// A model `y = local.first(x)` with functions.
fn calling(functions: Vec<FunctionProto>) -> Model {
    let mut m = Model::new(17);
    m.proto.opset_import.push(OperatorSetIdProto { domain: "local".into(), version: 1 });
    m.input("x", DataType::Float, &[2i64]);
    m.graph().node.push(call("first", "x", "y"));
    m.output("y");
    m.proto.functions = functions;
    m
}

#[test]
fn a_function_that_calls_itself_is_refused() {
    let text = refused(&calling(vec![
        function("first", &["a"], vec![call("second", "a", "b")], &["b"]),
        function("second", &["a"], vec![call("first", "a", "b")], &["b"]),
    ]));
    assert!(text.contains("function first calls itself"), "{text}");
}

#[test]
fn functions_do_not_grow_without_bound() {
    let names: Vec<String> = (0..40).map(|i| if i == 0 { "first".into() } else { format!("f{i}") }).collect();
    let mut functions: Vec<FunctionProto> = names
        .windows(2)
        .map(|pair| function(&pair[0], &["a"], vec![call(&pair[1], "a", "b"), call(&pair[1], "b", "c")], &["c"]))
        .collect();
    functions.push(function("f39", &["a"], vec![node("Neg", &["a"], &["b"])], &["b"]));
    let text = refused(&calling(functions));
    assert!(text.contains("functions inlined"), "{text}");
}

#[test]
fn a_function_has_its_own_names_and_operator_sets() {
    let text = refused(&calling(vec![function("first", &["a"], vec![node("Add", &["a", "x"], &["b"])], &["b"])]));
    assert!(text.contains("reads x, which nothing defines"), "{text}");
    let mut old = function("first", &["a"], vec![node("Neg", &["a"], &["b"])], &["b"]);
    old.opset_import[0].version = 0;
    let text = refused(&calling(vec![old]));
    assert!(text.contains("opset 0"), "{text}");
}

#[test]
fn a_computed_condition_cannot_decide_about_shapes() {
    let mut m = Model::new(17);
    m.input("x", DataType::Float, &[Dim::N(2), Dim::N(1)]);
    m.input("c", DataType::Bool, &[] as &[i64]);
    let mut choice = node("If", &["c"], &["y"]);
    let axis = |name: &str| NodeProto { attribute: vec![int("axis", 0)], ..node("Flatten", &["x"], &[name]) };
    choice.attribute = vec![
        graph("then_branch", &[], vec![axis("a")], &["a"]),
        graph("else_branch", &[], vec![node("Neg", &["x"], &["b"])], &["b"]),
    ];
    m.graph().node.push(choice);
    m.output("y");
    let text = refused(&m);
    assert!(text.contains("[1, 2]") && text.contains("[2, 1]"), "{text}");
}

#[test]
fn a_sequence_is_not_a_tensor() {
    let mut m = Model::new(17);
    m.input("x", DataType::Float, &[2i64]);
    m.node("SequenceConstruct", "s", &["x", "x"], vec![]);
    m.node("Neg", "y", &["s"], vec![]);
    m.output("y");
    assert!(refused(&m).contains("operand 0 is a sequence"), "{}", refused(&m));
    m.graph().node.pop();
    let position = m.ints("position", &[2]);
    m.node("SequenceAt", "y", &["s", &position], vec![]);
    assert!(refused(&m).contains("position 2 is out of range for a sequence of 2 tensors"), "{}", refused(&m));
}

#[test]
fn an_unusual_layer_needs_a_known_number_of_steps() {
    let mut m = Model::new(17);
    m.input("x", DataType::Float, &[Dim::S("steps"), Dim::N(1), Dim::N(2)]);
    let (w, r) = (m.floats("w", &[1, 3, 2], &[0.5; 6]), m.floats("r", &[1, 3, 1], &[0.5; 3]));
    m.node("GRU", "y", &["x", &w, &r], vec![int("hidden_size", 1)]);
    m.output("y");
    let text = refused(&m);
    assert!(text.contains("linear_before_reset = 0") && text.contains("symbolic size"), "{text}");
    m.graph().node[0].attribute.push(int("linear_before_reset", 1));
    assert_eq!(m.import().unwrap().nodes.len(), 1);
}

#[test]
fn invalid_values_in_a_branch_not_taken_are_no_error() {
    let mut m = Model::new(17);
    m.input("x", DataType::Int64, &[4i64]);
    m.input("i", DataType::Int64, &[2i64]);
    m.input("c", DataType::Bool, &[] as &[i64]);
    let mut choice = node("If", &["c"], &["y"]);
    let picked = vec![node("Gather", &["x", "i"], &["g"]), node("Div", &["g", "i"], &["then"])];
    choice.attribute = vec![
        graph("then_branch", &[], picked, &["then"]),
        graph("else_branch", &[], vec![node("Identity", &["i"], &["else"])], &["else"]),
    ];
    m.graph().node.push(choice);
    m.output("y");
    let graph = m.import().unwrap();
    let run = |i: [i64; 2], c: i64| {
        let inputs = [
            Tensor::ints(DType::I64, vec![4], [10, 20, 30, 40]),
            Tensor::ints(DType::I64, vec![2], i),
            Tensor::ints(DType::Bool, vec![], [c]),
        ];
        reference::run(&graph, &inputs).map(|outputs| outputs[0].to_f64())
    };
    assert_eq!(run([1, 2], 1), Ok(vec![20.0, 15.0]));
    assert_eq!(run([1, 99], 0), Ok(vec![1.0, 99.0]), "an index outside, in the branch that is not taken");
    assert_eq!(run([0, 2], 0), Ok(vec![0.0, 2.0]), "a division by zero there");
}
