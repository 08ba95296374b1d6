//! `cvt` between integers, floats, halves and tf32; [`quarter`](super::quarter) has the 8-bit
//! floats.
//!
//! Conversion to an integer saturates if the value is out of range; NaN becomes 0.

use super::half::is_brain;
use super::rounding::{Rounded, Rounding};
use super::*;
use atoll_lower::program::{elem_of, is_signed};
use atoll_ptx::ScalarType;

impl<E: Emit> Arithmetic<'_, E> {
    /// `cvt.to.from d, a` or `cvt.to.from d, a, b`
    pub fn cvt(&mut self, inst: &Inst) -> Result<(), LowerError> {
        if let Some(done) = self.cvt_quarter(inst) {
            return done;
        }
        if inst.has("pack") {
            return self.cvt_pack(inst);
        }
        let types: Vec<ScalarType> = inst.form.modifiers.iter().filter_map(|m| ScalarType::from_name(m)).collect();
        let [to, from] = types[..] else { return Err(self.malformed(inst, "needs two types")) };
        let lanes = self.lanes_of(inst);
        match (to, from, inst.ops.len()) {
            (ScalarType::F16x2 | ScalarType::Bf16x2, ScalarType::F32, 3) => return self.pack_halves(inst, to, lanes),
            (ScalarType::Tf32, ScalarType::F32, 2) => return self.tensor_float(inst, lanes),
            (_, _, 2) if is_scalar(to) && is_scalar(from) => {}
            _ => return Err(self.unsupported(inst, "")),
        }
        let value = match (is_float(to), is_float(from)) {
            (false, false) => self.int_to_int(inst, to, from, lanes)?,
            (true, false) => {
                let value = self.int_to_float(inst, to, from, lanes)?;
                self.finished(inst, value, to)
            }
            (false, true) => self.float_to_int(inst, to, from, lanes)?,
            (true, true) => self.float_to_float(inst, to, from, lanes)?,
        };
        self.set_operand(&inst.ops[0], &value, is_signed(to));
        Ok(())
    }

    /// `cvt.rn.f16x2.f32 d, a, b`: a goes to the upper half.
    fn pack_halves(&mut self, inst: &Inst, to: ScalarType, lanes: u32) -> Result<(), LowerError> {
        let mut halves = Vec::new();
        for index in [2, 1] {
            let value = self.get(self.op(inst, index)?, Elem::F32, lanes);
            halves.push(self.finished(inst, value, to));
        }
        let value = self.join_halves(&halves[0], &halves[1]);
        self.set_operand(&inst.ops[0], &value, false);
        Ok(())
    }

    /// `cvt.tf32.f32`: 10 bits of fraction are kept; `.rna` rounds halfway cases away from zero.
    fn tensor_float(&mut self, inst: &Inst, lanes: u32) -> Result<(), LowerError> {
        const LOST_BITS: i128 = 13;
        let value = self.get(self.op(inst, 1)?, Elem::F32, lanes);
        let value = self.saturated(inst, value);
        let bits = self.w().cast("bitcast", &value, Elem::I32);
        let half = 1i128 << (LOST_BITS - 1);
        let rounded = if inst.has("rna") {
            self.w().bin_const("add", &bits, half)
        } else if inst.has("rz") {
            bits.clone()
        } else {
            let odd = self.w().bin_const("lshr", &bits, LOST_BITS);
            let odd = self.w().bin_const("and", &odd, 1);
            let rounded = self.w().bin_const("add", &bits, half - 1);
            self.w().bin("add", &rounded, &odd)
        };
        let kept = self.w().bin_const("and", &rounded, -(1 << LOST_BITS));
        // A carry cannot turn an infinity into another value, but a NaN must be preserved.
        let is_nan = self.w().compare("fcmp uno", &value, &value);
        let kept = self.w().select(&is_nan, &constant(bits.ty, 0x7fff_e000), &kept);
        let kept = if inst.has("satfinite") { self.made_finite(&kept, 0x7f80_0000, 1 << LOST_BITS) } else { kept };
        self.set_operand(&inst.ops[0], &kept, false);
        Ok(())
    }

    fn int_to_int(&mut self, inst: &Inst, to: ScalarType, from: ScalarType, lanes: u32) -> Result<Val, LowerError> {
        let operand = self.op(inst, 1)?;
        if !inst.has("sat") {
            return Ok(self.extended(operand, from, Elem::int(to.bits()), lanes));
        }
        // One bit more than the wider type holds both ranges.
        let wide = if to.bits().max(from.bits()) >= 64 { Elem::I128 } else { Elem::I64 };
        let value = self.get(operand, Elem::int(from.bits()), lanes);
        let value = self.w().resize(&value, wide, is_signed(from));
        let (low, high) = match is_signed(to) {
            true => (-(1i128 << (to.bits() - 1)), (1i128 << (to.bits() - 1)) - 1),
            false => (0, (1i128 << to.bits()) - 1),
        };
        let value = self.w().call("llvm.smax", value.ty, &[&value, &constant(value.ty, low)]);
        let value = self.w().call("llvm.smin", value.ty, &[&value, &constant(value.ty, high)]);
        Ok(self.w().resize(&value, Elem::int(to.bits()), false))
    }

    /// An integer as a float or double that can be rounded correctly to the target type.
    fn int_to_float(&mut self, inst: &Inst, to: ScalarType, from: ScalarType, lanes: u32) -> Result<Val, LowerError> {
        let operand = self.op(inst, 1)?;
        let value = self.get(operand, Elem::int(from.bits()), lanes);
        let (op, signed) = if is_signed(from) { ("sitofp", true) } else { ("uitofp", false) };
        let rounding = Rounding::of(inst);
        let is_plain = rounding == Rounding::Nearest && matches!(to, ScalarType::F32 | ScalarType::F64);
        if is_plain {
            return Ok(self.w().cast(op, &value, elem_of(to)));
        }
        if from.bits() <= 32 {
            return Ok(self.w().cast(op, &value, Elem::F64));
        }
        if rounding == Rounding::Nearest {
            let value = self.short_enough(&value, signed);
            return Ok(value);
        }
        // The two halves are exact as doubles. Their sum is rounded, and once more in the same mode
        // if the target is narrower.
        let high = self.w().bin_const(if signed { "ashr" } else { "lshr" }, &value, 32);
        let low = self.w().bin_const("and", &value, u32::MAX.into());
        let (high, low) = (self.w().cast(op, &high, Elem::F64), self.w().cast("uitofp", &low, Elem::F64));
        let high = self.w().bin("fmul", &high, &constant(high.ty, ((1u64 << 32) as f64).to_bits().into()));
        Ok(self.rounded(Rounded::Add, rounding, &[&high, &low]))
    }

    /// A 64-bit integer as a double, rounded to odd if it is not exact.
    fn short_enough(&mut self, value: &Val, signed: bool) -> Val {
        const LOW: i128 = 16;
        let shift = if signed { "ashr" } else { "lshr" };
        let high = self.w().bin_const(shift, value, LOW);
        let low = self.w().bin_const("and", value, (1 << LOW) - 1);
        let sticky = self.w().compare("icmp ne", &low, &constant(low.ty, 0));
        let sticky = self.w().resize(&sticky, Elem::I64, false);
        let odd = self.w().bin("or", &high, &sticky);
        let convert = if signed { "sitofp" } else { "uitofp" };
        let odd = self.w().cast(convert, &odd, Elem::F64);
        let large = self.w().bin("fmul", &odd, &constant(odd.ty, ((1u64 << LOW) as f64).to_bits().into()));
        let plain = self.w().cast(convert, value, Elem::F64);
        let magnitude = self.w().call("llvm.fabs", plain.ty, &[&plain]);
        let is_large =
            self.w().compare("fcmp ogt", &magnitude, &constant(magnitude.ty, ((1u64 << 40) as f64).to_bits().into()));
        self.w().select(&is_large, &large, &plain)
    }

    fn float_to_int(&mut self, inst: &Inst, to: ScalarType, from: ScalarType, lanes: u32) -> Result<Val, LowerError> {
        let value = self.read_float(inst, from, lanes)?;
        let value = self.integral(inst, &value);
        let op = if is_signed(to) { "llvm.fptosi.sat" } else { "llvm.fptoui.sat" };
        let result = value.ty.with(Elem::int(to.bits()));
        let name = format!("{op}.{}.{}", result.mangled(), value.ty.mangled());
        Ok(self.w().call_named(&name, result, &[&value]))
    }

    fn float_to_float(&mut self, inst: &Inst, to: ScalarType, from: ScalarType, lanes: u32) -> Result<Val, LowerError> {
        let mut value = self.read_float(inst, from, lanes)?;
        if ["rni", "rzi", "rmi", "rpi"].iter().any(|m| inst.has(m)) {
            value = self.integral(inst, &value);
        }
        Ok(self.finished(inst, value, to))
    }

    /// The source as a float or double, flushed if the instruction flushes it.
    fn read_float(&mut self, inst: &Inst, from: ScalarType, lanes: u32) -> Result<Val, LowerError> {
        let operand = self.op(inst, 1)?.clone();
        Ok(match from {
            ScalarType::F16 | ScalarType::Bf16 => self.halves(&operand, from, lanes, false).remove(0),
            // `.ftz` applies to single precision only.
            _ => self.float_operand(&operand, from, lanes, inst.has("ftz") && from == ScalarType::F32),
        })
    }

    /// Clamps a float or double according to the modifiers and rounds it to the bits of a type (or
    /// of one half of a pair).
    fn finished(&mut self, inst: &Inst, value: Val, to: ScalarType) -> Val {
        let rounding = Rounding::of(inst);
        let value = match (to, value.ty.elem) {
            (ScalarType::F64, _) => self.w().cast("fpext", &value, Elem::F64),
            (ScalarType::F32, Elem::F64) => self.rounded(Rounded::Narrow, rounding, &[&value]),
            (ScalarType::F32, _) => value,
            (_, Elem::F64) if rounding == Rounding::Nearest => self.narrow_to_odd(&value),
            (_, Elem::F64) => self.rounded(Rounded::Narrow, rounding, &[&value]),
            _ => value,
        };
        let value = if inst.has("ftz") && to == ScalarType::F32 { self.flush(&value) } else { value };
        let value = self.saturated(inst, value);
        let half = match to {
            ScalarType::F32 | ScalarType::F64 => return value,
            _ if rounding == Rounding::Nearest => {
                let value = self.0.before_half(&value);
                self.float_to_half(&value, to)
            }
            _ if is_brain(to) => self.brain_directed(&value, rounding),
            _ => self.0.half_directed(&value, rounding),
        };
        let infinity = if is_brain(to) { 0x7f80 } else { 0x7c00 };
        if inst.has("satfinite") { self.made_finite(&half, infinity, 1) } else { half }
    }

    /// `.satfinite`: the bits of a float in which infinities are replaced by the largest finite
    /// number, `step` below them.
    fn made_finite(&mut self, bits: &Val, infinity: i128, step: i128) -> Val {
        let elem_bits = bits.ty.elem.bits();
        let magnitude = self.w().bin_const("and", bits, (1 << (elem_bits - 1)) - 1);
        let is_infinite = self.w().compare("icmp eq", &magnitude, &constant(bits.ty, infinity));
        let largest = self.w().bin_const("sub", bits, step);
        self.w().select(&is_infinite, &largest, bits)
    }

    /// Converts a float to bf16 in a directed mode: truncates, and adds one unit in the last place
    /// if the mode rounds away from zero.
    fn brain_directed(&mut self, value: &Val, rounding: Rounding) -> Val {
        let bits = self.w().cast("bitcast", value, Elem::I32);
        let away = match rounding {
            Rounding::Up => self.w().compare("icmp sge", &bits, &constant(bits.ty, 0)),
            Rounding::Down => self.w().compare("icmp slt", &bits, &constant(bits.ty, 0)),
            Rounding::Zero | Rounding::Nearest => constant(bits.ty.with(Elem::I1), 0),
        };
        let up = self.w().bin_const("add", &bits, 0xffff);
        let rounded = self.w().select(&away, &up, &bits);
        self.upper_half(value, &rounded)
    }

    /// Rounds to an integral value according to the modifiers, towards zero by default.
    fn integral(&mut self, inst: &Inst, value: &Val) -> Val {
        let op = if inst.has("rni") {
            "llvm.roundeven"
        } else if inst.has("rmi") {
            "llvm.floor"
        } else if inst.has("rpi") {
            "llvm.ceil"
        } else {
            "llvm.trunc"
        };
        self.w().call(op, value.ty, &[value])
    }
}

fn is_float(ty: ScalarType) -> bool {
    matches!(ty, ScalarType::F16 | ScalarType::Bf16 | ScalarType::F32 | ScalarType::F64)
}

fn is_scalar(ty: ScalarType) -> bool {
    !matches!(ty, ScalarType::F16x2 | ScalarType::Bf16x2 | ScalarType::Tf32 | ScalarType::Pred | ScalarType::B128)
}
