//! Building a nest statement by statement.

use super::{Nest, NestArg, NestTensor, Slot, Statement};
use crate::size::canonical;
use crate::tensor_graph::{INDEX_OUTSIDE, PointOp, PointStep};
use atoll_kgraph::{DType, Expr};

/// Builds a nest. Arithmetic on indices is folded where operands are constants or sizes.
pub struct NestBuilder {
    stem: String,
    domain: Vec<Expr>,
    slots: Vec<DType>,
    /// Statements of the open blocks, the innermost last.
    blocks: Vec<Vec<Statement>>,
    row_operands: usize,
}

impl NestBuilder {
    /// Begins a nest over a domain.
    pub fn new(stem: &str, domain: Vec<Expr>) -> NestBuilder {
        let slots = vec![DType::I32; domain.len()];
        NestBuilder { stem: stem.to_owned(), domain, slots, blocks: vec![Vec::new()], row_operands: 0 }
    }

    /// Declares that the first operands are read by rows ([`Nest::row_operands`]).
    pub fn by_rows(&mut self, operands: usize) {
        self.row_operands = operands;
    }

    /// The coordinates of the point, outermost first.
    pub fn point(&self) -> Vec<NestArg> {
        (0..self.domain.len() as u32).map(|axis| NestArg::Slot(Slot(axis))).collect()
    }

    /// The finished nest.
    pub fn finish(mut self) -> Nest {
        let body = self.blocks.pop().unwrap_or_default();
        Nest { stem: self.stem, domain: self.domain, slots: self.slots, body, row_operands: self.row_operands }
    }

    fn slot(&mut self, dtype: DType) -> Slot {
        self.slots.push(dtype);
        Slot(self.slots.len() as u32 - 1)
    }

    fn push(&mut self, statement: Statement) {
        if let Some(block) = self.blocks.last_mut() {
            block.push(statement);
        }
    }

    fn block(&mut self, build: impl FnOnce(&mut NestBuilder)) -> Vec<Statement> {
        self.blocks.push(Vec::new());
        build(self);
        self.blocks.pop().unwrap_or_default()
    }

    // ---- scalars ----

    /// Adds a step; returns its result.
    pub fn step(&mut self, op: PointOp, ty: DType, args: &[NestArg]) -> NestArg {
        let to = self.slot(PointStep { op, ty, args: Vec::new() }.result_type());
        self.push(Statement::Step { to, op, ty, args: args.to_vec() });
        NestArg::Slot(to)
    }

    /// Converts a value to another type.
    pub fn cast(&mut self, value: &NestArg, to: DType) -> NestArg {
        self.step(PointOp::Cast, to, std::slice::from_ref(value))
    }

    /// `condition ? then : otherwise`
    pub fn select(&mut self, ty: DType, condition: &NestArg, then: &NestArg, otherwise: &NestArg) -> NestArg {
        self.step(PointOp::Where, ty, &[condition.clone(), then.clone(), otherwise.clone()])
    }

    /// A slot that may be assigned again, with its first value.
    pub fn variable(&mut self, ty: DType, first: &NestArg) -> NestArg {
        self.step(PointOp::Identity, ty, std::slice::from_ref(first))
    }

    /// Assigns a variable.
    pub fn set(&mut self, variable: &NestArg, value: &NestArg) {
        if let NestArg::Slot(to) = *variable {
            let ty = self.slots[to.0 as usize];
            self.push(Statement::Step { to, op: PointOp::Identity, ty, args: vec![value.clone()] });
        }
    }

    /// `variable = op(variable, value)`
    pub fn accumulate(&mut self, variable: &NestArg, op: PointOp, value: &NestArg) {
        if let NestArg::Slot(to) = *variable {
            let ty = self.slots[to.0 as usize];
            self.push(Statement::Step { to, op, ty, args: vec![variable.clone(), value.clone()] });
        }
    }

    // ---- indices ----

    /// `a + b` of indices.
    pub fn add(&mut self, a: &NestArg, b: &NestArg) -> NestArg {
        match (a, b) {
            (NestArg::Const(a), NestArg::Const(b)) => NestArg::Const(a + b),
            (NestArg::Const(0.0), other) | (other, NestArg::Const(0.0)) => other.clone(),
            (NestArg::Size(a), NestArg::Size(b)) => size(a.clone() + b.clone()),
            _ => self.step(PointOp::Add, DType::I32, &[a.clone(), b.clone()]),
        }
    }

    /// `a - b` of indices.
    pub fn sub(&mut self, a: &NestArg, b: &NestArg) -> NestArg {
        match (a, b) {
            (NestArg::Const(a), NestArg::Const(b)) => NestArg::Const(a - b),
            (other, NestArg::Const(0.0)) => other.clone(),
            _ => self.step(PointOp::Sub, DType::I32, &[a.clone(), b.clone()]),
        }
    }

    /// `a * b` of indices.
    pub fn mul(&mut self, a: &NestArg, b: &NestArg) -> NestArg {
        match (a, b) {
            (NestArg::Const(a), NestArg::Const(b)) => NestArg::Const(a * b),
            (NestArg::Const(1.0), other) | (other, NestArg::Const(1.0)) => other.clone(),
            (NestArg::Const(0.0), _) | (_, NestArg::Const(0.0)) => NestArg::Const(0.0),
            (NestArg::Size(a), NestArg::Size(b)) => size(a.clone() * b.clone()),
            _ => self.step(PointOp::Mul, DType::I32, &[a.clone(), b.clone()]),
        }
    }

    /// Quotient of indices, rounded towards zero.
    pub fn div(&mut self, a: &NestArg, b: &NestArg) -> NestArg {
        match b {
            NestArg::Const(1.0) => a.clone(),
            _ => self.step(PointOp::Div, DType::I32, &[a.clone(), b.clone()]),
        }
    }

    /// A comparison of two numbers of a type.
    pub fn compare(&mut self, op: PointOp, ty: DType, a: &NestArg, b: &NestArg) -> NestArg {
        self.step(op, ty, &[a.clone(), b.clone()])
    }

    /// The conjunction of two Bools.
    pub fn both(&mut self, a: &NestArg, b: &NestArg) -> NestArg {
        self.step(PointOp::And, DType::Bool, &[a.clone(), b.clone()])
    }

    /// Whether `0 <= index < extent`.
    pub fn inside(&mut self, index: &NestArg, extent: &NestArg) -> NestArg {
        let from = self.compare(PointOp::GreaterOrEqual, DType::I32, index, &NestArg::Const(0.0));
        let below = self.compare(PointOp::Less, DType::I32, index, extent);
        self.both(&from, &below)
    }

    /// Row-major offset of the element at `indices` in a tensor of `shape`.
    pub fn offset(&mut self, shape: &[Expr], indices: &[NestArg]) -> NestArg {
        let mut sum = NestArg::Const(0.0);
        for (dim, index) in shape.iter().zip(indices) {
            let scaled = self.mul(&sum, &size(dim.clone()));
            sum = self.add(&scaled, index);
        }
        sum
    }

    /// The indices of the element at row-major offset `linear` in a tensor of `shape`.
    pub fn unravel(&mut self, linear: &NestArg, shape: &[Expr]) -> Vec<NestArg> {
        let mut indices = vec![NestArg::Const(0.0); shape.len()];
        let mut rest = linear.clone();
        for axis in (1..shape.len()).rev() {
            let dim = size(shape[axis].clone());
            let quotient = self.div(&rest, &dim);
            let whole = self.mul(&quotient, &dim);
            indices[axis] = self.sub(&rest, &whole);
            rest = quotient;
        }
        if let Some(first) = indices.first_mut() {
            *first = rest;
        }
        indices
    }

    // ---- memory ----

    /// Loads an element of an operand.
    pub fn load(&mut self, operand: u32, dtype: DType, at: &NestArg) -> NestArg {
        self.load_from(NestTensor::Operand(operand), dtype, at)
    }

    /// Loads an element of a result; this point must have stored it before.
    pub fn load_result(&mut self, result: u32, dtype: DType, at: &NestArg) -> NestArg {
        self.load_from(NestTensor::Result(result), dtype, at)
    }

    fn load_from(&mut self, from: NestTensor, dtype: DType, at: &NestArg) -> NestArg {
        let to = self.slot(dtype);
        self.push(Statement::Load { to, from, at: at.clone() });
        NestArg::Slot(to)
    }

    /// Stores an element of a result.
    pub fn store(&mut self, result: u32, at: &NestArg, value: &NestArg) {
        self.push(Statement::Store { result, at: at.clone(), value: value.clone() });
    }

    // ---- control ----

    /// Fails the invocation if a Bool is true, with a text in which each `{}` stands for the next
    /// of `values`. The point continues, so an invalid index must be clamped before it is used.
    pub fn refuse(&mut self, condition: &NestArg, text: &str, values: &[Expr]) {
        self.push(Statement::Refuse { condition: condition.clone(), text: text.to_owned(), values: values.to_vec() });
    }

    /// Normalises an index (I32 or I64) into an axis of `extent` elements: a negative index counts
    /// from the end. An index outside the axis fails the invocation and gives 0.
    pub fn checked_index(&mut self, index: &NestArg, ty: DType, extent: &Expr) -> NestArg {
        let wide = if ty == DType::I32 { size(extent.clone()) } else { self.cast(&size(extent.clone()), ty) };
        let is_negative = self.compare(PointOp::Less, ty, index, &NestArg::Const(0.0));
        let from_end = self.step(PointOp::Add, ty, &[index.clone(), wide.clone()]);
        let at = self.select(ty, &is_negative, &from_end, index);
        let below = self.compare(PointOp::Less, ty, &at, &NestArg::Const(0.0));
        let above = self.compare(PointOp::GreaterOrEqual, ty, &at, &wide);
        let outside = self.step(PointOp::Or, DType::Bool, &[below, above]);
        self.refuse(&outside, INDEX_OUTSIDE, &[Expr::Const(0) - extent.clone(), extent.clone() - 1]);
        let at = self.select(ty, &outside, &NestArg::Const(0.0), &at);
        // Narrowed only after the index is known to be inside the axis.
        if ty == DType::I32 { at } else { self.cast(&at, DType::I32) }
    }

    /// `for counter in from..to`
    pub fn count(&mut self, from: &NestArg, to: &NestArg, body: impl FnOnce(&mut NestBuilder, &NestArg)) {
        self.loop_while(from, to, None, body);
    }

    /// `for counter in from..to`, while a Bool variable is true.
    pub fn count_while(
        &mut self,
        from: &NestArg,
        to: &NestArg,
        condition: &NestArg,
        body: impl FnOnce(&mut NestBuilder, &NestArg),
    ) {
        let while_true = match condition {
            NestArg::Slot(slot) => Some(*slot),
            _ => None,
        };
        self.loop_while(from, to, while_true, body);
    }

    fn loop_while(
        &mut self,
        from: &NestArg,
        to: &NestArg,
        while_true: Option<Slot>,
        body: impl FnOnce(&mut NestBuilder, &NestArg),
    ) {
        let counter = self.slot(DType::I32);
        let body = self.block(|nest| body(nest, &NestArg::Slot(counter)));
        self.push(Statement::Loop { counter, from: from.clone(), to: to.clone(), while_true, body });
    }

    /// Runs `then` if the condition is true.
    pub fn when(&mut self, condition: &NestArg, then: impl FnOnce(&mut NestBuilder)) {
        self.choose(condition, then, |_| {});
    }

    /// Runs `then` if the condition is true, else `otherwise`.
    pub fn choose(
        &mut self,
        condition: &NestArg,
        then: impl FnOnce(&mut NestBuilder),
        otherwise: impl FnOnce(&mut NestBuilder),
    ) {
        let (then, otherwise) = (self.block(then), self.block(otherwise));
        self.push(Statement::If { condition: condition.clone(), then, otherwise });
    }
}

impl From<&Expr> for NestArg {
    fn from(expr: &Expr) -> NestArg {
        size(expr.clone())
    }
}

impl From<i64> for NestArg {
    fn from(number: i64) -> NestArg {
        NestArg::Const(number as f64)
    }
}

/// A size as an argument; a constant size becomes a number.
fn size(expr: Expr) -> NestArg {
    let expr = canonical(&expr);
    expr.as_const().map_or(NestArg::Size(expr), NestArg::from)
}
