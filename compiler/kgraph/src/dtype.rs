//! Element types.

use serde::{Deserialize, Serialize};

/// Element type of a buffer.
///
/// An element occupies whole bytes. Types of 4 and 2 bits take one byte, of which only the low bits
/// count. Signed integers are stored sign-extended, narrow floats as their codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the variants are the type names of every framework")]
pub enum DType {
    Bool,
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    U64,
    I64,
    F16,
    Bf16,
    F32,
    F64,
    U2,
    I2,
    U4,
    I4,
    F4e2m1,
    F8e4m3fn,
    F8e4m3fnuz,
    F8e5m2,
    F8e5m2fnuz,
    F8e8m0,
    /// Codes of strings, 4 bytes each (see [`crate::strings`]). Clients send and receive strings.
    Strings,
}

impl DType {
    /// The narrow types: numbers are stored in them, but kernels compute in other types.
    pub const NARROW: [DType; 10] = [
        DType::U2,
        DType::I2,
        DType::U4,
        DType::I4,
        DType::F4e2m1,
        DType::F8e4m3fn,
        DType::F8e4m3fnuz,
        DType::F8e5m2,
        DType::F8e5m2fnuz,
        DType::F8e8m0,
    ];

    /// Whether this is one of [`DType::NARROW`].
    pub fn is_narrow(self) -> bool {
        DType::NARROW.contains(&self)
    }

    /// Whether this is a floating-point type.
    pub fn is_float(self) -> bool {
        let is_narrow_integer = matches!(self, DType::U2 | DType::I2 | DType::U4 | DType::I4);
        matches!(self, DType::F16 | DType::Bf16 | DType::F32 | DType::F64) || self.is_narrow() && !is_narrow_integer
    }

    /// Whether the host reads numbers of this type from strings, and writes them.
    pub fn has_texts(self) -> bool {
        let is_float = matches!(self, DType::F32 | DType::F64);
        let is_number = !self.is_float() && !self.is_narrow() && self != DType::Strings;
        is_float || is_number
    }

    /// The type of the same bytes for clients and for kernels that only move elements: I8 for signed
    /// narrow integers, U8 for all other narrow types, the type itself otherwise.
    pub fn carrier(self) -> DType {
        match self {
            DType::I2 | DType::I4 => DType::I8,
            other if other.is_narrow() => DType::U8,
            other => other,
        }
    }

    /// Number of significant bits of an element.
    pub fn bits(self) -> u32 {
        match self {
            DType::U2 | DType::I2 => 2,
            DType::U4 | DType::I4 | DType::F4e2m1 => 4,
            other => 8 * other.bytes() as u32,
        }
    }

    /// Size of one element in bytes.
    pub fn bytes(self) -> u64 {
        match self {
            DType::Bool | DType::U8 | DType::I8 => 1,
            DType::U2 | DType::I2 | DType::U4 | DType::I4 | DType::F4e2m1 => 1,
            DType::F8e4m3fn | DType::F8e4m3fnuz | DType::F8e5m2 | DType::F8e5m2fnuz | DType::F8e8m0 => 1,
            DType::U16 | DType::I16 | DType::F16 | DType::Bf16 => 2,
            DType::U32 | DType::I32 | DType::F32 | DType::Strings => 4,
            DType::U64 | DType::I64 | DType::F64 => 8,
        }
    }
}

/// The name in graphs: `f32`.
impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            DType::Bool => "bool",
            DType::U8 => "u8",
            DType::I8 => "i8",
            DType::U16 => "u16",
            DType::I16 => "i16",
            DType::U32 => "u32",
            DType::I32 => "i32",
            DType::U64 => "u64",
            DType::I64 => "i64",
            DType::F16 => "f16",
            DType::Bf16 => "bf16",
            DType::F32 => "f32",
            DType::F64 => "f64",
            DType::U2 => "u2",
            DType::I2 => "i2",
            DType::U4 => "u4",
            DType::I4 => "i4",
            DType::F4e2m1 => "f4e2m1",
            DType::F8e4m3fn => "f8e4m3fn",
            DType::F8e4m3fnuz => "f8e4m3fnuz",
            DType::F8e5m2 => "f8e5m2",
            DType::F8e5m2fnuz => "f8e5m2fnuz",
            DType::F8e8m0 => "f8e8m0",
            DType::Strings => "strings",
        })
    }
}
