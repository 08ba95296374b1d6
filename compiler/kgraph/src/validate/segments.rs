//! Validates segments, and symbols that are read back from the device.

use super::{Invalid, expression, invalid};
use crate::expr::Expr;
use crate::graph::{BufferKind, DType, KernelGraph, NodeId, NodeKind, ReadBack};
use crate::limits::{SEGMENT_DEPTH_MAX, TRIPS_MAX};
use crate::segment::{Scalar, Segment};
use std::collections::HashSet;

/// Checks that every node is in exactly one segment, in order, and that no restore point is in
/// another segment.
pub(super) fn check(graph: &KernelGraph) -> Result<(), Invalid> {
    if graph.segments.is_empty() {
        return Ok(());
    }
    let mut checker = Checker { graph, next: 0 };
    checker.list(&graph.segments, 0)?;
    if checker.next as usize != graph.nodes.len() {
        return Err(invalid(
            "segments",
            format!("they end before node {}, the graph has {}", checker.next, graph.nodes.len()),
        ));
    }
    Ok(())
}

struct Checker<'a> {
    graph: &'a KernelGraph,
    /// The first node that is not in a segment yet.
    next: u32,
}

impl Checker<'_> {
    fn list(&mut self, segments: &[Segment], depth: usize) -> Result<(), Invalid> {
        if depth > SEGMENT_DEPTH_MAX {
            return Err(invalid("segments", format!("nested deeper than {SEGMENT_DEPTH_MAX}")));
        }
        segments.iter().try_for_each(|segment| self.segment(segment, depth))
    }

    fn segment(&mut self, segment: &Segment, depth: usize) -> Result<(), Invalid> {
        match segment {
            Segment::Nodes { first, end } => self.nodes(*first, *end, depth),
            Segment::If { condition, then, otherwise } => {
                border_scalar(self.graph, "the condition of an if", condition)?;
                self.list(then, depth + 1)?;
                self.list(otherwise, depth + 1)
            }
            Segment::Loop { trips, count, condition, trips_max, body } => {
                let place = "a loop";
                if let Some(trips) = trips {
                    expression(self.graph, place, trips)?;
                    self.is_known(place, trips)?;
                }
                if let Some(count) = count {
                    border_scalar(self.graph, "the number of iterations of a loop", count)?;
                }
                if let Some(condition) = condition {
                    border_scalar(self.graph, "the condition of a loop", condition)?;
                }
                if trips.is_none() && count.is_none() && condition.is_none() {
                    return Err(invalid(place, "it needs a number of iterations or a condition that ends it"));
                }
                if *trips_max == 0 || *trips_max > TRIPS_MAX {
                    return Err(invalid(
                        place,
                        format!("at most {trips_max} iterations, 1 to {TRIPS_MAX} are allowed"),
                    ));
                }
                self.list(body, depth + 1)
            }
        }
    }

    /// Checks that the number of iterations does not depend on a size that is read back after the
    /// loop has begun.
    fn is_known(&self, place: &str, trips: &Expr) -> Result<(), Invalid> {
        let is_later = |one: &&ReadBack| one.after.0 >= self.next && trips.depends_on(one.symbol);
        let Some(later) = self.graph.read_backs.iter().find(is_later) else { return Ok(()) };
        let size = &self.graph.symbols[later.symbol.0 as usize].name;
        Err(invalid(place, format!("its number of iterations depends on `{size}`, which is read back later")))
    }

    fn nodes(&mut self, first: NodeId, end: NodeId, depth: usize) -> Result<(), Invalid> {
        if first.0 != self.next || end.0 <= first.0 || end.0 as usize > self.graph.nodes.len() {
            return Err(invalid("segments", format!("nodes {} to {}, but node {} is next", first.0, end.0, self.next)));
        }
        let points = &self.graph.plan.restore_points[first.0 as usize..end.0 as usize];
        if points.iter().any(|point| *point < first) {
            return Err(invalid(
                "segments",
                format!("the segment from node {} has a restore point in another segment", first.0),
            ));
        }
        let is_here = |read_back: &&ReadBack| (first..end).contains(&read_back.after);
        if let Some(read_back) = self.graph.read_backs.iter().find(is_here).filter(|_| depth > 0) {
            let (size, node) = (&self.graph.symbols[read_back.symbol.0 as usize].name, read_back.after.0 as usize);
            return Err(invalid(
                &self.graph.nodes[node].name,
                format!("the size `{size}` is read back after it, which is not possible inside an if or a loop"),
            ));
        }
        self.next = end.0;
        Ok(())
    }
}

/// Checks symbols that are read back: each is read once, after a node that writes the value, and
/// used only after that.
pub(super) fn read_backs(graph: &KernelGraph) -> Result<(), Invalid> {
    let mut seen = HashSet::new();
    if !graph.read_backs.is_sorted_by_key(|read_back| read_back.after) {
        return Err(invalid("sizes that are read back", "they are not in the order of their nodes"));
    }
    for ReadBack { symbol, after, value, most } in &graph.read_backs {
        let place = "a size that is read back";
        let Some(spec) = graph.symbols.get(symbol.0 as usize).filter(|_| seen.insert(*symbol)) else {
            return Err(invalid(place, format!("symbol {} does not exist or is read back twice", symbol.0)));
        };
        let place = format!("the size `{}`", spec.name);
        if let Some(most) = most {
            expression(graph, &place, most)?;
            let later =
                graph.read_backs.iter().filter(|other| !seen.contains(&other.symbol) || other.symbol == *symbol);
            if let Some(unknown) = later.map(|other| other.symbol).find(|other| most.depends_on(*other)) {
                let name = &graph.symbols[unknown.0 as usize].name;
                return Err(invalid(
                    place,
                    format!("its largest value depends on `{name}`, which is not known earlier"),
                ));
            }
        }
        scalar(graph, &place, value)?;
        match graph.nodes.get(after.0 as usize) {
            None => return Err(invalid(place, format!("node {} does not exist", after.0))),
            Some(node) if !node.writes.contains(&value.buffer) => {
                return Err(invalid(place, format!("{} does not write it", node.name)));
            }
            Some(_) => {}
        }
        let fixed = graph.buffers.iter().filter(|buffer| matches!(buffer.kind, BufferKind::Input | BufferKind::State));
        if let Some(buffer) =
            fixed.clone().find(|buffer| buffer.shape.iter().any(|dimension| dimension.depends_on(*symbol)))
        {
            return Err(invalid(place, format!("{} depends on it, but is allocated before it is read", buffer.name)));
        }
        let early = graph.nodes[..=after.0 as usize].iter().find(|node| match &node.kind {
            NodeKind::Kernel => false,
            NodeKind::Copy { from_offset, to_offset, bytes, .. } => {
                [from_offset, to_offset, bytes].iter().any(|expr| expr.depends_on(*symbol))
            }
            NodeKind::Fill { offset, bytes, .. } => [offset, bytes].iter().any(|expr| expr.depends_on(*symbol)),
        });
        if let Some(node) = early {
            return Err(invalid(place, format!("{} depends on it, but comes before it is read", node.name)));
        }
    }
    Ok(())
}

/// Checks that a scalar read at a border of a segment lies in the memory of the invocation.
fn border_scalar(graph: &KernelGraph, place: &str, value: &Scalar) -> Result<(), Invalid> {
    scalar(graph, place, value)?;
    let spec = &graph.buffers[value.buffer.0 as usize];
    match spec.kind {
        BufferKind::Input | BufferKind::Output | BufferKind::Temp => Ok(()),
        BufferKind::Const | BufferKind::State => {
            Err(invalid(place, format!("{} is a constant or a state; only a copy of it can be read here", spec.name)))
        }
    }
}

fn scalar(graph: &KernelGraph, place: &str, scalar: &Scalar) -> Result<(), Invalid> {
    let Scalar { buffer, offset, dtype } = scalar;
    let Some(spec) = graph.buffers.get(buffer.0 as usize) else {
        return Err(invalid(place, format!("buffer {} does not exist", buffer.0)));
    };
    if dtype.is_float() || dtype.is_narrow() || *dtype == DType::Strings {
        return Err(invalid(place, format!("a {dtype:?} is neither an integer nor a bool of whole bytes")));
    }
    let end = offset.checked_add(dtype.bytes()).and_then(|end| i64::try_from(end).ok());
    let smallest: Vec<i64> = graph.symbols.iter().map(|symbol| symbol.min).collect();
    let fits = spec.bytes().eval(&smallest).is_ok_and(|bytes| end.is_some_and(|end| end <= bytes));
    if !offset.is_multiple_of(dtype.bytes()) || !fits {
        return Err(invalid(
            place,
            format!("byte {offset} of {} is misaligned, or outside of it for the smallest symbol values", spec.name),
        ));
    }
    Ok(())
}
