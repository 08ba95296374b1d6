//! Floating-point arithmetic. Half precision is computed in single precision and rounded once.

use super::*;
use crate::llvm::float;
use crate::program::elem_of;
use atoll_ptx::ScalarType;

impl Emitter<'_> {
    /// Lowers a floating-point instruction.
    pub(super) fn float(&mut self, inst: &Inst) -> Result<(), HostError> {
        if let Some(mode) = inst.form.modifiers.iter().find(|m| matches!(m.as_str(), "rz" | "rm" | "rp")) {
            return Err(self.unsupported(inst, &format!("rounding mode .{mode}")));
        }
        let ty = self.ty_of(inst)?;
        let lanes = self.lanes_of(inst);
        if inst.form.opcode == "testp" {
            return self.test(inst, ty, lanes);
        }
        let mut halves = Vec::new();
        for index in 1..inst.ops.len() {
            let operand = self.op(inst, index)?.clone();
            halves.push(self.unpacked(&operand, ty, lanes));
        }
        let parts = halves.first().map_or(0, Vec::len);
        let mut results = Vec::new();
        for part in 0..parts {
            let arguments: Vec<Val> = halves.iter().map(|h| h[part].clone()).collect();
            let value = self.compute(inst, &arguments)?;
            results.push(self.finished(inst, value));
        }
        let value = self.packed(&results, ty);
        self.set_operand(&inst.ops[0], &value, false);
        Ok(())
    }

    /// An operand as the numbers to compute with: one, or two for a packed type.
    fn unpacked(&mut self, operand: &crate::program::Opnd, ty: ScalarType, lanes: u32) -> Vec<Val> {
        match ty {
            ScalarType::F32 | ScalarType::F64 => vec![self.get(operand, elem_of(ty), lanes)],
            ScalarType::F16 | ScalarType::Bf16 => {
                let bits = self.get(operand, Elem::I16, lanes);
                vec![self.half_to_float(&bits, ty)]
            }
            _ => {
                let bits = self.get(operand, Elem::I32, lanes);
                let high = self.w.bin_const("lshr", &bits, 16);
                [bits, high]
                    .iter()
                    .map(|b| self.w.resize(b, Elem::I16, false))
                    .map(|b| (b, ty))
                    .collect::<Vec<_>>()
                    .into_iter()
                    .map(|(b, ty)| self.half_to_float(&b, ty))
                    .collect()
            }
        }
    }

    /// The opposite of `unpacked`.
    fn packed(&mut self, values: &[Val], ty: ScalarType) -> Val {
        match (ty, values) {
            (ScalarType::F32 | ScalarType::F64, [value]) => value.clone(),
            (_, [value]) => self.float_to_half(value, ty),
            (_, [low, high, ..]) => {
                let (low, high) = (self.float_to_half(low, ty), self.float_to_half(high, ty));
                self.join_halves(&low, &high)
            }
            (_, []) => constant(I32, 0),
        }
    }

    /// Two 16-bit halves as one 32-bit number.
    pub(super) fn join_halves(&mut self, low: &Val, high: &Val) -> Val {
        let (low, high) = (self.w.resize(low, Elem::I32, false), self.w.resize(high, Elem::I32, false));
        let high = self.w.bin_const("shl", &high, 16);
        self.w.bin("or", &low, &high)
    }

    /// The bits of an f16 or bf16 as a float.
    pub(super) fn half_to_float(&mut self, bits: &Val, ty: ScalarType) -> Val {
        if matches!(ty, ScalarType::Bf16 | ScalarType::Bf16x2) {
            let wide = self.w.resize(bits, Elem::I32, false);
            let top = self.w.bin_const("shl", &wide, 16);
            return self.w.cast("bitcast", &top, Elem::F32);
        }
        let half = self.w.cast("bitcast", bits, Elem::F16);
        self.w.cast("fpext", &half, Elem::F32)
    }

    /// A float rounded to the bits of an f16 or bf16, to nearest even.
    pub(super) fn float_to_half(&mut self, value: &Val, ty: ScalarType) -> Val {
        if matches!(ty, ScalarType::Bf16 | ScalarType::Bf16x2) {
            let bits = self.w.cast("bitcast", value, Elem::I32);
            let odd = self.w.bin_const("lshr", &bits, 16);
            let odd = self.w.bin_const("and", &odd, 1);
            let rounded = self.w.bin_const("add", &bits, 0x7fff);
            let rounded = self.w.bin("add", &rounded, &odd);
            let is_nan = self.w.compare("fcmp uno", value, value);
            let chosen = self.w.select(&is_nan, &constant(bits.ty, 0x7fff_0000), &rounded);
            let top = self.w.bin_const("lshr", &chosen, 16);
            return self.w.resize(&top, Elem::I16, false);
        }
        let half = self.w.cast("fptrunc", value, Elem::F16);
        self.w.cast("bitcast", &half, Elem::I16)
    }

    /// The operation itself, on floats or doubles.
    fn compute(&mut self, inst: &Inst, arguments: &[Val]) -> Result<Val, HostError> {
        let w = &mut self.w;
        let first = arguments.first().map_or(Ty::scalar(Elem::F32), |a| a.ty);
        let one = match first.elem {
            Elem::F64 => constant(first, 1f64.to_bits().into()),
            _ => float(first, 1.0),
        };
        Ok(match (inst.form.opcode.as_str(), arguments) {
            ("add", [a, b]) => w.bin("fadd", a, b),
            ("sub", [a, b]) => w.bin("fsub", a, b),
            ("mul", [a, b]) => w.bin("fmul", a, b),
            ("div", [a, b]) => w.bin("fdiv", a, b),
            ("fma" | "mad", [a, b, c]) => w.call("llvm.fma", a.ty, &[a, b, c]),
            ("rcp", [a]) => w.bin("fdiv", &one, a),
            ("sqrt", [a]) => w.call("llvm.sqrt", a.ty, &[a]),
            ("rsqrt", [a]) => {
                let root = w.call("llvm.sqrt", a.ty, &[a]);
                w.bin("fdiv", &one, &root)
            }
            ("min", [a, b]) => w.call(if inst.has("NaN") { "llvm.minimum" } else { "llvm.minnum" }, a.ty, &[a, b]),
            ("max", [a, b]) => w.call(if inst.has("NaN") { "llvm.maximum" } else { "llvm.maxnum" }, a.ty, &[a, b]),
            ("abs", [a]) => w.call("llvm.fabs", a.ty, &[a]),
            ("neg", [a]) => w.value(a.ty, format_args!("fneg {a}")),
            // PTX: the sign of a on the magnitude of b.
            ("copysign", [a, b]) => w.call("llvm.copysign", a.ty, &[b, a]),
            ("ex2" | "lg2" | "sin" | "cos" | "tanh", [a]) if a.ty.elem == Elem::F32 => {
                let routine = math::Routine::of(inst.form.opcode.as_str(), a.ty.lanes);
                let routine = routine.ok_or_else(|| self.unsupported(inst, ""))?;
                self.math.insert(routine);
                return Ok(self.w.call_named(&routine.symbol(), a.ty, &[a]));
            }
            _ => return Err(self.unsupported(inst, "")),
        })
    }

    /// `.sat` and `.relu`.
    pub(super) fn finished(&mut self, inst: &Inst, value: Val) -> Val {
        let zero = constant(value.ty, 0);
        if inst.has("relu") {
            return self.w.call("llvm.maxnum", value.ty, &[&value, &zero]);
        }
        if !inst.has("sat") {
            return value;
        }
        let one = match value.ty.elem {
            Elem::F64 => constant(value.ty, 1f64.to_bits().into()),
            _ => float(value.ty, 1.0),
        };
        let value = self.w.call("llvm.maxnum", value.ty, &[&value, &zero]);
        self.w.call("llvm.minnum", value.ty, &[&value, &one])
    }

    /// `testp.op p, a`
    fn test(&mut self, inst: &Inst, ty: ScalarType, lanes: u32) -> Result<(), HostError> {
        // Classes of LLVM's is.fpclass: NaNs, infinities, normals, subnormals, zeros.
        let class: u32 = match inst.form.modifiers.first().map(|m| m.as_str()) {
            Some("finite") => 0b01_1111_1000 & !0b10_0000_0100,
            Some("infinite") => 0b10_0000_0100,
            Some("number") => 0b11_1111_1100,
            Some("notanumber") => 0b11,
            Some("normal") => 0b01_0000_1000,
            Some("subnormal") => 0b00_1001_0000,
            _ => return Err(self.unsupported(inst, "")),
        };
        let value = self.get(self.op(inst, 1)?, elem_of(ty), lanes);
        let name = format!("llvm.is.fpclass.{}", value.ty.mangled());
        let holds = self.w.call_named(&name, value.ty.with(Elem::I1), &[&value, &constant(I32, class.into())]);
        self.set_operand(&inst.ops[0], &holds, false);
        Ok(())
    }
}
