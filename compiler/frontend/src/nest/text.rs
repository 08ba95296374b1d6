//! Prints a nest as text.

use super::{Nest, NestArg, NestTensor, Slot, Statement};
use std::fmt;

impl fmt::Display for Nest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let domain: Vec<String> = self.domain.iter().map(ToString::to_string).collect();
        write!(f, "{} over [{}] {{ ", self.stem, domain.join(", "))?;
        write_block(f, &self.body)?;
        f.write_str("}")
    }
}

fn write_block(f: &mut fmt::Formatter<'_>, body: &[Statement]) -> fmt::Result {
    body.iter().try_for_each(|statement| write_statement(f, statement))
}

fn write_statement(f: &mut fmt::Formatter<'_>, statement: &Statement) -> fmt::Result {
    match statement {
        Statement::Step { to, op, ty, args } => {
            let args: Vec<String> = args.iter().map(ToString::to_string).collect();
            write!(f, "{to} = {}.{ty} {}; ", format!("{op:?}").to_lowercase(), args.join(", "))
        }
        Statement::Load { to, from, at } => write!(f, "{to} = {from}[{at}]; "),
        Statement::Store { result, at, value } => write!(f, "{}[{at}] = {value}; ", NestTensor::Result(*result)),
        Statement::Loop { counter, from, to, while_true, body } => {
            write!(f, "for {counter} in {from}..{to} ")?;
            if let Some(slot) = while_true {
                write!(f, "while {slot} ")?;
            }
            f.write_str("{ ")?;
            write_block(f, body)?;
            f.write_str("} ")
        }
        Statement::Refuse { condition, text, .. } => write!(f, "refuse {condition} {text:?}; "),
        Statement::If { condition, then, otherwise } => {
            write!(f, "if {condition} {{ ")?;
            write_block(f, then)?;
            if !otherwise.is_empty() {
                f.write_str("} else { ")?;
                write_block(f, otherwise)?;
            }
            f.write_str("} ")
        }
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}", self.0)
    }
}

impl fmt::Display for NestArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NestArg::Slot(slot) => slot.fmt(f),
            NestArg::Const(number) => number.fmt(f),
            NestArg::Size(size) => size.fmt(f),
        }
    }
}

impl fmt::Display for NestTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NestTensor::Operand(index) => write!(f, "x{index}"),
            NestTensor::Result(index) => write!(f, "y{index}"),
        }
    }
}
