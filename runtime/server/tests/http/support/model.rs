//! A model with one copy node: `out = in`, FP32 [batch, 4].

use atoll_kgraph::strings::Strings;
use atoll_kgraph::{
    BufferId, BufferKind, BufferSpec, BundleContents, DType, Expr, FORMAT_VERSION, KernelGraph, MemoryPlan, Node,
    NodeId, NodeKind, StateSpec, SymbolId, SymbolSpec, TargetContents, TargetImage, TempPlacement,
};
use std::path::Path;

pub(crate) fn write_bundle(path: &Path) {
    write(path, "toy", DType::F32);
}

/// Writes the same model with strings instead of numbers.
pub(crate) fn write_strings_bundle(path: &Path) {
    write(path, "strings", DType::Strings);
}

/// Writes the same model with another digest.
pub(crate) fn write_changed_bundle(path: &Path) {
    write(path, "changed", DType::F32);
}

/// Writes the same model with the inputs `start` and `id`, one INT32 and one UINT64 for each row,
/// in front of `in`.
pub(crate) fn write_steps_bundle(path: &Path) {
    put(path, &graph("steps", DType::F32, &[("start", DType::I32), ("id", DType::U64)]));
}

/// Writes the same model with a state that no node uses.
pub(crate) fn write_state_bundle(path: &Path) {
    let mut graph = graph("state", DType::F32, &[]);
    let (buffer, shape) = (BufferId(graph.buffers.len() as u32), vec![Expr::Const(4)]);
    let (kind, dtype) = (BufferKind::State, DType::F32);
    graph.buffers.push(BufferSpec { name: "h".into(), kind, dtype, shape: shape.clone(), weights_offset: None });
    graph.plan.states = vec![TempPlacement { buffer, offset: Expr::Const(0) }];
    graph.plan.state_bytes = Some(Expr::Const(256));
    graph.session.states = vec![StateSpec { buffer, input: "h".into(), output: "hn".into(), shape }];
    put(path, &graph);
}

fn write(path: &Path, name: &str, dtype: DType) {
    put(path, &graph(name, dtype, &[]));
}

fn graph(name: &str, dtype: DType, more: &[(&str, DType)]) -> KernelGraph {
    let batch = Expr::from(SymbolId(0));
    let sized = |name: &str, kind, dtype, columns| BufferSpec {
        name: name.into(),
        kind,
        dtype,
        shape: vec![batch.clone(), Expr::Const(columns)],
        weights_offset: None,
    };
    let buffer = |name: &str, kind| sized(name, kind, dtype, 4);
    let more: Vec<BufferSpec> = more.iter().map(|(name, dtype)| sized(name, BufferKind::Input, *dtype, 1)).collect();
    let (from, to) = (BufferId(more.len() as u32), BufferId(more.len() as u32 + 1));
    KernelGraph {
        format: FORMAT_VERSION,
        name: name.into(),
        symbols: vec![SymbolSpec::new("batch", 1, 64)],
        buffers: [more, vec![buffer("in", BufferKind::Input), buffer("out", BufferKind::Output)]].concat(),
        nodes: vec![Node {
            name: "copy".into(),
            kind: NodeKind::copy(from, to, batch.clone() * 16),
            reads: vec![from],
            writes: vec![to],
            after: vec![],
        }],
        strings: match dtype {
            DType::Strings => Strings { table: vec![String::new()], steps: vec![] },
            _ => Strings::default(),
        },
        plan: MemoryPlan { restore_points: vec![NodeId(0)], ..MemoryPlan::default() },
        ..KernelGraph::default()
    }
}

fn put(path: &Path, graph: &KernelGraph) {
    let image = TargetImage { name: "test".into(), launches: vec![None], ..TargetImage::default() };
    let targets = vec![TargetContents { image, code: vec![0], ptx: None, source: None }];
    atoll_kgraph::write_bundle(path, &BundleContents { producer: "test".into(), graph, weights: vec![], targets })
        .unwrap();
}
