//! Statements and directives.

use super::{Parsed, Parser, Place};
use crate::ast::*;
use crate::directive::{Arguments, form_of};
use crate::lex::TokenKind;
use crate::types::{ScalarType, StateSpace};

/// Directives that cannot occur in a body.
const MODULE_SCOPE_ONLY: [&str; 10] =
    ["version", "target", "address_size", "entry", "func", "visible", "extern", "weak", "common", "section"];

impl Parser<'_> {
    /// `{ … }`, including its braces; `before_open` stays empty.
    pub(super) fn body(&mut self) -> Parsed<Body> {
        let arrays = self.hidden_arrays.len();
        let body = self.nested(|p| {
            p.expect(b'{')?;
            p.taken = p.tokens.list[p.at - 1].end;
            let mut statements = Vec::new();
            while !p.is(b'}') {
                if p.kind() == TokenKind::End {
                    return Err(p.expected("`}`"));
                }
                let first = p.at;
                match p.statement(&mut statements) {
                    Ok(()) => {}
                    // The limit is reached: the caller reports this error as the last one and
                    // stops.
                    Err(error) if p.errors.len() >= crate::limits::MAX_SYNTAX_ERRORS => return Err(error),
                    Err(error) => {
                        p.report(error);
                        p.skip_statement(first);
                    }
                }
            }
            let before_close = p.leading(p.at);
            p.expect(b'}')?;
            p.taken = p.tokens.list[p.at - 1].end;
            Ok(Body { before_open: "".into(), statements, before_close })
        })?;
        self.leave_scope(arrays);
        Ok(body)
    }

    /// Skips a statement that failed to parse: after its `;`, or before the `}` of the enclosing
    /// block.
    fn skip_statement(&mut self, first: usize) {
        self.go_back(first);
        let mut braces = 0u32;
        loop {
            match self.kind() {
                TokenKind::End => return,
                TokenKind::Punctuation(b';') => {
                    self.bump();
                    return;
                }
                TokenKind::Punctuation(b'{') => braces += 1,
                TokenKind::Punctuation(b'}') if braces == 0 => return,
                TokenKind::Punctuation(b'}') => braces -= 1,
                _ => {}
            }
            self.bump();
        }
    }

    fn statement(&mut self, statements: &mut Vec<Statement>) -> Parsed<()> {
        let first = self.at;
        if self.is(b'{') {
            let origin = self.origin_without_text(first);
            statements.push(Statement { origin, kind: StatementKind::Block(self.body()?) });
            return Ok(());
        }
        let kind = match (self.kind(), self.peek_kind(1)) {
            (TokenKind::Identifier, TokenKind::Punctuation(b':')) => self.labelled()?,
            (TokenKind::Identifier | TokenKind::Punctuation(b'@'), _) => {
                StatementKind::Instruction(self.instruction()?)
            }
            (TokenKind::DotWord, _) => match self.dot_word() {
                Some(word) if word != "reg" && StateSpace::from_name(word).is_some() => {
                    if let Some(variables) = self.variables(first, Linkage::Internal)? {
                        let statement =
                            |(origin, variable)| Statement { origin, kind: StatementKind::Variable(variable) };
                        statements.extend(variables.into_iter().map(statement));
                        return Ok(());
                    }
                    self.at = first;
                    StatementKind::Directive(self.declaration_words()?)
                }
                _ => self.dotted_statement()?,
            },
            _ => return Err(self.expected("a statement or `}`")),
        };
        statements.push(Statement { origin: self.origin(first), kind });
        Ok(())
    }

    /// `name:`, alone or followed by one of the named tables.
    fn labelled(&mut self) -> Parsed<StatementKind> {
        let name = self.identifier("a label")?;
        self.expect(b':')?;
        let kind = if self.eat_word("branchtargets") {
            StatementKind::BranchTargets { name, targets: self.names("a label")? }
        } else if self.eat_word("calltargets") {
            StatementKind::CallTargets { name, targets: self.names("the name of a function")? }
        } else if self.eat_word("callprototype") {
            self.call_prototype(name)?
        } else {
            return Ok(StatementKind::Label(name));
        };
        self.expect(b';')?;
        Ok(kind)
    }

    fn names(&mut self, what: &str) -> Parsed<Vec<Name>> {
        let mut names = vec![self.identifier(what)?];
        while self.eat(b',') {
            names.push(self.identifier(what)?);
        }
        Ok(names)
    }

    fn call_prototype(&mut self, name: Name) -> Parsed<StatementKind> {
        let returns = self.parameters()?;
        self.identifier("`_`")?;
        let params = self.parameters()?;
        let mut attributes = Vec::new();
        while self.kind() == TokenKind::DotWord {
            attributes.push(self.directive(Place::Header)?);
        }
        Ok(StatementKind::CallPrototype { name, returns, params, attributes })
    }

    /// A statement that starts with `.word`, where the word is `reg` or not a state space.
    fn dotted_statement(&mut self) -> Parsed<StatementKind> {
        match self.dot_word() {
            Some("reg") => {
                let declaration = self.registers()?;
                self.expect(b';')?;
                Ok(StatementKind::Registers(declaration))
            }
            // A closing brace is missing above.
            Some(word) if MODULE_SCOPE_ONLY.contains(&word) => Err(self.expected("a statement or `}`")),
            _ => Ok(StatementKind::Directive(self.directive(Place::Body)?)),
        }
    }

    /// `.reg .b32 %r<100>, %x`
    fn registers(&mut self) -> Parsed<RegisterDeclaration> {
        self.bump();
        let vector = self.vector_width();
        let ty = self.dot_word().and_then(ScalarType::from_name).ok_or_else(|| self.expected("a register type"))?;
        self.bump();
        let mut names = Vec::new();
        loop {
            let name = self.identifier("the name of a register")?;
            names.push((name, self.parameterized_count()?));
            if !self.eat(b',') {
                return Ok(RegisterDeclaration { vector, ty, names });
            }
        }
    }

    /// Any directive, including its `;` if it has one.
    pub(super) fn directive(&mut self, place: Place) -> Parsed<Directive> {
        // `.5x` after another word is a word, but on its own it would be read back as a number.
        let word = self.dot_word().filter(|word| !word.starts_with(|first: char| first.is_ascii_digit()));
        let name = Name::new(word.ok_or_else(|| self.expected("a directive"))?);
        self.bump();
        let Some(form) = form_of(&name) else {
            let arguments = if name == "section" { self.section_words()? } else { self.unknown_words(place)? };
            return Ok(Directive { name, arguments });
        };
        let mut arguments = Vec::new();
        if form.arguments != Arguments::None {
            arguments.push(self.directive_argument()?);
        }
        while form.arguments == Arguments::List && self.eat(b',') {
            arguments.push(self.directive_argument()?);
        }
        if form.semicolon {
            self.expect(b';')?;
        } else if self.is_adjacent() && !matches!(self.kind(), TokenKind::Punctuation(_) | TokenKind::End) {
            return Err(self.expected("white space after a directive"));
        }
        Ok(Directive { name, arguments })
    }

    fn directive_argument(&mut self) -> Parsed<Name> {
        match self.kind() {
            TokenKind::Identifier | TokenKind::Integer | TokenKind::Float | TokenKind::String => {
                let token = self.bump();
                Ok(Name::new(self.tokens.text(token)))
            }
            _ => Err(self.expected("an argument of the directive")),
        }
    }

    /// `.section name { … }`: DWARF, kept word by word through its closing brace.
    fn section_words(&mut self) -> Parsed<Vec<Name>> {
        let mut words = Vec::new();
        loop {
            match self.kind() {
                TokenKind::End => return Err(self.expected("`}` at the end of the section")),
                TokenKind::Punctuation(b'}') => {
                    words.push(self.take_word());
                    return Ok(words);
                }
                _ => words.push(self.take_word()),
            }
        }
    }

    /// The words of a directive of unknown form. It ends after its `;` or, without one, at the end
    /// of the line. Open brackets are closed first; at module scope, `(` and `{` on the next line
    /// still belong to it.
    fn unknown_words(&mut self, place: Place) -> Parsed<Vec<Name>> {
        let mut words = Vec::new();
        while !self.at_directive_end(place, words.last()) {
            self.directive_word(&mut words)?;
            if words.last().is_some_and(|word| word == ";") {
                break;
            }
        }
        Ok(words)
    }

    fn at_directive_end(&self, place: Place, last: Option<&Name>) -> bool {
        let line_ends = self.is_line_start() && last.is_none_or(|word| word != ",");
        match (self.kind(), place) {
            (TokenKind::End, _) => true,
            (TokenKind::Punctuation(b'}'), _) => true,
            (TokenKind::Punctuation(b'{' | b';') | TokenKind::DotWord, Place::Header) => true,
            (TokenKind::Punctuation(b'{' | b'('), Place::Module) => false,
            _ => line_ends,
        }
    }

    /// Consumes a word, or a bracket with everything in it.
    fn directive_word(&mut self, words: &mut Vec<Name>) -> Parsed<()> {
        let close = match self.kind() {
            TokenKind::End => return Err(self.expected("a closing bracket")),
            TokenKind::Punctuation(b'(') => b')',
            TokenKind::Punctuation(b'[') => b']',
            TokenKind::Punctuation(b'{') => b'}',
            TokenKind::Punctuation(b')' | b']' | b'}') => return Err(self.expected("the end of the directive")),
            _ => {
                words.push(self.take_word());
                return Ok(());
            }
        };
        words.push(self.take_word());
        self.nested(|p| {
            while !p.is(close) {
                p.directive_word(words)?;
            }
            Ok(())
        })?;
        words.push(self.take_word());
        Ok(())
    }

    /// The words of a declaration that the tree cannot represent, through its `;`.
    pub(super) fn declaration_words(&mut self) -> Parsed<Directive> {
        let mut words = Vec::new();
        while words.last().is_none_or(|word| word != ";") {
            if self.kind() == TokenKind::End {
                return Err(self.expected("`;`"));
            }
            words.push(self.take_word());
        }
        let name = Name::new(words.remove(0).trim_start_matches('.'));
        Ok(Directive { name, arguments: words })
    }

    fn take_word(&mut self) -> Name {
        let token = self.bump();
        Name::new(self.tokens.text(token))
    }
}
