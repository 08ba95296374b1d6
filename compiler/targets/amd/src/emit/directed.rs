//! Operations in the rounding modes other than to nearest even.
//!
//! f32 is computed in f64, rounded to odd there, and then rounded once to f32 in the requested
//! mode. The basic operations on f64 set the processor's rounding mode around one instruction.
//! Quotients and roots of f64 are sequences of instructions; this target does not support them in
//! these modes.

use super::*;
use atoll_emit::Arithmetic;

/// The encoding of a mode in the processor's MODE register.
fn number(rounding: Rounding) -> u32 {
    match rounding {
        Rounding::Nearest => 0,
        Rounding::Up => 1,
        Rounding::Down => 2,
        Rounding::Zero => 3,
    }
}

/// The names of the modes in PTX.
const MODES: [&str; 3] = ["rz", "rm", "rp"];

impl Emitter<'_> {
    pub(super) fn refuse_directed_quotient(&self, inst: &Inst) -> Result<(), LowerError> {
        let is_sequence = matches!(inst.form.opcode.as_str(), "div" | "rcp" | "sqrt");
        match MODES.iter().find(|mode| inst.has(mode)) {
            Some(mode) if is_sequence && inst.form.ty() == Some(ScalarType::F64) => {
                Err(self.unsupported(inst, &format!("rounding mode .{mode}")))
            }
            _ => Ok(()),
        }
    }

    /// Emits an operation in a rounding mode.
    pub(super) fn rounded_towards(&mut self, op: Rounded, rounding: Rounding, arguments: &[&Val]) -> Val {
        if op == Rounded::Narrow {
            return self.narrow(arguments[0], rounding);
        }
        if arguments[0].ty.elem == Elem::F64 {
            return self.in_mode(op, rounding, arguments);
        }
        let wide: Vec<Val> = arguments.iter().map(|a| self.w.cast("fpext", a, Elem::F64)).collect();
        let exact_or_odd = self.rounded_to_odd(op, &wide);
        let value = self.narrow(&exact_or_odd, rounding);
        if rounding != Rounding::Down || !matches!(op, Rounded::Add | Rounded::Sub | Rounded::Fma) {
            return value;
        }
        self.zero_of_difference(&exact_or_odd, &value, &wide, op)
    }

    /// The sign of a zero sum of opposite numbers: −0 when rounding down; the computation to
    /// nearest gives +0.
    fn zero_of_difference(&mut self, sum: &Val, value: &Val, arguments: &[Val], op: Rounded) -> Val {
        let zero = constant(sum.ty, 0);
        let is_zero = self.w.compare("fcmp oeq", sum, &zero);
        // A zero sum is +0 only if both summands are +0.
        let [a, b] = match (op, arguments) {
            (Rounded::Fma, [a, b, c]) => [self.w.bin("fmul", a, b), c.clone()],
            (_, [a, b, ..]) => [a.clone(), b.clone()],
            _ => return value.clone(),
        };
        let b = if op == Rounded::Sub { self.w.value(b.ty, format_args!("fneg {b}")) } else { b };
        let both = [&a, &b].map(|x| {
            let bits = self.w.cast("bitcast", x, Elem::I64);
            self.w.compare("icmp sge", &bits, &constant(bits.ty, 0))
        });
        let positive = self.w.bin("and", &both[0], &both[1]);
        let negative = self.w.bin_const("xor", &positive, 1);
        let is_negative_zero = self.w.bin("and", &is_zero, &negative);
        self.w.select(&is_negative_zero, &constant(value.ty, 1 << 31), value)
    }

    /// An operation on doubles that hold floats. The result is exact or rounded to odd.
    fn rounded_to_odd(&mut self, op: Rounded, arguments: &[Val]) -> Val {
        match (op, arguments) {
            (Rounded::Add, [a, b]) => self.sum_to_odd(a, b),
            (Rounded::Sub, [a, b]) => {
                let b = self.w.value(b.ty, format_args!("fneg {b}"));
                self.sum_to_odd(a, &b)
            }
            // The product of two numbers of 24 bits is exact in a double.
            (Rounded::Mul, [a, b]) => self.w.bin("fmul", a, b),
            (Rounded::Fma, [a, b, c]) => {
                let product = self.w.bin("fmul", a, b);
                self.sum_to_odd(&product, c)
            }
            (Rounded::Div, [a, b]) => {
                let quotient = self.w.bin("fdiv", a, b);
                // For positive b, the error of q has the sign of a − q·b.
                let negative = self.w.value(b.ty, format_args!("fneg {quotient}"));
                let rest = self.w.call("llvm.fma", a.ty, &[&negative, b, a]);
                let one = constant(a.ty, 1f64.to_bits().into());
                let sign = self.w.call("llvm.copysign", a.ty, &[&one, b]);
                let error = self.w.bin("fmul", &rest, &sign);
                Arithmetic(self).make_odd(&quotient, &error)
            }
            (_, [a, ..]) => {
                let root = self.w.call("llvm.sqrt", a.ty, &[a]);
                let negative = self.w.value(a.ty, format_args!("fneg {root}"));
                let error = self.w.call("llvm.fma", a.ty, &[&negative, &root, a]);
                Arithmetic(self).make_odd(&root, &error)
            }
            (_, []) => constant(Ty::scalar(Elem::F64), 0),
        }
    }

    /// A sum, rounded to odd. The error of an infinite sum is NaN, which leaves the sum unchanged.
    fn sum_to_odd(&mut self, a: &Val, b: &Val) -> Val {
        let sum = self.w.bin("fadd", a, b);
        let error = Arithmetic(self).sum_error(a, b, &sum);
        Arithmetic(self).make_odd(&sum, &error)
    }

    /// Rounds a double to a float in a rounding mode.
    fn narrow(&mut self, value: &Val, rounding: Rounding) -> Val {
        let nearest = self.w.cast("fptrunc", value, Elem::F32);
        let back = self.w.cast("fpext", &nearest, Elem::F64);
        let (is_above, is_below) = (self.w.compare("fcmp ogt", &back, value), self.w.compare("fcmp olt", &back, value));
        let bits = self.w.cast("bitcast", &nearest, Elem::I32);
        // The neighbours by magnitude. The sign is kept if the value was rounded to zero.
        let larger = self.w.bin_const("add", &bits, 1);
        let smaller = self.w.bin_const("sub", &bits, 1);
        let is_negative = self.w.compare("icmp slt", &bits, &constant(bits.ty, 0));
        let chosen = match rounding {
            Rounding::Nearest => bits,
            Rounding::Up => {
                let up = self.w.select(&is_negative, &smaller, &larger);
                self.w.select(&is_below, &up, &bits)
            }
            Rounding::Down => {
                let down = self.w.select(&is_negative, &larger, &smaller);
                self.w.select(&is_above, &down, &bits)
            }
            Rounding::Zero => {
                let too_far = self.w.select(&is_negative, &is_below, &is_above);
                self.w.select(&too_far, &smaller, &bits)
            }
        };
        self.w.cast("bitcast", &chosen, Elem::F32)
    }

    /// Converts a float to f16: to the nearest one, or to its neighbour if the nearest is on the
    /// wrong side.
    pub(super) fn half_towards(&mut self, value: &Val, rounding: Rounding) -> Val {
        let nearest = self.w.cast("fptrunc", value, Elem::F16);
        let back = self.w.cast("fpext", &nearest, Elem::F32);
        let (is_above, is_below) = (self.w.compare("fcmp ogt", &back, value), self.w.compare("fcmp olt", &back, value));
        let bits = self.w.cast("bitcast", &nearest, Elem::I16);
        let (larger, smaller) = (self.w.bin_const("add", &bits, 1), self.w.bin_const("sub", &bits, 1));
        let is_negative = self.w.compare("icmp slt", &bits, &constant(bits.ty, 0));
        match rounding {
            Rounding::Nearest => bits,
            Rounding::Up => {
                let up = self.w.select(&is_negative, &smaller, &larger);
                self.w.select(&is_below, &up, &bits)
            }
            Rounding::Down => {
                let down = self.w.select(&is_negative, &larger, &smaller);
                self.w.select(&is_above, &down, &bits)
            }
            Rounding::Zero => {
                let too_far = self.w.select(&is_negative, &is_below, &is_above);
                self.w.select(&too_far, &smaller, &bits)
            }
        }
    }

    /// Emits one f64 instruction between two changes of the rounding mode of f64 and f16.
    fn in_mode(&mut self, op: Rounded, rounding: Rounding, arguments: &[&Val]) -> Val {
        const REGISTER: &str = "hwreg(HW_REG_MODE, 2, 2)";
        let negated =
            (op == Rounded::Sub).then(|| self.w.value(arguments[1].ty, format_args!("fneg {}", arguments[1])));
        let mut values: Vec<&Val> = arguments.to_vec();
        if let Some(negated) = &negated {
            values[1] = negated;
        }
        let mnemonic = match op {
            Rounded::Mul => "v_mul_f64",
            Rounded::Fma => "v_fma_f64",
            _ => "v_add_f64",
        };
        let operands: Vec<String> = (1..=values.len()).map(|i| format!("${i}")).collect();
        let code = format!(
            "s_setreg_imm32_b32 {REGISTER}, {}\\0A{mnemonic} $0, {}\\0As_setreg_imm32_b32 {REGISTER}, 0",
            number(rounding),
            operands.join(", ")
        );
        let constraints = vec!["v"; values.len()].join(",");
        let values: Vec<String> = values.iter().map(|v| v.to_string()).collect();
        self.w.value(
            arguments[0].ty,
            format_args!("call double asm sideeffect \"{code}\", \"=v,{constraints}\"({})", values.join(", ")),
        )
    }
}
