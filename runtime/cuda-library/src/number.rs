//! Types of numbers.

/// A type of numbers in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Number {
    /// `f64`.
    F64,
    /// `f32`.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of `f32`.
    Bf16,
    /// `i32`.
    S32,
    /// `i8`.
    S8,
}

impl Number {
    /// The size in bytes.
    pub fn bytes(self) -> i64 {
        match self {
            Number::F64 => 8,
            Number::F32 | Number::S32 => 4,
            Number::F16 | Number::Bf16 => 2,
            Number::S8 => 1,
        }
    }

    /// The name in PTX.
    pub fn name(self) -> &'static str {
        match self {
            Number::F64 => "f64",
            Number::F32 => "f32",
            Number::F16 => "f16",
            Number::Bf16 => "bf16",
            Number::S32 => "s32",
            Number::S8 => "s8",
        }
    }

    /// The literal 0 of a type in which kernels compute.
    pub fn zero(self) -> &'static str {
        match self {
            Number::F64 => "0d0000000000000000",
            Number::F32 => "0f00000000",
            _ => "0",
        }
    }

    /// The literal of a number of a type of floats in which kernels compute.
    pub fn literal(self, number: f64) -> String {
        match self {
            Number::F64 => format!("0d{:016X}", number.to_bits()),
            _ => format!("0f{:08X}", (number as f32).to_bits()),
        }
    }
}

/// The number whose bits in f16 are these.
pub fn half(bits: u16) -> f32 {
    /// 2 to the power of 112, the difference of the exponents' biases.
    const SCALE: f32 = f32::from_bits((127 + 112) << 23);
    let magnitude = u32::from(bits & 0x7fff);
    let number = if magnitude < 0x7c00 {
        f32::from_bits(magnitude << 13) * SCALE
    } else {
        f32::from_bits(0x7f80_0000 | ((magnitude & 0x3ff) << 13))
    };
    f32::from_bits(number.to_bits() | (u32::from(bits >> 15) << 31))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_read_exactly() {
        let wanted = [(0x3c00, 1.0), (0xc000, -2.0), (0x0001, 2f32.powi(-24)), (0x7bff, 65504.0), (0x0000, 0.0)];
        wanted.iter().for_each(|(bits, number)| assert_eq!(half(*bits), *number, "{bits:#x}"));
        assert!(half(0x7c00).is_infinite() && half(0x7e00).is_nan());
        assert!(half(0x8000).is_sign_negative());
    }

    #[test]
    fn literals_are_the_bits_of_numbers() {
        assert_eq!(Number::F32.literal(1.0), "0f3F800000");
        assert_eq!(Number::F64.literal(-2.0), "0dC000000000000000");
    }
}
