//! Logarithms and inverse hyperbolic functions.

use super::{LN2, LN2_HIGH, LN2_LOW};
use crate::real::Real;
use atoll_ptx::{Operand, ScalarType};

/// From this number on, `x + 1` can be replaced by `x` under a root or a logarithm.
const LARGE: f64 = 268_435_456.0;

impl Real<'_> {
    /// Splits a positive number `x = m * 2^e`, with m from √½ to √2, into `m - 1` and e.
    pub(super) fn split(&mut self, x: &Operand) -> (Operand, Operand) {
        let small = self.compare("lt", x, &self.number(f64::MIN_POSITIVE));
        let raised = self.mul(x, &self.number(2f64.powi(54)));
        let normal = self.select(&small, &raised, x);
        let (shift, none) = (self.number(-54.0), self.number(0.0));
        let shift = self.select(&small, &shift, &none);
        let bits = self.bits(&normal);
        // The bits of √½ are subtracted, so that the exponent changes exactly at √½ times a power
        // of two.
        let offset =
            Operand::from(self.w.make(ScalarType::S64, "sub.s64", [bits.clone(), 0x3fe6_a09e_667f_3bcd_i64.into()]));
        let exponent = Operand::from(self.w.make(ScalarType::S64, "shr.s64", [offset, 52.into()]));
        let up = self.w.make(ScalarType::B64, "shl.b64", [exponent.clone(), 52.into()]);
        let mantissa = self.w.make(ScalarType::S64, "sub.s64", [bits, up.into()]);
        let mantissa = Operand::from(self.w.make(ScalarType::F64, "mov.b64", [mantissa.into()]));
        let exponent = Operand::from(self.w.make(ScalarType::F64, "cvt.rn.f64.s64", [exponent]));
        let exponent = self.add(&exponent, &shift);
        (self.sub(&mantissa, &self.number(1.0)), exponent)
    }

    /// Natural logarithm.
    pub(crate) fn log(&mut self, x: &Operand) -> Operand {
        let (f, exponent) = self.split(x);
        let plus_two = self.add(&f, &self.number(2.0));
        let s = self.div(&f, &plus_two);
        let z = self.mul(&s, &s);
        let tail = self.polynomial(
            &z,
            &[
                1.479_819_860_511_658_591e-1,
                1.531_383_769_920_937_332e-1,
                1.818_357_216_161_805_012e-1,
                2.222_219_843_214_978_396e-1,
                2.857_142_874_366_239_149e-1,
                3.999_999_999_940_941_908e-1,
                6.666_666_666_666_735_130e-1,
            ],
        );
        let tail = self.mul(&tail, &z);
        let square = self.mul(&f, &f);
        let half = self.mul(&square, &self.number(0.5));
        let sum = self.add(&half, &tail);
        let low = self.mul(&exponent, &self.number(LN2_LOW));
        let low = self.fma(&s, &sum, &low);
        let low = self.sub(&half, &low);
        let low = self.sub(&low, &f);
        let high = self.mul(&exponent, &self.number(LN2_HIGH));
        let result = self.sub(&high, &low);
        self.log_edges(x, &result)
    }

    /// The special cases of a logarithm: 0, infinity, NaN and negative numbers.
    fn log_edges(&mut self, x: &Operand, result: &Operand) -> Operand {
        let infinite = self.compare("eq", x, &self.number(f64::INFINITY));
        let result = self.select(&infinite, x, result);
        let zero = self.compare("eq", x, &self.number(0.0));
        let lowest = self.number(f64::NEG_INFINITY);
        let result = self.select(&zero, &lowest, &result);
        let valid = self.compare("ge", x, &self.number(0.0));
        let nan = self.number(f64::NAN);
        self.select(&valid, &result, &nan)
    }

    /// `ln(1 + x)`
    fn log_plus_one(&mut self, x: &Operand) -> Operand {
        // `ln(u) * x / (u - 1)` with `u = 1 + x` rounded: the rounding error of `u` cancels.
        let one = self.number(1.0);
        let u = self.add(x, &one);
        let logarithm = self.log(&u);
        let rounded = self.sub(&u, &one);
        let ratio = self.div(x, &rounded);
        let result = self.mul(&logarithm, &ratio);
        let is_tiny = self.compare("eq", &rounded, &self.number(0.0));
        let result = self.select(&is_tiny, x, &result);
        let infinite = self.compare("eq", x, &self.number(f64::INFINITY));
        self.select(&infinite, x, &result)
    }

    pub(super) fn softplus(&mut self, x: &Operand) -> Operand {
        let magnitude = self.abs(x);
        let negated = self.neg(&magnitude);
        let power = self.exp(&negated);
        let rest = self.log_plus_one(&power);
        let positive = self.max(x, &self.number(0.0));
        self.add(&positive, &rest)
    }

    /// `ln(x) + ln 2`, for large numbers.
    fn log_of_double(&mut self, x: &Operand) -> Operand {
        let logarithm = self.log(x);
        self.add(&logarithm, &self.number(LN2))
    }

    pub(super) fn asinh(&mut self, x: &Operand) -> Operand {
        let magnitude = self.abs(x);
        let one = self.number(1.0);
        let square = self.mul(&magnitude, &magnitude);
        let raised = self.add(&square, &one);
        let root = self.sqrt(&raised);
        let divisor = self.add(&root, &one);
        let part = self.div(&square, &divisor);
        let sum = self.add(&magnitude, &part);
        let near = self.log_plus_one(&sum);
        let far = self.log_of_double(&magnitude);
        let is_far = self.compare("gt", &magnitude, &self.number(LARGE));
        let value = self.select(&is_far, &far, &near);
        self.with_sign_of(&value, x)
    }

    pub(super) fn acosh(&mut self, x: &Operand) -> Operand {
        let one = self.number(1.0);
        let above = self.sub(x, &one);
        let plus_two = self.add(&above, &self.number(2.0));
        let square = self.mul(&above, &plus_two);
        let root = self.sqrt(&square);
        let sum = self.add(&above, &root);
        let near = self.log_plus_one(&sum);
        let far = self.log_of_double(x);
        let is_far = self.compare("gt", x, &self.number(LARGE));
        let value = self.select(&is_far, &far, &near);
        let valid = self.compare("ge", x, &one);
        let nan = self.number(f64::NAN);
        self.select(&valid, &value, &nan)
    }

    pub(super) fn atanh(&mut self, x: &Operand) -> Operand {
        let magnitude = self.abs(x);
        let one = self.in_own_register(1.0);
        let rest = self.sub(&one, &magnitude);
        let doubled = self.add(&magnitude, &magnitude);
        let ratio = self.div(&doubled, &rest);
        let logarithm = self.log_plus_one(&ratio);
        let value = self.mul(&logarithm, &self.number(0.5));
        self.with_sign_of(&value, x)
    }
}
