//! The batch analysis: rows that are proven independent are independent, and operators that mix
//! rows are rejected.
//!
//! The oracle is the reference interpreter: row `i` of a batch equals the row alone, bit for bit.

use crate::common::{Dim, Model, conv_bn, int, ints, random_tensor};
use atoll_frontend::batch::{Batch, analyse};
use atoll_frontend::onnx::proto::{AttributeProto, AttributeType, DataType, OperatorSetIdProto};
use atoll_frontend::onnx::{ImportOptions, import_bytes};
use atoll_frontend::reference;
use atoll_frontend::tensor::Tensor;
use atoll_frontend::tensor_graph::TensorGraph;
use atoll_frontend::transform::transform;
use atoll_kgraph::DType;
use proptest::prelude::*;

/// Number of rows of the batch in every test.
const ROWS: usize = 3;

/// Row `row` of a tensor along an axis, which is kept with extent 1.
fn row_of(tensor: &Tensor, axis: usize, row: usize) -> Tensor {
    let inner: usize = tensor.shape[axis + 1..].iter().product();
    let values = tensor.to_f64();
    let chosen = values.chunks(inner.max(1)).enumerate().filter(|(index, _)| index % tensor.shape[axis] == row);
    let mut shape = tensor.shape.clone();
    shape[axis] = 1;
    let values = chosen.flat_map(|(_, chunk)| chunk.iter().copied());
    match tensor.dtype {
        DType::I64 => Tensor::ints(DType::I64, shape, values.map(|value| value as i64)),
        dtype => Tensor::floats(dtype, shape, values),
    }
}

/// Runs a batch, and each of its rows alone, and compares.
fn check_rows(graph: &TensorGraph, batch: &Batch, inputs: &[Tensor]) {
    let axis =
        |id: &atoll_frontend::tensor_graph::ValueId| batch.axes[id.0 as usize].expect("inputs and outputs have rows");
    let together = reference::run(graph, inputs).expect("the batch runs");
    for row in 0..ROWS {
        let own: Vec<Tensor> =
            graph.inputs.iter().zip(inputs).map(|(id, tensor)| row_of(tensor, axis(id), row)).collect();
        let alone = reference::run(graph, &own).expect("a row runs");
        for ((id, together), alone) in graph.outputs.iter().zip(&together).zip(&alone) {
            assert_eq!(&row_of(together, axis(id), row), alone, "row {row} of {}:\n{graph}", graph.value(*id).name);
        }
    }
}

/// The only input of a test: `n` rows of 4×6×5.
fn input(m: &mut Model) -> String {
    m.input("x", DataType::Float, &[Dim::S("n"), Dim::N(4), Dim::N(6), Dim::N(5)])
}

/// The graph after the passes, with a batch axis if it has one.
fn analysed(m: &mut Model, output: &str) -> (TensorGraph, Result<Batch, String>) {
    m.output(output);
    let graph = transform(m.import().expect("a model")).expect("passes");
    let batch =
        analyse(&graph).map_err(|refusals| refusals.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "));
    (graph, batch)
}

/// Checks that the rows of the model are proven independent, and that they are.
fn proven(build: impl FnOnce(&mut Model, &str) -> String) {
    proven_in(13, build);
}

/// Checks this with a version of the operators.
fn proven_in(opset: i64, build: impl FnOnce(&mut Model, &str) -> String) {
    let mut m = Model::new(opset);
    let x = input(&mut m);
    let y = build(&mut m, &x);
    let (graph, batch) = analysed(&mut m, &y);
    let batch = batch.unwrap_or_else(|reason| panic!("{reason}\n{graph}"));
    check_rows(&graph, &batch, &[random_tensor(5, &[ROWS, 4, 6, 5])]);
}

/// Checks that the analysis rejects the model, with this reason.
fn refused(expected: &str, build: impl FnOnce(&mut Model, &str) -> String) {
    let mut m = Model::new(13);
    let x = input(&mut m);
    let y = build(&mut m, &x);
    let (graph, batch) = analysed(&mut m, &y);
    let reason = batch.expect_err(&format!("rows depend on each other:\n{graph}"));
    assert!(reason.contains(expected), "{reason}");
}

#[test]
fn layers_of_networks_keep_rows_apart() {
    proven(|m, x| {
        let a = conv_bn(m, "a", x, [4, 8], [3, 1], true);
        let b = conv_bn(m, "b", &a, [8, 8], [3, 1], false);
        let sum = m.node("Add", "sum", &[&a, &b], vec![]);
        let pooled = m.node("MaxPool", "pool", &[&sum], vec![ints("kernel_shape", &[2, 2]), ints("strides", &[2, 2])]);
        let mean = m.node("GlobalAveragePool", "mean", &[&pooled], vec![]);
        let flat = m.node("Flatten", "flat", &[&mean], vec![int("axis", 1)]);
        let w = m.random("w", &[8, 7], 0.0, 0.5);
        let scores = m.node("MatMul", "scores", &[&flat, &w], vec![]);
        m.node("Softmax", "y", &[&scores], vec![int("axis", -1)])
    });
    // Attention: products of matrices of one row, with heads moved to the front.
    proven(|m, x| {
        let heads = m.node("Transpose", "heads", &[x], vec![ints("perm", &[0, 2, 1, 3])]);
        let keys = m.node("Transpose", "keys", &[&heads], vec![ints("perm", &[0, 1, 3, 2])]);
        let scores = m.node("MatMul", "scores", &[&heads, &keys], vec![]);
        let weights = m.node("Softmax", "weights", &[&scores], vec![int("axis", -1)]);
        m.node("MatMul", "y", &[&weights, &heads], vec![])
    });
    proven(|m, x| {
        let bias = m.random("bias", &[6, 1], 0.0, 1.0);
        let moved = m.node("Transpose", "moved", &[x], vec![ints("perm", &[1, 0, 2, 3])]);
        let sum = m.node("Add", "sum", &[&moved, &bias], vec![]);
        m.node("ReduceMean", "y", &[&sum], vec![ints("axes", &[0, 3]), int("keepdims", 0)])
    });
}

/// Loop nests whose operators say that they read by rows.
#[test]
fn loop_nests_keep_rows_apart() {
    proven(|m, x| {
        let axis = m.int32("axis", &[], &[2]);
        m.node("CumSum", "y", &[x, &axis], vec![])
    });
    proven(|m, x| {
        let k = m.ints("k", &[2]);
        m.node("TopK", "y", &[x, &k], vec![int("axis", -1)])
    });
    proven(|m, x| m.node("LpPool", "y", &[x], vec![ints("kernel_shape", &[2, 2])]));
    proven(|m, x| {
        let whole = m.node("Floor", "whole", &[x], vec![]);
        let floats = |name: &str, floats: &[f32]| AttributeProto {
            name: name.into(),
            floats: floats.to_vec(),
            r#type: AttributeType::Floats as i32,
            ..AttributeProto::default()
        };
        let attributes = vec![floats("keys_floats", &[-1.0, 0.0]), floats("values_floats", &[10.0, 20.0])];
        let y = m.node("LabelEncoder", "y", &[&whole], attributes);
        m.graph().node.last_mut().unwrap().domain = "ai.onnx.ml".into();
        m.proto.opset_import.push(OperatorSetIdProto { domain: "ai.onnx.ml".into(), version: 2 });
        y
    });
    refused("it is a loop nest, whose reads are not analysed", |m, x| {
        let axis = m.int32("axis", &[], &[0]);
        m.node("CumSum", "y", &[x, &axis], vec![])
    });
    refused("its rows are not along the first axis", |m, x| {
        let turned = m.node("Transpose", "turned", &[x], vec![ints("perm", &[1, 0, 2, 3])]);
        let axis = m.int32("axis", &[], &[2]);
        m.node("CumSum", "y", &[&turned, &axis], vec![])
    });
}

/// The signs of the input as whole numbers, 0 or 1, in rows of 120.
fn flags(m: &mut Model, x: &str) -> String {
    let flat = m.node("Flatten", "flat", &[x], vec![int("axis", 1)]);
    let positive = m.node("Relu", "positive", &[&flat], vec![]);
    let sign = m.node("Sign", "sign", &[&positive], vec![]);
    m.node("Cast", "flags", &[&sign], vec![int("to", DataType::Int64 as i64)])
}

/// Moves the last node to the domain of classifiers.
fn of_ml(m: &mut Model) {
    m.graph().node.last_mut().unwrap().domain = "ai.onnx.ml".into();
    m.proto.opset_import.push(OperatorSetIdProto { domain: "ai.onnx.ml".into(), version: 3 });
}

#[test]
fn trees_and_n_grams_keep_rows_apart() {
    let floats = |name: &str, floats: &[f32]| AttributeProto {
        name: name.into(),
        floats: floats.to_vec(),
        r#type: AttributeType::Floats as i32,
        ..AttributeProto::default()
    };
    let texts = |name: &str, texts: &[&str]| AttributeProto {
        name: name.into(),
        strings: texts.iter().map(|text| text.as_bytes().to_vec().into()).collect(),
        r#type: AttributeType::Strings as i32,
        ..AttributeProto::default()
    };
    // Two trees of depth 1, over the first and the last feature.
    proven(|m, x| {
        let flat = m.node("Flatten", "flat", &[x], vec![int("axis", 1)]);
        let attributes = vec![
            ints("nodes_treeids", &[0, 0, 0, 1, 1, 1]),
            ints("nodes_nodeids", &[0, 1, 2, 0, 1, 2]),
            ints("nodes_featureids", &[0, 0, 0, 119, 0, 0]),
            floats("nodes_values", &[0.1, 0.0, 0.0, -0.2, 0.0, 0.0]),
            texts("nodes_modes", &["BRANCH_LEQ", "LEAF", "LEAF", "BRANCH_LEQ", "LEAF", "LEAF"]),
            ints("nodes_truenodeids", &[1, 0, 0, 1, 0, 0]),
            ints("nodes_falsenodeids", &[2, 0, 0, 2, 0, 0]),
            ints("target_treeids", &[0, 0, 1, 1]),
            ints("target_nodeids", &[1, 2, 1, 2]),
            ints("target_ids", &[0, 0, 0, 0]),
            floats("target_weights", &[0.25, 0.5, 1.0, 2.0]),
            int("n_targets", 1),
        ];
        let y = m.node("TreeEnsembleRegressor", "y", &[&flat], attributes);
        of_ml(m);
        y
    });
    proven(|m, x| {
        let flags = flags(m, x);
        let mode = AttributeProto {
            name: "mode".into(),
            s: b"TF".to_vec().into(),
            r#type: AttributeType::String as i32,
            ..AttributeProto::default()
        };
        let attributes = vec![
            mode,
            int("min_gram_length", 1),
            int("max_gram_length", 2),
            int("max_skip_count", 1),
            ints("ngram_counts", &[0, 2]),
            ints("ngram_indexes", &[0, 1, 2, 3]),
            ints("pool_int64s", &[0, 1, 0, 1, 1, 1]),
        ];
        m.node("TfIdfVectorizer", "y", &[&flags], attributes)
    });
}

#[test]
fn samples_of_a_grid_keep_rows_apart() {
    proven_in(16, |m, x| {
        let bounds = [("starts", 0), ("ends", 2), ("axes", 3)].map(|(name, value)| m.ints(name, &[value]));
        let grid = m.node("Slice", "grid", &[x, &bounds[0], &bounds[1], &bounds[2]], vec![]);
        m.node("GridSample", "y", &[x, &grid], vec![])
    });
}

/// An index outside its axis refuses the whole batch. With constant data the number of rows stays
/// open, so that there is a reason.
#[test]
fn elements_at_positions_of_a_request_are_refused_with_the_reason() {
    let expected = "n: y: a value of one row can make it refuse all rows";
    refused(expected, |m, x| {
        let flat = m.node("Flatten", "data", &[x], vec![int("axis", 1)]);
        let flags = flags(m, x);
        m.node("GatherElements", "y", &[&flat, &flags], vec![int("axis", 1)])
    });
    refused(expected, |m, x| {
        let data = m.random("data", &[ROWS as i64, 120], 0.0, 1.0);
        let flags = flags(m, x);
        m.node("GatherElements", "y", &[&data, &flags], vec![int("axis", 1)])
    });
}

/// Support vector machines, as scikit-learn's exporter writes them.
#[test]
fn rows_of_exported_classifiers_are_independent() {
    for name in ["iris", "iris_labels", "iris_probabilities"] {
        let path = format!("{}/../../tests/fixtures/sklearn/{name}.onnx", env!("CARGO_MANIFEST_DIR"));
        let bytes = std::fs::read(path).expect("a fixture");
        let graph = import_bytes(bytes, "test", &ImportOptions::default()).expect("a model");
        let graph = transform(graph).expect("passes");
        let batch = analyse(&graph).unwrap_or_else(|refusals| panic!("{name}: {}", refusals[0]));
        check_rows(&graph, &batch, &[random_tensor(5, &[ROWS, 4])]);
    }
}

#[test]
fn operators_that_mix_rows_are_refused() {
    refused("it normalises over rows", |m, x| m.node("Softmax", "y", &[x], vec![int("axis", 0)]));
    refused("it reduces over rows", |m, x| {
        m.node("ReduceMean", "y", &[x], vec![ints("axes", &[0]), int("keepdims", 1)])
    });
    refused("it merges the dimension of the rows with another", |m, x| {
        let flat = m.node("Flatten", "flat", &[x], vec![int("axis", 2)]);
        m.node("Relu", "y", &[&flat], vec![])
    });
    // Subtracts the mean over all rows from each row.
    refused("it reduces over rows", |m, x| {
        let mean = m.node("ReduceMean", "mean", &[x], vec![ints("axes", &[0]), int("keepdims", 1)]);
        m.node("Sub", "y", &[x, &mean], vec![])
    });
    // Products of all rows with all rows.
    refused("it sums over rows", |m, x| {
        let rows = m.node("Transpose", "rows", &[x], vec![ints("perm", &[1, 2, 0, 3])]);
        let columns = m.node("Transpose", "columns", &[x], vec![ints("perm", &[1, 2, 3, 0])]);
        m.node("MatMul", "y", &[&columns, &rows], vec![])
    });
    refused("it concatenates rows", |m, x| {
        let twice = m.node("Concat", "twice", &[x, x], vec![int("axis", 0)]);
        m.node("Relu", "y", &[&twice], vec![])
    });
}

#[test]
fn an_input_without_rows_is_refused() {
    let mut m = Model::new(13);
    let x = input(&mut m);
    let scale = m.input("scale", DataType::Float, &[4i64, 1, 1]);
    let y = m.node("Mul", "y", &[&x, &scale], vec![]);
    let reason = analysed(&mut m, &y).1.expect_err("one scale for all rows");
    assert!(reason.contains("n: scale: the input does not have exactly one dimension that is this size"), "{reason}");
}

/// A step of a random model: the operator, and its axis.
fn any_step() -> impl Strategy<Value = (u8, usize, usize)> {
    (0u8..12, 0usize..4, 0usize..4)
}

/// Adds a step. In the shape, `None` is the number of rows.
fn add_step(
    m: &mut Model,
    index: usize,
    x: &str,
    shape: &mut Vec<Option<i64>>,
    (kind, a, b): (u8, usize, usize),
) -> String {
    let name = format!("v{index}");
    let rank = shape.len();
    let (axis, other) = (a % rank, b % rank);
    match kind {
        0 => m.node("Sigmoid", &name, &[x], vec![]),
        1 => {
            let dims: Vec<i64> = shape
                .iter()
                .enumerate()
                .map(|(i, dim)| if (a >> (i % 2)) & 1 == 0 { 1 } else { dim.unwrap_or(1) })
                .collect();
            let constant = m.random(&format!("c{index}"), &dims, 0.5, 1.0);
            m.node("Mul", &name, &[x, &constant], vec![])
        }
        2 => m.node("Softmax", &name, &[x], vec![int("axis", axis as i64)]),
        3 => {
            let keep = b % 2 == 0;
            if keep {
                shape[axis] = Some(1);
            } else if rank > 1 {
                shape.remove(axis);
            }
            m.node(
                "ReduceMean",
                &name,
                &[x],
                vec![ints("axes", &[axis as i64]), int("keepdims", i64::from(keep || rank == 1))],
            )
        }
        4 => {
            let mut permutation: Vec<i64> = (0..rank as i64).collect();
            permutation.swap(axis, other);
            shape.swap(axis, other);
            m.node("Transpose", &name, &[x], vec![ints("perm", &permutation)])
        }
        5 if rank >= 2 && shape[rank - 1].is_some() => {
            let weights = m.random(&format!("c{index}"), &[shape[rank - 1].unwrap_or(1), 3], 0.0, 0.5);
            shape[rank - 1] = Some(3);
            m.node("MatMul", &name, &[x, &weights], vec![])
        }
        6 if rank >= 2 => {
            let mut permutation: Vec<i64> = (0..rank as i64).collect();
            permutation.swap(rank - 1, rank - 2);
            let turned = m.node("Transpose", &format!("t{index}"), &[x], vec![ints("perm", &permutation)]);
            shape[rank - 1] = shape[rank - 2];
            m.node("MatMul", &name, &[x, &turned], vec![])
        }
        7 => {
            shape[axis] = shape[axis].map(|dim| dim * 2);
            m.node("Concat", &name, &[x, x], vec![int("axis", axis as i64)])
        }
        8 if rank >= 2 => {
            let product = |dims: &[Option<i64>]| dims.iter().copied().try_fold(1, |product, dim| Some(product * dim?));
            let split = axis.max(1);
            *shape = vec![product(&shape[..split]), product(&shape[split..])];
            m.node("Flatten", &name, &[x], vec![int("axis", split as i64)])
        }
        10 => {
            let at = m.int32(&format!("c{index}"), &[], &[axis as i32]);
            m.node("CumSum", &name, &[x, &at], vec![int("reverse", b as i64 % 2)])
        }
        11 if shape[axis].is_some_and(|size| size > 1) => {
            let k = m.ints(&format!("c{index}"), &[2]);
            shape[axis] = Some(2);
            m.node("TopK", &name, &[x, &k], vec![int("axis", axis as i64)])
        }
        9 => {
            let indices = m.ints(&format!("c{index}"), &[0, 0]);
            shape[axis] = Some(2);
            m.node("Gather", &name, &[x, &indices], vec![int("axis", axis as i64)])
        }
        _ => m.node("Relu", &name, &[x], vec![]),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn proven_independence_holds(steps in prop::collection::vec(any_step(), 1..6)) {
        let mut m = Model::new(12);
        let mut value = input(&mut m);
        let mut shape = vec![None, Some(4), Some(6), Some(5)];
        for (index, step) in steps.into_iter().enumerate() {
            value = add_step(&mut m, index, &value, &mut shape, step);
        }
        m.output(&value);
        // The importer may reject a random model, for example one that concatenates an unknown
        // number of rows.
        let Some(graph) = m.import().ok().and_then(|graph| transform(graph).ok()) else { return Ok(()) };
        if let Ok(batch) = analyse(&graph) {
            prop_assert_eq!(graph.value(graph.inputs[0]).dtype, DType::F32);
            check_rows(&graph, &batch, &[random_tensor(5, &[ROWS, 4, 6, 5])]);
        }
    }
}
