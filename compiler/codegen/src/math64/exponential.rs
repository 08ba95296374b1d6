//! Exponentials and hyperbolic functions. The exponential is a Taylor series on a reduced range.

use super::{LN2_HIGH, LN2_LOW};
use crate::real::Real;
use atoll_ptx::{Operand, ScalarType};

impl Real<'_> {
    /// `2^n` for an integer n in -1022..=1023 in a 64-bit register.
    fn power_of_two(&mut self, n: &Operand) -> Operand {
        let biased = self.w.make(ScalarType::S64, "add.s64", [n.clone(), 1023.into()]);
        let bits = self.w.make(ScalarType::B64, "shl.b64", [biased.into(), 52.into()]);
        self.w.make(ScalarType::F64, "mov.b64", [bits.into()]).into()
    }

    /// Range reduction `x = n ln 2 + r`: returns n as a float, and r.
    fn reduced(&mut self, x: &Operand) -> (Operand, Operand) {
        let scaled = self.mul(x, &self.number(std::f64::consts::LOG2_E));
        let n = self.rounded("rni", &scaled);
        let negated = self.neg(&n);
        let high = self.fma(&negated, &self.number(LN2_HIGH), x);
        let rest = self.fma(&negated, &self.number(LN2_LOW), &high);
        (n, rest)
    }

    /// `exp(r) - 1 - r` for |r| up to ln 2 / 2: the Taylor series without its first term.
    fn series(&mut self, r: &Operand) -> Operand {
        let mut factorial = 1.0;
        let mut coefficients: Vec<f64> = (2..14)
            .map(|k| {
                factorial *= f64::from(k);
                1.0 / factorial
            })
            .collect();
        coefficients.reverse();
        let sum = self.polynomial(r, &coefficients);
        let square = self.mul(r, r);
        self.mul(&square, &sum)
    }

    /// `value * 2^n`, in two multiplications, so that a subnormal result is rounded at most once
    /// more.
    fn scaled_by(&mut self, value: &Operand, n: &Operand) -> Operand {
        let n = Operand::from(self.w.make(ScalarType::S64, "cvt.rzi.s64.f64", [n.clone()]));
        let half = Operand::from(self.w.make(ScalarType::S64, "shr.s64", [n.clone(), 1.into()]));
        let rest = Operand::from(self.w.make(ScalarType::S64, "sub.s64", [n, half.clone()]));
        let (first, second) = (self.power_of_two(&half), self.power_of_two(&rest));
        let value = self.mul(value, &first);
        self.mul(&value, &second)
    }

    pub(crate) fn exp(&mut self, x: &Operand) -> Operand {
        let zero = self.number(0.0);
        self.exp_of_sum(x, &zero)
    }

    /// `exp(high + low)` for a `low` that is much smaller than `high`.
    pub(super) fn exp_of_sum(&mut self, high: &Operand, low: &Operand) -> Operand {
        let bounded = self.bound(high, -800.0, 800.0);
        let (n, r) = self.reduced(&bounded);
        let sum = self.add(&r, low);
        let taken = self.sub(&sum, &r);
        let lost = self.sub(low, &taken);
        let series = self.series(&sum);
        let tail = self.add(&series, &lost);
        let power = self.add(&sum, &tail);
        let power = self.add(&power, &self.number(1.0));
        self.scaled_by(&power, &n)
    }

    /// `exp(x) - 1` for x up to 700.
    pub(crate) fn exp_minus_one(&mut self, x: &Operand) -> Operand {
        let bounded = self.bound(x, -800.0, 700.0);
        let (n, r) = self.reduced(&bounded);
        let series = self.series(&r);
        let part = self.add(&r, &series);
        let one = self.number(1.0);
        let power = self.scaled_by(&one, &n);
        let whole = self.sub(&power, &one);
        self.fma(&part, &power, &whole)
    }

    pub(super) fn sigmoid(&mut self, x: &Operand) -> Operand {
        let negated = self.neg(x);
        let power = self.exp(&negated);
        let divisor = self.add(&power, &self.number(1.0));
        self.reciprocal(&divisor)
    }

    pub(super) fn tanh(&mut self, x: &Operand) -> Operand {
        let magnitude = self.abs(x);
        let doubled = self.add(&magnitude, &magnitude);
        let doubled = self.min(&doubled, &self.number(50.0));
        let power = self.exp_minus_one(&doubled);
        let divisor = self.add(&power, &self.number(2.0));
        let value = self.div(&power, &divisor);
        self.with_sign_of(&value, x)
    }

    pub(super) fn sinh(&mut self, x: &Operand) -> Operand {
        let magnitude = self.abs(x);
        let near = self.min(&magnitude, &self.number(22.0));
        let power = self.exp_minus_one(&near);
        let plus_one = self.add(&power, &self.number(1.0));
        let ratio = self.div(&power, &plus_one);
        let sum = self.add(&power, &ratio);
        let near = self.mul(&sum, &self.number(0.5));
        let far = self.half_exp(&magnitude);
        let is_far = self.compare("gt", &magnitude, &self.number(22.0));
        let value = self.select(&is_far, &far, &near);
        self.with_sign_of(&value, x)
    }

    pub(super) fn cosh(&mut self, x: &Operand) -> Operand {
        let magnitude = self.abs(x);
        let near = self.min(&magnitude, &self.number(22.0));
        let power = self.exp(&near);
        let inverse = self.reciprocal(&power);
        let sum = self.add(&power, &inverse);
        let near = self.mul(&sum, &self.number(0.5));
        let far = self.half_exp(&magnitude);
        let is_far = self.compare("gt", &magnitude, &self.number(22.0));
        self.select(&is_far, &far, &near)
    }

    /// `exp(x) / 2`, also where `exp(x)` overflows.
    fn half_exp(&mut self, x: &Operand) -> Operand {
        let half = self.mul(x, &self.number(0.5));
        let root = self.exp(&half);
        let halved = self.mul(&root, &self.number(0.5));
        self.mul(&halved, &root)
    }
}
