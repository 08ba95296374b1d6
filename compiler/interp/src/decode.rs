//! Decodes instructions to operations.

mod flow;
mod lanes;
mod moves;
mod operands;

use crate::alu;
use crate::op::{CARRY, Dst, Op, Src};
use crate::program::Frame;
use crate::symbols::Symbols;
use atoll_ptx::analysis::{Code, StatementId};
use atoll_ptx::{Instruction, Module, Operand, ScalarType};

/// Resolves the names of a function.
pub(crate) struct Decoder<'a> {
    pub(crate) module: &'a Module,
    pub(crate) symbols: &'a Symbols<'a>,
    pub(crate) code: &'a Code<'a>,
    /// First slot of each register.
    pub(crate) slots: &'a [u32],
    pub(crate) frame: &'a Frame,
    /// Index of the instruction at or after each statement.
    pub(crate) targets: Vec<u32>,
}

impl Decoder<'_> {
    /// Decodes an instruction, or returns why it is not supported.
    pub(crate) fn operation(&self, id: StatementId, i: &Instruction) -> Result<Op, String> {
        for family in [Self::moves, Self::flow, Self::lanes] {
            if let Some(op) = family(self, id, i)? {
                return Ok(op);
            }
        }
        if let Some((alu, plain)) = alu::decode_video(i)? {
            return self.computing(id, &plain, alu);
        }
        match alu::decode(i)? {
            Some(alu) => self.computing(id, i, alu),
            None => Err(unsupported(&i.opcode).into()),
        }
    }

    fn computing(&self, id: StatementId, i: &Instruction, alu: alu::Alu) -> Result<Op, String> {
        let (destination, sources) = i.operands.split_first().ok_or("it needs operands")?;
        if sources.len() != alu.sources {
            return Err(format!("it takes {} sources, {} are given", alu.sources, sources.len()));
        }
        let mut dst = self.destinations(id, destination)?;
        if alu.carry_out {
            dst[1] = Some(Dst { slot: CARRY, bits: 1 });
        }
        let ty = source_type(i);
        let mut src = sources.iter().map(|operand| self.source(id, operand, ty)).collect::<Result<Vec<Src>, _>>()?;
        if alu.carry_in {
            src.push(Src::Reg(CARRY));
        }
        Ok(Op::Alu { alu, src: src.into(), dst })
    }

    /// The destination: one register, or a pair `p|q`.
    fn destinations(&self, id: StatementId, operand: &Operand) -> Result<[Option<Dst>; 2], String> {
        match operand {
            Operand::Pair(first, second) => Ok([self.destination(id, first)?, self.destination(id, second)?]),
            _ => Ok([self.destination(id, operand)?, None]),
        }
    }
}

/// Why an instruction that belongs to no family is not supported.
fn unsupported(opcode: &str) -> &'static str {
    match opcode {
        "tex" | "tld4" | "txq" | "istypep" => "textures are not supported",
        "suld" | "sust" | "sured" | "suq" => "surfaces are not supported",
        _ => "this instruction is not supported",
    }
}

/// The type of literals among the sources.
fn source_type(i: &Instruction) -> ScalarType {
    i.ty().unwrap_or(ScalarType::B64)
}
