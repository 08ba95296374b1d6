//! Validates sessions.

use super::{Invalid, expression, invalid};
use crate::graph::{BufferKind, KernelGraph};
use crate::limits::RANK_MAX;
use crate::session::{SessionSymbol, StateSpec};
use std::collections::HashSet;

pub(super) fn check(graph: &KernelGraph) -> Result<(), Invalid> {
    let mut seen = HashSet::new();
    for SessionSymbol { symbol, first, next } in &graph.session.symbols {
        let place = format!("session symbol {}", symbol.0);
        let Some(spec) = graph.symbols.get(symbol.0 as usize) else {
            return Err(invalid(place, "there is no such symbol"));
        };
        if !seen.insert(*symbol)
            || graph.read_back_of(*symbol).is_some()
            || graph.elements.iter().any(|element| element.symbol == *symbol)
        {
            return Err(invalid(place, "its value has two sources"));
        }
        if !(spec.min..=spec.max).contains(first) {
            return Err(invalid(place, format!("it begins with {first}; {}", spec.range_text())));
        }
        expression(graph, &place, next)?;
        // The memory of a session has a fixed size.
        let resizes = |buffer: &&crate::graph::BufferSpec| {
            buffer.kind == BufferKind::State && buffer.shape.iter().any(|d| d.depends_on(*symbol))
        };
        if let Some(buffer) = graph.buffers.iter().find(resizes) {
            return Err(invalid(place, format!("the size of state buffer {} depends on it", buffer.name)));
        }
    }
    for StateSpec { buffer, input, shape, .. } in &graph.session.states {
        let place = format!("state {input}");
        if graph.buffers.get(buffer.0 as usize).is_none_or(|spec| spec.kind != BufferKind::State) {
            return Err(invalid(place, format!("buffer {} is not a state buffer", buffer.0)));
        }
        if shape.len() > RANK_MAX {
            return Err(invalid(place, format!("{} dimensions, at most {RANK_MAX} are allowed", shape.len())));
        }
        shape.iter().try_for_each(|dimension| expression(graph, &place, dimension))?;
    }
    Ok(())
}
