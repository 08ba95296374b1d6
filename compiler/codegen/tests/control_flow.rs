//! Compares kernels and segments of models with control flow with the reference interpreter.

mod common;
#[path = "../../frontend/tests/suite/common/flows.rs"]
mod flows;

use atoll_codegen::schedule;
use atoll_frontend::memory_plan::plan;
use atoll_frontend::onnx::{ImportOptions, import_model};
use atoll_frontend::tensor_graph::TensorGraph;
use atoll_frontend::transform::transform;
use atoll_kgraph::Feature;
use common::Model;
use common::device::{check, levels};

fn graph(flow: &flows::Flow) -> TensorGraph {
    let imported = import_model(&flow.proto, flow.name, None, &ImportOptions::default());
    transform(imported.unwrap_or_else(|error| panic!("{}: {error}", flow.name))).expect("a valid graph")
}

#[test]
fn branches_and_loops_run_as_the_reference_says() {
    let levels = levels();
    for flow in flows::all() {
        let graph = graph(&flow);
        // Each run compiles the model.
        let is_run = |index: usize| index == 1 || index + 1 == flow.runs.len();
        for inputs in flow.runs.iter().enumerate().filter(|(index, _)| is_run(*index)).map(|(_, inputs)| inputs) {
            let mut model = Model::new(flow.name);
            (model.graph, model.inputs) = (graph.clone(), inputs.clone());
            check(&model, &levels[..1]);
        }
    }
}

#[test]
fn schedules_are_valid_graphs_with_segments() {
    for flow in flows::all() {
        let schedule = schedule(&graph(&flow)).unwrap_or_else(|error| panic!("{}: {error}", flow.name));
        let mut planned = schedule.graph;
        plan(&mut planned);
        atoll_kgraph::validate::graph(&planned, schedule.weights_bytes)
            .unwrap_or_else(|error| panic!("{}: {error}", flow.name));
        let features = atoll_kgraph::features::of_graph(&planned);
        let is_choice = flow.name == "branches";
        assert_eq!(features.contains(&Feature::Loop), !is_choice, "{}", flow.name);
        assert_eq!(features.contains(&Feature::If), is_choice || flow.name == "nested", "{}", flow.name);
    }
}
