//! `cvt` from and to pairs of 8-bit floats: e4m3 (no infinities, one NaN) and e5m2.

use super::*;
use crate::writer::float;
use atoll_ptx::ScalarType;

/// An 8-bit float format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quarter {
    E4m3,
    E5m2,
}

impl Quarter {
    fn of(word: &str) -> Option<Quarter> {
        match word {
            "e4m3x2" => Some(Quarter::E4m3),
            "e5m2x2" => Some(Quarter::E5m2),
            _ => None,
        }
    }

    fn fraction_bits(self) -> i32 {
        if self == Quarter::E4m3 { 3 } else { 2 }
    }

    fn bias(self) -> i32 {
        if self == Quarter::E4m3 { 7 } else { 15 }
    }

    /// The largest finite number.
    fn max(self) -> f32 {
        if self == Quarter::E4m3 { 448.0 } else { 57344.0 }
    }
}

const NAN: i128 = 0x7f;

impl<E: Emit> Arithmetic<'_, E> {
    /// Lowers a conversion from or to an 8-bit float; `None` if it is not one.
    pub(super) fn cvt_quarter(&mut self, inst: &Inst) -> Option<Result<(), LowerError>> {
        let words: Vec<&str> = inst.form.modifiers.iter().map(|m| m.as_str()).collect();
        let at = words.iter().position(|w| Quarter::of(w).is_some())?;
        let quarter = Quarter::of(words[at])?;
        let is_source = at + 1 == words.len();
        let other = if is_source { words[..at].last() } else { words.get(at + 1) };
        let other = other.and_then(|w| ScalarType::from_name(w));
        let lanes = self.lanes_of(inst);
        Some(match (is_source, other, inst.ops.as_slice()) {
            (true, Some(ScalarType::F16x2), [to, from]) => {
                let pair = self.get(from, Elem::I16, lanes);
                let value = self.widen_quarters(inst, quarter, &pair);
                self.set_operand(to, &value, false);
                Ok(())
            }
            (false, Some(ScalarType::F32), [to, high, low]) if inst.has("satfinite") => {
                let values = [low, high].map(|o| self.get(o, Elem::F32, lanes));
                self.write_quarters(inst, quarter, to, &values);
                Ok(())
            }
            (false, Some(ty @ ScalarType::F16x2), [to, from]) if inst.has("satfinite") => {
                let values = self.halves(from, ty, lanes, false);
                self.write_quarters(inst, quarter, to, &values);
                Ok(())
            }
            _ => Err(self.unsupported(inst, "")),
        })
    }

    /// Writes the low and high float to the bytes of a register.
    fn write_quarters(&mut self, inst: &Inst, quarter: Quarter, to: &atoll_lower::program::Opnd, values: &[Val]) {
        let mut bytes = Vec::new();
        for value in values {
            let value = self.saturated(inst, value.clone());
            bytes.push(self.shorten_to_quarter(quarter, &value));
        }
        let high = self.w().bin_const("shl", &bytes[1], 8);
        let both = self.w().bin("or", &bytes[0], &high);
        let both = self.w().resize(&both, Elem::I16, false);
        self.set_operand(to, &both, false);
    }

    /// Rounds a float to the bits of an 8-bit float, to nearest even; numbers that are too large
    /// become the largest finite number.
    fn shorten_to_quarter(&mut self, quarter: Quarter, value: &Val) -> Val {
        let ty = value.ty;
        let magnitude = self.w().call("llvm.fabs", ty, &[value]);
        let magnitude = self.w().call("llvm.minnum", ty, &[&magnitude, &float(ty, quarter.max())]);
        // Adding and subtracting a number whose unit in the last place is the target precision
        // rounds there.
        let bits = self.w().cast("bitcast", &magnitude, Elem::I32);
        let least = constant(bits.ty, i128::from((1 - quarter.bias() + 127) << 23));
        let exponent = self.w().bin_const("and", &bits, 0x7f80_0000);
        let exponent = self.w().call("llvm.umax", bits.ty, &[&exponent, &least]);
        let rounder = self.w().bin_const("add", &exponent, i128::from((23 - quarter.fraction_bits()) << 23));
        let rounder = self.w().bin_const("or", &rounder, 0x40_0000);
        let rounder = self.w().cast("bitcast", &rounder, Elem::F32);
        let sum = self.w().bin("fadd", &magnitude, &rounder);
        let rounded = self.w().bin("fsub", &sum, &rounder);
        // Scaled so that the exponent has the bias of the 8-bit format, subnormal numbers included.
        let scale = f32::from_bits((quarter.bias() as u32) << 23);
        let scaled = self.w().bin("fmul", &rounded, &float(ty, scale));
        let short = self.w().cast("bitcast", &scaled, Elem::I32);
        let short = self.w().bin_const("lshr", &short, i128::from(23 - quarter.fraction_bits()));
        let is_nan = self.w().compare("fcmp uno", value, value);
        let short = self.w().select(&is_nan, &constant(short.ty, NAN), &short);
        let sign = self.w().cast("bitcast", value, Elem::I32);
        let sign = self.w().bin_const("lshr", &sign, 24);
        let sign = self.w().bin_const("and", &sign, 0x80);
        let sign = self.w().select(&is_nan, &constant(sign.ty, 0), &sign);
        self.w().bin("or", &short, &sign)
    }

    /// Converts two bytes to two halves.
    fn widen_quarters(&mut self, inst: &Inst, quarter: Quarter, pair: &Val) -> Val {
        let wide = self.w().resize(pair, Elem::I32, false);
        let mut halves = Vec::new();
        for shift in [0, 8] {
            let byte = self.w().bin_const("lshr", &wide, shift);
            let value = self.widen_quarter(quarter, &byte);
            let value = self.saturated(inst, value);
            halves.push(self.float_to_half(&value, ScalarType::F16));
        }
        self.join_halves(&halves[0], &halves[1])
    }

    /// Converts the lowest byte to a float.
    fn widen_quarter(&mut self, quarter: Quarter, byte: &Val) -> Val {
        let magnitude = self.w().bin_const("and", byte, 0x7f);
        let bits = self.w().bin_const("shl", &magnitude, i128::from(23 - quarter.fraction_bits()));
        let tiny = self.w().cast("bitcast", &bits, Elem::F32);
        let value = self.w().bin("fmul", &tiny, &float(tiny.ty, f32::from_bits((254 - quarter.bias() as u32) << 23)));
        let special = constant(magnitude.ty, if quarter == Quarter::E4m3 { NAN } else { 0x7c });
        let value = match quarter {
            Quarter::E4m3 => {
                let is_nan = self.w().compare("icmp eq", &magnitude, &special);
                self.w().select(&is_nan, &float(value.ty, f32::NAN), &value)
            }
            Quarter::E5m2 => {
                let is_nan = self.w().compare("icmp ugt", &magnitude, &special);
                let value = self.w().select(&is_nan, &float(value.ty, f32::NAN), &value);
                let is_infinite = self.w().compare("icmp eq", &magnitude, &special);
                self.w().select(&is_infinite, &float(value.ty, f32::INFINITY), &value)
            }
        };
        let sign = self.w().bin_const("and", byte, 0x80);
        let is_negative = self.w().compare("icmp ne", &sign, &constant(sign.ty, 0));
        let negative = self.w().value(value.ty, format_args!("fneg {value}"));
        self.w().select(&is_negative, &negative, &value)
    }
}
