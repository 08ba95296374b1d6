//! Branches and loops that are decided at run time.

use crate::common::flows;
use atoll_frontend::onnx::proto::*;
use atoll_frontend::onnx::{ImportOptions, import_model};
use atoll_frontend::reference;
use atoll_frontend::tensor::Tensor;
use atoll_frontend::tensor_graph::{Op, TensorGraph};
use atoll_frontend::transform::transform;
use atoll_kgraph::DType;

fn import(proto: &ModelProto) -> Result<TensorGraph, String> {
    import_model(proto, "flow", None, &ImportOptions::default()).map_err(|error| error.to_string())
}

fn run(graph: &TensorGraph, inputs: &[Tensor]) -> Vec<Tensor> {
    reference::run(graph, inputs).unwrap_or_else(|error| panic!("{}: {error}\n{graph}", graph.name))
}

/// The results of a model's runs, which must not change by the passes.
fn results(name: &str) -> Vec<Vec<Tensor>> {
    let flow = flows::all().into_iter().find(|flow| flow.name == name).expect("a model of this name");
    let imported = import(&flow.proto).unwrap_or_else(|error| panic!("{name}: {error}"));
    let transformed = transform(imported.clone()).unwrap_or_else(|error| panic!("{name}: {error}"));
    let both = flow.runs.iter().map(|inputs| {
        let results = run(&transformed, inputs);
        assert_eq!(run(&imported, inputs), results, "{name}: the passes change the result");
        results
    });
    both.collect()
}

fn count(graph: &TensorGraph, is_it: fn(&Op) -> bool) -> usize {
    graph.nodes.iter().filter(|node| is_it(&node.op)).count()
}

#[test]
fn every_model_runs_and_keeps_its_control_flow() {
    for flow in flows::all() {
        let graph = transform(import(&flow.proto).expect(flow.name)).expect("a valid graph");
        let nodes = count(&graph, |op| matches!(op, Op::If { .. } | Op::Loop { .. }));
        assert_eq!(nodes, 1, "{}:\n{graph}", flow.name);
        results(flow.name);
    }
}

#[test]
fn a_loop_runs_as_often_as_its_count_says() {
    let x: Vec<f64> = (0..5).map(|i| 1.0 + f64::from(i) / 4.0 - f64::from(i % 3)).collect();
    for (found, trips) in results("counted").iter().zip([0, 1, 7, 0]) {
        let expected = x.iter().map(|x| (0..trips).fold(*x, |v, _| v * 0.5 + x));
        assert_eq!(found[0].to_f64(), Tensor::floats(DType::F32, vec![5], expected).to_f64());
    }
}

#[test]
fn a_condition_ends_a_loop() {
    let found: Vec<f64> = results("until").iter().map(|outputs| outputs[0].to_f64()[0]).collect();
    assert_eq!(found, [1.5, 48.0, 200.0]);
}

#[test]
fn rows_are_those_of_the_iterations_that_ran() {
    for (name, more) in [("stacked", 0), ("stacked_computed", 1)] {
        for (found, (trips, x)) in results(name).iter().zip([(0, 1.0), (1, 1.0), (3, 1.0), (20, 1.0), (9, 50.0)]) {
            let (mut v, mut rows) = ([x, x + 0.25 - 1.0], Vec::new());
            for i in 0..trips + more {
                v = v.map(|v| v + v);
                rows.push(v.map(|v| v + f64::from(i)));
                if v[0].max(v[1]) >= 40.0 {
                    break;
                }
            }
            let sum = [0, 1].map(|column| rows.iter().map(|row| row[column]).sum::<f64>());
            assert_eq!(
                (found[1].shape.as_slice(), found[0].to_f64()),
                ([rows.len(), 2].as_slice(), v.to_vec()),
                "{name}"
            );
            assert_eq!((found[1].to_f64(), found[2].to_f64()), (rows.concat(), sum.to_vec()), "{name}");
        }
    }
}

#[test]
fn states_are_exchanged_as_if_at_once() {
    let all = results("exchanged");
    let [even, odd] = [&all[2], &all[1]];
    assert_eq!((&all[0][..5], &all[1][..5]), (&even[..5], &all[3][..5]), "two exchanges have no effect");
    let data = |tensor: &Tensor| tensor.to_f64();
    assert_eq!((data(&odd[0]), data(&odd[1])), (data(&even[1]), data(&even[0])));
    assert_eq!((data(&odd[2]), data(&odd[3])), (data(&even[3]), data(&even[2])));
    assert_eq!(data(&all[3][5])[0], 4.0 * data(&all[0][5])[0], "the unchanged state was added three times");
}

#[test]
fn what_a_device_cannot_decide_is_refused_with_the_reason() {
    let x = || flows_input("x", &["2", "3"]);
    let text = |nodes: Vec<NodeProto>| {
        let inputs = vec![x(), scalar("n", 7), scalar("c", 9)];
        import(&flows::model(inputs, nodes, "y")).expect_err("a refusal")
    };
    let op = |op: &str, input: &[&str], output: &str| NodeProto {
        op_type: op.into(),
        input: input.iter().map(|name| (*name).into()).collect(),
        output: vec![output.into()],
        ..NodeProto::default()
    };
    let next = || op("Identity", &["go"], "next");
    let grows = vec![next(), op("Transpose", &["v"], "u")];
    let error = text(vec![flows::looping("n - x", "y", ("i go v", grows, "next u"))]);
    assert!(error.contains("changes its shape from [2, 3] to [3, 2]"), "{error}");
    let selects = vec![next(), op("NonZero", &["v"], "z"), op("Neg", &["v"], "u")];
    let error = text(vec![flows::looping("n - x", "y r", ("i go v", selects, "next u z"))]);
    assert!(error.contains("a size is computed at run time inside it"), "{error}");
    let endless = vec![next(), op("Neg", &["v"], "u")];
    let error = text(vec![flows::looping("- - x", "y", ("i go v", endless.clone(), "next u"))]);
    assert!(error.contains("neither a trip count nor a condition, so it never ends"), "{error}");
    let error = text(vec![flows::looping("many - x", "y", ("i go v", endless.clone(), "next u"))]);
    assert!(error.contains("9223372036854775807 iterations") && error.contains("1048576"), "{error}");
    // Both branches are computed, so the loop would also run if `c` is false.
    let then = (vec![flows::looping("n - x", "a", ("i go v", endless, "next u"))], "a");
    let sizes = [op("NonZero", &["x"], "z"), op("Size", &["z"], "s"), op("Greater", &["s", "n"], "g")];
    let values = [op("Neg", &["x"], "m"), op("Where", &["g", "x", "m"], "b")];
    let other = ([sizes.as_slice(), &values].concat(), "b");
    let error = text(vec![flows::choice("c", "y", then, other)]);
    assert!(error.contains("a branch that is computed even if it is not selected"), "{error}");
}

fn flows_input(name: &str, dims: &[&str]) -> ValueInfoProto {
    let dim = |dim: &&str| Dimension { value: Some(DimensionValue::DimValue(dim.parse().expect("a number"))) };
    typed(name, 1, dims.iter().map(dim).collect())
}

fn scalar(name: &str, elem_type: i32) -> ValueInfoProto {
    typed(name, elem_type, vec![])
}

fn typed(name: &str, elem_type: i32, dim: Vec<Dimension>) -> ValueInfoProto {
    let tensor_type = Some(TensorTypeProto { elem_type, shape: Some(TensorShapeProto { dim }) });
    ValueInfoProto {
        name: name.into(),
        r#type: Some(TypeProto { tensor_type, ..TypeProto::default() }),
        ..ValueInfoProto::default()
    }
}
