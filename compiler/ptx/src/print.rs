//! The printer: the tree back to text.
//!
//! A node with source text is printed with it, after the white space and comments that preceded it.
//! A built or edited node is printed in canonical form: one statement per line, operands separated
//! by `, `, integers in decimal, floats by their bits. Parsing canonical text gives an equal tree,
//! except for origins ([`Module::strip_origins`]).

mod canonical;

use crate::ast::*;
use crate::directive::form_of;
use canonical::Header;
use std::borrow::Cow;
use std::collections::HashSet;

/// Prints a module.
pub fn print(module: &Module) -> String {
    let mut printer = Printer::default();
    printer.module(module);
    printer.text
}

/// Prints a module. Also returns the module with the position of every node in the printed text:
/// equal to parsing the text, except that built nodes have no source text.
pub fn print_located(module: &Module) -> (String, Module) {
    let mut printer = Printer::default();
    printer.module(module);
    let mut located = module.clone();
    let mut places = printer.places.into_iter();
    for item in &mut located.items {
        place(&mut item.origin, &mut places);
        if let ItemKind::Function(Function { body: Some(body), .. }) = &mut item.kind {
            place_body(body, &mut places);
        }
    }
    (printer.text, located)
}

fn place_body(body: &mut Body, places: &mut impl Iterator<Item = Place>) {
    for statement in &mut body.statements {
        place(&mut statement.origin, places);
        if let StatementKind::Block(body) = &mut statement.kind {
            place_body(body, places);
        }
    }
}

fn place(origin: &mut Origin, places: &mut impl Iterator<Item = Place>) {
    let Place { line, column } = places.next().expect("every node is printed once, in the order of the tree");
    (origin.line, origin.column) = (line, column);
}

/// `.shared .b32 a, b;` gives two variables, each with its part of the text. Returns the indices of
/// variables that cannot be printed with their part, because another part of the same declaration
/// was removed or changed.
fn stale_parts<'a>(nodes: impl Iterator<Item = Option<(&'a str, &'a Variable)>>) -> HashSet<usize> {
    let same_declaration = |a: &Variable, b: &Variable| {
        let plain = |v: &Variable| Variable {
            name: Name::default(),
            count: None,
            dimensions: Vec::new(),
            initializer: None,
            ..v.clone()
        };
        plain(a) == plain(b)
    };
    let mut stale = HashSet::new();
    // The parts of the current declaration, and the variable that its last part declares.
    let mut parts = 0..0;
    let mut open: Option<&Variable> = None;
    for (index, node) in nodes.enumerate() {
        let continues = node.is_some_and(|(text, _)| !text.starts_with('.'));
        let follows =
            node.zip(open).is_some_and(|((_, variable), before)| continues && same_declaration(before, variable));
        if open.is_some() && !follows {
            stale.extend(parts.clone());
        }
        if continues && !follows {
            stale.insert(index);
        }
        parts = if follows { parts.start..index + 1 } else { index..index + 1 };
        open = node.filter(|(text, _)| text.ends_with(',') && (follows || !continues)).map(|(_, variable)| variable);
    }
    if open.is_some() {
        stale.extend(parts);
    }
    stale
}

#[derive(Default)]
struct Printer {
    text: String,
    /// Whether the next node must start on a new line.
    line_is_open: bool,
    /// Complete lines so far, and the byte offset of the current line.
    lines: u32,
    line_start: usize,
    /// The position of each node, in tree order.
    places: Vec<Place>,
}

/// A position in the printed text; line and column count from 1.
struct Place {
    line: u32,
    column: u32,
}

/// Whether a node was built, so that the printer has to separate it from the previous node.
fn is_built(origin: &Origin) -> bool {
    origin.line == 0 && origin.text.is_none() && origin.leading.is_empty()
}

impl Printer {
    fn module(&mut self, module: &Module) {
        let stale = stale_parts(module.items.iter().map(|item| Some((item.origin.text.as_deref()?, item.variable()?))));
        for (index, item) in module.items.iter().enumerate() {
            self.item(item, stale.contains(&index));
        }
        self.raw(&module.trailing);
    }

    fn raw(&mut self, text: &str) {
        if let Some(last) = text.rfind('\n') {
            self.lines += text.bytes().filter(|byte| *byte == b'\n').count() as u32;
            self.line_start = self.text.len() + last + 1;
        }
        self.text.push_str(text);
    }

    /// Appends a node's text after its leading white space. Adds a line break if the node would
    /// otherwise merge with the previous one, for example after a node between them was removed.
    fn node(&mut self, leading: &str, text: &str) {
        let joined =
            leading.is_empty() && !self.text.is_empty() && !self.text.ends_with([';', ':', ',', '{', '}', '\n', '\t']);
        let swallowed = self.line_is_open && !leading.contains('\n') && !self.text.ends_with(['\n', '\t']);
        if joined || swallowed {
            self.raw("\n");
        }
        self.line_is_open = false;
        self.raw(leading);
        self.places.push(Place { line: self.lines + 1, column: (self.text.len() - self.line_start) as u32 + 1 });
        self.raw(text);
    }

    /// Appends a directive. A directive of unknown form without `;` ends at the end of its line.
    fn directive(&mut self, leading: &str, text: &str, directive: &Directive) {
        self.node(leading, text);
        self.line_is_open = form_of(&directive.name).is_none() && !text.ends_with([';', '}']);
    }

    fn item(&mut self, item: &Item, is_stale: bool) {
        if is_built(&item.origin) && !self.text.is_empty() {
            let apart = !matches!(item.kind, ItemKind::Directive(_)) && !self.text.ends_with("\n\n");
            self.raw(if apart { "\n" } else { "" });
            self.raw(if self.text.ends_with("\n\n") { "" } else { "\n" });
        }
        let text: Cow<'_, str> = match &item.origin.text {
            Some(text) if !is_stale && !header_is_stale(item, text) => text.as_ref().into(),
            _ => canonical_item(&item.kind).into(),
        };
        match &item.kind {
            ItemKind::Directive(directive) => self.directive(&item.origin.leading, &text, directive),
            _ => self.node(&item.origin.leading, &text),
        }
        if let ItemKind::Function(Function { body: Some(body), .. }) = &item.kind {
            if item.origin.text.is_none() && body.before_open.is_empty() {
                self.raw("\n");
            }
            self.raw(&body.before_open);
            self.body(body, 1);
        }
    }

    fn body(&mut self, body: &Body, depth: usize) {
        self.raw("{");
        self.line_is_open = false;
        let stale = stale_parts(body.statements.iter().map(|s| Some((s.origin.text.as_deref()?, s.variable()?))));
        for (index, statement) in body.statements.iter().enumerate() {
            self.statement(statement, depth, stale.contains(&index));
        }
        let built = body.statements.last().is_some_and(|s| is_built(&s.origin)) && body.before_close.is_empty();
        if built {
            self.line(depth - 1);
        }
        self.raw(&body.before_close);
        self.raw("}");
        self.line_is_open = false;
    }

    fn line(&mut self, depth: usize) {
        self.raw("\n");
        for _ in 0..depth {
            self.raw("\t");
        }
    }

    fn statement(&mut self, statement: &Statement, depth: usize, is_stale: bool) {
        if is_built(&statement.origin) {
            self.line(if matches!(statement.kind, StatementKind::Label(_)) { 0 } else { depth });
        }
        let leading = &statement.origin.leading;
        let own = statement.origin.text.as_deref().filter(|_| !is_stale);
        let text = || own.map_or_else(|| Cow::from(statement.kind.to_string()), Cow::from);
        match &statement.kind {
            StatementKind::Block(body) => {
                self.node(leading, "");
                self.body(body, depth + 1);
            }
            StatementKind::Directive(directive) => self.directive(leading, &text(), directive),
            _ => self.node(leading, &text()),
        }
    }
}

/// Whether a function gained or lost its body after its header was parsed.
fn header_is_stale(item: &Item, text: &str) -> bool {
    matches!(&item.kind, ItemKind::Function(f) if f.body.is_some() == text.ends_with(';'))
}

fn canonical_item(kind: &ItemKind) -> String {
    match kind {
        ItemKind::Directive(directive) => directive.to_string(),
        ItemKind::Variable(variable) => format!("{variable};"),
        ItemKind::Function(function) if function.body.is_some() => Header(function).to_string(),
        ItemKind::Function(function) => format!("{};", Header(function)),
    }
}

impl Module {
    /// Removes all source text: everything prints in canonical form, and trees of equal meaning
    /// compare equal.
    pub fn strip_origins(&mut self) {
        for item in &mut self.items {
            item.origin = Origin::default();
            if let ItemKind::Function(Function { body: Some(body), .. }) = &mut item.kind {
                body.strip_origins();
            }
        }
        self.trailing = "\n".into();
    }
}

impl Body {
    fn strip_origins(&mut self) {
        self.before_open = "".into();
        self.before_close = "".into();
        for statement in &mut self.statements {
            statement.origin = Origin::default();
            if let StatementKind::Block(body) = &mut statement.kind {
                body.strip_origins();
            }
        }
    }
}
