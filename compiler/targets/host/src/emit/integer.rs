//! Integer arithmetic, logic, comparisons and bit fields.

use super::*;
use crate::llvm::float;
use crate::program::{Opnd, elem_of, is_signed};
use atoll_ptx::{ScalarType, types::TypeClass};

impl Emitter<'_> {
    /// Lowers an integer or logic instruction.
    pub(super) fn integer(&mut self, inst: &Inst) -> Result<(), HostError> {
        let ty = self.ty_of(inst)?;
        let signed = is_signed(ty);
        let lanes = self.lanes_of(inst);
        let value = match inst.form.opcode.as_str() {
            "mul" | "mad" | "mul24" | "mad24" => return self.product(inst, ty, lanes),
            "div" => self.divide(inst, ty, lanes, true)?,
            "rem" => self.divide(inst, ty, lanes, false)?,
            "add" if inst.has("sat") => self.binary(inst, ty, lanes, "llvm.sadd.sat")?,
            "sub" if inst.has("sat") => self.binary(inst, ty, lanes, "llvm.ssub.sat")?,
            "add" if !inst.has("cc") => self.binary(inst, ty, lanes, "add")?,
            "sub" if !inst.has("cc") => self.binary(inst, ty, lanes, "sub")?,
            "min" => self.binary(inst, ty, lanes, if signed { "llvm.smin" } else { "llvm.umin" })?,
            "max" => self.binary(inst, ty, lanes, if signed { "llvm.smax" } else { "llvm.umax" })?,
            "and" => self.binary(inst, ty, lanes, "and")?,
            "or" => self.binary(inst, ty, lanes, "or")?,
            "xor" => self.binary(inst, ty, lanes, "xor")?,
            "not" => {
                let a = self.source(inst, 1, ty, lanes)?;
                self.w.bin_const("xor", &a, -1)
            }
            "cnot" => {
                let a = self.source(inst, 1, ty, lanes)?;
                let is_zero = self.w.compare("icmp eq", &a, &constant(a.ty, 0));
                self.w.resize(&is_zero, a.ty.elem, false)
            }
            "neg" => {
                let a = self.source(inst, 1, ty, lanes)?;
                self.w.bin("sub", &constant(a.ty, 0), &a)
            }
            "abs" => {
                let a = self.source(inst, 1, ty, lanes)?;
                self.w.call("llvm.abs", a.ty, &[&a, &constant(I1, 0)])
            }
            "sad" => {
                let (a, b, c) = (self.source(inst, 1, ty, lanes)?, self.source(inst, 2, ty, lanes)?, self.source(inst, 3, ty, lanes)?);
                let (low, high) = if signed { ("llvm.smin", "llvm.smax") } else { ("llvm.umin", "llvm.umax") };
                let (low, high) = (self.w.call(low, a.ty, &[&a, &b]), self.w.call(high, a.ty, &[&a, &b]));
                let distance = self.w.bin("sub", &high, &low);
                self.w.bin("add", &c, &distance)
            }
            "shl" => self.shift(inst, ty, lanes, "shl")?,
            "shr" => self.shift(inst, ty, lanes, if signed { "ashr" } else { "lshr" })?,
            "shf" => self.funnel(inst, lanes)?,
            "popc" | "clz" | "brev" | "bfind" => self.bit_count(inst, ty, lanes)?,
            "bfe" => self.extract_field(inst, ty, lanes)?,
            "bfi" => self.insert_field(inst, ty, lanes)?,
            "prmt" => self.permute_bytes(inst, lanes)?,
            "lop3" => self.lop3(inst, lanes)?,
            _ => return Err(self.unsupported(inst, "")),
        };
        self.set_operand(&inst.ops[0], &value, signed);
        Ok(())
    }

    /// An operand as the instruction's integer type.
    pub(super) fn source(&mut self, inst: &Inst, index: usize, ty: ScalarType, lanes: u32) -> Result<Val, HostError> {
        let operand = self.op(inst, index)?;
        Ok(self.get(operand, elem_of(ty), lanes))
    }

    /// A two-operand instruction by LLVM's opcode or intrinsic.
    fn binary(&mut self, inst: &Inst, ty: ScalarType, lanes: u32, op: &str) -> Result<Val, HostError> {
        let (a, b) = (self.source(inst, 1, ty, lanes)?, self.source(inst, 2, ty, lanes)?);
        Ok(if op.starts_with("llvm.") { self.w.call(op, a.ty, &[&a, &b]) } else { self.w.bin(op, &a, &b) })
    }

    /// `mul` and `mad` in their `lo`, `hi` and `wide` forms.
    fn product(&mut self, inst: &Inst, ty: ScalarType, lanes: u32) -> Result<(), HostError> {
        let signed = is_signed(ty);
        let is_mad = inst.form.opcode.starts_with("mad");
        let (narrow, wide) = (elem_of(ty), Elem::int(ty.bits() * 2));
        let value = if inst.has("wide") {
            let (a, b) = (self.widened(inst, 1, ty, lanes)?, self.widened(inst, 2, ty, lanes)?);
            let product = self.w.bin("mul", &a, &b);
            if is_mad {
                let c = self.get(self.op(inst, 3)?, wide, lanes);
                self.w.bin("add", &product, &c)
            } else {
                product
            }
        } else {
            let (a, b) = (self.source(inst, 1, ty, lanes)?, self.source(inst, 2, ty, lanes)?);
            let product = if inst.has("hi") {
                let (a, b) = (self.w.resize(&a, wide, signed), self.w.resize(&b, wide, signed));
                let product = self.w.bin("mul", &a, &b);
                let high = self.w.bin_const("lshr", &product, ty.bits().into());
                self.w.resize(&high, narrow, false)
            } else {
                self.w.bin("mul", &a, &b)
            };
            if is_mad {
                let c = self.source(inst, 3, ty, lanes)?;
                self.w.bin("add", &product, &c)
            } else {
                product
            }
        };
        self.set_operand(&inst.ops[0], &value, signed);
        Ok(())
    }

    /// An operand extended to twice the width of the instruction's type.
    fn widened(&mut self, inst: &Inst, index: usize, ty: ScalarType, lanes: u32) -> Result<Val, HostError> {
        let operand = self.op(inst, index)?;
        Ok(self.extended(operand, ty, Elem::int(ty.bits() * 2), lanes))
    }

    /// An integer operand extended from `ty`. Lane 0 of a progression that is not known to stay within `ty` is extended so that
    /// the lanes behind the wrap, if there is one, are right: those in front of it would be addresses some 2³² elements away (see [`crate::shape::Shape::assumed`]).
    pub(super) fn extended(&mut self, operand: &Opnd, ty: ScalarType, to: Elem, lanes: u32) -> Val {
        let signed = is_signed(ty);
        let value = self.get(operand, Elem::int(ty.bits()), lanes);
        let stride = self.stride(operand).unwrap_or(0);
        let shape = match operand {
            Opnd::Reg(reg) => Some(self.analysis.shapes[*reg]),
            _ => None,
        };
        let may_wrap = lanes == 1 && stride != 0 && !signed && shape.is_some_and(|s| !s.is_exact_in(ty.bits(), false));
        if !may_wrap {
            return self.w.resize(&value, to, signed);
        }
        let last = self.w.bin_const("add", &value, i128::from(stride) * i128::from(LANES - 1));
        let wraps = self.w.compare(if stride > 0 { "icmp ult" } else { "icmp ugt" }, &last, &value);
        let (below, above) = (self.w.resize(&value, to, true), self.w.resize(&value, to, false));
        self.w.select(&wraps, &below, &above)
    }

    /// Division as NVIDIA does it: by zero the quotient is all ones and the remainder the dividend; the least number by −1 is itself.
    fn divide(&mut self, inst: &Inst, ty: ScalarType, lanes: u32, quotient: bool) -> Result<Val, HostError> {
        let (a, b) = (self.source(inst, 1, ty, lanes)?, self.source(inst, 2, ty, lanes)?);
        let signed = is_signed(ty);
        let zero = constant(b.ty, 0);
        let by_zero = self.w.compare("icmp eq", &b, &zero);
        let mut unsafe_divisor = by_zero.clone();
        if signed {
            let least = constant(a.ty, -(1i128 << (ty.bits() - 1)));
            let is_least = self.w.compare("icmp eq", &a, &least);
            let by_minus_one = self.w.compare("icmp eq", &b, &constant(b.ty, -1));
            let overflows = self.w.bin("and", &is_least, &by_minus_one);
            unsafe_divisor = self.w.bin("or", &unsafe_divisor, &overflows);
        }
        // By one: the dividend itself and no remainder, which is right for the overflow.
        let divisor = self.w.select(&unsafe_divisor, &constant(b.ty, 1), &b);
        let op = match (quotient, signed) {
            (true, true) => "sdiv",
            (true, false) => "udiv",
            (false, true) => "srem",
            (false, false) => "urem",
        };
        let value = self.w.bin(op, &a, &divisor);
        let at_zero = if quotient { constant(a.ty, -1) } else { a };
        Ok(self.w.select(&by_zero, &at_zero, &value))
    }

    /// Shifts clamp: by the width or more nothing of the value is left.
    fn shift(&mut self, inst: &Inst, ty: ScalarType, lanes: u32, op: &str) -> Result<Val, HostError> {
        let a = self.get(self.op(inst, 1)?, Elem::int(ty.bits()), lanes);
        let amount = self.get(self.op(inst, 2)?, Elem::I32, lanes);
        let width = constant(amount.ty, ty.bits().into());
        let in_range = self.w.compare("icmp ult", &amount, &width);
        let last = constant(amount.ty, i128::from(ty.bits()) - 1);
        let clamped = self.w.call("llvm.umin", amount.ty, &[&amount, &last]);
        let clamped = self.w.resize(&clamped, a.ty.elem, false);
        let shifted = self.w.bin(op, &a, &clamped);
        Ok(if op == "ashr" { shifted } else { self.w.select(&in_range, &shifted, &constant(a.ty, 0)) })
    }

    /// `shf.l/.r` in `clamp` and `wrap` forms.
    fn funnel(&mut self, inst: &Inst, lanes: u32) -> Result<Val, HostError> {
        let [low, high, amount] = [1, 2, 3].map(|i| self.op(inst, i).cloned());
        let (low, high) = (self.get(&low?, Elem::I32, lanes), self.get(&high?, Elem::I32, lanes));
        let amount = self.get(&amount?, Elem::I32, lanes);
        let amount = if inst.has("wrap") {
            self.w.bin_const("and", &amount, 31)
        } else {
            self.w.call("llvm.umin", amount.ty, &[&amount, &constant(amount.ty, 32)])
        };
        let amount = self.w.resize(&amount, Elem::I64, false);
        let (low, high) = (self.w.resize(&low, Elem::I64, false), self.w.resize(&high, Elem::I64, false));
        let high = self.w.bin_const("shl", &high, 32);
        let both = self.w.bin("or", &high, &low);
        let moved = if inst.has("l") {
            let moved = self.w.bin("shl", &both, &amount);
            self.w.bin_const("lshr", &moved, 32)
        } else {
            self.w.bin("lshr", &both, &amount)
        };
        Ok(self.w.resize(&moved, Elem::I32, false))
    }

    fn bit_count(&mut self, inst: &Inst, ty: ScalarType, lanes: u32) -> Result<Val, HostError> {
        let a = self.get(self.op(inst, 1)?, Elem::int(ty.bits()), lanes);
        let no_poison = constant(I1, 0);
        Ok(match inst.form.opcode.as_str() {
            "popc" => {
                let count = self.w.call("llvm.ctpop", a.ty, &[&a]);
                self.w.resize(&count, Elem::I32, false)
            }
            "clz" => {
                let count = self.w.call("llvm.ctlz", a.ty, &[&a, &no_poison]);
                self.w.resize(&count, Elem::I32, false)
            }
            "brev" => self.w.call("llvm.bitreverse", a.ty, &[&a]),
            _ => {
                // `bfind`: position of the highest bit that is not a sign bit, all ones where there is none.
                let sign = self.w.bin_const("ashr", &a, i128::from(ty.bits()) - 1);
                let folded = if is_signed(ty) { self.w.bin("xor", &a, &sign) } else { a };
                let zeros = self.w.call("llvm.ctlz", folded.ty, &[&folded, &no_poison]);
                let zeros = self.w.resize(&zeros, Elem::I32, false);
                let position = self.w.bin("sub", &constant(zeros.ty, i128::from(ty.bits()) - 1), &zeros);
                if inst.has("shiftamt") {
                    let missing = self.w.compare("icmp slt", &position, &constant(position.ty, 0));
                    self.w.select(&missing, &constant(position.ty, -1), &zeros)
                } else {
                    position
                }
            }
        })
    }

    /// `bfe d, a, pos, len`: positions and lengths are taken modulo 256; bits beyond the value are its sign, or 0.
    fn extract_field(&mut self, inst: &Inst, ty: ScalarType, lanes: u32) -> Result<Val, HostError> {
        let signed = is_signed(ty);
        let bits = i128::from(ty.bits());
        let a = self.source(inst, 1, ty, lanes)?;
        let (position, length) = (self.byte_operand(inst, 2, a.ty)?, self.byte_operand(inst, 3, a.ty)?);
        let op = if signed { "ashr" } else { "lshr" };
        let last = constant(a.ty, bits - 1);
        let at = self.w.call("llvm.umin", a.ty, &[&position, &last]);
        let outside = self.w.compare("icmp ugt", &position, &last);
        let moved = self.w.bin(op, &a, &at);
        let sign = if signed { self.w.bin_const("ashr", &a, bits - 1) } else { constant(a.ty, 0) };
        let moved = self.w.select(&outside, &sign, &moved);
        // Cut to `length` bits by moving them to the top and back; a field that reaches over the end already ends in the sign.
        let is_whole = self.w.compare("icmp uge", &length, &constant(a.ty, bits));
        let is_empty = self.w.compare("icmp eq", &length, &constant(a.ty, 0));
        let room = self.w.bin("sub", &constant(a.ty, bits), &length);
        let no_shift = self.w.bin("or", &is_whole, &is_empty);
        let room = self.w.select(&no_shift, &constant(a.ty, 0), &room);
        let top = self.w.bin("shl", &moved, &room);
        let field = self.w.bin(op, &top, &room);
        let value = self.w.select(&is_whole, &moved, &field);
        Ok(self.w.select(&is_empty, &constant(a.ty, 0), &value))
    }

    /// The low eight bits of a 32-bit operand, as the type of the field's value.
    fn byte_operand(&mut self, inst: &Inst, index: usize, ty: Ty) -> Result<Val, HostError> {
        let value = self.get(self.op(inst, index)?, Elem::I32, ty.lanes);
        let value = self.w.bin_const("and", &value, 255);
        Ok(self.w.resize(&value, ty.elem, false))
    }

    /// `bfi d, a, b, pos, len`: the low bits of a into b.
    fn insert_field(&mut self, inst: &Inst, ty: ScalarType, lanes: u32) -> Result<Val, HostError> {
        let bits = i128::from(ty.bits());
        let (a, b) = (self.source(inst, 1, ty, lanes)?, self.source(inst, 2, ty, lanes)?);
        let (position, length) = (self.byte_operand(inst, 3, a.ty)?, self.byte_operand(inst, 4, a.ty)?);
        let width = constant(a.ty, bits);
        let is_whole = self.w.compare("icmp uge", &length, &width);
        let safe_length = self.w.select(&is_whole, &constant(a.ty, 0), &length);
        let one = self.w.bin("shl", &constant(a.ty, 1), &safe_length);
        let field = self.w.bin_const("sub", &one, 1);
        let field = self.w.select(&is_whole, &constant(a.ty, -1), &field);
        let outside = self.w.compare("icmp uge", &position, &width);
        let safe_position = self.w.select(&outside, &constant(a.ty, 0), &position);
        let mask = self.w.bin("shl", &field, &safe_position);
        let moved = self.w.bin("shl", &a, &safe_position);
        let inside = self.w.bin("and", &moved, &mask);
        let kept = self.w.bin_const("xor", &mask, -1);
        let kept = self.w.bin("and", &b, &kept);
        let value = self.w.bin("or", &inside, &kept);
        Ok(self.w.select(&outside, &b, &value))
    }

    /// `prmt.b32` in its default mode: four bytes picked out of eight.
    fn permute_bytes(&mut self, inst: &Inst, lanes: u32) -> Result<Val, HostError> {
        if inst.form.modifiers.len() > 1 {
            return Err(self.unsupported(inst, ""));
        }
        let [a, b, selector] = [1, 2, 3].map(|i| self.op(inst, i).cloned());
        let (a, b) = (self.get(&a?, Elem::I32, lanes), self.get(&b?, Elem::I32, lanes));
        let selector = self.get(&selector?, Elem::I32, lanes);
        let (a, b) = (self.w.resize(&a, Elem::I64, false), self.w.resize(&b, Elem::I64, false));
        let b = self.w.bin_const("shl", &b, 32);
        let both = self.w.bin("or", &a, &b);
        let mut sum = constant(selector.ty, 0);
        for byte in 0..4 {
            let pick = self.w.bin_const("lshr", &selector, 4 * byte);
            let index = self.w.bin_const("and", &pick, 7);
            let amount = self.w.bin_const("shl", &index, 3);
            let amount = self.w.resize(&amount, Elem::I64, false);
            let moved = self.w.bin("lshr", &both, &amount);
            let value = self.w.resize(&moved, Elem::I8, false);
            let sign = self.w.bin_const("ashr", &value, 7);
            let replicate = self.w.bin_const("and", &pick, 8);
            let replicate = self.w.compare("icmp ne", &replicate, &constant(replicate.ty, 0));
            let value = self.w.select(&replicate, &sign, &value);
            let value = self.w.resize(&value, Elem::I32, false);
            let value = self.w.bin_const("shl", &value, 8 * byte);
            sum = self.w.bin("or", &sum, &value);
        }
        Ok(sum)
    }

    /// `lop3.b32 d, a, b, c, table`: the or of the minterms that the table has.
    fn lop3(&mut self, inst: &Inst, lanes: u32) -> Result<Val, HostError> {
        let Opnd::Imm(atoll_ptx::Immediate::Int(table)) = *self.op(inst, 4)? else {
            return Err(self.malformed(inst, "needs a literal table"));
        };
        let mut inputs = Vec::new();
        for index in 1..4 {
            let value = self.get(self.op(inst, index)?, Elem::I32, lanes);
            let inverse = self.w.bin_const("xor", &value, -1);
            inputs.push([inverse, value]);
        }
        let mut sum = constant(Ty { elem: Elem::I32, lanes }, 0);
        for row in (0..8usize).filter(|row| table >> row & 1 == 1) {
            let ab = self.w.bin("and", &inputs[0][row >> 2 & 1], &inputs[1][row >> 1 & 1]);
            let abc = self.w.bin("and", &ab, &inputs[2][row & 1]);
            sum = self.w.bin("or", &sum, &abc);
        }
        Ok(sum)
    }

    /// `setp` and `set`, with the optional combination with a predicate.
    pub(super) fn compare(&mut self, inst: &Inst) -> Result<(), HostError> {
        let is_set = inst.form.opcode == "set";
        let types: Vec<ScalarType> = inst.form.modifiers.iter().filter_map(|m| ScalarType::from_name(m)).collect();
        let Some(&ty) = types.last() else { return Err(self.malformed(inst, "has no type")) };
        let words: Vec<&str> = inst.form.modifiers.iter().map(|m| m.as_str()).collect();
        let Some(op) = words.iter().find_map(|w| comparison(w, ty)) else { return Err(self.unsupported(inst, "this comparison")) };
        let lanes = self.lanes_of(inst);
        let lanes = if inst.sources().iter().all(|o| self.is_uniform(o)) { 1 } else { lanes };
        let (a, b) = (self.source(inst, 1, ty, lanes)?, self.source(inst, 2, ty, lanes)?);
        let (a, b) = (self.comparable(&a), self.comparable(&b));
        let holds = self.w.compare(op, &a, &b);
        let combine = words.iter().copied().find(|w| matches!(*w, "and" | "or" | "xor"));
        let other = match combine {
            Some(_) => Some(self.get(self.op(inst, 3)?, Elem::I1, lanes)),
            None => None,
        };
        let joined = |e: &mut Self, value: &Val| match (combine, &other) {
            (Some(op), Some(other)) => e.w.bin(op, value, other),
            _ => value.clone(),
        };
        let first = joined(self, &holds);
        if is_set {
            let value = self.truth(&first, types[0]);
            self.set_operand(&inst.ops[0], &value, false);
            return Ok(());
        }
        match &inst.ops[0] {
            Opnd::Pair(p, q) => {
                let fails = self.w.bin_const("xor", &holds, 1);
                let second = joined(self, &fails);
                self.set_operand(p, &first, false);
                self.set_operand(q, &second, false);
            }
            single => self.set_operand(single, &first, false),
        }
        Ok(())
    }

    /// LLVM compares half values through conversions that need no library here, but only once they are floats.
    fn comparable(&mut self, value: &Val) -> Val {
        if value.ty.elem == Elem::F16 { self.w.cast("fpext", value, Elem::F32) } else { value.clone() }
    }

    /// The result of `set`: all ones, or 1.0, where it holds.
    fn truth(&mut self, holds: &Val, ty: ScalarType) -> Val {
        let result = Ty { elem: elem_of(ty), lanes: holds.ty.lanes };
        let yes = match ty.class() {
            TypeClass::Float => float(result, 1.0),
            _ => constant(result, -1),
        };
        self.w.select(holds, &yes, &constant(result, 0))
    }
}

/// LLVM's comparison for PTX's.
fn comparison(word: &str, ty: ScalarType) -> Option<&'static str> {
    if matches!(ty.class(), TypeClass::Float) {
        return Some(match word {
            "eq" => "fcmp oeq",
            "ne" => "fcmp one",
            "lt" => "fcmp olt",
            "le" => "fcmp ole",
            "gt" => "fcmp ogt",
            "ge" => "fcmp oge",
            "equ" => "fcmp ueq",
            "neu" => "fcmp une",
            "ltu" => "fcmp ult",
            "leu" => "fcmp ule",
            "gtu" => "fcmp ugt",
            "geu" => "fcmp uge",
            "num" => "fcmp ord",
            "nan" => "fcmp uno",
            _ => return None,
        });
    }
    let signed = is_signed(ty);
    Some(match word {
        "eq" => "icmp eq",
        "ne" => "icmp ne",
        "lt" if signed => "icmp slt",
        "le" if signed => "icmp sle",
        "gt" if signed => "icmp sgt",
        "ge" if signed => "icmp sge",
        "lt" | "lo" => "icmp ult",
        "le" | "ls" => "icmp ule",
        "gt" | "hi" => "icmp ugt",
        "ge" | "hs" => "icmp uge",
        _ => return None,
    })
}
