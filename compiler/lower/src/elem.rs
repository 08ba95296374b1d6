//! Element types of registers and values.

use std::fmt;

/// The element type of a register or of an LLVM value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Elem {
    /// A predicate.
    I1,
    /// 8 bits.
    I8,
    /// 16 bits.
    I16,
    /// 32 bits.
    I32,
    /// 64 bits.
    I64,
    /// 128 bits.
    I128,
    /// A half-precision float.
    F16,
    /// A single-precision float.
    F32,
    /// A double-precision float.
    F64,
    /// A pointer.
    Ptr,
    /// A pointer of an address space other than 0.
    Space(u8),
}

impl Elem {
    /// The integer type of a width in bits.
    pub fn int(bits: u32) -> Elem {
        match bits {
            1 => Elem::I1,
            8 => Elem::I8,
            16 => Elem::I16,
            32 => Elem::I32,
            64 => Elem::I64,
            _ => Elem::I128,
        }
    }

    /// Width in bits; 1 for a predicate.
    pub fn bits(self) -> u32 {
        match self {
            Elem::I1 => 1,
            Elem::I8 => 8,
            Elem::I16 | Elem::F16 => 16,
            // AMD's LDS and scratch.
            Elem::I32 | Elem::F32 | Elem::Space(3 | 5) => 32,
            Elem::I64 | Elem::F64 | Elem::Ptr | Elem::Space(_) => 64,
            Elem::I128 => 128,
        }
    }

    /// Bytes in memory.
    pub fn bytes(self) -> u32 {
        self.bits().div_ceil(8)
    }

    /// Whether it is a floating-point type.
    pub fn is_float(self) -> bool {
        matches!(self, Elem::F16 | Elem::F32 | Elem::F64)
    }

    /// The suffix of this type in the names of LLVM's intrinsics.
    pub fn mangled(self) -> &'static str {
        match self {
            Elem::I1 => "i1",
            Elem::I8 => "i8",
            Elem::I16 => "i16",
            Elem::I32 => "i32",
            Elem::I64 => "i64",
            Elem::I128 => "i128",
            Elem::F16 => "f16",
            Elem::F32 => "f32",
            Elem::F64 => "f64",
            Elem::Ptr | Elem::Space(0) => "p0",
            Elem::Space(1) => "p1",
            Elem::Space(3) => "p3",
            Elem::Space(4) => "p4",
            Elem::Space(_) => "p5",
        }
    }
}

impl fmt::Display for Elem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Elem::Space(space) = self {
            return write!(f, "ptr addrspace({space})");
        }
        f.write_str(match self {
            Elem::F16 => "half",
            Elem::F32 => "float",
            Elem::F64 => "double",
            Elem::Ptr => "ptr",
            int => int.mangled(),
        })
    }
}
