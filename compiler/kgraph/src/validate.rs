//! The border check of graphs and targets: after it, ids index, names are unique, layouts fit.

use crate::expr::Expr;
use crate::graph::{BUFFER_ALIGN, BufferId, BufferKind, KernelGraph, Node, NodeId, NodeKind};
use crate::target::{Argument, KernelFacts, LaunchSpec, TargetImage, preempt_params};
use std::collections::HashSet;

/// Most nodes of a graph: thirty times the largest known (swin, 6,600 nodes).
pub const NODES_MAX: usize = 200_000;
/// Most buffers of a graph.
const BUFFERS_MAX: usize = 1_000_000;
/// Most symbols: models name a handful.
const SYMBOLS_MAX: usize = 256;
/// Most dimensions of a tensor.
const RANK_MAX: usize = 16;
/// Largest block of any device.
const BLOCK_THREADS_MAX: u64 = 1024;
/// Largest parameter block of a kernel in bytes, all that passes append included: what a launch can carry, and what every PTX version allows.
pub const PARAMS_BYTES_MAX: u32 = 4096;

/// A contradiction in a graph or target.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {reason}")]
pub struct Invalid {
    place: String,
    reason: String,
}

fn invalid(place: impl ToString, reason: impl ToString) -> Invalid {
    Invalid { place: place.to_string(), reason: reason.to_string() }
}

/// Checks a graph whose weights are `weights_bytes` long.
pub fn graph(graph: &KernelGraph, weights_bytes: u64) -> Result<(), Invalid> {
    for (what, count, most) in [
        ("symbols", graph.symbols.len(), SYMBOLS_MAX),
        ("buffers", graph.buffers.len(), BUFFERS_MAX),
        ("nodes", graph.nodes.len(), NODES_MAX),
    ] {
        if count > most {
            return Err(invalid("graph", format!("{count} {what}, at most {most} are allowed")));
        }
    }
    for symbol in &graph.symbols {
        if symbol.min < 0 || symbol.max < symbol.min {
            return Err(invalid(&symbol.name, "a symbol's range is empty or negative"));
        }
    }
    buffers(graph, weights_bytes)?;
    let mut names = HashSet::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        if !names.insert(&node.name) {
            return Err(invalid(&node.name, "two nodes have this name"));
        }
        check_node(graph, index, node)?;
    }
    plan(graph)
}

fn buffers(graph: &KernelGraph, weights_bytes: u64) -> Result<(), Invalid> {
    let mut names = HashSet::new();
    for buffer in &graph.buffers {
        if !names.insert(&buffer.name) {
            return Err(invalid(&buffer.name, "two buffers have this name"));
        }
        if buffer.shape.len() > RANK_MAX {
            return Err(invalid(&buffer.name, format!("{} dimensions, at most {RANK_MAX} are allowed", buffer.shape.len())));
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
            _ => return Err(invalid(&buffer.name, "exactly the constants have a place in the weights")),
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
        return Err(invalid(&node.name, "comes before a node it waits for"));
    }
    if let NodeKind::Copy { from, to, bytes } = &node.kind {
        if !node.reads.contains(from) || !node.writes.contains(to) {
            return Err(invalid(&node.name, "copies buffers it does not list"));
        }
        expression(graph, &node.name, bytes)?;
    }
    Ok(())
}

fn plan(graph: &KernelGraph) -> Result<(), Invalid> {
    let place = "memory plan";
    let mut placed = HashSet::new();
    for temp in &graph.plan.temps {
        let is_temp = graph.buffers.get(temp.buffer.0 as usize).is_some_and(|b| b.kind == BufferKind::Temp);
        if !is_temp || !placed.insert(temp.buffer) {
            return Err(invalid(place, format!("buffer {} is not a temporary one or is placed twice", temp.buffer.0)));
        }
        expression(graph, place, &temp.offset)?;
    }
    if let Some((id, _)) = graph.buffers_of(BufferKind::Temp).find(|(id, _)| !placed.contains(id)) {
        return Err(invalid(place, format!("buffer {} has no place", id.0)));
    }
    for bytes in graph.plan.arena_bytes.iter().chain(&graph.plan.unshared_bytes) {
        expression(graph, place, bytes)?;
    }
    let points = &graph.plan.restore_points;
    if points.len() != graph.nodes.len() || points.iter().enumerate().any(|(node, &NodeId(point))| point as usize > node + 1) {
        return Err(invalid(place, "needs one restore point per node, at most the one behind it"));
    }
    Ok(())
}

/// Checks a target against a valid graph.
pub fn target(graph: &KernelGraph, target: &TargetImage) -> Result<(), Invalid> {
    if target.launches.len() != graph.nodes.len() {
        return Err(invalid(&target.name, format!("{} launches for {} nodes", target.launches.len(), graph.nodes.len())));
    }
    for kernel in &target.kernels {
        let threads: u64 = kernel.block.iter().map(|&d| u64::from(d)).product();
        if threads == 0 || threads > BLOCK_THREADS_MAX {
            return Err(invalid(&kernel.name, format!("a block of {threads} threads, 1 to {BLOCK_THREADS_MAX} are possible")));
        }
        if kernel.params_bytes > PARAMS_BYTES_MAX {
            return Err(invalid(
                &kernel.name,
                format!("{} bytes of parameters, at most {PARAMS_BYTES_MAX} are possible", kernel.params_bytes),
            ));
        }
        if kernel
            .preempt_offset
            .is_some_and(|at| !at.is_multiple_of(8) || at.checked_add(preempt_params::BYTES) != Some(kernel.params_bytes))
        {
            return Err(invalid(&kernel.name, "the preemption parameters are not the last ones"));
        }
        if kernel.leaves_silently && kernel.preempt_offset.is_none() {
            return Err(invalid(&kernel.name, "leaves silently without the preemption parameters by which it would"));
        }
    }
    for (node, spec) in graph.nodes.iter().zip(&target.launches) {
        match (&node.kind, spec) {
            (NodeKind::Kernel, Some(spec)) => launch(graph, target, node, spec)?,
            (NodeKind::Copy { .. }, None) => {}
            _ => return Err(invalid(&node.name, "a kernel node needs a launch, another one must have none")),
        }
    }
    Ok(())
}

fn launch(graph: &KernelGraph, target: &TargetImage, node: &Node, spec: &LaunchSpec) -> Result<(), Invalid> {
    let Some(kernel) = target.kernels.get(spec.kernel.0 as usize) else {
        return Err(invalid(&node.name, "names a kernel that does not exist"));
    };
    for dimension in &spec.grid {
        expression(graph, &node.name, dimension)?;
    }
    for argument in &spec.args {
        match argument {
            Argument::Buffer { buffer, offset } => {
                if !node.reads.contains(buffer) && !node.writes.contains(buffer) {
                    return Err(invalid(&node.name, format!("is given buffer {}, which it does not list", buffer.0)));
                }
                expression(graph, &node.name, offset)?;
            }
            Argument::Int { value, dtype } => {
                if !matches!(dtype.bytes(), 4 | 8) {
                    return Err(invalid(&node.name, "an integer literal is 32 or 64 bits wide"));
                }
                expression(graph, &node.name, value)?;
            }
            Argument::F32 { .. } | Argument::F64 { .. } => {}
        }
    }
    let own_bytes = params_layout(&spec.args).1;
    if !fits(kernel, own_bytes) {
        return Err(invalid(&node.name, format!("{own_bytes} bytes of arguments do not fit kernel {}", kernel.name)));
    }
    Ok(())
}

fn fits(kernel: &KernelFacts, own_bytes: u32) -> bool {
    kernel.preempt_offset.map_or(kernel.params_bytes == own_bytes, |at| at == own_bytes.next_multiple_of(8))
}

/// Byte offset of every argument in the parameter block by natural alignment, and the end of the last one.
pub fn params_layout(args: &[Argument]) -> (Vec<u32>, u32) {
    let mut end = 0_u32;
    let offsets = args
        .iter()
        .map(|argument| {
            let at = end.next_multiple_of(argument.bytes());
            end = at + argument.bytes();
            at
        })
        .collect();
    (offsets, end)
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
