//! Instructions and their operands.

use super::{Parsed, Parser};
use crate::ast::*;
use crate::lex::{Token, TokenKind};

impl Parser<'_> {
    pub(super) fn instruction(&mut self) -> Parsed<Instruction> {
        let guard = self.guard()?;
        if !self.text().starts_with(|c: char| c.is_ascii_alphabetic()) {
            return Err(self.expected("an instruction"));
        }
        let opcode = self.identifier("an instruction")?;
        let mut modifiers = Vec::new();
        while let Some(word) = self.dot_word() {
            modifiers.push(Name::new(word));
            self.bump();
        }
        self.takes_addresses = opcode == "mov";
        let operands = if opcode == "call" { self.call_operands()? } else { self.operands()? };
        Ok(Instruction { guard, opcode, modifiers, operands })
    }

    fn guard(&mut self) -> Parsed<Option<Guard>> {
        if !self.eat(b'@') {
            return Ok(None);
        }
        let negated = self.eat(b'!');
        let predicate = self.qualified_name("a predicate register")?;
        Ok(Some(Guard { predicate, negated }))
    }

    /// Operands up to and including `;`.
    fn operands(&mut self) -> Parsed<Vec<Operand>> {
        let mut operands = Vec::new();
        if self.eat(b';') {
            return Ok(operands);
        }
        loop {
            operands.push(self.operand()?);
            if self.eat(b';') {
                return Ok(operands);
            }
            if !self.eat(b',') {
                return Err(self.expected("`,` or `;`"));
            }
        }
    }

    /// `(returns), callee, (arguments), prototype;`. Only the callee is required; the tree always
    /// has both lists.
    fn call_operands(&mut self) -> Parsed<Vec<Operand>> {
        let mut returns = Vec::new();
        if self.eat(b'(') {
            returns = self.comma_list(b')', Self::operand)?;
            self.expect(b',')?;
        }
        let callee = Operand::Name(self.qualified_name("a function or a register that holds one")?);
        let mut arguments = Vec::new();
        let mut rest = Vec::new();
        if self.eat(b',') {
            if self.eat(b'(') {
                arguments = self.comma_list(b')', Self::operand)?;
            } else {
                rest.push(Operand::Name(self.identifier("a list of arguments or a prototype")?));
            }
            if rest.is_empty() && self.eat(b',') {
                rest.push(Operand::Name(self.identifier("a prototype or table of targets")?));
            }
        }
        self.expect(b';')?;
        let mut operands = vec![Operand::List(returns), callee, Operand::List(arguments)];
        operands.append(&mut rest);
        Ok(operands)
    }

    fn operand(&mut self) -> Parsed<Operand> {
        let operand = match self.kind() {
            // `WARP_SZ` is a number and may start an expression.
            TokenKind::Identifier if self.text() == "WARP_SZ" => Operand::Immediate(self.constant()?),
            TokenKind::Identifier => self.named()?,
            TokenKind::Punctuation(b'{') => {
                self.bump();
                Operand::Vector(self.nested(|p| p.comma_list(b'}', Self::operand))?)
            }
            TokenKind::Punctuation(b'[') => {
                self.bump();
                bracketed(self.nested(|p| p.comma_list(b']', Self::operand))?)
            }
            TokenKind::Punctuation(b'!') if self.peek_kind(1) == TokenKind::Identifier => {
                self.bump();
                Operand::Not(self.qualified_name("a predicate register")?)
            }
            TokenKind::Punctuation(b'-') if self.is_negated_name() => {
                self.bump();
                Operand::Negated(self.qualified_name("a register")?)
            }
            TokenKind::Integer | TokenKind::Float | TokenKind::Punctuation(b'-' | b'+' | b'~' | b'!' | b'(') => {
                Operand::Immediate(self.constant()?)
            }
            _ => return Err(self.expected("an operand")),
        };
        Ok(operand)
    }

    /// Whether a `-` precedes a register rather than a number.
    fn is_negated_name(&self) -> bool {
        let next = self.tokens.list.get(self.at + 1).filter(|token| token.kind == TokenKind::Identifier);
        next.is_some_and(|token| self.tokens.text(*token) != "WARP_SZ")
    }

    /// An operand that starts with a name: `%r1`, `%tid.x`, `_`, `%p|%q`, `symbol+8`, `array[3]`.
    fn named(&mut self) -> Parsed<Operand> {
        let token = self.token();
        let name = self.qualified_name("a name")?;
        if self.eat(b'[') {
            return self.element(token, name);
        }
        if self.eat(b'|') {
            let second = self.qualified_name("the second register of a pair")?;
            return Ok(Operand::Pair(Box::new(name_or_sink(name)), Box::new(name_or_sink(second))));
        }
        Ok(match self.optional_offset()? {
            Some(offset) => Operand::NameOffset(name, offset),
            None => name_or_sink(name),
        })
    }

    /// `3]` after `array[`: the element's address for `mov`, otherwise the memory there. The tree
    /// holds byte offsets, so the array must be declared above.
    fn element(&mut self, array: Token, name: Name) -> Parsed<Operand> {
        let bytes = self.arrays.get(&name).copied();
        let bytes = bytes
            .ok_or_else(|| self.expected_at(array, "an operand, or a one-dimensional array that is declared above"))?;
        let token = self.token();
        let index = self.integer("a constant index")?;
        self.expect(b']')?;
        let offset = i64::try_from(index).ok().and_then(|index| index.checked_mul(bytes.into()));
        let offset = offset.ok_or_else(|| self.expected_at(token, "an index within 64 bits"))?;
        Ok(match self.takes_addresses {
            true => Operand::NameOffset(name, offset),
            false => Operand::Address(Address { base: AddressBase::Name(name), offset }),
        })
    }

    /// A name with its optional component: `%v.x`, `%r1.b0`.
    fn qualified_name(&mut self, what: &str) -> Parsed<Name> {
        let first = self.token();
        let name = self.identifier(what)?;
        let mut end = first.end;
        while self.kind() == TokenKind::DotWord && self.is_adjacent() {
            end = self.bump().end;
        }
        Ok(if end == first.end { name } else { Name::new(self.tokens.slice(first.start, end)) })
    }

    /// `+4`, `-4`, `+-4`, or nothing.
    pub(super) fn optional_offset(&mut self) -> Parsed<Option<i64>> {
        if !self.is(b'+') && !self.is(b'-') {
            return Ok(None);
        }
        // Offsets wrap like addresses, so an unsigned offset is accepted.
        Ok(Some(self.integer("a byte offset")? as i64))
    }
}

fn name_or_sink(name: Name) -> Operand {
    if name == "_" { Operand::Sink } else { Operand::Name(name) }
}

/// The contents of `[…]`: an address if possible, otherwise the list of parts.
fn bracketed(parts: Vec<Operand>) -> Operand {
    let address = match parts.as_slice() {
        [Operand::Name(name)] => Some((AddressBase::Name(name.clone()), 0)),
        [Operand::NameOffset(name, offset)] => Some((AddressBase::Name(name.clone()), *offset)),
        [Operand::Immediate(Immediate::Int(value))] => {
            u64::try_from(*value).ok().map(|absolute| (AddressBase::Absolute(absolute), 0))
        }
        _ => None,
    };
    match address {
        Some((base, offset)) => Operand::Address(Address { base, offset }),
        None => Operand::Bracket(parts),
    }
}
