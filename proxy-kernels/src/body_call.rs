//! Calls of candidates' bodies: passes the arguments that a slot of a launch holds.

use atoll_ptx::build::{KernelBuilder, address};
use atoll_ptx::{Body, Instruction, Name, Operand, ScalarType, Statement, StatementKind, Variable};

/// A call of a candidate's body.
pub(crate) struct BodyCall<'a> {
    pub(crate) name: Name,
    /// Parameters of the kernel: the layout of its arguments in the slot.
    pub(crate) params: &'a [Variable],
    /// Parameters of the body: how the arguments are passed.
    pub(crate) arguments: &'a [Variable],
}

impl BodyCall<'_> {
    /// Copies the arguments from `base` and calls the body.
    pub(crate) fn statements(&self, b: &mut KernelBuilder, base: &Name) -> Body {
        let (narrow, wide) = (b.reg(ScalarType::U32), b.reg(ScalarType::U64));
        let mut variables = Vec::new();
        let mut statements = Vec::new();
        let mut names = Vec::new();
        let mut end = 0u64;
        for (index, (param, argument)) in self.params.iter().zip(self.arguments).enumerate() {
            let at = end.next_multiple_of(u64::from(param.alignment().max(1)));
            end = at + param.bytes().unwrap_or(0);
            let argument = Variable { name: Name::from(format!("argument_{index}")), ..argument.clone() };
            names.push(Operand::Name(argument.name.clone()));
            for piece in pieces(param) {
                let register = if piece.bytes == 8 { &wide } else { &narrow };
                let from = address(base, (at + piece.offset) as i64);
                let to = address(&argument.name, piece.offset as i64);
                // The argument of a narrow value is at least 32 bits; the load fills it with zeros.
                let stored = if param.dimensions.is_empty() { piece.bytes.max(4) } else { piece.bytes };
                let load = if piece.bytes < 4 { "u" } else { "b" };
                statements
                    .push(instruction(&format!("ld.param.{load}{}", piece.bytes * 8), vec![register.into(), from]));
                statements.push(instruction(&format!("st.param.b{}", stored * 8), vec![to, register.into()]));
            }
            variables.push(Statement::built(StatementKind::Variable(argument)));
        }
        variables.append(&mut statements);
        let mut statements = variables;
        statements.push(instruction(
            "call.uni",
            vec![Operand::List(Vec::new()), Operand::Name(self.name.clone()), Operand::List(names)],
        ));
        Body { statements, before_open: "".into(), before_close: "\n\t".into() }
    }
}

/// A part of a parameter that one load instruction reads.
struct Piece {
    offset: u64,
    bytes: u64,
}

/// Splits a parameter into the largest pieces that its alignment and size allow.
fn pieces(param: &Variable) -> Vec<Piece> {
    let total = param.bytes().unwrap_or(0);
    let alignment = u64::from(param.alignment().max(param.ty.bytes()));
    let mut pieces = Vec::new();
    let mut offset = 0;
    while offset < total {
        let fits = |size: &u64| *size <= total - offset && offset.is_multiple_of(*size) && *size <= alignment;
        let bytes = [8, 4, 2, 1].into_iter().find(fits).unwrap_or(1);
        pieces.push(Piece { offset, bytes });
        offset += bytes;
    }
    pieces
}

fn instruction(dotted: &str, operands: Vec<Operand>) -> Statement {
    let mut statement = Statement::built(StatementKind::Instruction(Instruction::new(dotted, operands)));
    statement.origin.leading = "\n\t".into();
    statement
}
