//! Binary floating-point formats, computed exactly and rounded once.

/// A rounding mode, numbered as in the MODE register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Round {
    NearestEven,
    Up,
    Down,
    Zero,
}

impl Round {
    /// The mode of two bits of the MODE register.
    pub(crate) fn of_bits(bits: u32) -> Self {
        [Round::NearestEven, Round::Up, Round::Down, Round::Zero][(bits & 3) as usize]
    }
}

/// A format: the numbers of bits of its fraction and of its exponent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Format {
    pub(crate) fraction: u32,
    pub(crate) exponent: u32,
}

pub(crate) const F16: Format = Format { fraction: 10, exponent: 5 };
pub(crate) const BF16: Format = Format { fraction: 7, exponent: 8 };
pub(crate) const F32: Format = Format { fraction: 23, exponent: 8 };
pub(crate) const F64: Format = Format { fraction: 52, exponent: 11 };

/// A finite number: `mantissa * 2^exponent`. Bit 0 of a long mantissa may be sticky: set if any
/// lower bit was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exact {
    pub(crate) negative: bool,
    pub(crate) mantissa: u128,
    pub(crate) exponent: i32,
}

/// A value of a format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Nan,
    Infinite { negative: bool },
    Finite(Exact),
}

impl Format {
    fn bias(self) -> i32 {
        (1 << (self.exponent - 1)) - 1
    }

    fn width(self) -> u32 {
        self.fraction + self.exponent + 1
    }

    /// The sign bit.
    pub(crate) fn sign(self) -> u64 {
        1 << (self.width() - 1)
    }

    /// Positive infinity.
    pub(crate) fn infinity(self) -> u64 {
        ((1 << self.exponent) - 1) << self.fraction
    }

    /// The quiet bit of a NaN.
    pub(crate) fn quiet(self) -> u64 {
        1 << (self.fraction - 1)
    }

    /// The NaN that operations on numbers return.
    pub(crate) fn nan(self) -> u64 {
        self.infinity() | self.quiet()
    }

    /// The bits without the sign.
    pub(crate) fn magnitude(self, bits: u64) -> u64 {
        bits & (self.sign() - 1)
    }

    pub(crate) fn is_nan(self, bits: u64) -> bool {
        self.magnitude(bits) > self.infinity()
    }

    pub(crate) fn is_infinite(self, bits: u64) -> bool {
        self.magnitude(bits) == self.infinity()
    }

    pub(crate) fn is_signaling(self, bits: u64) -> bool {
        self.is_nan(bits) && bits & self.quiet() == 0
    }

    pub(crate) fn is_subnormal(self, bits: u64) -> bool {
        let magnitude = self.magnitude(bits);
        magnitude != 0 && magnitude >> self.fraction == 0
    }

    pub(crate) fn is_zero(self, bits: u64) -> bool {
        self.magnitude(bits) == 0
    }

    pub(crate) fn is_negative(self, bits: u64) -> bool {
        bits & self.sign() != 0
    }

    /// The biased exponent in the bits.
    pub(crate) fn exponent_field(self, bits: u64) -> i32 {
        (self.magnitude(bits) >> self.fraction) as i32
    }

    /// The number that the bits encode.
    pub(crate) fn unpack(self, bits: u64) -> Value {
        let negative = self.is_negative(bits);
        if self.is_nan(bits) {
            return Value::Nan;
        }
        if self.is_infinite(bits) {
            return Value::Infinite { negative };
        }
        let field = self.exponent_field(bits);
        let fraction = u128::from(bits & ((1 << self.fraction) - 1));
        let implicit = if field == 0 { 0 } else { 1 << self.fraction };
        let exponent = field.max(1) - self.bias() - self.fraction as i32;
        Value::Finite(Exact { negative, mantissa: fraction | implicit, exponent })
    }

    /// The nearest value in the direction of `mode`, subnormal values included.
    pub(crate) fn round(self, exact: Exact, mode: Round) -> u64 {
        let sign = if exact.negative { self.sign() } else { 0 };
        if exact.mantissa == 0 {
            return sign;
        }
        let top = 127 - exact.mantissa.leading_zeros() as i32;
        let lowest = (top + exact.exponent).max(1 - self.bias()) - self.fraction as i32;
        let (quotient, above, exactly, inexact) = shift_right(exact.mantissa, lowest - exact.exponent);
        let up = match mode {
            Round::NearestEven => above || exactly && quotient & 1 == 1,
            Round::Up => inexact && !exact.negative,
            Round::Down => inexact && exact.negative,
            Round::Zero => false,
        };
        let field = i64::from(lowest + self.fraction as i32 + self.bias()) - 1;
        let infinity = self.infinity();
        if field >= 1 << self.exponent {
            return sign | self.overflow(exact.negative, mode);
        }
        let bits = ((field as u64) << self.fraction) + quotient as u64 + u64::from(up);
        sign | if bits >= infinity { self.overflow(exact.negative, mode) } else { bits }
    }

    fn overflow(self, negative: bool, mode: Round) -> u64 {
        let to_infinity = match mode {
            Round::NearestEven => true,
            Round::Up => !negative,
            Round::Down => negative,
            Round::Zero => false,
        };
        self.infinity() - u64::from(!to_infinity)
    }
}

/// `mantissa >> shift`, and whether the lost bits are more than half, exactly half, and not zero.
fn shift_right(mantissa: u128, shift: i32) -> (u128, bool, bool, bool) {
    match shift {
        ..=0 => (mantissa << -shift, false, false, false),
        1..=127 => {
            let rest = mantissa & ((1 << shift) - 1);
            let half = 1 << (shift - 1);
            (mantissa >> shift, rest > half, rest == half, rest != 0)
        }
        128 => (0, mantissa > 1 << 127, mantissa == 1 << 127, true),
        _ => (0, false, false, true),
    }
}

/// Shifts right. Bit 0 of the result is set if any lost bit was.
fn jam(mantissa: u128, shift: u32) -> u128 {
    match shift {
        0 => mantissa,
        1..=127 => mantissa >> shift | u128::from(mantissa & ((1 << shift) - 1) != 0),
        _ => u128::from(mantissa != 0),
    }
}

impl Exact {
    /// The product; mantissas must have at most 64 bits each.
    pub(crate) fn times(self, other: Exact) -> Exact {
        Exact {
            negative: self.negative != other.negative,
            mantissa: self.mantissa * other.mantissa,
            exponent: self.exponent + other.exponent,
        }
    }

    /// Both mantissas, shifted so that the highest bit of the larger number is bit 125, which
    /// leaves room for the sum.
    fn aligned(self, other: Exact) -> (u128, u128, i32) {
        let normal = |e: Exact| {
            let shift = e.mantissa.leading_zeros() as i32 - 2;
            if shift >= 0 {
                (e.mantissa << shift, e.exponent - shift)
            } else {
                (jam(e.mantissa, -shift as u32), e.exponent - shift)
            }
        };
        let ((a, ea), (b, eb)) = (normal(self), normal(other));
        let exponent = ea.max(eb);
        (jam(a, (exponent - ea) as u32), jam(b, (exponent - eb) as u32), exponent)
    }

    /// The sum. A zero sum is negative if both numbers are negative, or in the mode `Down`.
    pub(crate) fn plus(self, other: Exact, mode: Round) -> Exact {
        if self.mantissa == 0 || other.mantissa == 0 {
            if self.mantissa == 0 && other.mantissa == 0 {
                let differ = self.negative != other.negative;
                let negative = if differ { mode == Round::Down } else { self.negative };
                return Exact { negative, ..self };
            }
            return if self.mantissa == 0 { other } else { self };
        }
        let (a, b, exponent) = self.aligned(other);
        if self.negative == other.negative {
            return Exact { negative: self.negative, mantissa: a + b, exponent };
        }
        let negative = match a.cmp(&b) {
            std::cmp::Ordering::Equal => mode == Round::Down,
            std::cmp::Ordering::Greater => self.negative,
            std::cmp::Ordering::Less => other.negative,
        };
        Exact { negative, mantissa: a.abs_diff(b), exponent }
    }

    /// An integer.
    pub(crate) fn integer(value: i128) -> Exact {
        Exact { negative: value < 0, mantissa: value.unsigned_abs(), exponent: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_xoshiro::SplitMix64;
    use rand_xoshiro::rand_core::{Rng, SeedableRng};

    fn finite(value: f32) -> Exact {
        match F32.unpack(value.to_bits().into()) {
            Value::Finite(exact) => exact,
            _ => panic!("not finite"),
        }
    }

    #[test]
    fn sums_products_and_rounding_equal_the_processor() {
        let mut random = SplitMix64::seed_from_u64(1);
        for _ in 0..200_000 {
            let near = random.next_u32() & 0x0fff_ffff | 0x3000_0000;
            let (a, b, c) =
                (f32::from_bits(random.next_u32()), f32::from_bits(near), f32::from_bits(random.next_u32()));
            let numbers = [a, b, c];
            if numbers.iter().any(|n| !n.is_finite()) {
                continue;
            }
            let fma = finite(a).times(finite(b)).plus(finite(c), Round::NearestEven);
            assert_eq!(F32.round(fma, Round::NearestEven) as u32, a.mul_add(b, c).to_bits(), "{a} {b} {c}");
            let sum = finite(a).plus(finite(-b), Round::NearestEven);
            assert_eq!(F32.round(sum, Round::NearestEven) as u32, (a - b).to_bits());
            let wide = f64::from(a) * f64::from(b);
            let Value::Finite(wide) = F64.unpack(wide.to_bits()) else { continue };
            assert_eq!(F32.round(wide, Round::NearestEven) as u32, (a * b).to_bits());
        }
    }

    #[test]
    fn directions_bracket_the_exact_value() {
        let third = Exact { negative: false, mantissa: 0x5555_5555_5555_5555, exponent: -64 };
        let [down, up] = [Round::Down, Round::Up].map(|m| F16.round(third, m));
        assert_eq!((down, up), (0x3555, 0x3556));
        let below = Exact { negative: true, ..third };
        assert_eq!(F16.round(below, Round::Down), 0xb556);
        assert_eq!(F16.round(below, Round::Zero), 0xb555);
        let large = Exact { negative: false, mantissa: 1, exponent: 20 };
        assert_eq!(
            [Round::NearestEven, Round::Zero, Round::Down].map(|m| F16.round(large, m)),
            [0x7c00, 0x7bff, 0x7bff]
        );
        let small = Exact { negative: false, mantissa: 1, exponent: -400 };
        assert_eq!([Round::NearestEven, Round::Up].map(|m| F16.round(small, m)), [0, 1]);
    }
}
