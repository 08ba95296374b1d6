//! Loop nests: kernels of operators that index their operands in a way of their own.
//!
//! A [`Nest`] has a domain of points. One thread runs the body once for each point; threads do not
//! work together. The body is a list of statements over *slots*: typed scalars of the thread. It
//! loads elements of operands and results, computes with the steps of scalar programs
//! ([`PointOp`]), loops, branches, and stores to results.
//!
//! An operator becomes a nest where no other operator of the tensor graph expresses it and no model
//! needs it to be fast; a hot one gets a kernel of its own. The price is that the compiler sees
//! nothing of what a nest does: it is not fused, and its rows are not proven independent.
//!
//! Rules, which [`verify`](Nest::check) and the reference interpreter hold: a slot is assigned
//! before it is read, on every path; operands of a step have the step's type; indices are I32,
//! count elements from the start of the tensor, and lie inside it. A body stores every element of
//! every result, and no two points store the same element. A body may load from a result only what
//! its own point stored before.

mod build;
mod text;
mod verify;

pub use build::NestBuilder;

use crate::tensor_graph::PointOp;
use atoll_kgraph::{DType, Expr};

/// Most statements of a nest: a body is unrolled by nobody, so a longer one is a mistake of its
/// builder.
pub const STATEMENTS_MAX: usize = 4096;

/// A kernel as loops over scalars.
#[derive(Clone, Debug, PartialEq)]
pub struct Nest {
    /// Name of the kernel: an operator in snake case.
    pub stem: String,
    /// Extents of the domain, outermost first. No dimension means one point.
    pub domain: Vec<Expr>,
    /// Type of every slot. The first ones, as many as the domain has dimensions, hold the point's
    /// coordinates.
    pub slots: Vec<DType>,
    /// What a thread does at its point.
    pub body: Vec<Statement>,
}

/// A scalar of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(pub u32);

/// What a statement reads.
#[derive(Clone, Debug, PartialEq)]
pub enum NestArg {
    /// A slot.
    Slot(Slot),
    /// A number of the type that the statement works in.
    Const(f64),
    /// A size, I32.
    Size(Expr),
}

/// A tensor that a nest can load from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NestTensor {
    /// An operand of the node.
    Operand(u32),
    /// A result of the node; only what the same point has stored.
    Result(u32),
}

/// One statement.
#[derive(Clone, Debug, PartialEq)]
pub enum Statement {
    /// `to = op(args)`; types as in [`PointStep`](crate::tensor_graph::PointStep).
    Step {
        /// The slot assigned.
        to: Slot,
        /// What is computed.
        op: PointOp,
        /// The type of the operands (for `Cast` that of the result).
        ty: DType,
        /// As many operands as the operation takes.
        args: Vec<NestArg>,
    },
    /// `to = from[at]`
    Load {
        /// The slot assigned; its type is the tensor's.
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
        /// First value.
        from: NestArg,
        /// The counter stays below this.
        to: NestArg,
        /// A Bool slot, read before each round: the loop ends where it is false.
        while_true: Option<Slot>,
        /// What each round does.
        body: Vec<Statement>,
    },
    /// `if condition { then } else { otherwise }`
    If {
        /// A Bool.
        condition: NestArg,
        /// Where it is true.
        then: Vec<Statement>,
        /// Where it is false.
        otherwise: Vec<Statement>,
    },
    /// Fails the invocation where a condition holds; the point goes on, so what follows must not
    /// harm anybody whatever the condition says.
    Refuse {
        /// A Bool.
        condition: NestArg,
        /// What is wrong, as in [`atoll_kgraph::Check`].
        text: String,
        /// Numbers of the text.
        values: Vec<Expr>,
    },
}

impl Nest {
    /// Every size that the nest mentions.
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

    /// How often each slot is assigned, its place as a coordinate or counter included.
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

    /// The texts of its [`Statement::Refuse`]s and the numbers in them, in the order in which they
    /// stand.
    pub fn refusals(&self) -> Vec<(&str, &[Expr])> {
        let mut found = Vec::new();
        visit(&self.body, &mut |statement| {
            if let Statement::Refuse { text, values, .. } = statement {
                found.push((text.as_str(), values.as_slice()));
            }
        });
        found
    }

    /// Takes all [`Statement::Refuse`]s out: what follows one harms nobody anyway.
    pub fn drop_refusals(&mut self) {
        drop_refusals(&mut self.body);
    }

    /// Whether the body loops: a point then is much more work than a pointwise element.
    pub fn has_loop(&self) -> bool {
        let mut found = false;
        visit(&self.body, &mut |statement| found |= matches!(statement, Statement::Loop { .. }));
        found
    }
}

impl Statement {
    /// What it reads itself, without the statements in it.
    pub fn args(&self) -> Vec<&NestArg> {
        match self {
            Statement::Step { args, .. } => args.iter().collect(),
            Statement::Load { at, .. } => vec![at],
            Statement::Store { at, value, .. } => vec![at, value],
            Statement::Loop { from, to, .. } => vec![from, to],
            Statement::If { condition, .. } | Statement::Refuse { condition, .. } => vec![condition],
        }
    }

    /// The slot it assigns itself.
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

/// Calls `seen` with every statement, outer ones first.
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
