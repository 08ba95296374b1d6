//! A model with one copy node: `out = in`, FP32 [batch, 4].

use atoll_kgraph::{
    BufferId, BufferKind, BufferSpec, BundleContents, DType, Expr, FORMAT_VERSION, KernelGraph, MemoryPlan, Node,
    NodeId, NodeKind, SymbolId, SymbolSpec, TargetContents, TargetImage,
};
use std::path::Path;

pub(crate) fn write_bundle(path: &Path) {
    write(path, "toy");
}

/// Writes the same model with another digest.
pub(crate) fn write_changed_bundle(path: &Path) {
    write(path, "changed");
}

fn write(path: &Path, name: &str) {
    let batch = Expr::from(SymbolId(0));
    let buffer = |name: &str, kind| BufferSpec {
        name: name.into(),
        kind,
        dtype: DType::F32,
        shape: vec![batch.clone(), Expr::Const(4)],
        weights_offset: None,
    };
    let graph = KernelGraph {
        format: FORMAT_VERSION,
        name: name.into(),
        symbols: vec![SymbolSpec::new("batch", 1, 64)],
        buffers: vec![buffer("in", BufferKind::Input), buffer("out", BufferKind::Output)],
        nodes: vec![Node {
            name: "copy".into(),
            kind: NodeKind::copy(BufferId(0), BufferId(1), batch.clone() * 16),
            reads: vec![BufferId(0)],
            writes: vec![BufferId(1)],
            after: vec![],
        }],
        plan: MemoryPlan { restore_points: vec![NodeId(0)], ..MemoryPlan::default() },
        ..KernelGraph::default()
    };
    let image = TargetImage { name: "test".into(), launches: vec![None], ..TargetImage::default() };
    let targets = vec![TargetContents { image, code: vec![0], ptx: None, source: None }];
    atoll_kgraph::write_bundle(
        path,
        &BundleContents { producer: "test".into(), graph: &graph, weights: vec![], targets },
    )
    .unwrap();
}
