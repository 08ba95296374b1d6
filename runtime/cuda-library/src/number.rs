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
