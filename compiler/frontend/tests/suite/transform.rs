//! What each pass does, on small graphs. Every graph is run before and after the passes.

use crate::common;
use crate::common::{Dim, Model, conv_bn, int, ints, random_tensor};
use atoll_frontend::onnx::proto::{AttributeProto, DataType};
use atoll_frontend::tensor::Tensor;
use atoll_frontend::tensor_graph::{Op, TensorGraph};
use atoll_frontend::transform::{PASSES, transform_with};
use atoll_kgraph::DType;

/// The operators of a graph, in order.
fn ops(graph: &TensorGraph) -> Vec<&'static str> {
    graph.nodes.iter().map(|n| n.op.name()).collect()
}

#[test]
fn resnet50_becomes_convolutions_and_little_else() {
    let (graph, _) = common::resnet50(2, 32).transformed(&[random_tensor(3, &[2, 3, 32, 32])]);
    let count = |name: &str| ops(&graph).iter().filter(|op| **op == name).count();
    assert_eq!((count("conv"), count("matmul"), count("pointwise"), graph.nodes.len()), (53, 1, 0, 57), "{graph}");
}

#[test]
fn batch_normalisation_in_every_form_is_folded_into_the_weights() {
    let mut m = Model::new(9);
    let x = m.input("x", DataType::Float, &[1i64, 3, 5, 5]);
    let y = conv_bn(&mut m, "block", &x, [3, 4], [3, 1], false);
    // Caffe's scale layer: a product and a sum after the normalisation.
    let scale = m.random("scale", &[4, 1, 1], 1.0, 0.5);
    let shift = m.random("shift", &[4, 1, 1], 0.0, 0.5);
    let y = m.node("Mul", "scaled", &[&scale, &y], vec![]);
    let y = m.node("Add", "shifted", &[&y, &shift], vec![]);
    let half = m.floats("half", &[], &[0.5]);
    m.node("Div", "doubled", &[&y, &half], vec![]);
    m.output("doubled");
    let (graph, _) = m.transformed(&[random_tensor(1, &[1, 3, 5, 5])]);
    assert_eq!(ops(&graph), ["conv"], "{graph}");
    let Op::Conv(conv) = &graph.nodes[0].op else { panic!() };
    assert_eq!(conv.epilogue.steps.len(), 1, "one bias is left");
}

#[test]
fn a_scale_is_not_folded_if_another_node_reads_the_bare_result() {
    let mut m = Model::new(13);
    let x = m.input("x", DataType::Float, &[1i64, 3, 5, 5]);
    let w = m.random("w", &[4, 3, 1, 1], 0.0, 0.5);
    let y = m.node("Conv", "conv", &[&x, &w], vec![]);
    let two = m.floats("two", &[1], &[2.0]);
    m.node("Mul", "twice", &[&y, &two], vec![]);
    m.output("conv");
    m.output("twice");
    let (graph, _) = m.transformed(&[random_tensor(1, &[1, 3, 5, 5])]);
    assert_eq!(ops(&graph), ["conv", "pointwise"]);
}

#[test]
fn a_sum_of_two_convolutions_is_the_epilogue_of_the_later_one() {
    let mut m = Model::new(13);
    let x = m.input("x", DataType::Float, &[Dim::S("n"), Dim::N(3), Dim::N(4), Dim::N(4)]);
    let a = conv_bn(&mut m, "a", &x, [3, 4], [3, 1], true);
    let b = conv_bn(&mut m, "b", &x, [3, 4], [1, 1], false);
    let sum = m.node("Add", "sum", &[&a, &b], vec![]);
    m.node("Relu", "y", &[&sum], vec![]);
    m.output("y");
    let (graph, _) = m.transformed(&[random_tensor(1, &[2, 3, 4, 4])]);
    assert_eq!(ops(&graph), ["conv", "conv"], "{graph}");
    assert_eq!(graph.nodes[1].inputs.len(), 4, "input, weights, bias and the other sum");
}

#[test]
fn an_activation_that_reads_twice_fits_an_epilogue() {
    let mut m = Model::new(13);
    let x = m.input("x", DataType::Float, &[1i64, 3, 4, 4]);
    let y = conv_bn(&mut m, "conv", &x, [3, 4], [3, 1], false);
    let gate = m.node("Sigmoid", "gate", &[&y], vec![]);
    m.node("Mul", "silu", &[&y, &gate], vec![]);
    m.output("silu");
    let (graph, _) = m.transformed(&[random_tensor(1, &[1, 3, 4, 4])]);
    assert_eq!(ops(&graph), ["conv"], "{graph}");
}

#[test]
fn a_decomposed_layer_normalisation_is_fused() {
    let mut m = Model::new(13);
    let x = m.input("x", DataType::Float, &[Dim::S("n"), Dim::N(5), Dim::N(8)]);
    let last = || vec![ints("axes", &[-1])];
    let mean = m.node("ReduceMean", "mean", &[&x], last());
    let centred = m.node("Sub", "centred", &[&x, &mean], vec![]);
    let two = m.floats("two", &[], &[2.0]);
    let square = m.node("Pow", "square", &[&centred, &two], vec![]);
    let variance = m.node("ReduceMean", "variance", &[&square], last());
    let epsilon = m.floats("epsilon", &[], &[1e-12]);
    let raised = m.node("Add", "raised", &[&variance, &epsilon], vec![]);
    let deviation = m.node("Sqrt", "deviation", &[&raised], vec![]);
    let normal = m.node("Div", "normal", &[&centred, &deviation], vec![]);
    let (scale, bias) = (m.random("scale", &[8], 1.0, 0.3), m.random("bias", &[8], 0.0, 0.3));
    let scaled = m.node("Mul", "scaled", &[&normal, &scale], vec![]);
    m.node("Add", "y", &[&scaled, &bias], vec![]);
    m.output("y");
    let (graph, _) = m.transformed(&[random_tensor(1, &[3, 5, 8])]);
    assert_eq!(ops(&graph), ["layer_norm"], "{graph}");
    assert_eq!(graph.nodes[0].inputs.len(), 3);
}

#[test]
fn gelu_of_a_product_is_its_epilogue() {
    let mut m = Model::new(13);
    let x = m.input("x", DataType::Float, &[Dim::S("n"), Dim::S("length"), Dim::N(8)]);
    let (w, b) = (m.random("w", &[8, 16], 0.0, 0.5), m.random("b", &[16], 0.0, 0.5));
    let y = m.node("MatMul", "product", &[&x, &w], vec![]);
    let y = m.node("Add", "biased", &[&b, &y], vec![]);
    let (root, one, half) = (
        m.floats("root", &[], &[std::f32::consts::SQRT_2]),
        m.floats("one", &[], &[1.0]),
        m.floats("half", &[], &[0.5]),
    );
    let scaled = m.node("Div", "scaled", &[&y, &root], vec![]);
    let erf = m.node("Erf", "erf", &[&scaled], vec![]);
    let raised = m.node("Add", "raised", &[&erf, &one], vec![]);
    let product = m.node("Mul", "gated", &[&y, &raised], vec![]);
    m.node("Mul", "gelu", &[&product, &half], vec![]);
    m.output("gelu");
    let (graph, _) = m.transformed(&[random_tensor(1, &[2, 3, 8])]);
    assert_eq!(ops(&graph), ["matmul"], "{graph}");
}

#[test]
fn broadcasts_vanish_and_producers_with_other_readers_stay() {
    let mut m = Model::new(13);
    let x = m.input("x", DataType::Float, &[Dim::S("n"), Dim::N(1)]);
    let y = m.input("y", DataType::Float, &[Dim::S("n"), Dim::N(6)]);
    let shape = m.node("Shape", "shape", &[&y], vec![]);
    let wide = m.node("Expand", "wide", &[&x, &shape], vec![]);
    let sum = m.node("Add", "sum", &[&wide, &y], vec![]);
    m.node("Mul", "product", &[&wide, &sum], vec![]);
    m.node("Exp", "exp", &[&sum], vec![]);
    m.output("product");
    m.output("exp");
    let (graph, _) = m.transformed(&[random_tensor(1, &[3, 1]), random_tensor(2, &[3, 6])]);
    assert_eq!(ops(&graph), ["pointwise"; 3], "{graph}");
    // A smaller producer is computed once, not for every element of its consumer.
    let mut m = Model::new(13);
    let x = m.input("x", DataType::Float, &[6i64, 1]);
    let y = m.input("y", DataType::Float, &[6i64, 9]);
    let root = m.node("Exp", "root", &[&x], vec![]);
    m.node("Div", "quotient", &[&y, &root], vec![]);
    m.output("quotient");
    assert_eq!(ops(&m.transformed(&[random_tensor(1, &[6, 1]), random_tensor(2, &[6, 9])]).0).len(), 2);
}

#[test]
fn one_dimensional_convolutions_absorb_their_activations() {
    let mut m = Model::new(13);
    let mut x = m.input("x", DataType::Float, &[Dim::S("n"), Dim::N(3), Dim::N(16)]);
    for layer in 0..3 {
        let w = m.random(&format!("w{layer}"), &[3, 3, 3], 0.0, 0.5);
        let y = m.node("Conv", &format!("conv{layer}"), &[&x, &w], vec![ints("pads", &[1, 1])]);
        let scale = m.random(&format!("scale{layer}"), &[3, 1], 1.0, 0.5);
        let y = m.node("Mul", &format!("scaled{layer}"), &[&y, &scale], vec![]);
        x = m.node("Relu", &format!("relu{layer}"), &[&y], vec![]);
    }
    m.output(&x);
    let (graph, _) = m.transformed(&[random_tensor(1, &[2, 3, 16])]);
    assert_eq!(ops(&graph), ["reshape", "conv", "conv", "conv", "reshape"], "{graph}");
}

#[test]
fn the_scaling_after_split_heads_is_fused_into_the_product() {
    let mut m = Model::new(13);
    let x = m.input("x", DataType::Float, &[Dim::S("n"), Dim::N(4), Dim::N(6)]);
    let w = m.random("w", &[6, 6], 0.0, 0.5);
    let y = m.node("MatMul", "q", &[&x, &w], vec![]);
    let heads = m.ints("heads", &[0, 0, 2, 3]);
    let y = m.node("Reshape", "split", &[&y, &heads], vec![]);
    let y = m.node("Transpose", "turned", &[&y], vec![ints("perm", &[0, 2, 1, 3])]);
    let eight = m.floats("eight", &[], &[8.0]);
    m.node("Div", "scaled", &[&y, &eight], vec![]);
    m.output("scaled");
    let (graph, _) = m.transformed(&[random_tensor(1, &[2, 4, 6])]);
    assert_eq!(ops(&graph), ["matmul", "reshape", "transpose"], "{graph}");
}

#[test]
fn equal_nodes_and_chains_of_moves_are_merged() {
    let mut m = Model::new(13);
    let x = m.input("x", DataType::Float, &[4i64, 6, 2]);
    let perm = |p: &[i64]| -> Vec<AttributeProto> { vec![ints("perm", p)] };
    let a = m.node("Transpose", "a", &[&x], perm(&[1, 0, 2]));
    let b = m.node("Transpose", "b", &[&a], perm(&[1, 0, 2]));
    let (from, to, axes, steps) =
        (m.ints("from", &[1]), m.ints("to", &[i64::MAX]), m.ints("axes", &[1]), m.ints("steps", &[2]));
    let c = m.node("Slice", "c", &[&b, &from, &to, &axes, &steps], vec![]);
    let d = m.node("Slice", "d", &[&c, &from, &to, &axes], vec![]);
    let e = m.node("Exp", "e", &[&d], vec![]);
    let f = m.node("Exp", "f", &[&d], vec![]);
    let sums = vec![int("axis", 0)];
    m.node("Concat", "y", &[&e, &f], sums);
    m.output("y");
    let (graph, _) = m.transformed(&[random_tensor(1, &[4, 6, 2])]);
    assert_eq!(ops(&graph), ["slice", "pointwise", "concat"], "{graph}");
}

#[test]
fn the_callback_sees_every_pass_and_the_text_is_stable() {
    let mut m = Model::new(13);
    let x = m.input("x", DataType::Float, &[Dim::S("batch"), Dim::N(4)]);
    let w = m.floats("w", &[4, 1], &[0.5; 4]);
    let y = m.node("MatMul", "product", &[&x, &w], vec![]);
    m.node("Relu", "y", &[&y], vec![]);
    m.output("y");
    let mut seen = Vec::new();
    let graph = transform_with(m.import().unwrap(), |pass, _| seen.push(pass)).unwrap();
    assert_eq!(seen, PASSES.iter().map(|p| p.name).collect::<Vec<_>>());
    let expected = concat!(
        "graph \"test\" {\n",
        "  size s0 = \"batch\" in 1..=65536\n",
        "  input %0 \"x\": f32[s0, 4]\n",
        "  const %1 \"w\": f32[4, 1] = [0.5, 0.5, 0.5, 0.5]\n",
        "  %2: f32[s0, 1] = matmul(%0, %1) epilogue { t0 = relu.f32 x0 }  // product\n",
        "  output %2 \"y\"\n",
        "}\n",
    );
    assert_eq!(graph.to_string(), expected);
}

#[test]
fn a_product_with_a_one_hot_matrix_and_the_following_nodes_become_a_lookup() {
    let mut m = Model::new(13);
    let x = m.input("x", DataType::Int32, &[Dim::S("n"), Dim::N(4), Dim::N(1)]);
    let classes = m.int32("classes", &[1, 1, 5], &[0, 1, 2, 3, 4]);
    let hot = m.node("Equal", "hot", &[&x, &classes], vec![]);
    let hot = m.node("Cast", "hot_float", &[&hot], vec![int("to", 1)]);
    let w = m.random("w", &[5, 3], 0.0, 1.0);
    let b = m.random("b", &[1, 1, 3], 0.0, 1.0);
    let y = m.node("MatMul", "product", &[&hot, &w], vec![]);
    let y = m.node("Add", "biased", &[&y, &b], vec![]);
    m.node("Tanh", "y", &[&y], vec![]);
    m.output("y");
    // Two indices are outside: the one-hot matrix has a row of zeros there.
    let indices = Tensor::ints(DType::I32, vec![2, 4, 1], [0, 1, 2, 3, 4, -1, 5, 0]);
    let (graph, _) = m.transformed(&[indices]);
    assert_eq!(ops(&graph), ["pointwise", "reshape", "gather"], "{graph}");
}

#[test]
fn a_sum_of_squares_becomes_one_reduction() {
    let mut m = Model::new(11);
    let x = m.input("x", DataType::Float, &[3i64, 8]);
    let square = m.node("Mul", "square", &[&x, &x], vec![]);
    m.node("ReduceSum", "y", &[&square], vec![ints("axes", &[1])]);
    m.output("y");
    assert_eq!(ops(&m.transformed(&[random_tensor(1, &[3, 8])]).0), ["reduce"]);
}
