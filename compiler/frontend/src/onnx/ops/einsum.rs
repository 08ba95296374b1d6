//! `Einsum`: lowers an equation over labelled axes to diagonals, sums, matrix products and
//! transpositions.
//!
//! Operands are combined from left to right, two at a time, by one batched matrix product. Labels
//! of both operands that are still needed are the batch; labels that only these two have are
//! summed; the others are rows and columns. An axis of an ellipsis is a label like any other.

use super::super::call::Call;
use super::super::error::{LowerError, LowerResult, invalid};
use super::super::lowering::Lowering;
use super::pieces::{point, product, reduce};
use crate::nest::NestBuilder;
use crate::size::elements;
use crate::tensor_graph::{Op, PointOp, ReduceKind, ValueId};
use atoll_kgraph::Expr;

type Results = LowerResult<Vec<ValueId>>;

/// The label of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Label {
    /// An axis of the ellipsis, counted from its end.
    Hidden(usize),
    /// A letter.
    Letter(char),
}

/// A tensor and the labels of its axes.
#[derive(Clone)]
struct Term {
    value: ValueId,
    labels: Vec<Label>,
}

pub(super) fn einsum(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let inputs = call.all_inputs()?;
    let dtype = lowering.dtype(inputs[0]);
    if inputs.iter().any(|id| lowering.dtype(*id) != dtype) {
        return invalid("its operands have different types");
    }
    let ranks: Vec<usize> = inputs.iter().map(|id| lowering.rank(*id)).collect();
    let (terms, result) = parse(&call.string("equation", "")?, &ranks)?;
    let mut sums = Sums { lowering, name: &call.name, steps: 0 };
    let mut terms = inputs
        .into_iter()
        .zip(terms)
        .map(|(value, labels)| sums.diagonal(Term { value, labels }))
        .collect::<LowerResult<Vec<_>>>()?;
    terms.reverse();
    let mut total = terms.pop().ok_or_else(|| LowerError::Invalid("it has no operands".into()))?;
    while let Some(next) = terms.pop() {
        let mut needed: Vec<Label> = terms.iter().flat_map(|t| t.labels.iter().copied()).collect();
        needed.extend(&result);
        total = sums.contract(total, next, &needed, terms.is_empty().then_some(&result))?;
    }
    let total = sums.sum_out(total, &result)?;
    Ok(vec![sums.arrange(&total, &result)?.value])
}

/// The labels of each operand and of the result.
fn parse(equation: &str, ranks: &[usize]) -> LowerResult<(Vec<Vec<Label>>, Vec<Label>)> {
    let text: String = equation.chars().filter(|c| !c.is_whitespace()).collect();
    let (left, right) = match text.split_once("->") {
        Some((left, right)) => (left, Some(right)),
        None => (&*text, None),
    };
    let texts: Vec<&str> = left.split(',').collect();
    if texts.len() != ranks.len() {
        return invalid(format!(
            "its equation {equation:?} names {} operands, but it has {}",
            texts.len(),
            ranks.len()
        ));
    }
    let terms =
        texts.iter().zip(ranks).map(|(text, rank)| term_labels(text, Some(*rank))).collect::<LowerResult<Vec<_>>>()?;
    let hidden = terms
        .iter()
        .flatten()
        .filter_map(|l| if let Label::Hidden(i) = l { Some(i + 1) } else { None })
        .max()
        .unwrap_or(0);
    let result = match right {
        Some(text) => {
            term_labels(text, text.contains("...").then(|| hidden + text.chars().filter(|c| *c != '.').count()))?
        }
        None => implied_result(&terms, hidden),
    };
    let known = |label: &Label| terms.iter().flatten().any(|l| l == label);
    let repeated = (1..result.len()).any(|i| result[..i].contains(&result[i]));
    if repeated || !result.iter().all(known) {
        return invalid(format!(
            "the result of its equation {equation:?} repeats a label, or has one that no operand has"
        ));
    }
    if (0..hidden).any(|i| !result.contains(&Label::Hidden(i))) {
        return invalid(format!("the result of its equation {equation:?} lacks the ellipsis that an operand has"));
    }
    Ok((terms, result))
}

/// The labels of one term. `rank` is the operand's rank, which determines the number of axes of an
/// ellipsis.
fn term_labels(text: &str, rank: Option<usize>) -> LowerResult<Vec<Label>> {
    let (before, after) = match text.split_once("...") {
        Some((before, after)) => (before, Some(after)),
        None => (text, None),
    };
    let letters = before.chars().count() + after.map_or(0, |a| a.chars().count());
    if !before.chars().chain(after.unwrap_or("").chars()).all(|c| c.is_ascii_alphabetic()) {
        return invalid(format!("{text:?} in its equation must be letters with at most one ellipsis"));
    }
    let hidden = match (after, rank) {
        (Some(_), Some(rank)) if rank >= letters => rank - letters,
        (None, Some(rank)) if rank != letters => {
            return invalid(format!("{text:?} in its equation does not match an operand with {rank} dimensions"));
        }
        (Some(_), Some(rank)) => {
            return invalid(format!("{text:?} in its equation does not match an operand with {rank} dimensions"));
        }
        _ => 0,
    };
    let middle = (0..hidden).rev().map(Label::Hidden);
    Ok(before.chars().map(Label::Letter).chain(middle).chain(after.unwrap_or("").chars().map(Label::Letter)).collect())
}

/// The result of an equation without an arrow: the ellipsis, then the labels that occur once, in
/// alphabetical order.
fn implied_result(terms: &[Vec<Label>], hidden: usize) -> Vec<Label> {
    let all: Vec<Label> = terms.iter().flatten().copied().collect();
    let mut once: Vec<Label> = all
        .iter()
        .copied()
        .filter(|l| matches!(l, Label::Letter(_)) && all.iter().filter(|other| *other == l).count() == 1)
        .collect();
    once.sort_unstable();
    (0..hidden).rev().map(Label::Hidden).chain(once).collect()
}

/// The nodes under construction.
struct Sums<'a> {
    lowering: &'a mut Lowering,
    name: &'a str,
    steps: usize,
}

impl Sums<'_> {
    fn next_name(&mut self, what: &str) -> String {
        self.steps += 1;
        format!("{}.{what}{}", self.name, self.steps)
    }

    fn dim(&self, term: &Term, label: Label) -> Expr {
        let at = term.labels.iter().position(|l| *l == label);
        at.map_or(Expr::Const(1), |at| self.lowering.shape(term.value)[at].clone())
    }

    fn dims(&self, term: &Term, labels: &[Label]) -> Vec<Expr> {
        labels.iter().map(|label| self.dim(term, *label)).collect()
    }

    /// Takes the diagonal of each pair of axes with the same label: only elements at equal
    /// positions remain.
    fn diagonal(&mut self, mut term: Term) -> LowerResult<Term> {
        while let Some((first, second)) = repeated(&term.labels) {
            let from_shape = self.lowering.shape(term.value).to_vec();
            self.lowering.equal_dims(from_shape[first].clone(), from_shape[second].clone())?;
            let mut shape = from_shape.clone();
            shape.remove(second);
            term.labels.remove(second);
            let dtype = self.lowering.dtype(term.value);
            let mut nest = NestBuilder::new("diagonal", shape.clone());
            let mut place = nest.point();
            let at = nest.offset(&shape, &place);
            place.insert(second, place[first].clone());
            let from = nest.offset(&from_shape, &place);
            let value = nest.load(0, dtype, &from);
            nest.store(0, &at, &value);
            let name = self.next_name("diagonal");
            term.value = self.lowering.emit_one(&name, Op::Nest(nest.finish()), &[term.value], dtype, shape)?;
        }
        Ok(term)
    }

    /// Sums over all labels that are not needed any more.
    fn sum_out(&mut self, term: Term, needed: &[Label]) -> LowerResult<Term> {
        let axes: Vec<usize> = (0..term.labels.len()).filter(|axis| !needed.contains(&term.labels[*axis])).collect();
        if axes.is_empty() {
            return Ok(term);
        }
        let labels = term.labels.iter().copied().filter(|l| needed.contains(l)).collect();
        let name = self.next_name("sum");
        Ok(Term { value: reduce(self.lowering, &name, term.value, ReduceKind::Sum, axes, false)?, labels })
    }

    /// Drops axes of extent 1 whose label has a larger extent in the other term.
    fn drop_ones(&mut self, term: Term, other: &Term) -> LowerResult<Term> {
        let is_dropped = |sums: &Self, label: &Label| {
            other.labels.contains(label)
                && sums.dim(&term, *label) == Expr::Const(1)
                && sums.dim(other, *label) != Expr::Const(1)
        };
        let labels: Vec<Label> = term.labels.iter().copied().filter(|label| !is_dropped(self, label)).collect();
        let shape = self.dims(&term, &labels);
        let name = self.next_name("squeezed");
        Ok(Term { value: self.lowering.reshape(&name, term.value, shape)?, labels })
    }

    /// Combines two operands; `result` is the wanted order of labels if they are the last two.
    fn contract(&mut self, a: Term, b: Term, needed: &[Label], result: Option<&Vec<Label>>) -> LowerResult<Term> {
        let a = self.drop_ones(a, &b)?;
        let b = self.drop_ones(b, &a)?;
        let kept = |other: &Term| -> Vec<Label> { needed.iter().chain(&other.labels).copied().collect() };
        let (for_a, for_b) = (kept(&b), kept(&a));
        let (a, b) = (self.sum_out(a, &for_a)?, self.sum_out(b, &for_b)?);
        for label in a.labels.iter().filter(|l| b.labels.contains(l)) {
            self.lowering.equal_dims(self.dim(&a, *label), self.dim(&b, *label))?;
        }
        let groups = Groups::of(&a, &b, needed);
        // If the result needs the columns first, the operands are swapped.
        match result {
            Some(result) if groups.order() != *result && groups.exchanged().order() == *result => {
                self.multiply(&b, &a, &groups.exchanged())
            }
            _ => self.multiply(&a, &b, &groups),
        }
    }

    fn multiply(&mut self, a: &Term, b: &Term, groups: &Groups) -> LowerResult<Term> {
        if groups.summed.is_empty() {
            return self.outer(a, b, groups);
        }
        let name = self.next_name("product");
        let (left, left_turned) = self.matrix(&format!("{name}.a"), a, &groups.batch, &groups.rows, &groups.summed)?;
        // `b` is stored as `[batch, summed, columns]`.
        let (right, right_turned) =
            self.matrix(&format!("{name}.b"), b, &groups.batch, &groups.summed, &groups.columns)?;
        let value = product(self.lowering, &name, left, right, left_turned, right_turned)?;
        let labels = groups.order();
        let shape =
            labels.iter().map(|l| if a.labels.contains(l) { self.dim(a, *l) } else { self.dim(b, *l) }).collect();
        Ok(Term { value: self.lowering.reshape(&format!("{name}.labelled"), value, shape)?, labels })
    }

    /// No label is summed: an elementwise product.
    fn outer(&mut self, a: &Term, b: &Term, groups: &Groups) -> LowerResult<Term> {
        let labels = groups.order();
        let name = self.next_name("outer");
        let spread = |sums: &mut Self, term: &Term, part: &str| {
            let own: Vec<Label> = labels.iter().copied().filter(|l| term.labels.contains(l)).collect();
            let arranged = sums.arrange(term, &own)?;
            let shape = sums.dims(&arranged, &labels);
            sums.lowering.reshape(&format!("{name}.{part}"), arranged.value, shape)
        };
        let (left, right) = (spread(self, a, "a")?, spread(self, b, "b")?);
        Ok(Term { value: point(self.lowering, &name, PointOp::Mul, &[left, right])?, labels })
    }

    /// The term as `[batch, rows, columns]` with `false`, or, if it is stored in that order, as
    /// `[batch, columns, rows]` with `true`.
    fn matrix(
        &mut self,
        name: &str,
        term: &Term,
        batch: &[Label],
        rows: &[Label],
        columns: &[Label],
    ) -> LowerResult<(ValueId, bool)> {
        let is_turned =
            [batch, columns, rows].concat() == term.labels && [batch, rows, columns].concat() != term.labels;
        let order = if is_turned { term.labels.clone() } else { [batch, rows, columns].concat() };
        let arranged = self.arrange(term, &order)?;
        let count = |labels: &[Label]| elements(&self.dims(term, labels));
        let (rows, columns) = if is_turned { (columns, rows) } else { (rows, columns) };
        let shape = vec![count(batch), count(rows), count(columns)];
        Ok((self.lowering.reshape(name, arranged.value, shape)?, is_turned))
    }

    /// The term with its axes in the given order.
    fn arrange(&mut self, term: &Term, order: &[Label]) -> LowerResult<Term> {
        let permutation: Vec<usize> =
            order.iter().filter_map(|label| term.labels.iter().position(|l| l == label)).collect();
        let name = self.next_name("arranged");
        Ok(Term { value: self.lowering.transpose(&name, term.value, permutation)?, labels: order.to_vec() })
    }
}

/// Two axes with the same label.
fn repeated(labels: &[Label]) -> Option<(usize, usize)> {
    (1..labels.len())
        .find_map(|second| labels[..second].iter().position(|l| *l == labels[second]).map(|first| (first, second)))
}

/// The roles of the labels of two terms.
struct Groups {
    batch: Vec<Label>,
    rows: Vec<Label>,
    columns: Vec<Label>,
    summed: Vec<Label>,
}

impl Groups {
    fn of(a: &Term, b: &Term, needed: &[Label]) -> Groups {
        let (shared, rows): (Vec<Label>, Vec<Label>) = a.labels.iter().partition(|l| b.labels.contains(l));
        let (batch, summed) = shared.into_iter().partition(|l| needed.contains(l));
        let columns = b.labels.iter().copied().filter(|l| !a.labels.contains(l)).collect();
        Groups { batch, rows, columns, summed }
    }

    fn exchanged(&self) -> Groups {
        Groups {
            batch: self.batch.clone(),
            rows: self.columns.clone(),
            columns: self.rows.clone(),
            summed: self.summed.clone(),
        }
    }

    /// The order of the axes of the product.
    fn order(&self) -> Vec<Label> {
        [&self.batch[..], &self.rows, &self.columns].concat()
    }
}
