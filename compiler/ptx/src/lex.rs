//! The lexer: PTX text to tokens with byte spans.
//!
//! White space and comments are not tokens. The parser takes them from the text between two tokens,
//! which keeps the tree lossless.

use crate::limits::MAX_SOURCE_BYTES;
use crate::syntax_error::{SyntaxError, SyntaxErrors};

/// The kind of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenKind {
    /// `%r1`, `_`, `$L__BB0_1`, `add`
    Identifier,
    /// `.global`, `.shared::cta`, `.1d`
    DotWord,
    /// `42`, `0x2A`, `052`, `0b101010`, `42U`
    Integer,
    /// `0f3F800000`, `0d…`, `1.5`, `1e9`
    Float,
    /// `"nounroll"`
    String,
    /// One byte of punctuation.
    Punctuation(u8),
    /// End of the text.
    End,
}

/// A token with its byte range.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Token {
    /// Its kind.
    pub(crate) kind: TokenKind,
    /// First byte.
    pub(crate) start: u32,
    /// One past the last byte.
    pub(crate) end: u32,
}

/// A text and its tokens; the last token is [`TokenKind::End`].
#[derive(Debug)]
pub(crate) struct Tokens<'a> {
    pub(crate) source: &'a str,
    pub(crate) list: Vec<Token>,
    lines: Vec<u32>,
}

impl<'a> Tokens<'a> {
    /// The spelling of a token.
    pub(crate) fn text(&self, token: Token) -> &'a str {
        self.slice(token.start, token.end)
    }

    /// The text between two byte offsets on token boundaries.
    pub(crate) fn slice(&self, start: u32, end: u32) -> &'a str {
        &self.source[start as usize..end as usize]
    }

    /// Line and column of a byte offset, both from 1; the column counts bytes.
    pub(crate) fn position(&self, byte: u32) -> (u32, u32) {
        position(&self.lines, byte)
    }
}

fn position(lines: &[u32], byte: u32) -> (u32, u32) {
    let line = lines.partition_point(|&start| start <= byte);
    (line as u32, byte - lines[line - 1] + 1)
}

/// Splits a text into tokens. Reports all bytes that are in no token.
pub(crate) fn lex(source: &str) -> Result<Tokens<'_>, SyntaxErrors> {
    if source.len() > MAX_SOURCE_BYTES {
        let found = format!("{} bytes", source.len());
        return Err(SyntaxError::new((1, 1), format!("a module of at most {MAX_SOURCE_BYTES} bytes"), found).into());
    }
    let mut lexer = Lexer {
        source,
        bytes: source.as_bytes(),
        at: 0,
        tokens: Vec::with_capacity(source.len() / 4),
        lines: vec![0],
        faults: Vec::new(),
    };
    lexer.run();
    if lexer.faults.is_empty() {
        return Ok(Tokens { source, list: lexer.tokens, lines: lexer.lines });
    }
    let located = lexer.faults.iter().map(|fault| {
        let start = fault.start.min(source.len());
        SyntaxError::new(position(&lexer.lines, start as u32), fault.expected, quote_at(source, start))
    });
    Err(SyntaxErrors::collect(located))
}

/// The word or character at a byte offset, quoted for a message.
fn quote_at(source: &str, byte: usize) -> String {
    let rest = source.get(byte..).unwrap_or_default();
    let word = rest.bytes().take(MAX_QUOTED_WORD).take_while(|&b| is_word(b)).count();
    let length = word.max(rest.chars().next().map_or(0, char::len_utf8));
    if length == 0 { "the end of the text".into() } else { format!("`{}`", &rest[..length]) }
}

/// Longest word quoted in a message, in bytes.
const MAX_QUOTED_WORD: usize = 60;

struct Fault {
    start: usize,
    expected: &'static str,
}

struct Lexer<'a> {
    source: &'a str,
    bytes: &'a [u8],
    at: usize,
    tokens: Vec<Token>,
    lines: Vec<u32>,
    faults: Vec<Fault>,
}

impl Lexer<'_> {
    fn run(&mut self) {
        loop {
            self.skip_trivia();
            let start = self.at;
            let Some(&first) = self.bytes.get(start) else { break };
            let kind = match first {
                b'"' => self.string(),
                b'0'..=b'9' => self.number(),
                b'.' => self.dot(),
                b'%' if self.peek(1).is_some_and(is_word) => self.word(TokenKind::Identifier),
                _ if is_word(first) => self.word(TokenKind::Identifier),
                _ if b"()[]{}<>,;:@!|+-*/%~&^=?".contains(&first) => {
                    self.at += 1;
                    Some(TokenKind::Punctuation(first))
                }
                b'#' => self.fault(start, "preprocessed text without `#` directives", 1),
                _ => self.fault(start, "a PTX token", self.source[start..].chars().next().map_or(1, char::len_utf8)),
            };
            if let Some(kind) = kind {
                self.tokens.push(Token { kind, start: start as u32, end: self.at as u32 });
            }
        }
        let end = self.bytes.len() as u32;
        self.tokens.push(Token { kind: TokenKind::End, start: end, end });
    }

    fn peek(&self, ahead: usize) -> Option<u8> {
        self.bytes.get(self.at + ahead).copied()
    }

    /// Records a fault and skips `skip` bytes.
    fn fault(&mut self, start: usize, expected: &'static str, skip: usize) -> Option<TokenKind> {
        if self.faults.len() <= crate::limits::MAX_SYNTAX_ERRORS {
            self.faults.push(Fault { start, expected });
        }
        self.at += skip;
        None
    }

    fn skip_trivia(&mut self) {
        while let Some(byte) = self.peek(0) {
            match (byte, self.peek(1)) {
                (b'\n', _) => {
                    self.at += 1;
                    self.lines.push(self.at as u32);
                }
                (b' ' | b'\t' | b'\r' | b'\x0b' | b'\x0c', _) => self.at += 1,
                (b'/', Some(b'/')) => self.skip_line(),
                (b'/', Some(b'*')) => self.block_comment(),
                (b'#', _) if self.is_line_marker() => self.skip_line(),
                _ => return,
            }
        }
    }

    fn skip_line(&mut self) {
        self.at += self.bytes[self.at..].iter().position(|&b| b == b'\n').unwrap_or(self.bytes.len() - self.at);
    }

    /// Whether a line marker `# 12 "file"` of a preprocessor starts here. Markers are ignored:
    /// positions in messages refer to this text.
    fn is_line_marker(&self) -> bool {
        let opens_line = self.tokens.last().is_none_or(|token| Some(&token.end) <= self.lines.last());
        let word = self.bytes[self.at + 1..].iter().position(|b| !matches!(b, b' ' | b'\t'));
        opens_line
            && word.is_some_and(|skip| {
                self.bytes[self.at + 1 + skip..].starts_with(b"line") || self.bytes[self.at + 1 + skip].is_ascii_digit()
            })
    }

    fn block_comment(&mut self) {
        let start = self.at;
        self.at += 2;
        loop {
            match (self.peek(0), self.peek(1)) {
                (Some(b'*'), Some(b'/')) => {
                    self.at += 2;
                    return;
                }
                (Some(byte), _) => {
                    self.at += 1;
                    if byte == b'\n' {
                        self.lines.push(self.at as u32);
                    }
                }
                (None, _) => {
                    self.fault(start, "a comment that ends with `*/`", 0);
                    return;
                }
            }
        }
    }

    fn word(&mut self, kind: TokenKind) -> Option<TokenKind> {
        self.at += 1;
        self.skip_while(is_word);
        Some(kind)
    }

    /// `"…"` on one line.
    fn string(&mut self) -> Option<TokenKind> {
        let start = self.at;
        self.at += 1;
        while let Some(byte) = self.peek(0) {
            match byte {
                b'\n' => break,
                b'\\' if self.peek(1).is_some_and(|b| b != b'\n') => self.at += 2,
                b'"' => {
                    self.at += 1;
                    return Some(TokenKind::String);
                }
                _ => self.at += 1,
            }
        }
        self.fault(start, "a string that ends with `\"` on its line", 0)
    }

    fn skip_while(&mut self, accept: fn(u8) -> bool) {
        while self.peek(0).is_some_and(accept) {
            self.at += 1;
        }
    }

    /// `.word`, including any `::` in it; or a float such as `.5`, which never directly follows a
    /// word.
    fn dot(&mut self) -> Option<TokenKind> {
        let start = self.at;
        let follows_word = start > 0 && is_word(self.bytes[start - 1]);
        if !follows_word && self.peek(1).is_some_and(|b| b.is_ascii_digit()) {
            return self.number();
        }
        if !self.peek(1).is_some_and(is_word) {
            return self.fault(start, "a word after `.`", 1);
        }
        self.at += 1;
        self.skip_while(is_word);
        while self.bytes[self.at..].starts_with(b"::") && self.peek(2).is_some_and(is_word) {
            self.at += 2;
            self.skip_while(is_word);
            // `sp::2:4`
            if self.peek(0) == Some(b':') && self.peek(1).is_some_and(|b| b.is_ascii_digit()) {
                self.at += 1;
                self.skip_while(is_word);
            }
        }
        Some(TokenKind::DotWord)
    }

    fn number(&mut self) -> Option<TokenKind> {
        let start = self.at;
        match (self.peek(0), self.peek(1)) {
            (Some(b'0'), Some(b'f' | b'F')) => self.exact_float(8, "8 hexadecimal digits after `0f`"),
            (Some(b'0'), Some(b'd' | b'D')) => self.exact_float(16, "16 hexadecimal digits after `0d`"),
            (Some(b'0'), Some(b'x' | b'X')) => {
                self.radix_integer(|b| b.is_ascii_hexdigit(), "hexadecimal digits after `0x`")
            }
            (Some(b'0'), Some(b'b' | b'B')) => {
                self.radix_integer(|b| matches!(b, b'0' | b'1'), "binary digits after `0b`")
            }
            _ => self.decimal(start),
        }
    }

    fn exact_float(&mut self, digits: usize, expected: &'static str) -> Option<TokenKind> {
        let start = self.at;
        self.at += 2;
        self.skip_while(is_word);
        let body = &self.bytes[start + 2..self.at];
        if body.len() == digits && body.iter().all(u8::is_ascii_hexdigit) {
            Some(TokenKind::Float)
        } else {
            self.fault(start, expected, 0)
        }
    }

    fn radix_integer(&mut self, digit: fn(u8) -> bool, expected: &'static str) -> Option<TokenKind> {
        let start = self.at;
        self.at += 2;
        let first = self.at;
        self.skip_while(digit);
        if self.at == first {
            return self.fault(start, expected, 0);
        }
        self.end_integer(start)
    }

    /// Accepts an optional `U` suffix and ends the integer.
    fn end_integer(&mut self, start: usize) -> Option<TokenKind> {
        if matches!(self.peek(0), Some(b'u' | b'U')) {
            self.at += 1;
        }
        if self.peek(0).is_some_and(is_word) {
            self.skip_while(is_word);
            return self.fault(start, "a number", 0);
        }
        Some(TokenKind::Integer)
    }

    fn decimal(&mut self, start: usize) -> Option<TokenKind> {
        let digit = |b: u8| b.is_ascii_digit();
        self.skip_while(digit);
        let mut float = false;
        if self.peek(0) == Some(b'.')
            && !self.peek(1).is_some_and(|b| is_word(b) && !b.is_ascii_digit() && !matches!(b, b'e' | b'E'))
        {
            float = true;
            self.at += 1;
            self.skip_while(digit);
        }
        if matches!(self.peek(0), Some(b'e' | b'E')) {
            let signed = matches!(self.peek(1), Some(b'+' | b'-'));
            if self.peek(1 + usize::from(signed)).is_some_and(digit) {
                float = true;
                self.at += 1 + usize::from(signed);
                self.skip_while(digit);
            }
        }
        if !float {
            return self.end_integer(start);
        }
        if self.peek(0).is_some_and(is_word) {
            self.skip_while(is_word);
            return self.fault(start, "a number", 0);
        }
        Some(TokenKind::Float)
    }
}

/// A byte of an identifier after its first.
fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'$'
}
