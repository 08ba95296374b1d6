//! The parser: PTX text to the tree of [`crate::ast`].
//!
//! A hand-written recursive-descent parser over a token list. It knows the syntax of declarations,
//! statements and operands, but not of individual instructions: any dotted word with any operands
//! is an [`Instruction`](crate::Instruction). A directive or declaration of unknown form becomes a
//! [`Directive`] of words. Every byte of the text ends up in the `leading` or `text` of a node, so
//! printing an unchanged tree reproduces the text.
//!
//! After an error the parser continues after the statement, so that one run reports all errors.

mod constant;
mod declaration;
mod operand;
mod statement;

use crate::ast::*;
use crate::directive::form_of;
use crate::lex::{Token, TokenKind, Tokens, lex};
use crate::limits::{MAX_NESTING, MAX_SYNTAX_ERRORS};
use crate::syntax_error::{SyntaxError, SyntaxErrors};
use crate::types::StateSpace;
use std::collections::HashMap;

/// Parses a module.
///
/// # Errors
/// Every syntax error, up to [`MAX_SYNTAX_ERRORS`]. The parser does not check meaning;
/// [`verify`](crate::verify) does.
///
/// ```
/// let text = ".version 7.0\n.target sm_80\n.address_size 64\n\n.visible .entry nothing()\n{\n\tret;\n}\n";
/// let module = atoll_ptx::parse(text)?;
/// assert_eq!(atoll_ptx::print(&module), text);
/// # Ok::<(), atoll_ptx::SyntaxErrors>(())
/// ```
pub fn parse(text: &str) -> Result<Module, SyntaxErrors> {
    let mut parser = Parser::new(lex(text)?);
    let module = parser.module();
    if parser.errors.is_empty() { Ok(module) } else { Err(SyntaxErrors::collect(parser.errors)) }
}

type Parsed<T> = Result<T, SyntaxError>;

/// The context of a directive. It decides where a directive of unknown form ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Module,
    Header,
    Body,
}

struct Parser<'a> {
    tokens: Tokens<'a>,
    /// Index of the next token.
    at: usize,
    /// End of the text that nodes already cover.
    taken: u32,
    /// Current nesting depth, at most [`MAX_NESTING`].
    depth: u32,
    errors: Vec<SyntaxError>,
    /// Whether an array element in the current instruction means its address, not the memory there.
    takes_addresses: bool,
    /// Element size in bytes of every array in scope, to convert `a[3]` to a byte offset.
    arrays: HashMap<Name, u32>,
    /// The array that each declaration hides, to restore it at the end of the scope.
    hidden_arrays: Vec<(Name, Option<u32>)>,
}

/// Tokens.
impl<'a> Parser<'a> {
    fn new(tokens: Tokens<'a>) -> Parser<'a> {
        Parser {
            tokens,
            at: 0,
            taken: 0,
            depth: 0,
            errors: Vec::new(),
            takes_addresses: false,
            arrays: HashMap::new(),
            hidden_arrays: Vec::new(),
        }
    }

    fn token(&self) -> Token {
        self.tokens.list[self.at]
    }

    fn kind(&self) -> TokenKind {
        self.token().kind
    }

    fn peek_kind(&self, ahead: usize) -> TokenKind {
        self.tokens.list.get(self.at + ahead).map_or(TokenKind::End, |token| token.kind)
    }

    fn text(&self) -> &'a str {
        self.tokens.text(self.token())
    }

    /// Consumes a token; at the end it consumes nothing.
    fn bump(&mut self) -> Token {
        let token = self.token();
        if token.kind != TokenKind::End {
            self.at += 1;
        }
        token
    }

    fn is(&self, punctuation: u8) -> bool {
        self.kind() == TokenKind::Punctuation(punctuation)
    }

    fn eat(&mut self, punctuation: u8) -> bool {
        let there = self.is(punctuation);
        if there {
            self.at += 1;
        }
        there
    }

    fn expect(&mut self, punctuation: u8) -> Parsed<()> {
        if self.eat(punctuation) { Ok(()) } else { Err(self.expected(format!("`{}`", char::from(punctuation)))) }
    }

    /// The word of a `.word` token here, without its dot.
    fn dot_word(&self) -> Option<&'a str> {
        (self.kind() == TokenKind::DotWord).then(|| &self.text()[1..])
    }

    fn eat_word(&mut self, word: &str) -> bool {
        let there = self.dot_word() == Some(word);
        if there {
            self.at += 1;
        }
        there
    }

    fn identifier(&mut self, what: &str) -> Parsed<Name> {
        if self.kind() != TokenKind::Identifier {
            return Err(self.expected(what));
        }
        let token = self.bump();
        Ok(Name::new(self.tokens.text(token)))
    }

    /// Whether the next token directly follows the previous one.
    fn is_adjacent(&self) -> bool {
        self.at > 0 && self.tokens.list[self.at - 1].end == self.token().start
    }

    /// Whether the next token is the first on its line.
    fn is_line_start(&self) -> bool {
        self.at == 0 || self.tokens.slice(self.tokens.list[self.at - 1].end, self.token().start).contains('\n')
    }
}

/// Errors and nesting.
impl Parser<'_> {
    fn expected(&self, what: impl Into<String>) -> SyntaxError {
        let token = self.token();
        let found = match token.kind {
            TokenKind::End => "the end of the text".into(),
            _ => format!("`{}`", self.tokens.text(token)),
        };
        SyntaxError::new(self.tokens.position(token.start), what, found)
    }

    /// An error at a token that was already consumed.
    fn expected_at(&self, token: Token, what: impl Into<String>) -> SyntaxError {
        SyntaxError::new(self.tokens.position(token.start), what, format!("`{}`", self.tokens.text(token)))
    }

    fn nested<T>(&mut self, inner: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        if self.depth == MAX_NESTING {
            return Err(self.expected(format!("nesting of at most {MAX_NESTING} levels")));
        }
        self.depth += 1;
        let result = inner(self);
        self.depth -= 1;
        result
    }

    /// Records an error. False once the limit is exceeded.
    fn report(&mut self, error: SyntaxError) -> bool {
        self.errors.push(error);
        self.errors.len() <= MAX_SYNTAX_ERRORS
    }

    /// `item, item, …` up to and including a closing token; the opening token was already consumed.
    fn comma_list<T>(&mut self, close: u8, mut item: impl FnMut(&mut Self) -> Parsed<T>) -> Parsed<Vec<T>> {
        let mut items = Vec::new();
        if self.eat(close) {
            return Ok(items);
        }
        loop {
            items.push(item(self)?);
            if self.eat(close) {
                return Ok(items);
            }
            if !self.eat(b',') {
                return Err(self.expected(format!("`,` or `{}`", char::from(close))));
            }
        }
    }
}

/// Text of nodes.
impl Parser<'_> {
    /// Goes back to the first token of a node that failed to parse.
    fn go_back(&mut self, first: usize) {
        self.at = first;
        self.taken = self.taken.min(self.tokens.list[first].start);
    }

    /// The text between the last covered byte and the token `first`.
    fn leading(&self, first: usize) -> Box<str> {
        self.tokens.slice(self.taken, self.tokens.list[first].start).into()
    }

    /// The origin of a node from the token `first` to the last consumed token.
    fn origin(&mut self, first: usize) -> Origin {
        let mut origin = self.origin_without_text(first);
        let (start, end) = (self.tokens.list[first].start, self.tokens.list[self.at - 1].end);
        origin.text = Some(self.tokens.slice(start, end).into());
        self.taken = end;
        origin
    }

    fn origin_without_text(&self, first: usize) -> Origin {
        let (line, column) = self.tokens.position(self.tokens.list[first].start);
        Origin { leading: self.leading(first), text: None, line, column }
    }
}

/// Module scope.
impl Parser<'_> {
    fn module(&mut self) -> Module {
        let mut items = Vec::new();
        while self.kind() != TokenKind::End {
            let first = self.at;
            if let Err(error) = self.item(&mut items) {
                if !self.report(error) {
                    break;
                }
                self.skip_item(first);
            }
        }
        Module { items, trailing: self.leading(self.tokens.list.len() - 1) }
    }

    /// Skips an item that failed to parse: after its `;` or closing brace, or before a token that
    /// looks like the start of the next item.
    fn skip_item(&mut self, first: usize) {
        let error_at = self.at;
        self.go_back(first);
        let mut braces = 0u32;
        loop {
            match self.kind() {
                TokenKind::End => return,
                TokenKind::Punctuation(b';') if braces == 0 => break,
                TokenKind::Punctuation(b'{') => braces += 1,
                TokenKind::Punctuation(b'}') if braces <= 1 => break,
                TokenKind::Punctuation(b'}') => braces -= 1,
                TokenKind::DotWord
                    if braces == 0 && self.at > error_at && self.is_line_start() && !self.is_header_word() =>
                {
                    return;
                }
                _ => {}
            }
            self.bump();
        }
        self.bump();
        // A `;` after the closing brace of an initializer.
        self.eat(b';');
    }

    /// Whether a `.word` at the start of a line continues the header of a function: a parameter, or
    /// a directive without `;`.
    fn is_header_word(&self) -> bool {
        const OPENS_ITEM: [&str; 3] = ["version", "target", "address_size"];
        let word = self.dot_word().unwrap_or_default();
        word == "param" || form_of(word).is_some_and(|form| !form.semicolon) && !OPENS_ITEM.contains(&word)
    }

    fn item(&mut self, items: &mut Vec<Item>) -> Parsed<()> {
        let first = self.at;
        let linkage = self.linkage();
        let word = self.dot_word().ok_or_else(|| self.expected("a directive, variable or function"))?;
        let kind = match word {
            "entry" | "func" => {
                items.push(self.function(first, linkage)?);
                return Ok(());
            }
            _ if StateSpace::from_name(word).is_some() => {
                if let Some(variables) = self.variables(first, linkage)? {
                    items.extend(variables.into_iter().map(|(origin, v)| Item { origin, kind: ItemKind::Variable(v) }));
                    return Ok(());
                }
                self.at = first;
                ItemKind::Directive(self.declaration_words()?)
            }
            _ if linkage != Linkage::Internal => return Err(self.expected("`.entry`, `.func` or a state space")),
            _ => ItemKind::Directive(self.directive(Place::Module)?),
        };
        items.push(Item { origin: self.origin(first), kind });
        Ok(())
    }

    fn linkage(&mut self) -> Linkage {
        let linkage = match self.dot_word() {
            Some("visible") => Linkage::Visible,
            Some("extern") => Linkage::Extern,
            Some("weak") => Linkage::Weak,
            Some("common") => Linkage::Common,
            _ => return Linkage::Internal,
        };
        self.bump();
        linkage
    }

    fn function(&mut self, first: usize, linkage: Linkage) -> Parsed<Item> {
        let kind = if self.eat_word("entry") { FunctionKind::Entry } else { FunctionKind::Func };
        if kind == FunctionKind::Func {
            self.bump();
        }
        let mut attributes = Vec::new();
        while self.dot_word() == Some("attribute") {
            attributes.push(self.directive(Place::Header)?);
        }
        let arrays = self.hidden_arrays.len();
        let returns = self.parameters()?;
        let name = self.identifier("the name of a function")?;
        let params = self.parameters()?;
        while self.kind() == TokenKind::DotWord {
            attributes.push(self.directive(Place::Header)?);
        }
        let mut function = Function { linkage, kind, returns, name, params, attributes, body: None };
        if self.eat(b';') {
            self.leave_scope(arrays);
            return Ok(Item { origin: self.origin(first), kind: ItemKind::Function(function) });
        }
        if !self.is(b'{') {
            return Err(self.expected("`{` or `;` after the header of a function"));
        }
        let origin = self.origin(first);
        let before_open = self.leading(self.at);
        let body = self.body()?;
        self.leave_scope(arrays);
        function.body = Some(Body { before_open, ..body });
        Ok(Item { origin, kind: ItemKind::Function(function) })
    }

    /// `(.param .b32 a, …)`, or nothing.
    fn parameters(&mut self) -> Parsed<Vec<Variable>> {
        if !self.eat(b'(') {
            return Ok(Vec::new());
        }
        self.comma_list(b')', |p| {
            let token = p.token();
            p.variable()?.ok_or_else(|| p.expected_at(token, "a parameter of a fundamental type"))
        })
    }
}
