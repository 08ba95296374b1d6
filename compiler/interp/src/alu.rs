//! Instructions that only compute registers from registers. Each is decoded to one function of its
//! source values.
//!
//! Values have 64 bits; the upper bits of a narrower source are zero. A result may have nonzero
//! upper bits, because the write to a register truncates it to the width of the register. A signed
//! result is thereby sign-extended into a wider register.

mod bits;
mod compare;
mod convert;
mod float;
mod integer;
mod packed;
mod video;

pub(crate) use video::decode as decode_video;

use crate::format::{self, Format, Rounding};
use atoll_ptx::types::TypeClass;
use atoll_ptx::{Instruction, ScalarType};

/// Maps source values (with the carry last, if it is read) to the result and a second result: the
/// carry, or `q` of `p|q`.
pub(crate) type Function = Box<dyn Fn(&[u64]) -> [u64; 2] + Send + Sync>;

/// A decoded arithmetic instruction.
pub(crate) struct Alu {
    /// The computation.
    pub(crate) function: Function,
    /// Number of sources, without the carry.
    pub(crate) sources: usize,
    /// Whether the carry is the last source.
    pub(crate) carry_in: bool,
    /// Whether the second result is the carry.
    pub(crate) carry_out: bool,
}

impl Alu {
    fn new(sources: usize, f: impl Fn(&[u64]) -> u64 + Send + Sync + 'static) -> Alu {
        Alu { function: Box::new(move |s| [f(s), 0]), sources, carry_in: false, carry_out: false }
    }

    fn pair(sources: usize, f: impl Fn(&[u64]) -> [u64; 2] + Send + Sync + 'static) -> Alu {
        Alu { function: Box::new(f), sources, carry_in: false, carry_out: false }
    }
}

/// The decoded instruction, or why it is not supported; `None` if it belongs to another family.
type Decoded = Result<Option<Alu>, String>;

/// Decodes an arithmetic instruction.
pub(crate) fn decode(i: &Instruction) -> Decoded {
    for family in [packed::decode, compare::decode, convert::decode, bits::decode, integer::decode, float::decode] {
        if let Some(alu) = family(i)? {
            return Ok(Some(alu));
        }
    }
    Ok(None)
}

/// Rejects modifiers that are neither types nor in the list.
fn only(i: &Instruction, allowed: &[&str]) -> Result<(), String> {
    let unknown = i.modifiers.iter().find(|m| ScalarType::from_name(m).is_none() && !allowed.contains(&m.as_str()));
    unknown.map_or(Ok(()), |m| Err(format!("the modifier .{m} is not supported")))
}

/// The type of the operation.
fn ty(i: &Instruction) -> Result<ScalarType, String> {
    i.ty().ok_or_else(|| "it has no supported type".to_owned())
}

fn is_signed(ty: ScalarType) -> bool {
    ty.class() == TypeClass::Signed
}

/// The value of an integer register.
fn int(ty: ScalarType, bits: u64) -> i128 {
    let unused = 128 - ty.bits();
    let shifted = u128::from(bits) << unused;
    if is_signed(ty) { (shifted as i128) >> unused } else { (shifted >> unused) as i128 }
}

/// The smallest and the largest value of an integer type.
fn range(ty: ScalarType) -> (i128, i128) {
    let bits = ty.bits();
    if is_signed(ty) { (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) }
}

/// The low `bits` bits of a value.
pub(crate) fn low(bits: u32, value: u64) -> u64 {
    if bits >= 64 { value } else { value & ((1 << bits) - 1) }
}

/// The format of a scalar floating-point type.
fn format_of(ty: ScalarType) -> Option<Format> {
    match ty {
        ScalarType::F16 => Some(format::F16),
        ScalarType::Bf16 => Some(format::BF16),
        ScalarType::Tf32 => Some(format::TF32),
        ScalarType::F32 => Some(format::F32),
        ScalarType::F64 => Some(format::F64),
        _ => None,
    }
}

/// The rounding mode in the modifiers, for floats or integers.
fn rounding(i: &Instruction) -> Option<Rounding> {
    i.modifiers.iter().find_map(|m| match m.as_str() {
        "rn" | "rni" => Some(Rounding::Nearest),
        "rna" => Some(Rounding::NearestAway),
        "rz" | "rzi" => Some(Rounding::Zero),
        "rm" | "rmi" => Some(Rounding::Down),
        "rp" | "rpi" => Some(Rounding::Up),
        _ => None,
    })
}
