//! The memory of the devices that accept requests, and the optimal assignments that fit it.

use super::costs::CostTable;
use super::error::GraphError;
use super::graph::Graph;
use super::node::Node;
use super::plans::Plans;

/// The state of the cluster that plans of graphs depend on. A copy lets a caller find plans, which
/// may take seconds, without access to the admission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Room {
    /// Memory of the largest open device of each kind, in bytes; `None` if a kind has none.
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

    /// The optimal assignments, among those whose constants fit the devices.
    ///
    /// # Errors
    /// As [`Plans::new`], or [`GraphError::OtherKinds`] if the table has another number of kinds.
    pub fn plans(&self, graph: &Graph, costs: &CostTable) -> Result<Plans, GraphError> {
        if costs.kinds().len() != self.bytes.len() {
            return Err(GraphError::OtherKinds);
        }
        let fits = |bytes: u64, most: Option<u64>| most.is_some_and(|most| bytes <= most);
        let costs = costs.restricted(|kind, cost| fits(cost.bytes, self.bytes[usize::from(kind.0)]));
        if self.is_uniform { Ok(Plans::uniform(graph, &costs)) } else { Plans::new(graph, &costs) }
    }
}
