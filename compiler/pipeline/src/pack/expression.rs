//! Parser of size expressions in manifests: `(n + 1) * 4`, `ceil(n / 32)`, `max(n, 16)`.
//!
//! ```text
//! sum     = product { ("+" | "-") product }
//! product = value { ("*" | "/") value }              a quotient is rounded down
//! value   = number | symbol | "(" sum ")" | "ceil(" value "/" value ")" | ("min" | "max") "(" sum "," sum ")"
//! ```

use atoll_kgraph::{Expr, SymbolId};
use std::collections::BTreeMap;

/// Deepest nesting of parentheses, to bound the recursion.
const NESTING_MAX: u32 = 32;

/// Symbol ids by name.
pub(super) type Symbols = BTreeMap<String, SymbolId>;

/// Parses an expression.
pub(super) fn parse(text: &str, symbols: &Symbols) -> Result<Expr, String> {
    let mut parser = Parser { rest: text, symbols, depth: 0 };
    let expr = parser.sum()?;
    match parser.rest.trim_start() {
        "" => Ok(expr),
        rest => Err(format!("`{text}`: unexpected text at `{rest}`")),
    }
}

/// Whether a text is a word: letters, digits and `_`, not starting with a digit. Names of symbols
/// and buffers are words.
pub(super) fn is_word(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

struct Parser<'a> {
    rest: &'a str,
    symbols: &'a Symbols,
    depth: u32,
}

impl<'a> Parser<'a> {
    fn sum(&mut self) -> Result<Expr, String> {
        self.depth += 1;
        if self.depth > NESTING_MAX {
            return Err(format!("more than {NESTING_MAX} nested parentheses"));
        }
        let mut left = self.product()?;
        loop {
            left = match self.eat_any(['+', '-']) {
                Some('+') => left + self.product()?,
                Some(_) => left - self.product()?,
                None => break,
            };
        }
        self.depth -= 1;
        Ok(left)
    }

    fn product(&mut self) -> Result<Expr, String> {
        let mut left = self.value()?;
        loop {
            left = match self.eat_any(['*', '/']) {
                Some('*') => left * self.value()?,
                Some(_) => left.floor_div(self.value()?),
                None => return Ok(left),
            };
        }
    }

    fn value(&mut self) -> Result<Expr, String> {
        if self.eat_any(['(']).is_some() {
            let inner = self.sum()?;
            self.expect(')')?;
            return Ok(inner);
        }
        match self.word() {
            "" => Err(format!("expected a number, a symbol or `(` at `{}`", self.rest)),
            "ceil" => {
                self.expect('(')?;
                let above = self.value()?;
                self.expect('/')?;
                let below = self.value()?;
                self.expect(')')?;
                Ok(above.ceil_div(below))
            }
            word @ ("min" | "max") => {
                self.expect('(')?;
                let left = self.sum()?;
                self.expect(',')?;
                let right = self.sum()?;
                self.expect(')')?;
                Ok(if word == "min" { left.min(right) } else { left.max(right) })
            }
            word if word.starts_with(|c: char| c.is_ascii_digit()) => {
                word.parse().map(Expr::Const).map_err(|_| format!("`{word}` is not a 64-bit number"))
            }
            word => self.symbols.get(word).map(|&id| id.into()).ok_or_else(|| format!("there is no symbol `{word}`")),
        }
    }

    /// The next word, which may be empty.
    fn word(&mut self) -> &'a str {
        self.rest = self.rest.trim_start();
        let end = self.rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word
    }

    fn eat_any<const N: usize>(&mut self, characters: [char; N]) -> Option<char> {
        let rest = self.rest.trim_start();
        let first = rest.chars().next().filter(|c| characters.contains(c))?;
        self.rest = &rest[first.len_utf8()..];
        Some(first)
    }

    fn expect(&mut self, character: char) -> Result<(), String> {
        self.eat_any([character]).map(|_| ()).ok_or_else(|| format!("expected `{character}` at `{}`", self.rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_parsed_with_their_precedence() {
        let symbols: Symbols = [("n".into(), SymbolId(0)), ("m_2".into(), SymbolId(1))].into();
        for (text, value) in [
            ("7", 7),
            ("n", 10),
            ("n + 2 * m_2", 16),
            ("(n+2)*m_2 - 1", 35),
            ("n / 3 / 2", 1),
            ("ceil(n / 4)", 3),
            ("ceil((n+m_2) / 4)", 4),
            ("max(n, m_2) - min( n , m_2 )", 7),
            ("n - 1 - 1", 8),
        ] {
            assert_eq!(parse(text, &symbols).unwrap().eval(&[10, 3]), Ok(value), "{text}");
        }
        let deep = "(".repeat(100_000);
        for (text, says) in [
            ("", "expected"),
            ("n +", "expected"),
            ("k", "no symbol `k`"),
            ("n n", "at `n`"),
            ("(n", "`)`"),
            ("99999999999999999999", "not a 64-bit number"),
            ("ceil(n)", "`/`"),
            ("µ", "expected"),
            (&deep, "parentheses"),
        ] {
            let error = parse(text, &symbols).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
