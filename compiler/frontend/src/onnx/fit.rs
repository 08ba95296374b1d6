//! Sizes that must fit each other: for broadcasting, for reshaping, for operators that walk two
//! operands together.
//!
//! What can be shown is shown. What a range of symbols decides is learned: the import begins again
//! with that range. What neither decides becomes a [`Condition`] that is checked when inputs are
//! bound.

use super::error::{Lesson, LowerError, LowerResult, invalid};
use super::lowering::{Lowering, shape_text};
use crate::size::{
    at_least, bounds, elements, equal_up_to, larger, narrowed, not_negative_from, only_value, simplified, smaller,
};
use crate::tensor_graph::{Op, PointProgram, ValueId};
use atoll_kgraph::{Condition, Expr, Relation, SymbolId};

impl Lowering {
    /// Adds what an invocation is checked for.
    pub(crate) fn require(&self, left: &Expr, relation: Relation, right: &Expr) {
        let condition = Condition { place: self.place.clone(), relation, left: left.clone(), right: right.clone() };
        let mut conditions = self.conditions.borrow_mut();
        let is_known = |known: &Condition| (known.relation, &known.left, &known.right) == (relation, left, right);
        if !conditions.iter().any(is_known) {
            conditions.push(condition);
        }
    }

    /// A size with the names of its symbols, for a message.
    pub(crate) fn text(&self, size: &Expr) -> String {
        size.named(&self.graph.symbols).to_string()
    }

    /// The ranges of the symbols in sizes, for the end of a message.
    fn ranges_text(&self, sizes: &[&Expr]) -> String {
        let symbols = self.graph.symbols.iter().zip((0..).map(SymbolId));
        let used = symbols.filter(|(_, id)| sizes.iter().any(|size| size.depends_on(*id)));
        used.map(|(symbol, _)| format!("; {}", symbol.range_text())).collect()
    }

    fn is_same(&self, a: &Expr, b: &Expr) -> bool {
        self.with_facts(|facts| facts.same(a, b))
    }

    /// Whether two sizes are different in every invocation.
    fn is_different(&self, a: &Expr, b: &Expr) -> bool {
        let symbols = &self.graph.symbols;
        at_least(&(a.clone() - 1), b, symbols) || at_least(&(b.clone() - 1), a, symbols)
    }

    /// Whether a symbol is a dimension of an input: only those are learned to be one with others.
    fn is_dimension(&self, symbol: SymbolId) -> bool {
        self.graph.elements.iter().all(|element| element.symbol != symbol)
    }

    fn learn_range(&self, symbol: SymbolId, min: i64, max: i64) -> LowerError {
        LowerError::Learned(Lesson::Range { symbol, min, max })
    }

    /// Two sizes that must be the same.
    fn require_equal(&self, a: &Expr, b: &Expr) -> LowerResult<()> {
        let symbols = &self.graph.symbols;
        if self.is_same(a, b) {
            return Ok(());
        }
        if let (Expr::Symbol(a), Expr::Symbol(b)) = (a, b)
            && self.is_dimension(*a)
            && self.is_dimension(*b)
        {
            return Err(LowerError::Learned(Lesson::Same(*a.min(b), *a.max(b))));
        }
        if let Some((symbol, value)) = only_value(a, b).filter(|(symbol, _)| self.is_dimension(*symbol)) {
            return Err(self.learn_range(symbol, value, value));
        }
        if self.is_different(a, b) {
            return invalid(format!(
                "sizes {} and {} do not fit each other{}",
                self.text(a),
                self.text(b),
                self.ranges_text(&[a, b])
            ));
        }
        if let Some((symbol, max)) = equal_up_to(a, b, symbols) {
            return Err(self.learn_range(symbol, symbols[symbol.0 as usize].min, max));
        }
        self.require(a, Relation::Equal, b);
        Ok(())
    }

    /// Two dimensions that must be the same; the one that says more.
    pub(crate) fn equal_dims(&self, a: Expr, b: Expr) -> LowerResult<Expr> {
        self.require_equal(&a, &b)?;
        let is_element = |size: &Expr| self.graph.elements.iter().any(|element| size.depends_on(element.symbol));
        Ok(if b.as_const().is_some() || (is_element(&a) && !is_element(&b)) { b } else { a })
    }

    /// A size that must not be smaller than another.
    pub(crate) fn require_at_least(&self, size: &Expr, least: &Expr) -> LowerResult<()> {
        let difference = size.clone() - least.clone();
        let symbols = &self.graph.symbols;
        if at_least(&difference, &Expr::Const(0), symbols) {
            return Ok(());
        }
        if at_least(&(least.clone() - 1), size, symbols) {
            let ranges = self.ranges_text(&[size, least]);
            return invalid(format!("a size would be {}, less than {}{ranges}", self.text(size), self.text(least)));
        }
        if let Some((symbol, min)) = not_negative_from(&difference, symbols) {
            return Err(self.learn_range(symbol, min, symbols[symbol.0 as usize].max));
        }
        self.require(size, Relation::AtLeast, least);
        Ok(())
    }

    /// The shape that operands broadcast to.
    pub(crate) fn broadcast(&self, inputs: &[ValueId]) -> LowerResult<Vec<Expr>> {
        let mut shape = Vec::new();
        for id in inputs {
            shape = self.broadcast_shapes(&shape, self.shape(*id))?;
        }
        Ok(shape)
    }

    /// The shape that two shapes broadcast to.
    pub(crate) fn broadcast_shapes(&self, a: &[Expr], b: &[Expr]) -> LowerResult<Vec<Expr>> {
        let rank = a.len().max(b.len());
        let dim = |shape: &[Expr], axis: usize| {
            (axis + shape.len()).checked_sub(rank).map_or(Expr::Const(1), |i| shape[i].clone())
        };
        (0..rank).map(|axis| self.broadcast_dims(dim(a, axis), dim(b, axis))).collect()
    }

    /// What two dimensions broadcast to; where only the invocation tells whether one of them is 1,
    /// whoever reads the operands makes sure that they fit ([`Lowering::fit`]).
    fn broadcast_dims(&self, a: Expr, b: Expr) -> LowerResult<Expr> {
        if b.as_const() == Some(1) || self.is_same(&a, &b) {
            return Ok(a);
        }
        if a.as_const() == Some(1) {
            return Ok(b);
        }
        let symbols = &self.graph.symbols;
        let is_never_one = |size: &Expr| self.is_different(size, &Expr::Const(1));
        match (is_never_one(&a), is_never_one(&b)) {
            (true, true) => return self.equal_dims(a, b),
            (true, false) => return Ok(a),
            (false, true) => return Ok(b),
            (false, false) => {}
        }
        if let Some((symbol, max)) = equal_up_to(&a, &b, symbols) {
            let spec = &symbols[symbol.0 as usize];
            let beyond = narrowed(symbols, symbol, max + 1, spec.max);
            if [&a, &b].iter().all(|size| at_least(size, &Expr::Const(2), &beyond)) {
                return Err(self.learn_range(symbol, spec.min, max));
            }
        }
        // Equal, or one is 1: the larger one, unless the other is 0.
        let any = smaller(smaller(a.clone(), b.clone(), symbols), Expr::Const(1), symbols);
        Ok(simplified(&(larger(a, b, symbols) * any), symbols))
    }

    /// An operand as one that broadcasts to a shape: where a dimension of it may be 1 or not, it is
    /// expanded along that.
    pub(crate) fn fit(&mut self, name: &str, id: ValueId, shape: &[Expr]) -> LowerResult<ValueId> {
        let own = self.shape(id).to_vec();
        let Some(missing) = shape.len().checked_sub(own.len()) else {
            return invalid(format!("{} does not broadcast to {}", shape_text(&own), shape_text(shape)));
        };
        let fits = |dim: &Expr, to: &Expr| dim.as_const() == Some(1) || self.is_same(dim, to);
        let expanded: Vec<Expr> = own
            .iter()
            .zip(&shape[missing..])
            .map(|(dim, to)| if fits(dim, to) { dim.clone() } else { to.clone() })
            .collect();
        if expanded == own { Ok(id) } else { self.expand(&format!("{name}.expanded"), id, expanded) }
    }

    /// The operand expanded to a shape that it broadcasts to.
    pub(crate) fn expand(&mut self, name: &str, id: ValueId, shape: Vec<Expr>) -> LowerResult<ValueId> {
        if self.with_facts(|facts| facts.same_shape(self.shape(id), &shape)) {
            return Ok(id);
        }
        self.require_broadcast(self.shape(id), &shape)?;
        self.emit_one(name, Op::Pointwise(PointProgram::default()), &[id], self.dtype(id), shape)
    }

    /// A shape must broadcast to another; where only an invocation tells, it is checked.
    pub(crate) fn require_broadcast(&self, from: &[Expr], to: &[Expr]) -> LowerResult<()> {
        let Some(missing) = to.len().checked_sub(from.len()) else {
            return invalid(format!("{} does not broadcast to {}", shape_text(from), shape_text(to)));
        };
        for (dim, to) in from.iter().zip(&to[missing..]) {
            if dim.as_const() == Some(1) || self.is_same(dim, to) {
                continue;
            }
            if self.is_different(dim, &Expr::Const(1)) {
                self.require_equal(dim, to)?;
            }
            self.require(
                &simplified(dim, &self.graph.symbols),
                Relation::Broadcasts,
                &simplified(to, &self.graph.symbols),
            );
        }
        Ok(())
    }

    /// The same elements under another shape.
    pub(crate) fn reshape(&mut self, name: &str, id: ValueId, shape: Vec<Expr>) -> LowerResult<ValueId> {
        if self.with_facts(|facts| facts.same_shape(self.shape(id), &shape)) {
            return Ok(id);
        }
        let shape: Vec<Expr> = shape.iter().map(|dim| simplified(dim, &self.graph.symbols)).collect();
        let (from, to) = (elements(self.shape(id)), elements(&shape));
        if self.is_different(&from, &to) {
            return invalid(format!(
                "{} elements cannot be reshaped to {} of {}",
                self.text(&from),
                self.text(&to),
                shape_text(&shape)
            ));
        }
        self.require_equal(&from, &to)?;
        self.emit_one(name, Op::Reshape, &[id], self.dtype(id), shape)
    }

    /// `a / b`, where an invocation is checked for that it leaves no remainder.
    pub(crate) fn divided(&self, a: &Expr, b: &Expr) -> LowerResult<Expr> {
        if let Some(exact) = crate::size::divide_exact(a, b) {
            return Ok(exact);
        }
        let symbols = &self.graph.symbols;
        let by = larger(b.clone(), Expr::Const(1), symbols);
        let quotient = simplified(&a.clone().floor_div(by), symbols);
        self.require_equal(&simplified(&(quotient.clone() * b.clone()), symbols), a)?;
        match bounds(&quotient, symbols) {
            Some((low, high)) if low == high => Ok(Expr::Const(low)),
            _ => Ok(quotient),
        }
    }
}
