//! Validates runtime checks.

use super::{Invalid, expression, invalid};
use crate::graph::KernelGraph;
use crate::limits::{CHECK_TEXT_BYTES_MAX, CHECKS_MAX};

/// Every check belongs to a node, and its text has a number for every placeholder.
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
                format!("a text of {} bytes, 1 to {CHECK_TEXT_BYTES_MAX} are allowed", check.text.len()),
            ));
        }
        if check.placeholders() != check.values.len() {
            let (placeholders, values) = (check.placeholders(), check.values.len());
            return Err(invalid(place, format!("its text has {placeholders} placeholders for {values} values")));
        }
        check.values.iter().try_for_each(|value| expression(graph, &place, value))?;
    }
    Ok(())
}
