//! Pairs of 16-bit integers in a register, and dot products of bytes. [`video`](super::video) has
//! the older SIMD instructions on two or four numbers per register.

use super::*;
use atoll_lower::program::{Opnd, is_signed};
use atoll_ptx::ScalarType;

impl<E: Emit> Arithmetic<'_, E> {
    /// Lowers an instruction on packed integers; `None` if it is not one.
    pub(super) fn packed_integer(&mut self, inst: &Inst) -> Option<Result<(), LowerError>> {
        match inst.form.opcode.as_str() {
            "dp4a" => Some(self.dot_product(inst, 8)),
            "dp2a" => Some(self.dot_product(inst, 16)),
            _ if inst.has("u16x2") => Some(self.pairs(inst, false)),
            _ if inst.has("s16x2") => Some(self.pairs(inst, true)),
            _ => None,
        }
    }

    /// `add`, `min` and `max` of `.u16x2` and `.s16x2`.
    fn pairs(&mut self, inst: &Inst, signed: bool) -> Result<(), LowerError> {
        let lanes = self.lanes_of(inst);
        let (whole, halves) = (Ty { elem: Elem::I32, lanes }, Ty { elem: Elem::I16, lanes: lanes * 2 });
        let mut operands = Vec::new();
        for index in [1, 2] {
            let value = self.get(self.op(inst, index)?, Elem::I32, lanes);
            operands.push(self.w().value(halves, format_args!("bitcast {value} to {halves}")));
        }
        let [a, b] = &operands[..] else { return Err(self.malformed(inst, "has too few operands")) };
        let mut value = match (inst.form.opcode.as_str(), signed) {
            ("add", _) => self.w().bin("add", a, b),
            ("min", true) => self.w().call("llvm.smin", halves, &[a, b]),
            ("min", false) => self.w().call("llvm.umin", halves, &[a, b]),
            ("max", true) => self.w().call("llvm.smax", halves, &[a, b]),
            ("max", false) => self.w().call("llvm.umax", halves, &[a, b]),
            _ => return Err(self.unsupported(inst, "")),
        };
        if inst.has("relu") {
            value = self.w().call("llvm.smax", halves, &[&value, &constant(halves, 0)]);
        }
        let value = self.w().value(whole, format_args!("bitcast {value} to {whole}"));
        self.set_operand(&inst.ops[0], &value, false);
        Ok(())
    }

    /// `dp4a.atype.btype d, a, b, c` of four bytes each, `dp2a.half.atype.btype` of two 16-bit
    /// numbers and two bytes.
    fn dot_product(&mut self, inst: &Inst, a_bits: u32) -> Result<(), LowerError> {
        let types: Vec<ScalarType> = inst.form.modifiers.iter().filter_map(|m| ScalarType::from_name(m)).collect();
        let [a_ty, b_ty] = types[..] else { return Err(self.malformed(inst, "needs two types")) };
        let lanes = self.lanes_of(inst);
        let (a, b) = (self.op(inst, 1)?.clone(), self.op(inst, 2)?.clone());
        let mut sum = self.get(self.op(inst, 3)?, Elem::I32, lanes);
        // The upper bytes of b, for `dp2a.hi`.
        let skipped = if inst.form.opcode == "dp2a" && inst.has("hi") { 16 } else { 0 };
        for index in 0..32 / a_bits {
            let x = self.field(&a, index * a_bits, a_bits, a_ty == ScalarType::S32, lanes);
            let y = self.field(&b, skipped + index * 8, 8, b_ty == ScalarType::S32, lanes);
            let product = self.w().bin("mul", &x, &y);
            sum = self.w().bin("add", &sum, &product);
        }
        self.set_operand(&inst.ops[0], &sum, false);
        Ok(())
    }

    /// `cvt.pack.sat.type.s32 d, a, b`: saturates both to 16 bits, a in the upper half.
    /// `cvt.pack.sat.type.s32.b32 d, a, b, c`: to 8 bits, with the lower half of c above them.
    pub(super) fn cvt_pack(&mut self, inst: &Inst) -> Result<(), LowerError> {
        let types: Vec<ScalarType> = inst.form.modifiers.iter().filter_map(|m| ScalarType::from_name(m)).collect();
        let to = match (&types[..], inst.ops.len()) {
            ([to @ (ScalarType::U16 | ScalarType::S16), ScalarType::S32], 3) => *to,
            ([to @ (ScalarType::U8 | ScalarType::S8), ScalarType::S32, ScalarType::B32], 4) => *to,
            _ => return Err(self.unsupported(inst, "")),
        };
        let (lanes, bits) = (self.lanes_of(inst), to.bits());
        let (low, high) =
            if is_signed(to) { (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) };
        let mut sum = constant(Ty { elem: Elem::I32, lanes }, 0);
        for (index, at) in [(2, 0), (1, bits)] {
            let value = self.get(self.op(inst, index)?, Elem::I32, lanes);
            let value = self.w().call("llvm.smax", value.ty, &[&value, &constant(value.ty, low)]);
            let value = self.w().call("llvm.smin", value.ty, &[&value, &constant(value.ty, high)]);
            let cut = self.w().bin_const("and", &value, (1 << bits) - 1);
            let moved = self.w().bin_const("shl", &cut, at.into());
            sum = self.w().bin("or", &sum, &moved);
        }
        if let Some(above) = inst.ops.get(3) {
            let above = self.get(above, Elem::I32, lanes);
            let moved = self.w().bin_const("shl", &above, (2 * bits).into());
            sum = self.w().bin("or", &sum, &moved);
        }
        self.set_operand(&inst.ops[0], &sum, false);
        Ok(())
    }

    /// `bits` bits of a 32-bit operand, from bit `at` on, extended.
    fn field(&mut self, operand: &Opnd, at: u32, bits: u32, signed: bool, lanes: u32) -> Val {
        let value = self.get(operand, Elem::I32, lanes);
        self.sub_register(&value, at, bits, signed)
    }

    /// `bits` bits of 32-bit lanes, from bit `at` on, extended.
    pub fn sub_register(&mut self, value: &Val, at: u32, bits: u32, signed: bool) -> Val {
        let top = self.w().bin_const("shl", value, i128::from(32 - at - bits));
        self.w().bin_const(if signed { "ashr" } else { "lshr" }, &top, i128::from(32 - bits))
    }
}
