//! Powers, with the logarithm as a sum of two numbers.

use super::{LN2_HIGH, LN2_LOW};
use crate::real::Real;
use atoll_ptx::{Operand, ScalarType};

impl Real<'_> {
    /// `x^y` as `exp(y ln|x|)`. The logarithm is a sum of two numbers, so that integral powers are
    /// exact. Follows the special cases of IEEE 754.
    pub(crate) fn pow(&mut self, x: &Operand, y: &Operand) -> Operand {
        let y = self.w.in_register(y, ScalarType::F64);
        let (zero, one, infinity) = (self.number(0.0), self.number(1.0), self.number(f64::INFINITY));
        let a = self.abs(x);
        let (high, low) = self.log_parts(&a);
        let product = self.mul(&y, &high);
        let negated = self.neg(&product);
        let lost = self.fma(&y, &high, &negated);
        let lost = self.fma(&y, &low, &lost);
        let finite = self.exp_of_sum(&product, &lost);

        // Special cases: a base of 0 or infinity, and an infinite exponent.
        let is_rising = self.compare("gt", &y, &zero);
        let of_zero = self.select(&is_rising, &zero, &infinity);
        let of_infinity = self.select(&is_rising, &infinity, &zero);
        let is_zero = self.compare("eq", &a, &zero);
        let power = self.select(&is_zero, &of_zero, &finite);
        let is_infinite = self.compare("eq", &a, &infinity);
        let power = self.select(&is_infinite, &of_infinity, &power);
        let exponent = self.abs(&y);
        let is_endless = self.compare("eq", &exponent, &infinity);
        let is_large = self.compare("gt", &a, &one);
        let endless = self.select(&is_large, &of_infinity, &of_zero);
        let is_one = self.compare("eq", &a, &one);
        let endless = self.select(&is_one, &one, &endless);
        let power = self.select(&is_endless, &endless, &power);

        // An odd power has the sign of the base; a negative base has only integral powers.
        let whole = self.rounded("rzi", &y);
        let is_whole = self.compare("eq", &whole, &y);
        let half = self.mul(&y, &self.number(0.5));
        let half_whole = self.rounded("rzi", &half);
        let is_half = self.compare("neu", &half_whole, &half);
        let signed = self.with_sign_of(&power, x);
        let of_odd = self.select(&is_half, &signed, &power);
        let of_whole = self.select(&is_whole, &of_odd, &power);
        let is_negative = self.compare("lt", x, &zero);
        let nan = self.number(f64::NAN);
        let fractional = self.select(&is_negative, &nan, &power);
        let fractional = self.select(&is_infinite, &power, &fractional);
        let result = self.select(&is_whole, &of_whole, &fractional);
        let is_nan = self.compare("nan", x, &y);
        let result = self.select(&is_nan, &nan, &result);
        // `x^0` is 1 and `1^y` is 1, for every x and y.
        let to_zero = self.compare("eq", &y, &zero);
        let result = self.select(&to_zero, &one, &result);
        let of_one = self.compare("eq", x, &one);
        self.select(&of_one, &one, &result)
    }

    /// The logarithm of a positive number as a sum of two numbers, with a relative error of about
    /// 2^-65.
    fn log_parts(&mut self, x: &Operand) -> (Operand, Operand) {
        let (f, exponent) = self.split(x);
        let two = self.number(2.0);
        // `s = f / (2 + f)` as a sum of two numbers.
        let sum = self.add(&f, &two);
        let taken = self.sub(&sum, &two);
        let sum_low = self.sub(&f, &taken);
        let s = self.div(&f, &sum);
        let negated = self.neg(&s);
        let rest = self.fma(&negated, &sum, &f);
        let rest = self.fma(&negated, &sum_low, &rest);
        let s_low = self.div(&rest, &sum);
        // z = s^2, c = s^3.
        let (z, z_low) = self.product((&s, &s_low), (&s, &s_low));
        let (c, c_low) = self.product((&s, &s_low), (&z, &z_low));
        // ln(1 + f) = 2 s + c (2/3 + z (2/5 + …)).
        let series = self.polynomial(
            &z,
            &[2.0 / 19.0, 2.0 / 17.0, 2.0 / 15.0, 2.0 / 13.0, 2.0 / 11.0, 2.0 / 9.0, 2.0 / 7.0, 2.0 / 5.0],
        );
        let bent = self.mul(&series, &z);
        let third = self.number(2.0 / 3.0);
        let p = self.add(&bent, &third);
        let taken = self.sub(&p, &third);
        let p_low = self.sub(&bent, &taken);
        // The rounding error of 2/3.
        let p_low = self.add(&p_low, &self.number(3.700_743_415_417_188_4e-17));
        let (u, u_low) = self.product((&c, &c_low), (&p, &p_low));
        let (doubled, doubled_low) = (self.add(&s, &s), self.add(&s_low, &s_low));
        let (l, l_low) = self.sum(&doubled, &u);
        let low = self.add(&l_low, &u_low);
        let low = self.add(&low, &doubled_low);
        let scaled = self.mul(&exponent, &self.number(LN2_HIGH));
        let (high, lost) = self.sum(&scaled, &l);
        let low = self.add(&low, &lost);
        let low = self.fma(&exponent, &self.number(LN2_LOW), &low);
        (high, low)
    }

    /// The product of two numbers that are each a sum of two, as a sum of two.
    fn product(&mut self, (a, a_low): (&Operand, &Operand), (b, b_low): (&Operand, &Operand)) -> (Operand, Operand) {
        let high = self.mul(a, b);
        let negated = self.neg(&high);
        let low = self.fma(a, b, &negated);
        let low = self.fma(a, b_low, &low);
        let low = self.fma(a_low, b, &low);
        (high, low)
    }

    /// The sum of two numbers, and its rounding error (Knuth's two-sum).
    fn sum(&mut self, a: &Operand, b: &Operand) -> (Operand, Operand) {
        let sum = self.add(a, b);
        let b_part = self.sub(&sum, a);
        let a_part = self.sub(&sum, &b_part);
        let b_lost = self.sub(b, &b_part);
        let a_lost = self.sub(a, &a_part);
        let lost = self.add(&a_lost, &b_lost);
        (sum, lost)
    }
}
