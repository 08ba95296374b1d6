//! Models whose control flow is decided at run time. Their inputs lead to different decisions.

#![allow(dead_code, reason = "each of the two crates uses a part")]

use atoll_frontend::onnx::proto::*;
use atoll_frontend::tensor::Tensor;
use atoll_kgraph::DType;

/// A model, and the inputs of several runs.
pub(crate) struct Flow {
    pub(crate) name: &'static str,
    pub(crate) proto: ModelProto,
    pub(crate) runs: Vec<Vec<Tensor>>,
}

const FLOAT: i32 = 1;
const INT64: i32 = 7;
const BOOL: i32 = 9;

fn names(names: &str) -> Vec<String> {
    names.split_whitespace().map(|name| if name == "-" { String::new() } else { name.to_owned() }).collect()
}

/// A node. Operands and results are separated by spaces; `-` stands for an omitted one.
fn node(op: &str, inputs: &str, outputs: &str) -> NodeProto {
    NodeProto { op_type: op.into(), input: names(inputs), output: names(outputs), ..NodeProto::default() }
}

fn with(mut node: NodeProto, attributes: Vec<AttributeProto>) -> NodeProto {
    node.attribute = attributes;
    node
}

fn number(name: &str, i: i64) -> AttributeProto {
    AttributeProto { name: name.into(), i, r#type: AttributeType::Int as i32, ..AttributeProto::default() }
}

fn numbers(name: &str, ints: &[i64]) -> AttributeProto {
    let ints = ints.to_vec();
    AttributeProto { name: name.into(), ints, r#type: AttributeType::Ints as i32, ..AttributeProto::default() }
}

fn subgraph(name: &str, inputs: &str, nodes: Vec<NodeProto>, outputs: &str) -> AttributeProto {
    let values =
        |list: &str| names(list).into_iter().map(|name| ValueInfoProto { name, ..ValueInfoProto::default() }).collect();
    let graph = GraphProto { node: nodes, input: values(inputs), output: values(outputs), ..GraphProto::default() };
    let r#type = AttributeType::Graph as i32;
    AttributeProto { name: name.into(), g: Some(graph), r#type, ..AttributeProto::default() }
}

/// A graph input. `dims` are numbers or names, separated by spaces.
fn input(name: &str, elem_type: i32, dims: &str) -> ValueInfoProto {
    let dim = |dim: &str| {
        let value = dim.parse().map_or_else(|_| DimensionValue::DimParam(dim.into()), DimensionValue::DimValue);
        Dimension { value: Some(value) }
    };
    let shape = Some(TensorShapeProto { dim: dims.split_whitespace().map(dim).collect() });
    let tensor_type = Some(TensorTypeProto { elem_type, shape });
    ValueInfoProto {
        name: name.into(),
        r#type: Some(TypeProto { tensor_type, ..TypeProto::default() }),
        ..ValueInfoProto::default()
    }
}

fn constant(name: &str, dims: &[i64], values: &[f32]) -> TensorProto {
    let raw_data = values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>().into();
    TensorProto { name: name.into(), dims: dims.to_vec(), data_type: FLOAT, raw_data, ..TensorProto::default() }
}

fn integers(name: &str, dims: &[i64], values: &[i64]) -> TensorProto {
    let int64_data = values.to_vec();
    TensorProto { name: name.into(), dims: dims.to_vec(), data_type: INT64, int64_data, ..TensorProto::default() }
}

/// A model with these nodes, and the constants that they use.
pub(crate) fn model(inputs: Vec<ValueInfoProto>, nodes: Vec<NodeProto>, outputs: &str) -> ModelProto {
    let weights: Vec<f32> = (0..16).map(|i| ((i * 7) % 11) as f32 / 8.0 - 0.6).collect();
    let initializer = vec![
        constant("w", &[4, 4], &weights),
        constant("half", &[], &[0.5]),
        constant("limit", &[], &[40.0]),
        integers("zero", &[1], &[0]),
        integers("one", &[], &[1]),
        integers("two", &[], &[2]),
        integers("six", &[1], &[6]),
        integers("one_four", &[2], &[1, 4]),
        integers("two_three", &[2], &[2, 3]),
        integers("many", &[], &[i64::MAX]),
    ];
    let output = names(outputs).into_iter().map(|name| ValueInfoProto { name, ..ValueInfoProto::default() });
    let graph = GraphProto {
        name: "flow".into(),
        node: nodes,
        input: inputs,
        output: output.collect(),
        initializer,
        ..GraphProto::default()
    };
    let opset_import = vec![OperatorSetIdProto { domain: String::new(), version: 17 }];
    ModelProto { ir_version: 8, graph: Some(graph), opset_import, ..ModelProto::default() }
}

/// A loop with a body. `operands` are its trip count, its condition and the initial states.
pub(crate) fn looping(operands: &str, results: &str, body: (&str, Vec<NodeProto>, &str)) -> NodeProto {
    with(node("Loop", operands, results), vec![subgraph("body", body.0, body.1, body.2)])
}

/// A branch: its nodes and results.
pub(crate) type Branch<'a> = (Vec<NodeProto>, &'a str);

pub(crate) fn choice(condition: &str, results: &str, then: Branch<'_>, other: Branch<'_>) -> NodeProto {
    let branches = vec![subgraph("then_branch", "", then.0, then.1), subgraph("else_branch", "", other.0, other.1)];
    with(node("If", condition, results), branches)
}

fn floats(shape: &[usize], first: f64) -> Tensor {
    let count = shape.iter().product::<usize>();
    Tensor::floats(DType::F32, shape.to_vec(), (0..count).map(|i| first + i as f64 / 4.0 - (i % 3) as f64))
}

fn int(value: i64) -> Tensor {
    Tensor::ints(DType::I64, vec![], [value])
}

fn truth(value: i64) -> Tensor {
    Tensor::ints(DType::Bool, vec![], [value])
}

/// An `If`. One branch has a matrix product; a result of the other is a view of an operand.
fn branches() -> Flow {
    let then = vec![node("MatMul", "x w", "a"), node("ReduceSum", "a zero", "b")];
    let other = vec![node("Neg", "x", "n"), node("Relu", "n", "d"), node("Reshape", "row one_four", "e")];
    let flow = choice("c", "y z", (then, "a b"), (other, "d e"));
    let inputs = vec![input("x", FLOAT, "3 4"), input("row", FLOAT, "4 1"), input("c", BOOL, "")];
    let nodes = vec![flow, node("Add", "y z", "sum")];
    let runs = [0, 1].map(|c| vec![floats(&[3, 4], 0.5), floats(&[4, 1], 9.0), truth(c)]);
    Flow { name: "branches", proto: model(inputs, nodes, "y sum"), runs: runs.into() }
}

/// A loop whose number of iterations is an input, without a condition.
fn counted() -> Flow {
    let body = vec![node("Identity", "go", "next"), node("Mul", "v half", "h"), node("Add", "h x", "u")];
    let nodes = vec![looping("n - x", "y", ("i go v", body, "next u"))];
    let inputs = vec![input("x", FLOAT, "5"), input("n", INT64, "")];
    let runs = [0, 1, 7, -2].map(|n| vec![floats(&[5], 1.0), int(n)]);
    Flow { name: "counted", proto: model(inputs, nodes, "y"), runs: runs.into() }
}

/// A loop with only a condition, which may be false before the first iteration.
fn until() -> Flow {
    let body = vec![node("Add", "v v", "u"), node("Less", "u limit", "l"), node("Squeeze", "l zero", "next")];
    let nodes = vec![looping("many c x", "y", ("i go v", body, "next u"))];
    let inputs = vec![input("x", FLOAT, "1"), input("c", BOOL, "")];
    let runs = [(0, 1.5), (1, 1.5), (1, 100.0)].map(|(c, x)| vec![floats(&[1], x), truth(c)]);
    Flow { name: "until", proto: model(inputs, nodes, "y"), runs: runs.into() }
}

/// A loop that stacks rows and that its condition may end early. `count` names the number of
/// iterations.
fn stacked(name: &'static str, count: &str) -> Flow {
    let body = vec![
        node("Add", "v v", "u"),
        with(node("Cast", "i", "number"), vec![number("to", 1)]),
        node("Add", "u number", "row"),
        with(node("ReduceMax", "u", "m"), vec![number("keepdims", 0)]),
        node("Less", "m limit", "next"),
    ];
    let nodes = vec![
        node("Add", "n one", "more"),
        looping(&format!("{count} - x"), "y rows", ("i go v", body, "next u row")),
        with(node("ReduceSum", "rows zero", "sum"), vec![number("keepdims", 0)]),
    ];
    let inputs = vec![input("x", FLOAT, "2"), input("n", INT64, "")];
    let runs = [(0, 1.0), (1, 1.0), (3, 1.0), (20, 1.0), (9, 50.0)].map(|(n, x)| vec![floats(&[2], x), int(n)]);
    Flow { name, proto: model(inputs, nodes, "y rows sum"), runs: runs.into() }
}

/// A loop that exchanges states, some of them as views, and has a state that no iteration changes.
fn exchanged() -> Flow {
    let body = vec![
        node("Identity", "go", "next"),
        node("Identity", "b", "a2"),
        node("Identity", "a", "b2"),
        node("Reshape", "e two_three", "d2"),
        node("Reshape", "d six", "e2"),
        node("Identity", "k", "k2"),
        node("Add", "s k", "s2"),
    ];
    let body = ("i go a b d e k s", body, "next a2 b2 d2 e2 k2 s2");
    let nodes = vec![looping("n - x y z u x x", "p q r t k o", body)];
    let inputs = vec![
        input("x", FLOAT, "2"),
        input("y", FLOAT, "2"),
        input("z", FLOAT, "2 3"),
        input("u", FLOAT, "6"),
        input("n", INT64, ""),
    ];
    let run = |n| vec![floats(&[2], 1.0), floats(&[2], 5.0), floats(&[2, 3], 2.0), floats(&[6], 7.0), int(n)];
    Flow { name: "exchanged", proto: model(inputs, nodes, "p q r t k o"), runs: (0..4).map(run).collect() }
}

/// A loop whose body has an `If` with a loop in one branch. Their decisions depend on the
/// iteration.
fn nested() -> Flow {
    let inner = vec![node("Identity", "on", "still"), node("Add", "s x", "t")];
    let inner = looping("i - v", "b", ("j on s", inner, "still t"));
    let body = vec![
        node("Identity", "go", "next"),
        node("Mod", "i two", "rest"),
        node("Equal", "rest one", "odd"),
        choice("odd", "u", (vec![node("MatMul", "v w", "a")], "a"), (vec![inner], "b")),
    ];
    let nodes = vec![looping("n - x", "y", ("i go v", body, "next u"))];
    let inputs = vec![input("x", FLOAT, "2 4"), input("n", INT64, "")];
    let runs = (0..6).map(|n| vec![floats(&[2, 4], 0.25), int(n)]).collect();
    Flow { name: "nested", proto: model(inputs, nodes, "y"), runs }
}

/// A scan whose length is a named size, in both directions and along different axes.
fn scanned() -> Flow {
    let body = vec![node("Add", "s p", "s2"), node("Mul", "s2 q", "o1"), node("Sub", "s2 q", "o2")];
    let attributes = vec![
        number("num_scan_inputs", 2),
        numbers("scan_input_axes", &[0, 1]),
        numbers("scan_input_directions", &[0, 1]),
        numbers("scan_output_axes", &[0, -1]),
        numbers("scan_output_directions", &[1, 0]),
        subgraph("body", "s p q", body, "s2 o1 o2"),
    ];
    let nodes = vec![with(node("Scan", "x a b", "t y z"), attributes)];
    let inputs = vec![input("x", FLOAT, "2"), input("a", FLOAT, "steps 2"), input("b", FLOAT, "2 steps")];
    let run = |steps: usize| vec![floats(&[2], 1.0), floats(&[steps, 2], 2.0), floats(&[2, steps], 3.0)];
    Flow { name: "scanned", proto: model(inputs, nodes, "t y z"), runs: [1, 2, 9].map(run).into() }
}

/// All models.
pub(crate) fn all() -> Vec<Flow> {
    vec![
        branches(),
        counted(),
        until(),
        stacked("stacked", "n"),
        stacked("stacked_computed", "more"),
        exchanged(),
        nested(),
        scanned(),
    ]
}
