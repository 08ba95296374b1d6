//! The printer: the tree back to text.
//!
//! A node that has its source text is printed with it, and with the white space and comments that
//! stood in front of it. A built or edited node is printed in canonical form: one statement per
//! line, operands separated by `, `, numbers in decimal, floats by their bits. Reading canonical
//! text back gives an equal tree, but for origins ([`Module::strip_origins`]).

use crate::ast::*;
use crate::directive::{Arguments, form_of};
use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt::{self, Display, Write};

/// The text of a module.
pub fn print(module: &Module) -> String {
    let mut printer = Printer::default();
    printer.module(module);
    printer.text
}

/// The text of a module, and the module with every node at its place in that text: what reading the
/// text would give, but that built nodes keep no text of their own.
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

/// `.shared .b32 a, b;` is two variables, each with its part of the text: which of them cannot be
/// written by that, since another part is gone or was changed?
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
    // The parts of the declaration at hand, and the variable its last one declares.
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
    /// Whether what is appended next has to be on a new line.
    line_is_open: bool,
    /// Lines that are complete, and where the one at hand begins.
    lines: u32,
    line_start: usize,
    /// Where each node begins, in the order of the tree.
    places: Vec<Place>,
}

/// A place in a text, counted from 1.
struct Place {
    line: u32,
    column: u32,
}

/// Whether a node has no place in any source, so that the printer separates it from what is in
/// front of it.
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

    /// Appends a node's text behind its leading white space. It never runs into the node in front
    /// of it, whatever was removed between them.
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

    /// Appends a directive; one of unknown shape without `;` goes on to the end of its line.
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

/// Whether a function got or lost its body after its header was parsed.
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

/// Writes items with a separator between them.
fn join<T>(
    f: &mut fmt::Formatter<'_>,
    items: &[T],
    separator: &str,
    write: impl Fn(&mut fmt::Formatter<'_>, &T) -> fmt::Result,
) -> fmt::Result {
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            f.write_str(separator)?;
        }
        write(f, item)?;
    }
    Ok(())
}

/// A function up to its body.
struct Header<'a>(&'a Function);

impl Display for Header<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Header(function) = self;
        write!(f, "{}", function.linkage)?;
        f.write_str(if function.kind == FunctionKind::Entry { ".entry " } else { ".func " })?;
        for attribute in function.attributes.iter().filter(|a| a.name == "attribute") {
            write!(f, "{attribute} ")?;
        }
        if !function.returns.is_empty() {
            f.write_str("(")?;
            join(f, &function.returns, ", ", |f, variable| variable.fmt(f))?;
            f.write_str(") ")?;
        }
        write!(f, "{}(", function.name)?;
        if !function.params.is_empty() {
            f.write_str("\n\t")?;
            join(f, &function.params, ",\n\t", |f, variable| variable.fmt(f))?;
            f.write_str("\n")?;
        }
        f.write_str(")")?;
        for attribute in function.attributes.iter().filter(|a| a.name != "attribute") {
            write!(f, "\n{attribute}")?;
        }
        Ok(())
    }
}

impl Display for Linkage {
    /// The word with its dot and a blank, or nothing.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Linkage::Internal => "",
            Linkage::Visible => ".visible ",
            Linkage::Extern => ".extern ",
            Linkage::Weak => ".weak ",
            Linkage::Common => ".common ",
        })
    }
}

impl Display for Directive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, ".{}", self.name)?;
        if let Some(form) = form_of(&self.name) {
            if form.arguments != Arguments::None && !self.arguments.is_empty() {
                f.write_str(" ")?;
                join(f, &self.arguments, ", ", |f, word| f.write_str(word))?;
            }
            return f.write_str(if form.semicolon { ";" } else { "" });
        }
        let mut previous = "";
        for word in &self.arguments {
            let tight = matches!(word.as_str(), "," | ";" | ")" | "]")
                || matches!(previous, "(" | "[")
                || (word == "(" && previous.is_empty());
            f.write_str(if tight { "" } else { " " })?;
            f.write_str(word)?;
            previous = word;
        }
        Ok(())
    }
}

impl Display for Variable {
    /// The declaration without `;`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.linkage, self.space)?;
        for attribute in &self.attributes {
            write!(f, " {attribute}")?;
        }
        write_alignment(f, self.align)?;
        if let Some(width) = self.vector {
            write!(f, " .v{width}")?;
        }
        if self.opaque.is_none() || self.pointer.is_some() {
            write!(f, " .{}", self.ty)?;
        }
        if let Some(pointer) = self.pointer {
            f.write_str(" .ptr")?;
            if let Some(space) = pointer.space {
                write!(f, " .{space}")?;
            }
            write_alignment(f, pointer.align)?;
        }
        if let Some(opaque) = self.opaque {
            write!(f, " .{}", opaque.as_str())?;
        }
        write!(f, " {}", self.name)?;
        if let Some(count) = self.count {
            write!(f, "<{count}>")?;
        }
        for dimension in &self.dimensions {
            match dimension {
                Some(length) => write!(f, "[{length}]")?,
                None => f.write_str("[]")?,
            }
        }
        if let Some(initializer) = &self.initializer {
            write!(f, " = {initializer}")?;
        }
        Ok(())
    }
}

fn write_alignment(f: &mut fmt::Formatter<'_>, align: Option<u32>) -> fmt::Result {
    align.map_or(Ok(()), |bytes| write!(f, " .align {bytes}"))
}

/// `+8`, `+-8`; nothing for 0.
fn write_offset(f: &mut fmt::Formatter<'_>, offset: i64) -> fmt::Result {
    if offset == 0 { Ok(()) } else { write!(f, "+{offset}") }
}

impl Display for Initializer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Initializer::Immediate(value) => value.fmt(f),
            Initializer::Symbol { name, offset, generic, mask } => {
                if let Some(mask) = mask {
                    write!(f, "{mask:#X}(")?;
                }
                if *generic {
                    write!(f, "generic({name})")?;
                } else {
                    f.write_str(name)?;
                }
                write_offset(f, *offset)?;
                f.write_str(if mask.is_some() { ")" } else { "" })
            }
            Initializer::List(items) => {
                f.write_str("{")?;
                join(f, items, ", ", |f, item| item.fmt(f))?;
                f.write_str("}")
            }
        }
    }
}

impl Display for StatementKind {
    /// The statement in canonical form, with its `;`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StatementKind::Label(name) => write!(f, "{name}:"),
            StatementKind::Instruction(instruction) => write!(f, "{instruction};"),
            StatementKind::Registers(declaration) => write!(f, "{declaration};"),
            StatementKind::Variable(variable) => write!(f, "{variable};"),
            StatementKind::Directive(directive) => directive.fmt(f),
            StatementKind::Block(body) => {
                let mut printer = Printer::default();
                printer.body(body, 1);
                f.write_str(&printer.text)
            }
            StatementKind::BranchTargets { name, targets } => {
                write!(f, "{name}: .branchtargets {};", targets.join(", "))
            }
            StatementKind::CallTargets { name, targets } => write!(f, "{name}: .calltargets {};", targets.join(", ")),
            StatementKind::CallPrototype { name, returns, params, attributes } => {
                write!(f, "{name}: .callprototype (")?;
                join(f, returns, ", ", |f, variable| variable.fmt(f))?;
                f.write_str(") _ (")?;
                join(f, params, ", ", |f, variable| variable.fmt(f))?;
                f.write_str(")")?;
                for attribute in attributes {
                    write!(f, " {attribute}")?;
                }
                f.write_str(";")
            }
        }
    }
}

impl Display for RegisterDeclaration {
    /// The declaration without `;`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(".reg ")?;
        if let Some(width) = self.vector {
            write!(f, ".v{width} ")?;
        }
        write!(f, ".{} ", self.ty)?;
        join(f, &self.names, ", ", |f, (name, count)| match count {
            Some(count) => write!(f, "{name}<{count}>"),
            None => f.write_str(name),
        })
    }
}

impl Display for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "@{}{}", if self.negated { "!" } else { "" }, self.predicate)
    }
}

impl Display for Instruction {
    /// The instruction without `;`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(guard) = &self.guard {
            write!(f, "{guard} ")?;
        }
        f.write_str(&self.opcode)?;
        for modifier in &self.modifiers {
            write!(f, ".{modifier}")?;
        }
        let operands = match self.operands.as_slice() {
            // Only a call starts with a list; an empty one is not written there.
            [Operand::List(returns), rest @ ..] if returns.is_empty() => rest,
            all => all,
        };
        if !operands.is_empty() {
            f.write_char('\t')?;
        }
        join(f, operands, ", ", |f, operand| operand.fmt(f))
    }
}

impl Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let group = |f: &mut fmt::Formatter<'_>, open: char, operands: &[Operand], close: char| {
            f.write_char(open)?;
            join(f, operands, ", ", |f, operand| operand.fmt(f))?;
            f.write_char(close)
        };
        match self {
            Operand::Name(name) => f.write_str(name),
            Operand::NameOffset(name, offset) => write!(f, "{name}+{offset}"),
            Operand::Not(name) => write!(f, "!{name}"),
            Operand::Negated(name) => write!(f, "-{name}"),
            Operand::Immediate(value) => value.fmt(f),
            Operand::Address(address) => address.fmt(f),
            Operand::Vector(operands) => group(f, '{', operands, '}'),
            Operand::Pair(first, second) => write!(f, "{first}|{second}"),
            Operand::List(operands) => group(f, '(', operands, ')'),
            Operand::Sink => f.write_char('_'),
            Operand::Bracket(operands) => group(f, '[', operands, ']'),
        }
    }
}

impl Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.base {
            AddressBase::Name(name) => write!(f, "[{name}")?,
            AddressBase::Absolute(address) => write!(f, "[{address}")?,
        }
        write_offset(f, self.offset)?;
        f.write_char(']')
    }
}

impl Display for Immediate {
    /// Decimal for integers, bits for floats.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // A minus in front of it would leave it unsigned.
            Immediate::Int(value) if *value == i64::MIN.into() => write!(f, "(.s64){}", value.unsigned_abs()),
            Immediate::Int(value) => value.fmt(f),
            Immediate::F32(bits) => write!(f, "0f{bits:08X}"),
            Immediate::F64(bits) => write!(f, "0d{bits:016X}"),
        }
    }
}

impl Module {
    /// Forgets all source text: everything prints in canonical form, and two trees that mean the
    /// same compare equal.
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
