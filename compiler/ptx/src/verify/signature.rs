//! Operand signatures of instructions: one row per opcode.

use super::{FaultKind, Verifier, described};
use crate::analysis::{Code, StatementId};
use crate::ast::*;
use crate::types::{ScalarType, TypeClass};

/// The requirement on an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Want {
    /// A value of the type.
    Exactly(ScalarType),
    /// A register at least as wide as the type, for instructions that widen or narrow; a float
    /// register must have exactly its width.
    AtLeast(ScalarType),
    /// `[…]`
    Memory,
    /// No requirement.
    Anything,
}

/// Opcode, required modifier, and one letter per operand: `t` last type, `f` first type, `T` and
/// `F` the same or a wider register, `w` twice the width of the last type, `u` 32 bits, `p`
/// predicate, `m` memory, `*` anything. Operands after `?` are optional. The first matching row
/// applies.
const ROWS: &[(&str, Option<&str>, &str)] = &[
    ("abs", None, "tt"),
    ("add", None, "ttt"),
    ("addc", None, "ttt"),
    ("and", None, "ttt"),
    ("atom", None, "tmt?t*"),
    ("bfe", None, "ttuu"),
    ("bfi", None, "tttuu"),
    ("bfind", None, "ut"),
    ("brev", None, "tt"),
    ("clz", None, "ut"),
    ("cnot", None, "tt"),
    ("copysign", None, "ttt"),
    ("cos", None, "tt"),
    ("cvt", None, "FT?*"),
    ("div", None, "ttt"),
    ("ex2", None, "tt"),
    ("fma", None, "tttt"),
    ("ld", None, "Tm?*"),
    ("lg2", None, "tt"),
    ("mad", Some("wide"), "wttw"),
    ("mad", None, "tttt"),
    ("madc", None, "tttt"),
    ("max", None, "ttt?t"),
    ("min", None, "ttt?t"),
    ("mov", None, "tt"),
    ("mul", Some("wide"), "wtt"),
    ("mul", None, "ttt"),
    ("neg", None, "tt"),
    ("not", None, "tt"),
    ("or", None, "ttt"),
    ("popc", None, "ut"),
    ("rcp", None, "tt"),
    ("red", None, "mt?*"),
    ("rem", None, "ttt"),
    ("rsqrt", None, "tt"),
    ("selp", None, "tttp"),
    ("setp", None, "ptt?p"),
    ("shfl", Some("sync"), "ttuuu"),
    ("shl", None, "ttu"),
    ("shr", None, "ttu"),
    ("sin", None, "tt"),
    ("sqrt", None, "tt"),
    ("st", Some("bulk"), ""),
    ("st", None, "mT?*"),
    ("sub", None, "ttt"),
    ("subc", None, "ttt"),
    ("tanh", None, "tt"),
    ("testp", None, "pt"),
    ("xor", None, "ttt"),
];

impl Verifier<'_> {
    /// Checks number and types of the operands, for instructions in the table.
    pub(super) fn operands(&mut self, code: &Code<'_>, id: StatementId, instruction: &Instruction) {
        let fits =
            |row: &&(&str, Option<&str>, &str)| row.0 == instruction.opcode && row.1.is_none_or(|m| instruction.has(m));
        let Some((_, _, letters)) = ROWS.iter().find(fits).filter(|row| !row.2.is_empty()) else { return };
        let types: Vec<ScalarType> = instruction.modifiers.iter().filter_map(|m| ScalarType::from_name(m)).collect();
        // Types outside `ScalarType`, such as `e4m3x2`, leave the instruction unchecked; only an
        // instruction without any type is a fault.
        let (Some(&first), Some(&last)) = (types.first(), types.last()) else {
            return self.untyped(instruction);
        };
        // Mixed precision (`add.f32.f16`) and packing conversions have more types than the table
        // has letters.
        if types.len() != if instruction.opcode == "cvt" { 2 } else { 1 } {
            return;
        }
        self.operand_count(letters, instruction.operands.len());
        let letters = letters.bytes().filter(|l| *l != b'?');
        for (position, (letter, operand)) in letters.zip(&instruction.operands).enumerate() {
            self.operand(code, id, position + 1, operand, want(letter, first, last));
        }
    }

    fn untyped(&mut self, instruction: &Instruction) {
        // A modifier with a digit may be a type of a later ISA.
        if !instruction.modifiers.iter().any(|m| m.contains(|c: char| c.is_ascii_digit())) {
            self.fault(FaultKind::NoType);
        }
    }

    fn operand_count(&mut self, letters: &str, found: usize) {
        let (needed, optional) = letters.split_once('?').unwrap_or((letters, ""));
        let (least, most) = (needed.len(), needed.len() + optional.len());
        if !(least..=most).contains(&found) {
            let expected = if least == most { least.to_string() } else { format!("{least} to {most}") };
            self.fault(FaultKind::OperandCount { expected, found });
        }
    }

    fn operand(&mut self, code: &Code<'_>, id: StatementId, position: usize, operand: &Operand, want: Want) {
        let wrong = match (operand, want) {
            (_, Want::Anything) | (Operand::Address(_) | Operand::Bracket(_), Want::Memory) => None,
            (_, Want::Memory) => Some("not in brackets".to_string()),
            (Operand::Address(_) | Operand::Bracket(_), _) => Some("a memory operand".to_string()),
            (Operand::Name(name) | Operand::Not(name) | Operand::Negated(name), _) => {
                register_misfit(code, id, name, want)
            }
            (Operand::Immediate(value), Want::Exactly(ty) | Want::AtLeast(ty)) => {
                immediate_misfit(position, *value, ty)
            }
            // `setp` and `shfl` write their result and a predicate.
            (Operand::Pair(value, _), _) => return self.operand(code, id, position, value, want),
            // Every element of a `ld.v4` vector has the type. A `mov` vector only matches as a
            // whole.
            (Operand::Vector(parts), _) if matches!(want, Want::AtLeast(_)) => {
                return parts.iter().for_each(|part| self.operand(code, id, position, part, want));
            }
            _ => None,
        };
        if let Some(found) = wrong {
            let expected = want.to_string();
            self.fault(FaultKind::OperandType { position, operand: operand.to_string(), found, expected });
        }
    }
}

impl std::fmt::Display for Want {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Want::Exactly(ty) => write!(f, ".{ty}"),
            Want::AtLeast(ty) => write!(f, ".{ty} or wider"),
            Want::Memory => f.write_str("a memory operand"),
            Want::Anything => f.write_str("anything"),
        }
    }
}

fn want(letter: u8, first: ScalarType, last: ScalarType) -> Want {
    match letter {
        b't' => Want::Exactly(last),
        b'T' => Want::AtLeast(last),
        b'F' => Want::AtLeast(first),
        b'w' => widened(last).map_or(Want::Anything, Want::Exactly),
        b'u' => Want::Exactly(ScalarType::U32),
        b'p' => Want::Exactly(ScalarType::Pred),
        b'm' => Want::Memory,
        _ => Want::Anything,
    }
}

fn widened(ty: ScalarType) -> Option<ScalarType> {
    Some(match ty {
        ScalarType::U16 => ScalarType::U32,
        ScalarType::S16 => ScalarType::S32,
        ScalarType::U32 => ScalarType::U64,
        ScalarType::S32 => ScalarType::S64,
        _ => return None,
    })
}

/// A description of the register if it does not match `want`. Names other than registers
/// (variables, special registers) are not checked.
fn register_misfit(code: &Code<'_>, id: StatementId, name: &str, want: Want) -> Option<String> {
    let register = code.register(code.register_at(id, name)?);
    // The type of a component depends on the instruction.
    if register.vector.is_some() || name.contains('.') {
        return None;
    }
    let fits = match want {
        Want::Exactly(ty) => register.ty.bits() == ty.bits() && classes_agree(register.ty, ty),
        Want::AtLeast(ty) if register.ty.class() == TypeClass::Float => {
            register.ty.bits() == ty.bits() && classes_agree(register.ty, ty)
        }
        Want::AtLeast(ty) => register.ty.bits() >= ty.bits() && classes_agree(register.ty, ty),
        Want::Memory | Want::Anything => true,
    };
    (!fits).then(|| described(register.ty))
}

/// ISA chapter 9.4: signed and unsigned integers agree, untyped bits agree with everything but
/// predicates, floats agree only with floats.
fn classes_agree(register: ScalarType, ty: ScalarType) -> bool {
    use TypeClass::*;
    match (register.class(), ty.class()) {
        (Predicate, other) | (other, Predicate) => other == Predicate,
        (Bits, _) | (_, Bits) => true,
        (Float, other) | (other, Float) => other == Float,
        (Unsigned | Signed, Unsigned | Signed) => true,
    }
}

fn immediate_misfit(position: usize, value: Immediate, ty: ScalarType) -> Option<String> {
    // In every row the first operand is written, unless it is memory.
    if position == 1 {
        return Some("a number".into());
    }
    let is_float = !matches!(value, Immediate::Int(_));
    (is_float && matches!(ty.class(), TypeClass::Unsigned | TypeClass::Signed | TypeClass::Predicate))
        .then(|| "a floating-point number".into())
}
