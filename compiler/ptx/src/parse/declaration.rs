//! Variables, parameters and their initial values.

use super::{Parsed, Parser, Place};
use crate::ast::*;
use crate::lex::TokenKind;
use crate::types::{ScalarType, StateSpace};

impl Parser<'_> {
    /// `.shared .b32 a, b[3];` from the state space on: one variable per name, each with its part
    /// of the text, which begins at the token `first`. `None` for an opaque type, which the tree
    /// cannot represent; the caller then keeps the words.
    pub(super) fn variables(&mut self, first: usize, linkage: Linkage) -> Parsed<Option<Vec<(Origin, Variable)>>> {
        let Some(mut variable) = self.variable()?.filter(|variable| variable.opaque.is_none()) else { return Ok(None) };
        variable.linkage = linkage;
        let mut first = first;
        let mut variables = Vec::new();
        while self.eat(b',') {
            let next = Variable { dimensions: Vec::new(), initializer: None, ..variable.clone() };
            variables.push((self.origin(first), std::mem::replace(&mut variable, next)));
            first = self.at;
            self.declarator(&mut variable)?;
        }
        self.expect(b';')?;
        variables.push((self.origin(first), variable));
        Ok(Some(variables))
    }

    /// A variable or parameter from its state space on, without linkage and `;`. `None` for a
    /// variable of opaque type that is not a parameter.
    pub(super) fn variable(&mut self) -> Parsed<Option<Variable>> {
        let space = self.dot_word().and_then(StateSpace::from_name).ok_or_else(|| self.expected("a state space"))?;
        self.bump();
        let mut variable = Variable::new(space, ScalarType::B64, "");
        self.specifiers(&mut variable)?;
        if variable.opaque.is_some() && space != StateSpace::Param {
            return Ok(None);
        }
        self.declarator(&mut variable)?;
        Ok(Some(variable))
    }

    /// The words between state space and name, in any order. Only the type is required.
    fn specifiers(&mut self, variable: &mut Variable) -> Parsed<()> {
        let mut ty = None;
        while let Some(word) = self.dot_word() {
            if word == "align" {
                variable.align = Some(self.alignment()?);
            } else if let Some(width) = self.vector_width() {
                variable.vector = Some(width);
            } else if word == "ptr" {
                self.bump();
                variable.pointer = Some(self.pointer_attribute()?);
            } else if word == "attribute" {
                variable.attributes.push(self.directive(Place::Header)?);
            } else if let Some(found) = OpaqueType::from_name(word).filter(|_| variable.opaque.is_none()) {
                self.bump();
                variable.opaque = Some(found);
            } else if let Some(found) = ScalarType::from_name(word).filter(|_| ty.is_none()) {
                self.bump();
                ty = Some(found);
            } else {
                break;
            }
        }
        match (ty, variable.opaque) {
            (Some(ty), _) => variable.ty = ty,
            (None, Some(_)) => {}
            (None, None) => return Err(self.expected("a fundamental type")),
        }
        Ok(())
    }

    /// The name and what follows it: `a`, `a[3] = {1, 2, 3}`, `a<8>`.
    fn declarator(&mut self, variable: &mut Variable) -> Parsed<()> {
        variable.name = self.identifier("the name of a variable")?;
        variable.count = self.parameterized_count()?;
        while self.eat(b'[') {
            variable.dimensions.push(self.dimension()?);
        }
        if variable.dimensions.len() == 1 {
            let element_bytes = variable.ty.bytes() * u32::from(variable.vector.unwrap_or(1));
            let hidden = self.arrays.insert(variable.name.clone(), element_bytes);
            self.hidden_arrays.push((variable.name.clone(), hidden));
        }
        if self.eat(b'=') {
            variable.initializer = Some(self.initializer()?);
        }
        Ok(())
    }

    /// Ends a scope: removes all array declarations except the first `count`.
    pub(super) fn leave_scope(&mut self, count: usize) {
        for (name, hidden) in self.hidden_arrays.drain(count..).rev() {
            match hidden {
                Some(outer) => self.arrays.insert(name, outer),
                None => self.arrays.remove(&name),
            };
        }
    }

    fn alignment(&mut self) -> Parsed<u32> {
        self.bump();
        let token = self.token();
        let value = self.integer("an alignment in bytes")?;
        u32::try_from(value).map_err(|_| self.expected_at(token, "an alignment in bytes"))
    }

    fn pointer_attribute(&mut self) -> Parsed<PointerAttribute> {
        let space = self.dot_word().and_then(StateSpace::from_name);
        if space.is_some() {
            self.bump();
        }
        let align = if self.dot_word() == Some("align") { Some(self.alignment()?) } else { None };
        Ok(PointerAttribute { space, align })
    }

    /// `.v2`, `.v4` or `.v8`, or nothing.
    pub(super) fn vector_width(&mut self) -> Option<u8> {
        let width = match self.dot_word()? {
            "v2" => 2,
            "v4" => 4,
            "v8" => 8,
            _ => return None,
        };
        self.bump();
        Some(width)
    }

    /// `<100>`, or nothing.
    pub(super) fn parameterized_count(&mut self) -> Parsed<Option<u32>> {
        if !self.eat(b'<') {
            return Ok(None);
        }
        let token = self.token();
        // Only a plain number: an expression would parse `>` as an operator.
        let count = match token.kind {
            TokenKind::Integer => {
                self.bump();
                self.integer_literal(token)?
            }
            _ => return Err(self.expected("a number of registers")),
        };
        self.expect(b'>')?;
        u32::try_from(count).map(Some).map_err(|_| self.expected_at(token, "a number of registers below 2³²"))
    }

    /// `8]` or `]`
    fn dimension(&mut self) -> Parsed<Option<u64>> {
        if self.eat(b']') {
            return Ok(None);
        }
        let token = self.token();
        let value = self.integer("an array dimension")?;
        self.expect(b']')?;
        u64::try_from(value).map(Some).map_err(|_| self.expected_at(token, "an array dimension"))
    }

    fn initializer(&mut self) -> Parsed<Initializer> {
        if self.eat(b'{') {
            return Ok(Initializer::List(self.nested(|p| p.comma_list(b'}', Self::initializer))?));
        }
        if self.kind() == TokenKind::Identifier && self.text() != "WARP_SZ" {
            return self.symbol_initializer(None);
        }
        let token = self.token();
        let value = self.constant()?;
        if !self.eat(b'(') {
            return Ok(Initializer::Immediate(value));
        }
        let mask = match value {
            Immediate::Int(mask) => u64::try_from(mask).ok(),
            Immediate::F32(_) | Immediate::F64(_) => None,
        };
        let mask = mask.ok_or_else(|| self.expected_at(token, "a mask of at most 64 bits"))?;
        let symbol = self.symbol_initializer(Some(mask))?;
        self.expect(b')')?;
        Ok(symbol)
    }

    /// `symbol`, `symbol+8`, `generic(symbol)+8`
    fn symbol_initializer(&mut self, mask: Option<u64>) -> Parsed<Initializer> {
        let mut name = self.identifier("a symbol")?;
        let generic = name == "generic" && self.eat(b'(');
        if generic {
            name = self.identifier("a symbol")?;
            self.expect(b')')?;
        }
        let offset = self.optional_offset()?.unwrap_or(0);
        Ok(Initializer::Symbol { name, offset, generic, mask })
    }
}
