//! Shifts, bit fields, counts and permutations.

use super::*;
use atoll_lower::program::{Opnd, is_signed};
use atoll_ptx::{Immediate, ScalarType};

/// Named modes of `prmt`, with the selectors for the values 0 to 3 of its third operand.
const PERMUTE_MODES: [(&str, [i128; 4]); 6] = [
    ("f4e", [0x3210, 0x4321, 0x5432, 0x6543]),
    ("b4e", [0x5670, 0x6701, 0x7012, 0x0123]),
    ("rc8", [0x0000, 0x1111, 0x2222, 0x3333]),
    ("ecl", [0x3210, 0x3211, 0x3222, 0x3333]),
    ("ecr", [0x0000, 0x1110, 0x2210, 0x3210]),
    ("rc16", [0x1010, 0x3232, 0x1010, 0x3232]),
];

impl<E: Emit> Arithmetic<'_, E> {
    /// Lowers an instruction on bits.
    pub(super) fn bits(&mut self, inst: &Inst, ty: ScalarType, lanes: u32) -> Result<Val, LowerError> {
        match inst.form.opcode.as_str() {
            "shl" => self.shift(inst, ty, lanes, "shl"),
            "shr" => self.shift(inst, ty, lanes, if is_signed(ty) { "ashr" } else { "lshr" }),
            "shf" => self.funnel(inst, lanes),
            "popc" | "clz" | "brev" | "bfind" => self.bit_count(inst, ty, lanes),
            "bfe" => self.extract_field(inst, ty, lanes),
            "bfi" => self.insert_field(inst, ty, lanes),
            "prmt" => self.permute_bytes(inst, lanes),
            "bmsk" => self.field_mask(inst, lanes),
            "szext" => self.extend_field(inst, ty, lanes),
            "fns" => self.find_set_bit(inst, lanes),
            _ => Err(self.unsupported(inst, "")),
        }
    }

    /// Shifts clamp: shifting by the width or more yields 0, or the sign for an arithmetic shift.
    fn shift(&mut self, inst: &Inst, ty: ScalarType, lanes: u32, op: &str) -> Result<Val, LowerError> {
        let a = self.get(self.op(inst, 1)?, Elem::int(ty.bits()), lanes);
        let amount = self.get(self.op(inst, 2)?, Elem::I32, lanes);
        let width = constant(amount.ty, ty.bits().into());
        let in_range = self.w().compare("icmp ult", &amount, &width);
        let last = constant(amount.ty, i128::from(ty.bits()) - 1);
        let clamped = self.w().call("llvm.umin", amount.ty, &[&amount, &last]);
        let clamped = self.w().resize(&clamped, a.ty.elem, false);
        let shifted = self.w().bin(op, &a, &clamped);
        Ok(if op == "ashr" { shifted } else { self.w().select(&in_range, &shifted, &constant(a.ty, 0)) })
    }

    /// `shf.l/.r` in `clamp` and `wrap` forms.
    fn funnel(&mut self, inst: &Inst, lanes: u32) -> Result<Val, LowerError> {
        let mut operands = Vec::new();
        for index in 1..4 {
            operands.push(self.get(self.op(inst, index)?, Elem::I32, lanes));
        }
        let [low, high, amount] = &operands[..] else { return Err(self.malformed(inst, "has too few operands")) };
        let is_left = inst.has("l");
        // LLVM's funnel shifts wrap; a clamped shift by 32 or more moves a whole word.
        let name = if is_left { "llvm.fshl" } else { "llvm.fshr" };
        let moved = self.w().call(name, low.ty, &[high, low, amount]);
        if inst.has("wrap") {
            return Ok(moved);
        }
        let is_whole = self.w().compare("icmp ugt", amount, &constant(amount.ty, 31));
        Ok(self.w().select(&is_whole, if is_left { low } else { high }, &moved))
    }

    fn bit_count(&mut self, inst: &Inst, ty: ScalarType, lanes: u32) -> Result<Val, LowerError> {
        let a = self.get(self.op(inst, 1)?, Elem::int(ty.bits()), lanes);
        let no_poison = constant(I1, 0);
        Ok(match inst.form.opcode.as_str() {
            "popc" => {
                let count = self.w().call("llvm.ctpop", a.ty, &[&a]);
                self.w().resize(&count, Elem::I32, false)
            }
            "clz" => {
                let count = self.w().call("llvm.ctlz", a.ty, &[&a, &no_poison]);
                self.w().resize(&count, Elem::I32, false)
            }
            "brev" => self.w().call("llvm.bitreverse", a.ty, &[&a]),
            _ => {
                // `bfind`: position of the highest bit that differs from the sign; all ones if
                // there is none.
                let sign = self.w().bin_const("ashr", &a, i128::from(ty.bits()) - 1);
                let folded = if is_signed(ty) { self.w().bin("xor", &a, &sign) } else { a };
                let zeros = self.w().call("llvm.ctlz", folded.ty, &[&folded, &no_poison]);
                let zeros = self.w().resize(&zeros, Elem::I32, false);
                let position = self.w().bin("sub", &constant(zeros.ty, i128::from(ty.bits()) - 1), &zeros);
                if inst.has("shiftamt") {
                    let missing = self.w().compare("icmp slt", &position, &constant(position.ty, 0));
                    self.w().select(&missing, &constant(position.ty, -1), &zeros)
                } else {
                    position
                }
            }
        })
    }

    /// `bfe d, a, pos, len`: position and length are taken modulo 256; bits beyond the value are
    /// its sign, or 0.
    fn extract_field(&mut self, inst: &Inst, ty: ScalarType, lanes: u32) -> Result<Val, LowerError> {
        let signed = is_signed(ty);
        let bits = i128::from(ty.bits());
        let a = self.source(inst, 1, ty, lanes)?;
        let (position, length) = (self.byte_operand(inst, 2, a.ty)?, self.byte_operand(inst, 3, a.ty)?);
        let op = if signed { "ashr" } else { "lshr" };
        let last = constant(a.ty, bits - 1);
        let at = self.w().call("llvm.umin", a.ty, &[&position, &last]);
        let outside = self.w().compare("icmp ugt", &position, &last);
        let moved = self.w().bin(op, &a, &at);
        let sign = if signed { self.w().bin_const("ashr", &a, bits - 1) } else { constant(a.ty, 0) };
        let moved = self.w().select(&outside, &sign, &moved);
        // Truncated to `length` bits by shifting to the top and back; a field that extends over the
        // end already ends in the sign.
        let is_whole = self.w().compare("icmp uge", &length, &constant(a.ty, bits));
        let is_empty = self.w().compare("icmp eq", &length, &constant(a.ty, 0));
        let room = self.w().bin("sub", &constant(a.ty, bits), &length);
        let no_shift = self.w().bin("or", &is_whole, &is_empty);
        let room = self.w().select(&no_shift, &constant(a.ty, 0), &room);
        let top = self.w().bin("shl", &moved, &room);
        let field = self.w().bin(op, &top, &room);
        let value = self.w().select(&is_whole, &moved, &field);
        Ok(self.w().select(&is_empty, &constant(a.ty, 0), &value))
    }

    /// The low eight bits of a 32-bit operand, as the type of the field's value.
    fn byte_operand(&mut self, inst: &Inst, index: usize, ty: Ty) -> Result<Val, LowerError> {
        let value = self.get(self.op(inst, index)?, Elem::I32, ty.lanes);
        let value = self.w().bin_const("and", &value, 255);
        Ok(self.w().resize(&value, ty.elem, false))
    }

    /// `bfi d, a, b, pos, len`: inserts the low bits of a into b.
    fn insert_field(&mut self, inst: &Inst, ty: ScalarType, lanes: u32) -> Result<Val, LowerError> {
        let bits = i128::from(ty.bits());
        let (a, b) = (self.source(inst, 1, ty, lanes)?, self.source(inst, 2, ty, lanes)?);
        let (position, length) = (self.byte_operand(inst, 3, a.ty)?, self.byte_operand(inst, 4, a.ty)?);
        let width = constant(a.ty, bits);
        let is_whole = self.w().compare("icmp uge", &length, &width);
        let safe_length = self.w().select(&is_whole, &constant(a.ty, 0), &length);
        let one = self.w().bin("shl", &constant(a.ty, 1), &safe_length);
        let field = self.w().bin_const("sub", &one, 1);
        let field = self.w().select(&is_whole, &constant(a.ty, -1), &field);
        let outside = self.w().compare("icmp uge", &position, &width);
        let safe_position = self.w().select(&outside, &constant(a.ty, 0), &position);
        let mask = self.w().bin("shl", &field, &safe_position);
        let moved = self.w().bin("shl", &a, &safe_position);
        let inside = self.w().bin("and", &moved, &mask);
        let kept = self.w().bin_const("xor", &mask, -1);
        let kept = self.w().bin("and", &b, &kept);
        let value = self.w().bin("or", &inside, &kept);
        Ok(self.w().select(&outside, &b, &value))
    }

    /// `prmt.b32`: selects four of eight bytes, by a selector or in one of the named modes.
    fn permute_bytes(&mut self, inst: &Inst, lanes: u32) -> Result<Val, LowerError> {
        let mode = PERMUTE_MODES.iter().find(|(name, _)| inst.has(name)).map(|m| m.1);
        let selector = self.op(inst, 3)?.clone();
        let (a, b) = (self.get(self.op(inst, 1)?, Elem::I32, lanes), self.get(self.op(inst, 2)?, Elem::I32, lanes));
        if let Opnd::Imm(Immediate::Int(value)) = selector {
            let nibbles = mode.map_or(value, |rows| rows[(value & 3) as usize]);
            if nibbles & 0x8888 == 0 {
                return Ok(self.pick_bytes(&a, &b, nibbles));
            }
        }
        let mut selector = self.get(&selector, Elem::I32, lanes);
        if let Some(rows) = mode {
            let low = self.w().bin_const("and", &selector, 3);
            selector = constant(low.ty, rows[3]);
            for (number, row) in rows.iter().enumerate().take(3) {
                let is_row = self.w().compare("icmp eq", &low, &constant(low.ty, number as i128));
                selector = self.w().select(&is_row, &constant(low.ty, *row), &selector);
            }
        }
        Ok(self.select_bytes(&a, &b, &selector))
    }

    /// Selection known at compile time: one shuffle.
    fn pick_bytes(&mut self, a: &Val, b: &Val, nibbles: i128) -> Val {
        let bytes = Ty { elem: Elem::I8, lanes: a.ty.lanes * 4 };
        let [x, y] = [a, b].map(|v| self.w().value(bytes, format_args!("bitcast {v} to {bytes}")));
        let pattern: Vec<u32> = (0..bytes.lanes)
            .map(|i| {
                let nibble = (nibbles >> (4 * (i % 4)) & 7) as u32;
                let source = if nibble < 4 { 0 } else { bytes.lanes };
                source + i / 4 * 4 + nibble % 4
            })
            .collect();
        let picked = self.w().shuffle2(&x, &y, &pattern);
        self.w().value(a.ty, format_args!("bitcast {picked} to {}", a.ty))
    }

    /// Selection by a selector per lane; the fourth bit of a nibble replicates the sign.
    fn select_bytes(&mut self, a: &Val, b: &Val, selector: &Val) -> Val {
        let (a, b) = (self.w().resize(a, Elem::I64, false), self.w().resize(b, Elem::I64, false));
        let b = self.w().bin_const("shl", &b, 32);
        let both = self.w().bin("or", &a, &b);
        let mut sum = constant(selector.ty, 0);
        for byte in 0..4 {
            let pick = self.w().bin_const("lshr", selector, 4 * byte);
            let index = self.w().bin_const("and", &pick, 7);
            let amount = self.w().bin_const("shl", &index, 3);
            let amount = self.w().resize(&amount, Elem::I64, false);
            let moved = self.w().bin("lshr", &both, &amount);
            let value = self.w().resize(&moved, Elem::I8, false);
            let sign = self.w().bin_const("ashr", &value, 7);
            let replicate = self.w().bin_const("and", &pick, 8);
            let replicate = self.w().compare("icmp ne", &replicate, &constant(replicate.ty, 0));
            let value = self.w().select(&replicate, &sign, &value);
            let value = self.w().resize(&value, Elem::I32, false);
            let value = self.w().bin_const("shl", &value, 8 * byte);
            sum = self.w().bin("or", &sum, &value);
        }
        sum
    }

    /// All ones shifted left; 0 for positions from the width on.
    fn ones_from(&mut self, position: &Val) -> Val {
        let clamped = self.w().bin_const("and", position, 31);
        let ones = self.w().bin("shl", &constant(position.ty, -1), &clamped);
        let is_inside = self.w().compare("icmp ult", position, &constant(position.ty, 32));
        self.w().select(&is_inside, &ones, &constant(position.ty, 0))
    }

    /// `bmsk.mode.b32 d, a, b`: b ones from position a on.
    fn field_mask(&mut self, inst: &Inst, lanes: u32) -> Result<Val, LowerError> {
        let (a, b) = (self.get(self.op(inst, 1)?, Elem::I32, lanes), self.get(self.op(inst, 2)?, Elem::I32, lanes));
        let (start, width) = if inst.has("wrap") {
            (self.w().bin_const("and", &a, 31), self.w().bin_const("and", &b, 31))
        } else {
            // All positions above 31 are equivalent when clamped; the sum does not overflow.
            let last = constant(a.ty, 32);
            (self.w().call("llvm.umin", a.ty, &[&a, &last]), self.w().call("llvm.umin", b.ty, &[&b, &last]))
        };
        let end = self.w().bin("add", &start, &width);
        let (from_start, from_end) = (self.ones_from(&start), self.ones_from(&end));
        let inside = self.w().bin_const("xor", &from_end, -1);
        Ok(self.w().bin("and", &from_start, &inside))
    }

    /// `szext.mode.type d, a, b`: the low b bits, sign- or zero-extended.
    fn extend_field(&mut self, inst: &Inst, ty: ScalarType, lanes: u32) -> Result<Val, LowerError> {
        let (a, b) = (self.get(self.op(inst, 1)?, Elem::I32, lanes), self.get(self.op(inst, 2)?, Elem::I32, lanes));
        let width = self.w().bin_const("and", &b, 31);
        let is_empty = self.w().compare("icmp eq", &width, &constant(width.ty, 0));
        let room = self.w().bin("sub", &constant(width.ty, 32), &width);
        let room = self.w().bin_const("and", &room, 31);
        let top = self.w().bin("shl", &a, &room);
        let field = self.w().bin(if is_signed(ty) { "ashr" } else { "lshr" }, &top, &room);
        let field = self.w().select(&is_empty, &constant(a.ty, 0), &field);
        if inst.has("wrap") {
            return Ok(field);
        }
        let is_whole = self.w().compare("icmp ugt", &b, &constant(b.ty, 31));
        Ok(self.w().select(&is_whole, &a, &field))
    }

    /// `fns.b32 d, mask, base, offset`: starts at the base, searches upwards (downwards for a
    /// negative offset), and returns the position of the |offset|-th set bit.
    fn find_set_bit(&mut self, inst: &Inst, lanes: u32) -> Result<Val, LowerError> {
        let mut operands = Vec::new();
        for index in 1..4 {
            operands.push(self.get(self.op(inst, index)?, Elem::I32, lanes));
        }
        let [mask, base, offset] = &operands[..] else { return Err(self.malformed(inst, "has too few operands")) };
        let (ty, zero) = (mask.ty, constant(mask.ty, 0));
        // Searching backwards equals searching forwards in the reversed word.
        let is_back = self.w().compare("icmp slt", offset, &zero);
        let reversed = self.w().call("llvm.bitreverse", ty, &[mask]);
        let word = self.w().select(&is_back, &reversed, mask);
        let mirrored = self.w().bin("sub", &constant(ty, 31), base);
        let start = self.w().select(&is_back, &mirrored, base);
        let from_start = self.ones_from(&start);
        let mut left = self.w().bin("and", &word, &from_start);
        // An offset of 0 tests the bit at the base itself.
        let at_base = self.w().bin_const("and", &start, 31);
        let only = self.w().bin("shl", &constant(ty, 1), &at_base);
        let only = self.w().bin("and", &left, &only);
        let is_here = self.w().compare("icmp eq", offset, &zero);
        left = self.w().select(&is_here, &only, &left);
        let distance = self.w().call("llvm.abs", ty, &[offset, &constant(I1, 0)]);
        for skipped in 1..32 {
            let below = self.w().bin_const("sub", &left, 1);
            let rest = self.w().bin("and", &left, &below);
            let skips = self.w().compare("icmp ugt", &distance, &constant(ty, skipped));
            left = self.w().select(&skips, &rest, &left);
        }
        let position = self.w().call("llvm.cttz", ty, &[&left, &constant(I1, 0)]);
        let back = self.w().bin("sub", &constant(ty, 31), &position);
        let position = self.w().select(&is_back, &back, &position);
        // No set bit is more than 32 bits away.
        let is_far = self.w().compare("icmp ugt", &distance, &constant(ty, 32));
        let is_missing = self.w().compare("icmp eq", &left, &zero);
        let is_missing = self.w().bin("or", &is_missing, &is_far);
        Ok(self.w().select(&is_missing, &constant(ty, -1), &position))
    }
}
