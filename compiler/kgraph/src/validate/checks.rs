//! What valid checks are.

use super::{Invalid, expression, invalid};
use crate::graph::KernelGraph;
use crate::limits::{CHECK_TEXT_BYTES_MAX, CHECKS_MAX};

/// Each belongs to a node, and its text has a number for every hole.
pub(super) fn check(graph: &KernelGraph) -> Result<(), Invalid> {
    if graph.checks.len() > CHECKS_MAX {
        return Err(invalid("checks", format!("{} checks, at most {CHECKS_MAX} are allowed", graph.checks.len())));
    }
    for (index, check) in graph.checks.iter().enumerate() {
        let place = format!("check {index}");
        if check.node.0 as usize >= graph.nodes.len() {
            return Err(invalid(place, format!("node {} does not exist", check.node.0)));
        }
        if check.text.is_empty() || check.text.len() > CHECK_TEXT_BYTES_MAX {
            return Err(invalid(
                place,
                format!("a text of {} bytes, 1 to {CHECK_TEXT_BYTES_MAX} are possible", check.text.len()),
            ));
        }
        if check.holes() != check.values.len() {
            return Err(invalid(place, format!("a text for {} numbers has {}", check.holes(), check.values.len())));
        }
        check.values.iter().try_for_each(|value| expression(graph, &place, value))?;
    }
    Ok(())
}
