//! Variables, parameters and their initial values.

use super::{Parsed, Parser, Place};
use crate::ast::*;
use crate::lex::TokenKind;
use crate::types::{ScalarType, StateSpace};

/// Types of variables that have no number of bytes; the tree keeps such a declaration as words.
const OPAQUE_TYPES: [&str; 3] = ["texref", "samplerref", "surfref"];

impl Parser<'_> {
    /// A variable or parameter from its state space on, without linkage and `;`. `None` where the tree has no shape for it (opaque types, several names in one
    /// declaration, `0xFF(symbol)` as initial value): the caller then keeps its words.
    pub(super) fn variable(&mut self) -> Parsed<Option<Variable>> {
        let space = self.dot_word().and_then(StateSpace::from_name).ok_or_else(|| self.expected("a state space"))?;
        self.bump();
        let mut variable = Variable::new(space, ScalarType::B8, "");
        let Some(ty) = self.declarators(&mut variable)? else { return Ok(None) };
        variable.ty = ty;
        variable.name = self.identifier("the name of a variable")?;
        variable.count = self.parameterized_count()?;
        while self.eat(b'[') {
            variable.dimensions.push(self.dimension()?);
        }
        if self.eat(b'=') {
            variable.initializer = self.initializer()?;
            if variable.initializer.is_none() {
                return Ok(None);
            }
        }
        let several = self.is(b',') && matches!(self.peek_kind(1), TokenKind::Identifier);
        Ok((!several).then_some(variable))
    }

    /// The words between state space and name, which come in any order; the type is the one that must be there.
    fn declarators(&mut self, variable: &mut Variable) -> Parsed<Option<ScalarType>> {
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
            } else if OPAQUE_TYPES.contains(&word) {
                return Ok(None);
            } else if let Some(found) = ScalarType::from_name(word).filter(|_| ty.is_none()) {
                self.bump();
                ty = Some(found);
            } else {
                break;
            }
        }
        ty.map(Some).ok_or_else(|| self.expected("a fundamental type"))
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
        // A plain number: an expression would take the `>` for an operator.
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

    fn initializer(&mut self) -> Parsed<Option<Initializer>> {
        if self.eat(b'{') {
            let items = self.nested(|p| p.comma_list(b'}', Self::initializer))?;
            return Ok(items.into_iter().collect::<Option<Vec<_>>>().map(Initializer::List));
        }
        if self.kind() == TokenKind::Identifier {
            return self.symbol_initializer().map(Some);
        }
        let value = self.constant()?;
        let masked = self.is(b'(');
        if masked {
            self.bump();
            self.comma_list(b')', Self::initializer)?;
        }
        Ok((!masked).then_some(Initializer::Immediate(value)))
    }

    fn symbol_initializer(&mut self) -> Parsed<Initializer> {
        let mut name = self.identifier("a symbol")?;
        let generic = name == "generic" && self.eat(b'(');
        if generic {
            name = self.identifier("a symbol")?;
            self.expect(b')')?;
        }
        let offset = self.optional_offset()?.unwrap_or(0);
        Ok(Initializer::Symbol { name, offset, generic })
    }
}
