//! A model with one copy node: `out = in`, FP32 [batch, 4].

use atoll_kgraph::strings::Strings;
use atoll_kgraph::{
    BufferId, BufferKind, BufferSpec, BundleContents, DType, Expr, FORMAT_VERSION, KernelGraph, MemoryPlan, Node,
    NodeId, NodeKind, SymbolId, SymbolSpec, TargetContents, TargetImage,
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

fn write(path: &Path, name: &str, dtype: DType) {
    let batch = Expr::from(SymbolId(0));
    let buffer = |name: &str, kind| BufferSpec {
        name: name.into(),
        kind,
        dtype,
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
        strings: match dtype {
            DType::Strings => Strings { table: vec![String::new()], steps: vec![] },
            _ => Strings::default(),
        },
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
