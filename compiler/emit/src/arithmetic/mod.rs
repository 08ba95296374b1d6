//! The instructions of PTX that compute values from values.

mod bits;
mod compare;
mod convert;
mod float;
mod half;
mod integer;
mod packed;
mod quarter;
mod rounding;
mod video;

pub use rounding::{Rounded, Rounding};

use crate::writer::{Elem, I1, I32, Ty, Val, Writer, constant};
use crate::{Emit, math};
use atoll_lower::LowerError;
use atoll_lower::program::{Inst, Opnd};
use atoll_ptx::ScalarType;

/// Lowers arithmetic into the function that a target writes.
pub struct Arithmetic<'e, E>(
    /// The target.
    pub &'e mut E,
);

impl<E: Emit> Arithmetic<'_, E> {
    fn w(&mut self) -> &mut Writer {
        self.0.writer()
    }

    fn get(&mut self, operand: &Opnd, elem: Elem, lanes: u32) -> Val {
        self.0.get(operand, elem, lanes)
    }

    fn set_operand(&mut self, operand: &Opnd, value: &Val, signed: bool) {
        self.0.set_operand(operand, value, signed);
    }

    fn lanes_of(&self, inst: &Inst) -> u32 {
        self.0.lanes_of(inst)
    }

    fn is_uniform(&self, operand: &Opnd) -> bool {
        self.0.is_uniform(operand)
    }

    fn extended(&mut self, operand: &Opnd, ty: ScalarType, to: Elem, lanes: u32) -> Val {
        self.0.extended(operand, ty, to, lanes)
    }

    fn directed(&mut self, op: Rounded, rounding: Rounding, arguments: &[&Val]) -> Val {
        self.0.directed(op, rounding, arguments)
    }

    /// The instruction's type.
    fn ty_of(&self, inst: &Inst) -> Result<ScalarType, LowerError> {
        inst.form.ty().ok_or_else(|| self.malformed(inst, "has no type"))
    }

    /// An operand of the instruction.
    fn op<'i>(&self, inst: &'i Inst, index: usize) -> Result<&'i Opnd, LowerError> {
        inst.ops.get(index).ok_or_else(|| self.malformed(inst, "has too few operands"))
    }

    fn unsupported(&self, inst: &Inst, what: &str) -> LowerError {
        unsupported(self.0, inst, what)
    }

    fn malformed(&self, inst: &Inst, what: &str) -> LowerError {
        malformed(self.0, inst, what)
    }
}

/// The error for an instruction that a target does not lower; `what` may be empty.
pub fn unsupported(target: &impl Emit, inst: &Inst, what: &str) -> LowerError {
    let form = inst.form.dotted();
    let what = if what.is_empty() { format!("`{form}`") } else { format!("`{form}`: {what}") };
    LowerError::Unsupported {
        target: target.target(),
        kernel: target.program().name.clone(),
        line: target.line(),
        what,
    }
}

/// The error for an instruction that is not well-formed.
pub fn malformed(target: &impl Emit, inst: &Inst, what: &str) -> LowerError {
    LowerError::Malformed {
        kernel: target.program().name.clone(),
        line: target.line(),
        reason: format!("`{}` {what}", inst.form.dotted()),
    }
}
