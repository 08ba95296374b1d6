//! A model with one copy node: `out = in`, FP32 [batch, 4].

use atoll_kgraph::strings::Strings;
use atoll_kgraph::{
    BufferId, BufferKind, BufferSpec, BundleContents, DType, Expr, FORMAT_VERSION, KernelGraph, MemoryPlan, Node,
    NodeId, NodeKind, StateSpec, SymbolId, SymbolSpec, TargetContents, TargetImage, TempPlacement,
};
use std::path::Path;

/// Logits of a token of the decoder.
pub(crate) const VOCABULARY: i64 = 8;

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
    put(path, &with_state(graph("state", DType::F32, &[])));
}

/// Writes a model with the tensors of a decoder: `attention_mask`, `input_ids` and `logits` of a
/// vocabulary of [`VOCABULARY`], and a state that no node uses.
pub(crate) fn write_decoder_bundle(path: &Path) {
    let symbol = |id| Expr::from(SymbolId(id));
    let buffer =
        |name: &str, kind, dtype, shape| BufferSpec { name: name.into(), kind, dtype, shape, weights_offset: None };
    let row = |length| vec![Expr::Const(1), length];
    let logits = vec![Expr::Const(1), symbol(0), Expr::Const(VOCABULARY)];
    let graph = graph("decoder", DType::F32, &[]);
    let copy = NodeKind::copy(BufferId(1), BufferId(2), symbol(0) * 8);
    put(
        path,
        &with_state(KernelGraph {
            symbols: vec![SymbolSpec::new("tokens", 1, 64), SymbolSpec::new("all", 1, 64)],
            buffers: vec![
                buffer("attention_mask", BufferKind::Input, DType::I64, row(symbol(1))),
                buffer("input_ids", BufferKind::Input, DType::I64, row(symbol(0))),
                buffer("logits", BufferKind::Output, DType::F32, logits),
            ],
            nodes: vec![Node {
                kind: copy,
                reads: vec![BufferId(1)],
                writes: vec![BufferId(2)],
                ..graph.nodes[0].clone()
            }],
            ..graph
        }),
    );
}

/// The graph with a state that no node uses.
fn with_state(mut graph: KernelGraph) -> KernelGraph {
    let (buffer, shape) = (BufferId(graph.buffers.len() as u32), vec![Expr::Const(4)]);
    let (kind, dtype) = (BufferKind::State, DType::F32);
    graph.buffers.push(BufferSpec { name: "h".into(), kind, dtype, shape: shape.clone(), weights_offset: None });
    graph.plan.states = vec![TempPlacement { buffer, offset: Expr::Const(0) }];
    graph.plan.state_bytes = Some(Expr::Const(256));
    graph.session.states = vec![StateSpec { buffer, input: "h".into(), output: "hn".into(), shape }];
    graph
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
