//! Canonical form of every node, as [`Display`].

use super::Printer;
use crate::ast::*;
use crate::directive::{Arguments, form_of};
use std::fmt::{self, Display, Write};

/// Writes items separated by `separator`.
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

/// The header of a function: everything before its body.
pub(super) struct Header<'a>(pub(super) &'a Function);

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
    /// The word with its dot and a trailing space, or nothing.
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
    /// The statement in canonical form, including its `;`.
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
            // Only a call starts with a list. An empty list of return values is omitted.
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
    /// Decimal for integers, bit pattern for floats.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // Negating 2^63 would give an unsigned value, hence the cast.
            Immediate::Int(value) if *value == i64::MIN.into() => write!(f, "(.s64){}", value.unsigned_abs()),
            Immediate::Int(value) => value.fmt(f),
            Immediate::F32(bits) => write!(f, "0f{bits:08X}"),
            Immediate::F64(bits) => write!(f, "0d{bits:016X}"),
        }
    }
}
