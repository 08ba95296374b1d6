//! f16 and bf16, single and in pairs: computed in a wider type and rounded once.
//!
//! Sums, differences and products of f16 are computed in single precision. Rounding such a result
//! once more gives the correctly rounded half; the same holds for sums and differences of bf16. It
//! does not hold for a fused multiply-add, nor for a product of bf16, whose exponent range is that
//! of single precision. Those results are first rounded to odd.

use super::*;
use crate::writer::float;
use atoll_lower::program::Opnd;
use atoll_ptx::ScalarType;

/// The smallest normal f16.
const F16_MIN_POSITIVE: f32 = 6.103_515_6e-5;

/// Whether a type is bf16 or a pair of bf16.
pub(super) fn is_brain(ty: ScalarType) -> bool {
    matches!(ty, ScalarType::Bf16 | ScalarType::Bf16x2)
}

impl<E: Emit> Arithmetic<'_, E> {
    /// Lowers an instruction on halves or pairs of halves.
    pub(super) fn half(&mut self, inst: &Inst, ty: ScalarType) -> Result<(), LowerError> {
        let lanes = self.lanes_of(inst);
        let ftz = inst.has("ftz");
        if let Some(mode) = ["rz", "rm", "rp"].into_iter().find(|m| inst.has(m)) {
            return Err(self.unsupported(inst, &format!("rounding mode .{mode}")));
        }
        let mut operands = Vec::new();
        for operand in inst.ops.iter().skip(1) {
            operands.push(self.halves(operand, ty, lanes, ftz));
        }
        let parts = operands.first().map_or(0, Vec::len);
        let mut results = Vec::new();
        for part in 0..parts {
            let arguments: Vec<Val> = operands.iter().map(|o| o[part].clone()).collect();
            let value = self.compute_half(inst, ty, &arguments)?;
            let value = self.saturated(inst, value);
            let bits = self.float_to_half(&value, ty);
            results.push(if ftz { self.flush_half(&bits, ty) } else { bits });
        }
        let value = match results.as_slice() {
            [low, high] => self.join_halves(low, high),
            [one] => one.clone(),
            _ => return Err(self.malformed(inst, "has too few operands")),
        };
        self.set_operand(&inst.ops[0], &value, false);
        Ok(())
    }

    /// An operand as floats: one, or two for a pair.
    pub fn halves(&mut self, operand: &Opnd, ty: ScalarType, lanes: u32, ftz: bool) -> Vec<Val> {
        let bits = if ty.bits() == 16 {
            vec![self.get(operand, Elem::I16, lanes)]
        } else {
            let pair = self.get(operand, Elem::I32, lanes);
            let high = self.w().bin_const("lshr", &pair, 16);
            [pair, high].iter().map(|b| self.w().resize(b, Elem::I16, false)).collect()
        };
        let mut values = Vec::new();
        for bits in bits {
            let value = self.half_to_float(&bits, ty);
            let least = if is_brain(ty) { f32::MIN_POSITIVE } else { F16_MIN_POSITIVE };
            values.push(if ftz { self.flush_below(&value, &float(value.ty, least)) } else { value });
        }
        values
    }

    /// The bits of a half, with subnormal numbers flushed.
    fn flush_half(&mut self, bits: &Val, ty: ScalarType) -> Val {
        let exponent = self.w().bin_const("and", bits, if is_brain(ty) { 0x7f80 } else { 0x7c00 });
        let is_small = self.w().compare("icmp eq", &exponent, &constant(bits.ty, 0));
        let sign = self.w().bin_const("and", bits, 0x8000);
        self.w().select(&is_small, &sign, bits)
    }

    fn compute_half(&mut self, inst: &Inst, ty: ScalarType, arguments: &[Val]) -> Result<Val, LowerError> {
        Ok(match (inst.form.opcode.as_str(), arguments) {
            ("add", [a, b]) => self.w().bin("fadd", a, b),
            ("sub", [a, b]) => self.w().bin("fsub", a, b),
            ("mul", [a, b]) if is_brain(ty) => {
                let zero = float(a.ty, -0.0);
                self.fused_brain(a, b, &zero)
            }
            ("mul", [a, b]) => {
                let product = self.w().bin("fmul", a, b);
                self.0.before_half(&product)
            }
            ("fma", [a, b, c]) if is_brain(ty) => self.fused_brain(a, b, c),
            ("fma", [a, b, c]) => self.fused_half(a, b, c),
            ("min" | "max", [first, rest @ ..]) if !rest.is_empty() => {
                rest.iter().fold(first.clone(), |sum, next| self.extreme(inst, &sum, next))
            }
            ("abs", [a]) => self.w().call("llvm.fabs", a.ty, &[a]),
            ("neg", [a]) => self.w().value(a.ty, format_args!("fneg {a}")),
            ("ex2" | "tanh", [a]) => self.transcendental(inst, a)?,
            _ => return Err(self.unsupported(inst, "")),
        })
    }

    /// a · b + c of f16, rounded to odd in single precision, where the product is exact.
    fn fused_half(&mut self, a: &Val, b: &Val, c: &Val) -> Val {
        let product = self.w().bin("fmul", a, b);
        let sum = self.w().bin("fadd", &product, c);
        let error = self.sum_error(&product, c, &sum);
        self.make_odd(&sum, &error)
    }

    /// The same for bf16, in double precision.
    fn fused_brain(&mut self, a: &Val, b: &Val, c: &Val) -> Val {
        let [a, b, c] = [a, b, c].map(|x| self.w().cast("fpext", x, Elem::F64));
        let sum = self.fused_half(&a, &b, &c);
        self.narrow_to_odd(&sum)
    }

    /// Packs two 16-bit halves into a 32-bit integer.
    pub fn join_halves(&mut self, low: &Val, high: &Val) -> Val {
        let (low, high) = (self.w().resize(low, Elem::I32, false), self.w().resize(high, Elem::I32, false));
        let high = self.w().bin_const("shl", &high, 16);
        self.w().bin("or", &low, &high)
    }

    /// Converts the bits of an f16 or bf16 to a float.
    pub fn half_to_float(&mut self, bits: &Val, ty: ScalarType) -> Val {
        if is_brain(ty) {
            let wide = self.w().resize(bits, Elem::I32, false);
            let top = self.w().bin_const("shl", &wide, 16);
            return self.w().cast("bitcast", &top, Elem::F32);
        }
        let half = self.w().cast("bitcast", bits, Elem::F16);
        self.w().cast("fpext", &half, Elem::F32)
    }

    /// Rounds a float to the bits of an f16 or bf16, to nearest even.
    pub fn float_to_half(&mut self, value: &Val, ty: ScalarType) -> Val {
        if is_brain(ty) {
            let bits = self.w().cast("bitcast", value, Elem::I32);
            let odd = self.w().bin_const("lshr", &bits, 16);
            let odd = self.w().bin_const("and", &odd, 1);
            let rounded = self.w().bin_const("add", &bits, 0x7fff);
            let rounded = self.w().bin("add", &rounded, &odd);
            return self.upper_half(value, &rounded);
        }
        let half = self.w().cast("fptrunc", value, Elem::F16);
        self.w().cast("bitcast", &half, Elem::I16)
    }

    /// The upper halves of rounded bits, or NaN if the value is NaN.
    pub(super) fn upper_half(&mut self, value: &Val, rounded: &Val) -> Val {
        let is_nan = self.w().compare("fcmp uno", value, value);
        let chosen = self.w().select(&is_nan, &constant(rounded.ty, 0x7fff_0000), rounded);
        let top = self.w().bin_const("lshr", &chosen, 16);
        self.w().resize(&top, Elem::I16, false)
    }
}
