//! The formats of narrow floats, and their conversion in host memory. Kernels use the same formats.

use atoll_kgraph::DType;

/// A narrow float with a sign, an exponent and a mantissa.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NarrowFloat {
    /// Number of bits of the exponent.
    pub exponent_bits: u32,
    /// Number of bits of the mantissa.
    pub mantissa_bits: u32,
    /// The stored exponent of 2^0.
    pub bias: i32,
    /// Which codes are not numbers.
    pub special: Special,
}

/// Which codes of a narrow float are infinities or NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// No code. NaN becomes -0, and numbers beyond the largest become the largest.
    None,
    /// The codes with the largest exponent: infinities and NaN.
    Ieee,
    /// The codes with all bits set, whatever the sign: NaN.
    Ones,
    /// The code with only the sign bit set: NaN. There is no -0.
    MinusZero,
}

/// Bits of an f32 infinity.
const INFINITY: u32 = 0x7f80_0000;

impl NarrowFloat {
    /// The format of a type; `None` for other types. [`DType::F8e8m0`] has neither sign nor
    /// mantissa; see [`encode_exponent`].
    pub fn of(dtype: DType) -> Option<NarrowFloat> {
        let format =
            |exponent_bits, mantissa_bits, bias, special| NarrowFloat { exponent_bits, mantissa_bits, bias, special };
        Some(match dtype {
            DType::F8e4m3fn => format(4, 3, 7, Special::Ones),
            DType::F8e4m3fnuz => format(4, 3, 8, Special::MinusZero),
            DType::F8e5m2 => format(5, 2, 15, Special::Ieee),
            DType::F8e5m2fnuz => format(5, 2, 16, Special::MinusZero),
            DType::F4e2m1 => format(2, 1, 1, Special::None),
            _ => return None,
        })
    }

    /// Number of bits below the sign.
    pub fn magnitude_bits(self) -> u32 {
        self.exponent_bits + self.mantissa_bits
    }

    /// The code of the largest number.
    pub fn largest_code(self) -> u8 {
        let ones = u8::MAX >> (8 - self.magnitude_bits());
        match self.special {
            Special::None | Special::MinusZero => ones,
            Special::Ones => ones - 1,
            Special::Ieee => self.overflow_code() - 1,
        }
    }

    /// The code, without sign, of a number beyond the largest: NaN or infinity where the type has
    /// one, otherwise the largest number.
    pub fn overflow_code(self) -> u8 {
        let ones = u8::MAX >> (8 - self.magnitude_bits());
        match self.special {
            Special::None | Special::Ones => ones,
            Special::Ieee => ones & !((1 << self.mantissa_bits) - 1),
            Special::MinusZero => 1 << self.magnitude_bits(),
        }
    }

    /// The code, without sign, of NaN.
    pub fn nan_code(self) -> u8 {
        match self.special {
            Special::None => 0,
            Special::Ieee => self.overflow_code() | 1 << (self.mantissa_bits - 1),
            Special::Ones | Special::MinusZero => self.overflow_code(),
        }
    }

    /// The largest number.
    pub fn largest(self) -> f32 {
        self.decode(self.largest_code())
    }

    /// The number of a code.
    pub fn decode(self, code: u8) -> f32 {
        let sign_bit = 1u8 << self.magnitude_bits();
        let (sign, magnitude) = (code & sign_bit, code & (sign_bit - 1));
        let nan = f32::NAN.copysign(if sign == 0 { 1.0 } else { -1.0 });
        match self.special {
            Special::Ieee if magnitude > self.overflow_code() => return nan,
            Special::Ones if magnitude == self.overflow_code() => return nan,
            Special::MinusZero if sign != 0 && magnitude == 0 => return f32::NAN,
            _ => {}
        }
        let value = if self.special == Special::Ieee && magnitude == self.overflow_code() {
            f32::INFINITY
        } else {
            // The bits of an f32 whose exponent is too small by the difference of the biases.
            f32::from_bits(u32::from(magnitude) << (23 - self.mantissa_bits)) * 2f32.powi(127 - self.bias)
        };
        if sign == 0 { value } else { -value }
    }

    /// Encodes a number. Rounds to nearest, ties to even. See [`NarrowFloat::overflow_code`] for
    /// numbers beyond the largest.
    pub fn encode(self, value: f32) -> u8 {
        let bits = value.to_bits();
        let (sign, magnitude) = ((bits >> 31) as u8, bits & 0x7fff_ffff);
        let dropped = 23 - self.mantissa_bits;
        let code = if magnitude > INFINITY {
            u32::from(self.nan_code())
        } else if magnitude < self.least_normal_bits() {
            // The addition rounds: the lowest bits of the sum and of the code have the same value.
            (f32::from_bits(magnitude) + self.subnormal_magic()).to_bits() - self.subnormal_magic().to_bits()
        } else {
            let odd = (magnitude >> dropped) & 1;
            let rounded = (magnitude + odd + ((1 << (dropped - 1)) - 1)) >> dropped;
            (rounded - self.exponent_offset()).min(self.overflow_code().into())
        };
        if self.special == Special::None && magnitude > INFINITY {
            return 1 << self.magnitude_bits();
        }
        let is_unsigned = self.special == Special::MinusZero && code == 0;
        code as u8 | if is_unsigned { 0 } else { sign << self.magnitude_bits() }
    }

    /// Bits of the f32 that equals the smallest normal number.
    pub fn least_normal_bits(self) -> u32 {
        ((128 - self.bias) as u32) << 23
    }

    /// The f32 whose lowest bit has the value of the lowest bit of a subnormal number.
    pub fn subnormal_magic(self) -> f32 {
        2f32.powi(24 - self.bias - self.mantissa_bits as i32)
    }

    /// The difference between the bits of an f32, shifted right to the mantissa of the format, and
    /// the code of the same number.
    pub fn exponent_offset(self) -> u32 {
        ((127 - self.bias) as u32) << self.mantissa_bits
    }
}

/// The number of a code of [`DType::F8e8m0`]: `2^(code - 127)`; 255 is NaN.
pub fn decode_exponent(code: u8) -> f32 {
    match code {
        0 => f32::from_bits(1 << 22),
        u8::MAX => f32::NAN,
        code => f32::from_bits(u32::from(code) << 23),
    }
}

/// The code of [`DType::F8e8m0`] for the largest power of two that is not above the magnitude of a
/// number. Infinities and NaN become NaN; 0 becomes the smallest number.
pub fn encode_exponent(value: f32) -> u8 {
    (value.to_bits() >> 23) as u8
}

/// Rounds to a narrow float; `None` if the type is not one.
pub fn round(dtype: DType, value: f32) -> Option<f32> {
    decode(dtype, encode(dtype, value)?)
}

/// The code of a number in a narrow float type; `None` for other types.
pub fn encode(dtype: DType, value: f32) -> Option<u8> {
    match dtype {
        DType::F8e8m0 => Some(encode_exponent(value)),
        _ => NarrowFloat::of(dtype).map(|format| format.encode(value)),
    }
}

/// The number of a code of a narrow float type; `None` for other types.
pub fn decode(dtype: DType, code: u8) -> Option<f32> {
    match dtype {
        DType::F8e8m0 => Some(decode_exponent(code)),
        _ => NarrowFloat::of(dtype).map(|format| format.decode(code)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLOATS: [DType; 5] = [DType::F4e2m1, DType::F8e4m3fn, DType::F8e4m3fnuz, DType::F8e5m2, DType::F8e5m2fnuz];

    fn decoded(dtype: DType, codes: &[u8]) -> Vec<f32> {
        codes.iter().map(|code| decode(dtype, *code).unwrap()).collect()
    }

    #[test]
    fn codes_decode_by_their_format() {
        assert_eq!(decoded(DType::F8e4m3fn, &[0x38, 0x7e, 0x01, 0xc0]), [1.0, 448.0, 2f32.powi(-9), -2.0]);
        assert!(decoded(DType::F8e4m3fn, &[0x7f, 0xff]).iter().all(|v| v.is_nan()));
        assert_eq!(decoded(DType::F8e4m3fnuz, &[0x40, 0x7f]), [1.0, 240.0]);
        assert_eq!(decoded(DType::F8e5m2, &[0x3c, 0x7b, 0x7c, 0x01]), [1.0, 57_344.0, f32::INFINITY, 2f32.powi(-16)]);
        assert_eq!(decoded(DType::F8e5m2fnuz, &[0x40, 0x7f]), [1.0, 57_344.0]);
        assert!(decoded(DType::F8e5m2fnuz, &[0x80]).iter().all(|v| v.is_nan()));
        assert_eq!(decoded(DType::F4e2m1, &[1, 2, 7, 15]), [0.5, 1.0, 6.0, -6.0]);
        assert_eq!(decoded(DType::F8e8m0, &[0, 127, 254]), [2f32.powi(-127), 1.0, 2f32.powi(127)]);
    }

    #[test]
    fn every_number_has_the_code_it_came_from() {
        for dtype in FLOATS {
            let codes = 0..=u8::MAX >> (8 - dtype.bits());
            for code in codes.filter(|code| !decode(dtype, *code).unwrap().is_nan()) {
                assert_eq!(encode(dtype, decode(dtype, code).unwrap()), Some(code), "{dtype} {code:#x}");
            }
        }
        for code in 0..u8::MAX {
            assert_eq!(encode_exponent(decode_exponent(code)), code);
        }
    }

    /// A number between two neighbours becomes the nearer one, and the middle the even one.
    #[test]
    fn rounding_is_to_the_nearest_and_then_to_the_even_code() {
        for dtype in FLOATS {
            let format = NarrowFloat::of(dtype).unwrap();
            for low in 0..format.largest_code() {
                let [a, b] = [low, low + 1].map(|code| format.decode(code));
                let middle = (a + b) / 2.0;
                let even = if low % 2 == 0 { low } else { low + 1 };
                assert_eq!(format.encode(middle), even, "{dtype} {middle}");
                assert_eq!(format.encode(middle.next_down()), low, "{dtype} below {middle}");
                assert_eq!(format.encode(middle.next_up()), low + 1, "{dtype} above {middle}");
            }
        }
    }

    #[test]
    fn numbers_beyond_the_largest_are_what_the_type_has() {
        let codes = |value: f32| FLOATS.map(|dtype| encode(dtype, value).unwrap());
        assert_eq!(codes(1e6), [0x7, 0x7f, 0x80, 0x7c, 0x80]);
        assert_eq!(codes(f32::NEG_INFINITY), [0xf, 0xff, 0x80, 0xfc, 0x80]);
        assert_eq!(codes(f32::NAN.copysign(1.0)), [0x8, 0x7f, 0x80, 0x7e, 0x80]);
        assert_eq!(codes(-1e-20), [0x8, 0x80, 0, 0x80, 0]);
        assert_eq!([464.0, 465.0].map(|v| encode(DType::F8e4m3fn, v).unwrap()), [0x7e, 0x7f]);
    }
}
