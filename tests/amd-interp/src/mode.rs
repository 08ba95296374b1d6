//! The MODE register, and floating-point arithmetic under it.

use crate::soft::{Exact, F16, F32, F64, Format, Round, Value};

/// A copy of the MODE register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mode(pub(crate) u32);

impl Mode {
    /// The rounding mode of a format.
    pub(crate) fn round(self, format: Format) -> Round {
        Round::of_bits(if format == F32 { self.0 } else { self.0 >> 2 })
    }

    fn denormals(self, format: Format) -> u32 {
        (if format == F32 { self.0 >> 4 } else { self.0 >> 6 }) & 3
    }

    /// Whether clamping turns NaN into zero.
    pub(crate) fn dx10_clamp(self) -> bool {
        self.0 & 1 << 8 != 0
    }

    /// Whether minimum and maximum handle signaling NaNs as IEEE 754-2008 does.
    pub(crate) fn ieee(self) -> bool {
        self.0 & 1 << 9 != 0
    }

    /// Whether arithmetic rounds to nearest even and keeps subnormal values, as the host's
    /// processor does.
    fn native(self, format: Format) -> bool {
        self.round(format) == Round::NearestEven && self.denormals(format) == 3
    }

    /// A source; a subnormal value becomes zero if the mode says so.
    pub(crate) fn input(self, format: Format, bits: u64) -> u64 {
        let flush = self.denormals(format) & 1 == 0 && format.is_subnormal(bits);
        if flush { bits & format.sign() } else { bits }
    }

    /// A result; a subnormal value becomes zero if the mode says so.
    pub(crate) fn output(self, format: Format, bits: u64) -> u64 {
        let flush = self.denormals(format) & 2 == 0 && format.is_subnormal(bits);
        if flush { bits & format.sign() } else { bits }
    }

    /// Rounds a number to a format.
    pub(crate) fn rounded(self, format: Format, exact: Exact) -> u64 {
        self.output(format, format.round(exact, self.round(format)))
    }

    /// `(a * b + c) * 2^scale`, rounded once.
    pub(crate) fn fma_scaled(self, format: Format, [a, b, c]: [u64; 3], scale: i32) -> u64 {
        let [a, b, c] = [a, b, c].map(|v| self.input(format, v));
        if let Some(nan) = first_nan(format, &[a, b, c]) {
            return nan;
        }
        let sign = |bits| format.is_negative(bits);
        let product_sign = sign(a) != sign(b);
        let infinite = format.is_infinite(a) || format.is_infinite(b);
        if infinite && (format.is_zero(a) || format.is_zero(b)) {
            return format.nan();
        }
        if infinite {
            let opposite = format.is_infinite(c) && sign(c) != product_sign;
            return if opposite { format.nan() } else { signed_infinity(format, product_sign) };
        }
        let [Value::Finite(x), Value::Finite(y), Value::Finite(z)] = [a, b, c].map(|v| format.unpack(v)) else {
            return c;
        };
        let sum = x.times(y).plus(z, self.round(format));
        self.rounded(format, Exact { exponent: sum.exponent + scale, ..sum })
    }

    /// `a * b + c`, rounded once.
    pub(crate) fn fma(self, format: Format, [a, b, c]: [u64; 3]) -> u64 {
        if self.native(format) {
            let native = match format {
                F32 => f32s([a, b, c], |[a, b, c]| a.mul_add(b, c)),
                F64 => f64s([a, b, c], |[a, b, c]| a.mul_add(b, c)),
                _ => format.nan(),
            };
            if !format.is_nan(native) {
                return native;
            }
        }
        self.fma_scaled(format, [a, b, c], 0)
    }

    /// `a + b`.
    pub(crate) fn add(self, format: Format, [a, b]: [u64; 2]) -> u64 {
        if self.native(format) {
            let native = match format {
                F32 => f32s([a, b], |[a, b]| a + b),
                F64 => f64s([a, b], |[a, b]| a + b),
                _ => format.nan(),
            };
            if !format.is_nan(native) {
                return native;
            }
        }
        let [a, b] = [a, b].map(|v| self.input(format, v));
        if let Some(nan) = first_nan(format, &[a, b]) {
            return nan;
        }
        match [a, b].map(|v| format.unpack(v)) {
            [Value::Finite(x), Value::Finite(y)] => self.rounded(format, x.plus(y, self.round(format))),
            [Value::Infinite { negative: x }, Value::Infinite { negative: y }] if x != y => format.nan(),
            [Value::Infinite { .. }, _] => a,
            _ => b,
        }
    }

    /// `a * b`.
    pub(crate) fn mul(self, format: Format, [a, b]: [u64; 2]) -> u64 {
        if self.native(format) {
            let native = match format {
                F32 => f32s([a, b], |[a, b]| a * b),
                F64 => f64s([a, b], |[a, b]| a * b),
                _ => format.nan(),
            };
            if !format.is_nan(native) {
                return native;
            }
        }
        let [a, b] = [a, b].map(|v| self.input(format, v));
        if let Some(nan) = first_nan(format, &[a, b]) {
            return nan;
        }
        let negative = format.is_negative(a) != format.is_negative(b);
        match [a, b].map(|v| format.unpack(v)) {
            [Value::Finite(x), Value::Finite(y)] => self.rounded(format, x.times(y)),
            _ if format.is_zero(a) || format.is_zero(b) => format.nan(),
            _ => signed_infinity(format, negative),
        }
    }

    /// The smaller or the larger value. A number takes precedence over NaN, and -0 is below +0.
    pub(crate) fn extreme(self, format: Format, [a, b]: [u64; 2], larger: bool) -> u64 {
        let [a, b] = [a, b].map(|v| self.input(format, v));
        if self.ieee()
            && let Some(&signaling) = [a, b].iter().find(|&&v| format.is_signaling(v))
        {
            return signaling | format.quiet();
        }
        let result = match (format.is_nan(a), format.is_nan(b)) {
            (true, true) => a | format.quiet(),
            (true, false) => b,
            (false, true) => a,
            _ if (order_key(format, a) < order_key(format, b)) == larger => b,
            _ => a,
        };
        self.output(format, result)
    }

    /// Converts a value to another format.
    pub(crate) fn convert(self, from: Format, to: Format, bits: u64) -> u64 {
        let bits = self.input(from, bits);
        let sign = if from.is_negative(bits) { to.sign() } else { 0 };
        match from.unpack(bits) {
            Value::Nan => {
                let payload = bits & ((1 << from.fraction) - 1);
                let moved = if to.fraction >= from.fraction {
                    payload << (to.fraction - from.fraction)
                } else {
                    payload >> (from.fraction - to.fraction)
                };
                sign | to.nan() | moved
            }
            Value::Infinite { .. } => sign | to.infinity(),
            Value::Finite(exact) => self.rounded(to, exact),
        }
    }
}

/// An integer key with the order of the numbers, with -0 below +0.
pub(crate) fn order_key(format: Format, bits: u64) -> i64 {
    let magnitude = format.magnitude(bits) as i64;
    if format.is_negative(bits) { -magnitude - 1 } else { magnitude }
}

/// Infinity with a sign.
pub(crate) fn signed_infinity(format: Format, negative: bool) -> u64 {
    if negative { format.infinity() | format.sign() } else { format.infinity() }
}

/// The first NaN among the sources, made quiet.
pub(crate) fn first_nan(format: Format, sources: &[u64]) -> Option<u64> {
    sources.iter().find(|&&v| format.is_nan(v)).map(|v| v | format.quiet())
}

fn f32s<const N: usize>(bits: [u64; N], f: impl Fn([f32; N]) -> f32) -> u64 {
    f(bits.map(|b| f32::from_bits(b as u32))).to_bits().into()
}

fn f64s<const N: usize>(bits: [u64; N], f: impl Fn([f64; N]) -> f64) -> u64 {
    f(bits.map(f64::from_bits)).to_bits()
}

/// The format with the width of a register type; f16 for any other width.
pub(crate) fn format_of(bits: u32) -> Format {
    match bits {
        32 => F32,
        64 => F64,
        _ => F16,
    }
}
