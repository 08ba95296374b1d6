//! The control flow of a graph as a list of items with jumps, and the choice of the next item.
//!
//! A runtime executes the items in order. At a [`Border`] it reads the scalars that the border
//! needs from the device, and asks for the next item. The choice is a pure function of the values
//! that were read.

use crate::expr::{EvalError, Expr};
use crate::graph::{KernelGraph, NodeId};
use crate::segment::{Scalar, Segment};
use std::ops::Range;

/// The nodes and borders of a graph in layout order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    /// The items. For a graph without segments, all nodes in order.
    pub items: Vec<FlowItem>,
    /// The loops; [`Border::Enter`] and [`Border::Repeat`] refer to them by index.
    pub loops: Vec<FlowLoop>,
}

/// An item of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowItem {
    /// A node, by index.
    Node(u32),
    /// A border.
    Border(Border),
}

/// A place at which the next item is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Border {
    /// The beginning of an `if`: continues at the next item if the condition is nonzero, else at
    /// item `otherwise`.
    Branch {
        /// True if nonzero.
        condition: Scalar,
        /// The first item of the other branch.
        otherwise: usize,
    },
    /// The end of the first branch of an `if`: continues after the other branch.
    Leave {
        /// The item after the `if`.
        to: usize,
    },
    /// The beginning of a loop.
    Enter(usize),
    /// The end of an iteration of a loop.
    Repeat(usize),
}

/// A loop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowLoop {
    /// See [`Segment::Loop`].
    pub trips: Option<Expr>,
    /// See [`Segment::Loop`].
    pub count: Option<Scalar>,
    /// See [`Segment::Loop`].
    pub condition: Option<Scalar>,
    /// See [`Segment::Loop`].
    pub trips_max: u64,
    /// The nodes of its body.
    pub nodes: Range<u32>,
    /// The items of its body, without the loop's borders.
    pub body: Range<usize>,
}

/// The progress of a loop that has been entered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoopProgress {
    /// Number of completed iterations.
    done: u64,
    /// Maximum number of iterations; `u64::MAX` if only the condition ends the loop.
    trips: u64,
}

/// Error: a loop would exceed its maximum number of iterations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it has run {trips_max} iterations, which is its limit (trips_max), and would go on")]
pub struct TooManyTrips {
    /// The limit.
    pub trips_max: u64,
}

impl Flow {
    /// The control flow of a valid graph.
    pub fn of(graph: &KernelGraph) -> Flow {
        let mut flow = Flow::default();
        match graph.segments.as_slice() {
            [] => flow.items.extend((0..graph.nodes.len() as u32).map(FlowItem::Node)),
            segments => flow.list(segments, &mut 0),
        }
        flow
    }

    /// Appends segments. `next` is the node after the segments so far.
    fn list(&mut self, segments: &[Segment], next: &mut u32) {
        for segment in segments {
            match segment {
                Segment::Nodes { first: NodeId(first), end: NodeId(end) } => {
                    self.items.extend((*first..*end).map(FlowItem::Node));
                    *next = *end;
                }
                Segment::If { condition, then, otherwise } => {
                    let branch = self.hole();
                    self.list(then, next);
                    let leave = (!otherwise.is_empty()).then(|| self.hole());
                    self.items[branch] =
                        FlowItem::Border(Border::Branch { condition: *condition, otherwise: self.items.len() });
                    self.list(otherwise, next);
                    if let Some(leave) = leave {
                        self.items[leave] = FlowItem::Border(Border::Leave { to: self.items.len() });
                    }
                }
                Segment::Loop { trips, count, condition, trips_max, body } => {
                    let index = self.loops.len();
                    self.items.push(FlowItem::Border(Border::Enter(index)));
                    let (first_item, first_node) = (self.items.len(), *next);
                    self.loops.push(FlowLoop {
                        trips: trips.clone(),
                        count: *count,
                        condition: *condition,
                        trips_max: *trips_max,
                        nodes: first_node..first_node,
                        body: first_item..first_item,
                    });
                    self.list(body, next);
                    (self.loops[index].nodes.end, self.loops[index].body.end) = (*next, self.items.len());
                    self.items.push(FlowItem::Border(Border::Repeat(index)));
                }
            }
        }
    }

    /// Appends an item that is filled in later. Returns its index.
    fn hole(&mut self) -> usize {
        self.items.push(FlowItem::Border(Border::Leave { to: 0 }));
        self.items.len() - 1
    }
}

impl FlowLoop {
    /// Begins the loop. Returns its progress with the maximum number of iterations. `count` is the
    /// value of [`FlowLoop::count`].
    ///
    /// # Errors
    /// The number of iterations cannot be computed from the symbols.
    pub fn enter(&self, count: Option<i64>, symbols: &[i64]) -> Result<LoopProgress, EvalError> {
        let trips = self.trips.as_ref().map(|trips| trips.eval(symbols)).transpose()?;
        let least = [trips, count].into_iter().flatten().min();
        Ok(LoopProgress { done: 0, trips: least.map_or(u64::MAX, |trips| u64::try_from(trips).unwrap_or(0)) })
    }

    /// Whether another iteration begins. `condition` is the value of [`FlowLoop::condition`], which
    /// is not used if [`LoopProgress::is_over`].
    ///
    /// # Errors
    /// The loop would exceed its limit.
    pub fn goes_on(&self, progress: LoopProgress, condition: Option<bool>) -> Result<bool, TooManyTrips> {
        if progress.is_over() || condition == Some(false) {
            return Ok(false);
        }
        if progress.done >= self.trips_max {
            return Err(TooManyTrips { trips_max: self.trips_max });
        }
        Ok(true)
    }

    /// The item after [`Border::Enter`] or [`Border::Repeat`].
    pub fn next(&self, goes_on: bool) -> usize {
        if goes_on { self.body.start } else { self.body.end + 1 }
    }
}

impl LoopProgress {
    /// Whether the number of iterations is reached; the condition does not matter then.
    pub fn is_over(&self) -> bool {
        self.done >= self.trips
    }

    /// Records that an iteration has ended.
    pub fn repeat(&mut self) {
        self.done += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{BufferId, DType};

    fn nodes(first: u32, end: u32) -> Segment {
        Segment::Nodes { first: NodeId(first), end: NodeId(end) }
    }

    fn scalar(buffer: u32) -> Scalar {
        Scalar { buffer: BufferId(buffer), offset: 0, dtype: DType::Bool }
    }

    /// Returns the nodes that run, in order. `read` returns the value of a scalar.
    fn run(segments: Vec<Segment>, mut read: impl FnMut(Scalar) -> i64) -> Result<Vec<u32>, TooManyTrips> {
        let flow = Flow::of(&KernelGraph { segments, ..KernelGraph::default() });
        let mut progress = vec![LoopProgress::default(); flow.loops.len()];
        let (mut ran, mut at) = (Vec::new(), 0);
        while let Some(item) = flow.items.get(at) {
            at = match *item {
                FlowItem::Node(node) => {
                    ran.push(node);
                    at + 1
                }
                FlowItem::Border(Border::Branch { condition, otherwise }) => {
                    if read(condition) != 0 {
                        at + 1
                    } else {
                        otherwise
                    }
                }
                FlowItem::Border(Border::Leave { to }) => to,
                FlowItem::Border(border @ (Border::Enter(index) | Border::Repeat(index))) => {
                    let own = &flow.loops[index];
                    match border {
                        Border::Enter(_) => {
                            progress[index] = own.enter(own.count.map(&mut read), &[3]).expect("a number");
                        }
                        _ => progress[index].repeat(),
                    }
                    let is_over = progress[index].is_over();
                    let condition = own.condition.filter(|_| !is_over).map(|scalar| read(scalar) != 0);
                    own.next(own.goes_on(progress[index], condition)?)
                }
            };
        }
        Ok(ran)
    }

    #[test]
    fn a_graph_without_segments_runs_its_nodes_in_order() {
        let node = crate::graph::Node {
            name: "n".into(),
            kind: crate::graph::NodeKind::Kernel,
            reads: vec![],
            writes: vec![],
            after: vec![],
        };
        let flow = Flow::of(&KernelGraph { nodes: vec![node.clone(), node], ..KernelGraph::default() });
        assert_eq!(flow.items, [FlowItem::Node(0), FlowItem::Node(1)]);
    }

    #[test]
    fn branches_and_loops_nest() {
        let segments = || {
            vec![
                nodes(0, 1),
                Segment::Loop {
                    trips: Some(Expr::Symbol(crate::SymbolId(0))),
                    count: None,
                    condition: None,
                    trips_max: 5,
                    body: vec![
                        nodes(1, 2),
                        Segment::If { condition: scalar(7), then: vec![nodes(2, 3)], otherwise: vec![nodes(3, 4)] },
                        Segment::If { condition: scalar(8), then: vec![nodes(4, 5)], otherwise: vec![] },
                    ],
                },
                nodes(5, 6),
            ]
        };
        let mut turn = 0;
        let alternating = |Scalar { buffer, .. }| {
            turn += i64::from(buffer.0 == 7);
            turn % 2
        };
        assert_eq!(run(segments(), alternating), Ok(vec![0, 1, 2, 4, 1, 3, 1, 2, 4, 5]));
        assert_eq!(run(segments(), |_| 0), Ok(vec![0, 1, 3, 1, 3, 1, 3, 5]));
    }

    #[test]
    fn a_loop_ends_by_its_count_its_condition_or_its_limit() {
        let of = |count, condition| {
            vec![Segment::Loop { trips: None, count, condition, trips_max: 4, body: vec![nodes(0, 1)] }, nodes(1, 2)]
        };
        let counted = |count: i64| run(of(Some(scalar(1)), None), move |_| count).map(|ran| ran.len());
        assert_eq!([-3, 0, 1, 4].map(counted), [Ok(1), Ok(1), Ok(2), Ok(5)]);
        assert_eq!(counted(5), Err(TooManyTrips { trips_max: 4 }));
        let mut left = 3;
        let falls = |_| {
            left -= 1;
            i64::from(left >= 0)
        };
        assert_eq!(run(of(None, Some(scalar(2))), falls), Ok(vec![0, 0, 0, 1]));
        assert_eq!(run(of(None, Some(scalar(2))), |_| 1), Err(TooManyTrips { trips_max: 4 }));
        // The count ends the loop, so the condition is not read again.
        let both = |scalar: Scalar| if scalar.buffer.0 == 1 { 2 } else { 1 };
        assert_eq!(run(of(Some(scalar(1)), Some(scalar(2))), both), Ok(vec![0, 0, 1]));
    }
}
