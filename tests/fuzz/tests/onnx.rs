//! Fuzz targets of the ONNX importer: any file is refused or becomes a graph that passes
//! verification, in bounded time and memory.

use atoll_frontend::onnx::proto::{DimensionValue, GraphProto, ModelProto};
use atoll_frontend::onnx::{ImportOptions, import_bytes, import_model, supported_operators};
use bolero::{TypeGenerator, check};
use prost::Message;
use std::time::{Duration, Instant};

/// Real models to mutate: control flow, functions, shape arithmetic, and three that exporters
/// wrote.
const SEEDS: [&[u8]; 8] = [
    include_bytes!("../../../compiler/frontend/tests/cases/if_computed/model.onnx"),
    include_bytes!("../../../compiler/frontend/tests/cases/loop_ends_early/model.onnx"),
    include_bytes!("../../../compiler/frontend/tests/cases/function_nested/model.onnx"),
    include_bytes!("../../../compiler/frontend/tests/cases/scan_axes/model.onnx"),
    include_bytes!("../../../compiler/frontend/tests/cases/sequence_map/model.onnx"),
    include_bytes!("../../fixtures/architectures/unet_bilinear.onnx"),
    include_bytes!("../../fixtures/architectures/rnn.onnx"),
    include_bytes!("../../fixtures/architectures/faster_rcnn_heads.onnx"),
];
/// Longest time of an import. These models are small, so a longer one would not end.
const TIME_MAX: Duration = Duration::from_secs(60);
/// Sizes at and beyond the limits.
const SIZES: [i64; 12] = [0, 1, -1, 2, 3, 7, 65_536, 1 << 31, 1 << 40, i64::MAX, i64::MIN, -7];

/// One change of a model.
#[derive(Clone, Copy, Debug, TypeGenerator)]
struct Change {
    kind: u8,
    at: u16,
    which: u16,
    amount: u16,
}

fn of<T>(items: &mut [T], index: u16) -> Option<&mut T> {
    let count = items.len();
    items.get_mut(usize::from(index).checked_rem(count)?)
}

/// The graph, or a nested graph of one of its nodes.
fn graph_of(graph: &mut GraphProto, depth: u16) -> &mut GraphProto {
    let inner = graph.node.iter().position(|node| node.attribute.iter().any(|attribute| attribute.g.is_some()));
    match inner {
        Some(node) if depth % 2 == 1 => {
            let attribute = graph.node[node].attribute.iter_mut().find_map(|attribute| attribute.g.as_mut());
            graph_of(attribute.expect("it was just seen"), depth / 2)
        }
        _ => graph,
    }
}

fn apply(model: &mut ModelProto, change: Change) {
    let Change { kind, at, which, amount } = change;
    let opset = which;
    let Some(graph) = model.graph.as_mut() else { return };
    let graph = graph_of(graph, amount);
    let size = SIZES[usize::from(amount) % SIZES.len()];
    let names: Vec<String> =
        graph.node.iter().flat_map(|node| node.output.iter().chain(&node.input)).cloned().collect();
    let name = names.get(usize::from(amount).checked_rem(names.len()).unwrap_or(0)).cloned().unwrap_or_default();
    match kind % 12 {
        0 => set(of(&mut graph.node, at).and_then(|node| of(&mut node.input, which)), |input| *input = name),
        1 => set(of(&mut graph.node, at).and_then(|node| of(&mut node.output, which)), |output| *output = name),
        2 => set(of(&mut graph.initializer, at).and_then(|tensor| of(&mut tensor.dims, which)), |dim| *dim = size),
        3 => {
            let shape =
                of(&mut graph.input, at).and_then(|input| input.r#type.as_mut()?.tensor_type.as_mut()?.shape.as_mut());
            set(shape.and_then(|shape| of(&mut shape.dim, which)), |dim| {
                dim.value = Some(DimensionValue::DimValue(size))
            });
        }
        4 => {
            let operators: Vec<&str> = supported_operators().collect();
            let operator = operators[usize::from(which) % operators.len()];
            set(of(&mut graph.node, at), |node| {
                operator.rsplit('.').next().unwrap_or(operator).clone_into(&mut node.op_type)
            });
        }
        5 => {
            let attribute = of(&mut graph.node, at).and_then(|node| of(&mut node.attribute, which));
            set(attribute, |attribute| (attribute.i, attribute.f) = (size, size as f32));
        }
        6 => {
            let attribute = of(&mut graph.node, at).and_then(|node| of(&mut node.attribute, which));
            set(attribute.and_then(|attribute| of(&mut attribute.ints, amount)), |number| *number = size);
        }
        7 if !graph.node.is_empty() => drop(graph.node.remove(usize::from(at) % graph.node.len())),
        8 if !graph.node.is_empty() => {
            let node = graph.node[usize::from(at) % graph.node.len()].clone();
            graph.node.insert(usize::from(which) % graph.node.len(), node);
        }
        9 => set(of(&mut graph.node, at), |node| node.input.push(name)),
        10 => {
            // A constant of sizes, from which shapes, trip counts and axes are read.
            let numbers = of(&mut graph.initializer, at).filter(|tensor| tensor.data_type == 7);
            set(numbers, |tensor| tensor.raw_data = size.to_le_bytes().repeat(tensor.raw_data.len() / 8).into());
        }
        _ => set(of(&mut model.opset_import, at), |set| set.version = i64::from(opset % 30)),
    }
}

/// Applies a change to an existing item.
fn set<T>(place: Option<&mut T>, change: impl FnOnce(&mut T)) {
    if let Some(place) = place {
        change(place);
    }
}

/// Imports a model, which must end in time. Returns the reason of a refusal.
fn import(model: &ModelProto) -> Result<(), String> {
    let start = Instant::now();
    let imported = import_model(model, "fuzzed", None, &ImportOptions::default());
    assert!(start.elapsed() < TIME_MAX, "the import took {:?} of\n{model:?}", start.elapsed());
    imported.map(drop).map_err(|error| error.to_string())
}

#[test]
fn the_seeds_are_accepted() {
    for seed in SEEDS {
        let imported = import(&ModelProto::decode(seed).expect("a seed is a model"));
        assert_eq!(imported, Ok(()));
    }
}

#[test]
fn any_bytes() {
    check!().for_each(|bytes: &[u8]| drop(import_bytes(bytes.to_vec(), "fuzzed", &ImportOptions::default())));
}

#[test]
fn changed_bytes() {
    check!().with_type::<(u8, Vec<(u16, u8)>)>().for_each(|(seed, changes)| {
        let mut bytes = SEEDS[usize::from(*seed) % SEEDS.len()].to_vec();
        for (at, to) in changes {
            let at = usize::from(*at) % bytes.len();
            bytes[at] = *to;
        }
        if let Ok(model) = ModelProto::decode(&bytes[..]) {
            drop(import(&model));
        }
    });
}

#[test]
fn changed_models() {
    check!().with_type::<(u8, Vec<Change>)>().for_each(|(seed, changes)| {
        let mut model = ModelProto::decode(SEEDS[usize::from(*seed) % SEEDS.len()]).expect("a seed is a model");
        changes.iter().take(8).for_each(|change| apply(&mut model, *change));
        drop(import(&model));
    });
}
