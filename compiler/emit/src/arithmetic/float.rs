//! Floating-point arithmetic on f32 and f64; [`half`](super::half) does the 16-bit types.
//!
//! Exactly rounded operations are exact in all four rounding modes; subnormal numbers are kept
//! unless the instruction has `.ftz`. Payload and sign of a NaN may differ from NVIDIA's.

use super::rounding::{Rounded, Rounding};
use super::*;
use crate::writer::{float, intrinsics};
use atoll_lower::program::{Opnd, elem_of};
use atoll_ptx::ScalarType;

impl<E: Emit> Arithmetic<'_, E> {
    /// Lowers a floating-point instruction.
    pub fn float(&mut self, inst: &Inst) -> Result<(), LowerError> {
        let ty = self.ty_of(inst)?;
        if inst.form.modifiers.iter().filter_map(|m| ScalarType::from_name(m)).any(|t| t != ty) {
            return Err(self.unsupported(inst, "operands of different types"));
        }
        if (inst.has("approx") || inst.has("full")) && !has_approximation(inst, ty) {
            return Err(
                self.malformed(inst, "does not exist: PTX has no approximation of this type, or only with `.ftz`")
            );
        }
        match ty {
            _ if inst.form.opcode == "testp" => self.test(inst, ty),
            ScalarType::F32 | ScalarType::F64 => self.single_or_double(inst, ty),
            ScalarType::F16 | ScalarType::F16x2 | ScalarType::Bf16 | ScalarType::Bf16x2 => self.half(inst, ty),
            _ => Err(self.unsupported(inst, "")),
        }
    }

    fn single_or_double(&mut self, inst: &Inst, ty: ScalarType) -> Result<(), LowerError> {
        let lanes = self.lanes_of(inst);
        let mut arguments = Vec::new();
        for operand in inst.ops.iter().skip(1) {
            arguments.push(self.float_operand(operand, ty, lanes, inst.has("ftz")));
        }
        let value = self.compute(inst, &arguments)?;
        let value = if inst.has("ftz") && may_be_subnormal(&inst.form.opcode) { self.flush(&value) } else { value };
        let value = self.saturated(inst, value);
        self.set_operand(&inst.ops[0], &value, false);
        Ok(())
    }

    /// An f32 or f64 operand, flushed if `ftz` is set.
    pub(super) fn float_operand(&mut self, operand: &Opnd, ty: ScalarType, lanes: u32, ftz: bool) -> Val {
        let value = self.get(operand, elem_of(ty), lanes);
        let is_flushed = matches!(operand, Opnd::Reg(reg) if self.0.is_flushed(*reg));
        if ftz && !is_flushed { self.flush(&value) } else { value }
    }

    /// Flushes subnormal numbers to zeros of the same sign: a number with a zero exponent keeps
    /// only its sign.
    pub fn flush(&mut self, value: &Val) -> Val {
        let elem = value.ty.elem;
        let bits = self.w().cast("bitcast", value, Elem::int(elem.bits()));
        let (exponent, sign): (i128, i128) =
            if elem == Elem::F64 { (0x7ff << 52, 1 << 63) } else { (0xff << 23, 1 << 31) };
        let exponent = self.w().bin_const("and", &bits, exponent);
        let has_none = self.w().compare("icmp eq", &exponent, &constant(bits.ty, 0));
        let sign = self.w().bin_const("and", &bits, sign);
        let flushed = self.w().select(&has_none, &sign, &bits);
        self.w().cast("bitcast", &flushed, elem)
    }

    /// Flushes numbers of a magnitude below `least` to zeros of the same sign.
    pub(super) fn flush_below(&mut self, value: &Val, least: &Val) -> Val {
        let magnitude = self.w().call("llvm.fabs", value.ty, &[value]);
        let is_small = self.w().compare("fcmp olt", &magnitude, least);
        let zero = self.w().call("llvm.copysign", value.ty, &[&constant(value.ty, 0), value]);
        self.w().select(&is_small, &zero, value)
    }

    /// The operation itself, on floats or doubles.
    fn compute(&mut self, inst: &Inst, arguments: &[Val]) -> Result<Val, LowerError> {
        if let Some(value) = self.0.approximation(inst, arguments) {
            return Ok(value);
        }
        let opcode = inst.form.opcode.as_str();
        let rounding = Rounding::of(inst);
        let is_single = arguments.first().is_some_and(|a| a.ty.elem == Elem::F32);
        Ok(match (opcode, arguments) {
            ("add", [a, b]) => self.rounded(Rounded::Add, rounding, &[a, b]),
            ("sub", [a, b]) => self.rounded(Rounded::Sub, rounding, &[a, b]),
            ("mul", [a, b]) => self.rounded(Rounded::Mul, rounding, &[a, b]),
            // `.approx` and `.full` allow 2 ulp, but the exact quotient is a single instruction.
            ("div", [a, b]) => self.rounded(Rounded::Div, rounding, &[a, b]),
            ("fma" | "mad", [a, b, c]) => self.rounded(Rounded::Fma, rounding, &[a, b, c]),
            ("rcp", [a]) if inst.has("approx") && !is_single => {
                self.on_upper_half(a, |e, a| e.reciprocal(a, Rounding::Nearest))
            }
            ("rcp", [a]) => self.reciprocal(a, rounding),
            ("sqrt", [a]) => self.rounded(Rounded::Sqrt, rounding, &[a]),
            ("rsqrt", [a]) if !is_single && inst.has("ftz") => self.on_upper_half(a, Self::inverse_root),
            ("rsqrt", [a]) => self.inverse_root(a),
            ("min" | "max", [first, rest @ ..]) if !rest.is_empty() => {
                rest.iter().fold(first.clone(), |sum, next| self.extreme(inst, &sum, next))
            }
            ("abs", [a]) => self.w().call("llvm.fabs", a.ty, &[a]),
            ("neg", [a]) => self.w().value(a.ty, format_args!("fneg {a}")),
            // PTX applies the sign of a to the magnitude of b.
            ("copysign", [a, b]) => self.w().call("llvm.copysign", a.ty, &[b, a]),
            ("ex2" | "lg2" | "sin" | "cos" | "tanh", [a]) if is_single => self.transcendental(inst, a)?,
            _ => return Err(self.unsupported(inst, "")),
        })
    }

    fn one(&self, ty: Ty) -> Val {
        if ty.elem == Elem::F64 { constant(ty, 1f64.to_bits().into()) } else { float(ty, 1.0) }
    }

    fn reciprocal(&mut self, a: &Val, rounding: Rounding) -> Val {
        let one = self.one(a.ty);
        self.rounded(Rounded::Div, rounding, &[&one, a])
    }

    fn inverse_root(&mut self, a: &Val) -> Val {
        let root = self.w().call("llvm.sqrt", a.ty, &[a]);
        self.reciprocal(&root, Rounding::Nearest)
    }

    /// `rcp` and `rsqrt.approx.ftz.f64` use the upper 32 bits of their argument and compute those
    /// of the result.
    fn on_upper_half(&mut self, a: &Val, function: impl Fn(&mut Self, &Val) -> Val) -> Val {
        let upper = |e: &mut Self, value: &Val| {
            let bits = e.w().cast("bitcast", value, Elem::I64);
            let bits = e.w().bin_const("and", &bits, -(1 << 32));
            e.w().cast("bitcast", &bits, Elem::F64)
        };
        let a = upper(self, a);
        let value = function(self, &a);
        upper(self, &value)
    }

    /// ex2, lg2, sin, cos or tanh of floats.
    pub(super) fn transcendental(&mut self, inst: &Inst, a: &Val) -> Result<Val, LowerError> {
        let routine =
            math::Routine::of(inst.form.opcode.as_str(), a.ty.lanes).ok_or_else(|| self.unsupported(inst, ""))?;
        self.0.use_routine(routine);
        Ok(self.w().call_named(&routine.symbol(), a.ty, &[a]))
    }

    /// `min` and `max`: −0 is less than +0; a NaN yields the other operand, or with `.NaN` a NaN.
    /// With `.xorsign.abs`, compares magnitudes and applies the product of the signs.
    pub(super) fn extreme(&mut self, inst: &Inst, a: &Val, b: &Val) -> Val {
        let is_max = inst.form.opcode == "max";
        let of = |e: &mut Self, a: &Val, b: &Val| match inst.has("NaN") {
            true => e.w().call(if is_max { "llvm.maximum" } else { "llvm.minimum" }, a.ty, &[a, b]),
            false => intrinsics::extreme_number(e.w(), is_max, a, b),
        };
        let magnitudes = |e: &mut Self| [a, b].map(|x| e.w().call("llvm.fabs", x.ty, &[x]));
        if inst.has("xorsign") {
            let [x, y] = magnitudes(self);
            let value = of(self, &x, &y);
            let [x, y] = [a, b].map(|v| self.w().cast("bitcast", v, Elem::int(v.ty.elem.bits())));
            let sign = self.w().bin("xor", &x, &y);
            let sign = self.w().cast("bitcast", &sign, a.ty.elem);
            return self.w().call("llvm.copysign", a.ty, &[&value, &sign]);
        }
        if inst.has("abs") {
            let [x, y] = magnitudes(self);
            return of(self, &x, &y);
        }
        of(self, a, b)
    }

    /// `.sat`: clamps to 0..=1, NaN becomes 0. `.relu`: clamps below 0, NaN stays.
    pub(super) fn saturated(&mut self, inst: &Inst, value: Val) -> Val {
        let zero = constant(value.ty, 0);
        if inst.has("relu") {
            return self.w().call("llvm.maximum", value.ty, &[&value, &zero]);
        }
        if !inst.has("sat") {
            return value;
        }
        let one = self.one(value.ty);
        let is_positive = self.w().compare("fcmp ogt", &value, &zero);
        let value = self.w().select(&is_positive, &value, &zero);
        let is_below = self.w().compare("fcmp olt", &value, &one);
        self.w().select(&is_below, &value, &one)
    }

    /// `testp.op p, a`
    fn test(&mut self, inst: &Inst, ty: ScalarType) -> Result<(), LowerError> {
        // Class bits of `llvm.is.fpclass`: NaNs, infinities, normals, subnormals, zeros.
        let class: u32 = match inst.form.modifiers.first().map(|m| m.as_str()) {
            Some("finite") => 0b01_1111_1000,
            Some("infinite") => 0b10_0000_0100,
            Some("number") => 0b11_1111_1100,
            Some("notanumber") => 0b11,
            Some("normal") => 0b01_0000_1000,
            Some("subnormal") => 0b00_1001_0000,
            _ => return Err(self.unsupported(inst, "")),
        };
        let lanes = self.lanes_of(inst);
        let value = self.get(self.op(inst, 1)?, elem_of(ty), lanes);
        let name = format!("llvm.is.fpclass.{}", value.ty.mangled());
        let holds = self.w().call_named(&name, value.ty.with(Elem::I1), &[&value, &constant(I32, class.into())]);
        self.set_operand(&inst.ops[0], &holds, false);
        Ok(())
    }
}

/// Whether PTX has an approximate form of an instruction for a type.
fn has_approximation(inst: &Inst, ty: ScalarType) -> bool {
    match (inst.form.opcode.as_str(), ty) {
        ("div" | "rcp" | "sqrt" | "rsqrt" | "sin" | "cos" | "lg2" | "ex2" | "tanh", ScalarType::F32)
        | ("rsqrt", ScalarType::F64) => true,
        ("rcp", ScalarType::F64) => inst.has("ftz"),
        ("ex2" | "tanh", ScalarType::F16 | ScalarType::F16x2 | ScalarType::Bf16 | ScalarType::Bf16x2) => true,
        _ => false,
    }
}

/// Whether operands that are not subnormal can give a subnormal result.
fn may_be_subnormal(opcode: &str) -> bool {
    !matches!(opcode, "min" | "max" | "abs" | "neg" | "copysign" | "sqrt" | "rsqrt" | "cos")
}
