//! Sizes that must match: for broadcasting, for reshaping, and for operators that index two
//! operands together.
//!
//! A requirement that is proven at compile time needs no check. If only part of a symbol's range
//! satisfies a node, the import restarts with that range ([`SizeFact`]). Everything else becomes a
//! [`Condition`] that is checked when inputs are bound.

use super::error::{LowerError, LowerResult, SizeFact, invalid};
use super::lowering::Lowering;
use crate::size::{
    at_least, bounds, elements, equal_up_to, larger, narrowed, not_negative_from, only_value, simplified, smaller,
};
use crate::tensor_graph::{Op, PointProgram, ValueId};
use atoll_kgraph::{Condition, Expr, Relation, SymbolId};

impl Lowering {
    /// Adds a condition that is checked in every invocation.
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

    /// A shape with the names of its symbols, for a message.
    pub(crate) fn shape_text(&self, shape: &[Expr]) -> String {
        format!("[{}]", shape.iter().map(|dim| self.text(dim)).collect::<Vec<_>>().join(", "))
    }

    /// The ranges of the symbols in `sizes`, for the end of a message.
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

    /// Whether a symbol is a dimension of an input: only such symbols are narrowed or merged by
    /// facts.
    fn is_dimension(&self, symbol: SymbolId) -> bool {
        self.graph.elements.iter().all(|element| element.symbol != symbol)
    }

    fn range_fact(&self, symbol: SymbolId, min: i64, max: i64) -> LowerError {
        LowerError::Restart(SizeFact::Range { symbol, min, max })
    }

    /// Requires two sizes to be equal.
    fn require_equal(&self, a: &Expr, b: &Expr) -> LowerResult<()> {
        let symbols = &self.graph.symbols;
        if self.is_same(a, b) {
            return Ok(());
        }
        if let (Expr::Symbol(a), Expr::Symbol(b)) = (a, b)
            && self.is_dimension(*a)
            && self.is_dimension(*b)
        {
            return Err(LowerError::Restart(SizeFact::Same(*a.min(b), *a.max(b))));
        }
        if let Some((symbol, value)) = only_value(a, b).filter(|(symbol, _)| self.is_dimension(*symbol)) {
            return Err(self.range_fact(symbol, value, value));
        }
        if self.is_different(a, b) {
            return invalid(format!(
                "it needs the sizes {} and {} to be equal, which they never are{}",
                self.text(a),
                self.text(b),
                self.ranges_text(&[a, b])
            ));
        }
        if let Some((symbol, max)) = equal_up_to(a, b, symbols) {
            return Err(self.range_fact(symbol, symbols[symbol.0 as usize].min, max));
        }
        self.require(a, Relation::Equal, b);
        Ok(())
    }

    /// Requires two dimensions to be equal; returns the more specific one.
    pub(crate) fn equal_dims(&self, a: Expr, b: Expr) -> LowerResult<Expr> {
        self.require_equal(&a, &b)?;
        let is_element = |size: &Expr| self.graph.elements.iter().any(|element| size.depends_on(element.symbol));
        Ok(if b.as_const().is_some() || (is_element(&a) && !is_element(&b)) { b } else { a })
    }

    /// Requires a size to be at least another.
    pub(crate) fn require_at_least(&self, size: &Expr, least: &Expr) -> LowerResult<()> {
        let difference = size.clone() - least.clone();
        let symbols = &self.graph.symbols;
        if at_least(&difference, &Expr::Const(0), symbols) {
            return Ok(());
        }
        if at_least(&(least.clone() - 1), size, symbols) {
            let ranges = self.ranges_text(&[size, least]);
            return invalid(format!(
                "it needs the size {} to be at least {}, which it never is{ranges}",
                self.text(size),
                self.text(least)
            ));
        }
        if let Some((symbol, min)) = not_negative_from(&difference, symbols) {
            return Err(self.range_fact(symbol, min, symbols[symbol.0 as usize].max));
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

    /// The dimension that two dimensions broadcast to. If only the invocation determines whether
    /// one of them is 1, the code that reads the operands must expand them ([`Lowering::fit`]).
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
                return Err(self.range_fact(symbol, spec.min, max));
            }
        }
        // They are equal, or one is 1: the result is the larger one, or 0 if one of them is 0.
        let any = smaller(smaller(a.clone(), b.clone(), symbols), Expr::Const(1), symbols);
        Ok(simplified(&(larger(a, b, symbols) * any), symbols))
    }

    /// Prepares an operand for broadcasting to `shape`: a dimension that may or may not be 1 is
    /// expanded.
    pub(crate) fn fit(&mut self, name: &str, id: ValueId, shape: &[Expr]) -> LowerResult<ValueId> {
        let own = self.shape(id).to_vec();
        let Some(missing) = shape.len().checked_sub(own.len()) else {
            return invalid(format!(
                "shape {} does not broadcast to shape {}",
                self.shape_text(&own),
                self.shape_text(shape)
            ));
        };
        let fits = |dim: &Expr, to: &Expr| dim.as_const() == Some(1) || self.is_same(dim, to);
        let expanded: Vec<Expr> = own
            .iter()
            .zip(&shape[missing..])
            .map(|(dim, to)| if fits(dim, to) { dim.clone() } else { to.clone() })
            .collect();
        if expanded == own { Ok(id) } else { self.expand(&format!("{name}.expanded"), id, expanded) }
    }

    /// Expands an operand to a shape that it broadcasts to.
    pub(crate) fn expand(&mut self, name: &str, id: ValueId, shape: Vec<Expr>) -> LowerResult<ValueId> {
        if self.with_facts(|facts| facts.same_shape(self.shape(id), &shape)) {
            return Ok(id);
        }
        self.require_broadcast(self.shape(id), &shape)?;
        self.emit_one(name, Op::Pointwise(PointProgram::default()), &[id], self.dtype(id), shape)
    }

    /// Requires a shape to broadcast to another. If only the invocation determines it, a condition
    /// is added.
    pub(crate) fn require_broadcast(&self, from: &[Expr], to: &[Expr]) -> LowerResult<()> {
        let Some(missing) = to.len().checked_sub(from.len()) else {
            return invalid(format!(
                "shape {} does not broadcast to shape {}",
                self.shape_text(from),
                self.shape_text(to)
            ));
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

    /// The same elements with another shape.
    pub(crate) fn reshape(&mut self, name: &str, id: ValueId, shape: Vec<Expr>) -> LowerResult<ValueId> {
        if self.with_facts(|facts| facts.same_shape(self.shape(id), &shape)) {
            return Ok(id);
        }
        let shape: Vec<Expr> = shape.iter().map(|dim| simplified(dim, &self.graph.symbols)).collect();
        let (from, to) = (elements(self.shape(id)), elements(&shape));
        if self.is_different(&from, &to) {
            return invalid(format!(
                "{} elements cannot be reshaped to the {} elements of shape {}",
                self.text(&from),
                self.text(&to),
                self.shape_text(&shape)
            ));
        }
        self.require_equal(&from, &to)?;
        self.emit_one(name, Op::Reshape, &[id], self.dtype(id), shape)
    }

    /// `a / b`; a condition that there is no remainder is added unless it is proven.
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
