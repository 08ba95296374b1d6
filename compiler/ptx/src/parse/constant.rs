//! Literals and constant expressions (ISA chapter 4.5). They are evaluated here, so the tree holds
//! only numbers.
//!
//! A value is a signed or unsigned 64-bit integer or a double; integers wrap. The rules are those
//! of C on a 64-bit machine, with two exceptions: `%` and `~` make their operands unsigned, and
//! `?:` converts neither operand. Where the ISA's table is ambiguous, this follows `ptxas`. What C
//! leaves undefined (division by zero, a shift by 64 or more) is an error.

use super::{Parsed, Parser};
use crate::ast::Immediate;
use crate::lex::{Token, TokenKind};

/// A value of a constant expression.
#[derive(Clone, Copy, Debug)]
enum Value {
    Signed(i64),
    Unsigned(u64),
    Double(f64),
    /// `0f…`; the only operation it allows is a sign.
    Single(u32),
}

/// Binary operators: spelling and precedence. A longer operator precedes its prefixes.
const OPERATORS: [(&str, u8); 18] = [
    ("||", 1),
    ("&&", 2),
    ("==", 6),
    ("!=", 6),
    ("<=", 7),
    (">=", 7),
    ("<<", 8),
    (">>", 8),
    ("|", 3),
    ("^", 4),
    ("&", 5),
    ("<", 7),
    (">", 7),
    ("+", 9),
    ("-", 9),
    ("*", 10),
    ("/", 10),
    ("%", 10),
];

impl Parser<'_> {
    /// A number or a constant expression.
    pub(super) fn constant(&mut self) -> Parsed<Immediate> {
        Ok(match self.conditional("a number")? {
            Value::Signed(value) => Immediate::Int(value.into()),
            Value::Unsigned(value) => Immediate::Int(value.into()),
            Value::Double(value) => Immediate::F64(value.to_bits()),
            Value::Single(bits) => Immediate::F32(bits),
        })
    }

    /// An integer constant expression.
    pub(super) fn integer(&mut self, what: &str) -> Parsed<i128> {
        let first = self.token();
        match self.conditional(what)? {
            Value::Signed(value) => Ok(value.into()),
            Value::Unsigned(value) => Ok(value.into()),
            Value::Double(_) | Value::Single(_) => Err(self.expected_at(first, format!("{what} as an integer"))),
        }
    }

    /// `condition ? value : value`, or one value.
    fn conditional(&mut self, what: &str) -> Parsed<Value> {
        let first = self.token();
        let condition = self.binary(0, what)?;
        if !self.eat(b'?') {
            return Ok(condition);
        }
        self.nested(|p| {
            let taken = p.conditional("a number")?;
            p.expect(b':')?;
            let other = p.conditional("a number")?;
            let holds = condition.as_bool().ok_or_else(|| p.expected_at(first, "an integer condition"))?;
            Ok(if holds { taken } else { other })
        })
    }

    /// Parses operators with a precedence of at least `level`. The number of levels bounds the
    /// recursion.
    fn binary(&mut self, level: u8, what: &str) -> Parsed<Value> {
        let mut left = self.unary(what)?;
        while let Some((operator, precedence)) = self.operator().filter(|(_, precedence)| *precedence >= level) {
            let token = self.token();
            self.at += operator.len();
            let right = self.binary(precedence + 1, "a number")?;
            left = apply(operator, left, right)
                .ok_or_else(|| self.expected_at(token, "an operation with a defined result"))?;
        }
        Ok(left)
    }

    /// The operator at the current token: one punctuation byte, or two adjacent ones.
    fn operator(&self) -> Option<(&'static str, u8)> {
        let TokenKind::Punctuation(first) = self.kind() else { return None };
        let follows = |byte: u8| {
            self.peek_kind(1) == TokenKind::Punctuation(byte) && self.tokens.list[self.at + 1].start == self.token().end
        };
        OPERATORS.into_iter().find(|(spelling, _)| match *spelling.as_bytes() {
            [one] => one == first,
            [one, two] => one == first && follows(two),
            _ => false,
        })
    }

    fn unary(&mut self, what: &str) -> Parsed<Value> {
        let token = self.token();
        match token.kind {
            TokenKind::Integer => {
                self.bump();
                let value = self.integer_literal(token)?;
                let is_unsigned = self.tokens.text(token).ends_with(['u', 'U']);
                Ok(i64::try_from(value).ok().filter(|_| !is_unsigned).map_or(Value::Unsigned(value), Value::Signed))
            }
            TokenKind::Float => {
                self.bump();
                self.float_literal(token)
            }
            TokenKind::Identifier if self.text() == "WARP_SZ" => {
                self.bump();
                Ok(Value::Signed(32))
            }
            TokenKind::Punctuation(operator @ (b'-' | b'+' | b'~' | b'!')) => {
                self.bump();
                let value = self.nested(|p| p.unary(what))?;
                value.with_sign(operator).ok_or_else(|| self.expected_at(token, "an operation with a defined result"))
            }
            TokenKind::Punctuation(b'(') => {
                self.bump();
                self.nested(|p| match p.cast() {
                    Some(to) => {
                        Ok(p.unary(what)?.cast(to).ok_or_else(|| p.expected_at(token, "a cast of an integer"))?)
                    }
                    None => {
                        let value = p.conditional(what)?;
                        p.expect(b')')?;
                        Ok(value)
                    }
                })
            }
            _ => Err(self.expected(what)),
        }
    }

    /// `.s64)` or `.u64)` after `(`; true for unsigned.
    fn cast(&mut self) -> Option<bool> {
        let is_unsigned = match self.dot_word()? {
            "s64" => false,
            "u64" => true,
            _ => return None,
        };
        (self.peek_kind(1) == TokenKind::Punctuation(b')')).then(|| {
            self.at += 2;
            is_unsigned
        })
    }

    /// The value of an integer token.
    pub(super) fn integer_literal(&self, token: Token) -> Parsed<u64> {
        let text = self.tokens.text(token).trim_end_matches(['u', 'U']);
        let (digits, radix) = match text.as_bytes() {
            [b'0', b'x' | b'X', ..] => (&text[2..], 16),
            [b'0', b'b' | b'B', ..] => (&text[2..], 2),
            [b'0', _, ..] => (&text[1..], 8),
            _ => (text, 10),
        };
        u64::from_str_radix(digits, radix).map_err(|_| self.expected_at(token, "a number of at most 64 bits"))
    }

    /// The value of a floating-point token.
    fn float_literal(&self, token: Token) -> Parsed<Value> {
        let text = self.tokens.text(token);
        let value = match text.as_bytes() {
            [b'0', b'f' | b'F', ..] => u32::from_str_radix(&text[2..], 16).ok().map(Value::Single),
            [b'0', b'd' | b'D', ..] => {
                u64::from_str_radix(&text[2..], 16).ok().map(|bits| Value::Double(f64::from_bits(bits)))
            }
            _ => text.parse().ok().map(Value::Double),
        };
        value.ok_or_else(|| self.expected_at(token, "a floating-point literal"))
    }
}

impl Value {
    /// Whether an integer is nonzero; `None` for a float.
    fn as_bool(self) -> Option<bool> {
        match self {
            Value::Signed(value) => Some(value != 0),
            Value::Unsigned(value) => Some(value != 0),
            Value::Double(_) | Value::Single(_) => None,
        }
    }

    /// The bits of an integer; `None` for a float.
    fn bits(self) -> Option<u64> {
        match self {
            Value::Signed(value) => Some(value as u64),
            Value::Unsigned(value) => Some(value),
            Value::Double(_) | Value::Single(_) => None,
        }
    }

    fn cast(self, to_unsigned: bool) -> Option<Value> {
        let bits = self.bits()?;
        Some(if to_unsigned { Value::Unsigned(bits) } else { Value::Signed(bits as i64) })
    }

    /// The result of a unary operator; `None` if the operand has no such operation.
    fn with_sign(self, operator: u8) -> Option<Value> {
        Some(match (operator, self) {
            (b'+', value) => value,
            (b'-', Value::Signed(value)) => Value::Signed(value.wrapping_neg()),
            (b'-', Value::Unsigned(value)) => Value::Unsigned(value.wrapping_neg()),
            // Flips the sign bit, so that a NaN changes its sign too.
            (b'-', Value::Double(value)) => Value::Double(f64::from_bits(value.to_bits() ^ 1 << 63)),
            (b'-', Value::Single(bits)) => Value::Single(bits ^ 1 << 31),
            (b'~', value) => Value::Unsigned(!value.bits()?),
            (_, value) => Value::Signed((!value.as_bool()?).into()),
        })
    }
}

/// Converts two operands to a common type: both are doubles, or one unsigned integer makes the
/// other unsigned.
fn convert(left: Value, right: Value) -> Option<(Value, Value)> {
    match (left, right) {
        (Value::Signed(_), Value::Signed(_)) | (Value::Double(_), Value::Double(_)) => Some((left, right)),
        _ => Some((Value::Unsigned(left.bits()?), Value::Unsigned(right.bits()?))),
    }
}

/// The result of a binary operator; `None` if it is undefined.
fn apply(operator: &str, left: Value, right: Value) -> Option<Value> {
    let boolean = |value: bool| Some(Value::Signed(value.into()));
    match operator {
        "&&" => return boolean(left.as_bool()? & right.as_bool()?),
        "||" => return boolean(left.as_bool()? | right.as_bool()?),
        "%" => return Some(Value::Unsigned(left.bits()?.checked_rem(right.bits()?)?)),
        "<<" | ">>" => return shift(operator == "<<", left, right.bits()?),
        _ => {}
    }
    let converted = convert(left, right)?;
    let ordering = match converted {
        (Value::Signed(left), Value::Signed(right)) => Some(left.cmp(&right)),
        (Value::Unsigned(left), Value::Unsigned(right)) => Some(left.cmp(&right)),
        (Value::Double(left), Value::Double(right)) => left.partial_cmp(&right),
        _ => return None,
    };
    match operator {
        "==" => boolean(ordering.is_some_and(|o| o.is_eq())),
        "!=" => boolean(ordering.is_none_or(|o| o.is_ne())),
        "<" => boolean(ordering.is_some_and(|o| o.is_lt())),
        "<=" => boolean(ordering.is_some_and(|o| o.is_le())),
        ">" => boolean(ordering.is_some_and(|o| o.is_gt())),
        ">=" => boolean(ordering.is_some_and(|o| o.is_ge())),
        _ => arithmetic(operator, converted),
    }
}

/// Shifts; the result has the type of the first operand.
fn shift(to_left: bool, value: Value, count: u64) -> Option<Value> {
    let count = u32::try_from(count).ok().filter(|count| *count < u64::BITS)?;
    Some(match (value, to_left) {
        (Value::Signed(value), true) => Value::Signed(value << count),
        (Value::Signed(value), false) => Value::Signed(value >> count),
        (Value::Unsigned(value), true) => Value::Unsigned(value << count),
        (Value::Unsigned(value), false) => Value::Unsigned(value >> count),
        (Value::Double(_) | Value::Single(_), _) => return None,
    })
}

/// `+ - * / & | ^` on two operands of the same type.
fn arithmetic(operator: &str, operands: (Value, Value)) -> Option<Value> {
    Some(match operands {
        (Value::Signed(left), Value::Signed(right)) if operator == "/" => Value::Signed(left.checked_div(right)?),
        (Value::Signed(left), Value::Signed(right)) => {
            // Except for division, the low 64 bits do not depend on signedness.
            arithmetic(operator, (Value::Unsigned(left as u64), Value::Unsigned(right as u64)))?.cast(false)?
        }
        (Value::Unsigned(left), Value::Unsigned(right)) => Value::Unsigned(match operator {
            "+" => left.wrapping_add(right),
            "-" => left.wrapping_sub(right),
            "*" => left.wrapping_mul(right),
            "/" => left.checked_div(right)?,
            "&" => left & right,
            "|" => left | right,
            _ => left ^ right,
        }),
        (Value::Double(left), Value::Double(right)) => Value::Double(match operator {
            "+" => left + right,
            "-" => left - right,
            "*" => left * right,
            "/" => left / right,
            _ => return None,
        }),
        _ => return None,
    })
}
