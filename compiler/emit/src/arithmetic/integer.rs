//! Integer arithmetic and logic; [`bits`](super::bits) has shifts, fields and counts,
//! [`packed`](super::packed) pairs of 16-bit numbers.

use super::*;
use atoll_lower::program::{Opnd, elem_of, is_signed};
use atoll_ptx::{Immediate, ScalarType};

impl<E: Emit> Arithmetic<'_, E> {
    /// Lowers an integer or logic instruction.
    pub fn integer(&mut self, inst: &Inst) -> Result<(), LowerError> {
        if let Some(done) = self.packed_integer(inst) {
            return done;
        }
        let ty = self.ty_of(inst)?;
        let signed = is_signed(ty);
        let lanes = self.lanes_of(inst);
        let value = match inst.form.opcode.as_str() {
            "addc" | "subc" | "madc" => return self.with_carry(inst, ty, lanes),
            "add" | "sub" | "mad" if inst.has("cc") => return self.with_carry(inst, ty, lanes),
            "mul" | "mad" => return self.product(inst, ty, lanes),
            "mul24" | "mad24" => self.product_24(inst, ty, lanes)?,
            "div" => self.divide(inst, ty, lanes, true)?,
            "rem" => self.divide(inst, ty, lanes, false)?,
            "add" if inst.has("sat") => self.binary(inst, ty, lanes, "llvm.sadd.sat")?,
            "sub" if inst.has("sat") => self.binary(inst, ty, lanes, "llvm.ssub.sat")?,
            "add" => self.binary(inst, ty, lanes, "add")?,
            "sub" => self.binary(inst, ty, lanes, "sub")?,
            "min" => self.binary(inst, ty, lanes, if signed { "llvm.smin" } else { "llvm.umin" })?,
            "max" => self.binary(inst, ty, lanes, if signed { "llvm.smax" } else { "llvm.umax" })?,
            "and" => self.binary(inst, ty, lanes, "and")?,
            "or" => self.binary(inst, ty, lanes, "or")?,
            "xor" => self.binary(inst, ty, lanes, "xor")?,
            "not" => {
                let a = self.source(inst, 1, ty, lanes)?;
                self.w().bin_const("xor", &a, -1)
            }
            "cnot" => {
                let a = self.source(inst, 1, ty, lanes)?;
                let is_zero = self.w().compare("icmp eq", &a, &constant(a.ty, 0));
                self.w().resize(&is_zero, a.ty.elem, false)
            }
            "neg" => {
                let a = self.source(inst, 1, ty, lanes)?;
                self.w().bin("sub", &constant(a.ty, 0), &a)
            }
            "abs" => {
                let a = self.source(inst, 1, ty, lanes)?;
                self.w().call("llvm.abs", a.ty, &[&a, &constant(I1, 0)])
            }
            "sad" => {
                let (a, b, c) = (
                    self.source(inst, 1, ty, lanes)?,
                    self.source(inst, 2, ty, lanes)?,
                    self.source(inst, 3, ty, lanes)?,
                );
                let (low, high) = if signed { ("llvm.smin", "llvm.smax") } else { ("llvm.umin", "llvm.umax") };
                let (low, high) = (self.w().call(low, a.ty, &[&a, &b]), self.w().call(high, a.ty, &[&a, &b]));
                let distance = self.w().bin("sub", &high, &low);
                self.w().bin("add", &c, &distance)
            }
            "lop3" => return self.lop3(inst, lanes),
            _ => self.bits(inst, ty, lanes)?,
        };
        let value = if inst.has("relu") {
            self.w().call("llvm.smax", value.ty, &[&value, &constant(value.ty, 0)])
        } else {
            value
        };
        self.set_operand(&inst.ops[0], &value, signed);
        Ok(())
    }

    /// An operand in the instruction's integer type.
    pub(super) fn source(&mut self, inst: &Inst, index: usize, ty: ScalarType, lanes: u32) -> Result<Val, LowerError> {
        let operand = self.op(inst, index)?;
        Ok(self.get(operand, elem_of(ty), lanes))
    }

    /// A two-operand instruction, by LLVM's opcode or intrinsic.
    fn binary(&mut self, inst: &Inst, ty: ScalarType, lanes: u32, op: &str) -> Result<Val, LowerError> {
        let (a, b) = (self.source(inst, 1, ty, lanes)?, self.source(inst, 2, ty, lanes)?);
        Ok(if op.starts_with("llvm.") { self.w().call(op, a.ty, &[&a, &b]) } else { self.w().bin(op, &a, &b) })
    }

    /// `mul` and `mad` in their `lo`, `hi` and `wide` forms.
    fn product(&mut self, inst: &Inst, ty: ScalarType, lanes: u32) -> Result<(), LowerError> {
        let is_mad = inst.form.opcode == "mad";
        let value = if inst.has("wide") {
            let (a, b) = (self.widened(inst, 1, ty, lanes)?, self.widened(inst, 2, ty, lanes)?);
            self.w().bin("mul", &a, &b)
        } else {
            self.half_product(inst, ty, lanes)?
        };
        let value = match is_mad {
            false => value,
            true => {
                let c = self.get(self.op(inst, 3)?, value.ty.elem, lanes);
                // Only `mad.hi.sat.s32` saturates.
                if inst.has("sat") {
                    self.w().call("llvm.sadd.sat", value.ty, &[&value, &c])
                } else {
                    self.w().bin("add", &value, &c)
                }
            }
        };
        self.set_operand(&inst.ops[0], &value, is_signed(ty));
        Ok(())
    }

    /// The lower or, with `.hi`, the upper half of a product.
    fn half_product(&mut self, inst: &Inst, ty: ScalarType, lanes: u32) -> Result<Val, LowerError> {
        let (a, b) = (self.source(inst, 1, ty, lanes)?, self.source(inst, 2, ty, lanes)?);
        if !inst.has("hi") {
            return Ok(self.w().bin("mul", &a, &b));
        }
        let wide = Elem::int(ty.bits() * 2);
        let (a, b) = (self.w().resize(&a, wide, is_signed(ty)), self.w().resize(&b, wide, is_signed(ty)));
        let product = self.w().bin("mul", &a, &b);
        let high = self.w().bin_const("lshr", &product, ty.bits().into());
        Ok(self.w().resize(&high, elem_of(ty), false))
    }

    /// `mul24` and `mad24`: the lower or, with `.hi`, the upper 32 bits of the 48-bit product.
    fn product_24(&mut self, inst: &Inst, ty: ScalarType, lanes: u32) -> Result<Val, LowerError> {
        const UNUSED_BITS: i128 = 40;
        let mut factors = Vec::new();
        for index in [1, 2] {
            let factor = self.source(inst, index, ty, lanes)?;
            let wide = self.w().resize(&factor, Elem::I64, false);
            let top = self.w().bin_const("shl", &wide, UNUSED_BITS);
            factors.push(self.w().bin_const(if is_signed(ty) { "ashr" } else { "lshr" }, &top, UNUSED_BITS));
        }
        let product = self.w().bin("mul", &factors[0], &factors[1]);
        let product = if inst.has("hi") { self.w().bin_const("lshr", &product, 16) } else { product };
        let product = self.w().resize(&product, Elem::I32, false);
        if inst.form.opcode == "mul24" {
            return Ok(product);
        }
        let c = self.source(inst, 3, ty, lanes)?;
        Ok(if inst.has("sat") {
            self.w().call("llvm.sadd.sat", c.ty, &[&product, &c])
        } else {
            self.w().bin("add", &product, &c)
        })
    }

    /// Instructions that write or read the carry. Reading a kernel has made the carry an operand:
    /// the second of a pair where it is written, the last source where it is read. NVIDIA's adder
    /// subtracts by adding the complement. A subtraction therefore sets the carry if it does *not*
    /// borrow, and `subc` subtracts one more if the carry is 0.
    fn with_carry(&mut self, inst: &Inst, ty: ScalarType, lanes: u32) -> Result<(), LowerError> {
        let opcode = inst.form.opcode.as_str();
        let (a, b) = match opcode {
            "mad" | "madc" => (self.half_product(inst, ty, lanes)?, self.source(inst, 3, ty, lanes)?),
            _ => (self.source(inst, 1, ty, lanes)?, self.source(inst, 2, ty, lanes)?),
        };
        let (value, carry) = match opcode {
            "addc" | "madc" => self.sum_with_carry(inst, &a, &b)?,
            "subc" => {
                let complement = self.w().bin_const("xor", &b, -1);
                self.sum_with_carry(inst, &a, &complement)?
            }
            "sub" => (self.w().bin("sub", &a, &b), self.w().compare("icmp uge", &a, &b)),
            _ => self.overflowing_sum(&a, &b),
        };
        match &inst.ops[0] {
            Opnd::Pair(to, flag) => {
                self.set_operand(to, &value, false);
                self.set_operand(flag, &carry, false);
            }
            single => self.set_operand(single, &value, false),
        }
        Ok(())
    }

    /// The sum of two numbers and the carry that the instruction reads, with the resulting carry.
    fn sum_with_carry(&mut self, inst: &Inst, a: &Val, b: &Val) -> Result<(Val, Val), LowerError> {
        let Some(carry_in) = inst.ops.last() else { return Err(self.malformed(inst, "has too few operands")) };
        let carry_in = self.get(carry_in, Elem::I1, a.ty.lanes);
        let (sum, carry) = self.overflowing_sum(a, b);
        let step = self.w().resize(&carry_in, a.ty.elem, false);
        let (sum, again) = self.overflowing_sum(&sum, &step);
        Ok((sum, self.w().bin("or", &carry, &again)))
    }

    /// A sum overflowed if it is less than a summand.
    fn overflowing_sum(&mut self, a: &Val, b: &Val) -> (Val, Val) {
        let sum = self.w().bin("add", a, b);
        let carry = self.w().compare("icmp ult", &sum, a);
        (sum, carry)
    }

    /// An operand extended to twice the width of the instruction's type.
    fn widened(&mut self, inst: &Inst, index: usize, ty: ScalarType, lanes: u32) -> Result<Val, LowerError> {
        let operand = self.op(inst, index)?;
        Ok(self.extended(operand, ty, Elem::int(ty.bits() * 2), lanes))
    }

    /// Division with the results of the code that NVIDIA's assembler generates for it: by zero,
    /// quotient and remainder are all ones, in every width, signed or not; the smallest number
    /// divided by −1 is itself, with remainder 0.
    fn divide(&mut self, inst: &Inst, ty: ScalarType, lanes: u32, quotient: bool) -> Result<Val, LowerError> {
        let (a, b) = (self.source(inst, 1, ty, lanes)?, self.source(inst, 2, ty, lanes)?);
        let signed = is_signed(ty);
        let by_zero = self.w().compare("icmp eq", &b, &constant(b.ty, 0));
        let mut unsafe_divisor = by_zero.clone();
        if signed {
            let least = constant(a.ty, -(1i128 << (ty.bits() - 1)));
            let is_least = self.w().compare("icmp eq", &a, &least);
            let by_minus_one = self.w().compare("icmp eq", &b, &constant(b.ty, -1));
            let overflows = self.w().bin("and", &is_least, &by_minus_one);
            unsafe_divisor = self.w().bin("or", &unsafe_divisor, &overflows);
        }
        // Divides by one instead: quotient is the dividend and remainder 0, the right result for
        // the overflow.
        let divisor = self.w().select(&unsafe_divisor, &constant(b.ty, 1), &b);
        let op = match (quotient, signed) {
            (true, true) => "sdiv",
            (true, false) => "udiv",
            (false, true) => "srem",
            (false, false) => "urem",
        };
        let value = self.w().bin(op, &a, &divisor);
        Ok(self.w().select(&by_zero, &constant(a.ty, -1), &value))
    }

    /// `lop3.b32 d, a, b, c, table`: the disjunction of the minterms in the table.
    /// `lop3.op.b32 d|p, …, q` also yields whether the result is not 0, combined with q.
    fn lop3(&mut self, inst: &Inst, lanes: u32) -> Result<(), LowerError> {
        let Opnd::Imm(Immediate::Int(table)) = *self.op(inst, 4)? else {
            return Err(self.malformed(inst, "needs a literal table"));
        };
        let mut inputs = Vec::new();
        for index in 1..4 {
            let value = self.get(self.op(inst, index)?, Elem::I32, lanes);
            let inverse = self.w().bin_const("xor", &value, -1);
            inputs.push([inverse, value]);
        }
        let mut sum = constant(Ty { elem: Elem::I32, lanes }, 0);
        for row in (0..8usize).filter(|row| table >> row & 1 == 1) {
            let ab = self.w().bin("and", &inputs[0][row >> 2 & 1], &inputs[1][row >> 1 & 1]);
            let abc = self.w().bin("and", &ab, &inputs[2][row & 1]);
            sum = self.w().bin("or", &sum, &abc);
        }
        let combine = ["or", "and"].into_iter().find(|op| inst.has(op));
        match (&inst.ops[0], combine) {
            (Opnd::Pair(to, pred), Some(op)) => {
                let other = self.get(self.op(inst, 5)?, Elem::I1, lanes);
                let is_set = self.w().compare("icmp ne", &sum, &constant(sum.ty, 0));
                let holds = self.w().bin(op, &is_set, &other);
                self.set_operand(to, &sum, false);
                self.set_operand(pred, &holds, false);
            }
            (to, None) => self.set_operand(to, &sum, false),
            _ => return Err(self.unsupported(inst, "")),
        }
        Ok(())
    }
}
