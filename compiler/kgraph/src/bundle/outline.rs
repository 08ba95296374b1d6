//! What a bundle says of itself, for decisions before it is stored.

use crate::graph::BufferKind;
use serde::Deserialize;

/// The name of a bundle's graph, and how many constants it has. Nothing else of the bundle is known
/// to be right: [`super::Bundle::open`] checks it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outline {
    /// The name of the graph.
    pub name: String,
    /// Its constants.
    pub constants: u64,
}

/// The parts of a graph that an outline needs.
#[derive(Deserialize)]
pub(super) struct GraphOutline {
    name: String,
    buffers: Vec<BufferOutline>,
}

#[derive(Deserialize)]
struct BufferOutline {
    kind: BufferKind,
}

impl From<GraphOutline> for Outline {
    fn from(graph: GraphOutline) -> Outline {
        let constants = graph.buffers.iter().filter(|buffer| buffer.kind == BufferKind::Const).count() as u64;
        Outline { name: graph.name, constants }
    }
}
