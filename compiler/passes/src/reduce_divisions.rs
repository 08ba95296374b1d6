//! Replaces integer divisions by constants.
//!
//! GPUs have no integer division. NVIDIA's assembler expands one to a floating-point reciprocal
//! with two corrections, some fifteen instructions, even if the divisor is a constant: it expects
//! compilers to replace such divisions. Our code generator and passes emit them (windows of
//! convolutions, the extents of virtual blocks, strips of loops), so this pass replaces them in one
//! place.
//!
//! A divisor is constant if it is an immediate, or a register that is assigned the same number at
//! every definition, such as a product of the extents of a block. Unsigned division by a power of
//! two, of any width, becomes a shift or a mask. Division of 32 bits by another number becomes a
//! multiplication by a fixed-point reciprocal (Granlund and Montgomery, "Division by Invariant
//! Integers using Multiplication", 1994): `q = (n · m) >> (32 + after)`. Powers of two are shifted
//! out of the divisor first. An analysis then still sees that the threads of a warp share one
//! quotient, and the multiplier is smaller. For some odd divisors the multiplier has 33 bits, and
//! its highest bit is added separately.

use crate::code::{Code as NewCode, clean_functions, prepend, rebuild};
use crate::error::PassError;
use atoll_ptx::analysis::{Code, DefUse, RegisterId, StatementId};
use atoll_ptx::types::TypeClass;
use atoll_ptx::{Function, Guard, Immediate, Instruction, Module, Name, Operand, ScalarType, Statement, StatementKind};
use std::collections::BTreeMap;

// Registers of a function whose divisions take several instructions.
const QUOTIENT: &str = "%atoll_quotient";
const HALF: &str = "%atoll_half";

/// Processes every function of a module. Returns the number of divisions replaced for each kernel
/// with a body, in order.
pub(crate) fn reduce_divisions(module: &mut Module) -> Result<Vec<u32>, PassError> {
    clean_functions(module, |function| {
        let divisions = divisions(function);
        rewrite(function, &divisions);
        Ok(divisions.len())
    })
}

/// A division or remainder by a constant.
struct Division {
    guard: Option<Guard>,
    /// Whether the result is the remainder.
    is_remainder: bool,
    bits: u32,
    result: Name,
    dividend: Name,
    replacement: Replacement,
}

/// The replacement of a division.
enum Replacement {
    /// The divisor is 2 to the power of this.
    Shift(u32),
    /// A 32-bit divisor, and its reciprocal.
    Multiply(u32, Reciprocal),
}

/// All divisions that can be replaced.
fn divisions(function: &Function) -> BTreeMap<StatementId, Division> {
    let code = Code::of(function);
    let known = known_registers(&code);
    let division = |id| {
        let instruction = code.instruction(id)?;
        let [Operand::Name(result), Operand::Name(dividend), divisor] = &instruction.operands[..] else { return None };
        let [modifier] = &instruction.modifiers[..] else { return None };
        let ty = ScalarType::from_name(modifier).filter(|ty| ty.class() == TypeClass::Unsigned && ty.bits() >= 16)?;
        let is_remainder = match instruction.opcode.as_str() {
            "div" => false,
            "rem" => true,
            _ => return None,
        };
        if [result, dividend].into_iter().any(|name| is_part_or_special(name)) {
            return None;
        }
        let replacement = Replacement::of(value(&code, &known, id, divisor, ty)?, ty.bits())?;
        let guard = instruction.guard.clone();
        Some(Division {
            guard,
            is_remainder,
            bits: ty.bits(),
            result: result.clone(),
            dividend: dividend.clone(),
            replacement,
        })
    };
    code.statements().filter_map(|(id, _)| Some((id, division(id)?))).collect()
}

/// `%v.x` or `%tid.x`
fn is_part_or_special(name: &str) -> bool {
    name.contains('.')
}

/// Registers that have the same constant value at every definition.
fn known_registers(code: &Code<'_>) -> BTreeMap<RegisterId, u64> {
    let sites = DefUse::of(code);
    let is_argument = |id| code.function().params.iter().any(|p| p.name == code.register(id).name);
    let registers = (0..code.registers().len()).map(RegisterId::new);
    let mut unknown: Vec<RegisterId> = registers.filter(|&id| !sites.defs(id).is_empty() && !is_argument(id)).collect();
    let mut known = BTreeMap::new();
    // Registers found in one round may make others constant in the next.
    loop {
        let before = unknown.len();
        unknown.retain(|&id| {
            let mut values = sites.defs(id).iter().map(|&def| computed(code, &known, def));
            let only = values.next().flatten().filter(|first| values.all(|other| other == Some(*first)));
            known.extend(only.map(|value| (id, value)));
            only.is_none()
        });
        if unknown.len() == before {
            return known;
        }
    }
}

/// The constant that a statement assigns to the register it writes, if it always assigns the same
/// one.
fn computed(code: &Code<'_>, known: &BTreeMap<RegisterId, u64>, id: StatementId) -> Option<u64> {
    let instruction = code.instruction(id).filter(|i| i.guard.is_none())?;
    let (Operand::Name(to), sources) = instruction.operands.split_first()? else { return None };
    let ty = instruction
        .ty()
        .filter(|ty| !matches!(ty.class(), TypeClass::Float | TypeClass::Predicate) && !is_part_or_special(to))?;
    let source = |index: usize| value(code, known, id, sources.get(index)?, ty);
    let number = match (instruction.opcode.as_str(), &instruction.modifiers[..]) {
        ("mov", [_]) => source(0)?,
        ("add", [_]) => source(0)?.wrapping_add(source(1)?),
        ("sub", [_]) => source(0)?.wrapping_sub(source(1)?),
        ("mul", [half, _]) if half == "lo" => source(0)?.wrapping_mul(source(1)?),
        _ => return None,
    };
    Some(number & mask(ty.bits()))
}

/// The constant value of an operand at a statement, if known.
fn value(
    code: &Code<'_>,
    known: &BTreeMap<RegisterId, u64>,
    at: StatementId,
    operand: &Operand,
    ty: ScalarType,
) -> Option<u64> {
    let number = match operand {
        Operand::Immediate(Immediate::Int(number)) => *number as u64,
        Operand::Name(name) if !is_part_or_special(name) => *known.get(&code.register_at(at, name)?)?,
        _ => return None,
    };
    Some(number & mask(ty.bits()))
}

fn mask(bits: u32) -> u64 {
    u64::MAX >> (64 - bits.min(64))
}

impl Replacement {
    /// `None` if there is no replacement, as for zero.
    fn of(divisor: u64, bits: u32) -> Option<Replacement> {
        if divisor.is_power_of_two() {
            return Some(Replacement::Shift(divisor.trailing_zeros()));
        }
        let divisor = u32::try_from(divisor).ok().filter(|&divisor| divisor != 0 && bits == 32)?;
        Some(Replacement::Multiply(divisor, Reciprocal::of(divisor)))
    }
}

/// Replaces divisions by other instructions.
fn rewrite(function: &mut Function, divisions: &BTreeMap<StatementId, Division>) {
    let mut needed: Vec<&str> = Vec::new();
    if divisions.values().any(|division| matches!(division.replacement, Replacement::Multiply(..))) {
        needed.push(QUOTIENT);
    }
    if divisions
        .values()
        .any(|division| matches!(&division.replacement, Replacement::Multiply(_, reciprocal) if reciprocal.adds))
    {
        needed.push(HALF);
    }
    // The pass may have processed the function before.
    let code = Code::of(function);
    needed.retain(|name| !code.declares_register(StatementId::new(0), name));
    let Some(body) = function.body.as_mut().filter(|_| !divisions.is_empty()) else { return };
    rebuild(body, &mut |id, statement, code| match divisions.get(&id) {
        Some(division) => division.write(statement, code),
        None => code.statements.push(statement),
    });
    if !needed.is_empty() {
        let mut declaration = NewCode::default();
        declaration.registers(ScalarType::B32, &needed);
        prepend(body, declaration);
    }
}

impl Division {
    /// Appends the replacement; the division's statement becomes the last instruction, which writes
    /// the result.
    fn write(&self, mut statement: Statement, code: &mut NewCode) {
        let mut steps = NewCode::default();
        let last = match &self.replacement {
            Replacement::Shift(log2) if self.is_remainder => self.result(
                &format!("and.b{}", self.bits),
                [Operand::from(&self.dividend), ((1_i64 << log2).wrapping_sub(1)).into()],
            ),
            Replacement::Shift(log2) => {
                self.result(&format!("shr.u{}", self.bits), [Operand::from(&self.dividend), (*log2).into()])
            }
            Replacement::Multiply(divisor, reciprocal) => {
                let shift = self.multiply(reciprocal, &mut steps);
                if self.is_remainder {
                    self.step(&mut steps, "shr.u32", [QUOTIENT.into(), QUOTIENT.into(), shift.into()]);
                    // Encoded as a signed immediate with the same bits.
                    let minus = divisor.wrapping_neg().cast_signed();
                    self.result("mad.lo.s32", [QUOTIENT.into(), minus.into(), Operand::from(&self.dividend)])
                } else {
                    self.result("shr.u32", [QUOTIENT.into(), shift.into()])
                }
            }
        };
        *statement.edit() = StatementKind::Instruction(last);
        // A comment before the division stays before the code that replaces it.
        if let Some(first) = steps.statements.first_mut() {
            std::mem::swap(&mut first.origin.leading, &mut statement.origin.leading);
        }
        code.statements.append(&mut steps.statements);
        code.statements.push(statement);
    }

    /// Multiplies by the reciprocal; returns the remaining right shift of the quotient.
    fn multiply(&self, reciprocal: &Reciprocal, code: &mut NewCode) -> u32 {
        let mut dividend = Operand::from(&self.dividend);
        if reciprocal.before > 0 {
            self.step(code, "shr.u32", [QUOTIENT.into(), dividend, reciprocal.before.into()]);
            dividend = QUOTIENT.into();
        }
        self.step(code, "mul.hi.u32", [QUOTIENT.into(), dividend.clone(), reciprocal.multiplier.into()]);
        if !reciprocal.adds {
            return reciprocal.after;
        }
        // The sum of dividend and product has 33 bits; half of their difference plus the product
        // does not overflow.
        self.step(code, "sub.u32", [HALF.into(), dividend, QUOTIENT.into()]);
        self.step(code, "shr.u32", [HALF.into(), HALF.into(), 1.into()]);
        self.step(code, "add.u32", [QUOTIENT.into(), QUOTIENT.into(), HALF.into()]);
        reciprocal.after - 1
    }

    fn step<const N: usize>(&self, code: &mut NewCode, dotted: &str, operands: [Operand; N]) {
        code.emit_guarded(self.guard.as_ref(), dotted, operands);
    }

    fn result<const N: usize>(&self, dotted: &str, sources: [Operand; N]) -> Instruction {
        let mut operands = vec![Operand::from(&self.result)];
        operands.extend(sources);
        Instruction { guard: self.guard.clone(), ..Instruction::new(dotted, operands) }
    }
}

/// The reciprocal of a divisor: `(multiplier + 2³² if it adds) / 2^(32 + after)`, for dividends
/// that are shifted right by `before` first.
#[derive(Clone, Copy, Debug)]
struct Reciprocal {
    before: u32,
    multiplier: u32,
    /// Whether the multiplier has a 33rd bit.
    adds: bool,
    after: u32,
}

impl Reciprocal {
    /// `divisor` must not be a power of two.
    fn of(divisor: u32) -> Reciprocal {
        let before = divisor.trailing_zeros();
        let odd = u128::from(divisor >> before);
        // The multiplier is rounded up. Its excess, times any dividend, must stay below one unit of
        // the quotient. With `after` = 32 it does, since `odd` has at most 32 bits.
        let fits = |after: &u32| {
            let excess = (1_u128 << (32 + after)).next_multiple_of(odd) - (1_u128 << (32 + after));
            excess <= 1 << (before + after)
        };
        let after = (0..32).find(fits).unwrap_or(32);
        let multiplier = (1_u128 << (32 + after)).div_ceil(odd);
        Reciprocal { before, multiplier: multiplier as u32, adds: multiplier > u128::from(u32::MAX), after }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The value that the emitted instructions compute.
    fn quotient(dividend: u32, reciprocal: Reciprocal) -> u32 {
        let shifted = dividend >> reciprocal.before;
        let product = ((u64::from(shifted) * u64::from(reciprocal.multiplier)) >> 32) as u32;
        match reciprocal.adds {
            false => product >> reciprocal.after,
            true => (((shifted - product) >> 1) + product) >> (reciprocal.after - 1),
        }
    }

    /// Dividends around multiples of the divisor, where a wrong reciprocal shows first, and at both
    /// ends of the range.
    #[test]
    fn reciprocals_divide() {
        let edges = (0..32).flat_map(|log2| [(1_u32 << log2) - 1, (1 << log2) + 1]).chain([
            u32::MAX,
            u32::MAX - 1,
            641,
            6_700_417,
        ]);
        let mut both = [false; 2];
        for divisor in (3..3000).chain(edges).filter(|divisor| *divisor > 2 && !divisor.is_power_of_two()) {
            let reciprocal = Reciprocal::of(divisor);
            both[usize::from(reciprocal.adds)] = true;
            let most = u32::MAX / divisor;
            for multiple in (0..64)
                .chain([most / 3, most / 2, most.saturating_sub(1), most])
                .map(|times: u32| times.min(most) * divisor)
            {
                for dividend in [multiple.wrapping_sub(1), multiple, multiple.saturating_add(1), u32::MAX] {
                    assert_eq!(
                        quotient(dividend, reciprocal),
                        dividend / divisor,
                        "{dividend} / {divisor} by {reciprocal:?}"
                    );
                }
            }
        }
        assert_eq!(both, [true, true]);
    }
}
