//! Graphs for tests.

use atoll_core::Nanos;
use atoll_core::graphs::KindId;
use atoll_core::graphs::{
    CostTable, Form, Graph, GraphSpec, Kind, Link, NodeSpec, Size, SourceName, StageCost, StageSpec, TensorSpec,
};
use atoll_core::rng::Rng;

pub(crate) const MS: u64 = 1_000_000;

pub(crate) fn form(sizes: &[u64]) -> Form {
    Form { element: "FP32".into(), shape: sizes.iter().map(|size| Size::Fixed(*size)).collect() }
}

pub(crate) fn tensor(name: &str, sizes: &[u64]) -> TensorSpec {
    TensorSpec { name: name.into(), form: form(sizes) }
}

/// `x` for an input of the graph, `stage.output` for an output of a stage.
pub(crate) fn source(text: &str) -> SourceName {
    match text.split_once('.') {
        Some((stage, output)) => SourceName::Output { stage: stage.into(), output: output.into() },
        None => SourceName::Input(text.into()),
    }
}

pub(crate) fn link(name: &str, from: &str) -> Link {
    Link { name: name.into(), from: source(from) }
}

/// A stage with inputs `i0`, `i1` and so on, and the output `y`, all FP32[1, 4].
pub(crate) fn stage(name: &str, from: &[&str]) -> StageSpec {
    let name_of = |index: usize| format!("i{index}");
    StageSpec {
        name: name.into(),
        function: format!("f_{name}"),
        inputs: (0..from.len()).map(|index| tensor(&name_of(index), &[1, 4])).collect(),
        outputs: vec![tensor("y", &[1, 4])],
        from: from.iter().enumerate().map(|(index, from)| link(&name_of(index), from)).collect(),
        ..StageSpec::default()
    }
}

/// A graph with input `x`: each stage by name and sources. Stages that nothing needs are outputs.
pub(crate) fn spec(stages: &[(&str, &[&str])]) -> GraphSpec {
    let is_used = |name: &str| {
        stages.iter().any(|(_, from)| from.iter().any(|from| from.split_once('.').is_some_and(|(of, _)| of == name)))
    };
    let last = stages.iter().filter(|(name, _)| !is_used(name));
    GraphSpec {
        name: "g".into(),
        inputs: vec![tensor("x", &[1, 4])],
        outputs: last.map(|(name, _)| link(name, &format!("{name}.y"))).collect(),
        stages: stages.iter().map(|(name, from)| stage(name, from)).collect(),
        ..GraphSpec::default()
    }
}

pub(crate) fn graph(stages: &[(&str, &[&str])]) -> Graph {
    Graph::new(spec(stages)).expect("a good graph")
}

/// A preprocessing stage, three models on its output, and a combining stage.
pub(crate) fn ensemble() -> GraphSpec {
    spec(&[
        ("pre", &["x"]),
        ("a", &["pre.y"]),
        ("b", &["pre.y"]),
        ("c", &["pre.y"]),
        ("combine", &["a.y", "b.y", "c.y"]),
    ])
}

pub(crate) fn kind(name: &str, is_cpu: bool, price_per_s: u64) -> Kind {
    Kind { name: name.into(), is_cpu, price_per_s }
}

/// A CPU, and a GPU at ten times its price.
pub(crate) fn cpu_and_gpu() -> Vec<Kind> {
    vec![kind("cpu", true, 1_000), kind("gpu", false, 10_000)]
}

pub(crate) fn cost(exec_ms: u64, pre_ms: u64, bytes: u64) -> StageCost {
    let (pre, exec) = (Nanos(pre_ms * MS), Nanos(exec_ms * MS));
    StageCost { pre, exec, batch_step: Nanos(exec.0 / 4), post: Nanos(0), bytes }
}

/// All stages alike: 40 ms on a CPU and 4 ms on a GPU, 10 ms to load 100 bytes.
pub(crate) fn plain_costs(graph: &Graph) -> CostTable {
    let row = vec![Some(cost(40, 10, 100)), Some(cost(4, 10, 100))];
    CostTable::new(graph, cpu_and_gpu(), vec![row; graph.stages().len()]).expect("a good table")
}

pub(crate) fn nodes(cpus: usize, gpus: usize, bytes: u64) -> Vec<NodeSpec> {
    let cpus = (0..cpus).map(|_| NodeSpec { kind: KindId(0), bytes });
    cpus.chain((0..gpus).map(|_| NodeSpec { kind: KindId(1), bytes })).collect()
}

/// A random graph of `count` stages, each with one to three sources among the input and earlier
/// stages.
pub(crate) fn random_graph(rng: &mut Rng, count: usize) -> Graph {
    let names: Vec<String> = (0..count).map(|index| format!("s{index}")).collect();
    let mut sources: Vec<Vec<String>> = Vec::new();
    for index in 0..count {
        let mut from: Vec<String> = (0..1 + rng.below(3))
            .map(|_| match rng.below(index as u64 + 1) as usize {
                0 => "x".into(),
                earlier => format!("{}.y", names[earlier - 1]),
            })
            .collect();
        from.sort();
        from.dedup();
        sources.push(from);
    }
    let texts: Vec<Vec<&str>> = sources.iter().map(|from| from.iter().map(String::as_str).collect()).collect();
    let stages: Vec<(&str, &[&str])> =
        names.iter().zip(&texts).map(|(name, from)| (name.as_str(), from.as_slice())).collect();
    graph(&stages)
}

/// Random costs on `kinds` kinds. Kinds with higher numbers tend to be faster and dearer.
pub(crate) fn random_costs(rng: &mut Rng, graph: &Graph, kinds: u64) -> CostTable {
    let row = |rng: &mut Rng| {
        let base = 1 + rng.below(40);
        (0..kinds)
            .map(|kind| {
                let runs = kinds == 1 || !rng.one_in(8) || kind == 0;
                runs.then(|| cost(1 + (base + rng.below(10)) / (kind + 1), 1, 100))
            })
            .collect()
    };
    let rows = graph.stages().iter().map(|_| row(rng)).collect();
    let kinds = (0..kinds).map(|index| kind(&format!("k{index}"), index == 0, 1_000 * (1 + index * 2))).collect();
    CostTable::new(graph, kinds, rows).expect("a good table")
}
