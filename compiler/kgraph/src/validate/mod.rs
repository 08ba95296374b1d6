//! Validation of graphs and targets. Afterwards all ids are valid indices, names are unique, and
//! arguments fit their kernels.

mod batch;
mod checks;
mod conditions;
mod segments;
mod session;
mod target;

use crate::expr::Expr;
use crate::features::Feature;
use crate::graph::{BUFFER_ALIGN, BufferId, BufferKind, KernelGraph, Node, NodeId, NodeKind, TempPlacement};
use crate::limits::{BUFFERS_MAX, CONDITIONS_MAX, RANK_MAX, SYMBOLS_MAX};
pub use crate::limits::{NODES_MAX, PARAMS_BYTES_MAX};
use crate::strings;
use std::collections::HashSet;
pub use target::{params_layout, target};

/// An inconsistency in a graph or target.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {reason}")]
pub struct Invalid {
    place: String,
    reason: String,
}

fn invalid(place: impl ToString, reason: impl ToString) -> Invalid {
    Invalid { place: place.to_string(), reason: reason.to_string() }
}

/// Checks that a bundle and its graph have the same format version.
pub fn format(bundle: u32, graph: u32) -> Result<(), Invalid> {
    if bundle != graph {
        return Err(invalid("graph", format!("it has format {graph}, its bundle has format {bundle}")));
    }
    Ok(())
}

/// Checks that the format has all features that are used; format 1 has none.
pub fn features(format: u32, used: &[Feature]) -> Result<(), Invalid> {
    match used.first() {
        Some(feature) if format < 2 => {
            Err(invalid("graph", format!("it uses {feature}, which format {format} does not have")))
        }
        _ => Ok(()),
    }
}

/// Checks a graph whose weights are `weights_bytes` long.
pub fn graph(graph: &KernelGraph, weights_bytes: u64) -> Result<(), Invalid> {
    for (what, count, most) in [
        ("symbols", graph.symbols.len(), SYMBOLS_MAX),
        ("buffers", graph.buffers.len(), BUFFERS_MAX),
        ("nodes", graph.nodes.len(), NODES_MAX),
        ("conditions", graph.conditions.len(), CONDITIONS_MAX),
    ] {
        if count > most {
            return Err(invalid("graph", format!("{count} {what}, at most {most} are allowed")));
        }
    }
    buffers(graph, weights_bytes)?;
    conditions::check(graph)?;
    let mut names = HashSet::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        if !names.insert(&node.name) {
            return Err(invalid(&node.name, "two nodes have this name"));
        }
        check_node(graph, index, node)?;
    }
    plan(graph)?;
    batch::check(graph)?;
    segments::read_backs(graph)?;
    session::check(graph)?;
    segments::check(graph)?;
    checks::check(graph)?;
    strings::check(graph).map_err(|(place, reason)| invalid(place, reason))
}

fn buffers(graph: &KernelGraph, weights_bytes: u64) -> Result<(), Invalid> {
    let mut names = HashSet::new();
    for buffer in &graph.buffers {
        if !names.insert(&buffer.name) {
            return Err(invalid(&buffer.name, "two buffers have this name"));
        }
        if buffer.shape.len() > RANK_MAX {
            return Err(invalid(
                &buffer.name,
                format!("{} dimensions, at most {RANK_MAX} are allowed", buffer.shape.len()),
            ));
        }
        for dimension in &buffer.shape {
            expression(graph, &buffer.name, dimension)?;
        }
        let is_const = buffer.kind == BufferKind::Const;
        match (is_const, buffer.weights_offset) {
            (true, Some(offset)) => {
                let bytes = buffer.bytes().eval(&[]).ok().and_then(|b| u64::try_from(b).ok());
                let end = bytes.and_then(|b| b.checked_add(offset));
                if !offset.is_multiple_of(BUFFER_ALIGN) || end.is_none_or(|end| end > weights_bytes) {
                    return Err(invalid(&buffer.name, "a constant lies outside the weights or is not aligned"));
                }
            }
            (false, None) => {}
            _ => {
                return Err(invalid(
                    &buffer.name,
                    "a constant needs an offset in the weights, and only a constant has one",
                ));
            }
        }
    }
    Ok(())
}

fn check_node(graph: &KernelGraph, index: usize, node: &Node) -> Result<(), Invalid> {
    let known = |id: &BufferId| (id.0 as usize) < graph.buffers.len();
    if !node.reads.iter().chain(&node.writes).all(known) {
        return Err(invalid(&node.name, "names a buffer that does not exist"));
    }
    if node.writes.iter().any(|id| matches!(graph.buffers[id.0 as usize].kind, BufferKind::Const | BufferKind::Input)) {
        return Err(invalid(&node.name, "writes an input or a constant"));
    }
    if node.after.iter().any(|before| before.0 as usize >= index) {
        return Err(invalid(&node.name, "comes before a node that it depends on"));
    }
    let expressions = match &node.kind {
        NodeKind::Kernel => return Ok(()),
        NodeKind::Copy { from, from_offset, to, to_offset, bytes } => {
            if !node.reads.contains(from) || !node.writes.contains(to) {
                return Err(invalid(&node.name, "copies buffers it does not list"));
            }
            vec![from_offset, to_offset, bytes]
        }
        NodeKind::Fill { to, offset, bytes, pattern } => {
            if !node.writes.contains(to) {
                return Err(invalid(&node.name, "fills a buffer it does not list"));
            }
            if !matches!(pattern.len(), 1 | 2 | 4 | 8) {
                return Err(invalid(
                    &node.name,
                    format!("a pattern of {} bytes, 1, 2, 4 and 8 are allowed", pattern.len()),
                ));
            }
            vec![offset, bytes]
        }
    };
    expressions.into_iter().try_for_each(|expr| expression(graph, &node.name, expr))
}

fn plan(graph: &KernelGraph) -> Result<(), Invalid> {
    let place = "memory plan";
    places(graph, BufferKind::Temp, &graph.plan.temps)?;
    places(graph, BufferKind::State, &graph.plan.states)?;
    for bytes in graph.plan.arena_bytes.iter().chain(&graph.plan.unshared_bytes).chain(&graph.plan.state_bytes) {
        expression(graph, place, bytes)?;
    }
    let points = &graph.plan.restore_points;
    if points.len() != graph.nodes.len()
        || points.iter().enumerate().any(|(node, &NodeId(point))| point as usize > node + 1)
    {
        return Err(invalid(place, "needs one restore point per node, at most the node after it"));
    }
    Ok(())
}

/// Checks that every buffer of a kind has exactly one place.
fn places(graph: &KernelGraph, kind: BufferKind, places: &[TempPlacement]) -> Result<(), Invalid> {
    let place = "memory plan";
    let mut placed = HashSet::new();
    for TempPlacement { buffer, offset } in places {
        let fits = graph.buffers.get(buffer.0 as usize).is_some_and(|spec| spec.kind == kind);
        if !fits || !placed.insert(*buffer) {
            return Err(invalid(place, format!("buffer {} is not of kind {kind:?} or is placed twice", buffer.0)));
        }
        expression(graph, place, offset)?;
    }
    match graph.buffers_of(kind).find(|(id, _)| !placed.contains(id)) {
        Some((id, _)) => Err(invalid(place, format!("buffer {} has no place", id.0))),
        None => Ok(()),
    }
}

fn expression(graph: &KernelGraph, place: &str, expr: &Expr) -> Result<(), Invalid> {
    match expr {
        Expr::Const(_) => Ok(()),
        Expr::Symbol(id) if (id.0 as usize) < graph.symbols.len() => Ok(()),
        Expr::Symbol(id) => Err(invalid(place, format!("symbol {} does not exist", id.0))),
        Expr::Add(a, b)
        | Expr::Sub(a, b)
        | Expr::Mul(a, b)
        | Expr::FloorDiv(a, b)
        | Expr::CeilDiv(a, b)
        | Expr::Max(a, b)
        | Expr::Min(a, b) => expression(graph, place, a).and_then(|()| expression(graph, place, b)),
    }
}
