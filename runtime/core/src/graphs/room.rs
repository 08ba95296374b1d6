//! What the devices that are left can hold, and the optimal assignments there.

use super::costs::CostTable;
use super::error::GraphError;
use super::graph::Graph;
use super::node::Node;
use super::plans::Plans;

/// What the plans of graphs depend on besides costs. With it they are found without the admission,
/// since that may take seconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Room {
    /// By kind, the bytes of its largest device; `None` if none is left.
    bytes: Vec<Option<u64>>,
    /// Whether all stages of a graph run on one kind.
    is_uniform: bool,
}

impl Room {
    pub(super) fn of(nodes: &[Node], kinds: usize, is_uniform: bool) -> Room {
        let mut bytes = vec![None; kinds];
        for node in nodes.iter().filter(|node| node.is_open()) {
            let most = &mut bytes[usize::from(node.spec.kind.0)];
            *most = (*most).max(Some(node.spec.bytes));
        }
        Room { bytes, is_uniform }
    }

    /// The optimal assignments of what the devices can hold.
    ///
    /// # Errors
    /// As [`Plans::new`], or if the table has other kinds of devices.
    pub fn plans(&self, graph: &Graph, costs: &CostTable) -> Result<Plans, GraphError> {
        if costs.kinds().len() != self.bytes.len() {
            return Err(GraphError::OtherKinds);
        }
        let fits = |bytes: u64, most: Option<u64>| most.is_some_and(|most| bytes <= most);
        let costs = costs.restricted(|kind, cost| fits(cost.bytes, self.bytes[usize::from(kind.0)]));
        if self.is_uniform { Ok(Plans::uniform(graph, &costs)) } else { Plans::new(graph, &costs) }
    }
}
