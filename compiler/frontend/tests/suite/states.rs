//! Which inputs and outputs are states, and what is rejected.

use crate::common::{Dim, Model, int};
use atoll_frontend::onnx::proto::DataType;
use atoll_frontend::onnx::{ImportOptions, import_bytes};
use atoll_frontend::tensor_graph::{Growth, State, TensorGraph};
use atoll_kgraph::{SizeRange, SymbolId};

/// A cache that grows on axis 1, a state that is replaced, an input that is not a state, and a mask
/// whose length is that of the cache plus the new rows.
fn model() -> Model {
    let mut m = Model::new(17);
    let x = m.input("x", DataType::Float, &[Dim::N(1), Dim::S("new"), Dim::N(4)]);
    let past = m.input("past_key_values.0.key", DataType::Float, &[Dim::N(1), Dim::S("past"), Dim::N(4)]);
    let h = m.input("h", DataType::Float, &[Dim::N(1), Dim::N(1), Dim::N(4)]);
    let mask = m.input("mask", DataType::Float, &[Dim::N(1), Dim::S("past + new"), Dim::N(1)]);
    m.node("Concat", "present.0.key", &[&past, &x], vec![int("axis", 1)]);
    let masked = m.node("Mul", "masked", &["present.0.key", &mask], vec![]);
    m.node("Add", "hn", &[&h, &h], vec![]);
    m.node("Mul", "y", &[&masked, "hn"], vec![]);
    for output in ["y", "present.0.key", "hn"] {
        m.output(output);
    }
    m
}

fn import(states: &str, past: Option<(i64, i64)>) -> Result<TensorGraph, String> {
    let mut options = ImportOptions { states: states.parse().unwrap(), ..ImportOptions::default() };
    options.symbols.extend(past.map(|(min, max)| ("past".to_owned(), SizeRange { min, max })));
    import_bytes(model().bytes(), "m", &options).map_err(|error| error.to_string())
}

#[test]
fn names_of_exporters_and_pairs_find_the_same_states() {
    let graph = import("auto", Some((0, 16))).unwrap();
    let past = graph.symbols.iter().position(|symbol| symbol.name == "past").unwrap() as u32;
    let growth = Growth { axis: 1, past: SymbolId(past), capacity: 16 };
    let expected = [State { input: 1, output: 1, growth: Some(growth) }, State { input: 2, output: 2, growth: None }];
    assert_eq!(graph.states, expected);
    assert_eq!(import("past_key_values.0.key=present.0.key,h=hn", Some((0, 16))).unwrap().states, expected);
    // The length of the mask is not a separate size, and the number of rows is limited by the
    // capacity.
    assert_eq!(graph.symbols.len(), 2);
    let conditions: Vec<String> = graph.conditions.iter().map(|condition| condition.text(&graph.symbols)).collect();
    assert!(
        conditions.iter().any(|text| text.starts_with("16 to be at least (") && text.contains("past")),
        "{conditions:?}"
    );
    assert!(import_bytes(model().bytes(), "m", &ImportOptions::default()).unwrap().states.is_empty());
}

#[test]
fn inputs_that_are_not_states_are_refused_with_the_reason() {
    for (states, past, expected) in [
        ("auto", None, "set its largest size, for example `--symbol past=0..1024`"),
        ("auto", Some((1, 16)), "begin its range at 0, for example `--symbol past=0..16`"),
        ("h=y", Some((0, 16)), "only a symbolic size can grow"),
        ("h=nothing", None, "the model has no output nothing; it has y, present.0.key, hn"),
        ("nothing=hn", None, "the model has no input nothing"),
        ("h=hn,h=hn", None, "named twice"),
    ] {
        let error = import(states, past).unwrap_err();
        assert!(error.contains(expected), "{states}: {error}");
    }
}
