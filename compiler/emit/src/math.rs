//! Approximate transcendental functions as inline IR: range reduction and a polynomial.
//!
//! The table on the first page of the host target (`atoll_target_host`) lists their errors.

use crate::writer::{Elem, Ty, Val, Writer, constant, float};

/// A function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Function {
    Exp2,
    Log2,
    Sin,
    Cos,
    Tanh,
}

/// A function for one vector width.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Routine {
    function: Function,
    lanes: u32,
}

impl Routine {
    /// The routine for a PTX opcode.
    pub fn of(opcode: &str, lanes: u32) -> Option<Routine> {
        let function = match opcode {
            "ex2" => Function::Exp2,
            "lg2" => Function::Log2,
            "sin" => Function::Sin,
            "cos" => Function::Cos,
            "tanh" => Function::Tanh,
            _ => return None,
        };
        Some(Routine { function, lanes })
    }

    fn ty(self) -> Ty {
        Ty { elem: Elem::F32, lanes: self.lanes }
    }

    /// Its LLVM symbol, without `@`.
    pub fn symbol(self) -> String {
        let name = match self.function {
            Function::Exp2 => "ex2",
            Function::Log2 => "lg2",
            Function::Sin => "sin",
            Function::Cos => "cos",
            Function::Tanh => "tanh",
        };
        format!("atoll.{name}.{}", self.ty().mangled())
    }

    /// Its definition.
    pub fn definition(self) -> String {
        let mut m = Math { w: Writer::default(), ty: self.ty() };
        m.w.place(&crate::writer::Label("start".into()));
        let x = Val { ty: self.ty(), text: "%x".into() };
        let result = match self.function {
            Function::Exp2 => m.exp2(&x),
            Function::Log2 => m.log2(&x),
            Function::Sin => m.sin_cos(&x, 0),
            Function::Cos => m.sin_cos(&x, 1),
            Function::Tanh => m.tanh(&x),
        };
        m.w.terminate(format_args!("ret {result}"));
        format!("define internal {} @{}({} %x) #1 {{\n{}}}\n", self.ty(), self.symbol(), self.ty(), m.w.finish())
    }
}

/// Builds an expression over one vector type.
struct Math {
    w: Writer,
    ty: Ty,
}

impl Math {
    fn c(&self, value: f32) -> Val {
        float(self.ty, value)
    }

    fn i(&self, value: i128) -> Val {
        constant(self.ty.with(Elem::I32), value)
    }

    fn fma(&mut self, a: &Val, b: &Val, c: &Val) -> Val {
        self.w.call("llvm.fma", self.ty, &[a, b, c])
    }

    fn bits(&mut self, x: &Val) -> Val {
        self.w.cast("bitcast", x, Elem::I32)
    }

    fn as_float(&mut self, x: &Val) -> Val {
        self.w.cast("bitcast", x, Elem::F32)
    }

    /// Horner's scheme, highest coefficient first.
    fn polynomial(&mut self, x: &Val, coefficients: &[f32]) -> Val {
        let mut sum = self.c(coefficients[0]);
        for &coefficient in &coefficients[1..] {
            let c = self.c(coefficient);
            sum = self.fma(&sum, x, &c);
        }
        sum
    }

    /// 2^n for an integer n in −126..=127, given as an i32 vector.
    fn power_of_two(&mut self, n: &Val) -> Val {
        let biased = self.w.bin_const("add", n, 127);
        let bits = self.w.bin_const("shl", &biased, 23);
        self.as_float(&bits)
    }

    /// 2^x = 2^n · 2^f with |f| ≤ ½; scaled in two steps so that subnormal results are correct.
    fn exp2(&mut self, x: &Val) -> Val {
        let (low, high) = (self.c(-160.0), self.c(130.0));
        let clamped = self.w.call("llvm.maxnum", self.ty, &[x, &low]);
        let clamped = self.w.call("llvm.minnum", self.ty, &[&clamped, &high]);
        let whole = self.w.call("llvm.roundeven", self.ty, &[&clamped]);
        let f = self.w.bin("fsub", &clamped, &whole);
        // Coefficients ln(2)^k / k!, the last ones adjusted to the interval.
        let p = self.polynomial(
            &f,
            &[1.535_336_2e-4, 1.339_887_4e-3, 9.618_437e-3, 5.550_332_5e-2, 2.402_264_8e-1, 6.931_472e-1, 1.0],
        );
        let n = self.w.cast("fptosi", &whole, Elem::I32);
        let half = self.w.bin_const("ashr", &n, 1);
        let rest = self.w.bin("sub", &n, &half);
        let (first, second) = (self.power_of_two(&half), self.power_of_two(&rest));
        let p = self.w.bin("fmul", &p, &first);
        let p = self.w.bin("fmul", &p, &second);
        let is_nan = self.w.compare("fcmp uno", x, x);
        self.w.select(&is_nan, x, &p)
    }

    /// log2(m · 2^e) = e + log2(m) with m between √½ and √2.
    fn log2(&mut self, x: &Val) -> Val {
        let smallest_normal = self.c(f32::MIN_POSITIVE);
        let is_small = self.w.compare("fcmp olt", x, &smallest_normal);
        let scale = self.c(8_388_608.0);
        let scaled = self.w.bin("fmul", x, &scale);
        let normal = self.w.select(&is_small, &scaled, x);
        let bits = self.bits(&normal);
        // Moves the boundary between exponents from 1 to √½.
        let shifted = self.w.bin_const("sub", &bits, 0x3f35_04f3);
        let exponent = self.w.bin_const("ashr", &shifted, 23);
        let fraction = self.w.bin_const("and", &shifted, 0x007f_ffff);
        let fraction = self.w.bin_const("add", &fraction, 0x3f35_04f3);
        let m = self.as_float(&fraction);
        let one = self.c(1.0);
        let f = self.w.bin("fsub", &m, &one);
        let adjust = self.w.select(&is_small, &self.c(-23.0), &self.c(0.0));
        let e = self.w.cast("sitofp", &exponent, Elem::F32);
        let e = self.w.bin("fadd", &e, &adjust);
        // ln(1 + f) = f − f²/2 + f³ P(f), with the coefficients of Cephes.
        let p = self.polynomial(
            &f,
            &[
                7.037_683_6e-2,
                -1.151_461e-1,
                1.167_699_87e-1,
                -1.242_014_1e-1,
                1.424_932_3e-1,
                -1.666_805_8e-1,
                2.000_071_5e-1,
                -2.499_999_4e-1,
                3.333_333e-1,
            ],
        );
        let square = self.w.bin("fmul", &f, &f);
        let cube = self.w.bin("fmul", &square, &f);
        let half = self.c(-0.5);
        let tail = self.w.bin("fmul", &p, &cube);
        let tail = self.fma(&half, &square, &tail);
        // Multiplied by log2(e), split in two parts so that the product with the large term f is
        // exact.
        let (log2e_high, log2e_low) = (self.c(1.441_406_3), self.c(1.288_790_3e-3));
        let low = self.w.bin("fmul", &f, &log2e_low);
        let log2e = self.c(std::f32::consts::LOG2_E);
        let low = self.fma(&tail, &log2e, &low);
        let sum = self.fma(&f, &log2e_high, &low);
        let result = self.w.bin("fadd", &e, &sum);
        self.log2_edges(x, &result)
    }

    /// log2 of 0, infinity, negative numbers and NaN.
    fn log2_edges(&mut self, x: &Val, result: &Val) -> Val {
        let (zero, infinity) = (self.c(0.0), self.c(f32::INFINITY));
        let is_infinite = self.w.compare("fcmp oeq", x, &infinity);
        let result = self.w.select(&is_infinite, &infinity, result);
        let is_invalid = self.w.compare("fcmp ult", x, &zero);
        let result = self.w.select(&is_invalid, &self.c(f32::NAN), &result);
        let is_zero = self.w.compare("fcmp oeq", x, &zero);
        self.w.select(&is_zero, &self.c(f32::NEG_INFINITY), &result)
    }

    /// sin(x + quarter · π/2): reduces x to |r| ≤ π/4 by multiples of π/2 in three parts.
    fn sin_cos(&mut self, x: &Val, quarter: i128) -> Val {
        let two_over_pi = self.c(std::f32::consts::FRAC_2_PI);
        let scaled = self.w.bin("fmul", x, &two_over_pi);
        let whole = self.w.call("llvm.roundeven", self.ty, &[&scaled]);
        let mut r = x.clone();
        // π/2 as three floats; the first two have few bits set, so that their products with small
        // integers are exact even without fma.
        for part in [-1.570_796_4_f32, 4.371_139e-8, 1.717_588_6e-15] {
            let part = self.c(part);
            r = self.fma(&whole, &part, &r);
        }
        // For arguments too large for the reduction, the result is some number between −1 and 1.
        let limit = self.c(0.786);
        let magnitude = self.w.call("llvm.fabs", self.ty, &[&r]);
        let is_beyond = self.w.compare("fcmp ogt", &magnitude, &limit);
        let bounded = self.w.call("llvm.copysign", self.ty, &[&limit, &r]);
        let r = self.w.select(&is_beyond, &bounded, &r);
        let saturated = self.w.call_named(
            &format!("llvm.fptosi.sat.{}.{}", self.ty.with(Elem::I32).mangled(), self.ty.mangled()),
            self.ty.with(Elem::I32),
            &[&whole],
        );
        let quadrant = self.w.bin_const("add", &saturated, quarter);
        let square = self.w.bin("fmul", &r, &r);
        let sine = self.polynomial(&square, &[2.608_316e-6, -1.981_069e-4, 8.333_079e-3, -1.666_665_8e-1]);
        let cube = self.w.bin("fmul", &square, &r);
        let sine = self.fma(&sine, &cube, &r);
        let cosine = self.polynomial(&square, &[2.443_315_7e-5, -1.388_731_6e-3, 4.166_664_6e-2, -0.5, 1.0]);
        let odd = self.w.bin_const("and", &quadrant, 1);
        let use_cosine = self.w.compare("icmp ne", &odd, &self.i(0));
        let value = self.w.select(&use_cosine, &cosine, &sine);
        let sign = self.w.bin_const("and", &quadrant, 2);
        let sign = self.w.bin_const("shl", &sign, 30);
        let bits = self.bits(&value);
        let bits = self.w.bin("xor", &bits, &sign);
        self.as_float(&bits)
    }

    /// A rational function of x (the form used by Eigen) up to the argument where it is closest to
    /// 1; 1 beyond, where tanh rounds to 1 in single precision.
    fn tanh(&mut self, x: &Val) -> Val {
        let (low, high) = (self.c(-7.905_311), self.c(7.905_311));
        let clamped = self.w.call("llvm.maxnum", self.ty, &[x, &low]);
        let clamped = self.w.call("llvm.minnum", self.ty, &[&clamped, &high]);
        let square = self.w.bin("fmul", &clamped, &clamped);
        let p = self.polynomial(
            &square,
            &[
                -2.760_768_5e-16,
                2.000_188e-13,
                -8.604_672e-11,
                5.122_297e-8,
                1.485_722_4e-5,
                6.372_619_3e-4,
                4.893_525e-3,
            ],
        );
        let q = self.polynomial(&square, &[1.198_258_4e-6, 1.185_347_1e-4, 2.268_434_6e-3, 4.893_525e-3]);
        // The quotient comes first: p · x would lose bits if x is barely normal.
        let quotient = self.w.bin("fdiv", &p, &q);
        let value = self.w.bin("fmul", &quotient, &clamped);
        // From here on 1 is the nearest number; the rational function stays below it.
        let magnitude = self.w.call("llvm.fabs", self.ty, &[x]);
        let (limit, one) = (self.c(9.010_914), self.c(1.0));
        let is_one = self.w.compare("fcmp oge", &magnitude, &limit);
        let one = self.w.call("llvm.copysign", self.ty, &[&one, x]);
        let value = self.w.select(&is_one, &one, &value);
        let is_nan = self.w.compare("fcmp uno", x, x);
        self.w.select(&is_nan, x, &value)
    }
}
