//! The outline of a bundle, for decisions before the bundle is stored.

use crate::graph::BufferKind;
use serde::Deserialize;

/// Name and number of constants of a bundle's graph. The rest of the bundle is not checked:
/// [`super::Bundle::open`] does that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outline {
    /// The name of the graph.
    pub name: String,
    /// Number of its constants.
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
