//! Binary floating-point formats, and arithmetic that is exact until the final rounding.
//!
//! A value is unpacked into sign, mantissa and exponent. Sums, products, quotients and roots are
//! computed on integers with at least twice the digits of any format. If low bits are lost, the
//! lowest remaining bit is set (sticky bit), so that [`Format::pack`] rounds as if all digits were
//! known.

use std::cmp::Ordering;

/// Rounding mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rounding {
    /// To the nearest, ties to even (`.rn`).
    Nearest,
    /// To the nearest, ties away from zero (`.rna`).
    NearestAway,
    /// Towards zero (`.rz`).
    Zero,
    /// Towards negative infinity (`.rm`).
    Down,
    /// Towards positive infinity (`.rp`).
    Up,
}

/// A binary format: one sign bit, exponent, mantissa.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Format {
    exponent_bits: u32,
    mantissa_bits: u32,
    /// Low bits that are always zero (tf32).
    unused_bits: u32,
    /// Whether the all-ones exponent encodes infinities; in e4m3 it encodes only one NaN.
    has_infinity: bool,
}

pub(crate) const F64: Format = Format { exponent_bits: 11, mantissa_bits: 52, unused_bits: 0, has_infinity: true };
pub(crate) const F32: Format = Format { exponent_bits: 8, mantissa_bits: 23, unused_bits: 0, has_infinity: true };
pub(crate) const TF32: Format = Format { exponent_bits: 8, mantissa_bits: 10, unused_bits: 13, has_infinity: true };
pub(crate) const F16: Format = Format { exponent_bits: 5, mantissa_bits: 10, unused_bits: 0, has_infinity: true };
pub(crate) const BF16: Format = Format { exponent_bits: 8, mantissa_bits: 7, unused_bits: 0, has_infinity: true };
pub(crate) const E5M2: Format = Format { exponent_bits: 5, mantissa_bits: 2, unused_bits: 0, has_infinity: true };
pub(crate) const E4M3: Format = Format { exponent_bits: 4, mantissa_bits: 3, unused_bits: 0, has_infinity: false };

/// An unpacked number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Number {
    Nan,
    Infinity {
        negative: bool,
    },
    /// `mantissa · 2^exponent`; the lowest bit of the mantissa is set if digits were lost.
    Finite {
        negative: bool,
        mantissa: u128,
        exponent: i32,
    },
}

use Number::{Finite, Infinity, Nan};

/// The bit position to which [`normal`] moves the highest bit: it leaves room for a carry above,
/// and more than twice the digits of any format below.
const TOP: u32 = 125;

/// The same value with the highest bit of the mantissa at [`TOP`]; zero stays zero.
fn normal(mantissa: u128, exponent: i32) -> (u128, i32) {
    if mantissa == 0 {
        return (0, exponent);
    }
    let shift = mantissa.leading_zeros() as i32 - (127 - TOP as i32);
    let mantissa = if shift >= 0 { mantissa << shift } else { shift_sticky(mantissa, shift.unsigned_abs()) };
    (mantissa, exponent - shift)
}

/// Shifts right; if a 1 is lost, the lowest bit is set.
fn shift_sticky(value: u128, by: u32) -> u128 {
    match by {
        0 => value,
        1..=127 => (value >> by) | u128::from(value & ((1 << by) - 1) != 0),
        _ => u128::from(value != 0),
    }
}

impl Number {
    /// Converts an integer.
    pub(crate) fn from_int(value: i128) -> Number {
        Finite { negative: value < 0, mantissa: value.unsigned_abs(), exponent: 0 }
    }

    pub(crate) fn is_negative(self) -> bool {
        matches!(self, Infinity { negative: true } | Finite { negative: true, .. })
    }

    fn is_zero(self) -> bool {
        matches!(self, Finite { mantissa: 0, .. })
    }

    pub(crate) fn negate(self) -> Number {
        match self {
            Nan => Nan,
            Infinity { negative } => Infinity { negative: !negative },
            Finite { negative, mantissa, exponent } => Finite { negative: !negative, mantissa, exponent },
        }
    }

    /// The sum. An exact zero is negative if both operands are negative zeros, or if rounding is
    /// downwards and the operands are not both positive zeros.
    pub(crate) fn add(self, other: Number, rounding: Rounding) -> Number {
        match (self, other) {
            (Nan, _) | (_, Nan) => Nan,
            (Infinity { negative: a }, Infinity { negative: b }) => {
                if a == b {
                    self
                } else {
                    Nan
                }
            }
            (Infinity { .. }, _) => self,
            (_, Infinity { .. }) => other,
            (
                Finite { negative: a_sign, mantissa: a, exponent: a_exp },
                Finite { negative: b_sign, mantissa: b, exponent: b_exp },
            ) => {
                if a == 0 && b == 0 {
                    let negative = if a_sign == b_sign { a_sign } else { rounding == Rounding::Down };
                    return Finite { negative, mantissa: 0, exponent: 0 };
                }
                if a == 0 {
                    return other;
                }
                if b == 0 {
                    return self;
                }
                add_finite((a_sign, normal(a, a_exp)), (b_sign, normal(b, b_exp)), rounding)
            }
        }
    }

    /// The product; exact for mantissas of up to 63 bits.
    pub(crate) fn mul(self, other: Number) -> Number {
        let negative = self.is_negative() != other.is_negative();
        match (self, other) {
            (Nan, _) | (_, Nan) => Nan,
            (Infinity { .. }, x) | (x, Infinity { .. }) => {
                if x.is_zero() {
                    Nan
                } else {
                    Infinity { negative }
                }
            }
            (Finite { mantissa: a, exponent: a_exp, .. }, Finite { mantissa: b, exponent: b_exp, .. }) => {
                Finite { negative, mantissa: a * b, exponent: a_exp + b_exp }
            }
        }
    }

    /// The quotient, with at least 60 significant bits.
    pub(crate) fn div(self, other: Number) -> Number {
        let negative = self.is_negative() != other.is_negative();
        match (self, other) {
            (Nan, _) | (_, Nan) | (Infinity { .. }, Infinity { .. }) => Nan,
            (Infinity { .. }, _) => Infinity { negative },
            (_, Infinity { .. }) => Finite { negative, mantissa: 0, exponent: 0 },
            (Finite { mantissa: a, exponent: a_exp, .. }, Finite { mantissa: b, exponent: b_exp, .. }) => {
                match (a, b) {
                    (0, 0) => Nan,
                    (_, 0) => Infinity { negative },
                    _ => {
                        let (a, a_exp) = normal(a, a_exp);
                        let mantissa = (a / b) | u128::from(!a.is_multiple_of(b));
                        Finite { negative, mantissa, exponent: a_exp - b_exp }
                    }
                }
            }
        }
    }

    /// The square root, with 62 significant bits.
    pub(crate) fn sqrt(self) -> Number {
        match self {
            Nan | Infinity { negative: true } => Nan,
            Infinity { negative: false } => self,
            Finite { mantissa: 0, .. } => self,
            Finite { negative: true, .. } => Nan,
            Finite { mantissa, exponent, .. } => {
                let (mut mantissa, mut exponent) = normal(mantissa, exponent);
                if exponent % 2 != 0 {
                    (mantissa, exponent) = (mantissa << 1, exponent - 1);
                }
                let root = mantissa.isqrt();
                Finite {
                    negative: false,
                    mantissa: root << 1 | u128::from(root * root != mantissa),
                    exponent: exponent / 2 - 1,
                }
            }
        }
    }

    /// The ordering of two numbers; `None` if one is a NaN.
    pub(crate) fn compare(self, other: Number) -> Option<Ordering> {
        match self.add(other.negate(), Rounding::Nearest) {
            Nan if self == Nan || other == Nan => None,
            // Equal infinities.
            Nan => Some(Ordering::Equal),
            Finite { mantissa: 0, .. } => Some(Ordering::Equal),
            difference => Some(if difference.is_negative() { Ordering::Less } else { Ordering::Greater }),
        }
    }

    /// Rounds to an integer.
    pub(crate) fn round_to_integer(self, rounding: Rounding) -> Number {
        match self {
            Finite { negative, mantissa, exponent } if exponent < 0 => {
                let rounded = round_off(negative, mantissa, exponent.unsigned_abs(), rounding);
                Finite { negative, mantissa: rounded, exponent: 0 }
            }
            _ => self,
        }
    }

    /// Converts to an integer, clamped to the bounds; a NaN becomes 0.
    pub(crate) fn to_int(self, rounding: Rounding, least: i128, most: i128) -> i128 {
        match self.round_to_integer(rounding) {
            Nan => 0,
            Infinity { negative } => {
                if negative {
                    least
                } else {
                    most
                }
            }
            Finite { negative, mantissa, exponent } => {
                let digits = 128 - mantissa.leading_zeros() as i32 + exponent;
                if mantissa != 0 && digits > 66 {
                    return if negative { least } else { most };
                }
                let magnitude = (mantissa << exponent.clamp(0, 127)) as i128;
                (if negative { -magnitude } else { magnitude }).clamp(least, most)
            }
        }
    }
}

/// The sum of two nonzero, normalized numbers.
fn add_finite(a: (bool, (u128, i32)), b: (bool, (u128, i32)), rounding: Rounding) -> Number {
    let (big, small) = if (a.1.1, a.1.0) >= (b.1.1, b.1.0) { (a, b) } else { (b, a) };
    let exponent = big.1.1;
    let (large, little) = (big.1.0, shift_sticky(small.1.0, (exponent - small.1.1).unsigned_abs()));
    let mantissa = if big.0 == small.0 { large + little } else { large - little };
    let negative = if mantissa == 0 { rounding == Rounding::Down } else { big.0 };
    Finite { negative, mantissa, exponent }
}

/// `mantissa / 2^by`, rounded.
fn round_off(negative: bool, mantissa: u128, by: u32, rounding: Rounding) -> u128 {
    let (whole, rest, half) = match by {
        0 => return mantissa,
        1..=127 => (mantissa >> by, mantissa & ((1 << by) - 1), 1u128 << (by - 1)),
        // The value is less than half of the last place.
        _ => (0, u128::from(mantissa != 0), 2),
    };
    let up = match rounding {
        Rounding::Nearest => rest > half || rest == half && whole & 1 == 1,
        Rounding::NearestAway => rest >= half,
        Rounding::Zero => false,
        Rounding::Down => negative && rest != 0,
        Rounding::Up => !negative && rest != 0,
    };
    whole + u128::from(up)
}

impl Format {
    /// Width of the format in bits.
    pub(crate) fn bits(self) -> u32 {
        1 + self.exponent_bits + self.mantissa_bits + self.unused_bits
    }

    fn sign(self, negative: bool) -> u64 {
        u64::from(negative) << (self.bits() - 1)
    }

    fn bias(self) -> i32 {
        (1 << (self.exponent_bits - 1)) - 1
    }

    fn infinity(self) -> u64 {
        ((1 << self.exponent_bits) - 1) << self.mantissa_bits
    }

    /// The largest finite number.
    fn largest(self) -> u64 {
        if self.has_infinity { self.infinity() - 1 } else { self.infinity() | ((1 << self.mantissa_bits) - 2) }
    }

    /// NVIDIA's canonical NaN: all ones except the sign. In f64, where payloads are preserved, the
    /// quiet NaN without payload.
    pub(crate) fn nan(self) -> u64 {
        if self == F64 { 0x7ff8 << 48 } else { (1 << (self.bits() - 1)) - 1 }
    }

    pub(crate) fn is_nan(self, bits: u64) -> bool {
        self.unpack(bits) == Nan
    }

    /// Unpacks a value.
    pub(crate) fn unpack(self, bits: u64) -> Number {
        let negative = bits >> (self.bits() - 1) & 1 == 1;
        let bits = bits >> self.unused_bits;
        let mantissa = u128::from(bits & ((1 << self.mantissa_bits) - 1));
        let field = (bits >> self.mantissa_bits & ((1 << self.exponent_bits) - 1)) as i32;
        let highest = field == (1 << self.exponent_bits) - 1;
        if highest && self.has_infinity {
            return if mantissa == 0 { Infinity { negative } } else { Nan };
        }
        if highest && mantissa == (1 << self.mantissa_bits) - 1 {
            return Nan;
        }
        let hidden = if field == 0 { 0 } else { 1 << self.mantissa_bits };
        Finite {
            negative,
            mantissa: mantissa | hidden,
            exponent: field.max(1) - self.bias() - self.mantissa_bits as i32,
        }
    }

    /// Rounds a number to this format.
    pub(crate) fn pack(self, number: Number, rounding: Rounding) -> u64 {
        let (negative, mantissa, exponent) = match number {
            Nan => return self.nan(),
            Infinity { negative } if self.has_infinity => {
                return self.sign(negative) | self.infinity() << self.unused_bits;
            }
            Infinity { negative } => return self.sign(negative) | self.nan(),
            Finite { negative, mantissa: 0, .. } => return self.sign(negative),
            Finite { negative, mantissa, exponent } => (negative, mantissa, exponent),
        };
        let highest = 127 - mantissa.leading_zeros() as i32 + exponent;
        let least = 1 - self.bias();
        let unit = highest.max(least) - self.mantissa_bits as i32;
        let digits = if unit >= exponent {
            round_off(negative, mantissa, (unit - exponent).unsigned_abs(), rounding)
        } else {
            mantissa << (exponent - unit)
        };
        // A carry out of the mantissa increments the exponent.
        let field = (highest.max(least) - least) as u128;
        let magnitude = (field << self.mantissa_bits) + digits;
        let sign = self.sign(negative);
        if magnitude <= u128::from(self.largest()) {
            return sign | (magnitude as u64) << self.unused_bits;
        }
        let to_largest = match rounding {
            Rounding::Nearest | Rounding::NearestAway => false,
            Rounding::Zero => true,
            Rounding::Down => !negative,
            Rounding::Up => negative,
        };
        let beyond = if self.has_infinity { self.infinity() } else { self.nan() };
        sign | (if to_largest { self.largest() } else { beyond }) << self.unused_bits
    }

    /// Rounds to this format; on overflow returns the largest finite number (`.satfinite`).
    pub(crate) fn pack_finite(self, number: Number, rounding: Rounding) -> u64 {
        let bits = self.pack(number, rounding);
        let overflowed = number != Nan && !matches!(self.unpack(bits), Finite { .. });
        if overflowed { self.sign(number.is_negative()) | self.largest() << self.unused_bits } else { bits }
    }

    /// Whether the number is subnormal in this format.
    fn is_subnormal(self, bits: u64) -> bool {
        let magnitude = (bits >> self.unused_bits) & ((1 << (self.exponent_bits + self.mantissa_bits)) - 1);
        magnitude != 0 && magnitude < 1 << self.mantissa_bits
    }

    /// Replaces a subnormal number by a zero of the same sign (`.ftz`).
    pub(crate) fn flush(self, bits: u64) -> u64 {
        if self.is_subnormal(bits) { bits & self.sign(true) } else { bits }
    }

    /// Converts to f64, which represents all numbers of all formats.
    pub(crate) fn to_f64(self, bits: u64) -> f64 {
        f64::from_bits(F64.pack(self.unpack(bits), Rounding::Nearest))
    }

    /// Rounds an f64 to the nearest number of this format.
    pub(crate) fn round_f64(self, value: f64) -> u64 {
        self.pack(F64.unpack(value.to_bits()), Rounding::Nearest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_xoshiro::SplitMix64;
    use rand_xoshiro::rand_core::{Rng, SeedableRng};

    fn same64(a: u64, b: f64) -> bool {
        a == b.to_bits() || F64.is_nan(a) && b.is_nan()
    }

    #[test]
    fn round_to_nearest_matches_the_processor() {
        let mut random = SplitMix64::seed_from_u64(1);
        for _ in 0..100_000 {
            // Exponents close to each other and close to the limits, so that cancellation, overflow
            // and subnormal results all occur.
            let mut number = |range: u64| {
                let bits = random.next_u64();
                let exponent = match random.next_u64() % 4 {
                    0 => random.next_u64() % 64,
                    1 => 2046 - random.next_u64() % 64,
                    _ => 1023 - range / 2 + random.next_u64() % range,
                };
                bits & 0x800f_ffff_ffff_ffff | exponent << 52
            };
            let (a, b, c) = (number(8), number(120), number(200));
            let (x, y, z) = (f64::from_bits(a), f64::from_bits(b), f64::from_bits(c));
            let n = |bits| F64.unpack(bits);
            let r = Rounding::Nearest;
            assert!(same64(F64.pack(n(a).add(n(b), r), r), x + y), "{x:e} + {y:e}");
            assert!(same64(F64.pack(n(a).mul(n(b)), r), x * y), "{x:e} * {y:e}");
            assert!(same64(F64.pack(n(a).div(n(b)), r), x / y), "{x:e} / {y:e}");
            assert!(same64(F64.pack(n(a).sqrt(), r), x.sqrt()), "sqrt {x:e}");
            assert!(same64(F64.pack(n(a).mul(n(b)).add(n(c), r), r), libm::fma(x, y, z)), "fma {x:e} {y:e} {z:e}");
            let narrow = F32.pack(n(a), r) as u32;
            assert!(narrow == (x as f32).to_bits(), "{x:e} as f32");
            assert_eq!(n(a).compare(n(b)), x.partial_cmp(&y));
            assert_eq!(
                n(a).to_int(Rounding::Zero, i64::MIN.into(), i64::MAX.into()),
                i128::from(x as i64),
                "{x:e} as i64"
            );
        }
    }

    #[test]
    fn directed_roundings_enclose_the_exact_value() {
        let third = |rounding| F32.pack(Number::from_int(1).div(Number::from_int(3)), rounding);
        assert_eq!(third(Rounding::Nearest), 0x3eaa_aaab);
        assert_eq!(third(Rounding::Zero), 0x3eaa_aaaa);
        assert_eq!(third(Rounding::Down), 0x3eaa_aaaa);
        assert_eq!(third(Rounding::Up), 0x3eaa_aaab);
        let minus = |rounding| F32.pack(Number::from_int(-1).div(Number::from_int(3)), rounding);
        assert_eq!((minus(Rounding::Down), minus(Rounding::Up)), (0xbeaa_aaab, 0xbeaa_aaaa));
        // 1 + 2⁻¹⁰⁰ is slightly above 1.
        let above = Number::from_int(1).add(Finite { negative: false, mantissa: 1, exponent: -100 }, Rounding::Up);
        assert_eq!((F32.pack(above, Rounding::Up), F32.pack(above, Rounding::Down)), (0x3f80_0001, 0x3f80_0000));
    }

    #[test]
    fn small_formats() {
        assert_eq!(F16.round_f64(65504.0), 0x7bff);
        assert_eq!(F16.round_f64(65520.0), 0x7c00);
        assert_eq!(F16.round_f64(2f64.powi(-24)), 1);
        assert_eq!(BF16.round_f64(1.0 + 2f64.powi(-8)), 0x3f80);
        assert_eq!(E4M3.to_f64(0x7e), 448.0);
        assert!(E4M3.is_nan(0x7f));
        assert_eq!(E4M3.pack_finite(Number::from_int(1000), Rounding::Nearest), 0x7e);
        assert_eq!(E5M2.round_f64(57344.0), 0x7b);
        assert_eq!(TF32.pack(F32.unpack(0x3f80_1000), Rounding::NearestAway), 0x3f80_2000);
        assert_eq!(F32.flush(0x807f_ffff), 0x8000_0000);
    }
}
