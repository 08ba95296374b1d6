//! Emits the operations that bound an operand.

use super::plan::{Base, Bound, Extent, Fix};
use super::{BASE, CONSTANTS, CONSTANTS_MASK, DYNAMIC, MASK};
use crate::code::Code;
use crate::options::FenceForm;
use atoll_ptx::build::address;
use atoll_ptx::{AddressBase, Guard, Instruction, Name, Operand, ScalarType, StateSpace, Statement, StatementKind};
use std::collections::BTreeSet;

/// Scratch registers, one set per function: no value outlives its access.
const ADDRESS: &str = "%atoll_address";
/// In the form [`FenceForm::Exit`]: the bits of an address that show that it is outside, where
/// [`OUTSIDE`] holds.
pub(crate) const OTHER: &str = "%atoll_other";
const HERE: &str = "%atoll_here";
const INDEX: &str = "%atoll_index";
/// In the form [`FenceForm::Mask`]: whether a load reads constants, so that its address stays.
const STAYS: &str = "%atoll_stays";
/// In the forms that trap: whether an active access lies outside.
pub(crate) const OUTSIDE: &str = "%atoll_outside";
/// Whether the dynamic shared array is too small for a single access.
pub(crate) const TOO_SMALL: &str = "%atoll_too_small";

/// The state shared by all bounded accesses of a function.
pub(super) struct Fixes {
    form: FenceForm,
    /// Sizes in bytes of accesses to the region, and of the loads among them.
    regions: BTreeSet<u64>,
    loads: BTreeSet<u64>,
    dynamics: BTreeSet<u64>,
}

/// The mask that keeps an access of `bytes` within the region.
fn mask_of(bytes: u64) -> String {
    if bytes == 1 { MASK.into() } else { format!("%atoll_mask_{bytes}") }
}

/// The bits in which an address in the constants equals their start, and the bits that are clear in
/// an aligned access.
fn outer_of(bytes: u64) -> String {
    format!("%atoll_outer_{bytes}")
}

/// The bits that are clear in the offset of an aligned access in the region.
fn beyond_of(bytes: u64) -> String {
    format!("%atoll_beyond_{bytes}")
}

/// The largest offset in the region.
fn region_limit_of(bytes: u64) -> String {
    format!("%atoll_region_limit_{bytes}")
}

/// The largest offset in the constants.
fn constants_limit_of(bytes: u64) -> String {
    format!("%atoll_constants_limit_{bytes}")
}

/// The largest offset in the dynamic shared array.
fn limit_of(bytes: u64) -> String {
    format!("%atoll_limit_{bytes}")
}

impl Fixes {
    pub(super) fn new(form: FenceForm) -> Fixes {
        Fixes { form, regions: BTreeSet::new(), loads: BTreeSet::new(), dynamics: BTreeSet::new() }
    }

    /// Appends a statement with its operands bounded.
    pub(super) fn apply(&mut self, fixes: &[Fix], mut statement: Statement, code: &mut Code) {
        let first = code.statements.len();
        let StatementKind::Instruction(instruction) = statement.edit() else { return };
        for (position, fix) in fixes.iter().enumerate() {
            // Two operands of one instruction need two registers.
            let result = if position == 0 { ADDRESS } else { HERE };
            self.bound(instruction, fix, result, code);
        }
        code.statements[first..].iter_mut().for_each(|operation| operation.origin.line = statement.origin.line);
        // Comments before the instruction move before the operations.
        if let Some(first) = code.statements.get_mut(first) {
            first.origin.leading = std::mem::replace(&mut statement.origin.leading, "\n\t".into());
        }
        code.statements.push(statement);
    }

    /// Bounds an operand. If its address changes, `result` is the register of the new one.
    fn bound(&mut self, instruction: &mut Instruction, fix: &Fix, result: &str, code: &mut Code) {
        let bounded = || address(&Name::new(result), 0);
        match &fix.bound {
            Bound::Index(last) => {
                let Some(index) = instruction.operands.get_mut(fix.operand) else { return };
                code.emit("min.u32", [INDEX.into(), index.clone(), (*last).into()]);
                *index = INDEX.into();
            }
            &Bound::Region { bytes, is_load } => {
                self.regions.insert(bytes);
                self.loads.extend(is_load.then_some(bytes));
                let Some(from) = source(instruction, fix, result, code) else { return };
                let guard = instruction.guard.as_ref();
                match self.form {
                    FenceForm::Mask => into_region(&from, bytes, is_load, result, code),
                    FenceForm::Trap => trap_outside(&from, bytes, is_load, guard, code),
                    FenceForm::Exit => trap_beyond(&from, bytes, guard, code),
                }
                let operand = &mut instruction.operands[fix.operand];
                // A checked address stays unless it is a literal, which assemblers accept for local
                // memory only.
                if self.form == FenceForm::Mask || is_absolute(operand) {
                    *operand = bounded();
                }
            }
            Bound::Variable { name, space, extent, is_generic, align } => {
                if let Extent::Dynamic(bytes) = extent {
                    self.dynamics.insert(*bytes);
                }
                let Some(from) = source(instruction, fix, result, code) else { return };
                into_variable(&from, name, (*space, *is_generic), (*extent, *align), result, code);
                instruction.operands[fix.operand] = bounded();
                if *is_generic {
                    set_space(instruction, *space);
                }
            }
        }
    }

    /// Declares and computes the values that the operations use.
    pub(super) fn declare(&self, prologue: &mut Code) {
        prologue.registers(ScalarType::B64, &[ADDRESS, OTHER, HERE]);
        prologue.registers(ScalarType::B32, &[INDEX]);
        let condition = if self.form == FenceForm::Mask { STAYS } else { OUTSIDE };
        prologue.registers(ScalarType::Pred, &[condition, TOO_SMALL]);
        match self.form {
            FenceForm::Mask => self.declare_masks(prologue),
            FenceForm::Trap => self.declare_limits(prologue),
            FenceForm::Exit => self.declare_beyond(prologue),
        }
        for &bytes in &self.dynamics {
            let limit = limit_of(bytes);
            prologue.registers(ScalarType::B64, &[&limit]);
            prologue.emit("cvt.u64.u32", [limit.as_str().into(), DYNAMIC.into()]);
            // An array that is too small for a single access has no valid offset.
            prologue.emit("setp.lt.u64", [TOO_SMALL.into(), limit.as_str().into(), (bytes as i64).into()]);
            prologue.emit_if(TOO_SMALL, "trap", []);
            prologue.emit("sub.s64", [limit.as_str().into(), limit.as_str().into(), (bytes as i64).into()]);
        }
    }

    fn declare_masks(&self, prologue: &mut Code) {
        for &bytes in self.regions.iter().filter(|bytes| **bytes > 1) {
            prologue.registers(ScalarType::B64, &[&mask_of(bytes)]);
            prologue.emit("and.b64", [mask_of(bytes).as_str().into(), MASK.into(), (-(bytes as i64)).into()]);
        }
        for &bytes in &self.loads {
            declare_outside(prologue, &outer_of(bytes), CONSTANTS_MASK, bytes);
        }
    }

    fn declare_beyond(&self, prologue: &mut Code) {
        for &bytes in &self.regions {
            declare_outside(prologue, &beyond_of(bytes), MASK, bytes);
        }
    }

    /// The largest offsets at which an access fits; a region is larger than every access.
    fn declare_limits(&self, prologue: &mut Code) {
        for (sizes, mask, limit_of) in [
            (&self.regions, MASK, region_limit_of as fn(u64) -> String),
            (&self.loads, CONSTANTS_MASK, constants_limit_of),
        ] {
            for &bytes in sizes {
                let limit = limit_of(bytes);
                prologue.registers(ScalarType::B64, &[&limit]);
                prologue.emit("sub.s64", [limit.as_str().into(), mask.into(), (bytes as i64 - 1).into()]);
            }
        }
    }
}

/// Declares a register with the bits that are 0 in each allowed offset: those above a mask, and those
/// that an access of `bytes` bytes is aligned to.
fn declare_outside(prologue: &mut Code, register: &str, mask: &str, bytes: u64) {
    prologue.registers(ScalarType::B64, &[register]);
    prologue.emit("not.b64", [register.into(), mask.into()]);
    if bytes > 1 {
        prologue.emit("or.b64", [register.into(), register.into(), (bytes as i64 - 1).into()]);
    }
}

fn is_absolute(operand: &Operand) -> bool {
    matches!(operand, Operand::Address(at) if matches!(at.base, AddressBase::Absolute(_)))
}

/// The address of an operand, in a 64-bit register.
fn source(instruction: &Instruction, fix: &Fix, result: &str, code: &mut Code) -> Option<Operand> {
    let Some(Operand::Address(from)) = instruction.operands.get(fix.operand) else { return None };
    let offset = from.offset;
    let base: Operand = match (&from.base, fix.base) {
        (AddressBase::Absolute(value), _) => {
            code.emit("mov.u64", [result.into(), (value.wrapping_add(offset as u64) as i64).into()]);
            return Some(result.into());
        }
        (AddressBase::Name(name), Base::Wide) => name.into(),
        (AddressBase::Name(name), Base::Narrow) => {
            code.emit("cvt.u64.u32", [result.into(), name.into()]);
            result.into()
        }
        (AddressBase::Name(name), Base::Variable) => {
            code.emit("mov.u64", [result.into(), name.into()]);
            result.into()
        }
    };
    if offset == 0 {
        return Some(base);
    }
    code.emit("add.s64", [result.into(), base, offset.into()]);
    Some(result.into())
}

/// Moves an address into the region, unless it is that of a load from the constants.
fn into_region(from: &Operand, bytes: u64, is_load: bool, result: &str, code: &mut Code) {
    let mask = mask_of(bytes);
    if !is_load {
        code.emit("and.b64", [result.into(), from.clone(), mask.as_str().into()]);
        code.emit("or.b64", [result.into(), result.into(), BASE.into()]);
        return;
    }
    code.emit("and.b64", [OTHER.into(), from.clone(), outer_of(bytes).as_str().into()]);
    code.emit("setp.eq.u64", [STAYS.into(), OTHER.into(), CONSTANTS.into()]);
    code.emit("and.b64", [OTHER.into(), from.clone(), mask.as_str().into()]);
    code.emit("or.b64", [OTHER.into(), OTHER.into(), BASE.into()]);
    code.emit("selp.b64", [result.into(), from.clone(), OTHER.into(), STAYS.into()]);
}

/// Traps if an active access lies neither in the region nor, for a load, in the constants. The host
/// target recognises this form.
fn trap_outside(from: &Operand, bytes: u64, is_load: bool, guard: Option<&Guard>, code: &mut Code) {
    let outside = |code: &mut Code, start: &str, limit: String, also: Option<Operand>| {
        let limit = limit.as_str().into();
        code.emit("sub.s64", [OTHER.into(), from.clone(), start.into()]);
        match also {
            None => code.emit("setp.gt.u64", [OUTSIDE.into(), OTHER.into(), limit]),
            Some(also) => code.emit("setp.gt.and.u64", [OUTSIDE.into(), OTHER.into(), limit, also]),
        }
    };
    outside(code, BASE, region_limit_of(bytes), guard.map(made));
    if is_load {
        outside(code, CONSTANTS, constants_limit_of(bytes), Some(OUTSIDE.into()));
    }
    code.emit_if(OUTSIDE, "trap", []);
}

/// Traps if an active access does not lie in the region or is not aligned. An aligned access that
/// begins in the region ends in it.
fn trap_beyond(from: &Operand, bytes: u64, guard: Option<&Guard>, code: &mut Code) {
    code.emit("sub.s64", [OTHER.into(), from.clone(), BASE.into()]);
    code.emit("and.b64", [OTHER.into(), OTHER.into(), beyond_of(bytes).as_str().into()]);
    match guard.map(made) {
        None => code.emit("setp.ne.u64", [OUTSIDE.into(), OTHER.into(), 0.into()]),
        Some(made) => code.emit("setp.ne.and.u64", [OUTSIDE.into(), OTHER.into(), 0.into(), made]),
    }
    code.emit_if(OUTSIDE, "trap", []);
}

/// Whether an access with a guard is made, as an operand.
fn made(guard: &Guard) -> Operand {
    if guard.negated { Operand::Not(guard.predicate.clone()) } else { (&guard.predicate).into() }
}

/// Moves an address into a variable: limits its offset, and rounds it down to a multiple of
/// `align`.
fn into_variable(
    from: &Operand,
    name: &Name,
    (space, is_generic): (StateSpace, bool),
    (extent, align): (Extent, u64),
    result: &str,
    code: &mut Code,
) {
    let mut from = from.clone();
    if is_generic && space != StateSpace::Global {
        code.emit(&format!("cvta.to.{space}.u64"), [result.into(), from]);
        from = result.into();
    }
    let limit: Option<Operand> = match extent {
        Extent::Known(most) => Some((most as i64).into()),
        Extent::Dynamic(bytes) => Some(limit_of(bytes).as_str().into()),
        Extent::Inside => None,
    };
    if let Some(limit) = limit {
        code.emit("mov.u64", [OTHER.into(), name.into()]);
        code.emit("sub.s64", [result.into(), from, OTHER.into()]);
        code.emit("min.u64", [result.into(), result.into(), limit]);
        code.emit("add.s64", [result.into(), OTHER.into(), result.into()]);
        from = result.into();
    }
    if align > 1 {
        code.emit("and.b64", [result.into(), from, (-(align as i64)).into()]);
    }
}

/// Gives a generic access an explicit state space.
fn set_space(instruction: &mut Instruction, space: StateSpace) {
    const BEFORE: [&str; 12] =
        ["volatile", "weak", "relaxed", "acquire", "release", "acq_rel", "mmio", "sc", "cta", "cluster", "gpu", "sys"];
    if matches!(space, StateSpace::Local | StateSpace::Const) {
        // This memory is not shared with other threads, so order and scope do not apply.
        instruction.modifiers.retain(|m| !BEFORE.contains(&m.as_str()));
    }
    let position =
        instruction.modifiers.iter().position(|m| !BEFORE.contains(&m.as_str())).unwrap_or(instruction.modifiers.len());
    instruction.modifiers.insert(position, Name::new(space.as_str()));
}
