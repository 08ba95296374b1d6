//! The operations of PTX's `atom` and `red`.

use atoll_lower::program::is_signed;
use atoll_ptx::ScalarType;

/// The operation of an atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    /// `add`
    Add,
    /// `and`
    And,
    /// `or`
    Or,
    /// `xor`
    Xor,
    /// `exch`
    Exchange,
    /// `min`
    Min,
    /// `max`
    Max,
    /// `inc`
    Increment,
    /// `dec`
    Decrement,
    /// `cas`
    CompareAndSwap,
}

impl AtomicOp {
    /// The operation that a modifier names; `None` if it names none.
    pub fn of(word: &str) -> Option<AtomicOp> {
        Some(match word {
            "add" => AtomicOp::Add,
            "and" => AtomicOp::And,
            "or" => AtomicOp::Or,
            "xor" => AtomicOp::Xor,
            "exch" => AtomicOp::Exchange,
            "min" => AtomicOp::Min,
            "max" => AtomicOp::Max,
            "inc" => AtomicOp::Increment,
            "dec" => AtomicOp::Decrement,
            "cas" => AtomicOp::CompareAndSwap,
            _ => return None,
        })
    }

    /// Whether PTX has the operation for a type.
    pub fn has(self, ty: ScalarType) -> bool {
        use ScalarType::*;
        match self {
            AtomicOp::Add => matches!(ty, U32 | S32 | U64 | S64 | F32 | F64 | F16 | F16x2 | Bf16 | Bf16x2),
            AtomicOp::Min | AtomicOp::Max => matches!(ty, U32 | S32 | U64 | S64 | F16 | F16x2 | Bf16 | Bf16x2),
            AtomicOp::And | AtomicOp::Or | AtomicOp::Xor => matches!(ty, B32 | B64),
            AtomicOp::Increment | AtomicOp::Decrement => ty == U32,
            AtomicOp::Exchange => matches!(ty, B32 | B64 | B128 | U32 | S32 | U64 | F32),
            AtomicOp::CompareAndSwap => matches!(ty, B16 | B32 | B64 | B128 | U32 | S32 | U64),
        }
    }

    /// LLVM's `atomicrmw` operation. `None` for operations that need a loop: compare-and-swap
    /// itself, halves, and sums of f32, whose treatment of subnormal numbers differs between
    /// processors.
    pub fn instruction(self, ty: ScalarType) -> Option<&'static str> {
        if is_half(ty) {
            return None;
        }
        Some(match (self, is_signed(ty)) {
            (AtomicOp::Add, _) if ty == ScalarType::F64 => "fadd",
            (AtomicOp::Add, _) if ty == ScalarType::F32 => return None,
            (AtomicOp::Add, _) => "add",
            (AtomicOp::And, _) => "and",
            (AtomicOp::Or, _) => "or",
            (AtomicOp::Xor, _) => "xor",
            (AtomicOp::Exchange, _) => "xchg",
            (AtomicOp::Min, true) => "min",
            (AtomicOp::Min, false) => "umin",
            (AtomicOp::Max, true) => "max",
            (AtomicOp::Max, false) => "umax",
            (AtomicOp::Increment, _) => "uinc_wrap",
            (AtomicOp::Decrement, _) => "udec_wrap",
            (AtomicOp::CompareAndSwap, _) => return None,
        })
    }
}

/// Whether a type is one 16-bit float or two.
pub fn is_half(ty: ScalarType) -> bool {
    matches!(ty, ScalarType::F16 | ScalarType::F16x2 | ScalarType::Bf16 | ScalarType::Bf16x2)
}
