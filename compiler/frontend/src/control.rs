//! Control flow of the tensor graph: the graphs that an `If` or a `Loop` node runs.
//!
//! A body is a graph of its own. It has access to values of the graph around it only through its
//! inputs. Passes therefore work on a body as on a whole model, and treat the node around it like
//! any other operator. A body shares the symbols of the graph around it, by index, and computes
//! none itself.

use atoll_kgraph::Expr;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// A graph that a node runs. Two bodies are equal only if they are the same object in memory.
pub struct Body<G>(Arc<G>);

impl<G> Body<G> {
    /// A body that runs this graph.
    pub fn new(graph: G) -> Body<G> {
        Body(Arc::new(graph))
    }
}

impl<G> Clone for Body<G> {
    fn clone(&self) -> Body<G> {
        Body(Arc::clone(&self.0))
    }
}

impl<G> Deref for Body<G> {
    type Target = G;

    fn deref(&self) -> &G {
        &self.0
    }
}

impl<G> PartialEq for Body<G> {
    fn eq(&self, other: &Body<G>) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// Prints the address, by which bodies are compared.
impl<G> fmt::Debug for Body<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "body {:p}", Arc::as_ptr(&self.0))
    }
}

/// How many iterations a loop has, and which values pass from one iteration to the next.
///
/// Operands of the node: the number of iterations (an I64 scalar) if it has one, the condition (a
/// Bool scalar) if it has one, the initial values of the states, the operands of the body. Results:
/// the number of iterations that ran (an I64 scalar), the final values of the states, and the
/// *rows*. A row result stacks one result of the body for all iterations along a new first axis.
/// That axis has room for the largest number of iterations; rows of iterations that did not run are
/// undefined.
///
/// Inputs of the body: the iteration number, from 0 (an I64 scalar), the states, its operands.
/// Outputs: the next condition if there is one, the next states, the rows.
#[derive(Clone, Debug, PartialEq)]
pub struct LoopSpec {
    /// The number of iterations, if sizes determine it.
    pub trips: Option<Expr>,
    /// Whether the number of iterations is an operand.
    pub has_count: bool,
    /// Whether a condition is read before each iteration. The loop ends if it is false.
    pub has_condition: bool,
    /// Number of states.
    pub states: usize,
    /// Maximum number of iterations. The invocation fails if the loop would continue after them.
    pub trips_max: u64,
}

impl LoopSpec {
    /// Number of operands before the states.
    pub fn states_at(&self) -> usize {
        usize::from(self.has_count) + usize::from(self.has_condition)
    }

    /// Number of outputs of the body before the rows.
    pub fn rows_at(&self) -> usize {
        usize::from(self.has_condition) + self.states
    }
}
