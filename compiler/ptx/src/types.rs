//! Fundamental types and state spaces of PTX (ISA chapters 5.1 and 5.2).

use std::fmt;

/// A fundamental or packed type, without its leading dot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the variants are the ISA's own spellings")]
pub enum ScalarType {
    B8,
    B16,
    B32,
    B64,
    B128,
    U8,
    U16,
    U32,
    U64,
    S8,
    S16,
    S32,
    S64,
    F16,
    F16x2,
    Bf16,
    Bf16x2,
    Tf32,
    F32,
    F64,
    Pred,
}

/// How instructions interpret the bits of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TypeClass {
    /// Untyped bits (`.b32`).
    Bits,
    /// Unsigned integer.
    Unsigned,
    /// Signed integer.
    Signed,
    /// Floating point, including packed forms.
    Float,
    /// Predicate.
    Predicate,
}

impl ScalarType {
    /// Every type, in the order of the enum.
    pub const ALL: [ScalarType; 21] = {
        use ScalarType::*;
        [B8, B16, B32, B64, B128, U8, U16, U32, U64, S8, S16, S32, S64, F16, F16x2, Bf16, Bf16x2, Tf32, F32, F64, Pred]
    };

    /// The spelling without the dot, as in `.f32`.
    pub fn as_str(self) -> &'static str {
        use ScalarType::*;
        match self {
            B8 => "b8",
            B16 => "b16",
            B32 => "b32",
            B64 => "b64",
            B128 => "b128",
            U8 => "u8",
            U16 => "u16",
            U32 => "u32",
            U64 => "u64",
            S8 => "s8",
            S16 => "s16",
            S32 => "s32",
            S64 => "s64",
            F16 => "f16",
            F16x2 => "f16x2",
            Bf16 => "bf16",
            Bf16x2 => "bf16x2",
            Tf32 => "tf32",
            F32 => "f32",
            F64 => "f64",
            Pred => "pred",
        }
    }

    /// The type with this name, which has no dot.
    pub fn from_name(name: &str) -> Option<ScalarType> {
        Self::ALL.into_iter().find(|t| t.as_str() == name)
    }

    /// Size in bytes; a predicate counts as one byte.
    pub fn bytes(self) -> u32 {
        use ScalarType::*;
        match self {
            B8 | U8 | S8 | Pred => 1,
            B16 | U16 | S16 | F16 | Bf16 => 2,
            B32 | U32 | S32 | F32 | F16x2 | Bf16x2 | Tf32 => 4,
            B64 | U64 | S64 | F64 => 8,
            B128 => 16,
        }
    }

    /// Size in bits; 1 for a predicate.
    pub fn bits(self) -> u32 {
        if self == ScalarType::Pred { 1 } else { self.bytes() * 8 }
    }

    /// The class of the type.
    pub fn class(self) -> TypeClass {
        use ScalarType::*;
        match self {
            B8 | B16 | B32 | B64 | B128 => TypeClass::Bits,
            U8 | U16 | U32 | U64 => TypeClass::Unsigned,
            S8 | S16 | S32 | S64 => TypeClass::Signed,
            F16 | F16x2 | Bf16 | Bf16x2 | Tf32 | F32 | F64 => TypeClass::Float,
            Pred => TypeClass::Predicate,
        }
    }
}

impl fmt::Display for ScalarType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A state space of PTX variables and memory accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the variants are the ISA's own spellings")]
pub enum StateSpace {
    Reg,
    Sreg,
    Const,
    Global,
    Local,
    Param,
    Shared,
    Tex,
}

impl StateSpace {
    /// The spelling without the dot.
    pub fn as_str(self) -> &'static str {
        match self {
            StateSpace::Reg => "reg",
            StateSpace::Sreg => "sreg",
            StateSpace::Const => "const",
            StateSpace::Global => "global",
            StateSpace::Local => "local",
            StateSpace::Param => "param",
            StateSpace::Shared => "shared",
            StateSpace::Tex => "tex",
        }
    }

    /// The state space with this name, which has no dot.
    pub fn from_name(name: &str) -> Option<StateSpace> {
        use StateSpace::*;
        [Reg, Sreg, Const, Global, Local, Param, Shared, Tex].into_iter().find(|s| s.as_str() == name)
    }
}

impl fmt::Display for StateSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
