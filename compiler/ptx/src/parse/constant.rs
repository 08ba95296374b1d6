//! Literals and constant expressions (ISA chapter 4.5): evaluated here, so that the tree holds numbers.
//!
//! Integers are held in 128 bits and must fit signed or unsigned 64 bits in the end. Comparisons, `?:` and arithmetic on floating-point literals are not
//! supported: no compiler writes them.

use super::{Parsed, Parser};
use crate::ast::Immediate;
use crate::lex::{Token, TokenKind};

/// Binary operators by falling binding strength.
const LEVELS: [&[&str]; 6] = [&["|"], &["^"], &["&"], &["<<", ">>"], &["+", "-"], &["*", "/", "%"]];

impl Parser<'_> {
    /// A number or a constant expression.
    pub(super) fn constant(&mut self) -> Parsed<Immediate> {
        if let Some(float) = self.signed_float()? {
            return Ok(float);
        }
        Ok(Immediate::Int(self.integer("a number")?))
    }

    /// A constant expression of integers.
    pub(super) fn integer(&mut self, what: &str) -> Parsed<i128> {
        let first = self.token();
        let value = self.binary(0, what)?;
        if (i128::from(i64::MIN)..=i128::from(u64::MAX)).contains(&value) {
            return Ok(value);
        }
        Err(self.expected_at(first, "a number of at most 64 bits"))
    }

    fn binary(&mut self, level: usize, what: &str) -> Parsed<i128> {
        let Some(operators) = LEVELS.get(level) else { return self.unary(what) };
        let mut left = self.binary(level + 1, what)?;
        loop {
            let token = self.token();
            let Some(operator) = operators.iter().copied().find(|o| self.eat_operator(o)) else { return Ok(left) };
            let right = self.binary(level + 1, what)?;
            left = apply(operator, left, right).ok_or_else(|| self.expected_at(token, "an operation whose result is a 64-bit number"))?;
        }
    }

    /// Takes an operator of one or two equal bytes.
    fn eat_operator(&mut self, operator: &str) -> bool {
        let byte = operator.as_bytes()[0];
        let there = self.is(byte) && (operator.len() == 1 || self.peek_kind(1) == TokenKind::Punctuation(byte));
        if there {
            self.at += operator.len();
        }
        there
    }

    fn unary(&mut self, what: &str) -> Parsed<i128> {
        let token = self.token();
        match token.kind {
            TokenKind::Integer => {
                self.bump();
                self.integer_literal(token)
            }
            TokenKind::Identifier if self.text() == "WARP_SZ" => {
                self.bump();
                Ok(32)
            }
            TokenKind::Punctuation(operator @ (b'-' | b'+' | b'~' | b'!')) => {
                self.bump();
                let value = self.nested(|p| p.unary(what))?;
                Ok(match operator {
                    b'-' => -value,
                    b'~' => !value,
                    b'!' => i128::from(value == 0),
                    _ => value,
                })
            }
            TokenKind::Punctuation(b'(') => {
                self.bump();
                let value = self.nested(|p| p.binary(0, what))?;
                self.expect(b')')?;
                Ok(value)
            }
            _ => Err(self.expected(what)),
        }
    }

    /// The value of an integer token.
    pub(super) fn integer_literal(&self, token: Token) -> Parsed<i128> {
        let text = self.tokens.text(token).trim_end_matches(['u', 'U']);
        let (digits, radix) = match text.as_bytes() {
            [b'0', b'x' | b'X', ..] => (&text[2..], 16),
            [b'0', b'b' | b'B', ..] => (&text[2..], 2),
            [b'0', _, ..] => (&text[1..], 8),
            _ => (text, 10),
        };
        u64::from_str_radix(digits, radix).map(i128::from).map_err(|_| self.expected_at(token, "a number of at most 64 bits"))
    }

    /// A floating-point literal with its signs, or nothing.
    fn signed_float(&mut self) -> Parsed<Option<Immediate>> {
        let mut signs = 0;
        while matches!(self.peek_kind(signs), TokenKind::Punctuation(b'-' | b'+')) {
            signs += 1;
        }
        if self.peek_kind(signs) != TokenKind::Float {
            return Ok(None);
        }
        let mut negative = false;
        for _ in 0..signs {
            negative ^= self.is(b'-');
            self.bump();
        }
        let token = self.bump();
        let text = self.tokens.text(token);
        let value = match text.as_bytes() {
            [b'0', b'f' | b'F', ..] => {
                u32::from_str_radix(&text[2..], 16).ok().map(|bits| Immediate::F32(bits ^ u32::from(negative) << 31))
            }
            [b'0', b'd' | b'D', ..] => {
                u64::from_str_radix(&text[2..], 16).ok().map(|bits| Immediate::F64(bits ^ u64::from(negative) << 63))
            }
            _ => text.parse::<f64>().ok().map(|value| Immediate::F64((if negative { -value } else { value }).to_bits())),
        };
        value.map(Some).ok_or_else(|| self.expected_at(token, "a floating-point literal"))
    }
}

/// The result of an operator, `None` where it has none in 64 bits.
fn apply(operator: &str, left: i128, right: i128) -> Option<i128> {
    let shift = || u32::try_from(right).ok().filter(|&count| count < 64);
    let value = match operator {
        "|" => left | right,
        "^" => left ^ right,
        "&" => left & right,
        "<<" => left.checked_mul(1 << shift()?)?,
        ">>" => left >> shift()?,
        "+" => left.checked_add(right)?,
        "-" => left.checked_sub(right)?,
        "*" => left.checked_mul(right)?,
        "/" => left.checked_div(right)?,
        _ => left.checked_rem(right)?,
    };
    (value.unsigned_abs() <= u128::from(u64::MAX)).then_some(value)
}
