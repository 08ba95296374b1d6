//! Loop nests: kernels of operators that index their operands in ways that no other operator of the
//! tensor graph expresses.
//!
//! A [`Nest`] has a domain of points. One thread runs the body for each point; threads do not
//! cooperate. The body is a list of statements over *slots*: typed scalars of the thread. It loads
//! elements of operands and results, computes with the steps of scalar programs ([`PointOp`]),
//! loops, branches, and stores to results.
//!
//! An operator becomes a nest if no other operator of the tensor graph expresses it and no model
//! needs it to be fast; a performance-critical operator gets a kernel of its own. The price is that
//! the compiler does not analyse nests: a nest is not fused, and its rows are not proven
//! independent.
//!
//! Rules, enforced by [`verify`](Nest::check) and the reference interpreter: a slot is assigned
//! before it is read, on every path; operands of a step have the step's type; indices are I32,
//! count elements from the start of the tensor, and are inside it. A body stores every element of
//! every result, and no two points store the same element. A body may load from a result only
//! elements that its own point stored before.

mod build;
mod text;
mod verify;

pub use build::NestBuilder;

use crate::tensor_graph::PointOp;
use atoll_kgraph::{DType, Expr};

/// Largest number of statements of a nest. Bodies are never unrolled, so a longer body is a bug of
/// its builder.
pub const STATEMENTS_MAX: usize = 4096;

/// A kernel as a nest of loops over scalars.
#[derive(Clone, Debug, PartialEq)]
pub struct Nest {
    /// Prefix of the kernel's name: an operator in snake case.
    pub stem: String,
    /// Extents of the domain, outermost first. An empty domain is one point.
    pub domain: Vec<Expr>,
    /// The type of every slot. The first slots, one per dimension of the domain, hold the point's
    /// coordinates.
    pub slots: Vec<DType>,
    /// The statements that a thread runs at its point.
    pub body: Vec<Statement>,
    /// Number of first operands that are read by rows: a point whose first coordinate is `i` reads
    /// only row `i` of the first axis of these operands and of the results, and writes only row `i`
    /// of the results. 0 if that is not known. The operator that builds the nest knows, and the
    /// batch analysis relies on it.
    pub row_operands: usize,
}

/// A scalar of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(pub u32);

/// An argument of a statement.
#[derive(Clone, Debug, PartialEq)]
pub enum NestArg {
    /// A slot.
    Slot(Slot),
    /// A number of the type in which the statement computes.
    Const(f64),
    /// A size; its type is I32.
    Size(Expr),
}

/// A tensor that a nest can load from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NestTensor {
    /// An operand of the node.
    Operand(u32),
    /// A result of the node; only elements that the same point has stored.
    Result(u32),
}

/// One statement.
#[derive(Clone, Debug, PartialEq)]
pub enum Statement {
    /// `to = op(args)`; types as in [`PointStep`](crate::tensor_graph::PointStep).
    Step {
        /// The slot that is assigned.
        to: Slot,
        /// The operation.
        op: PointOp,
        /// The type of the operands (for `Cast`, of the result).
        ty: DType,
        /// The operands; [`PointOp::arity`] of them.
        args: Vec<NestArg>,
    },
    /// `to = from[at]`
    Load {
        /// The slot that is assigned. It has the tensor's type.
        to: Slot,
        /// The tensor.
        from: NestTensor,
        /// Index of the element.
        at: NestArg,
    },
    /// `result[at] = value`
    Store {
        /// Which result.
        result: u32,
        /// Index of the element.
        at: NestArg,
        /// A value of the result's type.
        value: NestArg,
    },
    /// `for counter in from..to while condition { body }`. The body does not assign the counter.
    Loop {
        /// The counter, I32.
        counter: Slot,
        /// The first value of the counter.
        from: NestArg,
        /// The counter stays below this value.
        to: NestArg,
        /// A Bool slot, read before each iteration: the loop ends if it is false.
        while_true: Option<Slot>,
        /// The statements of an iteration.
        body: Vec<Statement>,
    },
    /// `if condition { then } else { otherwise }`
    If {
        /// A Bool.
        condition: NestArg,
        /// Statements that run if it is true.
        then: Vec<Statement>,
        /// Statements that run if it is false.
        otherwise: Vec<Statement>,
    },
    /// Fails the invocation if a condition is true. The point continues in both cases, so the
    /// following statements must never access memory outside a tensor.
    Refuse {
        /// A Bool.
        condition: NestArg,
        /// The message, as in [`atoll_kgraph::Check`].
        text: String,
        /// The numbers of the message.
        values: Vec<Expr>,
    },
}

impl Nest {
    /// Every size that the nest uses.
    pub fn sizes(&self) -> Vec<&Expr> {
        let mut sizes: Vec<&Expr> = self.domain.iter().collect();
        visit(&self.body, &mut |statement| {
            sizes.extend(statement.args().into_iter().filter_map(|arg| match arg {
                NestArg::Size(size) => Some(size),
                _ => None,
            }));
        });
        sizes
    }

    /// The number of assignments of each slot, including that of a coordinate or a counter.
    pub fn assignments(&self) -> Vec<usize> {
        let mut counts = vec![0; self.slots.len()];
        counts[..self.domain.len().min(self.slots.len())].fill(1);
        visit(&self.body, &mut |statement| {
            if let Some(count) = statement.assigned().and_then(|slot| counts.get_mut(slot.0 as usize)) {
                *count += 1;
            }
        });
        counts
    }

    /// The texts of all [`Statement::Refuse`] and the numbers in them, in program order.
    pub fn refusals(&self) -> Vec<(&str, &[Expr])> {
        let mut found = Vec::new();
        visit(&self.body, &mut |statement| {
            if let Statement::Refuse { text, values, .. } = statement {
                found.push((text.as_str(), values.as_slice()));
            }
        });
        found
    }

    /// Removes all [`Statement::Refuse`]. The following statements are safe without them.
    pub fn drop_refusals(&mut self) {
        drop_refusals(&mut self.body);
    }

    /// Whether the body has a loop: then a point is much more work than a pointwise element.
    pub fn has_loop(&self) -> bool {
        let mut found = false;
        visit(&self.body, &mut |statement| found |= matches!(statement, Statement::Loop { .. }));
        found
    }
}

impl Statement {
    /// The arguments of the statement itself, without those of nested statements.
    pub fn args(&self) -> Vec<&NestArg> {
        match self {
            Statement::Step { args, .. } => args.iter().collect(),
            Statement::Load { at, .. } => vec![at],
            Statement::Store { at, value, .. } => vec![at, value],
            Statement::Loop { from, to, .. } => vec![from, to],
            Statement::If { condition, .. } | Statement::Refuse { condition, .. } => vec![condition],
        }
    }

    /// The slot that the statement itself assigns.
    pub fn assigned(&self) -> Option<Slot> {
        match self {
            Statement::Step { to, .. } | Statement::Load { to, .. } => Some(*to),
            Statement::Loop { counter, .. } => Some(*counter),
            Statement::Store { .. } | Statement::If { .. } | Statement::Refuse { .. } => None,
        }
    }
}

fn drop_refusals(body: &mut Vec<Statement>) {
    body.retain(|statement| !matches!(statement, Statement::Refuse { .. }));
    for statement in body {
        match statement {
            Statement::Loop { body, .. } => drop_refusals(body),
            Statement::If { then, otherwise, .. } => {
                drop_refusals(then);
                drop_refusals(otherwise);
            }
            _ => {}
        }
    }
}

/// Calls `seen` with every statement, outer statements first.
fn visit<'n>(body: &'n [Statement], seen: &mut impl FnMut(&'n Statement)) {
    for statement in body {
        seen(statement);
        match statement {
            Statement::Loop { body, .. } => visit(body, seen),
            Statement::If { then, otherwise, .. } => {
                visit(then, seen);
                visit(otherwise, seen);
            }
            _ => {}
        }
    }
}
